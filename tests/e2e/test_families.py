# SPDX-License-Identifier: MIT
"""Families of field reports that no other file is about; docs/field-reports.md lists all.

A test carries the number of its family (K09 …); what a family is stands there.
"""

import json
import os
import re
import socket
import stat

from harness import CHAT, Case, Gateway, chat_body, request_bytes, stream_text, wait_until, words
from test_bodies import without_splice

LONG = {"stream": True, "max_tokens": 10000, "ignore_eos": True}


def chat_bytes(text, **more):
    return request_bytes("POST", CHAT, json.dumps(chat_body(text, **more)).encode())


def system_body(system, question, **more):
    return chat_body([{"role": "system", "content": system},
                      {"role": "user", "content": question}], **more)


class FamilyCase(Case):
    def access(self, gateway, n):
        """The fields of the n-th line of the access log."""
        def lines():
            return [x for x in gateway.output if "event=access" in x]
        wait_until(lambda: len(lines()) > n, lambda: f"{n + 1} lines of the access log")
        return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', lines()[n]))

    def several(self, n, config=None, **settings):
        """A gateway in front of n engines, which are all ready."""
        self.need_gateway()
        engines = [self.engine(slot_dir=os.path.join(self.folder, f"slots{i}"), **settings)
                   for i in range(n)]
        upstreams = [{"url": e.url, "name": f"e{i}", "slot_dir": e.settings.slot_dir}
                     for i, e in enumerate(engines)]
        gateway = Gateway(self.folder, None, {"upstreams": upstreams, **(config or {})})
        self.gateways.append(gateway)
        gateway.start()
        wait_until(lambda: all(r["mode"] in ("store", "observe")
                               for r in gateway.stats()["replicas"]), "all are ready")
        return engines, gateway


class Leaving(FamilyCase):
    def leaves(self, gateway, state, send, then=lambda client: None):
        """Clients that leave in this state are noticed although nothing is written."""
        for how in ("close", "abort", "half"):
            client = gateway.client()
            client.send(send)
            wait_until(lambda: gateway.in_state(state) == 1, lambda: f"{state}: {gateway.stats()}")
            then(client)
            if how == "half":
                client.sock.shutdown(socket.SHUT_WR)
            else:
                getattr(client, how)()
            wait_until(lambda: gateway.in_state(state) == 0, f"{how} in {state} is noticed")
            client.close()

    def test_K09_while_queued(self):
        engine, gateway = self.pair(slots=1)
        engine.hold("head", "first")
        with gateway.client() as first:
            first.send(chat_bytes("first"))
            engine.wait_held("head")
            self.leaves(gateway, "queue", chat_bytes("queued"))
            engine.release("head", match="first")
            self.assertEqual(first.read_answer().status, 200)
        self.assertEqual(engine.bodies("queued"), [])
        self.assertEqual(gateway.total("client_gone"), 3)

    def test_K09_while_the_engine_computes(self):
        engine, gateway = self.pair(slots=8)
        engine.hold("head")
        self.leaves(gateway, "first-byte", chat_bytes("waiting", stream=True))
        self.assertEqual(gateway.in_flight(), 0)
        self.assertEqual(gateway.total("client_gone"), 3)
        engine.release("head")

    def test_K09_in_the_answer(self):
        engine, gateway = self.pair(slots=8)
        engine.hold("stream")
        self.leaves(gateway, "relay", chat_bytes("answered", **LONG),
                    then=lambda client: client.read_head())
        self.assertEqual(gateway.in_flight(), 0)
        self.assertEqual(gateway.total("client_gone"), 3)
        engine.release("stream")

    def test_K09_while_blocks_are_put_back(self):
        engine, gateway = self.pair(mode="store", slots=1)
        for name in ("a", "b"):
            self.assertEqual(gateway.fetch("POST", CHAT, chat_body(words(300, name))).status, 200)
            gateway.wait_quiet()
        engine.hold("restore")
        client = gateway.client()
        client.send(chat_bytes(words(300, "a")))
        engine.wait_held("restore")
        self.assertEqual(gateway.in_state("restore"), 1)
        client.close()
        wait_until(lambda: gateway.in_flight() == 0, "is noticed")
        engine.release("restore")
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("next")).status, 200)
        self.assert_clean()


