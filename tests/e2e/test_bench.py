# SPDX-License-Identifier: MIT
"""`incipit bench` as a process: in front of a service with known delays and faults, and of
the gateway with the built-in engine."""

import csv
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading

from harness import PATIENCE_S, Case, Gateway, binary, wait_until
from lab_engine import Lab
from stub_service import (DONE, Stub, begin_stream, end_stream, event, reset, role,
                          send_chunk, send_json, timed, usage)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def whole(stub, sock, number, body, tail=b""):
    begin_stream(sock)
    send_chunk(sock, role() + event({"content": "a"}) + event({"content": "b"}) + tail + DONE)
    end_stream(sock)


class BenchCase(Case):
    def setUp(self):
        super().setUp()
        self.need_gateway()

    def stub(self, behave=whole, **more):
        stub = Stub(behave, **more)
        self.addCleanup(stub.close)
        return stub

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        return path

    def bench(self, *arguments, status=0):
        done = subprocess.run([binary(), "bench", *map(str, arguments)], text=True,
                              capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=4 * PATIENCE_S)
        self.assertEqual(done.returncode, status, (done.stdout, done.stderr))
        return done

    def report(self, *arguments, status=0):
        return json.loads(self.bench(*arguments, "--json", "-", status=status).stdout)

    def check_manual(self, report):
        """Every field of it stands in docs/bench.md."""
        names = set()

        def walk(value):
            for k, v in value.items() if isinstance(value, dict) else ():
                names.add(k)
                walk(v)
            for v in value if isinstance(value, list) else ():
                walk(v)
        walk(report)
        with open(os.path.join(ROOT, "docs/bench.md"), encoding="utf-8") as f:
            manual = f.read()
        self.assertEqual([n for n in sorted(names) if f"`{n}`" not in manual], [])


class Clocks(BenchCase):
    def test_times_are_at_least_the_delays(self):
        stub = self.stub(timed(0.03, 0.01, 5))
        arm = self.report(stub.url, "--requests", 6, "--concurrency", 3)["arms"][0]
        samples = arm["samples"]
        self.assertEqual(samples["index"], list(range(6)))
        for first, ttft, total in zip(samples["first_ms"], samples["ttft_ms"],
                                      samples["total_ms"]):
            self.assertGreaterEqual(first, 30)
            self.assertGreaterEqual(first, ttft)
            self.assertGreaterEqual(total, 70)
        self.assertEqual(samples["outcome"], ["completed"] * 6)
        self.assertEqual(samples["cached_tokens"], [40] * 6)
        for i in range(6):
            at = [samples[name][i] for name in ("planned_at", "started_at", "sent_at",
                                                "first_at", "end_at")]
            self.assertEqual(at, sorted(at))
            self.assertAlmostEqual(at[3] - at[2], samples["ttft_ms"][i], delta=0.01)
            self.assertAlmostEqual(at[4] - at[0], samples["total_ms"][i], delta=0.01)
        self.assertEqual(arm["quantiles"]["gaps_ms"]["n"], 24)
        self.assertEqual(sum(n for _, n in samples["gaps"]), 24)
        self.assertEqual(arm["tokens"], {
            "prompt": 600, "prompt_told": 6, "cached": 240, "cached_told": 6, "output": 30,
            "output_told": 6, "hit_rate": 0.4, "aimed": arm["tokens"]["aimed"],
            "shared_rate": 0})

    def test_unknown_is_not_zero(self):
        stub = self.stub()
        arm = self.report(stub.url, "--requests", 2)["arms"][0]
        self.assertIsNone(arm["tokens"]["hit_rate"])
        self.assertIsNone(arm["tokens"]["prompt"])
        self.assertEqual(arm["samples"]["cached_tokens"], [None, None])
        self.assertIsNone(arm["throughput"]["output_tokens_per_s"])
        self.assertIn("cached: not told", self.bench(stub.url, "--requests", 2).stdout)

    def test_known_of_some_is_told_as_that(self):
        def behave(stub, sock, number, body):
            whole(stub, sock, number, body, usage(100, 50, 2) if number else b"")
        stub = self.stub(behave)
        done = self.bench(stub.url, "--requests", 4)
        self.assertIn("cached: 50.0 %", done.stdout)
        self.assertIn("told by 3 of 4 requests", done.stdout)
        self.assertIn("output tokens not known of all", done.stdout)

    def test_open_loop_sends_though_nothing_is_answered(self):
        def behave(stub, sock, number, body):
            if number == 9:
                stub.released.set()
            stub.released.wait(PATIENCE_S)
            whole(stub, sock, number, body)
        stub = self.stub(behave)
        report = self.report(stub.url, "--rate", 200, "--requests", 10, "--seed", 4)
        self.assertEqual(report["arms"][0]["outcomes"]["completed"], 10)
        self.assertEqual(report["settings"]["arrivals"], "poisson")

    def test_answers_in_one_piece_have_no_first_token(self):
        stub = self.stub(lambda stub, sock, n, body: send_json(sock, 200, {
            "choices": [{"message": {"content": "x"}}], "usage": {
                "prompt_tokens": 8, "completion_tokens": 3}}))
        arm = self.report(stub.url, "--requests", 3, "--no-stream")["arms"][0]
        self.assertNotIn("stream", stub.requests[0])
        self.assertEqual(arm["quantiles"]["ttft_ms"]["n"], 0)
        self.assertIsNone(arm["quantiles"]["ttft_ms"]["p50"])
        self.assertEqual(arm["quantiles"]["total_ms"]["n"], 3)
        self.assertEqual(arm["tokens"]["output"], 9)


