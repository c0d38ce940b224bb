# SPDX-License-Identifier: MIT
"""The page of `incipit bench --html`: markup, what it says, and how a browser shows it."""

import json
import os
import random
import re
from html.parser import HTMLParser

import browser
from stub_service import (DONE, begin_stream, end_stream, event, role, send_chunk, send_json,
                          timed, usage)
from test_bench import BenchCase
from test_bench_output import saying

VOID = ("meta", "br")
WIDTHS = (360, 800, 1600)

# What stands out to the right of its section or of the window, but for tables that can be
# scrolled.
TOO_WIDE = """[...document.querySelectorAll("body *")].filter(e =>
  !(e.closest(".scroll") && !e.matches(".scroll")) &&
  e.getBoundingClientRect().right > 0.5 + Math.min(innerWidth,
    (e.closest("section") || document.body).getBoundingClientRect().right)).map(e => e.outerHTML.slice(0, 200))"""

# Labels of one axis that run into each other.
OVERLAPPING = """[...document.querySelectorAll("svg.plot")].flatMap(s => ["tx", "ty"].flatMap(
  c => [...s.querySelectorAll("text." + c)].map(t => [t.textContent,
      t.getBoundingClientRect()]).filter(([, r]) => r.width).flatMap(([a, r], i, all) =>
    all.slice(i + 1).filter(([, q]) => r.left < q.right && q.left < r.right &&
      r.top + 2 < q.bottom - 2 && q.top + 2 < r.bottom - 2).map(([b]) => a + " and " + b))))"""


