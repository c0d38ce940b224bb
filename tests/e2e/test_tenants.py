# SPDX-License-Identifier: MIT
"""Whose text is whose: tenants that share nothing, what is forgotten, what goes after a
time, and what never gets in."""

import gzip
import json
import re

from harness import CHAT, ENGINE, Case, chat_body, request_bytes, wait_until, words


class TenantCase(Case):
    def ask(self, gateway, body, **headers):
        answer = gateway.fetch("POST", CHAT, body, headers=tuple(
            (k.replace("_", "-"), v) for k, v in headers.items()))
        self.assertEqual(answer.status, 200, answer.body[:300])
        return answer.json()

    def reused(self, answer):
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def forget(self, gateway, **what):
        status, body = gateway.admin("/cache/forget", "POST", json.dumps(what))
        self.assertEqual(status, 200, body)
        return json.loads(body)["forgotten"]


class Isolation(TenantCase):
    def test_credentials_share_neither_slots_nor_blocks(self):
        _, gateway = self.pair(mode="store", slots=1)
        body = chat_body(words(400, "secret"))
        self.ask(gateway, body, Authorization="Bearer one")
        gateway.wait_quiet()
        for other in ({"Authorization": "Bearer two"}, {"X_Api_Key": "three"}, {}):
            self.assertEqual(self.reused(self.ask(gateway, body, **other)), 0, other)
            gateway.wait_quiet()
        again = self.ask(gateway, body, X_Api_Key="one")   # the same key, shown otherwise
        self.assertGreater(self.reused(again), 300)
        self.assertNotIn("Bearer", gateway.text())
        self.assertEqual(len(set(re.findall(r"tenant=(\w{8})", gateway.text()))), 4)

    def test_a_client_cannot_ask_for_reuse_of_what_others_left(self):
        _, gateway = self.pair(mode="store", slots=1)
        body = chat_body(words(400, "wish"), cache_prompt=True)
        self.ask(gateway, body, Authorization="Bearer one")
        gateway.wait_quiet()
        self.assertEqual(self.reused(self.ask(gateway, body, Authorization="Bearer two")), 0)

    def test_salts_separate_in_every_mode(self):
        for mode in ("shared", "salt", "header:X-Team", "credential"):
            with self.subTest(mode):
                _, gateway = self.pair({"isolation": mode}, mode="store", slots=1)
                body = chat_body(words(400, mode))
                self.ask(gateway, body)
                gateway.wait_quiet()
                self.assertEqual(self.reused(self.ask(gateway, body, X_Cache_Salt="x")), 0)
                salted = dict(body, cache_salt="y")
                self.assertEqual(self.reused(self.ask(gateway, salted)), 0)
                gateway.wait_quiet()
                self.assertGreater(self.reused(self.ask(gateway, salted)), 300)
                gateway.stop()

    def test_header_names_the_tenant(self):
        _, gateway = self.pair({"isolation": "header:X-Team"}, mode="store", slots=1)
        body = chat_body(words(400, "team"))
        self.ask(gateway, body, X_Team="red", Authorization="Bearer a")
        gateway.wait_quiet()
        other = self.ask(gateway, body, X_Team="red", Authorization="Bearer b")
        self.assertGreater(self.reused(other), 300)
        self.assertEqual(self.reused(self.ask(gateway, body, X_Team="blue")), 0)


