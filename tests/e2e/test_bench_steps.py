# SPDX-License-Identifier: MIT
"""`incipit bench` with a load that is raised step by step, and the share of good answers."""

import csv
import json
import os
import pty
import signal
import subprocess
import time

from harness import PATIENCE_S, binary, wait_until
from stub_service import DONE, begin_stream, end_stream, event, role, send_chunk, send_json, timed
from test_bench import BenchCase, whole


def full_from(first):
    """One that refuses request number `first` and all behind it."""
    def behave(stub, sock, number, body):
        if number < first:
            whole(stub, sock, number, body)
        else:
            send_json(sock, 503, {"error": {"message": "full"}})
    return behave


class Steps(BenchCase):
    def test_each_step_has_its_load_and_its_figures(self):
        stub = self.stub(timed(0.0, 0.0, 3))
        report = self.report(stub.url, "--steps", "1..4x2", "--requests", 5, "--settle", 2)
        self.assertEqual([s["load"] for s in report["steps"]],
                         [{"concurrency": n} for n in (1, 2, 4)])
        self.assertEqual([s["step"] for s in report["steps"]], [1, 2, 3])
        self.assertEqual(report["arms"], [])
        self.assertEqual(report["settings"]["steps"], [1, 2, 4])
        self.assertEqual(report["settings"]["settle"], [2, 2, 2])
        self.assertEqual(report["settings"]["loop"], "closed")
        sent = 0
        for step in report["steps"]:
            self.assertEqual(step["outcomes"]["completed"], 5)
            self.assertEqual(step["quantiles"]["ttft_ms"]["n"], 5)
            self.assertEqual(step["good"], {
                "n": 5, "good": 5, "share": 1, "low": step["good"]["low"], "high": 1,
                "failed": {"outcome": 0, "answer": 0, "ttft": 0, "gap": 0, "total": 0}})
            self.assertGreater(step["throughput"]["requests_per_s"], 0)
            self.assertGreaterEqual(step["settling"]["outcomes"]["completed"], 2)
            sent += 5 + step["settling"]["outcomes"]["sent"]
        self.assertEqual(len(stub.requests), sent)
        self.assertEqual(report["knee"], [{"arm": "A", "share": 0.95, "step": 3,
                                           "load": {"concurrency": 4}}])

    def test_how_long_a_step_settles_if_nobody_says(self):
        for flags, requests, ms in ((("--steps", "2,3", "--requests", 5), [4, 6], 0),
                                    (("--steps", "1", "--requests", 30), [6], 0),
                                    (("--rate", "500,900", "--requests", 10), [2, 2], 0),
                                    (("--steps", "1", "--duration", "50ms"), [2], 0.01)):
            settings = self.report(self.stub().url, *flags)["settings"]
            self.assertEqual((settings["settle"], settings["settle_s"]), (requests, ms))

    def test_no_words_are_sent_twice(self):
        stub = self.stub()
        self.bench(stub.url, "--steps", "1,2", "--requests", 4, "--profile",
                   "shared,documents=2,questions=2,in=20,ask=5")
        asked = [json.dumps(r["messages"]) for r in stub.requests]
        self.assertEqual(len(set(asked)), len(asked))
        documents = [r["messages"][0]["content"] for r in stub.requests]
        self.assertLessEqual(max(documents.count(d) for d in documents), 2)

    def test_the_knee_and_the_end(self):
        arguments = ("--rate", "100..500+100", "--requests", 8, "--settle", 0, "--good",
                     "total=1h", "--until", "good<50%")
        report = self.report(self.stub(full_from(16)).url, *arguments)
        self.assertEqual([s["good"]["share"] for s in report["steps"]], [1, 1, 0])
        self.assertEqual(report["knee"], [{"arm": "A", "share": 0.95, "step": 2,
                                           "load": report["steps"][1]["load"]}])
        self.assertEqual(report["steps"][2]["good"]["failed"]["outcome"], 8)
        self.assertEqual(report["settings"]["good"], {"total": 3600000})
        self.assertEqual(report["steps"][2]["throughput"]["good_per_s"], 0)
        self.assertFalse(report["stopped"])
        output = self.bench(self.stub(full_from(16)).url, *arguments).stdout
        self.assertIn("knee: 200 requests/s, the highest step with at least 95 %", output)
        self.assertIn("not good by outcome: 8", output)
        output = self.bench(self.stub(full_from(15)).url, *arguments, "--knee", "100%").stdout
        self.assertIn("knee: 100 requests/s, the highest step with at least 100 %", output)
        output = self.bench(self.stub(full_from(1)).url, *arguments).stdout
        self.assertIn("knee: no step has 95 % of good answers", output)

    def test_an_open_loop_is_raised(self):
        stub = self.stub()
        report = self.report(stub.url, "--rate", "50,100..200+100", "--requests", 6,
                             "--arrivals", "constant")
        self.assertEqual([s["load"] for s in report["steps"]],
                         [{"rate": r, "offered_per_s": r} for r in (50, 100, 200)])
        self.assertEqual(report["settings"]["arrivals"], "constant")
        self.assertEqual(report["settings"]["loop"], "open")
        self.assertIsNone(report["settings"].get("rate"))
        self.assertEqual([s["settling"]["outcomes"]["sent"] for s in report["steps"]],
                         [1, 1, 1])

    def test_what_was_planned_is_not_left_out(self):
        """Nothing is answered before the last request has come: all times from plan hold
        that wait."""
        def behave(stub, sock, number, body):
            if number == 9:
                stub.released.set()
            stub.released.wait(PATIENCE_S)
            whole(stub, sock, number, body)
        stub = self.stub(behave)
        step = self.report(stub.url, "--rate", "100..100+1", "--requests", 10, "--settle", 0,
                           "--arrivals", "constant", "--good", "ttft=45ms")["steps"][0]
        self.assertEqual(step["outcomes"]["completed"], 10)
        self.assertGreaterEqual(step["samples"]["first_ms"][0], 90)
        self.assertGreaterEqual(step["good"]["failed"]["ttft"], 5)

    def test_an_empty_answer_is_not_good(self):
        def behave(stub, sock, number, body):
            begin_stream(sock)
            send_chunk(sock, role() + (event({"content": "a"}) if number % 2 else b"") + DONE)
            end_stream(sock)
        step = self.report(self.stub(behave).url, "--steps", 1, "--requests", 6,
                           "--settle", 0)["steps"][0]
        self.assertEqual(step["good"]["failed"]["answer"], 3)
        self.assertEqual(step["good"]["share"], 0.5)
        self.assertEqual(step["outcomes"]["completed"], 6)

    def test_what_is_expected_is_in_a_good_answer(self):
        def behave(stub, sock, number, body):
            begin_stream(sock)
            send_chunk(sock, b"".join(event({"content": word}) for word in (
                ("It is Par", "is."), ("It is paris.",), ("Rome",))[number % 3]) + DONE)
            end_stream(sock)
        ask = {"messages": [{"role": "user", "content": "x"}]}
        path = self.path("a.jsonl", "".join(json.dumps(line) + "\n" for line in (
            *[{"body": ask, "expect": "\u0050aris"}] * 3, ask, {"body": ask}, ask)))
        arm = self.report(self.stub(behave).url, "--input", path)["arms"][0]
        self.assertEqual((arm["good"]["n"], arm["good"]["good"]), (6, 4))
        self.assertEqual(arm["good"]["failed"]["answer"], 2)
        for wrong in ("", 5, "x" * 4096):
            path = self.path("b.jsonl", json.dumps({"body": ask, "expect": wrong}))
            self.assertIn("b.jsonl:1: \"expect\" is a text of 1 to 4095 bytes", self.bench(
                self.stub().url, "--input", path, status=1).stderr)
        path = self.path("b.jsonl", json.dumps({"body": ask, "expect": "x" * 4095}))
        self.bench(self.stub().url, "--input", path)

    def test_a_plain_run_has_good_answers_too(self):
        def behave(stub, sock, number, body):
            if number == 0:
                send_json(sock, 503, {"error": {}})
            else:
                whole(stub, sock, number, body)
        arm = self.report(self.stub(behave).url, "--requests", 4, "--good",
                          "ttft=1h")["arms"][0]
        self.assertEqual((arm["good"]["n"], arm["good"]["good"]), (4, 3))
        self.assertEqual(arm["good"]["failed"]["outcome"], 1)

    def test_both_arms_have_each_step(self):
        fast, slow = self.stub(), self.stub(timed(0.4, 0.0, 2))
        report = self.report(fast.url, "--ab", slow.url, "--steps", "2,4", "--requests", 6,
                             "--good", "ttft=390ms", "--settle", 1)
        self.assertEqual([(s["step"], s["arm"]) for s in report["steps"]],
                         [(1, "A"), (1, "B"), (2, "A"), (2, "B")])
        self.assertEqual([s["outcomes"]["completed"] for s in report["steps"]], [6] * 4)
        self.assertEqual([k["step"] for k in report["knee"]], [2, None])
        for contrast in report["step_contrasts"]:
            self.assertTrue(contrast["ttft_ms"]["median"]["seen"])
        self.assertNotIn("contrasts", report)
        self.assertIn("run B:", self.bench(
            fast.url, "--ab", slow.url, "--steps", "1", "--requests", 5).stdout)

    def compared(self, *paths):
        return json.loads(self.bench("compare", *paths, "--json").stdout)

    def test_two_runs_are_compared_step_by_step(self):
        paths = []
        for i, (service, rates) in enumerate((
                (full_from(30), "200,300,400"), (full_from(15), "200,300,500"))):
            paths.append(self.path(f"{i}.json"))
            self.bench(self.stub(service).url, "--rate", rates, "--requests", 10,
                       "--settle", 0, "--seed", 1, "--good", "total=1h", "--json", paths[i])
        changed = self.compared(*paths)
        self.assertEqual([s["load"] for s in changed["steps"]], [{"rate": 200}, {"rate": 300}])
        self.assertEqual(changed["alone"], [{"rate": 400}, {"rate": 500}])
        self.assertTrue(all(s["paired"] for s in changed["steps"]))
        same, worse = (s["good"] for s in changed["steps"])
        self.assertEqual((same["difference"], same["seen"]), (0, False))
        self.assertEqual((worse["a"], worse["b"], worse["seen"]), (1, 0.5, True))
        self.assertTrue(-0.5 > worse["low"] > -0.8 and -0.1 > worse["high"] > -0.5)
        self.assertEqual(changed["steps"][1]["figures"]["refused"], [0, 5])
        printed = self.bench("compare", *paths).stdout
        self.assertIn("---- 300 requests/s ----", printed)
        self.assertIn("in one of the two only: 400 requests/s, 500 requests/s", printed)

    def test_closed_steps_of_a_seed_are_the_same_requests(self):
        paths = [self.path("0.json"), self.path("1.json")]
        for path, delay in zip(paths, (0, 0.01)):
            self.bench(self.stub(timed(delay, 0, 2)).url, "--steps", "2,3", "--requests", 6,
                       "--seed", 1, "--profile", "shared,documents=2,questions=2,in=9,ask=3",
                       "--json", path)
        self.assertTrue(all(s["paired"] for s in self.compared(*paths)["steps"]))

    def test_a_run_with_steps_and_one_without_are_not_compared(self):
        paths = [self.path("0.json"), self.path("1.json")]
        self.bench(self.stub().url, "--steps", 1, "--requests", 1, "--json", paths[0])
        self.bench(self.stub().url, "--requests", 1, "--json", paths[1])
        self.assertIn("one of the two has steps",
                      self.bench("compare", *paths, status=1).stderr)

    def test_other_limits_are_no_comparison_of_good_answers(self):
        paths = [self.path("0.json"), self.path("1.json")]
        for path, limit in zip(paths, ("1h", "2h")):
            self.bench(self.stub().url, "--requests", 1, "--good", "total=" + limit,
                       "--json", path)
        self.assertIsNone(self.compared(*paths)["good"])

    def test_lines_have_their_step(self):
        path = self.path("a.csv")
        self.bench(self.stub().url, "--steps", "1,3", "--requests", 4, "--settle", 2,
                   "--warmup", 1, "--csv", path)
        with open(path, encoding="ascii", newline="") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual(sum(r["phase"] == "warmup" and r["step"] == "" for r in rows), 1)
        for step in "12":
            self.assertEqual(sum(r["phase"] == "run" and r["step"] == step for r in rows), 4)
            settling = [r for r in rows if r["phase"] == "settling" and r["step"] == step]
            self.assertGreaterEqual(len(settling), 2)
            self.assertLess(float(settling[0]["planned_ms"]), 0)

    def test_an_interrupt_keeps_finished_steps(self):
        def behave(stub, sock, number, body):
            if number < 6:
                whole(stub, sock, number, body)
            else:
                stub.released.wait(PATIENCE_S)
        stub, path = self.stub(behave), self.path("a.json")
        child = subprocess.Popen(
            [binary(), "bench", stub.url, "--rate", "100,200,300", "--requests", "5",
             "--settle", "0", "--json", path], stdout=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: len(stub.requests) == 10, "ten requests")
            child.send_signal(signal.SIGINT)
            output, _ = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
        self.assertEqual(child.returncode, 1)
        with open(path, encoding="utf-8") as f:
            report = json.load(f)
        self.assertEqual([s["outcomes"]["completed"] for s in report["steps"]], [5, 1])
        self.assertEqual(report["steps"][1]["outcomes"]["pending"], 4)
        self.assertEqual(report["steps"][1]["good"]["n"], 1)
        self.assertIn("Stopped by a signal", output)

    def test_progress_is_of_all_steps(self):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [binary(), "bench", self.stub(timed(0.3, 0, 1)).url, "--steps", "1,2",
             "--requests", "2", "--settle", "3"], stdout=subprocess.PIPE, stderr=theirs, timeout=PATIENCE_S)
        os.close(theirs)
        text = os.read(ours, 1 << 16).decode()
        os.close(ours)
        self.assertEqual(done.returncode, 0)
        self.assertIn("step 1 of 2, settling: ", text)
        self.assertIn("step 2 of 2", text)
        self.assertRegex(text, r"about \d+ s left")

    def test_the_fields_are_those_of_the_manual(self):
        report = self.report(self.stub().url, "--ab", self.stub().url, "--rate", "50,90",
                             "--requests", 5, "--good", "ttft=1s,gap=1s,total=1s")
        self.check_manual(report)

    def test_what_is_wrong_is_said(self):
        for words, *flags in (
                ("\"0\": 0 is not from 1 to 10000", "--steps", "1,0"),
                ("whole numbers", "--steps", "1.5"),
                ("no range like", "--steps", "1..8"),
                ("at most 64 steps", "--steps", "1..65+1"),
                ("0 is not from 0.001 to 100000", "--rate", "1,0"),
                ("--steps and --rate exclude", "--steps", "1,2", "--rate", "1"),
                ("--steps and --concurrency exclude", "--steps", "1", "--concurrency", "2"),
                ("no share like 95%", "--steps", "1", "--knee", "101%"),
                ("no share like 95%", "--steps", "1", "--until", "good<0"),
                ("no condition like good<50%", "--steps", "1", "--until", "bad<50%"),
                ("--settle belongs to --steps", "--settle", "3"),
                ("--until belongs to --steps", "--until", "good<50%"),
                ("no number of requests", "--steps", "1", "--settle", "x"),
                ("\"x\" is no limit", "--good", "x=1s"),
                ("has a total, no ttft", "--good", "ttft=1s", "--no-stream")):
            with self.subTest(flags=flags):
                self.assertIn(words, self.bench("http://127.0.0.1:1", *flags,
                                                status=2).stderr)