class Markup(HTMLParser):
    """Counts elements; `wrong` holds ends without begin, and what was never closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.wrong, self.count, self.links = [], [], {}, []
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        self.links += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.wrong.append((tag, self.getpos()))
        else:
            self.open.pop()


def mixed(stub, sock, number, body):
    """Answers of which one is refused, one breaks off, and some tell nothing of tokens."""
    if number == 3:
        send_json(sock, 429, {"error": {"message": "no"}})
        return
    begin_stream(sock)
    send_chunk(sock, role() + event({"content": "a"}))
    if number == 5:
        return
    send_chunk(sock, event({"content": "b"}) +
               (usage(100 + number, 40 if number % 2 else 0, 2) if number % 4 else b"") + DONE)
    end_stream(sock)


def arm_of(draw, name, n, slow):
    """An arm of a document, drawn: times from some µs to minutes, of all outcomes."""
    ttft = [slow * 0.02 * 10 ** (6 * draw.random()) for _ in range(n)]
    planned = [draw.random() * 10 * i for i in range(n)]
    prompt = [int(10 * 10 ** (4 * draw.random())) for _ in range(n)]
    cached = [draw.choice((0, int(p * draw.random()), None)) for p in prompt]
    outcome = [draw.choice(["completed"] * 9 + ["refused", "failed", "pending"])
               for _ in range(n)]
    q = {"n": n, "p50": 1234.5, "p90": 98765.4, "p99": 1234567.8}
    return {
        "arm": name, "seconds": 10 * n, "outcomes": {
            "sent": n, "completed": n - 3, "refused": 2, "interrupted": 0, "failed": 1,
            "pending": 0, "statuses": {"429": 1, "503": 1}, "errors": {"closed": 1}},
        "quantiles": {k: q for k in ("ttft_ms", "first_ms", "total_ms", "gaps_ms", "lag_ms")},
        "throughput": {"requests_per_s": 1234.56, "output_tokens_per_s": 123456.7},
        "good": {"n": n, "share": 0.987, "low": 0.9, "high": 0.99,
                 "failed": {"ttft": 12345, "gap": 3}},
        "tokens": {"prompt": 123456789, "prompt_told": n, "hit_rate": 0.123},
        "samples": {
            "index": list(range(n)), "outcome": outcome, "ttft_ms": ttft,
            "total_ms": [t + 10 for t in ttft], "gap_ms": ttft, "planned_at": planned,
            "started_at": [t + 5 for t in planned], "turn": [i % 9 for i in range(n)],
            "first_at": [a + b for a, b in zip(planned, ttft)],
            "end_at": [None if o == "pending" else a + b + 10
                       for a, b, o in zip(planned, ttft, outcome)],
            "prompt_tokens": prompt, "cached_tokens": cached,
            "gaps": [[0.001 * 1.1 ** i, 1 + i % 5] for i in range(150)]}}


def document(**more):
    return {"schema": "incipit-bench/1", "version": "0", "engine": "an-engine-" * 9,
            "model": "folder/name-without-a-space-" * 6, "settings": {
                "profile": "shared,documents=10,questions=20,in=2000,ask=40,out=64",
                "seed": 2**62, "loop": "open", "rate": 99999, "concurrency": 500,
                "good": {"ttft": 500, "gap": 50}}, "machine": {
                    "cores": 2, "processor": "A processor with a long name " * 4},
            "stopped": True, "warmup": None, "arms": [], **more}


def contrast(draw):
    def figures():
        a, d, half = (10 ** (4 * draw.random()) for _ in range(3))
        return {"a": a, "b": a + d, "difference": d, "low": d - half, "high": d + half,
                "seen": d > half}
    return {"n_a": 9, "n_b": 9, "paired": True, "mean": figures(), "median": figures()}


def hard_documents():
    draw = random.Random(5)
    yield document(arms=[arm_of(draw, "A", 2500, 1)])
    yield document(arms=[arm_of(draw, "A", 70, 1), arm_of(draw, "B", 40, 9)], contrasts={
        k: contrast(draw) for k in ("ttft_ms", "first_ms", "total_ms", "gap_ms")})
    yield document(steps=[
        {**arm_of(draw, arm, 25, 1), "step": i + 1, "load": {"rate": 0.7 * 2.3 ** i},
         "throughput": {"requests_per_s": 2000 * draw.random(), "output_tokens_per_s": i}}
        for i in range(12) for arm in "AB"])


class PageCase(BenchCase):
    def page(self, *arguments, status=0):
        path = self.path("page.html")
        self.bench(*arguments, "--html", path, status=status)
        with open(path, encoding="utf-8", newline="") as f:
            return f.read()

    def says(self, text, *all_of):
        self.assertEqual([words for words in all_of if words not in text], [])

    def checked(self, text):
        markup = Markup(text)
        self.assertEqual(markup.wrong, [])
        self.assertNotIn("script", markup.count)
        self.assertEqual({v for v in markup.links if not v.startswith("#")}, set())
        self.assertNotRegex(text, r"https?:|//[a-z]|@import|url\(")
        for name in re.findall(r'href="#([^"]+)"', text):
            self.assertIn(f'id="{name}"', text)
        return markup


class Pages(PageCase):
    def test_a_run_as_a_page(self):
        run, again = self.path("run.json"), self.path("again.html")
        text = self.page(self.stub(mixed).url, "--requests", 16, "--json", run)
        markup = self.checked(text)
        self.assertGreater(markup.count["svg"], 10)
        self.says(text, "14 of 16", "429: 1", "10 of 16 requests have both figures",
                  "told of 10 of 16 requests", "16 of 16 requests are shown",
                  "2 of 16 requests were not completed")
        self.bench("report", run, "--html", again)
        with open(again, encoding="utf-8", newline="") as f:
            self.assertEqual(f.read(), text)

    def test_a_stored_run_as_a_table(self):
        run = self.path("run.json")
        first = self.bench(self.stub().url, "--requests", 3, "--json", run).stdout
        self.assertEqual(self.bench("report", run).stdout, first)

    def test_two_services_and_two_runs(self):
        fast, slow = self.stub(timed(0.0, 0.0, 2)), self.stub(timed(0.05, 0.0, 2))
        text = self.page(fast.url, "--ab", slow.url, "--requests", 8)
        self.checked(text)
        self.says(text, "B is slower than A")
        paths = [self.path("a.json"), self.path("b.json")]
        for path, stub in zip(paths, (fast, slow)):
            self.bench(stub.url, "--requests", 8, "--seed", 1, "--json", path)
        text = self.page("compare", *paths)
        self.checked(text)
        self.says(text, "second is slower than first")

    def test_steps_are_a_curve(self):
        text = self.page(self.stub(timed(0.0, 0.0, 2)).url, "--steps", "1,2,4", "--requests",
                         8, "--good", "ttft=10s")
        self.checked(text)
        self.says(text, "Good answers over load", "ttft within 10 s",
                  "These figures are of the step at")

    def test_two_runs_with_steps(self):
        paths = [self.path("a.json"), self.path("b.json")]
        for path, delay, steps in zip(paths, (0.0, 0.05), ("1,2,4", "1,2,8")):
            self.bench(self.stub(timed(delay, 0.0, 2)).url, "--steps", steps, "--requests", 6,
                       "--seed", 1, "--json", path)
        text = self.page("compare", *paths)
        self.checked(text)
        self.says(text, "These figures are of the step at 2 requests under way",
                  "second is slower than first", "no difference seen", "<td>6</td>")

    def test_whether_answers_are_equal(self):
        a = self.stub(saying(lambda n: ["one", "two"]))
        b = self.stub(saying(lambda n: ["one", "two" if n % 2 else "tww"]))
        text = self.page(a.url, "--ab", b.url, "--requests", 4, "--check-output")
        self.checked(text)
        self.says(text, "Are the answers equal?", "0 pairs could not be read")
        rows = re.findall(r"<tr>(?:(?!</tr>).)*tokens cached on both sides.*?</tr>", text, re.S)
        self.assertEqual(len(rows), 1)
        self.assertEqual(re.findall(r"<td[^>]*>([^<]*)", rows[0])[:3], ["4", "2", "50.0"])
        self.assertNotIn("not as many cached", text)
        self.assertNotIn("Are the answers equal?", self.page(a.url, "--requests", 1))

    def test_the_store_of_a_gateway_is_beside_its_memory(self):
        use = {"cpu_s": 1.5, "cores": 0.5, "rss_begin_bytes": 1, "rss_peak_bytes": 2,
               "rss_end_bytes": 3}
        arm = arm_of(random.Random(1), "A", 9, 1)
        arm["resources"] = {**use, "kv": {
            place: {"begin": 0, "peak": peak << 20, "end": 1 << 20}
            for place, peak in (("ram_bytes", 7), ("disk_bytes", 9))},
            "processes": [{**use, "name": f"p{i}", "how": "watched"} for i in range(99)]}
        path = self.path("page.html")
        self.bench("report", self.path("d.json", json.dumps(document(arms=[arm]))), "--html",
                   path)
        with open(path, encoding="utf-8", newline="") as f:
            text = f.read()
        self.checked(text)
        rows = {words: re.findall(r"<td[^>]*>([^<]*)", row) for row, words in re.findall(
            r"<tr>((?:(?!</tr>).)*KV in the store, (\w+).*?)</tr>", text, re.S)}
        self.assertEqual([rows[w][-2] for w in ("memory", "disk")], ["7 MiB", "9 MiB"])
        self.assertEqual(text.count("(watched)"), 20)
        self.says(text, "p0 (watched)")

    def test_what_an_engine_says_of_itself_stays_text(self):
        name = "</title><script>alert('x')</script>\"&<img src=http://x/>\u202e"
        stub = self.stub(model=name)
        text = self.page(stub.url, "--requests", 2)
        markup = Markup(text)
        self.assertEqual(markup.wrong, [])
        self.assertNotIn("script", markup.count)
        self.assertNotIn("img", markup.count)
        self.says(text, "&lt;script&gt;alert(&#39;x&#39;)")

    def test_what_cannot_be_is_said(self):
        run = self.path("run.json")
        self.bench(self.stub().url, "--requests", 2, "--json", run)
        self.assertIn("cannot be written", self.bench(
            "report", run, "--html", self.path("no/x.html"), status=1).stderr)
        self.assertIn("no report of", self.bench(
            "report", self.path("x.json", "{}"), status=1).stderr)
        self.assertIn("x.json:1", self.bench(
            "report", self.path("x.json", "{"), status=1).stderr)
        self.bench("report", run, run, status=2)


class InABrowser(PageCase):
    def setUp(self):
        super().setUp()
        if not browser.program():
            self.skipTest("no Chromium is installed")

    def show(self, chromium, path):
        complaints, asked = chromium.open(path)
        self.assertEqual(complaints, [])
        self.assertEqual(asked, ["file://" + path])
        for width in WIDTHS:
            chromium.look(width)
            with self.subTest(path=os.path.basename(path), width=width):
                self.assertEqual(chromium.evaluate(TOO_WIDE), [])
                self.assertEqual(chromium.evaluate(OVERLAPPING), [])

    def test_nothing_is_asked_for_and_nothing_is_cut(self):
        chromium = browser.Browser()
        self.addCleanup(chromium.close)
        for i, doc in enumerate(hard_documents()):
            page = self.path(f"{i}.html")
            self.bench("report", self.path(f"{i}.json", json.dumps(doc)), "--html", page)
            with open(page, encoding="utf-8", newline="") as f:
                self.checked(f.read())
            self.show(chromium, page)
