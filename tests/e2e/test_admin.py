# SPDX-License-Identifier: MIT
"""The admin side, what it says of requests, and what is never said."""

import http.client
import json
import re

from harness import (CHAT, Case, Client, chat_body, parse_metrics, request_bytes, wait_until,
                     words)


def chat_bytes(text, **more):
    return request_bytes("POST", CHAT, json.dumps(chat_body(text, **more)).encode())


class Pages(Case):
    def test_health_and_readiness(self):
        engine, gateway = self.pair()
        self.assertEqual(gateway.admin("/healthz")[0], 200)
        self.assertEqual(gateway.admin("/readyz")[0], 200)
        engine.kill()
        wait_until(lambda: gateway.admin("/readyz")[0] == 503 or
                   gateway.fetch("GET", "/v1/models") is None, "not ready without engine")
        self.assertEqual(gateway.admin("/healthz")[0], 200)

    def test_readiness_ends_with_draining(self):
        engine, gateway = self.pair()
        engine.hold("stream")
        with gateway.client() as client:
            client.send(chat_bytes("draining", stream=True))
            engine.wait_held("stream")
            gateway.signal()
            wait_until(lambda: gateway.admin("/readyz")[0] == 503, "not ready")
            self.assertEqual(gateway.admin("/healthz")[0], 200)
            engine.release("stream")
            self.assertTrue(client.read_answer().complete)

    def test_stats_add_up(self):
        _, gateway = self.pair()
        before = gateway.stats()["total"]
        for i in range(3):
            gateway.fetch("POST", CHAT, chat_body(f"count {i}"))
        gateway.fetch("POST", "/v1/embeddings", b"{}")
        wait_until(lambda: gateway.total("requests") >= before["requests"] + 3, "counted")
        stats = gateway.stats()
        self.assertEqual(stats["total"]["in_flight"], 0)
        self.assertGreater(stats["total"]["prompt_tokens"], before["prompt_tokens"])
        self.assertEqual(len(stats["replicas"]), 1)
        self.assertEqual([s["id"] for s in stats["replicas"][0]["slots"]], [0, 1])

    def test_cache_page_is_JSON_without_text(self):
        _, gateway = self.pair(mode="store")
        gateway.fetch("POST", CHAT, chat_body("zebracrossing " + words(300)))
        gateway.wait_quiet()
        status, body = gateway.admin("/cache")
        self.assertEqual(status, 200)
        json.loads(body)
        self.assertNotIn(b"zebracrossing", body)

    def test_unknown_pages_404_and_no_change_by_GET(self):
        _, gateway = self.pair()
        self.assertEqual(gateway.admin("/nothing")[0], 404)
        self.assertIn(gateway.admin("/stats", "POST", b"")[0], (404, 405))
        self.assertIn(gateway.admin("/cache/flush")[0], (404, 405))

    def test_metrics_are_valid_and_named_incipit(self):
        _, gateway = self.pair()
        gateway.fetch("POST", CHAT, chat_body("metrics"))
        wait_until(lambda: gateway.total("in_flight") == 0, "idle")
        connection = http.client.HTTPConnection("127.0.0.1", gateway.admin_port, timeout=10)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.assertTrue(answer.getheader("Content-Type").startswith("text/plain"))
        samples = parse_metrics(text)
        self.assertGreater(len(samples), 10)
        for name, _ in samples:
            self.assertTrue(name.startswith("incipit_"), name)

    def test_K52_admin_answers_when_all_slots_are_busy_and_the_queue_is_full(self):
        engine, gateway = self.pair({"limits": {"queue": 1}}, slots=1)
        engine.hold("head")
        clients = [gateway.client() for _ in range(2)]
        for i, client in enumerate(clients):
            client.send(chat_bytes(f"busy {i}"))
            wait_until(lambda i=i: gateway.in_flight() == i + 1, "in flight")
        for path in ("/healthz", "/readyz", "/stats", "/metrics", "/cache"):
            self.assertEqual(gateway.admin(path)[0], 200, path)
        self.assertEqual(gateway.in_flight(), 2)
        engine.release("head")
        for client in clients:
            self.assertEqual(client.read_answer().status, 200)

    def test_clients_do_not_reach_admin_pages(self):
        engine, gateway = self.pair()
        for path in ("/stats", "/healthz", "/readyz", "/cache"):
            self.assertEqual(gateway.fetch("GET", path).status, 404, path)
        with Client(gateway.admin_port) as client:
            client.send(chat_bytes("wrong door"))
            self.assertIn(client.read_answer().status, (403, 404, 405))
        self.assertEqual(engine.bodies("wrong door"), [])