class Outcomes(BenchCase):
    def test_each_is_told_apart(self):
        def behave(stub, sock, number, body):
            if number in (0, 1, 2):
                send_json(sock, (429, 503, 429)[number], {"error": {"message": "no"}})
            elif number == 3:
                begin_stream(sock)
                send_chunk(sock, event({"content": "a"}))   # and the connection ends
            elif number == 4:
                begin_stream(sock)
                send_chunk(sock, event({"content": "a"}))
                end_stream(sock)                            # well framed, no last event
            elif number == 5:
                reset(sock)
            else:
                whole(stub, sock, number, body)
        stub = self.stub(behave)
        path = self.path("a.csv")
        outcomes = self.report(stub.url, "--requests", 8, "--csv", path)["arms"][0]["outcomes"]
        self.assertEqual(outcomes, {
            "sent": 8, "completed": 2, "refused": 3, "interrupted": 2, "failed": 1,
            "pending": 0, "statuses": {"429": 2, "503": 1}, "errors": {"closed": 1}})
        with open(path, encoding="ascii", newline="") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([r["outcome"] for r in rows], [
            *["refused"] * 3, "interrupted", "interrupted", "failed", *["completed"] * 2])
        self.assertEqual([r["status"] for r in rows[:3]], ["429", "503", "429"])
        self.assertEqual(rows[0]["ttft_ms"], "")
        self.assertGreater(float(rows[7]["total_ms"]), 0)

    def test_nothing_completed_is_a_failure(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        report = self.report(f"http://127.0.0.1:{port}", "--requests", 2, status=1)
        self.assertEqual(report["arms"][0]["outcomes"]["errors"], {"refused": 2})
        self.assertIsNone(report["engine"])

    def test_what_stalls_is_given_up(self):
        def behave(stub, sock, number, body):
            stub.released.wait(PATIENCE_S)
        stub = self.stub(behave)
        report = self.report(stub.url, "--requests", 1, "--timeout", "50ms", status=1)
        self.assertEqual(report["arms"][0]["outcomes"]["errors"], {"timeout": 1})

    def interrupt(self, number, *flags):
        def behave(stub, sock, n, body):
            if n < 3:
                whole(stub, sock, n, body)
            else:
                stub.released.wait(PATIENCE_S)
        stub, path = self.stub(behave), self.path("a.json")
        child = subprocess.Popen(
            [binary(), "bench", stub.url, "--requests", "50", "--concurrency", "2", "--json",
             path, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: len(stub.requests) == 5, "five requests")
            child.send_signal(number)
            output, errors = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
        self.assertEqual(child.returncode, 1, errors)
        with open(path, encoding="utf-8") as f:
            return output, json.load(f)

    def test_an_interrupt_keeps_what_was_measured(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            output, report = self.interrupt(number)
            self.assertTrue(report["stopped"])
            self.assertEqual(report["arms"][0]["outcomes"]["completed"], 3)
            self.assertEqual(report["arms"][0]["outcomes"]["pending"], 2)
            self.assertEqual(report["arms"][0]["quantiles"]["ttft_ms"]["n"], 3)
            self.assertIn("Stopped by a signal", output)

    def test_an_interrupt_of_the_warm_up_ends_the_run(self):
        output, report = self.interrupt(signal.SIGINT, "--warmup", "10")
        self.assertEqual(report["warmup"][0]["outcomes"]["completed"], 3)
        self.assertEqual(report["arms"][0]["outcomes"]["sent"], 0)
        self.assertIn("Stopped by a signal", output)


class Kinds(BenchCase):
    def test_short_ones_that_meet_long_ones_are_told_apart(self):
        stub = self.stub(timed(0.02, 0.01, 3))
        profile = ("--profile", "interrupt,in=50,ask=5,meetings=2")
        arm = self.report(stub.url, *profile)["arms"][0]
        kinds = arm["classes"]
        self.assertEqual(kinds["short-alone"]["sent"], 2)
        self.assertGreaterEqual(kinds["long-alone"]["quantiles"]["ttft_ms"]["p50"], 20)
        self.assertEqual(sum(k["sent"] for k in kinds.values()), 8)
        self.assertEqual(arm["samples"]["class"][:2], ["short-alone", "long-alone"])
        path = self.path("a.csv")
        text = self.bench(stub.url, *profile, "--csv", path).stdout
        self.assertRegex(text, r"\n  short-alone +2 +\d+\.\d\d")
        with open(path, encoding="ascii", newline="") as f:
            self.assertEqual(next(csv.DictReader(f))["class"], "short-alone")
        self.assertIn("closed loop of 1", self.bench(
            stub.url, *profile, "--rate", 5, status=1).stderr)

    def test_kinds_of_a_mix_are_told_apart(self):
        stub = self.stub()
        arm = self.report(stub.url, "--profile", "mix", "--requests", 30, "--seed", 1)["arms"][0]
        self.assertEqual(sorted(arm["classes"]), ["long-in", "long-out", "short"])
        self.assertEqual(sum(k["completed"] for k in arm["classes"].values()), 30)
        self.assertNotIn("classes", self.report(stub.url, "--requests", 1)["arms"][0])

    def test_all_kinds_are_in_the_manual(self):
        with open(os.path.join(ROOT, "src/load/kind.c"), encoding="utf-8") as f:
            names = re.findall(r"= \"([a-z-]+)\"", f.read())
        with open(os.path.join(ROOT, "docs/bench.md"), encoding="utf-8") as f:
            manual = f.read()
        self.assertEqual(len(names), 9)
        self.assertEqual([n for n in names if f"`{n}`" not in manual], [])


class Connections(BenchCase):
    def serve(self, sock, answers):
        """Answers so many requests and closes before it answers one more."""
        with sock:
            for _ in range(answers):
                data = b""
                while not data.endswith(b"}"):
                    part = sock.recv(1 << 16)
                    if not part:
                        return
                    data += part
                    if data.startswith(b"GET "):
                        break
                self.requests += data.startswith(b"POST ")
                text = b'{"choices":[{"message":{"content":"word"}}]}'
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                             b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
            sock.recv(1 << 16)

    def service(self, answers):
        """Each connection is good for so many answers."""
        self.requests = 0
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def accept():
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                self.serve(sock, answers)
        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def test_what_meets_a_closed_connection_is_sent_again(self):
        url = self.service(2)
        done = self.bench(url, "--requests", 6, "--no-stream")
        self.assertRegex(done.stdout, r"\b2 requests met a connection")

    def test_nothing_is_sent_again_where_none_is_kept(self):
        url = self.service(2)
        arm = self.report(url, "--requests", 6, "--no-stream", "--no-keep-alive")["arms"][0]
        self.assertEqual(arm["connections"], {"opened": 6, "retried": 0})
        self.assertEqual(self.requests, 6)


class Requests(BenchCase):
    def test_model_and_headers_are_sent(self):
        stub = self.stub()
        self.bench(stub.url, "--requests", 1, "--header", "Authorization: Bearer x")
        path = self.path("h", "X-A: 1\n\nX-B: 2\n")
        self.bench(stub.url, "--requests", 1, "--header", "@" + path, "--model", "other")
        self.assertEqual([r["model"] for r in stub.requests], ["stub-model", "other"])
        self.assertIn("Authorization: Bearer x\r\n", stub.headers[0])
        self.assertIn("X-A: 1\r\nX-B: 2\r\n", stub.headers[1])

    def test_a_seed_repeats_the_requests(self):
        stub = self.stub()
        for seed in (3, 3, 4):
            self.bench(stub.url, "--profile", "mix", "--requests", 4, "--seed", seed)
        self.assertEqual(stub.requests[:4], stub.requests[4:8])
        self.assertNotEqual(stub.requests[:4], stub.requests[8:])

    def test_without_a_seed_nothing_is_known_from_before(self):
        stub = self.stub()
        seeds = {self.report(stub.url, "--requests", 1)["settings"]["seed"] for _ in range(3)}
        self.assertEqual(len(seeds), 3)

    def test_bodies_of_a_file(self):
        stub, lines = self.stub(), [{"messages": [{"role": "user", "content": "x"}], "k": 1},
                                    {"body": {"messages": [], "model": "m"}}]
        path = self.path("b.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
        report = self.report(stub.url, "--input", path)
        self.assertEqual(report["arms"][0]["outcomes"]["completed"], 2)
        more = {"stream": True, "stream_options": {"include_usage": True}}
        self.assertEqual(stub.requests, [{**lines[0], "model": "stub-model", **more},
                                         {**lines[1]["body"], **more}])

    def test_what_is_wrong_is_said(self):
        path = self.path("b.jsonl", "{}\n")
        url = "http://127.0.0.1:1"
        for status, words, *flags in (
                (2, "from 0.001 to 100000", "--rate", "0"),
                (2, "from 0.001", "--rate", "nan"),
                (2, "from 1 to 10000", "--concurrency", "10001"),
                (2, "no kind: poisson", "--arrivals", "x"),
                (2, "time like 30s", "--duration", "5"),
                (2, "no line \"Name: value\"", "--header", "x"),
                (2, "exclude each other", "--profile", "mix", "--input", path),
                (1, "did you mean \"chat\"", "--profile", "chatt"),
                (1, "b.jsonl:1:", "--input", path)):
            with self.subTest(flags=flags):
                self.assertIn(words, self.bench(url, *flags, status=status).stderr)
        self.assertIn("not http://", self.bench("ftp://x", status=1).stderr)
        self.assertIn("cannot be written", self.bench(
            self.stub().url, "--requests", 1, "--csv", self.path("no/a"), status=1).stderr)


class Reports(BenchCase):
    def test_no_host_and_no_text_is_in_a_report(self):
        stub = self.stub(model="/home/me/model.gguf")
        paths = [self.path("a.json"), self.path("a.csv")]
        self.bench(stub.url, "--requests", 3, "--json", paths[0], "--csv", paths[1])
        words = stub.requests[0]["messages"][0]["content"]
        self.assertEqual(stub.requests[0]["model"], stub.model)
        for path in paths:
            with open(path, encoding="utf-8") as f:
                text = f.read()
            for secret in (socket.gethostname(), "127.0.0.1", str(stub.port), words[:40],
                           "/home"):
                self.assertNotIn(secret, text)

    def test_the_fields_are_those_of_the_manual(self):
        stub = self.stub()
        report = self.report(stub.url, "--ab", stub.url, "--requests", 5, "--warmup", 1,
                             "--rate", 100)
        self.check_manual(report)

    def test_progress_is_for_terminals(self):
        stub = self.stub(timed(0.7, 0, 1))
        ours, theirs = pty.openpty()
        done = subprocess.run([binary(), "bench", stub.url, "--requests", "1"],
                              stdout=subprocess.PIPE, stderr=theirs, timeout=PATIENCE_S)
        os.close(theirs)
        text = os.read(ours, 4096).decode()
        os.close(ours)
        self.assertEqual(done.returncode, 0)
        self.assertIn("run: 0 of 1 ended, 1 under way", text)
        self.assertEqual(self.bench(stub.url, "--requests", 1).stderr, "")


class Resources(BenchCase):
    def lab(self):
        lab = Lab().start()
        self.addCleanup(lab.stop)
        return lab, f"http://127.0.0.1:{lab.port}"

    def test_who_listens_is_watched(self):
        lab, url = self.lab()
        done = self.bench(url, "--requests", 3, "--profile", "short,in=20")
        self.assertRegex(done.stdout, r"service: \d+\.\d\d of a core \(incipit \d")
        r = self.report(url, "--requests", 3, "--warmup", 1, "--profile", "short,in=20")
        for arm in (r["warmup"][0], r["arms"][0]):
            process = arm["resources"]["processes"][0]
            self.assertEqual((process["name"], process["how"]), ("incipit", "listens"))
            self.assertGreater(process["cpu_s"], 0)
            self.assertGreater(arm["resources"]["rss_peak_bytes"], 1 << 20)
            self.assertIsNone(arm["resources"]["kv"])

    def test_others_are_named(self):
        lab, url = self.lab()
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                                 stdin=subprocess.PIPE)
        try:
            r = self.report(url, "--ab", url, "--requests", 1, "--profile", "short,in=20",
                            "--watch", f"{lab.child.pid}:{child.pid}")
            how = [[p["how"] for p in arm["resources"]["processes"]] for arm in r["arms"]]
            self.assertEqual(how, [["named"], ["named", "listens"]])
        finally:
            child.communicate()
        self.assertIn("no process", self.bench(url, "--watch", child.pid, status=1).stderr)
        for bad in ("x", "0", "1,,2", "-1", f"{lab.child.pid}:{lab.child.pid}"):
            self.assertIn("no list of processes", self.bench(
                url, f"--watch={bad}", status=2).stderr, bad)

    def test_bytes_in_the_store_are_asked_for(self):
        lab, url = self.lab()
        gateway = Gateway(self.folder, url, store=False).start()
        self.addCleanup(gateway.stop)
        admin = f"http://127.0.0.1:{gateway.admin_port}"
        kv = self.report(f"http://127.0.0.1:{gateway.port}", "--requests", 1, "--profile",
                         "short,in=20", "--admin", admin)["arms"][0]["resources"]["kv"]
        self.assertEqual(kv["ram_bytes"]["begin"], 0)
        self.assertGreaterEqual(kv["ram_bytes"]["peak"], kv["ram_bytes"]["end"])


class Comparisons(BenchCase):
    def test_two_services_in_turn(self):
        fast, slow = self.stub(timed(0.0, 0.0, 2)), self.stub(timed(0.15, 0.0, 2))
        report = self.report(fast.url, "--ab", slow.url, "--requests", 8)
        mean = report["contrasts"]["ttft_ms"]["mean"]
        self.assertTrue(mean["seen"])
        self.assertGreater(mean["low"], 0)
        self.assertEqual([a["outcomes"]["completed"] for a in report["arms"]], [8, 8])
        self.assertEqual(len(fast.requests), 8)
        lengths = [[len(r["messages"][0]["content"].split()) for r in s.requests]
                   for s in (fast, slow)]
        self.assertEqual(*lengths)
        self.assertNotEqual(fast.requests[0], slow.requests[0])

    def test_two_runs(self):
        paths = []
        for i, delay in enumerate((0.0, 0.15)):
            paths.append(self.path(f"{i}.json"))
            self.bench(self.stub(timed(delay, 0.0, 2)).url, "--requests", 8, "--seed", 1,
                       "--concurrency", 1 + i, "--json", paths[i])
        changed = json.loads(self.bench("compare", *paths, "--json").stdout)
        self.assertTrue(changed["paired"])
        self.assertEqual(changed["settings"], {"concurrency": [1, 2]})
        self.assertTrue(changed["contrasts"]["ttft_ms"]["median"]["seen"])
        same = self.bench("compare", paths[0], paths[0]).stdout
        self.assertEqual(same.count("no difference seen"), 9)   # 8 of times, good answers
        self.assertIn("The same requests, compared in pairs.", same)
        self.assertNotIn("set up differently", same)

    def test_what_is_no_report_is_refused(self):
        good, bad = self.path("a.json"), self.path("b.json", "{\"schema\": \"x\"}")
        self.bench(self.stub().url, "--requests", 2, "--json", good)
        self.assertIn("first file: no report",
                      self.bench("compare", bad, good, status=1).stderr)
        with open(good, encoding="utf-8") as f:
            doc = json.load(f)
        doc["arms"][0]["samples"]["ttft_ms"].pop()
        self.assertIn("missing or damaged", self.bench(
            "compare", good, self.path("c.json", json.dumps(doc)), status=1).stderr)
        self.assertIn("b2.json", self.bench(
            "compare", good, self.path("b2.json", "{"), status=1).stderr)


class ThroughTheGateway(BenchCase):
    def test_shared_documents_are_reused(self):
        lab = Lab(os.path.join(self.folder, "slots"), slots=1)
        os.makedirs(os.path.join(self.folder, "slots"), mode=0o700)
        lab.start()
        self.addCleanup(lab.stop)
        gateway = Gateway(self.folder, lab.url)
        self.gateways.append(gateway)
        gateway.start()
        gateway.wait_ready("store")
        url = f"http://127.0.0.1:{gateway.port}"
        report = self.report(url, "--profile", "shared,documents=3,questions=3,in=80,ask=5,"
                             "out=4", "--seed", 1, "--warmup", 3)
        arm = report["arms"][0]
        self.assertEqual(arm["outcomes"]["completed"], 9)
        self.assertEqual(report["warmup"][0]["outcomes"]["completed"], 3)
        self.assertLess(report["warmup"][0]["tokens"]["hit_rate"], 0.1)
        self.assertGreater(arm["tokens"]["hit_rate"], 0.3)
        self.assertEqual(arm["tokens"]["cached_told"], 9)
        self.assertEqual(gateway.total("requests"), 1 + 3 + 9)   # the first asks for models
