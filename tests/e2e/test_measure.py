# SPDX-License-Identifier: MIT
"""What a hit is worth: confirmed against a model, and measured by a hold-out."""

import json

from harness import CHAT, Case, chat_body, wait_until, words

QUESTIONS = 24


class Measure(Case):
    def talk(self, gateway, document, questions=QUESTIONS, stream=True, **more):
        for i in range(questions):
            answer = gateway.fetch("POST", CHAT, chat_body(
                f"{document} question {i}", stream=stream, max_tokens=4, **more))
            self.assertEqual(answer.status, 200, answer.body[:200])
            gateway.wait_quiet()

    def questions(self, engine, n):
        asked = engine.bodies(" question ")
        self.assertEqual(len(asked), n)
        return asked

    def savings(self, gateway):
        return gateway.replica()["savings"]

    def test_hold_out_runs_its_share_cold_and_finds_what_the_others_gain(self):
        engine, gateway = self.pair({"measure": {"holdout": "25%"}}, mode="store",
                                    prefill_us=500)
        self.talk(gateway, words(300, "held out"))
        bodies = self.questions(engine, QUESTIONS)
        cold = [b for b in bodies if b.cache_n == 0]
        # Of 23 requests that the cache could help, one in each four; and the first one.
        self.assertIn(len(cold), (6, 7))
        measured = self.savings(gateway)["measured"]
        self.assertEqual(measured["n_cold"], len(cold) - 1)
        self.assertEqual(measured["n_cached"], QUESTIONS - len(cold))
        self.assertEqual(measured["share"], 0.25)
        self.assertEqual(gateway.replica()["misses"]["control"], len(cold) - 1)
        self.assertLess(measured["low"], measured["saved_ms_per_request"])
        self.assertLess(measured["saved_ms_per_request"], measured["high"])
        # 300 words and more are not computed; each costs half a millisecond.
        self.assertGreater(measured["low"], 100)
        self.assert_clean()

    def test_hold_out_leaves_what_it_cannot_steer_alone(self):
        engine, gateway = self.pair({"measure": {"holdout": "50%"}}, mode="store")
        document = words(300, "of the client")
        self.talk(gateway, document, 6, cache_prompt=True)
        self.assertTrue(all(b.cache_n for b in self.questions(engine, 6)[1:]))
        self.assertEqual(self.savings(gateway)["measured"]["n_cold"], 0)

    def test_without_hold_out_nothing_is_held_out(self):
        engine, gateway = self.pair(mode="store")
        self.talk(gateway, words(300, "nobody"))
        self.assertTrue(all(b.cache_n for b in self.questions(engine, QUESTIONS)[1:]))
        self.assertIsNone(self.savings(gateway)["measured"])
        self.assertEqual(gateway.replica()["misses"]["control"], 0)

    def test_confirmed_savings_have_an_interval_and_tell_sources_apart(self):
        engine, gateway = self.pair(mode="store", slots=1, prefill_us=200)
        documents = [words(300, "one"), words(300, "two")]
        for i in range(6):
            for document in documents:
                tail = words(40, "long") if i == 0 else f"question {i}"
                self.talk(gateway, f"{document} {tail}", 1)
        confirmed = self.savings(gateway)["confirmed"]
        self.assertEqual(confirmed["n"] + confirmed["unjudged"], 10)
        self.assertGreater(confirmed["n"], 0)
        self.assertEqual(confirmed["restored"]["n"], confirmed["n"])
        self.assertEqual(confirmed["resident"]["n"], 0)
        self.assertIsNone(confirmed["resident"]["saved_ms"])
        self.assertLess(confirmed["low"], confirmed["saved_ms"])
        self.assertLess(confirmed["saved_ms"], confirmed["high"])
        total = gateway.total("savings")["confirmed"]
        self.assertAlmostEqual(total["saved_ms"], confirmed["saved_ms"], 3)
        self.assertEqual(
            gateway.metric("incipit_savings_confirmed_requests", source="restored"),
            confirmed["n"])

    def test_what_has_no_stream_has_no_time_and_is_not_zero(self):
        engine, gateway = self.pair(mode="store")
        self.talk(gateway, words(300, "whole"), 4, stream=False)
        confirmed = self.savings(gateway)["confirmed"]
        self.assertEqual(confirmed["n"], 0)
        self.assertIsNone(confirmed["saved_ms"])
        self.assertEqual(confirmed["without_ttft"], 3)


class Observe(Case):
    """The first five minutes: nothing changes, and the report says what would."""

    def test_what_a_store_would_gain_is_what_it_then_gains(self):
        documents = [words(900, f"document {i}") for i in range(6)]
        bodies = [chat_body(f"{documents[(i * 5 + i // 6) % 6]} question {i}", stream=True,
                            max_tokens=2) for i in range(36)]
        engine = self.engine()
        gateway = self.gateway(engine, {"observe": "on"})
        self.assertIn("observe only", gateway.replica()["mode_reason"])
        for body in bodies:
            self.assertEqual(gateway.fetch("POST", CHAT, body).status, 200)
        wait_until(lambda: gateway.in_flight() == 0, "idle")
        for asked, body in zip(engine.bodies(" question "), bodies):
            self.assertEqual(bytes(asked.body), body if isinstance(body, bytes)
                             else json.dumps(body).encode())
        self.assertEqual(engine.events("save", "restore", "erase"), [])
        report = json.loads(gateway.admin("/observe")[1])
        self.assertEqual(report["requests"], 36)
        told = report["sizes"][-1]["reused_share"]
        self.assertLess(report["engine_reused_share"], told)
        self.assertEqual(gateway.stop(), 0)
        engine.restart()
        gateway = self.gateway(engine, mode="store")
        for body in bodies:
            self.assertEqual(gateway.fetch("POST", CHAT, body).status, 200)
            gateway.wait_quiet()
        self.assertAlmostEqual(gateway.total("hit_rate_tokens"), told, delta=0.05)
        self.assert_clean()

    def test_the_report_is_there_only_where_it_was_asked_for(self):
        engine, gateway = self.pair()
        self.assertEqual(gateway.admin("/observe")[0], 404)
