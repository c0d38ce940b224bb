# SPDX-License-Identifier: MIT
"""Who may ask, and who may look and change things at the admin side."""

import hashlib
import http.client
import json
import os
import subprocess

from harness import (CHAT, Case, Client, Gateway, binary, chat_body, request_bytes, wait_until)

MESSAGES = "/v1/messages"
ACTIONS = ("warm", "pin", "unpin", "drop", "flush", "forget")
PAGES = ("/metrics", "/stats", "/cache", "/observe")


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


class KeyCase(Case):
    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, 0o600)
        return path


class Clients(KeyCase):
    CONFIG = {"keys": [{"name": "alice", "digest": digest("key-of-alice")}]}

    def with_keys(self, **upstream):
        config = dict(self.CONFIG, keys_file=self.write(
            "keys", f"# who may\n\nbob {digest('key-of-bob')} # on loan\n"))
        return self.pair(config | upstream)

    def test_a_key_is_needed_and_either_header_shows_it(self):
        engine, gateway = self.with_keys()
        body = chat_body("hello")
        for headers in ([("Authorization", "Bearer key-of-alice")],
                        [("Authorization", "bearer  key-of-bob")],
                        [("x-api-key", "key-of-bob")]):
            self.assertEqual(gateway.fetch("POST", CHAT, body, headers).status, 200, headers)
        seen = len(engine.log)
        for headers in ([], [("Authorization", "Bearer key-of-alic")],
                        [("Authorization", "Bearer key-of-alicee")],
                        [("Authorization", "Basic key-of-alice")], [("x-api-key", "")],
                        [("Authorization", "Bearer "), ("x-api-key", "nobody")],
                        [("Authorization", "Bearer " + digest("key-of-alice"))]):
            for path in (CHAT, MESSAGES):
                answer = gateway.fetch("POST", path, body, headers)
                self.assertEqual(answer.status, 401, headers)
                self.assertEqual(answer.get("WWW-Authenticate"), "Bearer")
                error = answer.json()
                self.assertEqual(error["type"], "error")      # as Anthropic's API has it
                self.assertEqual(error["error"]["type"], "authentication_error")
                self.assertTrue(error["error"]["message"])
            self.assertEqual(gateway.fetch("GET", "/v1/models", headers=headers).status, 401)
        asked = [r for r in engine.log[seen:] if r.path in (CHAT, MESSAGES, "/v1/models")]
        self.assertEqual(asked, [])
        self.assertGreater(gateway.metric("incipit_refused_total", status="401"), 0)

    def test_body_of_a_stranger_is_not_read(self):
        _, gateway = self.with_keys()
        with gateway.client() as client:
            client.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
                        % CHAT.encode())
            self.assertEqual(client.read_answer().status, 401)

    def test_browsers_may_ask_whether_a_page_may(self):
        _, gateway = self.with_keys()
        self.assertNotEqual(gateway.fetch("OPTIONS", CHAT).status, 401)

    def test_the_log_has_the_name_and_nothing_else_of_it(self):
        _, gateway = self.pair(self.CONFIG | {"log": {"level": "debug"}})
        gateway.fetch("POST", CHAT, chat_body("x"), [("Authorization", "Bearer key-of-alice")])
        gateway.fetch("POST", CHAT, chat_body("x"), [("Authorization", "Bearer strangers-key")])
        wait_until(lambda: "key=alice" in gateway.text(), "a line with the name")
        gateway.stop()
        for secret in ("key-of-alice", digest("key-of-alice"), "strangers-key", "Bearer"):
            self.assertNotIn(secret, gateway.text())

    def test_what_is_wrong_in_the_file_is_said_with_its_line(self):
        self.need_gateway()
        good = digest("k")
        for text, part in ((f"a {good}\nb {good[:-1]}\n", "keys:2: key \"b\": its digest is"),
                           (f"a {good}\n\na {digest('l')}\n", "keys:3: key \"a\" is there twice"),
                           (f"a {good}\nb {good}\n", "are the same key"),
                           (f"a {good} x\n", "keys:1: a line is NAME DIGEST"),
                           ("# nobody\n", "no key is in it")):
            path = self.write("keys", text)
            config = self.write("c.yaml", f"upstream: http://127.0.0.1:1\nkeys_file: {path}\n")
            done = subprocess.run([binary(), "check", config], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn(part, done.stderr)


class Engines(KeyCase):
    """What an engine sees of a client's key."""

    HEADERS = [("Authorization", "Bearer clients-own"), ("X-Api-Key", "clients-other")]

    def seen(self, credentials):
        config = {"log": {"level": "debug"}, "upstreams": [{
            "url": "http://127.0.0.1:1", "credentials": credentials,
            "api_key_file": self.write("upstream-key", "the-engines-key\n")}]}
        self.need_gateway()
        engine = self.engine()
        config["upstreams"][0]["url"] = engine.url
        gateway = Gateway(self.folder, engine.url, config)
        self.gateways.append(gateway)
        command = gateway.command()
        at = command.index("--upstream")
        gateway.command = lambda: command[:at] + command[at + 4:]   # and --slot-dir
        gateway.start().wait_ready()
        answer = gateway.fetch("POST", CHAT, chat_body("whose key"), self.HEADERS)
        self.assertEqual(answer.status, 200)
        record = engine.bodies("whose key")[0]
        gateway.stop()
        for secret in ("clients-own", "clients-other", "the-engines-key"):
            self.assertNotIn(secret, gateway.text())
        return record.header("Authorization"), record.header("X-Api-Key")

    def test_it_is_passed_on(self):
        self.assertEqual(self.seen("pass"), (["Bearer clients-own"], ["clients-other"]))

    def test_it_is_removed(self):
        self.assertEqual(self.seen("remove"), ([], []))

    def test_it_is_replaced(self):
        self.assertEqual(self.seen("replace"), (["Bearer the-engines-key"], []))


class Admin(KeyCase):
    def ask(self, gateway, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", gateway.admin_port, timeout=10)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            if method == "POST":
                connection.putheader("Content-Length", "0")
            connection.endheaders()
            answer = connection.getresponse()
            answer.read()
            return answer
        finally:
            connection.close()

    def test_key_is_needed_for_all_but_probes(self):
        path = self.write("admin-key", "secret-of-admin\n")
        _, gateway = self.keyed(path)
        for probe in ("/healthz", "/readyz"):
            self.assertEqual(self.ask(gateway, probe).status, 200)
        for page in PAGES[:3]:
            self.assertEqual(self.ask(gateway, page).status, 401)
            for wrong in ("Bearer secret-of-admi", "Bearer secret-of-admin2", "Basic x", "Bearer"):
                self.assertEqual(self.ask(gateway, page, Authorization=wrong).status, 401, wrong)
            for shown in ({"Authorization": "Bearer secret-of-admin"},
                          {"X_Admin_Key": "secret-of-admin"},
                          {"X_Admin_Key": "secret-of-admin", "Host": "behind.a.name"}):
                self.assertEqual(self.ask(gateway, page, **shown).status, 200, shown)
        for action in ACTIONS:
            self.assertEqual(self.ask(gateway, f"/cache/{action}", "POST").status, 401)
        flush = self.ask(gateway, "/cache/flush", "POST", X_Admin_Key="secret-of-admin")
        self.assertEqual(flush.status, 200)
        gateway.stop()
        self.assertNotIn("secret-of-admin", gateway.text())

    def keyed(self, path):
        self.need_gateway()
        engine = self.engine()
        gateway = Gateway(self.folder, engine.url, {"admin": {"key_file": path}})
        self.gateways.append(gateway)
        gateway.start()
        wait_until(lambda: self.ask(gateway, "/readyz").status == 200, "ready")
        return engine, gateway

    def test_off_loopback_it_does_not_start_without_a_key(self):
        self.need_gateway()
        for where in ("0.0.0.0:0", "[::]:0", ":0"):
            done = subprocess.run(
                [binary(), "serve", "--listen", "127.0.0.1:0", "--admin", where, "--upstream",
                 "http://127.0.0.1:1"], capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 1, done.stderr)
            if "Cannot assign" in done.stderr or "not supported" in done.stderr:
                continue   # a machine without IPv6
            self.assertIn("admin.key_file", done.stderr)

    def test_off_loopback_it_starts_with_one(self):
        path = self.write("admin-key", "secret-of-admin\n")
        self.need_gateway()
        engine = self.engine()
        gateway = Gateway(self.folder, engine.url, {"admin": {"key_file": path}},
                          arguments=["--admin", "0.0.0.0:0"])
        self.gateways.append(gateway)
        command = gateway.command()
        at = command.index("--admin")
        gateway.command = lambda: command[:at] + command[at + 2:]
        gateway.start()
        self.assertEqual(self.ask(gateway, "/stats").status, 401)
        shown = self.ask(gateway, "/stats", Authorization="Bearer secret-of-admin")
        self.assertEqual(shown.status, 200)

    def test_a_page_under_another_name_reads_and_changes_nothing(self):
        _, gateway = self.pair()
        port = gateway.admin_port
        for foreign in ({"Host": f"rebound.example:{port}"}, {"Host": "127.0.0.1.example"},
                        {"Host": "[::2]"}, {"Host": "192.0.2.1"},
                        {"Origin": "http://elsewhere.example"}, {"Origin": "null"},
                        {"Origin": f"http://127.0.0.1:{port}"}):
            for page in PAGES:
                self.assertEqual(self.ask(gateway, page, **foreign).status, 403, foreign)
            for action in ACTIONS:
                answer = self.ask(gateway, f"/cache/{action}", "POST", **foreign)
                self.assertEqual(answer.status, 403, (foreign, action))
        for own in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", f"[::1]:{port}"):
            self.assertEqual(self.ask(gateway, "/stats", Host=own).status, 200, own)

    def test_a_page_changes_nothing_though_it_has_the_key(self):
        path = self.write("admin-key", "secret-of-admin\n")
        _, gateway = self.keyed(path)
        for action in ACTIONS:
            answer = self.ask(gateway, f"/cache/{action}", "POST", X_Admin_Key="secret-of-admin",
                              Origin="http://elsewhere.example")
            self.assertEqual(answer.status, 403, action)

    def test_nothing_changes_but_by_POST(self):
        _, gateway = self.pair(mode="store")
        gateway.fetch("POST", CHAT, chat_body("kept " * 200))
        gateway.wait_quiet()
        before = gateway.cache()["store"]["blocks"]
        self.assertGreater(before, 0)
        for action in ACTIONS:
            for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
                answer = self.ask(gateway, f"/cache/{action}?name=x", method)
                self.assertEqual(answer.status, 405, (method, action))
        self.assertEqual(gateway.cache()["store"]["blocks"], before)

    def test_no_page_may_read_across_origins(self):
        _, gateway = self.pair()
        for method, path in (("GET", "/stats"), ("OPTIONS", "/stats"), ("GET", "/healthz"),
                             ("POST", "/cache/flush"), ("GET", "/nothing")):
            answer = self.ask(gateway, path, method)
            names = [k.lower() for k, _ in answer.getheaders()]
            self.assertFalse([n for n in names if n.startswith("access-control")], path)
