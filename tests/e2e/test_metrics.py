# SPDX-License-Identifier: MIT
"""Numbers that can be trusted: 0 ≤ delivered ≤ prompt, whatever the engine reports."""

import json

from harness import CHAT, Case, chat_body, request_bytes, wait_until, words

LIES = [
    {"cache_n": 10 ** 6, "cached_tokens": 10 ** 6},
    {"cache_n": -7680, "cached_tokens": -7680},
    {"cache_n": "many", "cached_tokens": "many", "prompt_n": "few"},
    {"cache_n": 2 ** 63, "cached_tokens": 2 ** 63, "prompt_n": 2 ** 63},
    {"cache_n": 2 ** 64, "prompt_n": -1, "prompt_tokens": -1},
    {"cache_n": None, "prompt_n": None, "cached_tokens": None, "prompt_tokens": None},
    {"cache_n": 1e300, "prompt_n": 0.5, "cached_tokens": 1.5},
    {"cache_n": [1], "prompt_n": {}, "cached_tokens": [], "prompt_tokens": True},
    {"prompt_tokens": 0, "prompt_n": 0},
]


class Sane(Case):
    def assert_sane(self, numbers):
        for name in ("prompt_tokens", "available_tokens", "captured_tokens",
                     "delivered_tokens", "resident_tokens", "restored_tokens"):
            self.assertGreaterEqual(numbers[name], 0, name)
            self.assertLessEqual(numbers[name], numbers["prompt_tokens"], name)
        self.assertEqual(numbers["resident_tokens"] + numbers["restored_tokens"],
                         numbers["delivered_tokens"])
        for name in ("hit_rate_tokens", "hit_rate_requests"):
            if numbers[name] is not None:
                self.assertGreaterEqual(numbers[name], 0)
                self.assertLessEqual(numbers[name], 1)

    def test_K49_counters_that_lie(self):
        engine, gateway = self.pair()
        for lie in LIES:
            engine.set(counts=lie)
            for stream in (False, True):
                body = chat_body("lies " + words(100), stream=stream,
                                 stream_options={"include_usage": True})
                with self.subTest(lie, stream=stream):
                    answer = gateway.fetch("POST", CHAT, body)
                    self.assertEqual(answer.status, 200)
                    self.assertEqual(answer.body, bytes(engine.generations()[-1].sent))
                    wait_until(lambda: gateway.in_flight() == 0, "idle")
                    self.assert_sane(gateway.stats()["total"])
                    self.assert_sane(gateway.replica())
        self.assertGreater(gateway.metric("incipit_implausible_total") or 0, 0)
        engine.set(counts={})
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("honest")).status, 200)
        self.assert_clean()

    def test_counts_equal_the_engines(self):
        engine, gateway = self.pair()
        before = gateway.stats()["total"]
        marks = [f"mark-{i}" for i in range(4)]
        for mark in marks:
            gateway.fetch("POST", CHAT, chat_body(words(300, "same") + mark))
            gateway.wait_quiet()
        records = [engine.bodies(mark)[0] for mark in marks]
        after = gateway.stats()["total"]
        self.assertEqual(after["requests"] - before["requests"], 4)
        self.assertEqual(after["prompt_tokens"] - before["prompt_tokens"],
                         sum(r.cache_n + r.prompt_n for r in records))
        self.assertEqual(after["delivered_tokens"] - before["delivered_tokens"],
                         sum(r.cache_n for r in records))
        self.assert_sane(after)

    def test_K06_usage_in_two_parts_counts_once(self):
        engine, gateway = self.pair(usage_twice=True)
        body = chat_body(words(200), stream=True, stream_options={"include_usage": True})
        for _ in range(2):
            gateway.fetch("POST", CHAT, body)
            gateway.wait_quiet()
        records = engine.generations()[-2:]
        total = gateway.stats()["total"]
        self.assertEqual(total["prompt_tokens"], sum(r.cache_n + r.prompt_n for r in records))
        self.assertEqual(total["delivered_tokens"], sum(r.cache_n for r in records))

    def test_K03_line_ends_do_not_change_the_numbers(self):
        seen = []
        for change in self.engines_of({}, {"crlf": True}, {"chunk_cut": 3},
                                      {"comments": True}):
            engine, gateway = self.pair(store=False, **change)
            for mark in ("one", "two"):
                gateway.fetch("POST", CHAT, chat_body(words(200) + mark, stream=True))
                gateway.wait_quiet()
            total = gateway.stats()["total"]
            seen.append((total["requests"], total["prompt_tokens"], total["delivered_tokens"]))
            gateway.stop()
            engine.stop()
        self.assertEqual(len(set(seen)), 1, seen)

    def test_K07_first_token_is_content_not_the_first_byte(self):
        """The role-only event comes first; the first content is held until a known time."""
        engine, gateway = self.pair()
        engine.hold("event")
        with gateway.client() as client:
            client.send(request_bytes("POST", CHAT, json.dumps(
                chat_body("ttft", stream=True)).encode()))
            engine.wait_held("event")
            engine.release("event", 1)
            client.read_head()
            events = client.events()
            next(events)
            engine.wait_held("event")
            ttft = gateway.stats()["total"]["ttft_cold_ms"]["n"]
            self.assertEqual(ttft, 0, "role-only event taken for content")
            engine.release("event")
            self.assertTrue(list(events))
        wait_until(lambda: gateway.stats()["total"]["ttft_cold_ms"]["n"] == 1, "one first token")

    def test_what_is_not_looked_at_is_counted_apart(self):
        _, gateway = self.pair()
        before = gateway.stats()["total"]
        gateway.fetch("POST", CHAT, b'{"messages":[{"role":"user","content":"\\ud83d"}]}')
        wait_until(lambda: gateway.total("uninspected") == before["uninspected"] + 1,
                   lambda: f"uninspected: {gateway.stats()}")

    def test_K10_gauges_return_to_zero(self):
        engine, gateway = self.pair()
        for i in range(10):
            gateway.fetch("POST", CHAT, chat_body(f"gauge {i}", stream=i % 2 == 0))
        engine.fault("rst", after=2)
        with gateway.client() as client:
            client.send(request_bytes("POST", CHAT, json.dumps(
                chat_body("torn", stream=True)).encode()))
            client.read_answer()
        gateway.wait_quiet()
        for (name, labels), value in gateway.metrics().items():
            if name.endswith("_in_flight") or name.endswith("_queued"):
                self.assertEqual(value, 0, (name, labels))
