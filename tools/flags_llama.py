#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How much of its prompts a real llama-server reuses, with and without the gateway.

    tools/flags_llama.py [--build new] [--model tiny] [--rounds 3] [--program PATH]

Arms, one after the other in each round, so that whatever else the machine does meets all:

    stock     the engine alone, with its default flags
    saving    the gateway, the engine with its defaults and --slot-save-path
    managed   the gateway, the engine with the flags of docs/llama-server.md

Workloads, each sent by two clients at once: "documents" (eight of about 900 tokens, four
questions each, in turns) and "chats" (six, five turns each with their answers). In the
middle of each the engine is restarted. Prints a line for each run: prompt tokens that the
engine says it reused, before and after the restart, wall-clock seconds, and what the gateway
counted; the last lines are the ranges.
"""

import argparse
import collections
import http.client
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "tests", "lib")]
import harness  # noqa: E402
import llama_server  # noqa: E402

ARMS = ("stock", "saving", "managed")
WORDS = "gauge pier harbour bar pilot tide hour book figure north south lamp rope ferry".split()


def text(words, seed):
    choose = random.Random(seed)
    return " ".join(choose.choice(WORDS) for _ in range(words))


def documents():
    """For each of two clients a list of messages, in the order of asking."""
    jobs = [[{"role": "system", "content": "Answer from the paper."},
             {"role": "user", "content": text(700, f"paper {d}") + f" Question {q}?"}]
            for q in range(4) for d in range(8)]
    return [jobs[0::2], jobs[1::2]]


def chats():
    """The same; None: the answer to the turn before is put in."""
    clients = [[], []]
    for turn in range(5):
        for c in range(6):
            clients[c % 2].append((c, text(250 if turn == 0 else 60, f"chat {c} {turn}")))
    return clients


class Run:
    def __init__(self, arm, options):
        self.folder = tempfile.mkdtemp(prefix="incipit-flags-")
        self.arm, self.options = arm, options
        self.engine = self.gateway = None
        self.counts = [collections.Counter(), collections.Counter()]
        self.part, self.failures = 0, []
        self.history = collections.defaultdict(list)

    def start_engine(self, port=None):
        flags = self.arm
        self.engine = llama_server.LlamaServer(
            self.folder, self.options.model, self.options.build, flags, slots=4, ctx=16384,
            predict=24, port=port).start()

    def start(self):
        self.start_engine()
        self.port = self.engine.port
        if self.arm != "stock":
            self.gateway = harness.Gateway(self.folder, f"http://127.0.0.1:{self.engine.port}")
            self.gateway.slot_dir = self.engine.slot_dir
            self.gateway.start()
            self.gateway.wait_ready("store")
            self.port = self.gateway.port

    def restart(self):
        if self.gateway:
            self.gateway.wait_quiet()
        self.engine.stop()
        self.start_engine(self.engine.port)
        if self.gateway:
            harness.wait_until(lambda: self.gateway.replica()["restarts"] == 1, "is noticed")
            self.gateway.wait_ready("store")
        self.part = 1

    def ask(self, messages):
        body = {"messages": messages, "max_tokens": 24, "temperature": 0}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        c.request("POST", "/v1/chat/completions", json.dumps(body),
                  {"Content-Type": "application/json"})
        answer = c.getresponse()
        data = json.loads(answer.read())
        c.close()
        t = data["timings"]
        self.counts[self.part].update(cached=t["cache_n"], prompt=t["cache_n"] + t["prompt_n"])
        return data["choices"][0]["message"]["content"]

    def client(self, jobs):
        try:
            for job in jobs:
                if isinstance(job, list):
                    self.ask(job)
                else:
                    chat = self.history[job[0]]
                    chat.append({"role": "user", "content": job[1]})
                    chat.append({"role": "assistant", "content": self.ask(chat)})
        except Exception as why:   # told by the main thread
            self.failures.append(repr(why))

    def both(self, clients):
        threads = [threading.Thread(target=self.client, args=(jobs,)) for jobs in clients]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if self.failures:
            raise SystemExit(f"{self.arm}: {self.failures}")

    def run(self, clients):
        try:
            self.start()
            began = time.monotonic()
            self.both([jobs[:len(jobs) // 2] for jobs in clients])
            first = time.monotonic() - began
            self.restart()
            began = time.monotonic()
            self.both([jobs[len(jobs) // 2:] for jobs in clients])
            seconds = first, time.monotonic() - began
            replica = self.gateway.replica() if self.gateway else {}
        finally:
            if self.gateway:
                self.gateway.stop()
            if self.engine:
                self.engine.stop()
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.counts, seconds, replica


def share(c):
    return 100 * c["cached"] / max(c["prompt"], 1)


def main():
    parser = argparse.ArgumentParser(description="Measures reuse with several flags.")
    parser.add_argument("--build", default="new", choices=["old", "new"])
    parser.add_argument("--model", default="tiny", choices=["tiny", "full"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/incipit"))
    options = parser.parse_args()
    os.environ["INCIPIT_BIN"] = options.program
    seen = collections.defaultdict(list)
    for n in range(options.rounds):
        for name, workload in (("documents", documents), ("chats", chats)):
            for arm in ARMS:
                counts, seconds, replica = Run(arm, options).run(workload())
                seen[name, arm].append((*map(share, counts), *seconds))
                more = {k: replica[k] for k in ("restores", "saves", "save_failures")
                        if k in replica}
                more |= {k: {w: c for w, c in replica.get(k, {}).items() if c}
                         for k in ("saves_skipped", "restore_failures") if k in replica}
                print(f"{n + 1} {name} {arm}: reused {share(counts[0]):.1f} % in "
                      f"{seconds[0]:.1f} s, after the restart {share(counts[1]):.1f} % in "
                      f"{seconds[1]:.1f} s {more or ''}", flush=True)
    for (name, arm), rows in seen.items():
        ranges = [f"{min(v):.1f}–{max(v):.1f}" for v in zip(*rows)]
        print("{} {}: reused {} %, after the restart {} %; {} s, then {} s".format(
            name, arm, *ranges))


if __name__ == "__main__":
    main()
