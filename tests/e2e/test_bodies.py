# SPDX-License-Identifier: MIT
"""Bodies as clients send them reach the engine byte for byte (K29), answers come back byte
for byte, and no part of the text shows up in any output of the gateway.

The only difference allowed is a field of the gateway's own behind the opening brace.
"""

import glob
import gzip
import hashlib
import json
import os
import re
import zlib

from harness import CHAT, Case, ROOT, chat_body, request_bytes, sha256, words

FOLDER = os.path.join(ROOT, "tests", "data", "bodies")

# Start of the file name: where clients send it. Chat where nothing is said.
ENDPOINTS = {
    "08": "/v1/messages?beta=true", "09": "/v1/messages?beta=true",
    "10": "/v1/messages/count_tokens?beta=true",
    "19": "/completion", "20": "/completion", "21": "/completion",
    "24": "/v1/completions", "25": "/v1/completions",
    "29": "/generate", "35": "/v1/responses", "36": "/v1/embeddings", "37": "/v1/rerank",
}
PINNED = ("19",)              # the client has chosen a slot: nothing is put in
SPLICE = re.compile(rb'(?:\s*"(?:id_slot|cache_prompt)"\s*:\s*(?:-?\d+|true|false)\s*,?)+')
ADDED_HEADERS = {"date", "cache-status", "server-timing", "x-request-id", "connection",
                 "content-length", "transfer-encoding", "keep-alive", "x-accel-buffering"}


def without_splice(received, body):
    """The received body without what was put in; None where more than that differs."""
    extra = len(received) - len(body)
    if extra == 0:
        return received
    at = body.find(b"{") + 1
    inserted = received[at:at + extra]
    if extra < 0 or at == 0 or not SPLICE.fullmatch(inserted):
        return None
    return received[:at] + received[at + extra:]


def texts(value):
    """Pieces of 14 letters of all texts in a JSON value, long keys included."""
    if isinstance(value, str):
        for at in range(0, len(value) - 13, 14):
            yield value[at:at + 14]
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts(key)
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


HEADERS = [("Authorization", "Bearer sk-marker-credential-4711"),
           ("Content-Type", "application/json"), ("X-Api-Key", "sk-marker-other-4712"),
           ("User-Agent", "bodies/1")]