class Headers(Case):
    def test_cache_status_and_server_timing(self):
        _, gateway = self.pair()
        for stream in (False, True):
            answer = gateway.fetch("POST", CHAT, chat_body("headers", stream=stream))
            self.assertRegex(answer.get("Cache-Status"), r"^incipit; ?\S")
            for part in answer.get("Server-Timing").split(","):
                self.assertRegex(part.strip(), r"^[A-Za-z0-9_.-]+(;[a-z]+=(\"[^\"]*\"|[\w.-]+))*$")

    def test_they_can_be_switched_off(self):
        _, gateway = self.pair({"headers": {"cache_status": "off", "server_timing": "off"}})
        answer = gateway.fetch("POST", CHAT, chat_body("headers"))
        self.assertIsNone(answer.get("Cache-Status"))
        self.assertIsNone(answer.get("Server-Timing"))


class Logs(Case):
    def test_one_line_per_request_with_its_id(self):
        engine, gateway = self.pair()
        for i in range(3):
            gateway.fetch("POST", CHAT, chat_body(f"line {i}"), headers=[
                ("X-Request-Id", f"given-id-{i}")])
        gateway.fetch("GET", "/nothing")
        engine.fault("rst", after=2)
        with gateway.client() as client:
            client.send(chat_bytes("torn", stream=True))
            client.read_answer()
        wait_until(lambda: gateway.in_flight() == 0, "idle")
        gateway.stop()
        lines = [x for x in gateway.output if CHAT in x]
        self.assertEqual(len(lines), 4, lines)
        for line in lines:
            self.assertRegex(line, r"\bid=\S+|\"id\"|request_id=|request=")
        self.assertEqual(len([x for x in gateway.output if "/nothing" in x]), 1)

    def test_no_text_and_no_key_in_any_output_at_debug(self):
        engine, gateway = self.pair({"log": {"level": "debug"}}, mode="store")
        markers = ["promptmarkerzq", "answermarkerzq", "keymarkerzq", "toolmarkerzq"]
        body = chat_body("promptmarkerzq " + words(200), tools=[
            {"type": "function", "function": {"name": "toolmarkerzq", "parameters": {}}}])
        headers = [("Authorization", "Bearer keymarkerzq"), ("Cookie", "keymarkerzq=1")]
        gateway.fetch("POST", CHAT, body, headers=headers)
        gateway.fetch("POST", CHAT, body | {"stream": True}, headers=headers)
        gateway.fetch("POST", CHAT, b'{"messages": "promptmarkerzq', headers=headers)
        engine.fault("error", body=b'{"error":{"message":"answermarkerzq"}}')
        gateway.fetch("POST", CHAT, body, headers=headers)
        engine.fault("rst-before-head", times=2)
        gateway.fetch("POST", CHAT, body, headers=headers)
        gateway.fetch("GET", "/x", headers=[*headers, ("X-Bad", "keymarkerzq\x01")])
        gateway.wait_quiet()
        pages = [gateway.admin(p)[1].decode() for p in ("/stats", "/cache", "/metrics")]
        gateway.stop()
        for marker in markers:
            self.assertNotIn(marker, gateway.text())
            self.assertNotIn(marker, "".join(pages))

    def test_access_log_can_be_switched_off(self):
        _, gateway = self.pair({"log": {"access": "off"}})
        gateway.fetch("POST", CHAT, chat_body("quiet"))
        wait_until(lambda: gateway.in_flight() == 0, "idle")
        gateway.stop()
        self.assertEqual([x for x in gateway.output if re.search(re.escape(CHAT), x)], [])

    def test_query_strings_are_not_logged(self):
        _, gateway = self.pair({"log": {"level": "debug"}})
        gateway.fetch("POST", CHAT + "?api_key=querymarkerzq", chat_body("x"))
        wait_until(lambda: gateway.in_flight() == 0, "idle")
        gateway.stop()
        self.assertNotIn("querymarkerzq", gateway.text())
