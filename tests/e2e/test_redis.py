# SPDX-License-Identifier: MIT
"""Two gateways, each with an engine of its own, and one Redis between them: what one has
computed the other restores, and whatever happens to Redis, answers are right and whole."""

import json
import os
import threading

from harness import CHAT, Case, Gateway, chat_body, common, request_bytes, wait_until, words
from redis_server import MISSING, RedisServer, Relay

TIMEOUT = "5s"  # nothing here is to be late but what is made to be
BLOCK_TOKENS = 64  # by default


def body_of(system, user, **more):
    return chat_body([{"role": "system", "content": system},
                      {"role": "user", "content": user}], **more)


class RedisCase(Case):
    def setUp(self):
        super().setUp()
        if MISSING:
            self.skipTest(MISSING)
        self.need_gateway()

    def redis(self, *arguments):
        server = RedisServer(self.folder, *arguments)
        self.addCleanup(server.stop)
        return server.start()

    def relay(self, server):
        relay = Relay(server.path)
        self.addCleanup(relay.close)
        return relay

    def side(self, name, url, store=False, key="key", timeout=TIMEOUT, joined=True,
             **redis):
        """An engine and a gateway that know nothing of other sides but the Redis."""
        folder = os.path.join(self.folder, name)
        os.makedirs(os.path.join(folder, "slots"), mode=0o700, exist_ok=True)
        engine = self.engine(slot_dir=os.path.join(folder, "slots"))
        config = {"store": {"key_file": os.path.join(self.folder, key),
                            "redis": {"url": url, "timeout": timeout, **redis}}}
        gateway = Gateway(folder, engine.url, config, store=store)
        self.gateways.append(gateway)
        gateway.start().wait_ready("store")
        if joined:
            self.wait_joined(gateway)
        engine.wait_idle()
        engine.reset_log()
        return engine, gateway

    def wait_joined(self, gateway):
        """Its model has been compared with that of the others."""
        wait_until(lambda: self.figures(gateway)["models"] == 1,
                   lambda: f"a shared model: {self.figures(gateway)}")

    def ask(self, engine, gateway, body):
        answer = gateway.fetch("POST", CHAT, body)
        self.assertEqual(answer.status, 200, answer.body[:300])
        self.assert_right(engine, body, answer.json()["choices"][0]["message"]["content"])

    def figures(self, gateway):
        return gateway.store_stats()["redis"]

    def wait_state(self, gateway, state):
        wait_until(lambda: self.figures(gateway)["state"] == state,
                   lambda: f"state {state}: {self.figures(gateway)}")

    def wait_line(self, gateway, line):
        wait_until(lambda: line in gateway.text(), line)

    def wait_shared(self, gateway):
        """All that was learned is there."""
        gateway.wait_quiet()
        wait_until(lambda: self.figures(gateway)["waiting_bytes"] == 0,
                   lambda: f"nothing waiting: {self.figures(gateway)}")

    def used(self, engine, marker):
        return engine.bodies(marker)[-1].cache_n

    def teach(self, engine, gateway, system, user="tell me about apples"):
        """One side computes a prompt and shares it."""
        self.ask(engine, gateway, body_of(system, user))
        self.wait_shared(gateway)

    def shared(self, engine, a, b):
        return common(engine.prompt_of(a), engine.prompt_of(b))

    def assert_restored(self, engine, gateway, system, marker):
        """The other side sees the prompt's start for the first time, and restores it."""
        body = body_of(system, f"tell me about {marker}")
        self.ask(engine, gateway, body)
        shared = self.shared(engine, body, body_of(system, "tell me about apples"))
        self.assertGreaterEqual(self.used(engine, marker), 0.95 * shared)

    def assert_cold(self, engine, gateway, system, marker):
        self.ask(engine, gateway, body_of(system, f"tell me about {marker}"))
        self.assertLess(self.used(engine, marker), 64)