class WhereTheEngineChooses(TenantCase):
    """/v1/messages takes neither slot nor cache_prompt: slots are emptied of others before."""

    def message(self, gateway, text, key, **more):
        body = {"model": "standin-tiny", "max_tokens": 4,
                "messages": [{"role": "user", "content": text}], **more}
        answer = gateway.fetch("POST", "/v1/messages", body,
                               headers=[("x-api-key", key)])
        self.assertEqual(answer.status, 200, answer.body[:300])
        return answer

    def read(self, answer):
        return answer.json()["usage"]["cache_read_input_tokens"]

    def test_nothing_of_others_is_reused_and_ones_own_is(self):
        engine, gateway = self.pair(mode="store", slots=2)
        text = words(400, "letter")
        self.message(gateway, text, "one")
        gateway.wait_quiet()
        self.assertEqual(self.read(self.message(gateway, text, "two")), 0)
        gateway.wait_quiet()
        self.assertGreater(self.read(self.message(gateway, text, "two")), 300)
        self.assertEqual(gateway.replica()["binds_foreign"], 0)
        self.assert_clean(engine)

    def test_nothing_of_what_others_chatted_is_reused(self):
        engine, gateway = self.pair(mode="store", slots=2)
        text = words(400, "chat")
        for i in range(2):
            self.ask(gateway, chat_body(f"{text} {i}"), Authorization="Bearer one")
            gateway.wait_quiet()
        self.assertEqual(self.read(self.message(gateway, text, "two")), 0)
        gateway.wait_quiet()
        # What was saved before it was erased is put back for its own tenant.
        again = self.ask(gateway, chat_body(f"{text} 0"), Authorization="Bearer one")
        self.assertGreater(self.reused(again), 300)
        self.assert_clean(engine)

    def test_bodies_that_cannot_be_read(self):
        if ENGINE == "lab":
            self.skipTest("the built-in engine has no /v1/responses")
        _, gateway = self.pair(mode="store", slots=1)
        text = words(400, "packed")
        self.ask(gateway, chat_body(text), Authorization="Bearer one")
        gateway.wait_quiet()
        body = json.dumps({"input": text, "max_output_tokens": 4})
        answer = gateway.fetch("POST", "/v1/responses", body.encode(),
                               headers=[("Authorization", "Bearer two")])
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.json()["usage"]["input_tokens_details"]["cached_tokens"], 0)

    def test_packed_bodies_that_ask_for_several_answers(self):
        self.need_standin("packed bodies")
        engine, gateway = self.pair(mode="store", slots=2, inflates=True)
        text = words(400, "packed")
        self.ask(gateway, chat_body(text), Authorization="Bearer one")
        gateway.wait_quiet()
        body = gzip.compress(json.dumps(chat_body(text, n=2)).encode())
        answer = gateway.fetch("POST", CHAT, body, headers=[
            ("Authorization", "Bearer two"), ("Content-Encoding", "gzip")])
        self.assertEqual(self.reused(answer.json()), 0)
        self.assert_clean(engine)

    def test_without_slot_files_a_token_is_run_over_it(self):
        self.need_standin("no slot directory")
        engine, gateway = self.pair(slots=2, slot_dir="")
        text = words(400, "bare")
        self.message(gateway, text, "one")
        gateway.wait_quiet()
        self.assertEqual(self.read(self.message(gateway, text, "two")), 0)
        gateway.wait_quiet()
        self.assertGreater(self.read(self.message(gateway, text, "two")), 300)
        self.assertEqual(gateway.replica()["restarts"], 0)

    def test_what_runs_for_others_is_left_alone(self):
        engine, gateway = self.pair(mode="store", slots=2)
        engine.hold("stream", "held")
        with gateway.client() as client:
            client.send(request_bytes("POST", CHAT, json.dumps(
                chat_body("held " + words(300, "run"), stream=True)).encode(),
                [("Authorization", "Bearer one")]))
            engine.wait_held("stream")
            self.assertEqual(self.read(self.message(gateway, words(300, "beside"), "two")), 0)
            engine.release("stream", match="held")
            self.assertTrue(client.read_answer().complete)
        self.assert_clean(engine)

    def send(self, client, path, key, body):
        client.send(request_bytes("POST", path, json.dumps(body).encode(),
                                  [("x-api-key", key)]))

    def leave_in_that_moment(self, gateway, engine, client, text, key="one"):
        """A chat that has left its slot, of which the gateway does not know yet."""
        engine.hold("finish", "chat")
        self.send(client, CHAT, key, chat_body(text + " chat"))
        engine.wait_held("finish")

    def wait_again(self, gateway, n):
        wait_until(lambda: gateway.replica()["binds_foreign"] == n, f"dropped {n} times")

    def wait_slot_free(self, gateway):
        wait_until(lambda: sum(s["state"] == "idle" for s in gateway.replica()["slots"]) == 4
                   and gateway.replica()["kv_operations"] == 0, "all but one slot idle")

    def sent(self, engine):
        return [r for r in engine.log if r.target == "/v1/messages"]

    def ask_for_what_another_leaves(self, stream):
        """What a message says of reuse that asks for the text of such a chat."""
        self.need_standin("an answer held back behind its slot")
        engine, gateway = self.pair(mode="store", slots=2)
        text = words(300, "moment")
        body = {"max_tokens": 4, "messages": [{"role": "user", "content": text}],
                "stream": stream}
        self.message(gateway, "hello", "three")
        with gateway.client() as chat, gateway.client() as other:
            self.leave_in_that_moment(gateway, engine, chat, text)
            self.send(other, "/v1/messages", "two", body)
            self.wait_again(gateway, 1)
            engine.release("finish", match="chat")
            self.assertEqual(chat.read_answer().status, 200)
            answer = other.read_answer()
        self.assertEqual(answer.status, 200)
        self.assertTrue(answer.complete)
        gateway.wait_quiet()
        self.assertEqual(gateway.replica()["binds_lost"], 0)
        self.assert_clean(engine)
        return re.findall(rb'"cache_read_input_tokens": ?(\d+)', answer.body)

    def test_slot_that_another_leaves_in_that_moment(self):
        self.assertEqual(self.ask_for_what_another_leaves(stream=False), [b"0"])

    def test_slot_that_another_leaves_in_that_moment_and_a_stream(self):
        self.assertEqual(set(self.ask_for_what_another_leaves(stream=True)), {b"0"})

    def test_slot_that_ones_own_chat_leaves_in_that_moment(self):
        self.need_standin("an answer held back behind its slot")
        engine, gateway = self.pair(mode="store", slots=2)
        text = words(300, "own")
        self.message(gateway, "hello", "two")   # another tenant, or nothing is kept apart
        with gateway.client() as chat:
            self.leave_in_that_moment(gateway, engine, chat, text)
            self.assertGreater(self.read(self.message(gateway, text, "one")), 200)
            engine.release("finish", match="chat")
            self.assertEqual(chat.read_answer().status, 200)
        gateway.wait_quiet()
        self.assertGreater(self.read(self.message(gateway, text, "one")), 200)
        self.assertEqual([gateway.replica()[k] for k in ("binds_foreign", "binds_lost")], [0, 0])
        self.assert_clean(engine)

    def test_after_some_of_these_others_are_waited_for(self):
        self.need_standin("answers held back behind their slots")
        engine, gateway = self.pair(mode="store", slots=5)
        text = words(300, "many")
        parts = text.split()   # more in common with the first than with the second …
        self.message(gateway, "hello", "three")
        chats = [gateway.client() for _ in range(4)]
        for i, chat in enumerate(chats):
            own = " ".join(parts[:len(parts) - 30 * i]) + f" chat {i}"
            engine.hold("finish", f"chat {i}")
            self.send(chat, CHAT, "one", chat_body(own))
            engine.wait_held("finish", i + 1)
        with gateway.client() as other:
            self.send(other, "/v1/messages", "two",
                      {"max_tokens": 4, "messages": [{"role": "user", "content": text}]})
            for i, chat in enumerate(chats[:3]):
                self.wait_again(gateway, i + 1)
                engine.release("finish", match=f"chat {i}")
                self.assertEqual(chat.read_answer().status, 200)
            self.wait_slot_free(gateway)
            self.assertEqual(len(self.sent(engine)), 4)   # with the first, "hello"
            engine.release("finish", match="chat 3")
            self.assertEqual(chats[3].read_answer().status, 200)
            answer = other.read_answer()
        self.assertEqual(self.read(answer), 0)
        self.assertEqual(gateway.replica()["binds_foreign"], 3)
        for chat in chats:
            chat.close()
        self.assert_clean(engine)

    def ask_before_another_has_begun(self, *before):
        """A message waits while a chat that was told to take slot 0 has not begun; `before`:
        what has run there, and was not seen either."""
        self.need_standin("a request that has not begun")
        engine, gateway = self.pair(mode="store", slots=2)
        text = words(300, "first")
        self.message(gateway, "hello", "three")
        gateway.wait_quiet()
        for short in before:
            self.ask(gateway, chat_body(short, id_slot=0), Authorization="Bearer one")
        engine.hold("arrive", "chat")
        with gateway.client() as chat, gateway.client() as other:
            self.send(chat, CHAT, "one", chat_body(text + " chat", id_slot=0))
            engine.wait_held("arrive")
            looks = self.looks(engine)
            self.send(other, "/v1/messages", "two",
                      {"max_tokens": 4, "messages": [{"role": "user", "content": text}]})
            engine.wait_for(lambda: self.looks(engine) > looks + 5, what="looks")
            self.assertEqual(len(self.sent(engine)), 1)
            engine.release("arrive", match="chat")
            self.assertLess(self.reused(chat.read_answer().json()), 64)   # what is its own
            self.assertEqual(self.read(other.read_answer()), 0)
        self.assert_clean(engine)

    def test_task_of_others_is_seen_before_one_is_sent(self):
        """Else the engine could begin with it, on the slot that the other was told to take,
        and the other would find it there."""
        self.ask_before_another_has_begun()

    def test_task_of_others_is_not_taken_for_the_one_before_it(self):
        self.ask_before_another_has_begun("short one")

    def looks(self, engine):
        return sum(r.target == "/slots" for r in engine.log)

    def hold_looks(self, gateway, engine):
        """From the next one on: the slot of a message that comes now is not found."""
        self.message(gateway, "hello", "one")
        self.message(gateway, "hello", "two")
        gateway.wait_quiet()
        engine.hold("slots")

    def test_refusal_is_not_held(self):
        self.need_standin("a look at the slots that is held")
        engine, gateway = self.pair(mode="store", slots=2)
        self.hold_looks(gateway, engine)
        answer = gateway.fetch("POST", "/v1/messages", {"max_tokens": "x", "messages": [
            {"role": "user", "content": "x"}]}, headers=[("x-api-key", "one")])
        self.assertEqual(answer.status, 400)
        engine.release("slots")
        gateway.wait_quiet()

    def test_client_that_leaves_an_answer_that_is_held(self):
        self.need_standin("a look at the slots that is held")
        engine, gateway = self.pair(mode="store", slots=2)
        self.hold_looks(gateway, engine)
        with gateway.client() as client:
            self.send(client, "/v1/messages", "one", {"max_tokens": 4, "messages": [
                {"role": "user", "content": "leaves"}]})
            engine.wait_for(lambda: any(r.done for r in engine.bodies("leaves")), what="done")
            self.assertTrue(client.silent())
        wait_until(lambda: gateway.in_flight() == 0, "gone")
        engine.release("slots")
        gateway.wait_quiet()
        self.assertEqual(self.read(self.message(gateway, "hello", "two")), 0)
        self.assert_clean(engine)

    def test_slot_that_cannot_be_erased_is_not_used(self):
        self.need_standin("a slot action that fails")
        engine, gateway = self.pair({"timeouts": {"queue": "500ms", "slot": "100ms"}},
                                    mode="store", slots=1)
        self.message(gateway, words(300, "kept"), "one")
        gateway.wait_quiet()
        engine.hold("erase")
        body = {"max_tokens": 4, "messages": [{"role": "user", "content": words(300, "kept")}]}
        answer = gateway.fetch("POST", "/v1/messages", body, headers=[("x-api-key", "two")])
        self.assertEqual(answer.status, 503)
        engine.release("erase")
        engine.wait_idle()
        gateway.wait_quiet()
        self.assertEqual(self.read(self.message(gateway, words(300, "kept"), "two")), 0)

    def test_shared_ones_erase_nothing(self):
        engine, gateway = self.pair({"isolation": "shared"}, mode="store", slots=2)
        text = words(400, "ours")
        self.message(gateway, text, "one")
        gateway.wait_quiet()
        self.assertGreater(self.read(self.message(gateway, text, "two")), 300)
        self.assertEqual([r for r in engine.log if "action=erase" in r.target], [])

    def test_chats_of_others_where_the_engine_empties_idle_slots(self):
        self.need_standin("idle slots emptied")
        engine, gateway = self.pair(mode="store", empties_idle=True, slots=2)
        text = "emptied " + words(400)
        self.ask(gateway, chat_body(text), Authorization="Bearer one")
        gateway.wait_quiet()
        bodies = len(engine.bodies("emptied"))
        self.ask(gateway, chat_body(text + "."), Authorization="Bearer one")
        self.assertNotIn("cache_prompt", engine.bodies("emptied")[bodies].json())
        self.assertEqual(self.reused(self.ask(gateway, chat_body(text),
                                              Authorization="Bearer two")), 0)
        self.assertIs(engine.bodies("emptied")[-1].json()["cache_prompt"], False)


