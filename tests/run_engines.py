#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests that only a real engine can answer: llama-server, builds old and new, with a tiny
model. Prints each result and, last, "N passed, N failed, N skipped"; where the engine cannot
be installed, all tests are skipped with the reason.
"""

import os
import sys
import time
import traceback
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "lib"), os.path.join(HERE, "engines"),
                os.path.join(os.path.dirname(HERE), "tools")]
import llama_server  # noqa: E402


def tests_of(suite):
    for t in suite:
        if isinstance(t, unittest.TestSuite):
            yield from tests_of(t)
        else:
            yield t


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.passed = 0

    def startTest(self, test):
        super().startTest(test)
        self.since = time.monotonic()

    def _say(self, word, test, text=""):
        print(f"{word:7} {test.id()} ({time.monotonic() - self.since:.1f} s){text}",
              flush=True)

    def addSuccess(self, test):
        self.passed += 1
        self._say("ok", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._say("skipped", test, f": {reason}")

    def _bad(self, test, error):
        self._say("FAILED", test)
        traceback.print_exception(*error)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._bad(test, error)

    def addError(self, test, error):
        super().addError(test, error)
        self._bad(test, error)


def main(arguments):
    suite = unittest.defaultTestLoader.discover(os.path.join(HERE, "engines"), "test_*.py")
    tests = [t for t in tests_of(suite) if all(a in t.id() for a in arguments)]
    result = Result()
    try:
        llama_server.install()
    except llama_server.Unavailable as why:
        for t in tests:
            print(f"skipped {t.id()}: {why}")
        print(f"0 passed, 0 failed, {len(tests)} skipped")
        return 0
    unittest.TestSuite(tests).run(result)
    failed = len(result.failures) + len(result.errors)
    print(f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
