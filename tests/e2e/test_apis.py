# SPDX-License-Identifier: MIT
"""Every API that engines have: bodies and answers pass byte for byte, and what an answer
counts is seen, whether its prompt is read or not."""

import json
import os
import re

from harness import Case, ROOT, sha256, wait_until

BODIES = os.path.join(ROOT, "tests", "data", "bodies")
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def body_of(number):
    name = next(x for x in sorted(os.listdir(BODIES)) if x.startswith(number))
    with open(os.path.join(BODIES, name), "rb") as f:
        return f.read()


def document(value):
    body = json.dumps(value).encode()
    return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % len(body) + body], body


def stream(*values, names=False, done=False):
    """A stream in chunks, cut in the middle of events."""
    out = b""
    for value in values:
        if names:
            out += b"event: " + value["type"].encode() + b"\n"
        out += b"data: " + json.dumps(value).encode() + b"\n\n"
    out += b"data: [DONE]\n\n" if done else b""
    cuts = [out[i:i + 50] for i in range(0, len(out), 50)]
    return [EVENTS, *(b"%x\r\n%s\r\n" % (len(x), x) for x in cuts), b"0\r\n\r\n"], out


USAGE = {"input_tokens": 120, "input_tokens_details": {"cached_tokens": 100}, "output_tokens": 2}
META = {"prompt_tokens": 90, "cached_tokens": 64, "completion_tokens": 2}

# path, body, answer, (prompt tokens, cached tokens) as the gateway has to see them
ROWS = {
    "responses": ("/v1/responses", "35", document(
        {"object": "response", "output": [], "usage": USAGE}), (120, 100)),
    "responses_stream": ("/v1/responses", "35", stream(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": "response.completed", "response": {"usage": USAGE}}, names=True), (120, 100)),
    "embeddings": ("/v1/embeddings", "36", document(
        {"data": [{"embedding": [0.25, -1e-3], "index": 0}],
         "usage": {"prompt_tokens": 12, "total_tokens": 12}}), (12, -1)),
    "rerank": ("/v1/rerank", "37", document(
        {"results": [{"index": 0, "relevance_score": 0.5}],
         "usage": {"prompt_tokens": 31, "total_tokens": 31}}), (31, -1)),
    "infill": ("/infill", "22", document(
        {"content": "x", "stop": True, "timings": {"cache_n": 30, "prompt_n": 2,
                                                   "predicted_n": 1}}), (32, 30)),
    "infill_stream": ("/infill", "22", stream(
        {"content": "x", "stop": False},
        {"content": "", "stop": True, "timings": {"cache_n": 30, "prompt_n": 2}}), (32, 30)),
    "generate": ("/generate", "29", document({"text": " a b", "meta_info": {
        **META, "finish_reason": {"type": "length"}}}), (90, 64)),
    "generate_stream": ("/generate", "29", stream(
        {"text": " a", "meta_info": {**META, "finish_reason": None}},
        {"text": " a b", "meta_info": {**META, "finish_reason": {"type": "length"}}},
        done=True), (90, 64)),
    "score": ("/v1/score", "37", document({"data": [{"score": 0.5}], "usage": {}}), (-1, -1)),
    "classify": ("/classify", "36", document({"data": []}), (-1, -1)),
    "count_tokens": ("/v1/messages/count_tokens", "10", document({"input_tokens": 7}), (-1, -1)),
    "pooling": ("/pooling", "36", document({"data": [[0.5]]}), (-1, -1)),
}


class Relayed(Case):
    config = {}

    def setUp(self):
        super().setUp()
        self.e, self.g = self.pair(self.config)

    def last_access(self, path):
        def find():
            return [x for x in self.g.output if f'request="POST {path}"' in x]
        wait_until(find, "a line of the access log")
        line = find()[-1]
        return tuple(int(re.search(rf"{key}_tokens=(-?\d+)", line)[1])
                     for key in ("prompt", "cached"))

    def relay(self, path, number, answer, seen):
        parts, expected = answer
        body = body_of(number)
        self.e.script(path, *parts)
        got = self.g.fetch("POST", path, body, [("Content-Type", "application/json")])
        self.assertEqual((got.status, got.body, got.complete), (200, expected, True))
        self.assertEqual(self.e.requests(path)[-1].sha256, sha256(body))
        self.assertEqual(self.last_access(path), seen)
        wait_until(lambda: self.g.in_flight() == 0, "idle")
        for name in ("unterminated", "implausible"):
            self.assertEqual(self.g.total(name), 0, name)


class Observed(Relayed):
    """The same where the gateway only looks on."""

    config = {"observe": True}


def _add(cls):
    def make(row):
        return lambda self: self.relay(*row)
    for name, row in ROWS.items():
        setattr(cls, "test_" + name, make(row))


_add(Relayed)