class Shared(RedisCase):
    def two(self, **more):
        server = self.redis()
        one = self.side("one", server.url, **more)
        two = self.side("two", server.url, **more)
        return server, one, two

    def check_shared(self, **more):
        server, one, two = self.two(**more)
        system = words(700, "shared")
        self.teach(*one, system)
        self.assertGreater(self.figures(one[1])["puts"], 5)
        self.assertEqual(len(server.keys("b")), self.figures(one[1])["puts"])
        self.assert_restored(*two, system, "dragons")
        f = self.figures(two[1])
        self.assertEqual(f["found"], 1)
        self.assertGreater(f["gets"], 5)
        self.assertEqual(two[1].store_stats()["redis_hits"], f["gets"])
        self.assertEqual(two[1].replica()["restores"], 1)
        self.assertEqual(two[1].restore_failures(), 0)
        self.assertEqual(sum(f["errors"].values()), 0)
        self.assert_clean()
        return server, one, two

    def test_a_prefix_computed_by_one_is_restored_by_the_other(self):
        self.check_shared()

    def test_what_came_from_there_is_kept_on_disk_as_well(self):
        _, _, two = self.check_shared(store=True)
        self.wait_shared(two[1])
        s = two[1].store_stats()
        wait_until(lambda: two[1].store_stats()["disk_blocks"] == s["blocks"],
                   lambda: f"all on disk: {two[1].store_stats()}")

    def test_a_conversation_goes_on_at_the_other_gateway(self):
        _, one, two = self.two()
        messages = [{"role": "system", "content": words(300, "talk")},
                    {"role": "user", "content": "first question"}]
        for turn, (engine, gateway) in enumerate((one, two, one)):
            body = chat_body(messages, max_tokens=40)
            answer = gateway.fetch("POST", CHAT, body)
            self.assertEqual(answer.status, 200)
            if turn:
                self.assertGreater(self.used(engine, messages[-1]["content"]), before - 64)
            before = len(engine.prompt_of(body))
            self.wait_shared(gateway)
            messages += [answer.json()["choices"][0]["message"],
                         {"role": "user", "content": f"question number {turn}"}]
        self.assert_clean()

    def test_a_gateway_that_starts_anew_finds_what_it_had(self):
        server, (engine, gateway), _ = self.two()
        system = words(500, "again")
        self.teach(engine, gateway, system)
        self.assertEqual(gateway.stop(), 0)
        engine.restart()
        gateway.start().wait_ready("store")
        self.wait_joined(gateway)
        engine.wait_idle()
        engine.reset_log()
        self.assertEqual(gateway.store_stats()["blocks"], 0)
        self.assert_restored(engine, gateway, system, "dragons")
        self.assert_clean()

    def test_other_keys_share_nothing(self):
        server = self.redis()
        one, two = self.side("one", server.url), self.side("two", server.url, key="other")
        system = words(500, "secret")
        self.teach(*one, system)
        self.assert_cold(*two, system, "dragons")
        f = self.figures(two[1])
        self.assertEqual((f["found"], f["gets"]), (0, 0))
        self.assertGreater(f["discoveries"], 0)

    def test_a_prompt_that_nobody_knows_runs_cold(self):
        _, one, two = self.two()
        self.teach(*one, words(300, "known"))
        self.assert_cold(*two, words(300, "unknown"), "dragons")
        f = self.figures(two[1])
        self.assertEqual((f["discoveries"], f["found"]), (1, 0))

    def test_values_live_as_long_as_they_are_used(self):
        server, one, _ = self.two(ttl="1h")
        system = words(400, "mortal")
        self.teach(*one, system)
        keys = [k for kind in "bps" for k in server.keys(kind)]
        self.assertGreater(len(keys), 10)
        for key in keys:
            self.assertTrue(0 < server.ask("PTTL", key) <= 3600000)
            server.ask("PEXPIRE", key, 600000)
        self.ask(*one, body_of(system, "tell me about dragons"))
        self.wait_shared(one[1])
        kinds = {kind: [server.ask("PTTL", k) for k in server.keys(kind)] for kind in "bps"}
        self.assertGreater(max(kinds["p"]), 3000000)
        self.assertGreater(max(kinds["s"]), 3000000)
        self.assertGreater(max(kinds["b"]), 3000000)

    def test_a_client_that_leaves_while_others_are_asked(self):
        server = self.redis()
        relay = self.relay(server)
        engine, gateway = self.side("one", relay.url)
        relay.hold()
        client = gateway.client()
        body = json.dumps(body_of(words(300), "leaves early")).encode()
        client.send(request_bytes("POST", CHAT, body))
        wait_until(lambda: gateway.in_state("queue") == 1, lambda: gateway.stats())
        client.close()
        wait_until(lambda: gateway.in_flight() == 0, lambda: gateway.stats())
        relay.release()
        self.ask(engine, gateway, body_of(words(300), "stays"))
        self.assertEqual(engine.bodies("leaves early"), [])
        self.assert_clean()


