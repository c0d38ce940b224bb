# SPDX-License-Identifier: MIT
"""The llama-server driver in its corners: engines that restart, die or are replaced in
any state, requests that cannot be pinned, figures that cannot be, other users of the
engine."""

import json
import os
import threading
import time

from harness import (CHAT, Case, Gateway, chat_body, fetch, request_bytes, wait_until,
                     words)

MESSAGES = "/v1/messages"
LONG = {"stream": True, "max_tokens": 10000, "ignore_eos": True}


def chat_bytes(text, **more):
    return request_bytes("POST", CHAT, json.dumps(chat_body(text, **more)).encode())


def messages_bytes(text, **more):
    body = {"max_tokens": 2, "messages": [{"role": "user", "content": text}], **more}
    return request_bytes("POST", MESSAGES, json.dumps(body).encode())


class DriverCase(Case):
    def answer(self, gateway, text, **more):
        body = chat_body(text, **more)
        answer = gateway.fetch("POST", CHAT, body)
        self.assertEqual(answer.status, 200, answer.body)
        return body, answer.json()["choices"][0]["message"]["content"]

    def served(self, gateway, text, **more):
        """A request gets the right answer."""
        self.assert_right(self.engines[-1], *self.answer(gateway, text, **more))

    def all_well(self, engine, gateway, slots=2):
        """The replica comes to rest, and each of its slots works."""
        gateway.wait_ready()
        for i in range(slots):
            self.served(gateway, f"all well {i}", id_slot=i)
        gateway.wait_quiet()
        stats = gateway.stats()
        self.assertEqual(stats["total"]["in_flight"], 0)
        self.assertEqual([n for n in stats["total"]["states"].values() if n], [])
        for replica in stats["replicas"]:
            self.assertEqual((replica["in_flight"], replica["queued"]), (0, 0))
        self.assert_clean()

    def stored(self, gateway, engine, document):
        """A document that lies in the store and in no slot."""
        self.served(gateway, document)
        gateway.wait_quiet()
        for i in range(len(gateway.replica()["slots"])):
            self.served(gateway, f"something else {i}", id_slot=i)
        gateway.wait_quiet()


# ---- states ------------------------------------------------------------------------------

