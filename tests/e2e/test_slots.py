# SPDX-License-Identifier: MIT
"""Slots: never more inside the engine than it has, first in first out, and what happens
when clients leave."""

import json
import random
import statistics
import threading
import time

from harness import (CHAT, Case, chat_body, request_bytes, stream_text, wait_until,
                     words)

LONG = {"stream": True, "max_tokens": 10000, "ignore_eos": True}
FREED_S = 0.1   # promised: a client that leaves closes its upstream connection within


def chat_bytes(text, **more):
    return request_bytes("POST", CHAT, json.dumps(chat_body(text, **more)).encode())


class SlotCase(Case):
    def twenty(self, engine, gateway, tag):
        """Twenty answers in a row, each the right one."""
        with gateway.client() as client:
            for i in range(20):
                body = chat_body(f"{tag} {i}", stream=i % 2 == 0)
                client.send(request_bytes("POST", CHAT, json.dumps(body).encode()))
                answer = client.read_answer()
                self.assertEqual((answer.status, answer.complete), (200, True))
                text = (stream_text(answer.body) if i % 2 == 0
                        else answer.json()["choices"][0]["message"]["content"])
                self.assert_right(engine, body, text)
        self.assertEqual(engine.events("deferred"), [])
        self.assert_clean()


class Queue(SlotCase):
    def test_never_more_requests_inside_than_slots(self):
        engine, gateway = self.pair()
        engine.hold("head")
        clients = [gateway.client() for _ in range(8)]
        for i, client in enumerate(clients):
            client.send(chat_bytes(f"crowd {i}", stream=i % 2 == 0))
        engine.wait_held("head", 2)
        wait_until(lambda: gateway.in_flight() == 8, "all are in flight")
        self.assertEqual(engine.state()["inside"], 2)
        for _ in range(8):
            engine.wait_held("head")
            engine.release("head", 1)
        engine.release("head")
        for client in clients:
            self.assertEqual(client.read_answer().status, 200)
        self.assertEqual(engine.engine.most_inside, 2)
        self.assertEqual(engine.events("deferred"), [])
        self.assert_clean()

    def test_first_in_first_out(self):
        engine, gateway = self.pair(slots=1)
        engine.hold("head")
        clients = [gateway.client() for _ in range(6)]
        for i, client in enumerate(clients):
            client.send(chat_bytes(f"order-{i}"))
            wait_until(lambda i=i: gateway.in_flight() == i + 1, "is in flight")
        engine.release("head")
        for client in clients:
            self.assertEqual(client.read_answer().status, 200)
        order = [r.json()["messages"][0]["content"] for r in engine.generations()
                 if b"order-" in r.body]
        self.assertEqual(order, [f"order-{i}" for i in range(6)])

    def test_what_needs_no_slot_does_not_wait_for_one(self):
        engine, gateway = self.pair(slots=1)
        engine.hold("head")
        with gateway.client() as client:
            client.send(chat_bytes("busy"))
            engine.wait_held("head")
            self.assertEqual(gateway.fetch("GET", "/v1/models").status, 200)
            self.assertEqual(gateway.fetch("POST", "/tokenize", {"content": "x"}).status, 200)
            engine.release("head")
            self.assertEqual(client.read_answer().status, 200)

    def test_several_answers_wait_for_that_many_slots(self):
        engine, gateway = self.pair()
        engine.hold("head", "first")
        with gateway.client() as one, gateway.client() as both:
            one.send(chat_bytes("first"))
            engine.wait_held("head")
            both.send(chat_bytes("pair", n=2))
            wait_until(lambda: gateway.in_flight() == 2, "is queued")
            self.assertEqual(engine.bodies("pair"), [])
            engine.release("head", match="first")
            self.assertEqual([c.read_answer().status for c in (one, both)], [200, 200])
        self.assertEqual(engine.events("deferred"), [])

    def test_requests_pinned_to_a_busy_slot_wait_here(self):
        engine, gateway = self.pair()
        engine.hold("head", "first")
        with gateway.client() as one, gateway.client() as two:
            one.send(chat_bytes("first", id_slot=1))
            engine.wait_held("head")
            two.send(chat_bytes("second", id_slot=1))
            wait_until(lambda: gateway.in_flight() == 2, "is queued")
            self.assertEqual(engine.bodies("second"), [])
            engine.release("head", match="first")
            self.assertEqual([c.read_answer().status for c in (one, two)], [200, 200])
        self.assertEqual([engine.bodies(m)[0].slot for m in ("first", "second")], [1, 1])
        self.assertEqual(engine.events("deferred"), [])

    def test_requests_that_cannot_be_pinned_wait_for_a_save(self):
        """The engine may give them the very slot that is about to be saved."""
        engine, gateway = self.pair(mode="store")
        engine.hold("save")
        with gateway.client() as first, gateway.client() as second:
            first.send(chat_bytes(words(200, "to be saved")))
            self.assertEqual(first.read_answer().status, 200)
            engine.wait_held("save")
            body = json.dumps({"max_tokens": 2, "messages": [
                {"role": "user", "content": "cannot be pinned"}]}).encode()
            second.send(request_bytes("POST", "/v1/messages", body))
            wait_until(lambda: gateway.in_flight() == 1, "is waiting")
            with self.assertRaises(TimeoutError):
                engine.wait_for(lambda: engine.bodies("cannot be pinned"), timeout=0.1)
            engine.release("save")
            self.assertEqual(second.read_answer().status, 200)
        self.assert_clean()

    def next_turn(self, client, messages, text, waiting=lambda: None):
        """Adds a question and its answer to a chat; calls `waiting` between them."""
        messages.append({"role": "user", "content": text})
        body = chat_body(messages, stream=True, max_tokens=70)
        client.send(request_bytes("POST", CHAT, json.dumps(body).encode()))
        waiting()
        answer = client.read_answer()
        self.assertEqual((answer.status, answer.complete), (200, True))
        messages.append({"role": "assistant", "content": stream_text(answer.body)})

    def test_next_turn_finds_its_slot_though_that_was_being_saved(self):
        engine, gateway = self.pair(mode="store")
        engine.hold("save")

        def let_the_save_end():
            wait_until(lambda: gateway.in_state("queue") == 1, "is waiting")
            engine.release("save", 1)

        messages = []
        with gateway.client() as client:
            # Savings are told of prompts no longer than one that was computed whole.
            self.next_turn(client, [], words(1200, "long"))
            engine.wait_held("save")
            engine.release("save", 1)
            self.next_turn(client, messages, words(300, "being saved"))
            for turn in range(1, 7):
                engine.wait_held("save")
                self.next_turn(client, messages, f"turn {turn}", let_the_save_end)
                self.assertGreater(engine.bodies(f"turn {turn}")[0].cache_n, 250, turn)
            engine.release("save")
        gateway.wait_quiet()
        # Such a wait leaves nobody out of the estimate: it was for no other request.
        self.assertGreater(gateway.total("savings")["confirmed"]["n"], 0)
        # One may be restored beside it: that spares what is not saved yet of the last turn.
        self.assertLessEqual(gateway.replica()["restores"], 1)
        self.assert_clean()

    def test_mixed_load_is_all_right(self):
        """Threads with prompts of a few families, some of which leave early."""
        engine, gateway = self.pair()
        seed = random.randrange(1 << 30)
        wrong = []

        def work(number):
            dice = random.Random(seed + number)
            for i in range(12):
                family = dice.randrange(5)
                body = chat_body([
                    {"role": "system", "content": words(dice.choice((20, 200, 400)), f"f{family}")},
                    {"role": "user", "content": f"{number} {i}"}],
                    stream=dice.random() < 0.5, max_tokens=dice.randrange(1, 6))
                raw = request_bytes("POST", CHAT, json.dumps(body).encode())
                with gateway.client() as client:
                    client.send(raw)
                    if dice.random() < 0.25:
                        if dice.random() < 0.5:
                            client.read_head()
                        continue
                    answer = client.read_answer()
                    text = (stream_text(answer.body) if body["stream"]
                            else answer.json()["choices"][0]["message"]["content"])
                    expected = engine.right_answer(body)
                    if not answer.complete or expected not in (None, text):
                        wrong.append((number, i, answer.status, text))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(wrong, [], f"seed {seed}")
        gateway.wait_quiet()
        self.assertEqual(gateway.in_flight(), 0)
        self.assertEqual(engine.events("deferred"), [], f"seed {seed}")
        self.assert_clean()


