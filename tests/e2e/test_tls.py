# SPDX-License-Identifier: MIT
"""Engines behind TLS: who is believed, what is said where nobody is, and that the bytes and
the rules of connections are the same as without."""

import json
import os
import socket
import ssl
import subprocess
import threading

from harness import (CHAT, Case, Gateway, binary, chat_body, request_bytes, sha256,
                     step_by_step, stream_events, wait_until, words)
from tls_front import Authority, Front, server_context

UNREACHABLE = 502


class Sealed(Case):
    """An engine, and TLS in front of it."""

    def setUp(self):
        super().setUp()
        self.authority = Authority(self.folder)

    def front(self, port, cert=None, **more):
        context = server_context(*(cert or self.authority.issue()),
                                 client_ca=more.pop("client_ca", None))
        front = Front(port, context, **more)
        self.addCleanup(front.stop)
        return front

    def sealed_gateway(self, front, wait="listening", url=None, timeouts=None, **tls):
        upstream = {"url": url or front.url, "tls_ca_file": self.authority.ca,
                    "slot_dir": os.path.join(self.folder, "slots")}
        upstream.update({f"tls_{k}": v for k, v in tls.items()})
        upstream = {k: v for k, v in upstream.items() if v is not None}
        config = {"upstreams": [upstream]}
        if timeouts:
            config["timeouts"] = timeouts
        self.need_gateway()
        gateway = Gateway(self.folder, None, config)
        self.gateways.append(gateway)
        gateway.start("listening")
        if wait == "ready":
            gateway.wait_ready()
        return gateway

    def pair_sealed(self, **more):
        engine = self.engine()
        front = self.front(engine.port)
        gateway = self.sealed_gateway(front, wait="ready", **more)
        engine.wait_idle()
        engine.reset_log()
        return engine, front, gateway


