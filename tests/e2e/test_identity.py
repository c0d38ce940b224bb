# SPDX-License-Identifier: MIT
"""Which engine states belong together, and engines that become others behind one port."""

import json
import os

from harness import CHAT, chat_body, fetch, wait_until, words
from test_reuse import ReuseCase, system_body


class IdentityCase(ReuseCase):
    def fingerprint(self, gateway):
        wait_until(lambda: "fingerprint" in gateway.replica(), "has a fingerprint")
        return gateway.replica()["fingerprint"]

    def model_file(self, name="model.gguf", content=b"GGUF weights" * 5000):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as f:
            f.write(content)
        return path

    def taught(self, **settings):
        """An engine whose model file can be read, and a stored document."""
        engine, gateway = self.pair(mode="store", model_path=self.model_file(), **settings)
        self.ask_right(gateway, engine, system_body(words(500, "kind"), "apples"))
        self.learn(engine, gateway)
        return engine, gateway

    def post(self, engine, path, body):
        """Past the gateway."""
        self.assertEqual(fetch(engine.port, "POST", path, body).status, 200)


class Fingerprints(IdentityCase):
    def setUp(self):
        super().setUp()
        self.need_standin("a model file of the test")

    def test_last_bits_do_not_separate(self):
        """Other cores and batches: the same states for all that matters."""
        engine, gateway = self.taught()
        first = self.fingerprint(gateway)
        self.restart_all(engine, gateway, noise=0.14)
        self.assertEqual(self.fingerprint(gateway), first)
        self.ask_right(gateway, engine, system_body(words(500, "kind"), "bridges"))
        self.assertGreater(self.used(engine, "bridges"), 480)
        self.assert_clean()

    def test_other_answers_separate_and_find_their_own_again(self):
        engine, gateway = self.taught()
        first = self.fingerprint(gateway)
        self.restart_all(engine, gateway, noise=0.16)
        second = self.fingerprint(gateway)
        self.assertNotEqual(first, second)
        self.ask(gateway, system_body(words(500, "kind"), "candles"))
        self.assertLess(self.used(engine, "candles"), 20)
        # All are compared with the first of their kind: 0.08 is between the two.
        for noise, expected in ((0.08, first), (0.29, second), (-0.16, None), (0, first)):
            self.restart_all(engine, gateway, noise=noise)
            if expected:
                self.assertEqual(self.fingerprint(gateway), expected, noise)
            else:
                self.assertNotIn(self.fingerprint(gateway), (first, second))

    def test_names_and_times_of_the_file_do_not_count(self):
        engine, gateway = self.taught()
        first = self.fingerprint(gateway)
        moved = self.model_file("renamed.gguf")
        os.utime(moved, (1, 1))
        self.restart_all(engine, gateway, model_path=moved)
        self.assertEqual(self.fingerprint(gateway), first)

    def test_changed_file_of_the_same_name_and_size(self):
        """The remembered hash holds for an unchanged file only."""
        engine, gateway = self.taught()
        first = self.fingerprint(gateway)
        self.restart_all(engine, gateway)
        self.assertEqual(self.fingerprint(gateway), first)
        self.assertEqual(gateway.stop(), 0)
        self.model_file(content=b"GGUF weighty" * 5000)
        gateway.start()
        gateway.wait_ready("store")
        self.assertNotEqual(self.fingerprint(gateway), first)

    def test_second_file_of_a_model_in_several(self):
        parts = [self.model_file(f"m-0000{i}-of-00002.gguf", b"part %d" % i * 999)
                 for i in (1, 2)]
        engine, gateway = self.pair(mode="store", model_path=parts[0])
        first = self.fingerprint(gateway)
        self.model_file(os.path.basename(parts[1]), b"part 3" * 999)
        self.restart_all(engine, gateway)
        self.assertNotEqual(self.fingerprint(gateway), first)

    def test_context_size_does_not_separate(self):
        engine, gateway = self.taught(n_ctx=4096)
        first = self.fingerprint(gateway)
        self.restart_all(engine, gateway, n_ctx=8192)
        self.assertEqual(self.fingerprint(gateway), first)