class Draining(FamilyCase):
    """K09: the choice between stopping the engine and letting it end."""

    def drain(self, point, body):
        engine, gateway = self.pair({"on_disconnect": "drain"}, mode="store", slots=1)
        engine.hold(point, "left behind")
        client = gateway.client()
        client.send(request_bytes("POST", CHAT, json.dumps(body).encode()))
        engine.wait_held(point)
        if point == "stream":
            client.read_head()
        wait_until(lambda: gateway.in_state("relay" if point == "stream" else "first-byte"),
                   "the engine is at it")
        client.close()
        with gateway.client() as other:
            other.send(chat_bytes("next"))
            wait_until(lambda: gateway.in_flight() == 2, "both are there")
            engine.release(point, match="left behind")
            self.assertEqual(other.read_answer().status, 200)
        gateway.wait_quiet()
        record = engine.bodies("left behind")[0]
        self.assertTrue(record.done)
        self.assertEqual(gateway.total("client_gone"), 1)
        saved = len(engine.events("save"))
        self.assertGreater(saved, 0, "what it computed is stored")
        again = gateway.fetch("POST", CHAT, body)
        self.assertEqual((again.status, again.complete), (200, True))
        self.assertGreater(engine.bodies("left behind")[-1].cache_n, 250)
        self.assert_clean()
        return engine, gateway

    def test_K09_drain_in_the_answer(self):
        self.drain("stream", chat_body("left behind " + words(300), stream=True))

    def test_K09_drain_before_the_answer(self):
        self.drain("head", chat_body("left behind " + words(300), stream=True))

    def test_K09_drain_of_an_answer_without_stream(self):
        self.drain("head", chat_body("left behind " + words(300)))

    def test_K09_drain_where_the_engine_fails(self):
        engine, gateway = self.pair({"on_disconnect": "drain"}, slots=1)
        engine.fault("rst", after=4)
        engine.hold("stream")
        client = gateway.client()
        client.send(chat_bytes("left behind", **LONG))
        engine.wait_held("stream")
        client.read_head()
        client.close()
        wait_until(lambda: gateway.in_state("relay") == 1, "the engine is at it")
        engine.release("stream")
        wait_until(lambda: gateway.in_flight() == 0, "is over")
        self.assertEqual(gateway.total("client_gone"), 1)
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("next")).status, 200)

    def test_K09_drain_ends_with_the_gateway(self):
        engine, gateway = self.pair({"on_disconnect": "drain", "timeouts": {"drain": "100ms"}},
                                    slots=1)
        engine.hold("stream")
        client = gateway.client()
        client.send(chat_bytes("left behind", **LONG))
        engine.wait_held("stream")
        client.read_head()
        client.close()
        self.assertEqual(gateway.stop(), 0)
        engine.wait_for(lambda: engine.bodies("left behind")[0].gone_t, what="it was let go")


class Messages(FamilyCase):
    def test_K26_routed_and_observed_like_a_chat(self):
        engines, gateway = self.several(2)
        for e in engines:
            e.wait_idle()
            e.reset_log()
            e.hold("head")
        body = {"max_tokens": 2, "messages": [{"role": "user", "content": "words " + words(100)}]}
        raw = json.dumps(body).encode()
        clients = [gateway.client() for _ in range(2)]
        for i, client in enumerate(clients):
            client.send(request_bytes("POST", "/v1/messages", raw))
            wait_until(lambda i=i: gateway.in_state("first-byte") == i + 1, "is on its way")
        for e in engines:
            e.wait_held("head")    # one each: the routing knows them
            e.release("head")
        answers = [client.read_answer() for client in clients]
        gateway.wait_quiet()
        records = [e.generations()[-1] for e in engines]
        self.assertEqual([a.status for a in answers], [200, 200])
        self.assertEqual(sorted(a.body for a in answers), sorted(bytes(r.sent) for r in records))
        self.assertEqual([r.body for r in records], [raw, raw])
        self.assertEqual(gateway.total("prompt_tokens"),
                         sum(r.cache_n + r.prompt_n for r in records))
        self.assertEqual(gateway.total("uninspected"), 0)


TOOLS = [{"type": "function", "function": {
    "name": name, "description": words(30, name), "parameters": {
        "type": "object", "required": ["zeta", "alpha"], "properties": {
            key: {"type": "string", "description": words(6, key)}
            for key in ("zeta", "alpha", "mid", "Beta", "omega")}}}} for name in ("look", "go")]