class Forgetting(TenantCase):
    def test_a_tenant_is_forgotten_for_good(self):
        engine, gateway = self.pair(mode="store", slots=2)
        mine, others = chat_body(words(400, "mine")), chat_body(words(400, "theirs"))
        self.ask(gateway, mine, Authorization="Bearer one")
        gateway.wait_quiet()
        self.ask(gateway, others, Authorization="Bearer two")
        gateway.wait_quiet()
        digits = re.findall(r"tenant=(\w{8})", gateway.text())[0]
        gone = self.forget(gateway, tenant=digits)
        self.assertGreater(gone["blocks"], 0)
        self.assertGreater(gone["prompts"], 0)
        self.assertEqual(self.reused(self.ask(gateway, mine, Authorization="Bearer one")), 0)
        self.assertIn("miss=first-sight", gateway.text().splitlines()[-1])
        self.assertGreater(
            self.reused(self.ask(gateway, others, Authorization="Bearer two")), 300)

    def test_a_start_is_forgotten_by_its_body(self):
        _, gateway = self.pair(mode="store", slots=1)
        system = {"role": "system", "content": words(300, "start")}
        body = chat_body([system, {"role": "user", "content": "one"}])
        self.ask(gateway, body)
        gateway.wait_quiet()
        gone = self.forget(gateway, prefix=chat_body([system]))
        self.assertGreater(gone["blocks"], 0)
        self.assertEqual(self.reused(self.ask(gateway, body)), 0)

    def test_what_is_wrong_is_said(self):
        _, gateway = self.pair(mode="store")
        for body, part in ((b"x", b"JSON object"), (b"{}", b"say what"),
                           (b'{"tenant": "nobody"}', b"8 digits"),
                           (b'{"all": 1}', b"all is true"),
                           (b'{"prefix": {"messages": 1}}', b"no body")):
            status, answer = gateway.admin("/cache/forget", "POST", body)
            self.assertEqual(status, 400, body)
            self.assertIn(part, answer)
        self.assertEqual(gateway.admin("/cache/forget")[0], 405)
        self.assertEqual(self.forget(gateway, all=True), {"prompts": 0, "blocks": 0})


