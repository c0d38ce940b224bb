# SPDX-License-Identifier: MIT
"""`make demo` with few and short documents: it shows what it says it shows, its status tells
whether it worked, and however it ends it leaves neither processes nor files."""

import glob
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from harness import ROOT, binary, wait_until

DEMO_S = 120


def processes_of(folder):
    """Ids of the processes that were told to put temporary files there: heirs included."""
    mark, found = b"TMPDIR=" + folder.encode(), []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as f:
                if mark in f.read().split(b"\0"):
                    found.append(int(path.split("/")[2]))
        except OSError:
            continue
    return found


class Demo(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="incipit-demo-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.tmp = os.path.join(self.folder, "tmp")
        os.mkdir(self.tmp)
        self.json = os.path.join(self.folder, "figures.json")

    def start(self, *options, program=None, plan="quick", **env):
        output = os.path.join(self.folder, "output")
        command = [sys.executable, os.path.join(ROOT, "tools", "demo.py"), "lab",
                   program or binary(), "--plan", plan, "--json", self.json, *options]
        env = {**os.environ, "TMPDIR": self.tmp, "PYTHONDONTWRITEBYTECODE": "1",
               "KEEP": "0", **env}
        with open(output, "wb") as f:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=f,
                                     env=env)
        self.addCleanup(self.end, child)

        def text():
            with open(output, encoding="utf-8") as f:
                return f.read()
        return child, text

    @staticmethod
    def end(child):
        if child.poll() is None:
            child.terminate()
            child.wait(DEMO_S)

    def check_nothing_left(self):
        self.assertEqual(os.listdir(self.tmp), [])
        self.assertEqual(processes_of(self.tmp), [])

    def test_table_and_figures_say_what_happened(self):
        child, text = self.start()
        self.assertEqual(child.wait(DEMO_S), 0, text())
        out = text()
        self.check_nothing_left()
        self.assertRegex(out, r"(?m)^ +engine alone +with incipit$")
        self.assertRegex(out, r"(?m)^requests +6 +6$")
        self.assertRegex(out, r"(?m)^  of these streamed, so with a TTFT +5 +5$")
        self.assertRegex(out, r"(?m)^answers equal to the last byte +- +6 of 6$")
        self.assertEqual(len(re.findall(r"metrics http://127\.0\.0\.1:\d+/metrics", out)), 2)
        self.assertIn("claims nothing about real engines", " ".join(out.split()))
        with open(self.json, encoding="utf-8") as f:
            figures = json.load(f)
        alone, incipit = figures["stock"], figures["incipit"]
        self.assertEqual(incipit["prompt_tokens"], alone["prompt_tokens"])
        # Alone, each document takes the other's place; behind the gateway the documents
        # come back, and outlive the restart.
        n = incipit["prompt_tokens_after_restart"]
        self.assertLess(alone["reused_tokens_after_restart"], n / 2)
        self.assertGreater(incipit["reused_tokens_after_restart"], 0.9 * n)
        self.assertGreater(incipit["restored_tokens"], n)
        self.assertEqual((incipit["restore_failures"], incipit["save_failures"]), (0, 0))

    def test_what_observing_foretells_is_what_then_is_reused(self):
        child, text = self.start("--observe")
        self.assertEqual(child.wait(DEMO_S), 0, text())
        self.check_nothing_left()
        with open(self.json, encoding="utf-8") as f:
            figures = json.load(f)
        told, alone, incipit = (figures[k] for k in ("told", "stock", "incipit"))
        self.assertEqual(told["requests"], incipit["requests"])
        share = incipit["reused_tokens"] / incipit["prompt_tokens"]
        self.assertAlmostEqual(told["store_share"], share, delta=0.05)
        self.assertGreaterEqual(told["engine_share"],
                                alone["reused_tokens"] / alone["prompt_tokens"])

    def test_kept_running_it_answers_until_it_is_interrupted(self):
        child, text = self.start(KEEP="1")
        found = []

        def offered():
            found[:] = re.findall(r"curl -si http://127\.0\.0\.1:(\d+)(\S+) .* -d @(\S+)", text())
            return found or child.poll() is not None
        wait_until(offered, text, DEMO_S)
        self.assertTrue(found, text())
        port, path, question = found[0]
        with open(question, "rb") as f:
            body = f.read()
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=DEMO_S)
        self.addCleanup(connection.close)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        timings = json.loads(answer.read())["timings"]
        self.assertEqual(answer.status, 200)
        self.assertIn("incipit", answer.getheader("Cache-Status"))
        self.assertGreater(timings["cache_n"], timings["prompt_n"])
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(DEMO_S), 0, text())
        self.check_nothing_left()

    def test_interrupted_in_the_middle_it_takes_all_with_it(self):
        child, text = self.start(plan="lab")  # long enough to be in the middle of it
        wait_until(lambda: " alone     1 " in text() or child.poll() is not None, text, DEMO_S)
        self.assertGreater(len(processes_of(self.tmp)), 1, text())  # demo and engine
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(DEMO_S), 130, text())
        self.check_nothing_left()

    def test_what_goes_wrong_is_told_and_is_the_status(self):
        broken = os.path.join(self.folder, "broken")
        with open(broken, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\necho no such luck >&2\nexit 3\n")
        os.chmod(broken, 0o755)
        child, text = self.start(program=broken)
        self.assertEqual(child.wait(DEMO_S), 1, text())
        self.assertIn("the built-in engine ended with 3", text())
        self.assertIn("no such luck", text())
        self.check_nothing_left()


if __name__ == "__main__":
    unittest.main()