class Leaving(SlotCase):
    def leave(self, engine, gateway, point, stream, how="close"):
        """A client that leaves at this point; returns the engine's record of it."""
        tag = f"leaver {point} {stream} {how} {len(engine.log)}"
        engine.hold(point, tag)
        client = gateway.client()
        client.send(chat_bytes(tag, **LONG) if stream else chat_bytes(tag))
        engine.wait_held(point)
        if point == "stream":
            client.read_head()
        began = time.monotonic()
        getattr(client, how)()
        record = wait_until(lambda: engine.bodies(tag), "it is written down")[0]
        engine.wait_for(lambda: record.gone_t, what="upstream connection closed")
        return record, record.gone_t - began, tag

    def freed(self, point, stream):
        """The median of several: this machine may be busy with other things."""
        engine, gateway = self.pair()
        took = []
        for how in ("close", "abort", "close", "abort", "close"):
            _, seconds, tag = self.leave(engine, gateway, point, stream, how)
            took.append(seconds)
            engine.release(point, match=tag)
            engine.wait_idle()
        self.assertLessEqual(statistics.median(took), FREED_S, took)
        wait_until(lambda: gateway.in_flight() == 0, "nothing in flight")
        self.twenty(engine, gateway, f"after {point} {stream}")

    def test_K08_before_the_head_of_a_stream(self):
        self.freed("head", True)

    def test_K08_before_the_head_of_a_plain_answer(self):
        self.freed("head", False)

    def test_K08_in_prefill(self):
        self.freed("prefill", True)

    def test_K08_in_mid_stream(self):
        self.freed("stream", True)

    def test_behind_the_last_event_all_is_well(self):
        """Many clients hang up there and do not wait for the end of the framing."""
        engine, gateway = self.pair(mode="store")
        engine.hold("framing")
        ends = {CHAT: b"[DONE]", "/v1/completions": b"[DONE]",
                "/completion": b'"stop":true', "/v1/messages": b"message_stop"}
        for i, (path, end) in enumerate(ends.items()):
            text = words(150 + 20 * i, path)
            body = (chat_body(text, stream=True) if path in (CHAT, "/v1/messages") else
                    {"prompt": text, "max_tokens": 4, "n_predict": 4, "stream": True})
            with gateway.client() as client:
                client.send(request_bytes("POST", path, json.dumps(body).encode()))
                client.read_until(end)
                client.read_until(b"\n\n")
            wait_until(lambda i=i: gateway.total("requests") == i + 1, "is counted")
            self.assertEqual(gateway.total("completed"), i + 1, path)
        engine.release("framing")
        gateway.wait_quiet()
        self.assertEqual(gateway.total("client_gone"), 0)
        again = chat_body(words(150, CHAT))
        self.assertEqual(gateway.fetch("POST", CHAT, again).status, 200)
        self.assertGreater(engine.bodies(again["messages"][0]["content"])[-1].cache_n, 140)
        self.twenty(engine, gateway, "after the last event")

    def test_while_queued(self):
        engine, gateway = self.pair(slots=1)
        engine.hold("head", "first")
        with gateway.client() as first:
            first.send(chat_bytes("first"))
            engine.wait_held("head")
            for how in ("close", "abort"):
                queued = gateway.client()
                queued.send(chat_bytes("never sent"))
                wait_until(lambda: gateway.in_flight() == 2, "is queued")
                getattr(queued, how)()
                wait_until(lambda: gateway.in_flight() == 1, "has left the queue")
            engine.release("head", match="first")
            self.assertEqual(first.read_answer().status, 200)
        self.assertEqual(engine.bodies("never sent"), [])
        self.twenty(engine, gateway, "after queued")

    def test_while_the_body_is_on_its_way(self):
        engine, gateway = self.pair()
        whole = chat_bytes("half a request")
        for end in (20, 90, len(whole) - 1):
            client = gateway.client()
            client.send(whole[:end])
            client.close()
        wait_until(lambda: gateway.in_flight() == 0, "nothing in flight")
        self.assertEqual(engine.bodies("half a request"), [])
        self.twenty(engine, gateway, "after body")

    def test_slot_of_one_who_left_in_prefill_is_used_only_when_idle(self):
        engine, gateway = self.pair(slots=1)
        _, _, tag = self.leave(engine, gateway, "prefill", True)
        with gateway.client() as client:
            client.send(chat_bytes("next one"))
            wait_until(lambda: gateway.in_flight() >= 1, "is waiting")
            # It must stay away until GET /slots has said idle: let several looks pass.
            looks = len(engine.requests("/slots"))
            engine.wait_for(lambda: len(engine.requests("/slots")) > looks + 1,
                            what="the gateway looks at the slots")
            self.assertEqual(engine.bodies("next one"), [])
            engine.release("prefill", match=tag)
            self.assertEqual(client.read_answer().status, 200)
        self.assertEqual(engine.events("deferred"), [])
        self.twenty(engine, gateway, "after zombie")

    def test_other_slots_work_while_one_is_a_zombie(self):
        engine, gateway = self.pair()
        _, _, tag = self.leave(engine, gateway, "prefill", True)
        self.twenty(engine, gateway, "beside a zombie")
        engine.release("prefill", match=tag)
        engine.wait_idle()
        self.twenty(engine, gateway, "after it")

    def test_slot_that_stays_busy_after_a_cancel(self):
        engine, gateway = self.pair(slots=1, zombies=True)
        engine.hold("zombie")
        self.leave(engine, gateway, "stream", True)
        with gateway.client() as client:
            client.send(chat_bytes("patient"))
            looks = len(engine.requests("/slots"))
            engine.wait_for(lambda: len(engine.requests("/slots")) > looks + 1,
                            what="the gateway looks at the slots")
            self.assertEqual(engine.bodies("patient"), [])
            engine.release("zombie")
            self.assertEqual(client.read_answer().status, 200)
        self.twenty(engine, gateway, "after")

    def test_K10_gauges_are_zero_after_200_aborted_requests(self):
        engine, gateway = self.pair()
        dice = random.Random(200)
        for i in range(200):
            client = gateway.client()
            client.send(chat_bytes(f"abort {i}", stream=dice.random() < 0.7))
            if dice.random() < 0.3:
                client.fill()
            (client.abort if dice.random() < 0.5 else client.close)()
        wait_until(lambda: gateway.in_flight() == 0, lambda: f"in flight: {gateway.stats()}")
        engine.wait_idle()
        gateway.wait_quiet()
        for replica in gateway.stats()["replicas"]:
            self.assertEqual(replica["in_flight"], 0)
        for (name, labels), value in gateway.metrics().items():
            if "in_flight" in name or "queued" in name or "zombie" in name:
                self.assertEqual(value, 0, (name, labels))
        self.twenty(engine, gateway, "after 200")
