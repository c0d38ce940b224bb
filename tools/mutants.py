#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts one deliberate fault after the other into a copy of the tree and demands that the
tests that are about it fail: the table is tests/mutants.py.

    tools/mutants.py                 all of them
    tools/mutants.py K11 K14 H05     those families
    tools/mutants.py --markdown      the result as the table of docs/field-reports.md
    tools/mutants.py --fit           only looks whether their old texts are there

The copy lies in a temporary folder with the objects of build/release, so a fault costs the
compilation of its file and a link. Before the faults the tests run once without any. A
fault is "killed" where all its tests fail, "survived" where one passes, "not built" where
it does not compile. The exit status is 1 unless all are killed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from mutants import MUTANTS  # noqa: E402

UNIT_TIMEOUT_S, E2E_TIMEOUT_S = 60, 120
PATIENCE_S = "4"   # of end-to-end tests: those that fail often wait for what never comes
KEPT = ("release", "llhttp", "deps.stamp")


def copy_tree(to):
    """What git knows or would add, with times; and the objects, so that little is built."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                           check=True, capture_output=True, text=True).stdout.split("\n")
    for name in filter(None, names):
        if os.path.isfile(os.path.join(ROOT, name)):
            os.makedirs(os.path.join(to, os.path.dirname(name)), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), os.path.join(to, name))
    for name in KEPT:
        there, here = os.path.join(ROOT, "build", name), os.path.join(to, "build", name)
        if os.path.isdir(there):
            shutil.copytree(there, here, symlinks=True)
        elif os.path.exists(there):
            shutil.copy2(there, here)


class Tree:
    """The copy."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run(self, command, timeout, **env):
        """Status and output; a test that hangs has failed."""
        try:
            done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=timeout, env={**os.environ, **env})
            return done.returncode, done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as late:
            return -1, (late.stdout or b"").decode(errors="replace")

    def build(self, programs):
        """True where all could be built."""
        targets = ["all"] + [f"build/release/tests/{p}" for p in sorted(programs)]
        return self.run(["make", "KIND=release", *targets], 900)

    def fails(self, test):
        """Does it fail? None where there is no such test."""
        place, _, name = test.partition(":")
        kind, _, program = place.partition("/")
        return self.unit(program, name) if kind == "unit" else self.e2e(program, name)

    def unit(self, program, name):
        status, output = self.run([self.path("build/release/tests", program)], UNIT_TIMEOUT_S,
                                  TEST_FILTER=name or "*")
        begun = re.findall(r"\[ RUN      \] (\S+)", output)
        passed = set(re.findall(r"\[       OK \] (\S+)", output))
        if not name:
            return status != 0 if begun else None
        if name in passed:
            return False
        if name in begun:
            return True
        # One before it may have ended the program, or hung.
        return None if status == 0 else self.known(program, name)

    def known(self, program, name):
        with open(self.path("tests/unit", program + ".c"), encoding="utf-8") as f:
            return True if name.removeprefix("test_") in f.read() else None

    def e2e(self, program, name):
        file = self.path("tests/e2e", program + ".py")
        _, output = self.run([sys.executable, "tests/run_e2e.py", "--file", file, "-k", name],
                             E2E_TIMEOUT_S, INCIPIT_ENGINE="standin",
                             INCIPIT_PATIENCE=PATIENCE_S)
        # A gateway that does not stop in order fails a test as well.
        if re.search(r"^(FAILED|skipped) ", output, re.M):
            return bool(re.search(r"^FAILED ", output, re.M))
        return False if re.search(r"^ok ", output, re.M) else None


def programs_of(tests):
    return {t.partition(":")[0].partition("/")[2] for t in tests if t.startswith("unit/")}


def without_faults(tree, mutants):
    """The tests that cannot show anything: they fail, or are not there, anyway."""
    tests = sorted({t for m in mutants for t in m.tests})
    status, output = tree.build(programs_of(tests))
    if status != 0:
        sys.exit("the tree does not build:\n" + output[-2000:])
    states = {t: tree.fails(t) for t in tests}
    return {t: state for t, state in states.items() if state is not False}


class Misfit(Exception):
    """The old text of a row is not there, or more than once."""


def changed_files(tree, mutant):
    """{path: (text, text with the fault)}."""
    files = {}
    for file, old, new in [(mutant.file, mutant.old, mutant.new), *mutant.also]:
        path = tree.path(file)
        if path not in files:
            with open(path, encoding="utf-8") as f:
                files[path] = (text := f.read(), text)
        before, now = files[path]
        if now.count(old) != 1:
            raise Misfit(f"{file} has the old text {now.count(old)} times")
        files[path] = before, now.replace(old, new)
    return files


def misfits(mutants):
    for mutant in mutants:
        try:
            changed_files(Tree(ROOT), mutant)
        except Misfit as why:
            yield f"tests/mutants.py: {mutant.family}: {mutant.fault}: {why}"


def write(files, which):
    for path, texts in files.items():
        with open(path, "w", encoding="utf-8") as f:
            f.write(texts[which])


def attempt(tree, mutant):
    """("killed" | "survived" | "not built", the tests that passed, or why)."""
    try:
        files = changed_files(tree, mutant)
    except Misfit as why:
        return "not built", [str(why)]
    write(files, 1)
    try:
        status, output = tree.build(programs_of(mutant.tests))
        if status != 0:
            return "not built", re.findall(r"error: .*", output)[:1] or [output[-200:]]
        passed = [t for t in mutant.tests if not tree.fails(t)]
        return ("survived" if passed else "killed"), passed
    finally:
        write(files, 0)


def show(rows):
    """As docs/field-reports.md has them; what was not killed is marked."""
    faults = {}
    for mutant, (result, why) in rows:
        mark = "" if result == "killed" else f" ({result}: {' '.join(why)})"
        faults.setdefault(mutant.family, []).append(mutant.fault + mark)
    print("\n| family | faults |\n|---|---|")
    for family in sorted(faults, key=lambda f: ("KHC".index(f[0]), f)):
        print(f"| {', '.join(family.split())} | {'; '.join(faults[family])} |")


def main():
    parser = argparse.ArgumentParser(description="Puts faults in and demands failing tests.")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args()
    wanted = set(arguments.families)
    mutants = [m for m in MUTANTS if not wanted or wanted & set(m.family.split())]
    if arguments.fit:
        found = list(misfits(mutants))
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    folder = tempfile.mkdtemp(prefix="incipit-mutants-")
    rows = []
    try:
        copy_tree(folder)
        tree = Tree(folder)
        useless = without_faults(tree, mutants)
        for test, state in useless.items():
            print(f"without a fault: {test}: {'fails' if state else 'no such test'}", flush=True)
        for mutant in mutants:
            began = time.monotonic()
            row = attempt(tree, mutant)
            rows.append((mutant, row))
            print(f"{row[0]:10}{mutant.family}: {mutant.fault} "
                  f"({time.monotonic() - began:.0f} s) {' '.join(row[1])}", flush=True)
    finally:
        shutil.rmtree(folder, True)
    if arguments.markdown:
        show(rows)
    killed = sum(row[0] == "killed" for _, row in rows)
    print(f"{killed} of {len(rows)} killed")
    return 0 if killed == len(rows) and not useless else 1


if __name__ == "__main__":
    sys.exit(main())
