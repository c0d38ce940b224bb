#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Faults at random moments, and in the n-th system call, end to end: no wrong answer, no
request lost, counters true.

    tests/run_faults.py                    20 rounds
    tests/run_faults.py -n 500 -k kill     500 rounds of one kind
    tests/run_faults.py --seed 7           as far as possible the same again
    tests/run_faults.py -n 0 --calls 0     every call that a gateway makes fails once

INCIPIT_BIN names the program (default build/release/incipit). The seed is printed. The
last line is "N passed, N failed, N skipped", by rounds.
"""

import argparse
import collections
import os
import random
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "faults"), os.path.join(HERE, "lib")]
sys.dont_write_bytecode = True

import calls  # noqa: E402
import preload  # noqa: E402
import rounds  # noqa: E402
from harness import binary  # noqa: E402
from world import World  # noqa: E402


def make_world(seed, sanitized):
    try:
        return World(seed, preload=not sanitized, sanitized=sanitized)
    except preload.Unavailable as why:
        print(f"skipped: a disk that fails: {why}")
        return World(seed, preload=False, sanitized=sanitized)


def choose(rng, words, preload):
    kinds = {name: r for name, r in rounds.ROUNDS.items()
             if (preload or not r[2]) and (not words or name in words)}
    name = rng.choices(list(kinds), [r[0] for r in kinds.values()])[0]
    return name, kinds[name][1]


def play(world, name, function):
    """One round; what went wrong, or None."""
    world.what = ""
    world.begin()
    try:
        function(world)
        return None
    except Exception as error:  # pylint: disable=broad-except
        return (f"{type(error).__name__}: {error}\n" +
                "".join(traceback.format_tb(error.__traceback__)[-3:]))


def run(count, seed, words, sanitized, verbose):
    rng = random.Random(seed)
    failed, skipped, played = 0, 0, 0
    world = make_world(rng.random(), sanitized).start()
    seen = collections.Counter()
    try:
        for i in range(count):
            name, function = choose(rng, words, world.disk)
            began = time.monotonic()
            why = play(world, name, function)
            played += 1
            took = (time.monotonic() - began) * 1000
            if verbose or why:
                print(f"{'FAILED' if why else 'ok':8}{i} {name} {world.what} ({took:.0f} ms)",
                      flush=True)
            if why:
                failed += 1
                print(why, "--- the gateway said", *world.log()[-40:], "---", sep="\n",
                      flush=True)
                seen.update(world.seen)
                world.close()
                world = make_world(rng.random(), sanitized).start()
    finally:
        seen.update(world.seen)
        code = world.close()
    if code not in (0, None):
        print(f"FAILED the gateway ended with {code}")
        failed += 1
    for what, n in sorted(seen.items()):
        print(f"{n:8} {what}")
    return played - failed, failed, skipped


def play_calls(seed, limit, verbose):
    """Passed, failed, skipped of calls.py."""
    try:
        return *calls.run(seed, limit, verbose=verbose), 0
    except preload.Unavailable as why:
        print(f"skipped: calls that fail: {why}")
        return 0, 0, 1


def main():
    parser = argparse.ArgumentParser(description="Faults at random moments.")
    parser.add_argument("-n", type=int, default=20, metavar="ROUNDS")
    parser.add_argument("-k", action="append", default=[], choices=sorted(rounds.ROUNDS))
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("-v", action="store_true", help="a line for each round")
    parser.add_argument("--calls", type=int, default=30, metavar="N",
                        help="so many calls of each scene fail (30; 0: all)")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"faults: seed {seed}", flush=True)
    sanitized = preload.is_sanitized(binary())
    if sanitized:
        print("skipped: a disk that fails (it cannot be put before the sanitizers)")
    passed, failed, skipped = run(given.n, seed, given.k, sanitized, given.v) if given.n \
        else (0, 0, 0)
    if not given.k and not sanitized:
        more = play_calls(seed, given.calls, given.v)
        passed, failed, skipped = (a + b for a, b in zip((passed, failed, skipped), more))
    print(f"{passed} passed, {failed} failed, {skipped + sanitized} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
