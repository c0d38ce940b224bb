# SPDX-License-Identifier: MIT
"""SIGHUP: another configuration for a gateway that runs."""

import hashlib
import json
import os
import signal

from harness import (CHAT, Case, Gateway, chat_body, request_bytes, stream_text, to_yaml,
                     wait_until, words)


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


class ReloadCase(Case):
    def write(self, gateway, text):
        with open(os.path.join(gateway.folder, "incipit.yaml"), "w", encoding="utf-8") as f:
            f.write(text)

    def state(self, gateway):
        return gateway.stats()["configuration"]

    def reload(self, gateway, config, good=True):
        """Has another file read, and waits until that was done."""
        before = self.state(gateway)
        self.write(gateway, config if isinstance(config, str) else to_yaml(config) + "\n")
        gateway.signal(signal.SIGHUP)
        name = "generation" if good else "failed_reloads"
        wait_until(lambda: self.state(gateway)[name] == before[name] + 1, lambda: gateway.text())
        return self.state(gateway)

    def start(self, *engines, config=None, **more):
        """A gateway that has its engines from the file; `more` is of each."""
        self.need_gateway()
        gateway = Gateway(self.folder, engines[0].url, dict(config or {}, upstreams=[
            {"url": e.url, "name": f"engine-{i}", **more} for i, e in enumerate(engines)]))
        self.gateways.append(gateway)
        command = gateway.command
        def without_upstream():
            out = command()
            at = out.index("--upstream")
            return out[:at] + out[at + 4:]   # nor a slot directory
        gateway.command = without_upstream
        return gateway.start().wait_ready()


class Files(ReloadCase):
    CONFIG = {"limits": {"body_bytes": "1MiB"}}

    def test_bad_file_changes_nothing_and_is_said_with_its_line(self):
        _, gateway = self.pair(self.CONFIG)
        missing = os.path.join(self.folder, "no-such-file")
        for text, why in (("limits:\n  body_bytes: 2KiB\n  connections: many\n", "yaml:3: "),
                          ("limits:\n  body_bytes: 2KiB\n nonsense", "yaml:"),
                          ("limits: {body_bytes: 2KiB}\nno_such_key: 1\n", "unknown key"),
                          (f"limits: {{body_bytes: 2KiB}}\nkeys_file: {missing}\n", "no-such-file"),
                          ("limits: {body_bytes: 2KiB}\nkeys: [{name: a, digest: x}]\n", "digest"),
                          ("limits: {body_bytes: 2KiB}\nadmin: {listen: '127.0.0.1'}\n", "yaml:2")):
            state = self.reload(gateway, text, good=False)
            self.assertEqual(state["last_reload"], "failed")
            self.assertIn(why, state["why"])
            self.assertIn(why, gateway.text())
            self.assertEqual(state["generation"], 1)
            big = {"content": "x" * 5000}
            self.assertEqual(gateway.fetch("POST", "/tokenize", big).status, 200, text)
        self.assertEqual(gateway.metric("incipit_reload_failures_total"), 6)
        self.assertEqual(self.reload(gateway, self.CONFIG)["why"], "")

    def test_without_a_file_there_is_nothing_to_read(self):
        _, gateway = self.pair()
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: "without --config" in gateway.text(), "it is said")
        self.assertEqual(gateway.fetch("GET", "/health").status, 200)

    def test_what_needs_a_restart_is_named_and_the_rest_takes_effect(self):
        _, gateway = self.pair(self.CONFIG)
        state = self.reload(gateway, {
            "block_tokens": 128, "workers": 3, "store": {"ram_bytes": "64MiB"},
            "limits": {"body_bytes": "2KiB"}, "log": {"access": "off"}})
        for key in ("block_tokens", "workers", "store.ram_bytes"):
            self.assertIn(key, state["needs_a_restart"])
        self.assertNotIn("limits", state["needs_a_restart"])
        self.assertEqual(gateway.fetch("POST", "/tokenize", {"content": "x" * 5000}).status, 413)
        self.assertIn("needs_a_restart=\"", gateway.text())
        self.assertEqual(gateway.metric("incipit_configuration_generation"), 2)
        self.assertEqual(self.reload(gateway, {"block_tokens": 64})["needs_a_restart"], "")

    def test_limits_times_and_level(self):
        engine, gateway = self.pair(self.CONFIG)
        self.reload(gateway, {"limits": {"connections": 1}, "log": {"level": "warn"},
                              "timeouts": {"first_byte": "300ms", "idle": "200ms"},
                              "headers": {"cache_status": "off"}})
        lines = len(gateway.output)
        with gateway.client() as client:
            client.send(request_bytes("GET", "/health"))
            self.assertEqual(client.read_answer().status, 200)
            self.assertEqual(gateway.fetch("GET", "/health").status, 503)
            self.assertTrue(client.wait_closed())
        answer = wait_until(lambda: (a := gateway.fetch("POST", CHAT, chat_body("x"))).status == 200
                            and a, "room")
        self.assertIsNone(answer.get("Cache-Status"))
        engine.hold("head", "late")
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("late")).status, 504)
        engine.release("head", match="late")
        self.assertEqual([x for x in gateway.output[lines:] if "level=info" in x], [])

    def test_many_reloads(self):
        _, gateway = self.pair(self.CONFIG)
        for i in range(30):
            self.reload(gateway, dict(self.CONFIG, tenants=[
                {"name": f"t{i}", "match": digest(str(i))}]))
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("x")).status, 200)