class Staying(TenantCase):
    def test_blocks_go_after_their_time(self):
        _, gateway = self.pair({"store": {"ttl": "1s"}}, mode="store")
        self.ask(gateway, chat_body(words(300, "short")))
        wait_until(lambda: gateway.store_stats()["blocks"] == 0 and json.loads(gateway.admin("/cache")[1])["tree"]["expired"] > 0, "no blocks left")


class Admission(TenantCase):
    CONFIG = {"store": {"admission": "second-sight"}}

    def test_what_comes_once_is_not_stored_and_chats_are_from_their_second_turn_on(self):
        _, gateway = self.pair(self.CONFIG, mode="store", slots=1)
        messages = [{"role": "user", "content": words(400, "turn")}]
        for turn in range(3):
            answer = self.ask(gateway, chat_body(messages))
            gateway.wait_quiet()
            if turn == 0:
                self.assertEqual(gateway.store_stats()["blocks"], 0)
            messages += [answer["choices"][0]["message"],
                         {"role": "user", "content": f"and then {turn}?"}]
        self.assertGreater(gateway.store_stats()["blocks"], 0)
        self.ask(gateway, chat_body(words(300, "somebody else")))
        gateway.wait_quiet()
        self.assertGreater(self.reused(self.ask(gateway, chat_body(messages))), 300)

    def test_short_prompts_are_not_stored(self):
        _, gateway = self.pair({"store": {"min_tokens": 1000}}, mode="store")
        self.ask(gateway, chat_body(words(500, "short")))
        gateway.wait_quiet()
        self.assertEqual(gateway.store_stats()["blocks"], 0)
        self.ask(gateway, chat_body(words(1200, "long")))
        wait_until(lambda: gateway.store_stats()["blocks"] > 0, "the long one is stored")


class SideRequests(TenantCase):
    def test_titles_and_tags_do_not_wash_out_the_chat(self):
        for slots in (1, 2):
            with self.subTest(slots=slots):
                _, gateway = self.pair({"store": {"max_bytes": "16MiB"}}, mode="store",
                                       slots=slots)
                messages = [{"role": "user", "content": words(400, f"chat {slots}")}]
                for turn in range(3):
                    answer = self.ask(gateway, chat_body(messages))
                    gateway.wait_quiet()
                    if turn:
                        self.assertGreater(self.reused(answer), 350, turn)
                    messages += [answer["choices"][0]["message"],
                                 {"role": "user", "content": f"and {turn}?"}]
                    for side in range(3):
                        text = json.dumps(messages)
                        self.ask(gateway, chat_body(f"Title {turn} {side} of {text}",
                                                    max_tokens=2))
                        gateway.wait_quiet()
                gateway.stop()
