# SPDX-License-Identifier: MIT
"""The small form of bench/bench_front.py: many clients, and bad ones, leave the service for
others as it was and memory within its bounds."""

import os
import subprocess
import sys

from harness import ENGINE, ROOT, Case, binary


class Crowd(Case):
    def holds(self, *parts):
        if ENGINE != "standin":
            self.skipTest("has a service of its own: once is enough")
        self.need_gateway()
        command = [sys.executable, os.path.join(ROOT, "bench", "bench_front.py"), binary()]
        for part in parts:
            command += ["-k", part]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_connections_that_say_nothing(self):
        self.holds("idle")

    def test_connections_that_rest_give_their_room_back(self):
        self.holds("resting")

    def test_streams_side_by_side(self):
        self.holds("streams")

    def test_readers_that_do_not_read(self):
        self.holds("readers")

    def test_more_bodies_than_may_be_held(self):
        self.holds("big")