class Untouched(FamilyCase):
    def test_K29_equal_bodies_leave_as_equal_bytes_whatever_the_order_of_keys(self):
        engine, gateway = self.pair(mode="store")
        raw = json.dumps(chat_body("question", tools=TOOLS), separators=(" ,  ", ":\t")).encode()
        for _ in range(2):
            answer = gateway.fetch("POST", CHAT, raw, [("Content-Type", "application/json")])
            self.assertEqual(answer.status, 200)
            gateway.wait_quiet()
        records = engine.bodies("question")
        self.assertEqual([without_splice(r.body, raw) for r in records], [raw, raw])
        tokens = records[1].cache_n + records[1].prompt_n
        self.assertEqual(records[1].prompt_n, 1, f"of {tokens} tokens: the prompt is the same")

    def test_K30_salt_arrives_and_separates(self):
        engine, gateway = self.pair(mode="store", slots=1)
        for n, (salt, least, most) in enumerate((("red", 0, 0), ("blue", 0, 0), ("blue", 280, 999),
                                                 ("red", 280, 999))):
            body = chat_body(words(300), cache_salt=salt)
            self.assertEqual(gateway.fetch("POST", CHAT, body).status, 200)
            gateway.wait_quiet()
            record = engine.generations()[-1]
            self.assertEqual(record.json()["cache_salt"], salt)
            self.assertTrue(least <= record.cache_n <= most, (n, salt, record.cache_n))
        self.assert_clean()

    def test_K31_what_our_parser_refuses_is_relayed_and_counted(self):
        engine, gateway = self.pair()
        for raw in (b'{"messages":[{"role":"user","content":"\\ud83d"}],"max_tokens":2}',
                    b'{"messages":[{"role":"user","content":"\\udc00x\\ud83d"}],"max_tokens":2}',
                    b'{"messages":[{"role":"user","content":"nan"}],"temperature":NaN}',
                    b'{"messages":[{"role":"user","content":"inf"}],"temperature":-Infinity}',
                    b'\xef\xbb\xbf{"messages":[{"role":"user","content":"mark"}]}',
                    b'{"messages":[{"role":"user","content":"raw \x01"}]}',
                    b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
                    b'{"messages":[{"role":"user","content":"comma"}],}',
                    b'{"messages":[', b'not JSON at all'):
            with self.subTest(raw):
                before = gateway.total("uninspected")
                answer = gateway.fetch("POST", CHAT, raw, [("Content-Type", "application/json")])
                wait_until(lambda: gateway.in_flight() == 0, "idle")
                record = engine.requests(CHAT)[-1]
                self.assertEqual(record.body, raw)
                self.assertEqual((answer.status, answer.body), (record.status, bytes(record.sent)))
                self.assertEqual(gateway.total("uninspected"), before + 1)
        self.assert_clean()


