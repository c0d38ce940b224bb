# SPDX-License-Identifier: MIT
"""`incipit bench --check-output`: are the answers of two services equal?"""

import json
import os

from harness import Gateway
from lab_engine import Lab
from stub_service import DONE, begin_stream, end_stream, event, role, send_chunk, usage
from test_bench import ROOT, BenchCase


def saying(words, cached=0):
    """Answers with these words, one event each; with what words(number) gives."""
    def behave(stub, sock, number, body):
        begin_stream(sock)
        send_chunk(sock, role() + b"".join(
            event({"content": word}) for word in words(number)) +
            event(finish_reason="stop") + usage(100, cached, 3) + DONE)
        end_stream(sock)
    return behave


class OutputCase(BenchCase):
    def lab(self, **flags):
        engine = Lab(**flags)
        engine.start()
        self.addCleanup(engine.stop)
        return engine

    def output(self, *arguments):
        return self.report(*arguments, "--check-output")["output"]


class Output(OutputCase):
    def test_the_same_words_are_sent_to_both(self):
        a, b = self.stub(saying(lambda n: "xyz")), self.stub(saying(lambda n: "xyz"))
        out = self.output(a.url, "--ab", b.url, "--requests", 4)
        asked = [sorted(json.dumps(r) for r in s.requests) for s in (a, b)]
        self.assertEqual(*asked)
        self.assertEqual(len(set(asked[0])), 4)
        for request in a.requests:
            self.assertEqual((request["seed"], request["logprobs"], request["temperature"]),
                             (1, True, 0))
        self.assertEqual((out["same_cached"]["n"], out["same_cached"]["equal"]), (4, 4))
        self.assertEqual(out["unread"], 0)
        self.bench(a.url, "--ab", b.url, "--requests", 1, "--check-output", "--no-logprobs")
        self.assertNotIn("logprobs", a.requests[-1])

    def test_where_they_differ(self):
        a = self.stub(saying(lambda n: ["one", "two", "three"]))
        b = self.stub(saying(lambda n: ["one", "two", "three"] if n % 2 else ["one", "tww"]))
        arguments = (a.url, "--ab", b.url, "--requests", 4)
        out = self.output(*arguments)
        self.assertEqual([p["equal"] for p in out["pairs"]], [False, True] * 2)
        self.assertEqual([p["first_unit"] for p in out["pairs"]], [1, None] * 2)
        self.assertEqual([p["first_byte"] for p in out["pairs"]], [5, None] * 2)
        self.assertEqual(out["unit"], "event")
        self.assertEqual(out["same_cached"]["first_unit"]["p50"], 1)
        printed = self.bench(*arguments, "--check-output").stdout
        self.assertIn("as many tokens cached on both sides: 2 of 4 equal (50.0 %", printed)
        self.assertIn("first behind event 1 (p10)", printed)

    def test_other_cached_tokens_are_not_comparable(self):
        a = self.stub(saying(lambda n: "xy"))
        b = self.stub(saying(lambda n: "xz", cached=50))
        out = self.output(a.url, "--ab", b.url, "--requests", 3)
        self.assertEqual(out["same_cached"]["n"], 0)
        self.assertIsNone(out["same_cached"]["share"])
        self.assertEqual((out["other_cached"]["n"], out["other_cached"]["equal"]), (3, 0))

    def test_no_text_is_in_a_report(self):
        path = self.path("a.json")
        a = self.stub(saying(lambda n: ["secret", "answer"]))
        self.bench(a.url, "--ab", a.url, "--requests", 2, "--check-output", "--json", path)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        self.assertNotIn("secret", text)
        self.assertNotIn(a.requests[0]["messages"][0]["content"][:30], text)
        with open(os.path.join(ROOT, "docs/bench.md"), encoding="utf-8") as f:
            manual = f.read()
        for name in json.loads(text)["output"]:
            self.assertIn(f"`{name}`", manual)
        for name in json.loads(text)["output"]["pairs"][0]:
            self.assertIn(f"`{name}`", manual)

    def test_what_is_wrong_is_said(self):
        for words, *flags in (("compares with --ab", "--check-output"),
                              ("belongs to --check-output", "--no-logprobs")):
            self.assertIn(words, self.bench("http://127.0.0.1:1", *flags, status=2).stderr)


class OnTheBuiltInEngine(OutputCase):
    CHAT = ("--profile", "chat,in=40,ask=5,out=12,chats=2,turns=3", "--requests", 6)

    def test_the_same_weights_answer_alike(self):
        out = self.output(self.lab().url, "--ab", self.lab().url, *self.CHAT)
        self.assertEqual((out["same_cached"]["n"], out["same_cached"]["equal"]), (6, 6))
        self.assertTrue(any(p["cached_tokens"][0] > 0 for p in out["pairs"]))

    def test_other_weights_do_not(self):
        out = self.output(self.lab().url, "--ab", self.lab(seed=2).url, *self.CHAT)
        same, other = out["same_cached"], out["other_cached"]
        # where both begin alike, what comes behind them has a token more in its slot
        self.assertEqual(same["n"] + other["n"], 6)
        self.assertGreater(same["n"], 0)
        self.assertEqual(same["equal"] + other["equal"], 0)
        told = [p for p in out["pairs"] if None not in p["units"]    # one may be empty
                and p["cached_tokens"][0] == p["cached_tokens"][1]]
        self.assertGreater(len(told), 0)
        self.assertEqual(same["first_unit"]["n"], len(told))

    def test_one_that_lies_of_its_counts_is_not_comparable(self):
        liar = self.lab()
        liar.misbehave("wrong-counts")
        out = self.output(self.lab().url, "--ab", liar.url, *self.CHAT)
        self.assertEqual(out["same_cached"]["n"], 0)
        self.assertEqual((out["other_cached"]["n"], out["other_cached"]["equal"]), (6, 6))

    def test_with_the_gateway_and_without(self):
        """Bit-exact, whatever is reused: also where the counts differ all are equal."""
        slots = os.path.join(self.folder, "slots")
        os.makedirs(slots, mode=0o700)
        gateway = Gateway(self.folder, self.lab(slot_save_path=slots, slots=1).url)
        self.gateways.append(gateway)
        gateway.start()
        gateway.wait_ready("store")
        out = self.output(f"http://127.0.0.1:{gateway.port}", "--ab", self.lab(slots=1).url,
                          "--profile", "shared,documents=3,questions=3,in=80,ask=5,out=6",
                          "--requests", 9)
        self.assertGreater(out["other_cached"]["n"], 0)
        self.assertEqual(out["unread"], 0)
        self.assertEqual(sum(out[g]["equal"] for g in ("same_cached", "other_cached")), 9)