class Trust(Sealed):
    def refused(self, front, says, **more):
        """The engine cannot be reached, and the log says why."""
        gateway = self.sealed_gateway(front, **more)
        answer = gateway.fetch("GET", "/v1/models")
        self.assertEqual(answer.status, UNREACHABLE)
        self.assertEqual(answer.json()["error"]["type"], "upstream_error")
        wait_until(lambda: "upstream-failed" in gateway.text(), "a line in the log")
        line = next(x for x in gateway.output if "upstream-failed" in x)
        self.assertIn(says, line)
        gateway.stop()

    def setUp(self):
        super().setUp()
        self.e = self.engine()

    def test_trusted_certificate_is_taken_and_the_name_sent(self):
        front = self.front(self.e.port)
        gateway = self.sealed_gateway(front, wait="ready")
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("x")).status, 200)
        self.assertEqual(set(front.names), {"localhost"})
        self.assertEqual(front.failures, [])

    def test_certificate_for_an_address(self):
        front = self.front(self.e.port, self.authority.issue("IP:127.0.0.1"))
        gateway = self.sealed_gateway(front, url=f"https://127.0.0.1:{front.port}")
        self.assertEqual(gateway.fetch("GET", "/v1/models").status, 200)
        self.assertEqual(set(front.names), {None})     # there is no SNI for addresses
        gateway.stop()
        front = self.front(self.e.port, self.authority.issue("IP:127.0.0.2,IP:::1"))
        self.refused(front, "the certificate of 127.0.0.1 is for 127.0.0.2, "
                            "0:0:0:0:0:0:0:1, not for 127.0.0.1",
                     url=f"https://127.0.0.1:{front.port}")

    def test_certificate_of_another_host_is_refused_with_its_names(self):
        front = self.front(self.e.port, self.authority.issue("DNS:a.example,DNS:b.example"))
        self.refused(front, "the certificate of localhost is for a.example, b.example, "
                            "not for localhost")

    def test_name_may_be_another_than_the_host(self):
        front = self.front(self.e.port, self.authority.issue("DNS:engine.example"))
        gateway = self.sealed_gateway(front, name="engine.example")
        self.assertEqual(gateway.fetch("GET", "/v1/models").status, 200)
        self.assertEqual(set(front.names), {"engine.example"})

    def test_wildcards_stand_for_one_whole_label(self):
        front = self.front(self.e.port, self.authority.issue("DNS:*.gpu.example"))
        gateway = self.sealed_gateway(front, name="a.gpu.example")
        self.assertEqual(gateway.fetch("GET", "/v1/models").status, 200)
        gateway.stop()
        for name in ("a.b.gpu.example", "gpu.example"):
            self.refused(front, f"not for {name}", name=name)

    def test_expired_certificate_is_refused_with_its_date(self):
        front = self.front(self.e.port, self.authority.issue(days=-1))
        self.refused(front, "the certificate of localhost has expired: 20")

    def test_certificate_of_tomorrow_is_refused_with_its_date(self):
        front = self.front(self.e.port, self.authority.issue(start=2045))
        self.refused(front, "the certificate of localhost is not valid yet: "
                            "2045-01-02 00:00 UTC")

    def test_certificate_for_something_else_is_refused(self):
        for made, says in (
                ({"purpose": "clientAuth"}, "the certificate of localhost is not taken: uns"),
                ({"names": ",".join(f"DNS:{c}.example" for c in "abcde")},
                 "is for a.example, b.example, c.example, d.example, …, not for localhost"),
                ({"names": "", "common_name": "only.example"},
                 "is for only.example, not for localhost"),
                ({"names": "", "subject": "/O=somebody"},
                 "is for nobody by name, not for localhost")):
            with self.subTest(made):
                self.refused(self.front(self.e.port, self.authority.issue(**made)), says)

    def test_authority_that_is_not_known_is_refused_by_name(self):
        other = Authority(self.folder, "other authority")
        front = self.front(self.e.port, other.issue())
        says = ("the certificate of localhost is signed by an authority that is not trusted "
                "here (other authority)")
        self.refused(front, says)
        self.refused(front, says, ca_file=None)        # the system's

    def test_certificate_that_signs_itself(self):
        lone = Authority(self.folder, "lone")
        lone.run("req", "-x509", *lone.new_key("self.key"), "-out", "self.pem", "-days", "1",
                 "-subj", "/CN=x", "-addext", "subjectAltName=DNS:localhost")
        front = self.front(self.e.port, (lone.path("self.pem"), lone.path("self.key")))
        self.refused(front, "vouches for itself only")
        gateway = self.sealed_gateway(front, ca_file=lone.path("self.pem"))
        self.assertEqual(gateway.fetch("GET", "/v1/models").status, 200)

    def test_verification_is_off_only_where_said_and_said_at_start(self):
        other = Authority(self.folder, "other authority")
        front = self.front(self.e.port, other.issue("DNS:a.example", days=-1))
        gateway = self.sealed_gateway(front, ca_file=None, verify=False)
        self.assertIn("tls-not-verified", gateway.text())
        self.assertEqual(gateway.fetch("GET", "/v1/models").status, 200)

    def test_TLS_1_1_is_refused(self):
        context = server_context(*self.authority.issue())
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        front = Front(self.e.port, context)
        self.addCleanup(front.stop)
        self.refused(front, "TLS 1.2 or later is needed")

    def test_client_certificate(self):
        cert, key = self.authority.issue("", common_name="gateway")
        front = self.front(self.e.port, client_ca=self.authority.ca)
        gateway = self.sealed_gateway(front, cert_file=cert, key_file=key)
        self.assertEqual(gateway.fetch("GET", "/v1/models").status, 200)
        gateway.stop()
        self.refused(front, "certificate required")
        other = Authority(self.folder, "other authority").issue("", common_name="gateway")
        self.refused(front, "TLS: ", cert_file=other[0], key_file=other[1])

    def test_files_that_cannot_be_used_end_the_start(self):
        cert, key = self.authority.issue()
        _, other_key = self.authority.issue()
        for tls, says in (({"ca_file": "/nowhere/ca.pem"}, "the CA file /nowhere/ca.pem"),
                          ({"cert_file": "/nowhere/c.pem", "key_file": key}, "/nowhere/c.pem"),
                          ({"cert_file": cert, "key_file": other_key}, "the key file"),
                          ({"cert_file": cert}, "go together"),
                          ({"cert_file": cert, "key_file": self.authority.lock(key)},
                           "cannot be used (PEM, without password"),
                          ({"url": "http://localhost:1"}, "is not https://")):
            with self.subTest(tls):
                url = tls.pop("url", "https://localhost:1")
                with self.assertRaises(AssertionError):
                    self.sealed_gateway(None, url=url, **tls)
                gateway = self.gateways.pop()
                self.assertNotEqual(gateway.wait_exit(), 0)
                self.assertIn(says, gateway.text())