class Bodies(Case):
    """One gateway for all files, logging everything that it ever logs."""

    def files(self):
        found = sorted(glob.glob(os.path.join(FOLDER, "*.json")))
        if not found:
            self.skipTest("no tests/data/bodies")
        return found

    def endpoint(self, path):
        return ENDPOINTS.get(os.path.basename(path)[:2], CHAT)

    def post(self, client, target, body, headers=HEADERS):
        client.send(request_bytes("POST", target, body, headers))
        return client.read_answer()

    def check(self, engine, answer, target, body, spliced=True):
        record = engine.requests(target.split("?")[0])[-1]
        self.assertEqual(record.target, target)
        if spliced:
            self.assertEqual(without_splice(record.body, body), body)
        else:
            self.assertEqual(record.sha256, sha256(body))
        self.assertEqual(answer.status, record.status)
        self.assertEqual(answer.body, bytes(record.sent))
        for name, value in HEADERS:
            self.assertEqual(record.header(name), [value])
        self.assertEqual(answer.get("Server"), engine.own_headers.get("Server"))
        return record

    def test_every_body_arrives_and_nothing_is_logged(self):
        files = self.files()
        engine, gateway = self.pair({"log": {"level": "debug"}}, n_ctx=4096)
        fragments = set()
        for path in files:
            with open(path, "rb") as f:
                body = f.read()
            name, target = os.path.basename(path), self.endpoint(path)
            with self.subTest(name), gateway.client() as client:
                answer = self.post(client, target, body)
                self.check(engine, answer, target, body,
                           spliced=not name.startswith(PINNED))
            try:
                fragments |= {t for t in texts(json.loads(body.decode("utf-8-sig")))}
            except (ValueError, RecursionError):
                pass
        gateway.wait_quiet()
        gateway.stop()
        output = gateway.text()
        leaked = {t for t in fragments if t in output and not harmless(t, output)}
        self.assertEqual(leaked, set())
        self.assertNotIn("sk-marker", output)
        self.assert_clean()

    def test_every_body_arrives_chunked_as_well(self):
        engine, gateway = self.pair(n_ctx=4096)
        for path in self.files():
            with open(path, "rb") as f:
                body = f.read()
            target = self.endpoint(path)
            coded = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 1000]), body[i:i + 1000])
                             for i in range(0, len(body), 1000)) + b"0\r\n\r\n"
            with self.subTest(os.path.basename(path)), gateway.client() as client:
                client.send(request_bytes("POST", target, None, [
                    *HEADERS, ("Transfer-Encoding", "chunked")]) + coded)
                self.check(engine, client.read_answer(), target, body)

    def test_K20_compressed_bodies_pass_untouched(self):
        engine, gateway = self.pair()
        for path in self.files()[:6]:
            with open(path, "rb") as f:
                body = gzip.compress(f.read(), mtime=0)
            with gateway.client() as client:
                answer = self.post(client, CHAT, body, [*HEADERS, ("Content-Encoding", "gzip")])
            record = self.check(engine, answer, CHAT, body, spliced=False)
            self.assertEqual(record.header("Content-Encoding"), ["gzip"])

    def packed(self, gateway, body, coding="gzip", target=CHAT, **more):
        """Sends it packed; the answer and how many bodies were not looked into for it."""
        before = gateway.total("uninspected")
        pack = {"gzip": lambda b: gzip.compress(b, mtime=0), "deflate": zlib.compress,
                "br": lambda b: b"\x0b" + b}[coding]
        body = pack(json.dumps(body).encode() if isinstance(body, dict) else body)
        answer = gateway.fetch("POST", target, body, [
            *more.get("headers", ()), ("Content-Type", "application/json"),
            ("Content-Encoding", coding)])
        record = self.engines[-1].requests(target)[-1]
        self.assertEqual(record.sha256, sha256(body))
        self.assertEqual(record.header("Content-Encoding"), [coding])
        if gateway.mode() == "store":
            gateway.wait_quiet()
        return answer, gateway.total("uninspected") - before

    def test_K20_packed_bodies_are_looked_into(self):
        self.need_standin("packed bodies")
        for observe in ({}, {"observe": True}):
            engine, gateway = self.pair(observe, inflates=True)
            body = chat_body(words(900), stream=True)
            for coding in ("gzip", "deflate"):
                answer, unseen = self.packed(gateway, body, coding)
                self.assertEqual((answer.status, unseen), (200, 0))
            self.assertGreater(gateway.total("available_tokens"), 0)
            gateway.stop()
            engine.stop()

    def test_K20_packed_and_plain_share_a_start(self):
        self.need_standin("packed bodies")
        engine, gateway = self.pair(inflates=True)
        body = chat_body(words(900))
        self.packed(gateway, body)
        engine.forget_slots()
        gateway.fetch("POST", CHAT, body)
        gateway.wait_quiet()
        answer, _ = self.packed(gateway, body)
        usage = answer.json()["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)

    def test_K20_packed_bodies_that_are_not_looked_into(self):
        self.need_standin("packed bodies")
        engine, gateway = self.pair({"limits": {"unpacked_bytes": "100KiB"}}, inflates=True,
                                    n_ctx=4096)
        small = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        edge = json.dumps(small).encode()
        noise = "".join(hashlib.sha256(b"%d" % i).hexdigest() for i in range(1600))
        full = json.dumps({**small, "user": noise}).encode()[:100 << 10]
        full = full[:-2] + b'"}'
        for body, coding, seen in (
                (full, "gzip", True), (full + b" ", "gzip", False),
                (edge.ljust(90 << 10), "gzip", False),
                (edge, "br", False), ({**small, "n": 2}, "gzip", False),
                (b"no JSON", "gzip", False)):
            with self.subTest(coding=coding, size=len(body)):
                _, unseen = self.packed(gateway, body, coding)
                self.assertEqual(unseen, 0 if seen else 1)
        bomb = gzip.compress(b" " * (50 << 20))
        gateway.fetch("POST", CHAT, bomb, [("Content-Encoding", "gzip")])
        self.assertLess(gateway.resident_kib(), 200 << 10)
        self.assertTrue(gateway.alive())

    def test_upload_in_parts_passes_untouched(self):
        engine, gateway = self.pair()
        body = (b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
                + bytes(range(256)) * 40
                + b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nx\r\n--b--\r\n')
        target = "/v1/audio/transcriptions"
        with gateway.client() as client:
            answer = self.post(client, target, body, [
                *HEADERS[:1], ("Content-Type", "multipart/form-data; boundary=b"), *HEADERS[2:]])
        record = engine.requests(target)[-1]
        self.assertEqual(answer.status, record.status)
        self.assertEqual((record.sha256, record.header("Authorization")),
                         (sha256(body), [HEADERS[0][1]]))

    def test_bodies_that_are_no_JSON_pass_untouched(self):
        engine, gateway = self.pair()
        for body in (b"", b"\0", b'{"messages": [{"role": "user", "content": "caf\xe9"}]}',
                     b'{"messages":[' + b"[" * 20000, b"{", b'{"a":1}{"b":2}', b"[]", b"null",
                     b'{"messages":[{"role":"user","content":"\xed\xa0\xbd"}]}',
                     b'{"model":"x","model":"y","messages":[]}', b' {} ', b'{"messages":1e999}'):
            with self.subTest(body[:20]), gateway.client() as client:
                answer = self.post(client, CHAT, body)
                self.check(engine, answer, CHAT, body)
        self.assertTrue(gateway.alive())

    def test_bodies_of_any_size_around_buffer_limits(self):
        engine, gateway = self.pair()
        for power in (12, 14, 16, 18):
            for size in ((1 << power) - 1, 1 << power, (1 << power) + 1):
                body = b'{"content":"' + b"a" * (size - 14) + b'"}'
                with gateway.client() as client:
                    self.assertEqual(self.post(client, "/tokenize", body).status, 200)
                self.assertEqual(engine.requests("/tokenize")[-1].sha256, sha256(body))

    def test_splice_keeps_every_byte_around_it(self):
        engine, gateway = self.pair()
        for body in (b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1}',
                     b'  \n{ \n "messages" : [ {"role":"user","content":"a"} ] ,"max_tokens":1 }\n',
                     b'{"max_tokens":1,"messages":[{"content":"\\u00e9","role":"user"}]}   '):
            with gateway.client() as client:
                answer = self.post(client, CHAT, body)
                record = self.check(engine, answer, CHAT, body)
                self.assertEqual(answer.status, 200)
                self.assertIsInstance(record.json(), dict)

    def test_client_fields_that_steer_the_cache_stay_theirs(self):
        engine, gateway = self.pair()
        for more in (b'"id_slot":1', b'"cache_prompt":false', b'"cache_salt":"s"',
                     b'"id_slot":-1', b'"id_slot":7'):
            body = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,' + more + b"}"
            with self.subTest(more), gateway.client() as client:
                answer = self.post(client, CHAT, body)
                self.assertEqual(answer.status, 200)
                record = self.check(engine, answer, CHAT, body)
                key, value = more.split(b":")
                self.assertEqual(json.dumps(record.json()[json.loads(key)]).encode(), value)


def harmless(fragment, output):
    """Names that the gateway has of its own: routes, its own fields, the model's alias."""
    return fragment.strip().lower() in ("standin-tiny", "application/json", "content_length",
                                        "chat.completion") or not fragment.strip()