class States(DriverCase):
    """Each of these brings the driver into a state and returns its clients. `text` is
    that of a document in the store."""

    # What was held in the old process goes on in its thread, and finds no file.
    allowed = ("restore-missing", "restore-damaged", "save-empty")

    def queued(self, engine, gateway, text):
        engine.hold("head")
        clients = [gateway.client() for _ in range(4)]
        for i, client in enumerate(clients):
            client.send(chat_bytes(f"crowd {i}"))
        engine.wait_held("head", 2)
        wait_until(lambda: gateway.in_state("queue") == 2, "two are queued")
        return clients

    def running(self, engine, gateway, text):
        engine.hold("stream")
        client = gateway.client()
        client.send(chat_bytes("running", stream=True))
        engine.wait_held("stream")
        return [client]

    def restoring(self, engine, gateway, text):
        engine.hold("restore")
        client = gateway.client()
        client.send(chat_bytes(text))
        engine.wait_held("restore")
        return [client]

    def restoring_unpinned(self, engine, gateway, text):
        engine.hold("restore")
        client = gateway.client()
        client.send(chat_bytes(text, id_slot=-1))
        engine.wait_held("restore")
        return [client]

    def left_in_restore(self, engine, gateway, text):
        self.restoring(engine, gateway, text)[0].close()
        wait_until(lambda: gateway.in_flight() == 0, "has left")
        return []

    def left_in_unpinned_restore(self, engine, gateway, text):
        self.restoring_unpinned(engine, gateway, text)[0].close()
        wait_until(lambda: gateway.in_flight() == 0, "has left")
        return []

    def saving(self, engine, gateway, text):
        engine.hold("save")
        self.served(gateway, words(200, "to be saved"))
        engine.wait_held("save")
        return []

    def bound(self, engine, gateway, text):
        engine.hold("head", in_slot=True)
        client = gateway.client()
        client.send(messages_bytes("bound"))
        engine.wait_held("head")
        wait_until(lambda: "owned" in self.slot_states(gateway), "is bound")
        return [client]

    def unbound(self, engine, gateway, text):
        engine.hold("arrive")
        client = gateway.client()
        client.send(messages_bytes("unbound"))
        engine.wait_held("arrive")
        return [client]

    def exclusive(self, engine, gateway, text):
        engine.hold("head", in_slot=True)
        client = gateway.client()
        client.send(chat_bytes("both", n=2))
        engine.wait_held("head")
        return [client]

    def zombie(self, engine, gateway, text):
        engine.hold("prefill")
        client = gateway.client()
        client.send(chat_bytes("leaves", **LONG))
        engine.wait_held("prefill")
        client.close()
        wait_until(lambda: "zombie" in self.slot_states(gateway), "is a zombie")
        return []

    def exclusive_zombie(self, engine, gateway, text):
        client = self.exclusive(engine, gateway, text)[0]
        client.close()
        wait_until(lambda: self.slot_states(gateway) == ["zombie"] * 2, "are zombies")
        return []

    def slot_states(self, gateway):
        return [slot["state"] for slot in gateway.replica()["slots"]]

    def after_restart(self, engine, gateway, clients):
        engine.restart(weights=2)
        for client in clients:
            self.assertIn(client.read_head().status, (200, 502, 503))
        wait_until(lambda: gateway.replica()["restarts"], "is noticed")
        gateway.wait_ready("store")
        self.right(engine, gateway)

    def after_restart_with_fewer_slots(self, engine, gateway, clients):
        engine.restart(slots=1)
        for client in clients:
            self.assertIn(client.read_head().status, (200, 400, 502, 503))
        wait_until(lambda: gateway.replica()["restarts"], "is noticed")
        gateway.wait_ready("store")
        self.assertEqual(engine.events("poison"), [])
        engine.reset_log()   # requests that were repeated were as many as the old slots
        self.all_well(engine, gateway, 1)

    def after_death(self, engine, gateway, clients):
        engine.kill()
        for client in clients:
            self.assertIn(client.read_head().status, (200, 502))
        wait_until(lambda: gateway.mode() == "down", "is down")
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("x")).status, 502)
        engine.restart()
        gateway.wait_ready("store")
        self.all_well(engine, gateway)

    def after_leaving(self, engine, gateway, clients):
        for client in clients:
            client.abort()
        wait_until(lambda: gateway.in_flight() == 0, "all have left")
        engine.release_all()
        engine.wait_idle()
        self.all_well(engine, gateway)

    def after_stop(self, engine, gateway, clients):
        """Drained where that ends, cut at the deadline where it does not."""
        gateway.signal()
        self.assertEqual(gateway.wait_exit(), 0, gateway.text())
        for client in clients:
            client.wait_closed()

    def right(self, engine, gateway):
        """Right answers of the weights that it has now."""
        for i in range(2):
            body = chat_body(f"{words(300, 'in the store')} {i}", id_slot=i)
            answer = gateway.fetch("POST", CHAT, body)
            self.assertEqual(answer.status, 200)
            self.assert_right(engine, body,
                              answer.json()["choices"][0]["message"]["content"])
        gateway.wait_quiet()
        self.assert_clean()


STATES = ("queued", "running", "restoring", "restoring_unpinned", "left_in_restore",
          "left_in_unpinned_restore", "saving", "bound", "unbound", "exclusive", "zombie",
          "exclusive_zombie")
ENDS = ("restart", "restart_with_fewer_slots", "death", "leaving", "stop")


def state_test(state, end):
    def test(self):
        engine, gateway = self.pair({"timeouts": {"drain": "200ms"}}, mode="store")
        text = words(300, "in the store")
        self.stored(gateway, engine, text)
        clients = getattr(self, state)(engine, gateway, text)
        getattr(self, f"after_{end}")(engine, gateway, clients)
        for client in clients:
            client.close()
    return test


for _state in STATES:
    for _end in ENDS:
        setattr(States, f"test_{_state}_then_{_end}", state_test(_state, _end))


# ---- requests that cannot be pinned ------------------------------------------------------

