# SPDX-License-Identifier: MIT
"""Bytes in, bytes out: the gateway as a plain HTTP/1 proxy, in good times and bad ones."""

import json
import signal
import socket
import threading
import time

from harness import (CHAT, Case, chat_body, fetch, request_bytes, sha256,
                     step_by_step, stream_events, wait_until)

JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def chat_bytes(text, headers=(), **more):
    return request_bytes("POST", CHAT, json.dumps(chat_body(text, **more)).encode(), headers)


class Requests(Case):
    def setUp(self):
        super().setUp()
        self.e, self.g = self.pair()

    def test_connection_is_kept_alive(self):
        with self.g.client() as client:
            for i in range(5):
                client.send(chat_bytes(f"number {i}"))
                answer = client.read_answer()
                self.assertEqual((answer.status, answer.complete), (200, True))
                self.assertNotEqual(answer.get("Connection"), "close")

    def test_pipelined_requests_are_answered_in_order(self):
        paths = ["/health", "/v1/models", "/nothing", "/health"]
        with self.g.client() as client:
            client.send(b"".join(request_bytes("GET", p) for p in paths))
            answers = [client.read_answer() for _ in paths]
        self.assertEqual([a.status for a in answers], [200, 200, 404, 200])
        self.assertIn(b"standin-tiny", answers[1].body)

    def test_pipelined_generations_are_answered_in_order(self):
        with self.g.client() as client:
            client.send(chat_bytes("first", max_tokens=1) + chat_bytes("second", max_tokens=3))
            used = [client.read_answer().json()["usage"]["completion_tokens"] for _ in "12"]
        self.assertEqual(used, [1, 3])

    def test_request_in_single_bytes_arrives_whole(self):
        body = json.dumps(chat_body("byte by byte")).encode()
        with self.g.client() as client:
            client.send(request_bytes("POST", "/tokenize", body), cut=1)
            self.assertEqual(client.read_answer().status, 200)
        self.assertEqual(self.e.requests("/tokenize")[-1].sha256, sha256(body))

    def test_K17_chunked_request_leaves_with_one_exact_length(self):
        body = json.dumps({"content": "chunked " * 50}).encode()
        pieces = [body[i:i + 7] for i in range(0, len(body), 7)]
        coded = b"".join(b"%X;ext=1\r\n%s\r\n" % (len(p), p) for p in pieces)
        head = request_bytes("POST", "/tokenize", None, [("Transfer-Encoding", "chunked")])
        for cut in (None, 1, 5):
            with self.g.client() as client:
                client.send(head + coded + b"0\r\nX-Trailer: 1\r\n\r\n", cut=cut)
                self.assertEqual(client.read_answer().status, 200)
            record = self.e.requests("/tokenize")[-1]
            self.assertEqual(record.sha256, sha256(body))
            self.assertEqual(record.header("Content-Length"), [str(len(body))])
            self.assertEqual(record.header("Transfer-Encoding"), [])
            self.assertEqual(record.header("X-Trailer"), [])

    def test_HEAD_gets_headers_only_and_the_connection_goes_on(self):
        with self.g.client() as client:
            client.send(request_bytes("HEAD", "/health") + request_bytes("GET", "/health"))
            head = client.read_answer("HEAD")
            body = client.read_answer()
        self.assertEqual((head.status, head.get("Content-Length")), (200, "15"))
        self.assertEqual(body.body, b'{"status":"ok"}')

    def test_expect_continue(self):
        body = json.dumps({"content": "later"}).encode()
        with self.g.client() as client:
            client.send(request_bytes("POST", "/tokenize", None, [
                ("Expect", "100-continue"), ("Content-Length", str(len(body)))]))
            self.assertEqual(client.read_head().status, 100)
            client.send(body)
            self.assertEqual(client.read_answer().status, 200)
        self.assertEqual(self.e.requests("/tokenize")[-1].sha256, sha256(body))

    def test_K18_refusal_before_the_body_is_relayed(self):
        self.e.set(max_body=1000)
        body = b"x" * (8 << 20)
        with self.g.client() as client:
            client.send(request_bytes("POST", "/v1/audio/transcriptions", None, [
                ("Expect", "100-continue"), ("Content-Length", str(len(body)))]))
            answer = client.read_head()
            if answer.status == 100:
                client.send(body)
                answer = client.read_answer()
            self.assertEqual(answer.status, 413)
            self.assertIn(b"Payload Too Large", answer.body)

    def test_expect_is_answered_once_and_stays_here(self):
        body = json.dumps({"content": "later"}).encode()
        coded = b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (body[:5], len(body) - 5, body[5:])
        for framing, sent in ((("Content-Length", str(len(body))), body),
                              (("Transfer-Encoding", "chunked"), coded)):
            with self.g.client() as client:
                client.send(request_bytes("POST", "/tokenize", None, [
                    ("Expect", "100-Continue"), framing]) + sent)
                statuses = [client.read_head().status]
                self.assertEqual(client.read_answer().status, 200)
            self.assertEqual(statuses, [100])
            record = self.e.requests("/tokenize")[-1]
            self.assertEqual((record.sha256, record.header("Expect")), (sha256(body), []))

    def test_expect_without_a_body_or_in_1_0_gets_no_100(self):
        for raw in (request_bytes("GET", "/health", None, [("Expect", "100-continue")]),
                    b"POST /tokenize HTTP/1.0\r\nExpect: 100-continue\r\n"
                    b"Content-Length: 15\r\n\r\n" + b'{"content":"x"}'):
            with self.g.client() as client:
                client.send(raw)
                self.assertEqual(client.read_answer().status, 200)

    def test_expect_of_what_will_be_refused_is_refused_before_the_body(self):
        gateway = self.gateway(self.e, {"limits": {"body_bytes": "1KiB"}}, store=False,
                               wait="listening")
        with gateway.client() as client:
            client.send(request_bytes("POST", CHAT, None, [
                ("Expect", "100-continue"), ("Content-Length", "1025")]))
            self.assertEqual(client.read_answer().status, 413)

    def test_expect_of_something_else_does_no_harm(self):
        with self.g.client() as client:
            client.send(request_bytes("POST", "/tokenize", b'{"content":"x"}',
                                      [("Expect", "wonders")]))
            self.assertIn(client.read_answer().status, (200, 417))

    def test_HTTP_1_0_without_a_length_has_no_body(self):
        with self.g.client() as client:
            client.send(b"POST /scripted HTTP/1.0\r\n\r\nGET /smuggled HTTP/1.0\r\n\r\n")
            client.read_answer()
            self.assertTrue(client.wait_closed())
        self.assertEqual(self.e.requests("/smuggled"), [])

    def test_HTTP_1_0_HEAD_and_errors(self):
        with self.g.client() as client:
            client.send(b"HEAD /health HTTP/1.0\r\n\r\n")
            answer = client.read_answer("HEAD")
            self.assertEqual((answer.status, answer.get("Transfer-Encoding")), (200, None))
            self.assertTrue(client.wait_closed())
        with self.g.client() as client:
            client.send(b"GET /slots HTTP/1.0\r\n\r\n")
            answer = client.read_answer()
            self.assertEqual((answer.status, answer.complete), (403, True))

    def test_absolute_target_is_the_same_request(self):
        body = json.dumps(chat_body("absolute")).encode()
        for target in ("http://other.example" + CHAT, "https://u.example:99" + CHAT + "?a=b"):
            with self.g.client() as client:
                client.send(request_bytes("POST", target, body))
                answer = client.read_answer()
            record = self.e.generations()[-1]
            self.assertEqual(answer.status, 200)
            self.assertEqual(record.target, target[target.index(CHAT):])
            self.assertEqual(record.header("Host"), [f"127.0.0.1:{self.e.port}"])
        self.assertEqual(self.g.total("uninspected"), 0)

    def test_absolute_target_does_not_get_around_what_is_refused(self):
        for target in ("http://x/slots", "http://x/%73lots", "http://x/a/../slots", "http://x/slots?"):
            self.assertIn(self.g.fetch("GET", target).status, (400, 403))
        self.assertEqual(self.e.requests("/slots"), [])

    def test_HTTP_1_0_gets_no_chunks_and_is_closed(self):
        body = json.dumps(chat_body("old", stream=True)).encode()
        with self.g.client() as client:
            client.send(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s"
                        % (CHAT.encode(), len(body), body))
            answer = client.read_answer()
            self.assertIsNone(answer.get("Transfer-Encoding"))
            self.assertTrue(client.closed)
        self.assertEqual(answer.body, bytes(self.e.generations()[-1].sent))

    def test_HTTP_1_0_with_a_length_may_keep_alive(self):
        with self.g.client() as client:
            client.send(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            answer = client.read_answer()
            self.assertTrue(answer.complete)
            self.assertEqual(answer.get("Transfer-Encoding"), None)
            self.assertEqual(answer.get("Connection"), "keep-alive")
            client.send(b"GET /health HTTP/1.0\r\n\r\n")
            self.assertEqual(client.read_answer().status, 200)
            self.assertTrue(client.wait_closed())

    def test_K19_big_bodies_arrive(self):
        for size in (2 << 20, 20 << 20):
            picture = "data:image/png;base64," + "iVBORw0K" * (size // 8)
            body = json.dumps({"model": "x", "input": picture}).encode()
            answer = self.g.fetch("POST", "/v1/embeddings", body)
            record = self.e.requests("/v1/embeddings")[-1]
            self.assertEqual((answer.status, record.sha256), (record.status, sha256(body)))

    def test_big_generation_arrives(self):
        self.need_standin("pictures")
        picture = {"type": "image_url",
                   "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * (3 << 16)}}
        body = chat_body([{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}])
        self.assertEqual(self.g.fetch("POST", CHAT, body).status, 200)

    def test_K25_unknown_paths_and_methods_are_relayed_untouched(self):
        target = "/v1/audio//transcriptions/%2Fx;y=1?a=%20b&c=%2F"
        self.e.script(target.split("?")[0], JSON_HEAD + b"Content-Length: 2\r\n\r\n{}")
        for method in ("POST", "PUT", "DELETE", "PATCH", "PURGE"):
            answer = self.g.fetch(method, target, b"\0\xffbinary")
            self.assertEqual((answer.status, answer.body), (200, b"{}"), method)
            record = self.e.requests()[-1]
            self.assertEqual((record.method, record.target), (method, target))
            self.assertEqual(record.sha256, sha256(b"\0\xffbinary"))

    def test_K22_headers_arrive_unchanged_in_order(self):
        sent = [("authorization", "Bearer secret"), ("X-Odd", "a"), ("x-odd", " b "),
                ("User-Agent", "t/1"), ("X-STAINLESS-lang", "c"), ("Accept", "*/*"),
                ("Cookie", "a=1; b=2"), ("X-Empty", "")]
        self.g.fetch("POST", "/tokenize", {"content": "x"}, headers=sent)
        names = {k.lower() for k, _ in sent}
        got = [(k, v) for k, v in self.e.requests("/tokenize")[-1].headers if k.lower() in names]
        self.assertEqual(got, [(k, v.strip()) for k, v in sent])

    def test_K16_hop_by_hop_headers_stop_here(self):
        sent = [("Connection", "keep-alive, X-Secret"), ("X-Secret", "1"),
                ("Keep-Alive", "timeout=9"), ("TE", "trailers"), ("Upgrade", "h2c"),
                ("Proxy-Connection", "keep-alive"), ("Proxy-Authorization", "Basic eA=="),
                ("X-Stays", "1")]
        self.g.fetch("POST", "/tokenize", {"content": "x"}, headers=sent)
        got = {k.lower() for k, _ in self.e.requests("/tokenize")[-1].headers}
        self.assertIn("x-stays", got)
        self.assertEqual(got & {"x-secret", "keep-alive", "te", "upgrade", "proxy-connection",
                                "proxy-authorization"}, set())

    def test_client_that_says_close_is_closed(self):
        with self.g.client() as client:
            client.send(request_bytes("GET", "/health", None, [("Connection", "close")]))
            self.assertEqual(client.read_answer().get("Connection"), "close")
            self.assertTrue(client.wait_closed())


class Answers(Case):
    def setUp(self):
        super().setUp()
        self.e, self.g = self.pair()

    def scripted(self, *parts, method="GET"):
        self.e.script("/scripted", *parts)
        with self.g.client() as client:
            client.send(request_bytes(method, "/scripted"))
            return client.read_answer(method)

    def test_status_reason_headers_and_body_are_the_engines(self):
        answer = self.scripted(b"HTTP/1.1 418 Short And Stout\r\nSet-Cookie: a=1\r\n"
                               b"sEt-cOOkie: b=2\r\nX-One: 1\r\nContent-Length: 3\r\n\r\nabc")
        self.assertEqual((answer.status, answer.body), (418, b"abc"))
        self.assertIn(b"418 Short And Stout\r\n", answer.raw_head)
        self.assertEqual([k for k, _ in answer.headers[:3]], ["Set-Cookie", "sEt-cOOkie", "X-One"])
        self.assertEqual(answer.all("Set-Cookie"), ["a=1", "b=2"])

    def test_K16_hop_by_hop_headers_of_answers_stop_here(self):
        answer = self.scripted(JSON_HEAD + b"Connection: X-Inner\r\nX-Inner: 1\r\n"
                               b"Keep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n"
                               b"Trailer: X-T\r\n\r\n2\r\n{}\r\n0\r\nX-T: 1\r\n\r\n")
        self.assertEqual((answer.body, answer.complete), (b"{}", True))
        got = {k.lower() for k, _ in answer.headers}
        self.assertEqual(got & {"x-inner", "trailer", "x-t"}, set())
        self.assertEqual(len(answer.all("Transfer-Encoding")) + len(answer.all("Content-Length")), 1)

    def test_K21_one_access_control_header(self):
        for headers in ([], [("Origin", "http://a.example")]):
            answer = self.g.fetch("GET", "/health", headers=headers)
            self.assertEqual(len(answer.all("Access-Control-Allow-Origin")),
                             int("Access-Control-Allow-Origin" in self.e.own_headers))

    def test_K21_engines_answer_browsers_themselves(self):
        asks = [("Origin", "http://a.example"), ("Access-Control-Request-Method", "POST")]
        self.e.script("/v1/models", b"HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: "
                      b"http://a.example\r\nVary: Origin\r\nAccess-Control-Allow-Methods: POST"
                      b"\r\n\r\n")
        answer = self.g.fetch("OPTIONS", "/v1/models", headers=asks)
        self.assertEqual(answer.status, 204)
        self.assertEqual(answer.all("Access-Control-Allow-Origin"), ["http://a.example"])
        self.assertEqual(answer.all("Vary"), ["Origin"])
        refused = self.g.fetch("GET", "/slots", headers=asks)
        self.assertEqual(refused.all("Access-Control-Allow-Origin"), [])

    def test_H41_length_and_chunked_together_are_chunked(self):
        answer = self.scripted(JSON_HEAD + b"Content-Length: 999\r\nTransfer-Encoding: chunked"
                               b"\r\n\r\n4\r\nabcd\r\n0\r\n\r\n", "close")
        self.assertIn(answer.status, (200, 502))
        if answer.status == 200:
            self.assertEqual((answer.body, answer.complete), (b"abcd", True))

    def test_answer_that_ends_with_the_connection(self):
        answer = self.scripted(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n",
                               b"until ", b"the end", "close")
        self.assertEqual((answer.body, answer.complete), (b"until the end", True))

    def test_answers_without_body(self):
        for status in (b"204 No Content", b"304 Not Modified"):
            self.e.script("/scripted", b"HTTP/1.1 " + status + b"\r\nX-A: 1\r\n\r\n")
            with self.g.client() as client:
                client.send(request_bytes("GET", "/scripted") + request_bytes("GET", "/health"))
                self.assertEqual(client.read_answer().status, int(status[:3]))
                self.assertEqual(client.read_answer().status, 200)

    def test_HEAD_with_a_length_has_no_body(self):
        answer = self.scripted(JSON_HEAD + b"Content-Length: 1234\r\n\r\n", method="HEAD")
        self.assertEqual((answer.status, answer.get("Content-Length")), (200, "1234"))

    def test_interim_answers_do_not_end_the_answer(self):
        answer = self.scripted(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
                               + JSON_HEAD + b"Content-Length: 2\r\n\r\n{}")
        self.assertEqual((answer.status, answer.body), (200, b"{}"))

    def test_answer_that_is_not_HTTP_is_502(self):
        for junk in (b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"
                     b"Content-Length: 4\r\n\r\nabcd", b"HTTP/1.1 2 OK\r\n\r\n"):
            answer = self.scripted(junk, "close")
            self.assertEqual(answer.status, 502, junk)
            self.assertIn("error", answer.json())

    def test_K15_refusal_of_a_stream_arrives_unchanged(self):
        body = b'{"error":{"code":400,"message":"no such parameter","type":"x"}}'
        self.e.fault("error", status=400, body=body)
        answer = self.g.fetch("POST", CHAT, chat_body("x", stream=True))
        self.assertEqual((answer.status, answer.body), (400, body))
        self.assertEqual(answer.get("Content-Length"), str(len(body)))
        self.assertIn("application/json", answer.get("Content-Type"))

    def test_K04_streams_say_once_that_nothing_may_buffer_them(self):
        answer = self.g.fetch("POST", CHAT, chat_body("x", stream=True))
        self.assertEqual(answer.all("X-Accel-Buffering"), ["no"])
        answer = self.scripted(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                               b"Content-Length: 9\r\n\r\ndata: 1\n\n")
        self.assertEqual(answer.all("X-Accel-Buffering"), ["no"])

    def test_K28_base_address_with_a_path(self):
        self.e.script("/base/health", JSON_HEAD + b"Content-Length: 2\r\n\r\n{}")
        for base in ("/base", "/base/"):
            gateway = self.gateway(self.e.url + base, wait="listening", store=False)
            self.assertEqual(gateway.fetch("GET", "/health").body, b"{}")
            gateway.stop()


class Browsers(Case):
    """headers.allow_origin: the gateway says it where the engine does not."""

    PAGE = "https://app.example"

    def setUp(self):
        super().setUp()
        self.e, self.g = self.pair({"headers": {"allow_origin": self.PAGE + " http://b.example"},
                                    "limits": {"body_bytes": "1KiB"}})

    def allowed(self, answer):
        found = answer.all("Access-Control-Allow-Origin")
        self.assertLessEqual(len(found), 1)
        return found[0] if found else None

    def test_K21_answer_without_it_gets_one(self):
        for origin, allowed in ((self.PAGE, self.PAGE), ("http://evil.example", None)):
            self.e.script("/scripted", JSON_HEAD + b"Content-Length: 2\r\n\r\n{}")
            answer = self.g.fetch("GET", "/scripted", headers=[("Origin", origin)])
            self.assertEqual(self.allowed(answer), allowed)
            self.assertIn("Origin", answer.all("Vary"))

    def test_K21_answer_that_has_one_keeps_it(self):
        self.e.script("/scripted", JSON_HEAD + b"access-control-allow-origin: *\r\n"
                      b"Content-Length: 2\r\n\r\n{}")
        answer = self.g.fetch("GET", "/scripted", headers=[("Origin", self.PAGE)])
        self.assertEqual(self.allowed(answer), "*")

    def test_K21_refusals_can_be_read(self):
        page = [("Origin", self.PAGE)]
        for answer, status in ((self.g.fetch("GET", "/slots", headers=page), 403),
                               (self.g.fetch("GET", "/../x", headers=page), 400),
                               (self.g.fetch("POST", CHAT, b"x" * 2000, page), 413)):
            self.assertEqual((answer.status, self.allowed(answer)), (status, self.PAGE))
        self.e.kill()
        answer = self.g.fetch("POST", CHAT, chat_body("x"), page)
        self.assertGreaterEqual(answer.status, 500)
        self.assertEqual(self.allowed(answer), self.PAGE)

    def test_K21_refusal_of_a_head_that_cannot_be_read(self):
        with self.g.client() as client:
            client.send(b"GET /health HTTP/1.1\r\nHost: x\r\nOrigin: " + self.PAGE.encode()
                        + b"\r\n\r\nbad\r\n\r\n")
            self.assertEqual(client.read_answer().status, 200)
            answer = client.read_answer()
            self.assertEqual((answer.status, self.allowed(answer)), (400, None))

    def test_K21_browsers_that_ask_beforehand_are_answered_here(self):
        for origin, allowed in ((self.PAGE, self.PAGE), ("http://evil.example", None)):
            answer = self.g.fetch("OPTIONS", CHAT, headers=[
                ("Origin", origin), ("Access-Control-Request-Method", "POST"),
                ("Access-Control-Request-Headers", "authorization,content-type")])
            self.assertEqual((answer.status, self.allowed(answer)), (204, allowed))
            if allowed:
                self.assertEqual(answer.get("Access-Control-Allow-Headers"),
                                 "authorization,content-type")
        self.assertEqual(self.e.requests(CHAT), [])
        self.g.fetch("OPTIONS", CHAT)            # of no browser: the engine's business
        self.assertEqual(len(self.e.requests(CHAT)), 1)


class Streams(Case):
    def setUp(self):
        super().setUp()
        self.e, self.g = self.pair()

    def test_each_event_leaves_before_the_next_one_exists(self):
        self.e.hold("event")
        with self.g.client() as client:
            client.send(chat_bytes("slowly", stream=True, ignore_eos=True))
            self.e.wait_held("event")
            self.e.release("event", 1)
            client.read_head()
            seen = step_by_step(client, self.e, 7)
            self.assertEqual(len(seen), 7)   # and no more
        self.assertEqual(b"".join(seen), bytes(self.e.generations()[-1].sent))
        self.assertEqual(seen[-1], b"data: [DONE]\n\n")

    def test_K01_K02_K03_any_cut_and_line_end_passes_byte_for_byte(self):
        for change in self.engines_of({"chunk_cut": 1}, {"chunk_cut": 7}, {"crlf": True},
                                      {"comments": True}, {"usage_twice": True}):
            self.e.set(chunk_cut=0, crlf=False, comments=False, usage_twice=False)
            self.e.set(**change)
            answer = self.g.fetch("POST", CHAT, chat_body(
                "漢字", stream=True, stream_options={"include_usage": True}))
            self.assertEqual(answer.body, bytes(self.e.generations()[-1].sent), change)

    def test_K02_letters_that_are_cut_arrive(self):
        text = ('data: {"choices":[{"delta":{"content":"é漢😀"}}]}\n\n'.encode()
                + b"data: \xff\xe6\xbc\n\ndata: [DONE]\n\n")
        for size in (1, 2, 3):
            pieces = [text[at:at + size] for at in range(0, len(text), size)]
            self.e.script(CHAT, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                          b"Transfer-Encoding: chunked\r\n\r\n",
                          *[b"%x\r\n%s\r\n" % (len(p), p) for p in pieces], b"0\r\n\r\n")
            answer = self.g.fetch("POST", CHAT, chat_body("letters", stream=True))
            self.assertEqual((answer.complete, answer.body), (True, text), size)

    def test_K05_no_usage_that_was_not_asked_for(self):
        for more in ({}, {"stream_options": {"include_usage": False}}):
            answer = self.g.fetch("POST", CHAT, chat_body("x", stream=True, **more))
            self.assertTrue(all(e["choices"] for e in stream_events(answer.body)))
            self.assertNotIn(b'"usage"', answer.body)

    def test_K11_reset_in_mid_stream_is_no_end(self):
        for kind in ("rst", "cut"):
            self.e.fault(kind, after=3)
            with self.g.client() as client:
                client.send(chat_bytes("torn", stream=True))
                answer = client.read_answer()
                self.assertEqual((answer.status, answer.complete), (200, False), kind)
                self.assertTrue(client.closed or client.reset)
            record = self.e.generations()[-1]
            self.assertEqual(answer.body[:len(record.sent)], bytes(record.sent)[:len(answer.body)])
            self.assertNotIn(b"[DONE]", answer.body)
            self.assertNotIn(b'finish_reason":"', answer.body)
        self.assertEqual(self.g.fetch("POST", CHAT, chat_body("next")).status, 200)

    def test_K12_end_without_terminal_event_is_relayed_as_is(self):
        before = self.g.total("unterminated")
        self.e.fault("no-terminal")
        answer = self.g.fetch("POST", CHAT, chat_body("x", stream=True))
        self.assertTrue(answer.complete)
        self.assertEqual(answer.body, bytes(self.e.generations()[-1].sent))
        self.assertNotIn(b"[DONE]", answer.body)
        wait_until(lambda: self.g.total("unterminated") == before + 1, "it is counted")

    def test_sized_answer_cut_short_is_no_whole_answer(self):
        for kind in ("cut", "rst"):
            self.e.fault(kind)
            with self.g.client() as client:
                client.send(chat_bytes("torn"))
                try:
                    self.assertFalse(client.read_answer().complete, kind)
                except EOFError:
                    pass  # nothing at all is no whole answer either

    def test_slow_reader_holds_the_engine_back_and_memory_stays_bounded(self):
        size = 96 << 20
        part = bytes(range(256)) * 4096
        self.e.script("/big", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size,
                      *[part] * (size // len(part)), "@sent")
        self.e.hold("sent")
        before = self.g.resident_kib()
        with self.g.client(receive_buffer=8192) as client:
            client.send(request_bytes("GET", "/big"))
            self.assertEqual(client.read_head().status, 200)
            with self.assertRaises(TimeoutError):
                self.e.wait_held("sent", timeout=0.7)
            self.assertLess(self.g.resident_kib() - before, 24 << 10)
            got = 0
            while got < size:
                piece = client.take(min(len(part), size - got))
                self.assertEqual(piece, part[:len(piece)])
                got += len(piece)
            self.e.release("sent")


class Trouble(Case):
    def test_engine_that_closes_before_the_head_is_502(self):
        engine, gateway = self.pair()
        for kind in ("rst-before-head", "close-before-head"):
            engine.fault(kind, match="doomed", times=5)
            answer = gateway.fetch("POST", CHAT, chat_body("doomed " + kind))
            self.assertEqual(answer.status, 502)
            self.assertIn("message", answer.json()["error"])
            self.assertNotIn(str(engine.port).encode(), answer.body)
            self.assertNotIn(b"127.0.0.1", answer.body)
            self.assertLessEqual(len(engine.bodies("doomed " + kind)), 2)
            engine.faults.clear()
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("fine")).status, 200)

    def test_engine_gone_is_502_or_503_and_back_again(self):
        engine, gateway = self.pair()
        engine.kill()
        answer = gateway.fetch("POST", CHAT, chat_body("anybody?"))
        self.assertIn(answer.status, (502, 503))
        self.assertIn("error", answer.json())
        engine.restart()
        wait_until(lambda: gateway.fetch("POST", CHAT, chat_body("hello")).status == 200,
                   "answers again")

    def test_engine_down_at_the_start(self):
        self.need_gateway()
        engine = self.engine()
        engine.kill()
        gateway = self.gateway(engine, wait="listening")
        self.assertEqual(gateway.admin("/healthz")[0], 200)
        self.assertEqual(gateway.admin("/readyz")[0], 503)
        self.assertIn(gateway.fetch("GET", "/v1/models").status, (502, 503))
        engine.restart()
        gateway.wait_ready()
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("hello")).status, 200)

    def test_K13_pooled_connection_closed_by_the_engine_is_no_error(self):
        engine, gateway = self.pair()
        for i in range(5):
            self.assertEqual(gateway.fetch("POST", "/tokenize", {"content": str(i)}).status, 200)
            engine.close_idle()

    def test_K13_connection_that_dies_on_reuse_is_tried_once_more(self):
        engine, gateway = self.pair()
        self.assertEqual(gateway.fetch("POST", "/tokenize", {"content": "warm"}).status, 200)
        engine.set(drop_reused=True)
        for i in range(3):
            body = chat_body(f"unlucky {i}")
            answer = gateway.fetch("POST", CHAT, body)
            self.assertEqual(answer.status, 200)
            self.assertEqual(len(engine.bodies(f"unlucky {i}")), 1)

    def test_K14_nothing_is_tried_again_once_the_answer_has_begun(self):
        engine, gateway = self.pair()
        engine.fault("rst", after=3, match="once", times=5)
        with gateway.client() as client:
            client.send(chat_bytes("only once", stream=True))
            self.assertFalse(client.read_answer().complete)
        engine.wait_idle()
        self.assertEqual(len(engine.bodies("only once")), 1)

    def test_late_first_byte_is_504_and_the_engine_is_left_alone(self):
        engine, gateway = self.pair({"timeouts": {"first_byte": "500ms"}})
        engine.hold("head", "late")
        answer = gateway.fetch("POST", CHAT, chat_body("too late", stream=True))
        self.assertEqual(answer.status, 504)
        self.assertIn("error", answer.json())
        engine.wait_for(lambda: engine.bodies("too late")[0].gone_t, what="connection closed")
        engine.release("head", match="late")
        engine.wait_idle()
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("fine")).status, 200)

    def test_stalled_stream_is_ended_and_not_completed(self):
        engine, gateway = self.pair({"timeouts": {"stall": "150ms"}})
        engine.hold("stream", "stall")
        with gateway.client() as client:
            client.send(chat_bytes("stall", stream=True))
            answer = client.read_answer()
        self.assertFalse(answer.complete)
        self.assertNotIn(b"[DONE]", answer.body)


