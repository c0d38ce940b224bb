# SPDX-License-Identifier: MIT
"""`incipit observe FILE`: what a store would gain on the prompts of a file."""

import json
import os
import subprocess
import tempfile
import unittest

from harness import binary, words

START = words(400, "start")  # what several prompts share


def chat(user, system=START):
    return {"messages": [{"role": "system", "content": system},
                         {"role": "user", "content": user}]}


def observe(*arguments, lines=(), raw=None):
    text = raw if raw is not None else "".join(json.dumps(x) + "\n" for x in lines)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "prompts.jsonl")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return subprocess.run([binary(), "observe", *arguments, path], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=60)


class Observe(unittest.TestCase):
    def report(self, *arguments, **given):
        done = observe("--json", *arguments, **given)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr

    def test_bodies_that_share_a_start(self):
        report, said = self.report(lines=[chat("a"), chat("b"), chat("c", "another")])
        self.assertEqual((report["requests"], report["counted"], report["timed"], said),
                         (3, 0, 0, ""))
        start = len(START) / 4  # a token for four bytes, as nobody counted them
        self.assertAlmostEqual(report["prompt_tokens"], 2 * start, delta=60)
        self.assertAlmostEqual(report["sizes"][-1]["reused_tokens"], start, delta=70)
        self.assertIsNone(report["engine_reused_share"])
        self.assertIsNone(report["sizes"][0]["bytes"])
        self.assertGreater(report["lost_tokens"]["first-sight"], start)

    def test_counts_of_the_engine_are_believed(self):
        lines = [{"body": chat(str(i)), "path": "/v1/chat/completions", "prompt_tokens": 1000,
                  "cached_tokens": 900 if i % 2 else 0, "ttft_ms": 100} for i in range(8)]
        report, _ = self.report("--token-bytes", "1KiB", lines=lines)
        self.assertEqual((report["counted"], report["timed"], report["prompt_tokens"]),
                         (8, 8, 8000))
        self.assertAlmostEqual(report["engine_reused_share"], 0.45)
        size = report["sizes"][-1]
        self.assertAlmostEqual(size["bytes"], 1024 * size["tokens"], delta=100)
        self.assertGreaterEqual(size["reused_share"], 0.45)

    def test_the_path_says_what_a_body_is(self):
        body = {"system": START, "max_tokens": 1,
                "messages": [{"role": "user", "content": "hi"}]}
        lines = [{"body": body, "path": "/v1/messages"},
                 {"body": {"prompt": START}, "path": "/completion"},
                 {"prompt": START}, {"body": {"input": START}, "path": "/v1/embeddings"}]
        report, said = self.report(lines=lines)
        self.assertEqual(report["requests"], 3)
        self.assertAlmostEqual(report["prompt_tokens"], 3 * len(START) / 4, delta=60)
        self.assertIn("1 lines are no prompts, or barred", said)

    def test_token_ids_are_a_prompt(self):
        ids = list(range(1000))
        report, said = self.report(lines=[{"prompt": ids}, {"prompt": [*ids[:900], 7, 7]}])
        self.assertEqual((report["requests"], report["prompt_tokens"], said), (2, 1902, ""))
        self.assertAlmostEqual(report["sizes"][-1]["reused_tokens"], 900, delta=64)

    def test_as_a_table(self):
        lines = [{"body": chat(str(i)), "prompt_tokens": 500, "cached_tokens": 0,
                  "ttft_ms": 50 + i} for i in range(30)]
        done = observe("--token-bytes", "36864", lines=lines)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("30 requests, 15000 prompt tokens", done.stdout)
        self.assertIn("the engine reused 0.0 % by itself", done.stdout)
        self.assertRegex(done.stdout, r"store of +tokens +reused +TTFT saved")
        self.assertRegex(done.stdout, r"(?m)^ +[\d.]+ (MB|MiB|GiB) +\d+ +\d+\.\d %")
        shares = [float(line.split()[0]) for line in done.stdout.splitlines()
                  if line.startswith("   ") and " %  " in line and "store" not in line
                  and not line.split()[1].startswith(("M", "G"))]
        self.assertEqual(len(shares), 4)
        self.assertAlmostEqual(sum(shares), 100, delta=0.3)

    def test_from_a_pipe(self):
        text = json.dumps(chat("a")) + "\n\n" + json.dumps(chat("b"))
        done = subprocess.run([binary(), "observe", "--json", "-"], input=text,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(json.loads(done.stdout)["requests"], 2, done.stderr)

    def test_an_error_names_file_and_line(self):
        for bad, why in (("{", "end of file"), ("[1]", "no object"),
                         ('{"body": 7}', "no object"), ("nonsense", "expected near")):
            done = observe(raw=json.dumps(chat("a")) + "\n" + bad + "\n")
            self.assertEqual((done.returncode, done.stdout), (1, ""), bad)
            self.assertRegex(done.stderr, r"prompts\.jsonl, line 2: no request body")
            self.assertIn(why, done.stderr)

    def test_what_cannot_be_read_is_said(self):
        done = subprocess.run([binary(), "observe", "/nowhere/at.all"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("opening /nowhere/at.all: No such file", done.stderr)
        for given, why in ((("--token-bytes", "many"), '"many" is no size'), (("x",), "usage")):
            done = observe(*given, lines=[])
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(why, done.stderr)
