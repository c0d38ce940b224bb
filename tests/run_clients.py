#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Client libraries through the gateway: tests/clients, on real engines.

    tests/run_clients.py                 on the built-in engine and on llama-server
    tests/run_clients.py -e lab          on one: lab, llama-new
    tests/run_clients.py -k openai       tests by name

Libraries are installed into build/client-libraries; what cannot be had is skipped with the
reason. The last line is "N passed, N failed, N skipped"; the exit status is 1 if any failed.
"""

import argparse
import glob
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "lib"), os.path.join(HERE, "clients"),
                os.path.join(os.path.dirname(HERE), "tools")]
import llama_server  # noqa: E402
from run_e2e import Result  # noqa: E402


def run_here(words):
    """All tests in this process, on the engine that INCIPIT_ENGINE names."""
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{w}*" for w in words] or None
    result = Result()
    for path in sorted(glob.glob(os.path.join(HERE, "clients", "test_*.py"))):
        loader.loadTestsFromName(os.path.basename(path)[:-3]).run(result)
    print(result.summary(), flush=True)
    return 1 if result.broken else 0


def run_on(engine, words):
    """The same in a process of its own; returns the three counts."""
    if engine.startswith("llama"):
        try:
            llama_server.install()
        except llama_server.Unavailable as why:
            print(f"skipped all on {engine}: {why}")
            return [0, 0, 1]
    command = [sys.executable, os.path.abspath(__file__), "--here"]
    child = subprocess.Popen(command + [x for w in words for x in ("-k", w)], text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             env=dict(os.environ, INCIPIT_ENGINE=engine))
    last = ""
    for line in child.stdout:
        if last:
            print(last, flush=True)
        last = line.rstrip()
    status = child.wait()
    try:
        counts = [int(part.split()[0]) for part in last.split(", ")]
        assert len(counts) == 3
    except (ValueError, IndexError, AssertionError):
        print(last)
        counts = [0, 1, 0]
    if status and not counts[1]:
        counts[1] = 1
    print("{}: {} passed, {} failed, {} skipped".format(engine, *counts), flush=True)
    return counts


def main():
    parser = argparse.ArgumentParser(description="Client libraries through the gateway.")
    parser.add_argument("-k", action="append", default=[], metavar="WORD")
    parser.add_argument("-e", action="append", default=[], metavar="ENGINE",
                        choices=["lab", "llama-new", "llama-old"])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    sys.dont_write_bytecode = True
    if o.here:
        return run_here(o.k)
    total = [sum(t) for t in zip(*[run_on(e, o.k) for e in o.e or ("lab", "llama-new")])]
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
