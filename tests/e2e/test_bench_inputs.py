# SPDX-License-Identifier: MIT
"""`incipit bench --input`: conversations and traces as a service and its engine see them."""

import csv
import json
import os

from lab_engine import Lab
from test_bench import ROOT, BenchCase

SAMPLES = os.path.join(ROOT, "tests", "data", "traces")


def line(ms, ids, block=16, last=5, out=2):
    return json.dumps({"timestamp": ms, "input_length": block * (len(ids) - 1) + last,
                       "output_length": out, "hash_ids": ids}) + "\n"


def content(body):
    return body["messages"][0]["content"]


class Inputs(BenchCase):
    def rows(self, *arguments):
        path = self.path("rows.csv")
        self.bench(*arguments, "--csv", path)
        with open(path, encoding="utf-8", newline="") as f:
            return list(csv.DictReader(f))


class Traces(Inputs):
    def trace(self):
        return self.path("t.jsonl", line(1000, [1, 2]) + line(1000, [1, 3]) +
                         line(1100, [1, 3, 4]) + line(1200, [5]))

    def planned(self, *arguments):
        rows = self.rows(self.stub().url, "--input", self.trace(), *arguments)
        return [round(float(r["planned_ms"]), 3) for r in rows if r["phase"] == "run"]

    def test_requests_come_at_the_trace_s_times(self):
        def apart(times):
            return [round(t - times[0], 3) for t in times]
        self.assertEqual(apart(self.planned()), [0, 0, 100, 200])
        self.assertEqual(apart(self.planned("--speed", 4)), [0, 0, 25, 50])
        # Behind a pass the next, as far from it as they are from each other on average.
        self.assertEqual(apart(self.planned("--speed", 10, "--requests", 6)),
                         [0, 0, 10, 20, 26.666, 26.666])
        self.assertEqual(apart(self.planned("--speed", 10, "--warmup", 2, "--requests", 2)),
                         [0, 10])

    def test_other_arrivals_can_be_asked_for(self):
        for loop, arrivals, *flags in (("open", "trace"), ("closed", None, "--arrivals", "none"),
                                       ("open", "poisson", "--rate", 100),
                                       ("open", "trace", "--speed", 10),
                                       ("open", "constant", "--rate", "100",
                                        "--arrivals", "constant")):
            with self.subTest(flags=flags):
                s = self.report(self.stub().url, "--input", self.trace(), *flags)["settings"]
                self.assertEqual((s["loop"], s.get("arrivals")), (loop, arrivals))
                self.assertEqual(s["concurrency"], 1 if loop == "closed" else 500)
                self.assertEqual(s.get("speed"), {"trace": 10 if flags else 1}.get(arrivals))
        self.assertIn("at the trace's times, 10 times as fast",
                      self.bench(self.stub().url, "--input", self.trace(), "--speed", 10).stdout)

    def test_flags_at_their_bounds(self):
        talks = self.path("s.jsonl", json.dumps({"conversations": [
            {"from": "human", "value": "a"}]}) + "\n")
        for flags in (("--speed", 1000, "--scale", 0.001, "--max-tokens", 1000000),
                      ("--speed", 0.001, "--requests", 1, "--scale", 1000)):
            self.bench(self.stub().url, "--input", self.path("u.jsonl", line(0, [1], 1000)),
                       *flags)
        self.bench(self.stub().url, "--input", talks, "--at-once", 100000)

    def test_both_sides_get_all_of_it_in_other_words(self):
        a, b = self.stub(), self.stub()
        self.bench(a.url, "--ab", b.url, "--input", self.trace(), "--speed", 10)
        self.assertEqual(len(a.requests), 4)
        texts = [sorted(map(content, s.requests)) for s in (a, b)]
        self.assertEqual(*[sorted(len(t.split()) for t in side) for side in texts])
        self.assertFalse(set(texts[0]) & set(texts[1]))

    def test_tables_need_no_ids(self):
        stub = self.stub()
        report = self.report(stub.url, "--input", os.path.join(SAMPLES, "azure_sample.csv"),
                             "--speed", 1000, "--scale", "1/8", "--seed", 1)
        self.assertEqual(report["arms"][0]["outcomes"]["completed"], 23)
        self.assertEqual(report["arms"][0]["tokens"]["shared_rate"], 0)
        with open(os.path.join(SAMPLES, "azure_sample.csv"), encoding="utf-8") as f:
            rows = [row.strip().split(",") for row in list(f)[1:]]
        self.assertEqual(sorted(len(content(r).split()) for r in stub.requests),
                         sorted(max(1, int(int(row[1]) / 8 + 0.5)) for row in rows))

    def test_an_engine_finds_the_common_blocks_and_no_more(self):
        """One slot holds the request before: what is cached is the common start of both."""
        orders = [[1, 2, 3], [1, 2, 4, 5], [1, 2, 4], [6, 7], [6, 8], [1], [1, 9, 9]]
        path = self.path("t.jsonl", "".join(line(0, ids) for ids in orders))
        flags = ("--input", path, "--arrivals", "none", "--seed", 3)
        stub = self.stub()
        self.bench(stub.url, *flags)
        texts = [content(r) for r in stub.requests]
        lab = Lab(slots=1).start()
        self.addCleanup(lab.stop)
        cached = [int(r["cached_tokens"]) for r in self.rows(f"http://127.0.0.1:{lab.port}",
                                                             *flags)]
        template = set()
        for i in range(1, len(orders)):
            common = len(os.path.commonprefix(orders[i - 1:i + 1]))
            bytes_ = len(os.path.commonprefix(texts[i - 1:i + 1]))
            if common < min(len(orders[i]), len(orders[i - 1])):
                words = len(texts[i][:bytes_].split())
                self.assertIn(words - 16 * common, (0, 1), i)
            template.add(cached[i] - bytes_)
        self.assertEqual(len(template), 1, (cached, texts))
        self.assertIn(template.pop(), range(100))