class Handshakes(Sealed):
    def test_handshake_that_nobody_answers_ends_in_time(self):
        front = self.front(1, shakes=False)
        gateway = self.sealed_gateway(front, timeouts={"connect": "300ms"})
        self.assertEqual(gateway.fetch("GET", "/v1/models").status, UNREACHABLE)
        wait_until(lambda: "the TLS handshake took too long" in gateway.text(), "its reason")

    def half_handshake(self, behave, says):
        """A server that answers a handshake with something else."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def serve():
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with sock:
                    sock.recv(1 << 16)
                    behave(sock)
        threading.Thread(target=serve, daemon=True).start()
        gateway = self.sealed_gateway(None, url=f"https://localhost:{listener.getsockname()[1]}")
        self.assertEqual(gateway.fetch("GET", "/v1/models").status, UNREACHABLE)
        wait_until(lambda: "upstream-failed" in gateway.text(), "a line in the log")
        self.assertIn(says, next(x for x in gateway.output if "upstream-failed" in x))
        gateway.stop()

    def test_half_a_handshake(self):
        start = b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03"      # of a ServerHello
        self.half_handshake(lambda sock: sock.sendall(start), "during the TLS handshake")
        self.half_handshake(lambda sock: None, "during the TLS handshake")

    def test_engine_without_TLS_is_told_as_one(self):
        self.half_handshake(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
                            "does it speak http:// there?")

    def test_noise_and_alerts(self):
        self.half_handshake(lambda sock: sock.sendall(b"\x00" * 4000), "TLS: ")
        self.half_handshake(lambda sock: sock.sendall(b"\x15\x03\x03\x00\x02\x02\x46"),
                            "TLS 1.2 or later is needed")


class Relayed(Sealed):
    def setUp(self):
        super().setUp()
        self.e, self.front_, self.g = self.pair_sealed()

    def test_stream_passes_event_by_event(self):
        self.e.hold("event")
        with self.g.client() as client:
            body = chat_body("slowly", stream=True, ignore_eos=True)
            client.send(request_bytes("POST", CHAT, json.dumps(body).encode()))
            self.e.wait_held("event")
            self.e.release("event", 1)
            client.read_head()
            seen = step_by_step(client, self.e)
        self.assertEqual(b"".join(seen), bytes(self.e.generations()[-1].sent))

    def test_store_mode_works_behind_TLS(self):
        text = words(900)
        for _ in range(2):
            answer = self.g.fetch("POST", CHAT, chat_body(text))
            self.assertEqual(answer.status, 200)
            self.g.wait_quiet()
        usage = answer.json()["usage"]
        self.assertEqual(self.g.mode(), "store")
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)

    def test_big_bodies_arrive_both_ways(self):
        body = json.dumps({"content": "0123456789abcdef" * (1 << 16)}).encode()
        answer = self.g.fetch("POST", "/tokenize", body)
        record = self.e.requests("/tokenize")[-1]
        self.assertEqual((answer.status, record.sha256), (200, sha256(body)))
        self.assertEqual(answer.body, bytes(record.sent))

    def test_connections_are_kept_and_sessions_resumed(self):
        before = self.front_.accepted
        for _ in range(5):
            self.assertEqual(self.g.fetch("GET", "/health").status, 200)
        self.assertLessEqual(self.front_.accepted, before + 1)
        for _ in range(3):          # the engine closes a connection behind each stream
            answer = self.g.fetch("POST", CHAT, chat_body("x", stream=True))
            self.assertTrue(stream_events(answer.body))
        self.assertGreater(self.front_.resumed, 0)

    def test_K13_idle_connection_that_dies_is_no_error(self):
        for reset in (False, True):
            self.assertEqual(self.g.fetch("GET", "/health").status, 200)
            self.front_.drop_all(reset)
            self.assertEqual(self.g.fetch("GET", "/health").status, 200)

    def test_K13_pooled_connection_that_dies_under_the_request_is_tried_anew(self):
        self.assertEqual(self.g.fetch("GET", "/health").status, 200)
        self.e.set(drop_reused=True)
        self.assertEqual(self.g.fetch("GET", "/health").status, 200)

    def test_client_that_leaves_is_seen_by_the_engine(self):
        self.e.hold("event")
        with self.g.client() as client:
            client.send(request_bytes("POST", CHAT, json.dumps(
                chat_body("x", stream=True, ignore_eos=True, max_tokens=50)).encode()))
            self.e.wait_held("event")
        wait_until(lambda: self.g.in_flight() == 0, "the request is gone")
        self.e.release("event")
        self.e.wait_idle()


class Ends(Sealed):
    """Answers that end with the connection."""

    HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"

    def answer(self, blunt):
        engine = self.engine()
        engine.script("/scripted", self.HEAD, b"until ", b"the end", "close")
        gateway = self.sealed_gateway(self.front(engine.port, blunt=blunt))
        with gateway.client() as client:
            client.send(request_bytes("GET", "/scripted"))
            return client.read_answer()

    def test_end_that_TLS_announces_is_one(self):
        answer = self.answer(blunt=False)
        self.assertEqual((answer.body, answer.complete), (b"until the end", True))

    def test_end_that_TLS_does_not_announce_is_none(self):
        answer = self.answer(blunt=True)
        self.assertEqual((answer.body, answer.complete), (b"until the end", False))


class Commands(Sealed):
    def bench(self, url, *flags):
        return subprocess.run([binary(), "bench", url, "--requests", "2", "--profile",
                               "short", *flags], capture_output=True, text=True, timeout=60,
                              check=False)

    def test_bench_of_an_https_service(self):
        self.need_gateway()
        engine = self.engine()
        front = self.front(engine.port)
        refused = self.bench(front.url)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("not trusted here", refused.stderr + refused.stdout)
        for flags in (("--tls-ca", self.authority.ca), ("--tls-no-verify",)):
            done = self.bench(front.url, *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
