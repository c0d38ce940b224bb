# SPDX-License-Identifier: MIT
"""The proxies of docs/deploy.md, as they are written there: a stream event by event, a body
byte for byte, a client that leaves. Skipped where a proxy is not installed."""

import json
import os
import re
import shutil
import ssl
import subprocess

from harness import (CHAT, Case, Client, ROOT, chat_body, request_bytes, sha256,
                     step_by_step, wait_until)
from tls_front import Authority


def example(kind):
    """The block of that language in the page."""
    with open(os.path.join(ROOT, "docs", "deploy.md"), encoding="utf-8") as f:
        return re.search(rf"```{kind}\n(.*?)```", f.read(), re.S)[1]


def replace(text, *pairs):
    """Every place must be there: an example that has changed is not tested in part."""
    for old, new in pairs:
        assert text.count(old) == 1, f"{old!r} is in the example {text.count(old)} times"
        text = text.replace(old, new)
    return text


class Proxy(Case):
    program = None

    def setUp(self):
        super().setUp()
        if self.program is None:
            self.skipTest("a frame for others")
        self.found = shutil.which(self.program, path=os.environ["PATH"] + ":/usr/sbin")
        if not self.found:
            self.skipTest(f"{self.program} is not installed")
        self.authority = Authority(self.folder)
        self.cert, self.key = self.authority.issue()
        self.e, self.g = self.pair()
        self.path = os.path.join(self.folder, "front.sock")
        config = os.path.join(self.folder, "proxy.conf")
        with open(config, "w", encoding="utf-8") as f:
            f.write(self.config())
        with open(os.path.join(self.folder, "proxy.log"), "wb") as log:
            self.child = subprocess.Popen(self.command(config), stdout=log, stderr=log)
        self.addCleanup(self.end)
        wait_until(lambda: self.listens() or self.child.poll() is not None,
                   lambda: f"the proxy listens: {self.log()}")
        self.assertIsNone(self.child.poll(), self.log())

    def listens(self):
        try:
            Client(self.path).close()
        except OSError:      # no file yet, or nobody listens on it yet
            return False
        return True

    def end(self):
        self.child.terminate()
        self.child.wait(10)

    def log(self):
        with open(os.path.join(self.folder, "proxy.log"), encoding="utf-8",
                  errors="replace") as f:
            return f.read()

    def client(self):
        client = Client(self.path)
        context = ssl.create_default_context(cafile=self.authority.ca)
        client.sock = context.wrap_socket(client.sock, server_hostname="localhost")
        return client

    def ask(self, client, path, body):
        client.send(request_bytes("POST", path, json.dumps(body).encode(),
                                  [("Authorization", "Bearer k")]))

    def stream_comes_event_by_event(self):
        self.e.hold("event")
        with self.client() as client:
            self.ask(client, CHAT, chat_body("slowly", stream=True, ignore_eos=True))
            self.e.wait_held("event")
            self.e.release("event", 1)
            self.assertEqual(client.read_head().status, 200)
            seen = step_by_step(client, self.e)
        self.assertEqual(b"".join(seen), bytes(self.e.generations()[-1].sent))
        self.assertEqual(self.e.generations()[-1].header("Authorization"), ["Bearer k"])

    def large_body_arrives(self):
        body = {"content": "0123456789abcdef" * (1 << 16)}
        with self.client() as client:
            self.ask(client, "/tokenize", body)
            answer = client.read_answer()
            self.assertEqual(answer.status, 200)
            self.ask(client, "/tokenize", {"content": "x"})     # on the same connection
            self.assertEqual(client.read_answer().status, 200)
        record = self.e.requests("/tokenize")[0]
        self.assertEqual(record.sha256, sha256(json.dumps(body).encode()))
        self.assertEqual(answer.body, bytes(record.sent))

    def client_that_leaves_frees_the_slot(self):
        self.e.hold("event")
        with self.client() as client:
            self.ask(client, CHAT, chat_body("x", stream=True, ignore_eos=True, max_tokens=50))
            self.e.wait_held("event")
        wait_until(lambda: self.g.in_flight() == 0, "the request is gone")
        self.e.release("event")
        self.e.wait_idle()



class Nginx(Proxy):
    program = "nginx"

    def config(self):
        site = replace(example("nginx"),
                       ("server 127.0.0.1:8090;", f"server 127.0.0.1:{self.g.port};"),
                       ("listen 443 ssl;", f"listen unix:{self.path} ssl;"),
                       ("/etc/ssl/llm.example.org.pem", self.cert),
                       ("/etc/ssl/private/llm.example.org.key", self.key))
        temporary = "".join(f"{x}_temp_path {self.folder}/{x};\n" for x in
                            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        return (f"daemon off;\nmaster_process off;\npid {self.folder}/pid;\n"
                f"error_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n")

    def command(self, config):
        return [self.found, "-c", config, "-e", "stderr"]

    def test_stream_comes_event_by_event(self):
        self.stream_comes_event_by_event()

    def test_large_body_arrives(self):
        self.large_body_arrives()

    def test_client_that_leaves_frees_the_slot(self):
        self.client_that_leaves_frees_the_slot()


class Haproxy(Proxy):
    program = "haproxy"

    def config(self):
        both = os.path.join(self.folder, "both.pem")
        with open(both, "w", encoding="ascii") as f:
            for name in (self.cert, self.key):
                with open(name, encoding="ascii") as part:
                    f.write(part.read())
        return replace(example("haproxy"),
                       ("127.0.0.1:8090", f"127.0.0.1:{self.g.port}"),
                       ("bind :443 ssl", f"bind unix@{self.path} ssl"),
                       ("/etc/haproxy/llm.example.org.pem", both))

    def command(self, config):
        return [self.found, "-db", "-f", config]

    def test_stream_comes_event_by_event(self):
        self.stream_comes_event_by_event()

    def test_large_body_arrives(self):
        self.large_body_arrives()

    def test_client_that_leaves_frees_the_slot(self):
        self.client_that_leaves_frees_the_slot()