class Misread(FamilyCase):
    """Values of headers that an engine's HTTP library may read in another way than we do."""

    HIDDEN = [*(f"a%{c}b" for c in ("0d", "0D", "0a", "0A", "00", "u000d", "u000A", "u0000")),
              "http://a%0D%0AX-Evil:%201"]
    ODD = ["", ",", ", ,", "1.2.3.4,", "1.2.3.4,,5.6.7.8", "name", "1.2.3.4%2C5.6.7.8", "<a>",
           "1.2.3.256", "[::1"]
    LISTS = ["9.9.9.9", "9.9.9.9:80,[2001:db8::1]:443", "unknown,  ::1"]

    def seen(self, engine, gateway, headers):
        """What the engine gets of these headers."""
        answer = gateway.fetch("POST", "/tokenize", {"content": "x"}, headers=headers)
        self.assertEqual(answer.status, 200)
        names = {name.lower() for name, _ in headers}
        return [(k, v) for k, v in engine.requests("/tokenize")[-1].headers
                if k.lower() in names]

    def test_CVE_2026_45372_hidden_line_ends_do_not_reach_the_engine(self):
        engine, gateway = self.pair({"log": {"level": "debug"}})
        for value in self.HIDDEN:
            for name in ("X-Odd", "Cookie", "Authorization", "Origin", "Referer"):
                sent = [("X-First", "100%"), (name, value), ("X-Last", "%20")]
                self.assertEqual(self.seen(engine, gateway, sent), [sent[0], sent[2]], sent)
        wait_until(lambda: "event=header-removed" in gateway.text(), "it is told")
        self.assertRegex(gateway.text(), r"event=header-removed id=\S+ name=X-Odd\b")

    def test_CVE_2026_45372_other_escapes_arrive(self):
        engine, gateway = self.pair()
        sent = [("Referer", "http://a.example/?q=a%20b%3D"), ("X-Odd", "%"), ("X-Odd", "%0"),
                ("Cookie", "a=%7B%22b%22%3A1%7D; c=%09"), ("X-Odd", "100%25"), ("X-Odd", "%250d"),
                ("X-Odd", "%u20ac")]
        self.assertEqual(self.seen(engine, gateway, sent), sent)

    def test_CVE_2026_45372_may_be_refused_or_pass(self):
        engine, gateway = self.pair({"headers": {"hidden_line_ends": "refuse"}})
        before = len(engine.requests("/tokenize"))
        with gateway.client() as client:
            for value in self.HIDDEN:
                client.send(request_bytes("POST", "/tokenize", b'{"content":"x"}',
                                          [("X-Odd", value)]))
                answer = client.read_answer()
                self.assertEqual(answer.status, 400, value)
                self.assertIn("hidden_line_ends", answer.json()["error"]["message"])
            self.assertEqual(len(engine.requests("/tokenize")), before)
            client.send(request_bytes("POST", "/tokenize", b'{"content":"x"}'))
            self.assertEqual(client.read_answer().status, 200, "the connection goes on")
        gateway = self.gateway(engine, {"headers": {"hidden_line_ends": "pass"}},
                               wait="listening", store=False)
        for value in self.HIDDEN:
            self.assertEqual(self.seen(engine, gateway, [("X-Odd", value)]), [("X-Odd", value)])

    def test_CVE_2026_45372_answers_pass_as_they_are(self):
        engine, gateway = self.pair()
        engine.script("/scripted", b"HTTP/1.1 302 Found\r\nLocation: /a?b=%0D%0A\r\n"
                      b"Content-Length: 0\r\n\r\n")
        answer = gateway.fetch("GET", "/scripted")
        self.assertEqual((answer.status, answer.get("Location")), (302, "/a?b=%0D%0A"))

    def forwarded(self, engine, how):
        """What comes of each of these headers in this mode."""
        gateway = self.gateway(engine, {"headers": {"forwarded_for": how}}, wait="listening",
                               store=False)
        seen = {value: [v for _, v in self.seen(engine, gateway, [("X-Forwarded-For", value)])]
                for value in (*self.ODD, *self.LISTS)}
        two = [("X-Forwarded-For", "9.9.9.9"), ("x-forwarded-for", "odd")]
        seen["two"] = [v for _, v in self.seen(engine, gateway, two)]
        gateway.stop()
        return seen

    def test_CVE_2026_46527_odd_addresses_do_not_reach_the_engine(self):
        engine, _ = self.pair()
        for how, ours in (("check", []), ("append", ["127.0.0.1"]), ("remove", [])):
            seen = self.forwarded(engine, how)
            for value in (*self.ODD, "two"):
                self.assertEqual(seen[value], ours, (how, value))
            for value in self.LISTS:
                want = {"check": [value], "append": [value + ", 127.0.0.1"], "remove": []}[how]
                self.assertEqual(seen[value], want, how)


class Secret(FamilyCase):
    def test_K35_key_is_secret_of_its_own_and_outlives_a_restart(self):
        keys = []
        for n in range(2):
            folder = os.path.join(self.folder, f"gateway{n}")
            os.mkdir(folder)
            engine = self.engine()
            gateway = Gateway(folder, engine.url)
            gateway.slot_dir = engine.settings.slot_dir
            self.gateways.append(gateway)
            gateway.start(wait="ready")
            path = os.path.join(gateway.store_dir, "key")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            with open(path, "rb") as f:
                keys.append(f.read())
            self.assertEqual(gateway.stop(), 0)
            gateway.start(wait="ready")
            with open(path, "rb") as f:
                self.assertEqual(f.read(), keys[n])
            for text in (keys[n].hex(), repr(keys[n])):
                self.assertNotIn(text, gateway.text())
            gateway.stop()
        self.assertNotEqual(keys[0], keys[1])
        self.assertGreater(len(set(keys[0])), 10, "it is random")


