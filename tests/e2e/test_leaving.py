# SPDX-License-Identifier: MIT
"""A client may leave in eight states of its request. Each test prints how long it took until
the connection to the engine was closed or, where the request had none yet, until the gauges
were back at zero; five times each, by FIN and by RST in turn."""

import json
import time

from harness import CHAT, ENGINE, chat_body, request_bytes, wait_until, words
from test_slots import FREED_S, LONG, SlotCase, chat_bytes

HOW = ("close", "abort", "close", "abort", "close")


class EightStates(SlotCase):
    def leave(self, state, reach, gone, **settings):
        """reach(tag) brings a client there; gone(tag) waits for the end and says when."""
        self.engine_, self.gateway_ = self.pair(mode="store", **settings)
        took = []
        for i, how in enumerate(HOW):
            tag = f"leaver {i}, {state}"
            client = reach(tag)
            began = time.monotonic()
            getattr(client, how)()
            took.append(gone(tag) - began)
            self.engine_.release_all()
            self.all_is_free()
        print(f"        {ENGINE}, {state}: free after "
              f"{', '.join(f'{t * 1000:.1f}' for t in sorted(took))} ms", flush=True)
        # What else runs here can only add to the time.
        self.assertLessEqual(min(took), FREED_S, took)
        self.engine_.scripts.clear()
        self.twenty(self.engine_, self.gateway_, f"after {state}")

    def all_is_free(self):
        self.no_gauge_is_up()
        self.engine_.wait_idle()
        self.gateway_.wait_quiet()
        for (name, labels), value in self.gateway_.metrics().items():
            if "in_flight" in name or "queued" in name or "zombie" in name:
                self.assertEqual(value, 0, (name, labels))

    def no_gauge_is_up(self, but=0):
        wait_until(lambda: self.gateway_.metric("incipit_client_connections") == but
                   and self.gateway_.in_flight() == but, "gauges are back", step=0.001)
        return time.monotonic()

    def upstream_closed(self, tag):
        record = wait_until(lambda: self.engine_.bodies(tag), "it is written down")[0]
        self.engine_.wait_for(lambda: record.gone_t, what="upstream connection closed")
        return record.gone_t

    def sent(self, data, **more):
        client = self.gateway_.client(**more)
        client.send(data)
        return client

    def nothing_asked(self, tag):
        """It never came to the engine, not even its start."""
        when = self.no_gauge_is_up()
        self.assertEqual(self.engine_.bodies(tag), [])
        return when

    def connected(self):
        wait_until(lambda: self.gateway_.metric("incipit_client_connections") == 1, "is connected")

    def test_1_head(self):
        def reach(tag):
            client = self.sent(chat_bytes(tag)[:40])
            self.connected()
            return client
        self.leave("head", reach, self.nothing_asked)

    def test_2_body(self):
        def reach(tag):
            body = json.dumps(chat_body(tag)).encode()
            client = self.sent(request_bytes("POST", CHAT, body, [
                ("Expect", "100-continue"), ("Content-Length", len(body))])[:-len(body)])
            self.assertEqual(client.read_head().status, 100)   # it has read the head
            client.send(body[:-1])
            return client
        self.leave("body", reach, self.nothing_asked)

    def test_3_queued(self):
        def reach(tag):
            self.engine_.hold("head", "the first")
            self.first = self.sent(chat_bytes("the first"))
            self.engine_.wait_held("head")
            client = self.sent(chat_bytes(tag))
            wait_until(lambda: self.gateway_.in_state("queue") == 1, "is queued")
            return client

        def gone(tag):
            when = self.no_gauge_is_up(but=1)
            self.engine_.release("head", match="the first")
            with self.first:
                self.assertEqual(self.first.read_answer().status, 200)
            self.assertEqual(self.engine_.bodies(tag), [])
            return when
        self.leave("queued", reach, gone, slots=1)

    def test_4_restoring(self):
        text = words(300, "is restored")

        def reach(tag):
            for other in (text, "else 0", "else 1"):   # in the store and in no slot
                body = chat_body(other, id_slot=int(other[-1] == "1"))
                self.assertEqual(self.gateway_.fetch("POST", CHAT, body).status, 200)
                self.gateway_.wait_quiet()
            self.engine_.hold("restore")
            client = self.sent(chat_bytes(f"{text} {tag}"))
            self.engine_.wait_held("restore")
            return client
        self.leave("restoring", reach, self.nothing_asked)

    def held(self, point, stream):
        def reach(tag):
            self.engine_.hold(point, tag)
            client = self.sent(chat_bytes(tag, **(LONG if stream else {})))
            self.engine_.wait_held(point)
            if point == "stream":
                client.read_head()
            return client
        return reach

    def test_5_before_the_first_byte(self):
        self.leave("before the first byte", self.held("head", True), self.upstream_closed)

    def test_6_in_stream(self):
        self.leave("in the stream", self.held("stream", True), self.upstream_closed)

    def test_7_answer_without_stream(self):
        self.leave("answer without stream", self.held("head", False), self.upstream_closed)

    def test_8_slow_reader(self):
        """One that does not read at all: the gateway no longer reads from the engine."""
        self.need_standin("answers of a script")
        event = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % (b"x" * (1 << 20))
        head = (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Content-Length: %d\r\n\r\n" % (64 * len(event)))

        def reach(tag):
            self.engine_.script(CHAT, head, *[event] * 64, "@sent")
            self.engine_.hold("sent")
            body = json.dumps(chat_body(tag, **LONG)).encode()
            client = self.sent(request_bytes("POST", CHAT, body), receive_buffer=8192)
            client.read_head()
            with self.assertRaises(TimeoutError):
                self.engine_.wait_held("sent", timeout=0.3)
            return client
        self.leave("slow reader", reach, self.upstream_closed)
