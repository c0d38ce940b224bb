#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the end-to-end tests: with the built-in engine and with the scripted stand-in.

    tests/run_e2e.py                  all of tests/e2e
    tests/run_e2e.py -k smuggling     those whose name contains a word
    tests/run_e2e.py -e lab           with this engine: standin, lab, llama-old, llama-new
    tests/run_e2e.py -j 1             one file at a time (default: three on two cores)

INCIPIT_BIN names the program (default build/release/incipit). Tests that an engine cannot
be asked for are told by reason and number. What failed is run once more, alone, and named, unless
it draws at random.
The last line is "N passed, N failed, N skipped"; the exit status is 1 if any failed.
"""

import argparse
import collections
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
FILE_TIMEOUT_S = 1500 if os.environ.get("INCIPIT_UNDER") else 300
LLAMA_FILE_TIMEOUT_S = 1200  # each test starts an engine that takes seconds
# Files that bring an engine of their own or need none.
OWN = {"test_bench", "test_bench_clients", "test_bench_inputs", "test_bench_output",
       "test_bench_page", "test_bench_steps", "test_cli", "test_demo", "test_kvsize", "test_lab",
       "test_lesson", "test_observe", "test_standin", "test_store_cli", "test_whole"}
# Files that draw at random: what they have found once they need not find again.
ONCE = {"test_isolation"}
FAILED = re.compile(r"^FAILED +\S*\.(test_\w+) ")
NEEDS_STANDIN = re.compile(r"^skipped .*: needs the stand-in: (.*)$")
sys.path[:0] = [os.path.join(HERE, "lib"), os.path.join(HERE, "e2e")]


class Result(unittest.TestResult):
    """One line a test."""

    def __init__(self):
        super().__init__()
        self.passed = 0
        self.began = {}
        self.broken = set()

    def startTest(self, test):
        super().startTest(test)
        self.began[test] = time.monotonic()

    def line(self, word, test, more=""):
        took = time.monotonic() - self.began.get(test, time.monotonic())
        name = test.id() if hasattr(test, "id") else str(test)
        print(f"{word:8}{name} ({took * 1000:.0f} ms){more}", flush=True)

    def addSuccess(self, test):
        self.passed += 1
        self.line("ok", test)

    def addFailure(self, test, error):
        self.addError(test, error)

    def addError(self, test, error):
        text = self._exc_info_to_string(error, test)
        if test.id() in self.broken:
            print(text, flush=True)
            return
        self.broken.add(test.id())
        self.line("FAILED", test, "\n" + text)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.broken.add(test.id())
            self.line("FAILED", subtest, "\n" + self._exc_info_to_string(error, test))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line("skipped", test, f": {reason}")

    def addExpectedFailure(self, test, error):
        self.addSuccess(test)

    def addUnexpectedSuccess(self, test):
        self.broken.add(test.id())
        self.line("FAILED", test, " passed against expectation")

    def summary(self):
        return f"{self.passed} passed, {len(self.broken)} failed, {len(self.skipped)} skipped"


def run_file(path, words):
    """All tests of one file, in this process."""
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{w}*" for w in words] or None
    result = Result()
    loader.loadTestsFromName(os.path.basename(path)[:-3]).run(result)
    print(result.summary())
    return 1 if result.broken else 0


def spawn(engine, path, words):
    """The same in a process of its own, so that files can run side by side."""
    command = [sys.executable, os.path.abspath(__file__), "--file", path]
    command += [x for w in words for x in ("-k", w)]
    patience = LLAMA_FILE_TIMEOUT_S if engine.startswith("llama") else FILE_TIMEOUT_S
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, timeout=patience,
                              env=dict(os.environ, INCIPIT_ENGINE=engine))
        output = done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        output += f"\nFAILED  {path}: no end after {patience} s\n0 passed, 1 failed, 0 skipped"
    *lines, last = output.rstrip().split("\n")
    try:
        counts = [int(word.split()[0]) for word in last.split(", ")]
        assert len(counts) == 3
    except (ValueError, IndexError, AssertionError):
        lines, counts = [*lines, last, f"FAILED  {path}: ended without a summary"], [0, 1, 0]
    return engine, lines, counts


def files_for(engine):
    files = sorted(glob.glob(os.path.join(HERE, "e2e", "test_*.py")))
    return [f for f in files if engine == "standin" or os.path.basename(f)[:-3] not in OWN]


def show(engine, lines, reasons):
    """Prints the output of a file; what needs the stand-in is only counted."""
    mark = "" if engine == "standin" else f"{engine}: "
    for line in lines:
        if match := NEEDS_STANDIN.match(line):
            reasons[match[1]] += 1
        else:
            print(re.sub(r"^(ok|FAILED|skipped) +", rf"\g<0>{mark}", line))
    sys.stdout.flush()


def again(engine, path, lines):
    """Failed tests once more, with nothing beside them: how many passed then. They run on
    machines that are shared, and a deadline can pass there that has nothing to do with the
    program; each is named, so that one that comes back is seen."""
    names = sorted({match[1] for line in lines if (match := FAILED.match(line))})
    if not names or os.path.basename(path)[:-3] in ONCE:
        return 0
    _, rest, counts = spawn(engine, path, names)
    show(engine, rest, collections.Counter())
    if counts[1] or not counts[0]:
        return 0
    print(f"{engine}: passed alone at the second try: {' '.join(names)}", flush=True)
    return len(names)


def to_be_had(engines):
    """These engines without a llama-server that cannot be installed, and why."""
    if not any(e.startswith("llama") for e in engines):
        return engines, None
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "tools"))
    import llama_server
    try:
        llama_server.install()
        return engines, None
    except llama_server.Unavailable as why:
        return [e for e in engines if not e.startswith("llama")], why


def run(engines, words, jobs):
    """All files with all these engines; returns the three counts."""
    engines, why = to_be_had(engines)
    if why:
        print(f"skipped all on llama-server: {why}")
        if not engines:
            return [0, 0, 1]
    totals = {e: [0, 0, 0] for e in engines}
    reasons = {e: collections.Counter() for e in engines}
    bad = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        work = {pool.submit(spawn, e, f, words): f for e in engines for f in files_for(e)}
        for done in concurrent.futures.as_completed(work):
            engine, lines, counts = done.result()
            show(engine, lines, reasons[engine])
            totals[engine] = [a + b for a, b in zip(totals[engine], counts)]
            if counts[1]:
                bad.append((engine, work[done], lines, counts[1]))
    for engine, path, lines, failed in bad:
        saved = min(again(engine, path, lines), failed)
        totals[engine][0] += saved
        totals[engine][1] -= saved
    for engine in engines:
        print("{}: {} passed, {} failed, {} skipped".format(engine, *totals[engine]))
        if reasons[engine]:
            print(f"{engine}: {sum(reasons[engine].values())} need the stand-in:",
                  "; ".join(f"{n} {why}" for why, n in reasons[engine].most_common()))
    return [sum(t) for t in zip(*totals.values())]


def usual_jobs():
    """Tests wait for half of their time."""
    cores = os.cpu_count() or 1
    return cores + (cores + 1) // 2


def main():
    parser = argparse.ArgumentParser(description="Runs the end-to-end tests.")
    parser.add_argument("-k", action="append", default=[], metavar="WORD")
    parser.add_argument("-e", action="append", default=[], metavar="ENGINE",
                        choices=["standin", "lab", "llama-old", "llama-new"])
    parser.add_argument("-j", type=int, default=usual_jobs())
    parser.add_argument("--file", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.dont_write_bytecode = True
    if arguments.file:
        return run_file(arguments.file, arguments.k)
    total = run(arguments.e or ["lab", "standin"], arguments.k, arguments.j)
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
