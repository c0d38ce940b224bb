# SPDX-License-Identifier: MIT
"""Bounds for clients that are many, slow or for ever, and what errors must not tell."""

import contextlib
import json
import socket

from harness import CHAT, ENGINE, Case, Client, chat_body, request_bytes, wait_until

MESSAGES = "/v1/messages"


def chat_bytes(text, **more):
    return request_bytes("POST", CHAT, json.dumps(chat_body(text, **more)).encode())


class Crowds(Case):
    def test_one_address_has_its_share_and_another_is_served(self):
        _, gateway = self.pair({"limits": {"connections_per_client": 3}})
        clients = [gateway.client() for _ in range(3)]
        for client in clients:
            client.send(request_bytes("GET", "/health"))
            self.assertEqual(client.read_answer().status, 200)
        with gateway.client() as client:
            answer = client.read_answer()
            self.assertEqual(answer.status, 429)
            self.assertEqual(answer.get("Retry-After"), "1")
            self.assertEqual(answer.json()["error"]["type"], "rate_limit_error")
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            other.connect(("127.0.0.1", gateway.port))
            other.sendall(request_bytes("GET", "/health"))
            self.assertTrue(other.recv(100).startswith(b"HTTP/1.1 200 "))
        clients.pop().close()
        wait_until(lambda: gateway.fetch("GET", "/health").status == 200, "room again")
        self.assertGreaterEqual(gateway.metric("incipit_refused_total", status="429"), 1)
        for client in clients:
            client.close()

    def test_bodies_that_wait_take_no_memory(self):
        _, gateway = self.pair({"limits": {"body_bytes": "64MiB", "buffered_bytes": "65MiB"}})
        clients = [gateway.client() for _ in range(20)]
        for client in clients:   # 1.25 GiB are announced, and do not come
            client.send(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864\r\n\r\n{")
        wait_until(lambda: gateway.metric("incipit_body_buffered_bytes") == 20 * 256, "they wait")
        self.assertEqual(gateway.fetch("POST", "/tokenize", {"content": "x"}).status, 200)
        for client in clients:
            client.close()


class BodyMemory(Case):
    """Of 1 MiB for bodies and what is read from them: 40 bytes for 256 of text, and spans."""

    LIMITS = {"limits": {"buffered_bytes": "1MiB", "body_bytes": "64MiB"}}

    @contextlib.contextmanager
    def all_but(self, gateway, left):
        """Somebody's body takes the rest."""
        taken = (1 << 20) - left
        with gateway.client() as client:
            client.send(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1048000\r\n\r\n"
                        + b" " * taken)
            wait_until(lambda: gateway.metric("incipit_body_buffered_bytes") == taken, "it waits")
            yield

    def test_body_for_which_there_is_room_is_read(self):
        engine, gateway = self.pair(self.LIMITS)
        with self.all_but(gateway, 1 << 16):
            gateway.fetch("POST", CHAT, chat_body("x" * 40000))
        self.assertEqual(len(engine.requests(CHAT)), 1)   # whatever it says to that
        self.assertEqual(gateway.total("uninspected"), 0)
        wait_until(lambda: gateway.metric("incipit_body_buffered_bytes") == 0, "room again")

    def test_without_room_for_what_is_read_from_it_it_is_503(self):
        engine, gateway = self.pair(self.LIMITS)
        with self.all_but(gateway, 1 << 16):
            answer = gateway.fetch("POST", CHAT, chat_body("x" * 60000))
            self.assertEqual(answer.status, 503)
            self.assertEqual(answer.get("Retry-After"), "1")
            self.assertIn("too many request bodies", answer.json()["error"]["message"])
        wait_until(lambda: gateway.metric("incipit_body_buffered_bytes") == 0, "room again")
        self.assertEqual(len(engine.requests(CHAT)), 0)
        gateway.fetch("POST", CHAT, chat_body("x" * 60000))
        self.assertEqual(len(engine.requests(CHAT)), 1)

    def test_body_that_leaves_no_room_to_read_it_passes_unseen(self):
        _, gateway = self.pair(self.LIMITS)
        for size, unseen in ((1 << 20) - 8192, 0), (1 << 20, 1):
            body = json.dumps(chat_body("x")).encode().ljust(size)
            with gateway.client() as client:
                client.send(request_bytes("POST", CHAT, body))
                self.assertEqual(client.read_answer("POST").status, 200)
            self.assertEqual(gateway.total("uninspected"), unseen)
        wait_until(lambda: gateway.metric("incipit_body_buffered_bytes") == 0, "room again")


class Slow(Case):
    def test_slow_upload_is_408_and_quick_ones_pass(self):
        _, gateway = self.pair({"limits": {"upload_rate": "10KiB"}, "timeouts": {"pace": "100ms"}})
        with gateway.client() as client:
            client.send(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{")
            answer = client.read_answer()
            self.assertEqual(answer.status, 408)
            self.assertIn("too slowly", answer.json()["error"]["message"])
        body = {"content": "x" * 5000}
        self.assertEqual(gateway.fetch("POST", "/tokenize", body).status, 200)

    def test_slow_reader_is_cut_and_its_slot_goes_to_the_next(self):
        self.need_standin("answers of a script")
        engine, gateway = self.pair({"limits": {"download_rate": "64KiB"},
                                     "timeouts": {"pace": "200ms"}}, slots=1)
        part = b"x" * (1 << 20)
        engine.script("/big", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20),
                      *[part] * 64)
        with gateway.client(receive_buffer=8192) as client:
            client.send(request_bytes("GET", "/big"))
            client.read_head()
            wait_until(lambda: gateway.metric("incipit_slow_readers_total") == 1, "cut")
        self.assertEqual(gateway.in_flight(), 0)
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("next")).status, 200)

    def test_stream_that_comes_slowly_is_no_slow_reader(self):
        engine, gateway = self.pair({"limits": {"download_rate": "1GiB"},
                                     "timeouts": {"pace": "20ms"}})
        engine.hold("stream")
        with gateway.client() as client:
            client.send(chat_bytes("wait", stream=True))
            engine.wait_held("stream")
            self.assertTrue(client.read_head().status == 200)
            engine.release("stream")
            self.assertTrue(any(b"[DONE]" in e for e, _ in client.events()))
        self.assertEqual(gateway.metric("incipit_slow_readers_total"), 0)


class Total(Case):
    CONFIG = {"timeouts": {"total": "400ms"}}

    def test_before_the_answer_it_is_504(self):
        engine, gateway = self.pair(self.CONFIG)
        engine.hold("head", "long")
        answer = gateway.fetch("POST", CHAT, chat_body("too long"))
        self.assertEqual(answer.status, 504)
        self.assertEqual(answer.json()["error"]["type"], "timeout_error")
        engine.wait_for(lambda: engine.bodies("too long")[0].gone_t, what="connection closed")
        engine.release("head", match="long")
        engine.wait_idle()
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("fine")).status, 200)

    def test_in_the_queue_it_is_504_and_others_pass(self):
        engine, gateway = self.pair({"timeouts": {"total": "1s"}}, slots=1)
        engine.hold("head", "first")
        engine.hold("head", "second")   # the slot may be free a moment before its time is up
        with gateway.client() as first:
            first.send(chat_bytes("first"))
            engine.wait_held("head")
            self.assertEqual(gateway.fetch("POST", CHAT, chat_body("second")).status, 504)
            self.assertEqual(first.read_answer().status, 504)   # it came before
        if ENGINE in ("standin", "lab"):   # elsewhere the slot itself is free by then
            self.assertEqual(engine.bodies("second"), [])
        engine.release_all()

    def test_in_mid_stream_the_answer_is_cut(self):
        engine, gateway = self.pair(self.CONFIG)
        engine.hold("stream", "endless")
        with gateway.client() as client:
            client.send(chat_bytes("endless", stream=True))
            answer = client.read_answer()
        self.assertEqual(answer.status, 200)
        self.assertFalse(answer.complete)
        engine.release("stream", match="endless")
        wait_until(lambda: gateway.in_flight() == 0, "it is over")


