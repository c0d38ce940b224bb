#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mixed traffic for minutes: does memory stay where it is?

    tools/soak.py build/release/incipit                what fills is full, then 10 minutes
    tools/soak.py --minutes 3 build/release/incipit

Clients ask a gateway over the built-in engine: chats that grow, documents, all its APIs,
streams and not, with and without salts; some leave in the middle, some send what is no
request. The store and what is known of prompts are small, and first every other prompt is
a new one until both give up old entries for new ones: whatever has a bound is at it. Then the
measured minutes begin. Once a second the gateway's resident memory is noted. Printed: its
slope (least squares, with a 95 % interval that is corrected for the correlation of what
follows each other), where it began and ended, how full the tables were, and what was
asked. The last line is the verdict:

    flat         the interval includes zero, and ends below --slope MiB an hour
    undecided    it includes zero, and ends beyond that: more minutes are needed
    grows        it lies above zero

The exit status is 1 where memory grows by more than --slope, beyond doubt, where an answer
was wrong, or where gauges or descriptors are left.
"""

import argparse
import collections
import json
import math
import os
import random
import shutil
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "tests", "lib"),
                os.path.join(HERE, "..", "tests", "faults")]
sys.dont_write_bytecode = True
from harness import Client, Gateway, request_bytes  # noqa: E402
from lab_engine import Lab  # noqa: E402
from load import CONTEXT, Texts  # noqa: E402

NOISE = (b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
         b"Content-Length: 5\r\n\r\n{\"a\":", b"\0" * 100, b"GET /v1/models HTTP/1.1\r\n"
         b"Host: x\r\n\r\n")


class Traffic:
    """Clients until it is over."""

    def __init__(self, gateway, seed, clients):
        self.gateway, self.over = gateway, threading.Event()
        self.count, self.lock = collections.Counter(), threading.Lock()
        self.wrong = []
        self.filling = True      # every other prompt is a new one
        self.threads = [threading.Thread(target=self.client, daemon=True,
                                         args=(random.Random(f"{seed} {i}"),))
                        for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join(60)

    def client(self, rng):
        texts = Texts(rng, documents=2, chats=2)
        while not self.over.is_set():
            what = "error"
            try:
                what = self.one(rng, texts)
            except (OSError, EOFError, ValueError) as error:
                self.wrong.append(repr(error))
            with self.lock:
                self.count[what] += 1
            if rng.random() < 0.02:
                texts.renew()
            self.over.wait(rng.random() * 0.2)     # engines save when nobody waits

    def one(self, rng, texts):
        if rng.random() < 0.05:
            with Client(self.gateway.port) as client:
                client.send(rng.choice(NOISE))
                client.abort()
            return "noise"
        question = self.question(rng, texts)
        with Client(self.gateway.port, 60) as client:
            client.send(question)
            if rng.random() < 0.15:
                if rng.random() < 0.5:
                    client.fill()
                client.abort()
                return "left"
            answer = client.read_answer("POST")
        if answer.status != 200 or not answer.complete:
            self.wrong.append(f"{answer.status} {answer.complete} {answer.body[:200]}")
        return f"answered {question.split(b' ', 2)[1].decode()}"

    @staticmethod
    def new_prompt(rng):
        """What is known of a prompt is an entry for each of its messages."""
        messages = [{"role": ("user", "assistant")[i % 2], "content": f"{rng.random():.9f}"}
                    for i in range(41)]
        return request_bytes("POST", "/v1/chat/completions", json.dumps(
            {"max_tokens": 1, "messages": messages}).encode(),
            [("Content-Type", "application/json")])

    def question(self, rng, texts):
        if self.filling and rng.random() < 0.5:
            return self.new_prompt(rng)
        api = rng.choice(("chat", "chat", "completions", "messages", "completion"))
        document = rng.choice(texts.documents + texts.chats)
        if api == "completion":
            path, body = "/completion", {"prompt": document, "n_predict": 8}
        else:
            asked = texts.about(document, rng.randrange(4), api)
            path, body = asked.path, dict(asked.body)
        body["stream"] = rng.random() < 0.5
        headers = [("Content-Type", "application/json"),
                   ("Authorization", f"Bearer {rng.choice('ab')}")]
        if rng.random() < 0.2:
            headers.append(("X-Cache-Salt", rng.choice("xy")))
        return request_bytes("POST", path, json.dumps(body).encode(), headers)


def slope(points):
    """Of (x, y): slope and half of its 95 % interval, wider as neighbours correlate."""
    n = len(points)
    mx, my = (sum(p[i] for p in points) / n for i in (0, 1))
    sxx = sum((x - mx) ** 2 for x, _ in points)
    b = sum((x - mx) * (y - my) for x, y in points) / sxx
    rest = [y - my - b * (x - mx) for x, y in points]
    square = sum(r * r for r in rest)
    rho = sum(p * q for p, q in zip(rest, rest[1:])) / square if square else 0
    rho = min(max(rho, 0), 0.99)
    se = math.sqrt(square / max(1, n - 2) / sxx) if square else 0
    return b, 1.96 * se * math.sqrt((1 + rho) / (1 - rho))


FILL_S = 600     # until the tables must be full
SETTLE_S = 20    # behind that: the mix of traffic is another one


def tables(gateway):
    """Entries and how many went for others, of what is known of prompts and of blocks."""
    cache = gateway.cache()
    return {name: (cache[name][of], cache[name]["evicted"])
            for name, of in (("index", "entries"), ("tree", "blocks"))}


def fill(gateway, traffic):
    """New prompts until whatever has a bound is at it; how long that took."""
    began = time.monotonic()
    while not all(gone for _, gone in tables(gateway).values()):
        if time.monotonic() > began + FILL_S:
            sys.exit(f"not full within {FILL_S} s: {tables(gateway)}")
        time.sleep(1)
    traffic.filling = False
    time.sleep(SETTLE_S)
    return time.monotonic() - began


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def run(o):
    os.environ["INCIPIT_BIN"] = os.path.abspath(o.program)
    folder = tempfile.mkdtemp(prefix="incipit-soak-")
    slots = os.path.join(folder, "slots")
    os.mkdir(slots, 0o700)
    engine = Lab(slots, slots=2, context=CONTEXT).start()
    gateway = Gateway(folder, engine.url,
                      {"block_tokens": 16, "log": {"level": "warn", "access": "off"},
                       "index": {"max_bytes": "1MiB"}, "tree": {"max_blocks": 4096},
                       "store": {"max_bytes": "12MiB", "ram_bytes": "2MiB"}})
    try:
        gateway.start(wait="listening")
        gateway.wait_ready("store")
        before = descriptors(gateway.child.pid)
        traffic = Traffic(gateway, o.seed, o.clients)
        first = gateway.resident_kib() / 1024
        took = fill(gateway, traffic)
        full = tables(gateway)
        print(f"full after {took:.0f} s ({first:.1f} MiB at the start)", flush=True)
        points, began = [], time.monotonic()
        while (now := time.monotonic() - began) < o.minutes * 60:
            points.append((now / 3600, gateway.resident_kib() / 1024))
            time.sleep(1)
        traffic.end()
        gateway.wait_quiet()
        return report(o, gateway, traffic, points, before, full)
    finally:
        gateway.stop()
        engine.stop()
        shutil.rmtree(folder, True)


def verdict(low, high, bound):
    if low > 0:
        return "grows"
    return "flat" if high <= bound else "undecided"


def report(o, gateway, traffic, points, before, full):
    b, wide = slope(points)
    stats = gateway.stats()
    left = {k: n for k, n in stats["total"]["states"].items() if n}
    time.sleep(1)
    open_now = descriptors(gateway.child.pid)
    memory = [y for _, y in points]
    print(f"seed {o.seed}, {o.minutes:g} minutes, {o.clients} clients: "
          f"{sum(traffic.count.values())} requests, with those that filled")
    for what, n in sorted(traffic.count.items()):
        print(f"  {n:7} {what}")
    print(f"store: {stats['store']['evicted']} blocks evicted, "
          f"{stats['replicas'][0]['saves']} saves, {stats['replicas'][0]['restores']} restores")
    for name, (n, gone) in tables(gateway).items():
        print(f"{name}: {full[name][0]} entries at the start, {n} at the end, "
              f"{gone - full[name][1]} went for others meanwhile")
    for name, part in (("first", memory[:60]), ("last", memory[-60:])):
        print(f"resident, {name} minute: {sum(part) / len(part):.2f} MiB, "
              f"{min(part):.1f} to {max(part):.1f}")
    print(f"descriptors {before} and {open_now}; left under way: {left or 'nothing'}")
    for why in traffic.wrong[:5]:
        print(f"  WRONG {why}")
    print(f"slope {b:+.2f} ± {wide:.2f} MiB an hour: {verdict(b - wide, b + wide, o.slope)}")
    bad = b - wide > o.slope or traffic.wrong or left or open_now > before + 20
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description="Mixed traffic for minutes.")
    parser.add_argument("program", nargs="?", default="build/release/incipit")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--slope", type=float, default=5, help="MiB an hour (5)")
    parser.add_argument("--seed", type=int, default=1)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
