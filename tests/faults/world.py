# SPDX-License-Identifier: MIT
"""One gateway over one store, one engine, and what must be true of them whenever nothing
is under way."""

import collections
import http.client
import os
import random
import re
import shutil
import tempfile
import threading
import time

import disk
import engines
from harness import Gateway, wait_until
from load import CONTEXT, MARK, Asker, Load, Texts

MIB = 1 << 20
BLOCK_TOKENS = 16
BLOCK_BYTES = BLOCK_TOKENS * 4096
MAX_BYTES, RAM_BYTES = 4 * MIB, MIB
CONFIG = {"block_tokens": BLOCK_TOKENS, "log": {"level": "info"},
          "store": {"max_bytes": MAX_BYTES, "ram_bytes": RAM_BYTES, "retry": "100ms"},
          "timeouts": {"connect": "1s"}}
POOL = 16             # idle connections to an engine, by default
RESIDENT_KIB = 120 << 10
PATIENCE_S = 60
NOT_THERE = (OSError, AssertionError, ValueError, http.client.HTTPException)
Moment = collections.namedtuple("Moment", "gateway engine")


class World:
    def __init__(self, seed, preload=True, sanitized=False):
        self.rng = random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="incipit-faults-")
        self.slots = os.path.join(self.folder, "slots")
        self.store = os.path.join(self.folder, "store")
        os.mkdir(self.slots, 0o700)
        self.disk = disk.Disk(self.folder, self.store, self.slots) if preload else None
        self.sanitized = sanitized
        self.texts = Texts(self.rng)
        self.engine = engines.Lab(self.slots, slots=2, context=CONTEXT, seed=1)
        self.seeds = [1]            # of the engines so far
        self.engine_epoch = self.gateway_epoch = 0
        self.engine_bad = self.killing = False
        self.is_up = threading.Event()
        self.gateway = None
        self.seen = collections.Counter()   # over all gateways
        self.damaged = set()                # block files that a round has touched
        self.files = 0
        self.log_from = 0

    # ---- life ---------------------------------------------------------------------------

    def start(self):
        self.engine.start()
        self.gateway = Gateway(self.folder, self.engine.url, CONFIG,
                               env=self.disk.env if self.disk else None)
        self.start_gateway()
        self.settle()
        return self

    def start_gateway(self):
        self.gateway.start(wait="listening")
        self.gateway_epoch += 1
        self.killing = False
        self.files = 0
        self.is_up.set()

    def kill_gateway(self):
        """By now it may be dead by a rule of the disk."""
        self.killing = True
        self.is_up.clear()
        return self.gateway.crash()

    def kill_engine(self):
        self.engine_bad = True
        self.engine.kill()

    def start_engine(self, **changes):
        self.engine.flags.update(changes)
        self.next_engine()          # it may answer before we know that it listens
        self.engine.start()
        self.next_engine()
        self.engine_bad = False

    def next_engine(self):
        """What is asked from now on is asked of this one."""
        self.seeds.append(self.engine.flags["seed"])
        self.engine_epoch += 1

    def close(self):
        self.is_up.clear()
        code = self.gateway.stop() if self.gateway else 0
        self.engine.stop()
        if self.disk:
            self.disk.close()
        shutil.rmtree(self.folder, True)
        return code

    # ---- what clients ask -----------------------------------------------------------------

    @property
    def weights(self):
        return self.seeds[-1]

    def weights_since(self, before):
        return sorted(set(self.seeds[before.engine:]))

    def moment(self):
        return Moment(self.gateway_epoch, self.engine_epoch)

    def excuses(self, before):
        out = set()
        if self.killing or before.gateway != self.gateway_epoch:
            wait_until(lambda: before.gateway != self.gateway_epoch, "another gateway",
                       PATIENCE_S)
            out.add("gateway")
        if self.engine_bad:
            wait_until(lambda: not self.engine_bad, "another engine", PATIENCE_S)
            out.add("engine")
        if before.engine != self.engine_epoch:
            out.add("engine")
        return out

    def load(self, requests, **more):
        return Load(self, requests, **more)

    # ---- what is true when nothing is under way ----------------------------------------------

    def stats(self):
        return self.gateway.stats()

    def count(self, name):
        """A counter of this gateway, wherever it stands on /stats."""
        stats = self.stats()
        replica = stats["replicas"][0]
        failures = replica.get("restore_failures", {})
        for where in (stats["store"], replica, failures, stats["total"]):
            if name in where:
                return where[name]
        raise KeyError(name)

    def settle(self, mode="store"):
        """Waits until everything is done that was begun."""
        if mode:
            self.gateway.wait_ready(mode)
        self.gateway.wait_quiet()

    def log(self):
        """Lines since the round began."""
        return self.gateway.output[self.log_from:]

    def events(self, name):
        return [line for line in self.log() if re.search(rf"\b{name}\b", line)]

    def begin(self):
        self.log_from = len(self.gateway.output)
        self.damaged.clear()
        if self.disk:
            self.disk.forget()

    def check(self, exact=True):
        """What is wrong now, in words. `exact`: nobody else has taken files away."""
        bad = []
        stats = self.stats()
        gauges = {**stats["total"]["states"], "in flight": stats["total"]["in_flight"],
                  "queued": stats["replicas"][0]["queued"],
                  "buffered": self.gateway.metric("incipit_body_buffered_bytes"),
                  "requests": self.gateway.metric("incipit_replica_in_flight")}
        bad += [f"{name} is {n}" for name, n in gauges.items() if n]
        bad += self._check_descriptors()
        resident = self.gateway.resident_kib()
        if resident > RESIDENT_KIB and not self.sanitized:
            bad.append(f"{resident} KiB resident")
        bad += [f"prompt text in the log: {line}" for line in self.log() if MARK in line]
        bad += [f"said by a sanitizer: {line}" for line in self.log() if "Sanitizer" in line]
        bad += self._check_folders(exact)
        self.seen["saves"] += stats["replicas"][0]["saves"]
        return bad

    def _check_descriptors(self):
        """Files as after the start; sockets within the pool."""
        now = self.gateway.descriptors()
        if not self.files:
            self.files = now["files"]
        try:
            wait_until(lambda: self.gateway.descriptors()["files"] <= self.files, "", 5)
        except AssertionError:
            return [f"{self.gateway.descriptors()['files']} files open, {self.files} at the start"]
        if now["sockets"] > POOL + 12:
            return [f"{now['sockets']} sockets open"]
        return []

    def _check_folders(self, exact):
        """Workers may still be at it: what is there is compared until it fits."""
        deadline, bad = time.monotonic() + 10, ["never looked"]
        while bad and time.monotonic() < deadline:
            bad = self._look_at_folders(exact)
        return bad

    def _look_at_folders(self, exact):
        bad = []
        before = self.stats()["store"]
        left = os.listdir(os.path.join(self.store, "tmp"))
        if left:
            bad.append(f"left in tmp: {left[:5]}")
        left = os.listdir(self.slots)
        if left:
            bad.append(f"left in the slot directory: {left[:5]}")
        n, size, wrong = disk.check_store(self.store, self.damaged)
        bad += [f"{os.path.basename(path)}: {why}" for path, why in wrong[:5]]
        if size > MAX_BYTES + MAX_BYTES // 50:
            bad.append(f"{size} bytes on disk, the budget is {MAX_BYTES}")
        if exact and (n, size) != (before["disk_blocks"], before["disk_bytes"]):
            bad.append(f"{n} blocks and {size} bytes on disk, counted "
                       f"{before['disk_blocks']} and {before['disk_bytes']}")
        return bad

    def check_down(self):
        """A gateway that was killed has left whole blocks and nothing else under a name."""
        _, _, wrong = disk.check_store(self.store, self.damaged)
        return [f"after a kill {os.path.basename(path)}: {why}" for path, why in wrong]

    def reuse_comes_back(self):
        """Three documents in turn on two slots: each is put back, sooner or later. What
        was in RAM only has to be missed first, and what was asked for often to go."""
        self.settle()
        before = self.count("restored_tokens")
        for i in range(45):
            question = self.texts.about(self.texts.documents[i % 3], i % 4, "chat")
            Asker(self).ask(question, self.rng)
            self.settle(mode=None)
            if self.count("restored_tokens") > before:
                return []
        return [f"nothing is put back any more: {self.stats()['replicas'][0]}"]

    def slot_states(self):
        return {slot["state"] for slot in self.stats()["replicas"][0]["slots"]}

    def mode_is(self, mode):
        try:
            return self.gateway.mode() == mode
        except NOT_THERE:
            return False