class Limits(Case):
    def test_K24_413_is_readable_though_the_client_writes_all_first(self):
        engine, gateway = self.pair({"limits": {"body_bytes": "1MiB"}})
        body = b"x" * (2 << 20)
        coded = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        for raw in (request_bytes("POST", CHAT, body),
                    request_bytes("POST", CHAT, None,
                                  [("Transfer-Encoding", "chunked")]) + coded):
            with gateway.client() as client:
                client.send(raw)     # a reset would fail here, or at the end
                answer = client.read_answer()
                self.assertEqual(answer.status, 413)
                self.assertIn("error", answer.json())
                self.assertTrue(client.wait_closed())
                self.assertFalse(client.reset)
        self.assertEqual(engine.generations(), [])

    def test_431_for_long_and_for_many_headers(self):
        engine, gateway = self.pair()
        seen = len(engine.log)
        for headers in ([("X-Long", "y" * 40000)], [(f"X-{i}", "1") for i in range(200)]):
            with gateway.client() as client:
                client.send(request_bytes("GET", "/v1/models", None, headers))
                answer = client.read_answer()
                self.assertEqual(answer.status, 431)
                self.assertTrue(client.wait_closed())
        self.assertEqual([r.path for r in engine.log[seen:] if r.path == "/v1/models"], [])

    def test_408_for_a_head_or_body_that_does_not_come(self):
        engine, gateway = self.pair({"timeouts": {"head": "150ms", "body": "150ms"}})
        for raw in (b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n",
                    b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"):
            with gateway.client() as client:
                client.send(raw)
                self.assertEqual(client.read_answer().status, 408)
                self.assertTrue(client.wait_closed())

    def test_idle_client_connection_is_closed_silently(self):
        _, gateway = self.pair({"timeouts": {"idle": "150ms"}})
        with gateway.client() as client:
            client.send(request_bytes("GET", "/health"))
            self.assertEqual(client.read_answer().status, 200)
            self.assertTrue(client.wait_closed())
            self.assertEqual(client.buffer, b"")

    def test_K52_full_queue_is_503_with_retry_after(self):
        engine, gateway = self.pair({"limits": {"queue": 1}}, slots=1)
        engine.hold("head")
        with gateway.client() as first, gateway.client() as second:
            first.send(chat_bytes("first"))
            engine.wait_held("head")
            second.send(chat_bytes("second"))
            wait_until(lambda: gateway.in_flight() == 2, "second is queued")
            answer = gateway.fetch("POST", CHAT, chat_body("third"))
            self.assertIn(answer.status, (429, 503))
            self.assertRegex(answer.get("Retry-After") or "", r"^\d+$")
            self.assertIn("error", answer.json())
            engine.release("head")
            self.assertEqual([c.read_answer().status for c in (first, second)], [200, 200])
        self.assertEqual(engine.bodies("third"), [])

    def test_K52_waiting_too_long_is_503_or_504(self):
        engine, gateway = self.pair({"timeouts": {"queue": "150ms"}}, slots=1)
        engine.hold("head", "first")
        with gateway.client() as first:
            first.send(chat_bytes("first"))
            engine.wait_held("head")
            answer = gateway.fetch("POST", CHAT, chat_body("second"))
            self.assertIn(answer.status, (503, 504))
            self.assertRegex(answer.get("Retry-After") or "", r"^\d+$")
            engine.release("head", match="first")
            self.assertEqual(first.read_answer().status, 200)
        self.assertEqual(engine.bodies("second"), [])

    def test_too_many_connections_is_503(self):
        _, gateway = self.pair({"limits": {"connections": 4}})
        clients = [gateway.client() for _ in range(4)]
        for client in clients:
            client.send(request_bytes("GET", "/health"))
            self.assertEqual(client.read_answer().status, 200)
        with gateway.client() as client:
            client.send(request_bytes("GET", "/health"))
            self.assertEqual(client.read_answer().status, 503)
        for client in clients:
            client.close()
        wait_until(lambda: gateway.fetch("GET", "/health").status == 200, "room again")


class AdminPaths(Case):
    PATHS = [("GET", "/slots"), ("POST", "/slots/0?action=erase"), ("POST", "/props"),
             ("GET", "/lora-adapters"), ("POST", "/lora-adapters"), ("GET", "/metrics"),
             ("GET", "//slots"), ("GET", "/slots/"), ("GET", "/%73lots"), ("GET", "/x/../slots"),
             ("GET", "/./slots?x"), ("POST", "/slots/1;a?action=save"),
             ("GET", "http://elsewhere/slots")]

    def test_K45_clients_cannot_reach_the_engines_own_administration(self):
        engine, gateway = self.pair()
        for method, path in self.PATHS:
            with gateway.client() as client:
                client.send(request_bytes(method, path, b"[]" if method == "POST" else None,
                                          [("X-Probe", "1")]))
                answer = client.read_answer()
            self.assertIn(answer.status, (400, 403), (method, path))
            self.assertIn("error", answer.json())
        self.assertEqual([r.target for r in engine.requests() if r.header("X-Probe")], [])

    def test_GET_props_is_no_secret(self):
        _, gateway = self.pair()
        self.assertEqual(gateway.fetch("GET", "/props").json()["total_slots"], 2)

    def test_admin_paths_relay_relays_them(self):
        engine, gateway = self.pair({"admin_paths": "relay"})
        self.assertEqual(len(gateway.fetch("GET", "/slots").json()), 2)
        self.assertIn(b"llamacpp:", gateway.fetch("GET", "/metrics").body)
        self.assertEqual(gateway.fetch("POST", "/props", b"{}").status,
                         engine.requests("/props")[-1].status)
        self.assertEqual(gateway.fetch("GET", "/lora-adapters").json(), [])


class Stopping(Case):
    def test_stop_lets_requests_finish_and_exits_0(self):
        engine, gateway = self.pair()
        engine.hold("stream")
        idle = gateway.client()
        idle.send(request_bytes("GET", "/health"))
        idle.read_answer()
        with gateway.client() as client:
            client.send(chat_bytes("to the end", stream=True))
            engine.wait_held("stream")
            gateway.signal()
            self.assertTrue(idle.wait_closed())
            wait_until(lambda: not can_connect(gateway.port), "no new connections")
            self.assertTrue(gateway.alive())
            engine.release("stream")
            answer = client.read_answer()
            self.assertTrue(answer.complete)
            self.assertIn(b"[DONE]", answer.body)
        self.assertEqual(gateway.wait_exit(), 0)

    def test_stop_without_requests_is_quick(self):
        _, gateway = self.pair()
        began = time.monotonic()
        gateway.signal()
        self.assertEqual(gateway.wait_exit(), 0)
        self.assertLess(time.monotonic() - began, 3)

    def test_second_signal_ends_at_once(self):
        engine, gateway = self.pair()
        engine.hold("stream")
        with gateway.client() as client:
            client.send(chat_bytes("never ends", stream=True))
            engine.wait_held("stream")
            gateway.signal()
            wait_until(lambda: not can_connect(gateway.port), "draining")
            self.assertTrue(gateway.alive())
            gateway.signal(signal.SIGTERM)
            gateway.exit_codes.append(gateway.wait_exit(3))
            self.assertIn(gateway.exit_codes[-1], (0, 1))
            self.assertFalse(client.read_answer().complete)

    def test_drain_has_a_limit(self):
        engine, gateway = self.pair({"timeouts": {"drain": "200ms"}})
        engine.hold("stream")
        with gateway.client() as client:
            client.send(chat_bytes("never ends", stream=True))
            engine.wait_held("stream")
            gateway.signal()
            gateway.wait_exit(5)
            self.assertFalse(client.read_answer().complete)

    def test_queued_requests_are_served_or_refused_never_lost(self):
        engine, gateway = self.pair(slots=1)
        engine.hold("head")
        clients = [gateway.client() for _ in range(3)]
        for n, client in enumerate(clients):
            client.send(chat_bytes(f"queued {n}"))
            wait_until(lambda n=n: gateway.in_flight() == n + 1, "in flight")
        gateway.signal()
        wait_until(lambda: not can_connect(gateway.port), "draining")
        engine.release("head")
        answers = [c.read_answer() for c in clients]
        self.assertEqual(answers[0].status, 200)
        self.assertTrue(all(a.complete and a.status in (200, 503) for a in answers), answers)
        self.assertEqual(gateway.wait_exit(), 0)


class Many(Case):
    def test_many_clients_at_once_get_their_own_answers(self):
        engine, gateway = self.pair()
        wrong = []

        def work(name):
            with gateway.client() as client:
                for i in range(10):
                    client.send(request_bytes("POST", "/detokenize", json.dumps(
                        {"tokens": [300 + name, 400 + i]}).encode()))
                    got = client.read_answer().json()["content"]
                    direct = fetch(engine.port, "POST", "/detokenize",
                                   {"tokens": [300 + name, 400 + i]}).json()["content"]
                    if got != direct:
                        wrong.append((name, i, got))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(wrong, [])


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