class Streams(ReloadCase):
    def test_streams_in_flight_go_on_and_so_do_their_connections(self):
        engine, gateway = self.pair({"limits": {"connections": 64}}, slots=2)
        engine.hold("stream")
        clients = [gateway.client() for _ in range(3)]   # two run, one waits for a slot
        for i, client in enumerate(clients):
            client.send(request_bytes("POST", CHAT, json.dumps(
                chat_body(f"stream {i}", stream=True)).encode()))
        wait_until(lambda: gateway.in_flight() == 3, "in flight")
        engine.wait_held("stream")
        self.reload(gateway, {"limits": {"connections": 32, "queue": 5}, "log": {"level": "debug"}})
        self.reload(gateway, "limits: {connections: 0}\n", good=False)
        engine.release("stream")
        for i, client in enumerate(clients):
            answer = client.read_answer()
            self.assertTrue(answer.complete)
            self.assertIn(b"[DONE]", answer.body)
            self.assert_right(engine, chat_body(f"stream {i}", stream=True),
                              stream_text(answer.body))
            client.send(request_bytes("GET", "/health"))   # the same connection
            self.assertEqual(client.read_answer().status, 200)
            client.close()


class Credentials(ReloadCase):
    def test_keys_come_and_go(self):
        _, gateway = self.pair({"keys": [{"name": "a", "digest": digest("key-a")}]})
        ask = lambda key: gateway.fetch("POST", CHAT, chat_body("x"), bearer(key)).status
        self.assertEqual((ask("key-a"), ask("key-b")), (200, 401))
        self.reload(gateway, {"keys": [{"name": "b", "digest": digest("key-b")}]})
        self.assertEqual((ask("key-a"), ask("key-b")), (401, 200))
        self.reload(gateway, {"log": {"level": "info"}})
        self.assertEqual((ask("key-a"), ask("nobody")), (200, 200))

    def test_key_of_the_admin_side(self):
        _, gateway = self.pair({"log": {"level": "info"}})
        path = os.path.join(self.folder, "admin-key")
        with open(path, "w", encoding="utf-8") as f:
            f.write("admin-secret\n")
        self.write(gateway, to_yaml({"admin": {"key_file": path}}) + "\n")
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: gateway.admin("/stats")[0] == 401, "asks for it")
        self.assertEqual(gateway.admin("/stats", headers={"X-Admin-Key": "admin-secret"})[0], 200)

    def test_time_of_tenants_blocks(self):
        _, gateway = self.pair({"store": {"ttl": "1h"}}, mode="store")
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body(words(300, "old"))).status, 200)
        gateway.wait_quiet()
        self.assertGreater(gateway.store_stats()["blocks"], 0)
        self.reload(gateway, {"store": {"ttl": "1s"}})
        wait_until(lambda: gateway.store_stats()["blocks"] == 0, "too old")

    def test_time_where_there_was_none_needs_a_restart(self):
        _, gateway = self.pair({"store": {"save": "on"}}, mode="store")
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body(words(300, "old"))).status, 200)
        gateway.wait_quiet()
        state = self.reload(gateway, {"store": {"ttl": "1h"}})
        self.assertIn("store.ttl", state["needs_a_restart"])
        self.assertGreater(gateway.store_stats()["blocks"], 0)


