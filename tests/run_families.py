#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests that docs/field-reports.md names, and no others of their programs and files;
the end-to-end ones with the stand-in.

    tests/run_families.py               all of them
    tests/run_families.py K11 H05       those of these rows
    tests/run_families.py -e llama-new  the end-to-end ones with another engine

The programs are those of build/release (`make families` builds them). The last two lines say
how many passed and what time they took; the exit status is 1 where a test failed or is not
there.
"""

import argparse
import collections
import concurrent.futures
import os
import re
import resource
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
import run_e2e  # noqa: E402

PAGE = os.path.join(ROOT, "docs", "field-reports.md")
PROGRAMS = os.path.join(ROOT, "build", "release", "tests")
IDS = r"[KH]\d\d|CVE-\d+-\d+"


def rows():
    """(ids of a row, names of its tests as FILE:NAME)."""
    with open(PAGE, encoding="utf-8") as f:
        for line in f:
            cells = line.split("|")
            tests = re.findall(r"`(test_\w+:\w+)`", line)
            if len(cells) > 2 and tests:
                yield re.findall(IDS, cells[1]), tests


def chosen(wanted):
    """{file: names}, of unit tests and of end-to-end tests."""
    unit, e2e = collections.defaultdict(set), collections.defaultdict(set)
    for ids, tests in rows():
        if wanted and not wanted & set(ids):
            continue
        for file, name in (t.split(":") for t in tests):
            is_unit = os.path.exists(os.path.join(HERE, "unit", file + ".c"))
            (unit if is_unit else e2e)[file].add(name)
    return unit, e2e


def run_unit(file, name):
    """Output where it did not pass, and the three counts."""
    try:
        done = subprocess.run([os.path.join(PROGRAMS, file)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={"SEEDS": "1", **os.environ, "TEST_FILTER": name})
    except OSError as why:
        return f"FAILED  {file}: {why}", [0, 1, 0]
    text = done.stdout.decode(errors="replace")
    if done.returncode == 0 and f"[       OK ] {name}\n" in text:
        return "", [1, 0, 0]
    return f"{text}FAILED  {file}:{name}", [0, 1, 0]


def run_e2e_file(engine, file, names):
    path = os.path.join(HERE, "e2e", file + ".py")
    _, lines, counts = run_e2e.spawn(engine, path, sorted(names))
    missing = [n for n in names if not any(n.removeprefix("test_") in x for x in lines)]
    lines = [x for x in lines if not x.startswith(("ok ", "skipped "))]
    return "\n".join(lines + [f"FAILED  {file}: there is no {n}" for n in missing]), (
        counts if not missing else [counts[0], counts[1] + len(missing), counts[2]])


def main():
    parser = argparse.ArgumentParser(description="Runs the tests of docs/field-reports.md.")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("-e", metavar="ENGINE", default="standin",
                        choices=["standin", "lab", "llama-old", "llama-new"])
    parser.add_argument("-j", type=int, default=run_e2e.usual_jobs())
    arguments = parser.parse_args()
    _, why = run_e2e.to_be_had([arguments.e])
    if why:
        print(f"skipped all on llama-server: {why}")
        return 0
    unit, e2e = chosen(set(arguments.rows))
    began, total = time.monotonic(), [0, 0, 0]
    with concurrent.futures.ThreadPoolExecutor(arguments.j) as pool:
        work = [pool.submit(run_e2e_file, arguments.e, f, e2e[f])
                for f in sorted(e2e, key=lambda f: -len(e2e[f]))]    # the longest first
        work += [pool.submit(run_unit, f, n) for f in sorted(unit) for n in sorted(unit[f])]
        for done in work:
            text, counts = done.result()
            print(text, end="\n" if text else "", flush=True)
            total = [a + b for a, b in zip(total, counts)]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print("{} passed, {} failed, {} skipped".format(*total))
    print(f"{time.monotonic() - began:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU")
    return 1 if total[1] or not sum(total) else 0


if __name__ == "__main__":
    sys.exit(main())
