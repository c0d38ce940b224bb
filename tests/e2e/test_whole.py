# SPDX-License-Identifier: MIT
"""Engines whose states cannot be cut, on the built-in one that behaves like a recurrent model:
the state behind each turn of a chat is kept whole, and put back for the turn that goes on there.
Every answer is compared with that of a cold engine."""

import glob
import json
import os
import shutil
import unittest

from harness import chat_body, wait_until, words
from test_lab import LabCase, cached
from test_reuse import ReuseCase

TURNS = ("first question", "second question", "third question")


class WholeCase(LabCase):
    def pair(self, config=None, **flags):
        return self.pair_lab(config, **{"misbehave": "recurrent", **flags})

    def turn(self, gateway, messages, question):
        """Adds a question and its answer to a chat; tokens reused and held behind it."""
        messages.append({"role": "user", "content": f"{question} {words(9, question)}"})
        answer = self.ask(gateway, chat_body(messages, max_tokens=70))
        messages.append(answer["choices"][0]["message"])
        gateway.wait_quiet()
        usage = answer["usage"]
        return cached(answer), usage["prompt_tokens"] + usage["completion_tokens"]

    def chat(self, name):
        return [{"role": "system", "content": f"chat {name} {words(30, name)}"}]

    def assert_goes_on(self, reused, held):
        """All that the slot held when it was saved; the last one or two tokens were not in it."""
        self.assertTrue(held - 2 <= reused <= held, (reused, held))

    def states(self, gateway):
        return glob.glob(os.path.join(gateway.store_dir, "blocks", "*", "*", "*.kv"))


class Whole(WholeCase):
    def test_more_chats_than_slots_find_their_states(self):
        _, gateway = self.pair(slots=2)
        self.assertTrue(gateway.replica()["whole_states"])
        chats, held = [self.chat(name) for name in "abcde"], {}
        for n, question in enumerate(TURNS):
            for i, messages in enumerate(chats):
                reused, now = self.turn(gateway, messages, question)
                if n:
                    self.assert_goes_on(reused, held[i])
                held[i] = now
        self.assertGreaterEqual(gateway.replica()["restores"], 8)
        self.assertEqual(gateway.restore_failures(), 0)
        self.assertEqual(gateway.total("captured_tokens"), gateway.total("delivered_tokens"))

    def test_chats_go_on_when_all_was_restarted(self):
        lab, gateway = self.pair()
        messages, held = self.chat("restart"), 0
        for n, question in enumerate(TURNS):
            reused, now = self.turn(gateway, messages, question)
            if n:
                self.assert_goes_on(reused, held)
            held = now
            self.assertEqual(gateway.stop(), 0)
            lab.stop()
            lab.start()
            gateway.start()
            gateway.wait_ready("store")
        self.assertEqual(len(self.states(gateway)), 3)

    def test_restart_finds_a_state_whose_elders_have_gone(self):
        lab, gateway = self.pair()
        messages, held = self.chat("elders"), 0
        for question in TURNS[:2]:
            held = self.turn(gateway, messages, question)[1]
        self.assertEqual(gateway.stop(), 0)
        lab.stop()
        os.unlink(min(self.states(gateway), key=os.path.getsize))
        lab.start()
        gateway.start()
        gateway.wait_ready("store")
        self.assert_goes_on(self.turn(gateway, messages, TURNS[2])[0], held)

    def test_prompts_that_part_earlier_restore_nothing(self):
        _, gateway = self.pair(slots=1)
        messages = self.chat("parts")
        self.turn(gateway, messages, "one")
        other = messages[:1] + [{"role": "user", "content": "something else"}]
        changed = messages[:2] + [{"role": "assistant", "content": "never said"},
                                  {"role": "user", "content": "go on"}]
        for body in (other, changed, messages[:2]):
            self.assertEqual(cached(self.ask(gateway, chat_body(body, max_tokens=3))), 0)
            gateway.wait_quiet()
        self.assertEqual(gateway.replica()["restores"], 0)

    def test_only_chats_are_kept(self):
        _, gateway = self.pair()
        self.ask(gateway, {"prompt": words(60, "plain"), "n_predict": 3}, "/completion")
        gateway.wait_quiet()
        self.assertEqual((gateway.replica()["saves"], self.states(gateway)), (0, []))

    def test_small_budget_keeps_the_latest(self):
        _, gateway = self.pair({"store": {"max_bytes": "6MiB", "ram_bytes": "3MiB"}}, slots=1)
        chats = [self.chat(f"budget {i}") for i in range(6)]
        held = [self.turn(gateway, messages, "one")[1] for messages in chats]
        wait_until(lambda: len(self.states(gateway)) < 6, "the oldest have gone")
        self.assertLessEqual(sum(map(os.path.getsize, self.states(gateway))), 6 << 20)
        self.assert_goes_on(self.turn(gateway, chats[4], "two")[0], held[4])
        self.assertEqual(self.turn(gateway, chats[0], "two")[0], 0)

    def test_what_is_forgotten_leaves_no_state(self):
        _, gateway = self.pair()
        kept, gone = self.chat("kept"), self.chat("gone")
        for question in TURNS[:2]:
            self.turn(gateway, gone, question)
        self.turn(gateway, kept, "one")
        self.assertEqual(len(self.states(gateway)), 3)
        answer = gateway.admin("/cache/forget", "POST", json.dumps({"prefix": chat_body(gone[:1])}))
        self.assertEqual(answer[0], 200, answer)
        wait_until(lambda: not self.states(gateway), lambda: f"{self.states(gateway)}")
        self.assertEqual(self.turn(gateway, gone, "three")[0], 0)