class Parting(FamilyCase):
    """Where does a prompt part from all that is known? The access log has it in bytes of
    text, and the hit rate is the engine's own."""

    def part(self, *bodies, **config):
        engine, gateway = self.pair({"observe": True}, store=False, **config)
        found = []
        for n, body in enumerate(bodies):
            self.assertEqual(gateway.fetch("POST", CHAT, body).status, 200)
            line = self.access(gateway, n)
            found.append((int(line["known_bytes"]), int(line["text_bytes"]), line["miss"]))
        delivered = sum(r.cache_n for r in engine.generations())
        self.assertEqual(gateway.total("delivered_tokens"), delivered)
        return found

    def test_K37_changing_token_at_the_front_is_seen(self):
        def body(nonce):
            return chat_body([{"role": "system", "content": f"x-billing: cch={nonce}"},
                              {"role": "system", "content": words(400, "instructions")},
                              {"role": "user", "content": "hello"}])
        first, second, again = self.part(body("4711"), body("0815"), body("0815"))
        self.assertEqual(first[0], 0)
        self.assertEqual((second[0], second[2]), (0, "first-sight"))
        self.assertEqual(again[0], again[1], "nothing parts from itself")
        self.assertGreater(again[1], 400)

    def test_K38_clock_at_the_front_is_a_miss_and_behind_the_text_a_hit(self):
        def body(clock, front):
            text = words(400, "house")
            return chat_body([{"role": "system", "content":
                               f"It is {clock}. {text}" if front else f"{text} It is {clock}."},
                              {"role": "user", "content": "lights"}])
        _, second = self.part(body("12:00:01", True), body("12:00:15", True))
        self.assertEqual((second[0], second[2]), (0, "first-sight"))
        _, second = self.part(body("12:00:01", False), body("12:00:15", False))
        self.assertGreater(second[0], second[1] / 2)
        self.assertLess(second[0], second[1])

    def test_K39_moved_document_ends_what_is_shared(self):
        document = "DOCUMENT " + words(400, "document")

        def body(*turns):
            texts = [*turns[:-1], f"{document} {turns[-1]}"]    # in the last message, always
            return chat_body([{"role": ("user", "assistant")[i % 2], "content": t}
                              for i, t in enumerate(texts)])
        long = words(200, "first")
        _, second, third = self.part(body(long), body(long, "yes", "and then"),
                                     body(long, "yes", "and then", "so", "at last"))
        few = 100    # role names and the like
        self.assertLess(second[0], few, "it stands before all")
        self.assertGreater(third[0], len(long) - 256 - few, "what did not move is shared")
        self.assertLess(third[0], len(long) + few)

    def test_K40_rewritten_history_is_a_prediction_beside_the_engines_count(self):
        engine, gateway = self.pair(mode="store", slots=1)
        first = chat_body(words(300, "thinking"))
        text = gateway.fetch("POST", CHAT, first).json()["choices"][0]["message"]["content"]
        gateway.wait_quiet()
        engine.set(counts={"cache_n": 0, "cached_tokens": 0})    # its template dropped all
        turn = chat_body([*first["messages"], {"role": "assistant", "content": text},
                          {"role": "user", "content": "go on"}])
        self.assertEqual(gateway.fetch("POST", CHAT, turn).status, 200)
        gateway.wait_quiet()
        total = gateway.stats()["total"]
        self.assertGreater(total["captured_tokens"], 250, "predicted")
        self.assertEqual(total["delivered_tokens"], 0, "confirmed")
        self.assertEqual(total["hit_rate_tokens"], 0)


