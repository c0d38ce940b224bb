# SPDX-License-Identifier: MIT
"""Files in the slot directory: none is left, whoever crashed."""

import os
import subprocess
import sys
import time

from harness import CHAT, Case, chat_body, wait_until, words


class Scratch(Case):
    def files(self, gateway):
        return sorted(os.listdir(gateway.slot_dir))

    def put(self, name, age=0):
        path = os.path.join(self.folder, "slots", name)
        with open(path, "wb") as f:
            f.write(b"left behind")
        os.utime(path, (time.time() - age,) * 2)

    def name(self, number, pid, space=0):
        space = space or os.stat("/proc/self/ns/pid").st_ino
        return f"incipit-{number:08x}-{pid}-{space:x}.kv"

    def gone(self):
        """The number of a process that has ended."""
        child = subprocess.Popen([sys.executable, "-c", ""])
        child.wait()
        return child.pid

    def test_only_what_a_dead_gateway_left_is_removed(self):
        engine = self.engine()
        old = ["incipit-0000000g-1-1.kv", "incipit-00000001-1.kv", "somebody-elses.kv",
               self.name(1, 1) + ".bak"]
        in_use = [self.name(2, os.getpid()), self.name(3, self.gone(), space=12345)]
        for name in old:
            self.put(name, 10000)
        for name in in_use:
            self.put(name)
        kept = old + in_use
        self.put(self.name(4, self.gone()))
        self.put(self.name(5, os.getpid()), 10000)
        self.put(self.name(6, self.gone(), space=12345), 10000)
        gateway = self.gateway(engine, mode="store")
        self.assertEqual(self.files(gateway), sorted(kept))

    def test_nothing_is_left_after_a_crash_in_a_save(self):
        engine, gateway = self.pair(mode="store")
        engine.hold("save")
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body(words(200))).status, 200)
        engine.wait_held("save")
        gateway.crash()
        engine.release("save")
        engine.wait_idle()
        wait_until(lambda: self.files(gateway), "the engine has written it")
        gateway.start(wait="ready")
        gateway.wait_quiet()
        self.assertEqual(self.files(gateway), [])
