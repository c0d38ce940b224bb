#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mixed traffic for minutes: does memory stay where it is?

    tools/soak.py build/release/incipit                3 minutes
    tools/soak.py --minutes 10 build/release/incipit

Clients ask a gateway over the built-in engine: chats that grow, documents, all its APIs,
streams and not, with and without salts; some leave in the middle, some send what is no
request. The store is small, so that blocks come and go all the time. Once a second the
gateway's resident memory and descriptors are noted. Printed: the slope of memory over the
second half (least squares, with its 95 % interval, corrected for the correlation of what
follows each other), where it began and ended, and what was asked. The exit status is 1
where the slope is beyond doubt more than --slope MiB an hour and memory really grew by
2 MiB, where an answer was wrong, or where gauges or descriptors are left.
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
        texts = Texts(random.Random(rng.random() < 0.5), documents=2, chats=2)
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

    def question(self, rng, texts):
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
                       "index": {"max_bytes": "2MiB"}, "tree": {"max_blocks": 4096},
                       "store": {"max_bytes": "12MiB", "ram_bytes": "2MiB"}})
    try:
        gateway.start(wait="listening")
        gateway.wait_ready("store")
        before = descriptors(gateway.child.pid)
        traffic = Traffic(gateway, o.seed, o.clients)
        points, began = [], time.monotonic()
        while (now := time.monotonic() - began) < o.minutes * 60:
            points.append((now / 3600, gateway.resident_kib() / 1024))
            time.sleep(1)
        traffic.end()
        gateway.wait_quiet()
        return report(o, gateway, traffic, points, before)
    finally:
        gateway.stop()
        engine.stop()
        shutil.rmtree(folder, True)


def report(o, gateway, traffic, points, before):
    half = points[len(points) // 2:]
    b, wide = slope(half)
    grown = sum(y for _, y in half[-10:]) / 10 - sum(y for _, y in half[:10]) / 10
    stats = gateway.stats()
    left = {k: n for k, n in stats["total"]["states"].items() if n}
    time.sleep(1)
    open_now = descriptors(gateway.child.pid)
    print(f"seed {o.seed}, {o.minutes:g} minutes, {o.clients} clients: "
          f"{sum(traffic.count.values())} requests")
    for what, n in sorted(traffic.count.items()):
        print(f"  {n:7} {what}")
    print(f"store: {stats['store']['evicted']} blocks evicted, "
          f"{stats['replicas'][0]['saves']} saves, {stats['replicas'][0]['restores']} restores")
    print(f"resident: {points[0][1]:.1f} MiB at the start, {half[0][1]:.1f} at half, "
          f"{points[-1][1]:.1f} at the end, most {max(y for _, y in points):.1f}")
    print(f"slope over the second half: {b:+.1f} ± {wide:.1f} MiB an hour; "
          f"descriptors {before} and {open_now}; left under way: {left or 'nothing'}")
    for why in traffic.wrong[:5]:
        print(f"  WRONG {why}")
    bad = (b - wide > o.slope and grown > 2) or traffic.wrong or left or open_now > before + 20
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description="Mixed traffic for minutes.")
    parser.add_argument("program", nargs="?", default="build/release/incipit")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--slope", type=float, default=10, help="MiB an hour (10)")
    parser.add_argument("--seed", type=int, default=1)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
