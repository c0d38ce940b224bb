# SPDX-License-Identifier: MIT
"""Whose text is whose: tenants that share nothing, what is forgotten, what goes after a
time, and what never gets in."""

import json
import re

from harness import CHAT, Case, chat_body, wait_until, words


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