class Trouble(RedisCase):
    def test_killed_and_started_again(self):
        server = self.redis()
        one, two = self.side("one", server.url), self.side("two", server.url)
        system = words(400, "killed")
        self.teach(*one, system)
        server.stop()
        for side in (one, two):
            self.wait_state(side[1], "down")
        self.assert_cold(*two, system, "bridges")
        self.ask(*one, body_of(system, "tell me about bridges"))
        for side in (one, two):
            self.wait_line(side[1], "event=redis-down")
            self.assertEqual(side[1].text().count("event=redis-down"), 1)
        server.start()
        for side in (one, two):
            self.wait_state(side[1], "up")
        # It is empty now; what is used here goes there again.
        self.ask(*one, body_of(system, "tell me about candles"))
        self.wait_shared(one[1])
        three = self.side("three", server.url)
        self.assert_restored(*three, system, "dragons")
        self.assert_clean()

    def test_emptied(self):
        server = self.redis()
        one, two = self.side("one", server.url), self.side("two", server.url)
        system = words(400, "emptied")
        self.teach(*one, system)
        self.assertEqual(server.ask("FLUSHALL"), "OK")
        self.assert_cold(*two, system, "dragons")
        self.assertEqual(two[1].restore_failures(), 0)
        self.assertEqual(self.figures(two[1])["state"], "up")

    def test_blocks_gone_and_places_left(self):
        server = self.redis()
        one, two = self.side("one", server.url), self.side("two", server.url)
        system = words(400, "evicted")
        self.teach(*one, system)
        blocks = server.keys("b")
        server.ask("DEL", *blocks)
        self.assert_cold(*two, system, "dragons")
        self.assertEqual(two[1].restore_failures(), 0)
        self.assertEqual(self.figures(two[1])["found"], 0)

    def test_damaged_blocks_are_found_deleted_and_not_used(self):
        server = self.redis()
        one, two = self.side("one", server.url), self.side("two", server.url)
        system = words(400, "damaged")
        self.teach(*one, system)
        damaged = {}
        for key in server.keys("b"):
            value = server.ask("GET", key)
            damaged[key] = value[:-1] + bytes([value[-1] ^ 1])
            server.ask("SET", key, damaged[key])
        body = body_of(system, "tell me about dragons")
        self.ask(*two, body)
        f = self.figures(two[1])
        self.assertGreater(f["errors"]["damaged"], 0)
        self.assertEqual(f["gets"], 0)
        self.assertEqual(two[1].replica()["restore_failures"]["block-lost"], 1)
        wait_until(lambda: all(server.ask("GET", key) != damaged[key] for key in damaged),
                   "damaged values deleted")
        self.assert_clean()

    def test_late_answers_trip_the_breaker_once(self):
        server = self.redis()
        relay = self.relay(server)
        one = self.side("one", server.url)
        two = self.side("two", relay.url, timeout="300ms")
        system = words(300, "late")
        self.teach(*one, system)
        relay.hold()
        self.assert_cold(*two, system, "bridges")
        self.wait_state(two[1], "down")
        f = self.figures(two[1])
        asked = f["discoveries"]
        self.assertGreaterEqual(f["errors"]["timeout"], 1)
        self.assert_cold(*two, words(300, "other"), "candles")
        self.assertEqual(self.figures(two[1])["discoveries"], asked)
        relay.cut()
        relay.release()
        self.wait_state(two[1], "up")
        self.wait_line(two[1], "event=redis-up")
        self.assert_clean()

    def test_cut_connections_come_back(self):
        server = self.redis()
        relay = self.relay(server)
        one, two = self.side("one", relay.url), self.side("two", relay.url)
        system = words(300, "cut")
        self.teach(*one, system)
        relay.cut()
        wait_until(lambda: self.figures(two[1])["errors"]["closed"] > 0,
                   lambda: self.figures(two[1]))
        self.wait_state(two[1], "up")
        self.assert_restored(*two, system, "dragons")

    def test_full_takes_no_writes_and_is_still_read(self):
        server = self.redis("--maxmemory-policy", "noeviction")
        one, two = self.side("one", server.url), self.side("two", server.url)
        system = words(300, "full")
        self.teach(*one, system)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        other = words(300, "more")
        self.ask(*one, body_of(other, "tell me about apples"))
        self.wait_state(one[1], "read-only")
        f = self.figures(one[1])
        self.assertGreater(f["errors"]["full"], 0)
        self.assertGreater(f["skipped"], 0)
        self.wait_line(one[1], "event=redis-read-only")
        self.assert_restored(*two, system, "dragons")
        server.ask("CONFIG", "SET", "maxmemory", "0")
        self.wait_state(one[1], "up")
        self.wait_line(one[1], "event=redis-writes")
        there = len(server.keys("b"))
        self.ask(*one, body_of(other, "tell me about bridges"))
        self.wait_shared(one[1])
        # what could not be written before is asked for, read and written behind that
        wait_until(lambda: len(server.keys("b")) >= there + 300 // BLOCK_TOKENS, "is there")
        self.ask(*two, body_of(other, "tell me about candles"))
        self.assertGreater(self.used(two[0], "candles"), 200)

    def test_wrong_password_until_it_is_right(self):
        server = self.redis("--requirepass", "right")
        secret = os.path.join(self.folder, "password")
        with open(secret, "w", encoding="ascii") as f:
            f.write("wrong\n")
        engine, gateway = self.side("one", server.url, password_file=secret,
                                    joined=False)
        self.wait_state(gateway, "down")
        wait_until(lambda: self.figures(gateway)["errors"]["auth"] > 0,
                   lambda: self.figures(gateway))
        self.ask(engine, gateway, body_of(words(200), "goes on"))
        self.assertNotIn("wrong", gateway.text())
        self.gateways.remove(gateway)
        self.assertEqual(gateway.stop(), 0)
        with open(secret, "w", encoding="ascii") as f:
            f.write("right\n")
        self.gateways.append(gateway)
        gateway.start().wait_ready("store")
        self.wait_state(gateway, "up")

    def test_requests_under_way_while_it_dies(self):
        server = self.redis()
        one, two = self.side("one", server.url), self.side("two", server.url)
        system = words(400, "storm")
        self.teach(*one, system)
        failures = []

        def run(n):
            try:
                for i in range(3):
                    self.ask(*two, body_of(system, f"storm {n} {i}"))
            except AssertionError as why:
                failures.append(why)
        threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        server.stop()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.wait_state(two[1], "down")
        self.assert_clean()

    def test_it_is_not_there_at_the_start(self):
        server = RedisServer(self.folder)
        self.addCleanup(server.stop)
        engine, gateway = self.side("one", server.url, joined=False)
        self.ask(engine, gateway, body_of(words(200), "alone"))
        self.wait_state(gateway, "down")
        self.assertGreater(self.figures(gateway)["errors"]["connect"], 0)
        server.start()
        self.wait_state(gateway, "up")