class Unpinned(DriverCase):
    def both_used(self, gateway):
        """Slot 0 is the one that the engine will choose for something new."""
        for i in range(2):
            self.served(gateway, f"{words(80, str(i))} {i}", id_slot=i)
        gateway.wait_quiet()

    def test_slot_that_the_client_leaves_open_is_the_engines_choice(self):
        engine, gateway = self.pair(mode="store")
        self.both_used(gateway)
        engine.hold("head", "left-open", in_slot=True)
        with gateway.client() as client:
            client.send(chat_bytes(words(700, "open") + " left-open", id_slot=-1))
            engine.wait_held("head")
            wait_until(lambda: gateway.replica()["slots"][0]["state"] == "owned", "is bound")
            for i in range(3):
                self.served(gateway, f"beside it {i}")
            engine.release("head", match="left-open")
            self.assertEqual(client.read_answer().status, 200)
        self.assertEqual(engine.bodies("left-open")[0].slot, 0)
        self.assertEqual(engine.events("deferred"), [])
        self.all_well(engine, gateway)

    def test_slot_number_beyond_all_reason_is_the_engines_business(self):
        engine, gateway = self.pair()
        for number in (1 << 40, (1 << 63) - 1, -7):
            self.assertEqual(
                gateway.fetch("POST", CHAT, chat_body("far away", id_slot=number)).status, 200)
        self.all_well(engine, gateway)

    def test_nothing_is_placed_while_one_is_prepared(self):
        """Two that cannot be pinned, and one that can, while the first is restored."""
        engine, gateway = self.pair(mode="store", slots=3)
        text = words(300, "prepared")
        self.stored(gateway, engine, text)
        engine.hold("restore")
        engine.hold("head", in_slot=True)
        with gateway.client() as a, gateway.client() as b, gateway.client() as c:
            a.send(messages_bytes(text))
            if not engine.held("restore"):
                # Another template than chat's: first it has to be known.
                engine.wait_for(lambda: engine.held("restore") or engine.held("head"))
            b.send(messages_bytes("second one"))
            c.send(chat_bytes("third one"))
            wait_until(lambda: gateway.in_flight() == 3, "are all here")
            engine.release("restore")
            engine.wait_held("head", 3)
            self.assertEqual(engine.events("deferred"), [])
            self.assertEqual(sorted(r.slot for r in engine.generations()[-3:]), [0, 1, 2])
            engine.release("head")
            for client in (a, b, c):
                self.assertEqual(client.read_answer().status, 200)
        self.all_well(engine, gateway, 3)

    def test_restore_for_one_that_cannot_be_pinned_keeps_others_away(self):
        engine, gateway = self.pair(mode="store", slots=3)
        text = words(300, "open restore")
        self.stored(gateway, engine, text)
        engine.hold("restore")
        engine.hold("head")
        with gateway.client() as a, gateway.client() as b, gateway.client() as c:
            a.send(chat_bytes(text, id_slot=-1))
            engine.wait_held("restore")
            b.send(chat_bytes("second one", id_slot=-1))
            c.send(chat_bytes("third one"))
            wait_until(lambda: gateway.in_state("queue") == 2, "both wait")
            engine.release("restore")
            engine.wait_held("head", 3)
            self.assertEqual(engine.events("deferred"), [])
            engine.release("head")
            for client in (a, b, c):
                self.assertEqual(client.read_answer().status, 200)
        unpinned = [r for r in engine.generations() if b'"id_slot": -1' in r.body]
        self.assertGreater(unpinned[0].cache_n, 250)
        self.all_well(engine, gateway, 3)

    def test_slot_that_another_got_first_is_no_failure_of_a_restore(self):
        """The engine takes a slot for idle while it has not begun with the job for which
        something was put back there; three of these would switch restores off."""
        self.need_standin("a request that has not begun")
        engine, gateway = self.pair(mode="store")
        text = words(300, "contested")
        for i in range(3):
            self.stored(gateway, engine, text)   # the engine will choose slot 0
            engine.hold("arrive", f"chat {i}")
            with gateway.client() as chat, gateway.client() as other:
                chat.send(chat_bytes(f"{text} chat {i}", id_slot=0))
                engine.wait_held("arrive")
                other.send(messages_bytes(words(300, f"other {i}")))
                self.assertEqual(other.read_answer().status, 200)
                engine.release("arrive", match=f"chat {i}")
                self.assertEqual(chat.read_answer().status, 200)
            gateway.wait_quiet()
            self.assertLess(engine.bodies(f"chat {i}")[0].cache_n, 64)
        self.assertEqual(gateway.replica()["restore_failures"]["not-reused"], 3)
        self.assertNotIn("event=restore-failed", gateway.text())
        self.assertEqual(gateway.mode(), "store")
        self.all_well(engine, gateway)

    def test_save_waits_for_one_that_is_prepared(self):
        engine, gateway = self.pair(mode="store")
        text = words(300, "first")
        self.stored(gateway, engine, text)
        engine.hold("restore")
        engine.hold("head", "long one")
        with gateway.client() as a, gateway.client() as b:
            b.send(chat_bytes(words(100, "long") + " long one"))
            engine.wait_held("head")
            a.send(chat_bytes(text, id_slot=-1))
            engine.wait_held("restore")
            saves = len(engine.events("save"))
            engine.release("head", match="long one")
            self.assertEqual(b.read_answer().status, 200)
            self.assertEqual(len(engine.events("save")), saves)
            engine.release("restore")
            self.assertEqual(a.read_answer().status, 200)
        gateway.wait_quiet()
        self.assertGreater(len(engine.events("save")), saves)
        self.all_well(engine, gateway)

    def test_refused_ones_leave_the_slots_as_they_are(self):
        engine, gateway = self.pair(mode="store")
        self.both_used(gateway)
        before = [s["tokens"] for s in gateway.replica()["slots"]]
        self.assertGreater(min(before), 50)
        engine.fault("error", match="refused", times=3)
        for i in range(3):
            answer = gateway.fetch("POST", MESSAGES, {"max_tokens": 2, "messages": [
                {"role": "user", "content": f"refused {i}"}]})
            self.assertEqual(answer.status, 400)
        wait_until(lambda: gateway.in_flight() == 0, "over")
        gateway.wait_quiet()
        self.assertEqual([s["tokens"] for s in gateway.replica()["slots"]], before)
        self.assertEqual(gateway.replica()["binds_lost"], 0)
        self.all_well(engine, gateway)

    def test_one_after_the_other_find_their_slot(self):
        """Turns of a chat: each is bound to the slot that the engine took."""
        engine, gateway = self.pair(mode="store")
        text = words(100, "turns")
        for i in range(8):
            answer = gateway.fetch("POST", MESSAGES, {"max_tokens": 2, "messages": [
                {"role": "user", "content": f"{text} {i}"}]})
            self.assertEqual(answer.status, 200)
            self.served(gateway, f"pinned in between {i}")
        self.assertEqual(gateway.replica()["binds_lost"], 0)
        self.assertEqual(engine.events("deferred"), [])
        self.all_well(engine, gateway)