class Errors(Case):
    """What a client gets to read names no address, no path and no library."""

    def ask(self, gateway):
        yield gateway.fetch("POST", CHAT, chat_body("x"))
        yield gateway.fetch("POST", CHAT, chat_body("x", stream=True))
        yield gateway.fetch("POST", MESSAGES, chat_body("x"))
        yield gateway.fetch("GET", "/v1/models")
        yield gateway.fetch("GET", "/slots")
        yield gateway.fetch("GET", "/x/../../y")

    def check(self, engine, gateway, answer):
        text = answer.raw_head + answer.body
        for secret in (str(engine.port), "127.0.0.1", "localhost", gateway.folder, "/tmp",
                       "llama", "standin", "llhttp", "libevent", "HPE_", "errno",
                       "refused", "reset by peer", "Broken pipe", "src/", ".c:"):
            self.assertNotIn(secret.encode(), text, text)
        self.assertLess(len(answer.body), 300)
        error = answer.json()
        self.assertEqual(error["type"], "error")   # Anthropic's shape, and OpenAI's:
        self.assertEqual(error["error"]["code"], answer.status)
        self.assertTrue(error["error"]["message"])

    def test_of_an_engine_that_is_gone(self):
        engine, gateway = self.pair()
        engine.kill()
        for answer in self.ask(gateway):
            self.assertGreaterEqual(answer.status, 400)
            self.check(engine, gateway, answer)

    def test_of_an_engine_that_speaks_badly(self):
        self.need_standin("answers of a script")
        engine, gateway = self.pair()
        for raw in (b"SSH-2.0-nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                    b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b"HTTP/9"):
            engine.script("/bad", raw, "close")
            answer = gateway.fetch("GET", "/bad")
            self.assertEqual(answer.status, 502, raw)
            self.check(engine, gateway, answer)

    def test_of_requests_that_are_no_HTTP(self):
        engine, gateway = self.pair()
        for raw in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET / HTTP/3.9\r\n\r\n",
                    b"GET /\"'<> HTTP/1.1\r\nHost: a b\r\n\r\n", b"GET / HTTP/1.1\r\nA: \0\r\n\r\n",
                    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n"):
            with Client(gateway.port) as client:
                client.send(raw)
                answer = client.read_answer()
            self.assertGreaterEqual(answer.status, 400, raw)
            self.check(engine, gateway, answer)