class Misbehaving(WholeCase):
    def test_engine_that_reuses_no_restored_state_is_observed(self):
        _, gateway = self.pair_lab(mode="observe",
                                   misbehave="recurrent,no-reuse-after-restore")
        self.assertIn("restored slots are not reused (0 of", gateway.replica()["mode_reason"])

    def test_engine_that_forgets_how_ends_the_mode(self):
        lab, gateway = self.pair(slots=1)
        chats = [self.chat(f"fails {i}") for i in range(4)]
        for messages in chats:
            self.turn(gateway, messages, "one")
        lab.misbehave("recurrent", "no-reuse-after-restore")
        for messages in chats[:3]:
            self.assertEqual(self.turn(gateway, messages, "two")[0], 0)
        wait_until(lambda: gateway.mode() == "observe", lambda: f"{gateway.replica()}")
        self.assertIn("3 restores in a row", gateway.replica()["mode_reason"])


class Windowed(ReuseCase):
    """Layers with a sliding window, on the stand-in: what a file has of them is the window."""

    def turn(self, gateway, engine, messages, question):
        """As above; the marker is the question."""
        messages.append({"role": "user", "content": question})
        answer = self.ask_right(gateway, engine, chat_body(messages, max_tokens=12))
        messages.append(answer["choices"][0]["message"])
        gateway.wait_quiet()
        return self.used(engine, question), answer["usage"]["prompt_tokens"]

    def chat(self, name, n=200):
        return [{"role": "system", "content": f"{words(n, name)}"}]

    def test_chats_longer_than_the_window_go_on(self):
        for settings in self.engines_of({"window": 64}, {"window": 64, "state_version": 4},
                                        {"window": 64, "v_transposed": 1},
                                        {"window": 64, "unified": True},
                                        {"window": 900}):   # longer than the first self-test
            with self.subTest(settings):
                engine, gateway = self.pair(mode="store", slots=2, **settings)
                self.assertIn(f"its window of {settings['window']} tokens",
                              gateway.replica()["mode_reason"])
                chats = [self.chat(f"{i}", 1000) for i in range(3)]
                held = [self.turn(gateway, engine, c, f"tell me about {i}")[1]
                        for i, c in enumerate(chats)]
                for i, c in enumerate(chats):
                    reused = self.turn(gateway, engine, c, f"and what of {i}")[0]
                    self.assertGreater(reused, held[i])
                self.restart_all(engine, gateway)
                self.assertGreater(self.turn(gateway, engine, chats[0], "then what")[0], held[0])
                self.assertEqual(gateway.restore_failures(), 0)
                self.assert_clean()
                self.assertEqual(gateway.stop(), 0)
                engine.stop()
                shutil.rmtree(gateway.store_dir)

    def test_chats_within_the_window_are_not_kept(self):
        for settings in self.engines_of({"window": 100}):
            engine, gateway = self.pair(mode="store", slots=1, **settings)
            messages = self.chat("short", 10)
            self.assertLess(self.turn(gateway, engine, messages, "first")[1], 88)
            self.assertEqual(gateway.replica()["saves"], 0)
            self.turn(gateway, engine, messages, f"second {words(100)}")
            self.assertEqual(gateway.replica()["saves"], 1)
            self.assert_clean()

    def test_what_cannot_be_trusted_is_observed(self):
        for settings, why in (({"window": 64, "swa_full": True}, "without --swa-full"),
                              ({"window": 900, "swa_full": True}, "without --swa-full"),
                              ({"window": 900, "n_ctx": 1024}, "longer than what could be tried"),
                              ({"window": 1 << 20, "n_ctx": 1 << 20},
                               "longer than what could be tried")):
            for settings in self.engines_of(settings):
                with self.subTest(settings):
                    engine = self.engine(**settings)
                    gateway = self.gateway(engine, mode="observe", store=False)
                    self.assertIn(why, gateway.replica()["mode_reason"])
                    self.ask_right(gateway, engine, chat_body("still served", max_tokens=3))
                    self.assertEqual(gateway.stop(), 0)
                    engine.stop()


if __name__ == "__main__":
    unittest.main()