# ---- figures that cannot be --------------------------------------------------------------

class Figures(DriverCase):
    def test_impossible_counts_spoil_nothing(self):
        self.need_standin("counts that lie")
        huge = 1 << 32
        for lies in ({"prompt_tokens": huge}, {"prompt_n": huge, "prompt_ms": 1e300},
                     {"predicted_n": huge, "completion_tokens": huge}, {"prompt_ms": 1e300},
                     {"cache_n": huge, "cached_tokens": huge}, {"prompt_n": -5, "cache_n": -5},
                     {"prompt_tokens": 16385}):
            with self.subTest(lies):
                engine, gateway = self.pair(mode="store")
                engine.set(counts=lies)
                for i in range(4):
                    self.served(gateway, f"{words(200, 'lies')} {i}")
                engine.set(counts={})
                replica = gateway.replica()
                self.assertLess(replica["prefill_ms_per_token"], 1e5)
                self.assertGreater(replica["text_bytes_per_token"], 0.05)
                self.assertLess(max(s["tokens"] for s in replica["slots"]), 16385)
                self.all_well(engine, gateway)
                self.served(gateway, f"{words(200, 'lies')} more")
                gateway.stop()
                engine.stop()

    def lost(self, lose):
        """What slots lose says nothing about what prompts share."""
        engine, gateway = self.pair(mode="store")
        text = words(400, "emptied")
        self.served(gateway, f"{text} one")
        self.served(gateway, f"{text} two")
        gateway.wait_quiet()
        lose(engine)
        self.served(gateway, f"{text} three")
        gateway.wait_quiet()
        for i in range(2):
            self.served(gateway, f"something else {i}", id_slot=i)
        gateway.wait_quiet()
        self.served(gateway, f"{text} four")
        self.assertGreater(engine.bodies("four")[0].cache_n, 350)
        self.all_well(engine, gateway)

    def test_slots_that_the_engine_emptied(self):
        """As with a unified cache that is full."""
        self.lost(lambda engine: engine.forget_slots())

    def test_slots_that_others_have_filled(self):
        def fill(engine):
            for i in range(2):
                fetch(engine.port, "POST", CHAT, chat_body(words(20, "other"), id_slot=i))
        self.lost(fill)

    def test_props_with_strange_figures(self):
        self.need_standin("answers of a script")
        for props in ({"total_slots": 65, "default_generation_settings": {"n_ctx": 1}},
                      {"total_slots": 2, "default_generation_settings": {"n_ctx": -1}},
                      {"total_slots": 2, "default_generation_settings": 5},
                      {"total_slots": 2, "default_generation_settings": {"n_ctx": 1 << 62}},
                      {"total_slots": 1 << 40}, {"total_slots": 3}):
            with self.subTest(props):
                engine = self.engine()
                body = json.dumps(props).encode()
                engine.script("/props", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                              b"Content-Length: %d\r\n\r\n" % len(body) + body)
                gateway = self.gateway(engine)
                for i in range(3):
                    self.served(gateway, f"{words(200, 'strange')} {i}")
                gateway.stop()
                engine.stop()
        self.assertEqual([e for e in self.engines[0].events("poison")], [])

    def test_self_test_whose_file_is_not_that_of_its_prompt(self):
        """A save that says what it should and holds almost nothing."""
        self.need_standin("saves that lie")
        engine = self.engine()
        engine.hold("save")
        gateway = self.gateway(engine, wait=None)
        engine.wait_held("save")
        slot = next(s for s in engine.engine.slots if s.tokens)
        says = len(slot.tokens)
        slot.cut(3)
        real = engine.engine._save

        def lying(slot, index, name):
            return real(slot, index, name) | {"n_saved": says}
        engine.engine._save = lying
        engine.release("save")
        gateway.wait_ready("observe")
        self.assertIn("does not hold its prompt", gateway.replica()["mode_reason"])
        self.served(gateway, "all the same")