class Upstreams(ReloadCase):
    def names(self, gateway):
        return [r["name"] for r in gateway.stats()["replicas"]]

    def listed(self, *engines):
        return {"upstreams": [{"url": e.url, "name": n} for n, e in engines]}

    def test_one_comes_and_one_leaves_when_its_streams_have_ended(self):
        first, second = self.engine(), self.engine()
        gateway = self.start(first)
        first.hold("stream")
        with gateway.client() as client:
            client.send(request_bytes("POST", CHAT, json.dumps(
                chat_body("long", stream=True)).encode()))
            first.wait_held("stream")
            self.reload(gateway, self.listed(("engine-0", first), ("second", second)))
            self.assertEqual(self.names(gateway), ["engine-0", "second"])
            self.reload(gateway, self.listed(("second", second)))
            self.assertEqual(self.names(gateway), ["second"])
            wait_until(lambda: gateway.stats()["replicas"][0]["mode"] not in ("starting", "down"),
                       "the new one is known")
            for i in range(4):
                self.assertEqual(gateway.fetch("POST", CHAT, chat_body(f"new {i}")).status, 200)
            self.assertEqual(len(second.bodies("new")), 4)
            self.assertIn("still ending", self.reload(
                gateway, self.listed(("engine-0", first), ("second", second)), good=False)["why"])
            self.assertNotIn("upstream-left", gateway.text())
            first.release("stream")
            answer = client.read_answer()
            self.assertTrue(answer.complete)
            self.assertIn(b"[DONE]", answer.body)
        wait_until(lambda: "upstream-left" in gateway.text(), "it has gone")
        self.reload(gateway, self.listed(("engine-0", first), ("second", second)))
        self.assertEqual(self.names(gateway), ["engine-0", "second"])

    def test_what_is_kept_warm_goes_with_its_engine(self):
        first, second = self.engine(), self.engine()
        path = os.path.join(self.folder, "start.txt")
        with open(path, "w", encoding="utf-8") as f:
            f.write(words(300))
        slots = {e: {"url": e.url, "name": n, "slot_dir": e.settings.slot_dir}
                 for e, n in ((first, "engine-0"), (second, "second"))}
        listed = {"warm": [{"file": path, "model": "standin-tiny"}]}
        gateway = self.start(first, config=listed, slot_dir=first.settings.slot_dir)
        states = lambda: [(x["replica"], x["state"]) for x in gateway.cache()["warm"]]
        wait_until(lambda: states() == [("engine-0", "done")], states)
        second.hold("head")  # its self-test is not over before it leaves
        for times in (1, 2):
            self.reload(gateway, {**listed, "upstreams": list(slots.values())})
            self.assertEqual(states(), [("engine-0", "done"), ("second", "pending")])
            self.reload(gateway, {**listed, "upstreams": [slots[first]]})
            wait_until(lambda: gateway.text().count("event=upstream-left") == times,
                       gateway.text)
            self.assertEqual(states(), [("engine-0", "done")])
        second.release("head")
        self.reload(gateway, {**listed, "upstreams": list(slots.values())})
        wait_until(lambda: states() == [("engine-0", "done"), ("second", "done")], states)
        self.assertEqual(gateway.stats()["warm"]["failed"], 0)

    def test_name_of_one_that_stays_needs_a_restart(self):
        engine = self.engine()
        gateway = self.start(engine)
        state = self.reload(gateway, self.listed(("renamed", engine)))
        self.assertIn("upstreams.name", state["needs_a_restart"])
        self.assertEqual(self.names(gateway), ["engine-0"])

    def test_stop_while_one_is_leaving(self):
        first, second = self.engine(), self.engine()
        gateway = self.start(first)
        first.hold("stream")
        with gateway.client() as client:
            client.send(request_bytes("POST", CHAT, json.dumps(
                chat_body("long", stream=True)).encode()))
            first.wait_held("stream")
            self.reload(gateway, self.listed(("second", second)))
            gateway.signal()
            first.release("stream")
            self.assertTrue(client.read_answer().complete)
            self.assertEqual(gateway.wait_exit(), 0)