class Figures(FamilyCase):
    def test_K42_less_than_a_block_is_a_figure_of_its_own(self):
        engine, gateway = self.pair({"block_tokens": 64})
        for cached, hits, short in ((0, 0, 0), (1, 0, 1), (63, 0, 2), (64, 1, 2), (65, 2, 2)):
            engine.set(counts={"cache_n": cached, "cached_tokens": cached, "prompt_n": 200,
                               "prompt_tokens": 200 + cached})
            self.assertEqual(gateway.fetch("POST", CHAT, chat_body(f"{cached}")).status, 200)
            wait_until(lambda: gateway.in_flight() == 0, "idle")
            total = gateway.stats()["total"]
            self.assertEqual((total["hits"], total["short_hits"]), (hits, short), cached)
        self.assertEqual(gateway.metric("incipit_short_hits_total"), 2)

    def test_K51_what_must_not_use_the_cache_is_in_no_rate(self):
        engine, gateway = self.pair(mode="store")
        text = words(300, "no cache")
        for _ in range(2):
            self.assertEqual(gateway.fetch("POST", CHAT, chat_body(text)).status, 200)
            gateway.wait_quiet()
        before = gateway.stats()["total"]
        restores = len(engine.events("restore"))
        rows = ((CHAT, chat_body(text, cache_prompt=False)),
                (CHAT, chat_body(text, prompt_logprobs=1)),
                ("/v1/completions", {"prompt": text, "echo": True, "max_tokens": 2}))
        for path, body in rows:
            with self.subTest(str(body)[-40:]):
                self.assertEqual(gateway.fetch("POST", path, body).status, 200)
                gateway.wait_quiet()
        after = gateway.stats()["total"]
        self.assertEqual(after["ineligible"], before["ineligible"] + len(rows))
        self.assertEqual(after["misses"]["uncacheable"],
                         before["misses"]["uncacheable"] + len(rows))
        for name in ("counted", "hits", "prompt_tokens", "captured_tokens", "available_tokens",
                     "delivered_tokens", "hit_rate_tokens"):
            self.assertEqual(after[name], before[name], name)
        self.assertEqual(len(engine.events("restore")), restores)
        self.assert_clean()

    def test_K51_salt_of_each_call_its_own_is_never_a_hit(self):
        engine, gateway = self.pair(mode="store")
        for i in range(4):
            body = chat_body(words(300, "salted"), cache_salt=f"fresh {i}")
            self.assertEqual(gateway.fetch("POST", CHAT, body).status, 200)
            gateway.wait_quiet()
        total = gateway.stats()["total"]
        self.assertEqual((total["captured_tokens"], total["delivered_tokens"]), (0, 0))
        self.assertEqual(total["available_tokens"], 0)
        self.assert_clean()


class SlotFiles(FamilyCase):
    def test_K44_no_empty_slot_is_saved_and_no_unknown_file_restored(self):
        engine, gateway = self.pair(mode="store", slots=2)
        self.assertEqual(gateway.fetch("POST", CHAT, b"{}").status // 100, 4)
        engine.fault("error", match="refused")
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("refused " + words(300))).status, 400)
        engine.hold("prefill", "leaves")
        client = gateway.client()
        client.send(chat_bytes("leaves " + words(300), stream=True))
        engine.wait_held("prefill")
        client.close()
        wait_until(lambda: gateway.in_flight() == 0, "has left")
        engine.release("prefill", match="leaves")
        gateway.wait_quiet()
        for name in ("a", "b", "c", "a", "b"):
            self.assertEqual(gateway.fetch("POST", CHAT, chat_body(words(300, name))).status, 200)
            gateway.wait_quiet()
        self.assertEqual(gateway.stop(), 0)
        self.assertEqual(engine.events("save-empty", "restore-missing"), [])
        self.assertGreater(len(engine.events("save")), 0)
        self.assertGreater(len(engine.events("restore")), 0)
        for event in engine.events("save", "restore"):
            self.assertRegex(event["name"], r"^[0-9a-z][0-9a-z._-]{0,120}$")
        self.assert_clean()


class Routing(FamilyCase):
    MOST = 2    # times the mean, while others are idle

    def test_K50_common_start_is_spread_by_load(self):
        engines, gateway = self.several(4, slots=4)
        for e in engines:
            e.wait_idle()
        system = words(1000, "agent")
        for i in range(4):     # one of them knows the start by now
            self.assertEqual(gateway.fetch("POST", CHAT, system_body(system, f"warm {i}")).status,
                             200)
            gateway.wait_quiet()
        for e in engines:
            e.hold("head")
        clients = [gateway.client() for _ in range(12)]
        for i, client in enumerate(clients):
            client.send(request_bytes("POST", CHAT, json.dumps(
                system_body(system, f"user {i}")).encode()))
            wait_until(lambda i=i: gateway.in_flight() == i + 1, "is under way")
            counts = [r["in_flight"] for r in gateway.stats()["replicas"]]
            if 0 in counts:
                self.assertLessEqual(max(counts), self.MOST, counts)
        self.assertEqual(counts, [3, 3, 3, 3])
        for e in engines:
            e.release("head")
        self.assertEqual([c.read_answer().status for c in clients], [200] * 12)