# ---- the engine is looked at -------------------------------------------------------------

class Looking(DriverCase):
    def test_full_queue_is_only_for_those_who_would_wait(self):
        engine, gateway = self.pair({"limits": {"queue": 0}})
        for i in range(3):
            self.served(gateway, f"no queue {i}")
        engine.hold("head")
        with gateway.client() as one, gateway.client() as two:
            one.send(chat_bytes("one"))
            two.send(chat_bytes("two"))
            engine.wait_held("head", 2)
            self.assertEqual(gateway.fetch("POST", CHAT, chat_body("three")).status, 503)
            engine.release("head")
            self.assertEqual([c.read_answer().status for c in (one, two)], [200, 200])
        self.assertEqual(gateway.total("rejected"), 1)
        self.all_well(engine, gateway)

    def test_request_that_waited_too_long_lets_others_pass(self):
        engine, gateway = self.pair({"timeouts": {"queue": "100ms"}})
        engine.hold("head", "first")
        with gateway.client() as first, gateway.client() as both:
            first.send(chat_bytes("first"))
            engine.wait_held("head")
            both.send(chat_bytes("both", n=2))
            wait_until(lambda: gateway.in_state("queue") == 1, "waits")
            with gateway.client() as behind:
                behind.send(chat_bytes("behind"))
                self.assertEqual(both.read_answer().status, 503)
                self.assertIn(behind.read_answer().status, (200, 503))
            began = time.monotonic()
            self.served(gateway, "has a slot")
            self.assertLess(time.monotonic() - began, 1.5)
            engine.release("head", match="first")
            self.assertEqual(first.read_answer().status, 200)
        self.all_well(engine, gateway)

    def test_server_error_at_the_start_is_not_another_engine(self):
        engine = self.engine()
        engine.script("/props", b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        gateway = self.gateway(engine, wait=None)
        wait_until(lambda: gateway.mode() == "starting" and "502" in
                   gateway.replica()["mode_reason"], "says so")
        del engine.scripts["/props"]
        gateway.wait_ready("store")
        self.all_well(engine, gateway)

    def test_slots_that_can_be_managed_after_a_restart(self):
        engine = self.engine(no_slots=True)
        gateway = self.gateway(engine, mode="observe")
        self.served(gateway, "not managed")
        engine.restart(no_slots=False)
        gateway.wait_ready("store")
        self.all_well(engine, gateway)

    def test_engine_that_cannot_be_managed_goes_down(self):
        engine = self.engine(no_slots=True)
        gateway = self.gateway(engine, mode="observe")
        engine.kill()
        wait_until(lambda: gateway.mode() == "down", "is down")
        engine.restart()
        gateway.wait_ready("observe")
        self.served(gateway, "not managed")

    def test_self_test_that_others_disturb_is_run_again(self):
        engine = self.engine()
        engine.hold("restore")
        gateway = self.gateway(engine, wait=None)
        engine.wait_held("restore")
        slot = int(engine.requests()[-1].path.rpartition("/")[2])
        engine.hold("arrive", "tide tables")
        engine.release("restore")
        engine.wait_held("arrive")
        fetch(engine.port, "POST", CHAT, chat_body("stranger", id_slot=slot))
        engine.release("arrive", match="tide tables")
        gateway.wait_ready("store")
        self.all_well(engine, gateway)
        self.assertEqual(os.listdir(gateway.slot_dir), [])

    def test_self_test_whose_prompt_others_have_run_is_run_again(self):
        engine = self.engine()
        own = '"n_predict":0'   # as the gateway writes it, without a blank
        engine.hold("arrive", own)
        gateway = self.gateway(engine, wait=None)
        engine.wait_held("arrive")
        held = engine.requests()[-1]
        fetch(engine.port, "POST", held.path, json.loads(held.body))
        engine.release("arrive", match=own)
        gateway.wait_ready("store")
        self.assertEqual([m for m in gateway.text().splitlines() if "mode=observe" in m], [])
        self.all_well(engine, gateway)

    def test_others_who_use_the_engine_are_not_disturbed(self):
        engine, gateway = self.pair(mode="store")
        engine.hold("head", "stranger", in_slot=True)
        done = []

        def stranger():
            done.append(fetch(engine.port, "POST", CHAT, chat_body("stranger", id_slot=0)))
        thread = threading.Thread(target=stranger)
        thread.start()
        engine.wait_held("head")
        wait_until(lambda: gateway.replica()["slots"][0]["state"] == "zombie", "is noticed")
        engine.reset_log()
        for i in range(3):
            self.served(gateway, f"beside it {i}")
        self.assertEqual({r.slot for r in engine.generations()}, {1})
        engine.release("head", match="stranger")
        thread.join(10)
        self.assertEqual(done[0].status, 200)
        self.all_well(engine, gateway)

    def test_connections_that_end_behind_streams_are_no_alarm(self):
        """llama-server closes them, whatever it says of keeping them alive."""
        engine, gateway = self.pair(mode="store")
        began = time.monotonic()
        for i in range(20):
            body = chat_body(f"stream {i}", stream=True, id_slot=i % 2)
            self.assertEqual(gateway.fetch("POST", CHAT, body).status, 200)
            self.served(gateway, f"plain {i}", id_slot=1 - i % 2)
        gateway.wait_quiet()
        heartbeats = int(time.monotonic() - began) // 2   # each asks once
        self.assertEqual(gateway.replica()["restarts"], 0)
        self.assertLessEqual(len(engine.requests("/props")), heartbeats)
        self.all_well(engine, gateway)

    def test_content_that_others_put_into_a_slot_is_not_taken_for_ours(self):
        engine, gateway = self.pair(mode="store")
        text = words(200, "ours")
        self.served(gateway, text, id_slot=0)
        gateway.wait_quiet()
        self.assertGreater(gateway.replica()["slots"][0]["tokens"], 150)
        wait_until(lambda: engine.requests("/slots"), "was looked at")
        looks = len(engine.requests("/slots"))
        engine.wait_for(lambda: len(engine.requests("/slots")) > looks)
        fetch(engine.port, "POST", CHAT, chat_body("stranger", id_slot=0))
        wait_until(lambda: gateway.replica()["slots"][0]["tokens"] == 0, "is forgotten")
        self.all_well(engine, gateway)


# ---- replaced by something else ----------------------------------------------------------

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"


class Replaced(DriverCase):
    def test_requests_that_waited_are_handed_over(self):
        engine = self.engine()
        engine.script("/props", "@props", NOT_FOUND)
        engine.hold("props")
        gateway = self.gateway(engine, wait=None)
        engine.wait_held("props")
        clients = [gateway.client() for _ in range(3)]
        for i, client in enumerate(clients):
            client.send(chat_bytes(f"waits {i}"))
        wait_until(lambda: gateway.in_state("queue") == 3, "all wait")
        clients[0].close()
        wait_until(lambda: gateway.in_flight() == 2, "one has left")
        engine.release("props")
        for client in clients[1:]:
            self.assertEqual(client.read_answer().status, 200)
        gateway.wait_ready("observe")
        self.assertEqual(gateway.replica()["driver"], "openai")
        self.assertEqual(gateway.replica()["in_flight"], 0)
        self.assertEqual(gateway.replica()["queued"], 0)

    def test_another_kind_of_engine_on_the_same_port(self):
        """Whatever was under way with the old one."""
        self.need_standin("answers of a script")
        for state in ("restoring", "saving", "running", "bound", "exclusive", "zombie"):
            with self.subTest(state):
                engine, gateway = self.pair(mode="store")
                text = words(300, "in the store")
                self.stored(gateway, engine, text)
                clients = getattr(States, state)(self, engine, gateway, text)
                engine.script("/props", NOT_FOUND)
                engine.restart()
                wait_until(lambda: gateway.replica()["driver"] == "openai", "is handed over")
                self.served(gateway, "to another engine")
                for client in clients:
                    client.close()
                wait_until(lambda: gateway.in_flight() == 0, "over")
                self.assertEqual(gateway.replica()["in_flight"], 0)
                gateway.stop()
                engine.stop()

    def slot_states(self, gateway):
        return [slot["state"] for slot in gateway.replica().get("slots", [])]


# ---- several -----------------------------------------------------------------------------

class TwoGateway(Gateway):
    """Two engines."""

    def command(self):
        path = os.path.join(self.folder, "two.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write("upstreams:\n" + "".join(
                f"  - url: {url}\n    name: e{i}\n    slot_dir: {self.slot_dir}\n"
                for i, url in enumerate(self.upstream)))
        out = super().command()
        at = out.index("--upstream")
        del out[at:at + 2]
        at = out.index("--slot-dir")
        del out[at:at + 2]
        return out + ["--config", path]


