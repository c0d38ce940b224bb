#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests on one or more builds and adds up what they say.

    tests/run.py build/release build/asan     unit, corpus and end-to-end tests
    tests/run.py --engines build/release      tests against a real engine
    tests/run.py --valgrind build/release     unit, corpus and some end-to-end tests under memcheck

The last line is "N passed, N failed, N skipped"; the exit status is 1 if any failed.
"""

import concurrent.futures
import glob
import os
import re
import shlex
import subprocess
import sys

UNIT_TIMEOUT_S = 300
VALGRIND_TIMEOUT_S = 1800
LEAKS = "definite,indirect,possible"
MEMCHECK = ["-q", "--leak-check=full", f"--show-leak-kinds={LEAKS}",
            f"--errors-for-leak-kinds={LEAKS}", "--error-exitcode=99",
            "--child-silent-after-fork=yes",
            f"--suppressions={os.path.abspath('tests/valgrind.supp')}"]
# Files of end-to-end tests whose gateways run under it: all ways in, out and round.
UNDER_VALGRIND = ("admin", "bodies", "bounds", "leaving", "proxy", "redis", "reload", "reuse",
                  "saves", "slots", "tenants", "tls", "warm", "whole")
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")
CMOCKA = re.compile(r"^\[ +(PASSED|FAILED|SKIPPED) +\] (\d+) test\(s\)", re.M)


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def __add__(self, other):
        return Count(self.passed + other.passed, self.failed + other.failed,
                     self.skipped + other.skipped)

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def execute(command, timeout_s):
    """Exit status and output; a time-out or a missing program is a status as well."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, timeout=timeout_s)
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        return -1, (late.stdout or b"").decode(errors="replace") + f"\nno end after {timeout_s} s\n"
    except OSError as error:
        return -1, f"{error}\n"


def run_unit(program, under=(), timeout_s=UNIT_TIMEOUT_S):
    """A cmocka program: counts from its summary; a crash is a failure of its own."""
    status, output = execute([*under, program], timeout_s)
    count = Count()
    for word, n in CMOCKA.findall(output):
        setattr(count, word.lower(), getattr(count, word.lower()) + int(n))
    if (status != 0 and not count.failed) or not CMOCKA.search(output):
        count.failed += 1
    return program, count, output


def run_corpus(program, under=(), timeout_s=UNIT_TIMEOUT_S):
    """A fuzz target over its corpus: one test."""
    name = os.path.basename(program).removeprefix("fuzz_")
    status, output = execute([*under, program,
                              *sorted(glob.glob(f"tests/fuzz/corpus/{name}/*"))], timeout_s)
    return program, Count(passed=status == 0, failed=status != 0), output


def report(program, count, output):
    if count.failed:
        lines = [line for line in output.splitlines()
                 if not re.match(r"\[ (RUN|      OK) ", line)]
        print(f"FAILED {program}", *lines[-60:], sep="\n  ")
    elif count.skipped:
        print(f"skipped tests in {program}:", *re.findall(r"^SKIP.*", output, re.M),
              *re.findall(r"^\[  SKIPPED \] (?!\d+ test).*", output, re.M), sep="\n  ")


def run_programs(build, under=(), timeout_s=UNIT_TIMEOUT_S):
    units = [f"{build}/tests/{os.path.basename(p)[:-2]}"
             for p in sorted(glob.glob("tests/unit/test_*.c"))]
    corpora = [f"{build}/corpus/{os.path.basename(p)[:-2]}"
               for p in sorted(glob.glob("tests/fuzz/fuzz_*.c"))]
    total = Count()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        work = [pool.submit(run, program, under, timeout_s)
                for run, programs in ((run_unit, units), (run_corpus, corpora))
                for program in programs]
        for result in (w.result() for w in work):
            report(*result)
            total += result[1]
    return total


def run_script(script, build, *arguments, env=None):
    """A test script of its own: its output is passed on, its last line counted."""
    if not os.path.exists(script):
        print(f"skipped: there is no {script}")
        return Count(skipped=1)
    env = dict(os.environ, INCIPIT_BIN=os.path.abspath(f"{build}/incipit"),
               PYTHONDONTWRITEBYTECODE="1", **(env or {}))
    fast = os.path.abspath("build/release/incipit")
    if os.path.exists(fast):  # the built-in engine computes: not with sanitizers
        env["INCIPIT_LAB_BIN"] = fast
    child = subprocess.Popen([sys.executable, script, *arguments], env=env,
                             stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="replace")
    count = None
    for line in child.stdout:
        match = SUMMARY.match(line.strip())
        count = Count(*map(int, match.groups())) if match else count
        if not match:
            print(line, end="", flush=True)
    status = child.wait()
    if count is None or (status != 0 and not count.failed):
        print(f"FAILED {script}: exit status {status}, counts {count}")
        count = (count or Count()) + Count(failed=1)
    return count


def run_valgrind(build):
    """Parts of which a report of memcheck is a failure."""
    found = subprocess.run(["tools/valgrind.sh"], capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"skipped all under valgrind: {found.stderr.strip() or 'it cannot be had'}")
        return {"valgrind": Count(skipped=1)}
    under = [found.stdout.strip(), *MEMCHECK]
    env = {"INCIPIT_UNDER": shlex.join(under), "INCIPIT_PATIENCE": "90"}
    words = [x for name in UNDER_VALGRIND for x in ("-k", f"test_{name}.")]
    return {"unit and corpus under valgrind":
                run_programs(build, ["env", f"INCIPIT_UNDER={under[0]}", *under],
                             VALGRIND_TIMEOUT_S),
            "e2e under valgrind":
                run_script("tests/run_e2e.py", build, "-e", "standin", "-j",
                           str(os.cpu_count()), *words, env=env)}


def main(arguments):
    total = Count()
    for build in [a for a in arguments if not a.startswith("--")]:
        if "--valgrind" in arguments:
            parts = run_valgrind(build)
        elif "--engines" in arguments:
            parts = {"engines": run_script("tests/run_engines.py", build),
                     "e2e": run_script("tests/run_e2e.py", build,
                                       "-e", "llama-old", "-e", "llama-new")}
        else:
            parts = {"unit and corpus": run_programs(build),
                     "e2e": run_script("tests/run_e2e.py", build),
                     "faults": run_script("tests/run_faults.py", build, "-n", "12")}
        for name, count in parts.items():
            print(f"{build}: {name}: {count}", flush=True)
            total += count
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