class Conversations(Inputs):
    def test_turns_come_with_their_history_and_take_turns(self):
        stub = self.stub()
        talks = [{"id": str(k), "conversations": [
            {"from": who, "value": f"{k}.{n}"} for n, who in enumerate(("human", "gpt") * 3)]}
            for k in range(5)] + [{"id": "5", "conversations": []}]
        path = self.path("s.json", json.dumps(talks, indent=1))
        done = self.bench(stub.url, "--input", path, "--at-once", 2, "--max-tokens", 1)
        self.assertIn("1 of 6 conversations hold no question and were left out", done.stderr)
        self.assertIn("conversations,requests=15,at-once=2,", done.stdout)
        histories = {}
        for request in stub.requests:
            said = [m["content"] for m in request["messages"]]
            talk, before = said[0][0], histories.get(said[0][0], [])
            self.assertEqual(said[:len(before)], before)
            self.assertEqual(len(said), len(before) + (2 if before else 1))
            self.assertEqual([m["role"] for m in request["messages"]],
                             (["user", "assistant"] * 3)[:len(said)])
            self.assertEqual(request["max_tokens"], 1)
            self.assertTrue(request["stream"])
            histories[talk] = said
        self.assertEqual({k: len(v) for k, v in histories.items()}, {str(k): 5 for k in range(5)})


class Mistakes(Inputs):
    def test_what_is_wrong_is_said(self):
        bodies = self.path("b.jsonl", "{\"prompt\": \"a\"}\n")
        trace = self.path("t.jsonl", line(1, [1]))
        url = "http://127.0.0.1:1"
        for status, words, *flags in (
                (2, "--rate and --speed exclude", "--rate", 1, "--speed", 1),
                (2, "--rate and --arrivals none", "--rate", 1, "--arrivals", "none"),
                (2, "--rate and --arrivals trace", "--rate", 1, "--arrivals", "trace"),
                (2, "--arrivals none and --speed", "--speed", 1, "--arrivals", "none"),
                (2, "--steps and --speed", "--steps", "1,2", "--speed", 1),
                (2, "--steps and --arrivals trace", "--steps", "1,2", "--arrivals", "trace"),
                (2, "from 0.001 to 1000", "--speed", "2x"),
                (2, "from 0.001 to 1000", "--scale", "1/"),
                (2, "from 0.001 to 1000", "--scale", "1/1001"),
                (2, "from 0.001 to 1000", "--scale", "1001"),
                (2, "from 0.001 to 1000", "--scale", "0/0"),
                (2, "from 1 to 100000", "--at-once", "0"),
                (2, "from 1 to 100000", "--at-once", "100001"),
                (2, "from 1 to 1000000", "--max-tokens", "1000001"),
                (1, "--speed is for a trace", "--input", bodies, "--speed", 1),
                (1, "--arrivals trace is for a trace", "--arrivals", "trace"),
                (1, "--scale is for a trace", "--input", bodies, "--scale", "1/8"),
                (1, "--at-once is for conversations", "--input", trace, "--at-once", 2),
                (1, "/nowhere: No such file", "--input", "/nowhere")):
            with self.subTest(flags=flags):
                self.assertIn(words, self.bench(url, *flags, status=status).stderr)
