#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Can a tenant tell from times, or from where its requests are put, what others have asked?

    bench/timing.py build/release/incipit              2,000 requests
    bench/timing.py --requests 10000 build/release/incipit
    bench/timing.py --messages build/release/incipit   /v1/messages, where the engine
                                                       chooses the slot

One engine (the built-in one), a gateway with isolation: credential. In each round one
tenant asks a new prompt and the gateway saves it; then another tenant asks: in half of the
rounds, drawn by coin, that same prompt ("known" to the other), else one that nobody has
asked ("new"). All else is drawn alike. In every eighth round, besides, it repeats a prompt
of its own ("own"): the control that shows what the statistic would find. In every eighth
round it asks a known and a new prompt at the same time, in random order, while the only
free slot is busy: which is served first?

Compared: the time of the whole request at the client, the gateway's own time before the
request is sent on (queue_ms + restore_ms), the slot, what the plan promised, what was
delivered. Times by Mann-Whitney U (normal approximation, ties corrected, two-sided p) and
AUC, the chance that a known one took longer than a new one, with its 95 % interval by
Hanley and McNeil (0.5: nothing to be told). Slots by chi-square, order by sign test.
"""

import argparse
import collections
import json
import math
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests",
                                "lib"))
sys.dont_write_bytecode = True
from harness import CHAT, Client, Gateway, request_bytes, wait_until  # noqa: E402
from lab_engine import Lab  # noqa: E402

FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')
LETTERS = "abcdefghijklmnopqrstuvwxyz "


# ---- statistics ---------------------------------------------------------------------------

def two_sided(z):
    return math.erfc(abs(z) / math.sqrt(2))


def ranks(values):
    """Mean ranks from 1, and the sum of t^3 - t over ties."""
    order = sorted(range(len(values)), key=values.__getitem__)
    out, ties, i = [0.0] * len(values), 0, 0
    while i < len(order):
        j = i
        while j < len(order) and values[order[j]] == values[order[i]]:
            j += 1
        for k in range(i, j):
            out[order[k]] = (i + j + 1) / 2
        ties += (j - i) ** 3 - (j - i)
        i = j
    return out, ties


def mann_whitney(a, b):
    """AUC = P(a > b) + P(a = b) / 2, its 95 % interval, and p."""
    n, m = len(a), len(b)
    rank, ties = ranks(a + b)
    u = sum(rank[:n]) - n * (n + 1) / 2
    auc, all_of = u / (n * m), n + m
    variance = n * m / 12 * (all_of + 1 - ties / (all_of * (all_of - 1)))
    p = two_sided((u - n * m / 2) / math.sqrt(variance)) if variance > 0 else 1.0
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    se = math.sqrt(max(0, auc * (1 - auc) + (n - 1) * (q1 - auc * auc) +
                       (m - 1) * (q2 - auc * auc)) / (n * m))
    return auc, max(0, auc - 1.96 * se), min(1, auc + 1.96 * se), p


def chi_square(a, b):
    """p that two lists of slots (two slots) come from one distribution."""
    count = [[side.count(slot) for slot in (0, 1)] for side in (a, b)]
    total = sum(map(sum, count))
    x = 0.0
    for row in count:
        for slot in (0, 1):
            expected = sum(row) * (count[0][slot] + count[1][slot]) / total
            x += (row[slot] - expected) ** 2 / expected if expected else 0
    return math.erfc(math.sqrt(x / 2))


def sign_test(wins, n):
    """Exact two-sided p of so many wins of n where both are as likely."""
    tail = sum(math.comb(n, k) for k in range(min(wins, n - wins) + 1)) / 2 ** n
    return min(1.0, 2 * tail)


# ---- rounds -------------------------------------------------------------------------------

class Bench:
    def __init__(self, program, seed, path):
        self.path = path
        os.environ["INCIPIT_BIN"] = os.path.abspath(program)
        self.rng = random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="incipit-timing-")
        slots = os.path.join(self.folder, "slots")
        os.mkdir(slots, 0o700)
        self.engine = Lab(slots, slots=2, context=1024).start()
        self.gateway = Gateway(self.folder, self.engine.url,
                               {"block_tokens": 16, "isolation": "credential",
                                "headers": {"cache_status": "off", "server_timing": "off"}})
        self.gateway.start(wait="listening")
        self.gateway.wait_ready("store")
        self.seen = collections.defaultdict(list)   # arm: (ms, line of the log)
        self.known_first = self.pairs = 0
        self.bob_asked = []

    def close(self):
        self.gateway.stop()
        self.engine.stop()
        shutil.rmtree(self.folder, True)

    def prompt(self):
        return "".join(self.rng.choices(LETTERS, k=250))

    def ask(self, who, text, tokens=1):
        body = json.dumps({"max_tokens": tokens,
                           "messages": [{"role": "user", "content": text}]}).encode()
        began = time.monotonic()
        with Client(self.gateway.port, 60) as client:
            client.send(request_bytes("POST", self.path, body, (
                ("Content-Type", "application/json"), ("Authorization", f"Bearer {who}"))))
            answer = client.read_answer("POST")
        assert answer.status == 200, answer.body
        return 1000 * (time.monotonic() - began)

    def lines(self):
        return [x for x in self.gateway.output if " event=access " in x]

    def ask_and_note(self, arm, text):
        before = len(self.gateway.output)
        ms = self.ask("bob", text)
        line = wait_until(lambda: next((x for x in self.gateway.output[before:]
                                        if " event=access " in x), None), "a line")
        self.seen[arm].append((ms, dict(FIELD.findall(line))))
        self.bob_asked.append(text)

    def rest(self):
        """Nothing runs; and what is worth it at once is saved. The rest may wait for
        minutes of quiet."""
        until = time.monotonic() + 0.2

        def resting():
            replica = self.gateway.replica()
            late = time.monotonic() > until
            return (not replica["in_flight"] and not replica["kv_operations"] and
                    not replica["unbound"] and
                    all(s["state"] == "idle" and (late or not s["unsaved"])
                        for s in replica["slots"]))
        wait_until(resting, "rest")

    def round(self, n):
        text = self.prompt()
        self.ask("alice", text)
        self.rest()
        if n % 8 == 7:
            self.pair(text, self.prompt())
        elif n % 8 == 3 and self.bob_asked:
            self.ask_and_note("own", self.bob_asked[-1])
        elif self.rng.random() < 0.5:
            self.ask_and_note("known", text)
        else:
            self.ask_and_note("new", self.prompt())
        self.rest()
        del self.gateway.output[:-50]

    def pair(self, known, new):
        """Both wait while both slots are busy; who is served first, in order of the log."""
        busy = [threading.Thread(target=self.ask, args=("alice", self.prompt(), 400))
                for _ in range(2)]
        for thread in busy:
            thread.start()
        wait_until(lambda: self.gateway.in_flight() == 2 or not any(
            t.is_alive() for t in busy), "two busy slots")
        ends = {}

        def one(arm, text):
            self.ask("bob", text)
            ends[arm] = time.monotonic()

        both = [("known", known), ("new", new)]
        self.rng.shuffle(both)
        threads = []
        for i, (arm, text) in enumerate(both):
            threads.append(threading.Thread(target=one, args=(arm, text)))
            threads[-1].start()
            wait_until(lambda i=i: self.gateway.in_flight() >= 3 + i or i < len(ends) or
                       not busy[0].is_alive(), "its place in the queue")
        queued = all(t.is_alive() for t in busy) and not ends
        for thread in [*threads, *busy]:
            thread.join()
        if not queued:      # too late: it did not wait
            return
        self.pairs += 1
        self.known_first += ends["known"] < ends["new"]


# ---- what is said -------------------------------------------------------------------------

def column(rows, *names):
    return [sum(float(line[name]) for name in names) for _, line in rows]


def report(bench):
    known, new, own = (bench.seen[arm] for arm in ("known", "new", "own"))
    print(f"{len(known)} known, {len(new)} new, {len(own)} own")

    def compare(what, a, b):
        auc, low, high, p = mann_whitney(a, b)
        print(f"  {what:42} AUC {auc:.3f} [{low:.3f}, {high:.3f}], p = {p:.3g}, medians "
              f"{sorted(a)[len(a) // 2]:.2f} and {sorted(b)[len(b) // 2]:.2f} ms")
        return p

    found = []
    print("known against new: nothing should be found")
    found.append(compare("time at the client",
                         [ms for ms, _ in known], [ms for ms, _ in new]))
    found.append(compare("queue and restore in the gateway",
                         column(known, "queue_ms", "restore_ms"),
                         column(new, "queue_ms", "restore_ms")))
    slots = [[int(line["slot"]) for _, line in rows] for rows in (known, new)]
    found.append(chi_square(*slots))
    print(f"  slot 0 chosen: {slots[0].count(0)} of {len(known)} and {slots[1].count(0)} of "
          f"{len(new)}, chi-square p = {found[-1]:.3g}")
    found.append(sign_test(bench.known_first, bench.pairs))
    print(f"  side by side, known served first: {bench.known_first} of {bench.pairs}, sign "
          f"test p = {found[-1]:.3g}")
    for name in ("promised", "cached_tokens", "restored"):
        a, b = (column(rows, name) for rows in (known, new))
        found.append(mann_whitney(a, b)[3])
        print(f"  {name}, mean: {sum(a) / len(a):.2f} and {sum(b) / len(b):.2f}, "
              f"p = {found[-1]:.3g}")
    if own:
        print("own against new: this it would find")
        compare("time at the client", [ms for ms, _ in own], [ms for ms, _ in new])
    least = min(found) * len(found)      # Bonferroni
    print(f"least p of {len(found)}, corrected for their number: {min(1.0, least):.3g}")
    return least < 0.01


def main():
    parser = argparse.ArgumentParser(description="What times tell of other tenants.")
    parser.add_argument("program", nargs="?", default="build/release/incipit")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop behind so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", action="store_true")
    o = parser.parse_args()
    bench = Bench(o.program, o.seed, "/v1/messages" if o.messages else CHAT)
    began = time.monotonic()
    try:
        for n in range(o.requests):
            bench.round(n)
            if time.monotonic() - began > o.seconds:
                break
        print(f"{bench.path}, seed {o.seed}, {n + 1} of {o.requests} rounds in "
              f"{time.monotonic() - began:.0f} s")
        return report(bench)
    finally:
        bench.close()


if __name__ == "__main__":
    sys.exit(main())