class Several(DriverCase):
    def two(self, engines):
        self.need_gateway()
        gateway = TwoGateway(self.folder, [e.url for e in engines])
        self.gateways.append(gateway)
        return gateway.start()

    def test_replica_that_is_loading_gets_nothing_while_another_is_ready(self):
        engines = [self.engine(), self.engine()]
        engines[0].script("/props", b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n")
        gateway = self.two(engines)
        wait_until(lambda: gateway.stats()["replicas"][1]["mode"] == "store", "one is ready")
        wait_until(lambda: "loading" in gateway.stats()["replicas"][0]["mode_reason"], "loads")
        engines[1].hold("head")
        with gateway.client() as one:
            one.send(chat_bytes("busy"))
            engines[1].wait_held("head")
            engines[1].release("head")
            self.served(gateway, "beside it")
            self.assertEqual(one.read_answer().status, 200)
        self.assertEqual(engines[0].generations(), [])

    def test_replica_that_is_down_gets_nothing_while_another_is_up(self):
        engines = [self.engine(), self.engine()]
        gateway = self.two(engines)
        wait_until(lambda: {r["mode"] for r in gateway.stats()["replicas"]} == {"store"}, "up")
        engines[0].kill()
        wait_until(lambda: gateway.stats()["replicas"][0]["mode"] == "down", "is down")
        for i in range(4):
            self.served(gateway, f"to the other {i}")

    def test_two_that_share_a_slot_directory_share_no_file(self):
        engines = [self.engine(), self.engine()]
        gateway = self.two(engines)
        wait_until(lambda: {r["mode"] for r in gateway.stats()["replicas"]} == {"store"}, "up")
        for i in range(6):
            self.served(gateway, words(150, f"shared {i}"))
        names = [e["name"] for engine in engines for e in engine.events("save", "restore")]
        saved = [e["name"] for engine in engines for e in engine.events("save")]
        self.assertEqual(len(saved), len(set(saved)), names)
