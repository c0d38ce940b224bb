# SPDX-License-Identifier: MIT
"""The page of `incipit bench --html`: markup, what it says, and how a browser shows it."""

import os
import re
from html.parser import HTMLParser

import browser
from stub_service import (DONE, begin_stream, end_stream, event, role, send_chunk, send_json,
                          timed, usage)
from test_bench import BenchCase

VOID = ("meta", "br")
WIDTHS = (360, 800, 1600)

# What stands out to the right of the window, but for tables that can be scrolled.
TOO_WIDE = """[...document.querySelectorAll("body *")].filter(e =>
  !(e.closest(".scroll") && !e.matches(".scroll")) &&
  e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 200))"""

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
        fast, slow = self.stub(mixed), self.stub(timed(0.02, 0.001, 20))
        pages = [self.path(f"{i}.html") for i in range(3)]
        self.bench(fast.url, "--requests", 40, "--concurrency", 3, "--warmup", 2, "--html",
                   pages[0])
        self.bench(fast.url, "--ab", slow.url, "--requests", 12, "--html", pages[1])
        self.bench(slow.url, "--steps", "1,2,4,8", "--requests", 16, "--html", pages[2])
        chromium = browser.Browser()
        self.addCleanup(chromium.close)
        for page in pages:
            self.show(chromium, page)