class Silence(FamilyCase):
    def test_K53_limit_of_the_first_byte_is_not_that_of_a_pause(self):
        """A long prefill passes a short stall limit, and a long pause a short limit of the
        first byte."""
        engine, gateway = self.pair({"timeouts": {"first_byte": "30s", "stall": "1s"}})
        engine.hold("head")
        with gateway.client() as client:
            client.send(chat_bytes("prefill", stream=True))
            engine.wait_held("head")
            self.assertTrue(client.silent(1.4))
            engine.release("head")
            answer = client.read_answer()
            self.assertEqual((answer.status, answer.complete), (200, True))
        gateway.stop()
        gateway = self.gateway(engine, {"timeouts": {"first_byte": "1s", "stall": "30s"}})
        engine.hold("stream")
        with gateway.client() as client:
            client.send(chat_bytes("pause", stream=True))
            head = client.read_head()
            engine.wait_held("stream")
            wait_until(lambda: gateway.in_state("relay") == 1, "the answer has begun")
            events = client.events()
            next(events)
            self.assertFalse(self.ends_within(client, 1.4))
            engine.release("stream")
            self.assertEqual(head.status, 200)
            self.assertIn(b"[DONE]", b"".join(e for e, _ in events))

    def ends_within(self, client, seconds):
        client.sock.settimeout(seconds)
        try:
            while client.fill():
                pass
            return True
        except TimeoutError:
            return False
        finally:
            client.sock.settimeout(15)

    def test_K53_comments_between_events_are_off_unless_asked_for(self):
        engine, gateway = self.pair()
        engine.hold("event")
        with gateway.client() as client:
            client.send(chat_bytes("quiet", stream=True))
            engine.wait_held("event")
            client.read_head()
            self.assertTrue(client.silent(0.3))
            engine.release("event")
            self.assertNotIn(b"ping", b"".join(client.chunks()))

    def pinged(self, engine, gateway, **more):
        """A stream that rests: the comments, and the bytes without them."""
        engine.hold("event")
        with gateway.client() as client:
            client.send(chat_bytes("silence", stream=True, **more))
            engine.wait_held("event")
            head = client.read_head()
            chunks = client.chunks()
            got = b""
            for _ in range(2):      # before the first event, where the head is early
                got += next(chunks)
            self.assertEqual(got, b": ping\n\n" * 2)
            engine.release("event", 1)
            while b"data:" not in got:
                got += next(chunks)
            engine.wait_held("event")
            while not got.endswith(b"}\n\n: ping\n\n"):
                got += next(chunks)
            engine.release("event")
            got += b"".join(chunks)
        self.assertEqual(head.status, 200)
        self.assertEqual(got.replace(b": ping\n\n", b""), bytes(engine.generations()[-1].sent))
        return got

    def test_K53_comments_to_a_stream_that_rests(self):
        engine, gateway = self.pair({"streams": {"ping": "50ms"}}, early_head=True)
        got = self.pinged(engine, gateway)
        self.assertTrue(stream_text(got))

    def test_K53_no_comment_inside_an_event_and_none_before_the_head(self):
        engine, gateway = self.pair({"streams": {"ping": "30ms"}})
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        pieces = [b'data: {"choi', b'ces":[]}\n', b'\n', b'data: [DONE]\n\n']
        parts = ["@first", head]
        for i, piece in enumerate(pieces):
            parts += [b"%x\r\n%s\r\n" % (len(piece), piece), f"@after{i}"]
        engine.script(CHAT, *parts, b"0\r\n\r\n")
        for point in ("first", "after0", "after1", "after2", "after3"):
            engine.hold(point)
        with gateway.client() as client:
            client.send(chat_bytes("cut", stream=True))
            engine.wait_held("first")
            self.assertTrue(client.silent(0.2), "there is no answer yet")
            engine.release("first")
            engine.wait_held("after0")
            client.read_head()
            chunks = client.chunks()
            self.assertEqual(next(chunks), pieces[0])
            self.assertTrue(client.silent(0.2), "in the middle of a line")
            engine.release("after0")
            self.assertEqual(next(chunks), pieces[1])
            engine.wait_held("after1")
            self.assertTrue(client.silent(0.2), "in the middle of an event")
            engine.release("after1")
            self.assertEqual(next(chunks), pieces[2])
            self.assertEqual(next(chunks), b": ping\n\n")
            engine.release_all()
            rest = b"".join(chunks)
        self.assertEqual(rest.replace(b": ping\n\n", b""), pieces[3])
