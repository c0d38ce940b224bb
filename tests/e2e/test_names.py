# SPDX-License-Identifier: MIT
"""Engines that have names: not known yet, somewhere else by now, or looked up for long."""

import os
import signal
import urllib.parse

import preload
from harness import CHAT, Case, binary, chat_body, to_yaml, wait_until


class Names(Case):
    def setUp(self):
        super().setUp()
        self.need_gateway()
        if preload.is_sanitized(binary()):
            self.skipTest("names of a test cannot be put before the sanitizers")
        self.path = os.path.join(self.folder, "names")
        self.say()
        try:
            library = preload.build("lib/names.c")
        except preload.Unavailable as why:
            self.skipTest(f"names of a test: {why}")
        self.env = {"LD_PRELOAD": library, "NAMES_FILE": self.path}

    def say(self, **names):
        """From now on; `wait` is no answer."""
        with open(self.path + ".new", "w", encoding="ascii") as f:
            f.writelines(f"{name}.test {address}\n" for name, address in names.items())
        os.replace(self.path + ".new", self.path)

    def named(self, engine, name):
        port = urllib.parse.urlsplit(engine.url).port
        return f"http://{name}.test:{port}"

    def ask(self, gateway, text="hello"):
        return gateway.fetch("POST", CHAT, chat_body(text))

    def test_engine_whose_name_is_not_known_yet(self):
        """As where all containers are started at once: it begins, says what is missing, and
        works as soon as that is there."""
        engine = self.engine()
        gateway = self.gateway(self.named(engine, "engine"), wait=None, env=self.env)
        wait_until(lambda: gateway.mode() == "down", "is down")
        self.assertIn("engine.test", gateway.replica()["mode_reason"])
        self.assertEqual(gateway.replica()["address"], "")
        self.assertEqual(self.ask(gateway).status, 502)
        self.say(engine="127.0.0.1")
        gateway.wait_ready("store")
        self.assertEqual(self.ask(gateway).status, 200)
        self.assertIn("event=name-not-found", gateway.text())
        self.assertIn("event=name-found", gateway.text())

    def test_engine_that_comes_back_somewhere_else(self):
        engine = self.engine()
        self.say(engine="127.0.0.1")
        gateway = self.gateway(self.named(engine, "engine"), env=self.env, mode="store")
        self.assertEqual(self.ask(gateway).status, 200)
        engine.kill()
        self.say(engine="127.0.0.2")   # nobody is there either
        wait_until(lambda: gateway.replica()["address"].startswith("127.0.0.2:"), "has moved")
        engine.restart()
        self.say(engine="127.0.0.1")
        gateway.wait_ready("store")
        self.assertEqual(self.ask(gateway).status, 200)
        self.assertEqual(gateway.text().count("event=upstream-moved"), 2)

    def test_name_server_that_does_not_answer_holds_up_nobody(self):
        engine = self.engine()
        config = {"upstreams": [{"url": engine.url, "name": "here"}]}
        more = {"url": self.named(engine, "slow"), "name": "slow"}
        gateway = self.gateway(None, config, env=self.env)
        self.say(slow="wait")
        with open(os.path.join(self.folder, "incipit.yaml"), "w", encoding="utf-8") as f:
            f.write(to_yaml({"upstreams": [*config["upstreams"], more]}) + "\n")
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: len(gateway.stats()["replicas"]) == 2, "has both")
        for i in range(5):
            self.assertEqual(self.ask(gateway, f"beside it {i}").status, 200)
        slow = gateway.stats()["replicas"][1]
        self.assertEqual((slow["mode"], slow["address"]), ("starting", ""))
        self.say(slow="127.0.0.1")
        wait_until(lambda: gateway.stats()["replicas"][1]["address"], "is found")

    def test_name_server_that_does_not_answer_does_not_hold_up_the_end(self):
        self.say(slow="wait")
        gateway = self.gateway("http://slow.test:1", wait=None, env=self.env)
        wait_until(lambda: gateway.mode() == "starting", "looks for it")
        gateway.signal()
        self.assertEqual(gateway.wait_exit(), 0)