class Changes(IdentityCase):
    """The process and its slots look the same, and it is another engine."""

    def test_adapters_that_somebody_sets_are_noticed_before_a_restore(self):
        engine, gateway = self.pair(mode="store", lora=1, slots=1)
        self.ask(gateway, chat_body(words(300, "one")))
        self.learn(engine, gateway)
        self.ask(gateway, chat_body(words(300, "two")))
        self.learn(engine, gateway, 2)
        first = self.fingerprint(gateway)
        restores = len(engine.events("restore"))
        self.post(engine, "/lora-adapters", [{"id": 0, "scale": 0.25}])
        self.ask(gateway, chat_body(words(300, "one") + " again"))
        self.assertEqual(self.used(engine, " again"), 0)
        wait_until(lambda: gateway.replica().get("fingerprint", first) != first,
                   "looked at again")
        restored = [e for e in engine.events("restore")[restores:] if e["tokens"] > 250]
        self.assertEqual(restored, [])
        # And back: what is stored is known again.
        self.post(engine, "/lora-adapters", [{"id": 0, "scale": 1.0}])
        wait_until(lambda: gateway.replica().get("fingerprint") == first, "as before",
                   timeout=15)
        gateway.wait_ready("store")
        self.ask(gateway, chat_body(words(300, "two") + " third"))
        self.assertGreater(self.used(engine, " third"), 250)
        self.assert_clean()

    def test_what_ran_with_other_adapters_is_not_saved_under_the_old_name(self):
        engine, gateway = self.pair(mode="store", lora=1)
        first = self.fingerprint(gateway)
        self.post(engine, "/lora-adapters", [{"id": 0, "scale": 0.5}])
        self.ask(gateway, chat_body(words(300, "early")))
        wait_until(lambda: gateway.replica().get("fingerprint", first) != first,
                   "looked at again")
        gateway.wait_quiet()
        self.post(engine, "/lora-adapters", [{"id": 0, "scale": 1.0}])
        wait_until(lambda: gateway.replica().get("fingerprint") == first, "as before",
                   timeout=15)
        gateway.wait_ready("store")
        self.ask(gateway, chat_body(words(300, "early") + " later"))
        self.assertEqual(self.used(engine, " later"), 0)
        self.assert_clean()

    def test_engines_without_adapters_are_not_asked_for_them(self):
        engine, gateway = self.pair(mode="store", slots=1)
        for text in ("a", "b", "a"):
            self.ask(gateway, chat_body(words(300, f"plain {text}") + " end"))
            gateway.wait_quiet()
        self.assertEqual(gateway.replica()["restores"], 1)
        self.assertEqual(engine.requests("/lora-adapters"), [])   # after the probe

    def test_swapped_model_is_noticed_before_the_next_restore(self):
        self.need_standin("a model file of the test")
        engine, gateway = self.pair(mode="store", slots=1)
        for name in ("a-doc", "b-doc"):
            self.ask_right(gateway, engine, chat_body(words(300, name)))
            gateway.wait_quiet()
        # Same process, plausible slots: task numbers grow, no connection was lost.
        engine.set(weights=7, model_path="another.gguf", alias="another")
        engine.forget_slots()
        self.ask_right(gateway, engine, chat_body(words(300, "a-doc") + " again"))
        self.assertEqual(self.used(engine, " again"), 0)
        wait_until(lambda: gateway.replica()["restarts"] == 1, "noticed")
        gateway.wait_ready("store")
        self.assert_clean()

    def script(self, engine, path, body, status="200 OK", kind="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        engine.script(path, f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def refused(self, answers):
        """An engine that gives these answers is left alone, with advice, and served."""
        self.need_standin("answers of a script")
        engine = self.engine()
        for path, answer in answers.items():
            self.script(engine, path, *answer)
        gateway = self.gateway(engine, mode="observe")
        self.assertIn("several models share this port", gateway.replica()["mode_reason"])
        self.assertEqual(gateway.fetch("POST", CHAT, chat_body("still served")).status, 200)
        return gateway

    def test_router_is_left_alone_with_advice(self):
        """As build 10434 answers, without and with the models loaded; as newer ones do."""
        router = {"role": "router", "max_instances": 2, "models_autoload": True,
                  "model_alias": "llama-server", "model_path": "none",
                  "default_generation_settings": {"params": None, "n_ctx": 0},
                  "ui_settings": {}, "build_info": "b1-7e4c0a9", "cors_proxy_enabled": False}
        missing = {"error": {"code": 400, "message": "model name is missing from the request",
                             "type": "invalid_request_error"}}
        for status in ("unloaded", "loading", "loaded"):
            entry = {"id": "tiny", "aliases": [], "tags": [], "object": "model",
                     "owned_by": "llamacpp", "created": 1, "source": "models_dir",
                     "status": {"value": status, "args": ["llama-server", "--port", "0"]}}
            with self.subTest(status):
                self.refused({"/props": (router,), "/slots": (missing, "400 Bad Request"),
                              "/v1/models": ({"data": [entry], "object": "list"},)}).stop()
        self.refused({"/props": ({"role": "router", "total_slots": 4},)})

    def test_list_of_several_models_is_left_alone_with_advice(self):
        self.refused({"/v1/models": ({"object": "list", "data": [{"id": "a"}, {"id": "b"}]},)})

    def test_swapper_is_left_alone_with_advice(self):
        """As llama-swap answers, of August 2026 and before; one model is enough."""
        props = {"src": "llama-swap", "error": {"message": "no model id could be identified",
                 "type": "invalid_request_error", "param": None, "code": "not_found"}}
        new = {"id": "tiny", "object": "model", "created": 1, "owned_by": "llama-swap",
               "meta": {"llamaswap": {"type": "model"}}, "status": {"value": "unloaded"}}
        old = {"id": "tiny", "object": "model", "created": 1, "owned_by": "llama-swap"}
        plain = ("404 Not Found", "text/plain; charset=utf-8")
        for entry, answer in ((new, (props, "404 Not Found")),
                              (old, (b"404 page not found", *plain))):
            with self.subTest(entry):
                gateway = self.refused({"/props": answer,
                                        "/slots": (b"404 page not found", *plain),
                                        "/v1/models": ({"object": "list", "data": [entry]},)})
                self.assertEqual(gateway.replica()["driver"], "openai")
                gateway.stop()

    def test_other_servers_with_several_models_are_what_they_are(self):
        self.need_standin("answers of a script")
        engine = self.engine()
        self.script(engine, "/props", b"{}", "404 Not Found")
        self.script(engine, "/v1/models", {"object": "list", "data": [
            {"id": "a", "owned_by": "vllm"}, {"id": "lora", "owned_by": "vllm", "parent": "a"}]})
        gateway = self.gateway(engine, mode="observe")
        self.assertIn("cannot take stored KV", gateway.replica()["mode_reason"])
