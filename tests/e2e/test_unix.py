# SPDX-License-Identifier: MIT
"""UNIX sockets: of the gateway, of its admin side, and of the engine."""

import json
import os
import stat
import subprocess

from harness import CHAT, Case, Gateway, binary, chat_body, request_bytes, wait_until, words
from tls_front import Front


class Listening(Case):
    def setUp(self):
        super().setUp()
        self.need_gateway()
        self.path = os.path.join(self.folder, "gateway.sock")
        self.admin_path = os.path.join(self.folder, "admin.sock")

    def at_paths(self, config=None, start=True):
        gateway = Gateway(self.folder, self.engine().url, config, store=start)
        gateway.listen, gateway.admin_listen = "unix:" + self.path, "unix:" + self.admin_path
        self.gateways.append(gateway)
        if start:
            gateway.start()
        return gateway

    def mode(self, path):
        return stat.S_IMODE(os.stat(path).st_mode)

    def test_requests_and_admin_pages_over_sockets(self):
        gateway = self.at_paths()
        gateway.wait_ready()
        answer = gateway.fetch("POST", CHAT, chat_body("hello", stream=True))
        self.assertEqual((answer.status, answer.complete), (200, True))
        self.assertEqual(answer.body, bytes(self.engines[0].generations()[-1].sent))
        self.assertGreaterEqual(gateway.total("requests"), 1)
        done = subprocess.run([binary(), "warm", "--admin", "unix:" + self.admin_path,
                               self.prompt_file()], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(gateway.stop(), 0)
        self.assertFalse(os.path.exists(self.path) or os.path.exists(self.admin_path))

    def prompt_file(self):
        path = os.path.join(self.folder, "prompt.txt")
        with open(path, "w", encoding="utf-8") as f:
            f.write(words(300))
        return path

    def test_modes_and_owners(self):
        gateway = self.at_paths()
        self.assertEqual((self.mode(self.path), self.mode(self.admin_path)), (0o660, 0o600))
        gateway.stop()
        gateway = self.at_paths({"listen_mode": "0666", "listen_owner": f"{os.getuid()}",
                                 "admin": {"listen_mode": "0640",
                                           "listen_owner": f":{os.getgid()}"}})
        self.assertEqual((self.mode(self.path), self.mode(self.admin_path)), (0o666, 0o640))
        gateway.stop()

    def refused(self, says, config=None):
        gateway = self.at_paths(config, start=False)
        with self.assertRaises(AssertionError):
            gateway.start()
        self.gateways.remove(gateway)
        self.assertNotEqual(gateway.wait_exit(), 0)
        self.assertIn(says, gateway.text())

    def test_owner_that_does_not_exist_ends_the_start(self):
        self.refused("there is no user", {"listen_owner": "no-such-user"})
        self.refused("there is no group", {"listen_owner": ":no-such-group"})
        self.assertFalse(os.path.exists(self.path))

    def test_socket_that_a_killed_gateway_left_is_replaced(self):
        gateway = self.at_paths()
        gateway.crash()
        self.assertTrue(os.path.exists(self.path))
        gateway = self.at_paths()
        self.assertEqual(gateway.fetch("GET", "/health").status, 200)

    def test_socket_that_somebody_listens_on_is_left_alone(self):
        gateway = self.at_paths()
        self.refused("another process listens there")
        self.assertEqual(gateway.fetch("GET", "/health").status, 200)

    def test_file_in_its_place_is_left_alone(self):
        with open(self.path, "w", encoding="ascii") as f:
            f.write("mine")
        self.refused("a file that is no socket is in its place")
        with open(self.path, encoding="ascii") as f:
            self.assertEqual(f.read(), "mine")

    def test_path_that_is_too_long_is_an_error(self):
        self.path = os.path.join(self.folder, "x" * (108 - len(self.folder) - 1))
        self.refused("the path has 108 bytes, at most 107 fit")
        self.path = self.path[:-1]
        gateway = self.at_paths()
        self.assertEqual(gateway.fetch("GET", "/health").status, 200)

    def test_client_that_leaves_is_noticed(self):
        gateway = self.at_paths()
        gateway.wait_ready()
        engine = self.engines[0]
        engine.hold("event")
        with gateway.client() as client:
            body = json.dumps(chat_body("x", stream=True, ignore_eos=True)).encode()
            client.send(request_bytes("POST", CHAT, body))
            engine.wait_held("event")
        wait_until(lambda: gateway.in_flight() == 0, "the request is gone")
        engine.release("event")


class Engines(Case):
    def setUp(self):
        super().setUp()
        self.need_gateway()
        self.e = self.engine()
        self.path = os.path.join(self.folder, "engine.sock")

    def gateway_at(self, upstream, **more):
        return self.gateway(upstream, wait="listening", **more)

    def test_engine_at_a_socket_is_stored_for(self):
        front = Front(self.e.port, path=self.path)
        self.addCleanup(front.stop)
        gateway = self.gateway_at("unix:" + self.path)
        gateway.wait_ready("store")
        text = words(900)
        for _ in range(2):
            answer = gateway.fetch("POST", CHAT, chat_body(text))
            self.assertEqual(answer.status, 200)
            gateway.wait_quiet()
        usage = answer.json()["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(gateway.replica()["name"], "engine.sock")
        self.assertEqual(self.e.generations()[-1].header("Host"), ["localhost"])
        before = front.accepted
        for _ in range(3):
            self.assertEqual(gateway.fetch("GET", "/health").status, 200)
        self.assertLessEqual(front.accepted, before + 1)          # they are kept

    def test_engine_that_is_not_there(self):
        gateway = self.gateway_at("unix:" + self.path)
        self.assertEqual(gateway.fetch("GET", "/health").status, 502)
        wait_until(lambda: "No such file" in gateway.text(), "the reason in the log")

    def test_K13_idle_connection_that_dies_is_no_error(self):
        front = Front(self.e.port, path=self.path)
        self.addCleanup(front.stop)
        gateway = self.gateway_at("unix:" + self.path)
        for _ in range(3):
            self.assertEqual(gateway.fetch("GET", "/health").status, 200)
            front.drop_all()
