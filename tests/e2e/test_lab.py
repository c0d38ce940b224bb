# SPDX-License-Identifier: MIT
"""The built-in engine: it behaves as llama-server does, the gateway's main job works on it,
and each of its ways to misbehave is survived. Its answers are equal to the last byte
however much of a prompt was computed before, so every answer is compared with a cold one."""

import json
import os
import random
import struct
import threading
import unittest

import engines
from harness import (CHAT, Case, Client, Gateway, chat_body, fetch, request_bytes,
                     stream_text, wait_until, words)
from lab_engine import Lab, answer_text, shared_start, sse

KV_BYTES = 4096  # a token's: 4 layers, K and V, 128 × f32


class FoundGateway(Gateway):
    """Is not told where the engine keeps its slot files."""

    def command(self):
        out = super().command()
        at = out.index("--slot-dir")
        return out[:at] + out[at + 2:]


class LabCase(Case):
    def setUp(self):
        super().setUp()
        self.need_gateway()
        self.slot_dir = os.path.join(self.folder, "slots")
        os.makedirs(self.slot_dir, mode=0o700)
        self.twin = None

    def lab(self, files=True, kind=Lab, **flags):
        lab = kind(self.slot_dir if files else None, **flags).start()
        self.addCleanup(self._end_lab, lab)
        return lab

    def _end_lab(self, lab):
        code = lab.stop()
        if code != 0 or "Sanitizer" in lab.text():
            self.fail(f"lab engine ended with {code}: {lab.text()}")

    def pair_lab(self, config=None, mode="store", **flags):
        """Here the gateway is tested: the engine may be a build that computes faster."""
        lab = self.lab(kind=engines.Lab, **flags)
        return lab, self.gateway(lab.url, config, mode=mode)

    def cold(self, path, body):
        """What an engine that holds nothing answers."""
        self.twin = self.twin or self.lab(files=False)
        return answer_text(path, self.twin.post(path, body | {"cache_prompt": False,
                                                              "stream": False}))

    def ask(self, gateway, body, path=CHAT):
        """Asks the gateway; the answer must be that of a cold engine."""
        answer = gateway.fetch("POST", path, body)
        self.assertEqual(answer.status, 200, answer.body[:300])
        self.assertEqual(answer_text(path, answer.json()), self.cold(path, body))
        return answer.json()


def system_body(system, user, **more):
    return chat_body([{"role": "system", "content": system},
                      {"role": "user", "content": user}], **{"max_tokens": 12, **more})


def rendered(lab, body):
    return lab.post("/apply-template", body)["prompt"]


def tokens_of(lab, text):
    return lab.post("/tokenize", {"content": text})["tokens"]


def common_tokens(lab, a, b):
    """How much two chat bodies share."""
    return shared_start(*(tokens_of(lab, rendered(lab, body)) for body in (a, b)))


def cached(answer):
    return answer["timings"]["cache_n"]


# ---- the API -------------------------------------------------------------------------------

class Tokens(LabCase):
    def test_tokens_are_bytes_and_specials(self):
        lab = self.lab(files=False)
        text = "Grüße\x00 <|im_start|>user\n<|im_end|> €😀 <|im_starts|>"
        tokens = tokens_of(lab, text)
        specials = len("<|im_start|>") + len("<|im_end|>")
        self.assertEqual(len(tokens), len(text.encode()) - specials + 2)
        self.assertEqual((tokens.count(258), tokens.count(259)), (1, 1))
        self.assertEqual(lab.post("/detokenize", {"tokens": tokens})["content"], text)
        self.assertEqual(tokens_of(lab, [65, "B", 67]), [65, 66, 67])
        self.assertEqual(lab.post("/detokenize", {"tokens": [0xC3, 65]})["content"], "\ufffdA")

    def test_template_prints_tools_behind_the_system_text(self):
        lab = self.lab(files=False)
        tool = {"type": "function", "function": {"name": "weather"}}
        body = {"messages": [{"role": "system", "content": "be kind"},
                             {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                "tools": [tool]}
        self.assertEqual(
            rendered(lab, body),
            "<|im_start|>system\nbe kind\n\n# Tools\n\nYou may call these functions:\n<tools>\n"
            '{"type":"function","function":{"name":"weather"}}\n</tools><|im_end|>\n'
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
        n = len(tokens_of(lab, rendered(lab, body)))
        for path in ("/v1/messages/count_tokens", "/v1/chat/completions/input_tokens"):
            self.assertEqual(lab.post(path, body)["input_tokens"], n)


class Answers(LabCase):
    def test_all_apis_and_token_ids_give_one_answer(self):
        lab = self.lab(files=False)
        chat = system_body("You answer.", "What is it?", max_tokens=30)
        prompt = rendered(lab, chat)
        text = answer_text(CHAT, lab.post(CHAT, chat))
        self.assertTrue(text)
        anthropic = {"system": "You answer.", "messages": chat["messages"][1:], "max_tokens": 30}
        self.assertEqual(answer_text("/v1/messages", lab.post("/v1/messages", anthropic)), text)
        tokens = tokens_of(lab, prompt)
        for form in (prompt, tokens, ["<|im_start|>syst", *tokens[5:]]):
            for path in ("/completion", "/v1/completions"):
                body = {"prompt": form, "max_tokens": 30}
                self.assertEqual(answer_text(path, lab.post(path, body)), text)

    def test_prompt_is_what_was_reused_and_what_was_computed(self):
        lab = self.lab(files=False)
        body = system_body(words(40), "first", max_tokens=5)
        n = len(tokens_of(lab, rendered(lab, body)))
        for expected in (0, n - 1):
            answer = lab.post(CHAT, body)
            t, usage = answer["timings"], answer["usage"]
            self.assertEqual((t["cache_n"], t["prompt_n"]), (expected, n - expected))
            self.assertEqual(usage["prompt_tokens"], n)
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], expected)
            self.assertEqual(usage["completion_tokens"], t["predicted_n"])
        other = system_body(words(40), "second", max_tokens=5)
        shared = common_tokens(lab, body, other)
        self.assertEqual(cached(lab.post(CHAT, other)), shared)
        self.assertEqual(cached(lab.post(CHAT, other | {"cache_prompt": False})), 0)
        self.assertEqual(lab.metric("prompt_tokens_cached_total"), n - 1 + shared)

    def test_prompt_of_one_token_is_computed_each_time(self):
        lab = self.lab(files=False)
        for prompt in ("x", "x", "", ""):
            answer = lab.post("/completion", {"prompt": prompt, "n_predict": 3})
            self.assertEqual((cached(answer), answer["timings"]["prompt_n"]), (0, 1))
            self.assertEqual(answer["content"], self.cold("/completion", {"prompt": prompt,
                                                                          "n_predict": 3}))

    def test_next_turn_reuses_the_answer(self):
        lab = self.lab(files=False)
        messages = [{"role": "user", "content": "tell me"}]
        first = lab.post(CHAT, chat_body(messages, max_tokens=20))
        held = first["usage"]["total_tokens"] - 1
        messages += [first["choices"][0]["message"], {"role": "user", "content": "more"}]
        self.assertGreaterEqual(cached(lab.post(CHAT, chat_body(messages))), held)

    def test_streams_say_what_whole_answers_say(self):
        lab = self.lab(files=False)
        body = chat_body("stream this", max_tokens=15, return_tokens=True)
        native = {"prompt": "stream this", "n_predict": 15, "return_tokens": True}
        for path, question in ((CHAT, body), ("/v1/completions", native),
                               ("/completion", native), ("/v1/messages", body)):
            whole = lab.post(path, question | {"cache_prompt": False})
            stream = fetch(lab.port, "POST", path, question | {"stream": True})
            self.assertEqual(stream.get("Content-Type"), "text/event-stream")
            self.assertTrue(stream.complete)
            events = sse(stream.body)
            pieces = {
                CHAT: lambda e: e["choices"][0]["delta"].get("content") or "",
                "/v1/completions": lambda e: e["choices"][0]["text"],
                "/completion": lambda e: e["content"],
                "/v1/messages": lambda e: e.get("delta", {}).get("text", ""),
            }[path]
            self.assertEqual("".join(pieces(e) for _, e in events if e),
                             answer_text(path, whole), path)
            last = [e for _, e in events if e][-1]
            self.assertEqual("timings" in last, path != "/v1/messages")
            self.assertEqual(events[-1][0] == "done", path in (CHAT, "/v1/completions"))

    def test_chat_stream_begins_with_a_role_and_ends_with_usage_where_wanted(self):
        lab = self.lab(files=False)
        body = chat_body("again", max_tokens=3, stream=True)
        plain = [e for _, e in sse(fetch(lab.port, "POST", CHAT, body).body) if e]
        self.assertEqual(plain[0]["choices"][0]["delta"], {"role": "assistant", "content": None})
        self.assertEqual(plain[-1]["choices"][0]["finish_reason"], "length")
        self.assertNotIn("usage", plain[-1])
        asked = body | {"stream_options": {"include_usage": True}}
        full = [e for _, e in sse(fetch(lab.port, "POST", CHAT, asked).body) if e]
        self.assertEqual(full[-1]["choices"], [])
        self.assertEqual(full[-1]["usage"]["completion_tokens"], 3)
        self.assertNotIn("timings", full[-2])

    def test_answers_end_by_themselves_unless_told_not_to(self):
        lab = self.lab(files=False)
        ends = None
        for i in range(40):
            body = {"prompt": f"question {i}", "n_predict": 400, "return_tokens": True}
            ends = lab.post("/completion", body)
            if ends["stop_type"] == "eos":
                break
        self.assertEqual(ends["stop_type"], "eos")
        self.assertEqual(ends["tokens"][-1], 257)
        self.assertEqual(len(ends["tokens"]), ends["tokens_predicted"])
        longer = lab.post("/completion", body | {"ignore_eos": True})
        self.assertEqual(longer["tokens_predicted"], 400)
        self.assertTrue(longer["content"].startswith(ends["content"]))

    def test_several_answers_and_several_prompts(self):
        lab = self.lab(files=False)
        both = lab.post("/completion", {"prompt": ["one", "two"], "n_predict": 4})
        self.assertEqual([a["prompt"] for a in both], ["one", "two"])
        for one in both:
            self.assertEqual(one["content"], self.cold("/completion", {"prompt": one["prompt"],
                                                                       "n_predict": 4}))
        answer = lab.post(CHAT, chat_body("n of them", n=2))
        self.assertEqual(len(answer["choices"]), 2)
        self.assertEqual(answer["choices"][0]["message"], answer["choices"][1]["message"])
        lab.post(CHAT, chat_body("n of them", n=3), status=400)

    def test_errors_have_the_shape_of_the_api(self):
        lab = self.lab(files=False, context=64)
        for path, body, status, kind in (
                ("/nothing", {}, 404, "not_found_error"),
                (CHAT, {"messages": "x"}, 400, "invalid_request_error"),
                (CHAT, {"messages": [{"role": "user", "content": [{"type": "x"}]}]}, 400,
                 "invalid_request_error"),
                ("/completion", {"prompt": [65, 999]}, 400, "invalid_request_error"),
                ("/completion", {"prompt": "x", "n_predict": "y"}, 400, "invalid_request_error"),
                ("/completion", {"prompt": "x" * 64}, 400, "exceed_context_size_error"),
                ("/slots/0?action=save", {"filename": "x"}, 501, "not_supported_error")):
            error = lab.post(path, body, status)["error"]
            self.assertEqual((error["code"], error["type"]), (status, kind), path)
        broken = fetch(lab.port, "POST", CHAT, b'{"messages":')
        self.assertEqual((broken.status, broken.json()["error"]["type"]), (500, "server_error"))

    def test_full_context_ends_an_answer(self):
        lab = self.lab(files=False, context=64)
        answer = lab.post("/completion", {"prompt": "x" * 60, "ignore_eos": True})
        self.assertEqual((answer["tokens_predicted"], answer["truncated"]), (5, True))

    def test_answers_without_limit_get_the_one_of_the_engine(self):
        lab = self.lab(files=False, predict=7)
        for more, n in (({}, 7), ({"n_predict": -1}, 7), ({"n_predict": 9}, 9)):
            answer = lab.post("/completion", {"prompt": "x", "ignore_eos": True, **more})
            self.assertEqual(answer["tokens_predicted"], n)


class Slots(LabCase):
    def slow(self, **flags):
        return self.lab(token_cost_us=2000, **flags)

    def begin(self, lab, body, path="/completion", hold=None):
        """Sends a request and does not wait for its answer."""
        client = Client(lab.port)
        self.addCleanup(client.close)
        headers = [("X-Lab-Hold", str(hold))] if hold else []
        client.send(request_bytes("POST", path, json.dumps(body).encode(), headers))
        return client

    def wait_busy(self, lab, *slots):
        wait_until(lambda: [s["id"] for s in lab.slots() if s["is_processing"]] == list(slots),
                   lambda: f"slots {slots} busy: {lab.slots()}")

    def test_alike_prompt_goes_to_its_slot_and_strangers_to_the_oldest(self):
        lab = self.lab(files=False)
        used = [lab.post("/completion", {"prompt": p, "n_predict": 1})["id_slot"]
                for p in ("a" * 50, "b" * 50, "b" * 40, "a" * 10, "c" * 50, "c" * 3 + "d" * 50)]
        # "ccc…" shares too little with what is in slot 1: the slot that rested longest.
        self.assertEqual(used, [0, 1, 1, 0, 1, 0])
        pinned = lab.post("/completion", {"prompt": "c" * 50, "n_predict": 1, "id_slot": 0})
        self.assertEqual((pinned["id_slot"], cached(pinned)), (0, 3))
        self.assertEqual(lab.post("/completion", {"prompt": "x", "id_slot": 7,
                                                  "n_predict": 1})["id_slot"], 1)

    def test_messages_cannot_be_pinned(self):
        lab = self.lab(files=False)
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2,
                "id_slot": 1}
        answer = lab.post("/v1/messages", body)
        self.assertNotIn("timings", answer)
        n = lab.post("/v1/messages/count_tokens", body)["input_tokens"]
        self.assertEqual([s.get("id_task") is None for s in lab.slots()], [False, True])
        usage = lab.post("/v1/messages", body)["usage"]
        self.assertEqual((usage["cache_read_input_tokens"], usage["input_tokens"]), (n - 1, 1))

    def test_pinned_request_waits_for_its_busy_slot(self):
        lab = self.slow(files=False)
        first = self.begin(lab, {"prompt": "a" * 200, "n_predict": 1, "id_slot": 0})
        self.wait_busy(lab, 0)
        second = self.begin(lab, {"prompt": "b" * 20, "n_predict": 1, "id_slot": 0})
        wait_until(lambda: lab.metric("requests_deferred") == 1, "one is deferred")
        self.assertEqual([s["is_processing"] for s in lab.slots()], [True, False])
        self.assertEqual(first.read_answer().json()["id_slot"], 0)
        self.assertEqual(second.read_answer().json()["id_slot"], 0)

    def test_requests_overtake_what_is_to_be_done_with_their_slot(self):
        lab = self.slow()
        first = self.begin(lab, {"prompt": "a" * 100, "n_predict": 1, "id_slot": 0})
        self.wait_busy(lab, 0)
        before = lab.slots()[0]["id_task"]
        erase = self.begin(lab, {}, "/slots/0?action=erase")
        second = self.begin(lab, {"prompt": "a" * 101, "n_predict": 1, "id_slot": 0})
        wait_until(lambda: lab.metric("requests_deferred") == 1, "one is deferred")
        self.assertEqual(lab.slots()[0]["id_task"], before)
        self.assertEqual(cached(first.read_answer().json()), 0)
        self.assertEqual(cached(second.read_answer().json()), 100)
        self.assertEqual(erase.read_answer().json()["n_erased"], 101)

    def test_requests_can_be_held_in_their_slots(self):
        lab = self.lab(files=False)
        body = {"prompt": "held", "n_predict": 5}
        held = self.begin(lab, body, hold=7)
        leaves = self.begin(lab, body | {"stream": True}, hold=8)
        wait_until(lambda: lab.get("/lab/held") == [7, 8], "both are held")
        self.wait_busy(lab, 0, 1)
        leaves.close()
        self.wait_busy(lab, 0)
        self.assertEqual(lab.post("/completion", body | {"prompt": "beside"})["id_slot"], 1)
        lab.post("/lab/release", {"hold": 8})
        self.assertTrue(held.silent())
        lab.post("/lab/release", {"hold": 7})
        self.assertEqual(held.read_answer().json()["content"], self.cold("/completion", body))
        plain = self.begin(lab, body, hold=9)
        wait_until(lambda: lab.get("/lab/held") == [9], "is held")
        busy = [s["id"] for s in lab.slots() if s["is_processing"]]
        plain.close()   # changes nothing, as it does not stream
        lab.post("/completion", body)
        self.wait_busy(lab, *busy)
        lab.post("/lab/release", {"hold": 9})
        lab.wait_idle()

    def test_batches_are_filled_in_slot_order(self):
        lab = self.slow(files=False)
        order = []

        def ask(name, **body):
            lab.post("/completion", {"n_predict": 1, **body})
            order.append(name)
        for long_slot, expected in ((0, ["long", "short"]), (1, ["short", "long"])):
            order.clear()
            threads = [threading.Thread(target=ask, args=("long",), kwargs={
                "prompt": "a" * 500, "id_slot": long_slot, "cache_prompt": False})]
            threads[0].start()
            self.wait_busy(lab, long_slot)
            threads.append(threading.Thread(target=ask, args=("short",), kwargs={
                "prompt": "b" * 20, "id_slot": 1 - long_slot, "cache_prompt": False}))
            threads[1].start()
            for thread in threads:
                thread.join(20)
            self.assertEqual(order, expected)

    def test_everything_is_answered_while_a_prompt_is_computed(self):
        lab = self.slow()
        client = self.begin(lab, {"prompt": "a" * 600, "n_predict": 1})
        self.wait_busy(lab, 0)
        self.assertEqual(lab.get("/health"), {"status": "ok"})
        self.assertEqual(tokens_of(lab, "A"), [65])
        lab.on_slot(1, "save", "idle.kv")
        self.wait_busy(lab, 0)   # it still is
        answer = client.read_answer().json()
        self.assertGreaterEqual(answer["timings"]["prompt_ms"], 600 * 2)

    def test_client_that_leaves_a_stream_frees_its_slot(self):
        lab = self.lab(files=False)
        client = self.begin(lab, {"prompt": "a", "ignore_eos": True, "stream": True})
        client.read_until(b"data: ")
        self.wait_busy(lab, 0)
        client.close()
        lab.wait_idle()
        self.assertEqual(lab.metric("tokens_predicted_total"), 0)  # of whole answers only
        self.assertLess(lab.slots()[0]["n_prompt_tokens"], 8000)

    def test_client_that_leaves_otherwise_changes_nothing(self):
        lab = self.slow(files=False)
        client = self.begin(lab, {"prompt": "a" * 100, "n_predict": 30, "ignore_eos": True})
        self.wait_busy(lab, 0)
        client.abort()
        lab.wait_idle()
        self.assertEqual(lab.metric("tokens_predicted_total"), 30)
        self.assertEqual(lab.slots()[0]["n_prompt_tokens"], 129)


class SlotFiles(LabCase):
    def path(self, name):
        return os.path.join(self.slot_dir, name)

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def fill(self, lab, slot, prompt, n=0):
        return lab.post("/completion", {"prompt": prompt, "n_predict": n, "id_slot": slot,
                                        "ignore_eos": True})

    def test_slot_holds_the_prompt_and_all_but_the_last_token(self):
        lab = self.lab()
        for n, more in ((0, 0), (1, 0), (2, 1), (30, 29)):
            self.fill(lab, 0, "a harbour by night", n)
            self.assertEqual(lab.on_slot(0, "save", "x.kv")["n_saved"], 18 + more)

    def test_files_are_laid_out_as_those_of_llama_server(self):
        for version in (2, 4):
            lab = self.lab(state_version=version, slots=3)
            self.fill(lab, 1, "harbour")
            saved = lab.on_slot(1, "save", "a.kv")
            data = self.read("a.kv")
            self.assertEqual(saved["n_written"], len(data))
            words_ = struct.unpack("<14I", data[:56])
            self.assertEqual(words_, (0x67677371, version, 11, 0xFFFFFFFF, 1, 7,
                                      *b"harbour", 0))
            cells = struct.pack("<3I", 3, 0, 7) + b"".join(
                struct.pack("<3I", i, 1, 1) for i in range(7))
            self.assertEqual(data[56:56 + len(cells)], cells)
            at = 56 + len(cells)
            self.assertEqual(struct.unpack("<2I", data[at:at + 8]), (0, 4))
            at += 8 + (8 if version == 4 else 0)
            for _ in range(8):   # K of four layers, then V
                self.assertEqual(struct.unpack("<IQ", data[at:at + 12]), (0, 512))
                at += 12 + 7 * 512
            self.assertEqual(data[at:], struct.pack("<I", 0))   # the third stream
            lab.stop()

    def test_files_come_back_byte_for_byte(self):
        for version in (2, 4):
            lab = self.lab(state_version=version)
            self.fill(lab, 0, words(60), 10)
            lab.on_slot(0, "save", "a.kv")
            n = lab.on_slot(0, "erase")["n_erased"]
            self.assertEqual(lab.on_slot(0, "save", "empty.kv")["n_saved"], 0)
            lab.stop()
            lab.start()
            self.assertEqual(lab.on_slot(0, "restore", "a.kv")["n_restored"], n)
            lab.on_slot(0, "save", "b.kv")
            self.assertEqual(self.read("a.kv"), self.read("b.kv"))
            lab.stop()

    def test_restored_slot_answers_as_a_cold_one_in_another_process(self):
        lab = self.lab()
        prompt = words(100)
        self.fill(lab, 0, prompt)
        lab.on_slot(0, "save", "a.kv")
        lab.stop()
        lab.start()
        self.assertEqual(lab.on_slot(1, "restore", "a.kv")["n_restored"], len(prompt))
        body = {"prompt": prompt + " and then", "n_predict": 40, "id_slot": 1}
        answer = lab.post("/completion", body)
        self.assertEqual(cached(answer), len(prompt))
        self.assertEqual(answer["content"], self.cold("/completion", body))

    def test_damaged_and_foreign_files_are_refused_and_empty_the_slot(self):
        lab = self.lab()
        self.fill(lab, 0, "harbour " * 20)
        lab.on_slot(0, "save", "a.kv")
        data = self.read("a.kv")
        version = data[:4] + struct.pack("<I", 4) + data[8:]
        token = data[:24] + struct.pack("<I", 260) + data[28:]
        for bad in (data[:-1], data + b"\0", b"", data[:11], b"x" + data[1:], version, token):
            with open(self.path("bad.kv"), "wb") as f:
                f.write(bad)
            lab.on_slot(0, "restore", "a.kv")
            error = lab.on_slot(0, "restore", "bad.kv", 400)["error"]
            self.assertIn("Unable to restore slot", error["message"])
            self.assertEqual(lab.on_slot(0, "erase")["n_erased"], 0)
        lab.on_slot(0, "restore", "missing.kv", 400)
        lab.stop()
        other = self.lab(slots=3)   # another number of streams
        other.on_slot(0, "restore", "a.kv", 400)
        small = self.lab(context=100)
        small.on_slot(0, "restore", "a.kv", 400)

    def test_names_that_lead_elsewhere_are_refused(self):
        lab = self.lab()
        self.fill(lab, 0, "x")
        for name in ("../x", "a/b", "", ".", "a..b", "x" * 256, "x\n", " x", "x.", "a\\b"):
            self.assertEqual(fetch(lab.port, "POST", "/slots/0?action=save",
                                   {"filename": name}).status, 400, name)
        self.assertEqual(os.listdir(self.slot_dir), [])
        lab.post("/slots/x?action=save", {"filename": "x"}, 400)
        lab.post("/slots/0?action=burn", {"filename": "x"}, 400)

    def test_save_into_a_folder_that_is_gone_fails(self):
        lab = self.lab()
        self.fill(lab, 0, "x")
        os.rmdir(self.slot_dir)
        self.assertEqual(lab.on_slot(0, "save", "x", 500)["error"]["message"],
                         "Unable to save slot")


# ---- behind the gateway --------------------------------------------------------------------

class Reuse(LabCase):
    def restart_both(self, lab, gateway):
        self.assertEqual(gateway.stop(), 0)
        self.assertEqual(lab.stop(), 0)
        lab.start()
        gateway.start()
        gateway.wait_ready("store")

    def test_gateway_finds_the_slot_directory_and_stores(self):
        lab = self.lab()
        gateway = FoundGateway(self.folder, lab.url)
        self.gateways.append(gateway)
        gateway.start()
        gateway.wait_ready("store")
        self.assertEqual(gateway.replica()["token_bytes"], KV_BYTES)
        self.assertEqual(gateway.replica()["kv_type"], "f32")

    def test_fourth_prompt_reuses_what_three_shared_after_both_restarted(self):
        for version, n_words in ((2, 200), (4, 60)):
            lab, gateway = self.pair_lab(state_version=version)
            system = words(n_words, f"version {version}")
            topics = ("apples", "bridges", "candles")
            for topic in topics:
                self.ask(gateway, system_body(system, f"tell me about {topic}"))
                gateway.wait_quiet()
            self.restart_both(lab, gateway)
            fourth = system_body(system, "tell me about dragons")
            shared = max(common_tokens(lab, fourth, system_body(
                system, f"tell me about {topic}")) for topic in topics)
            self.assertGreater(shared, 5 * n_words)
            answer = self.ask(gateway, fourth)
            self.assertGreaterEqual(cached(answer), 0.99 * shared)
            wait_until(lambda: gateway.total("restored_tokens") >= 0.99 * shared, "counted")
            self.assertEqual(gateway.total("resident_tokens"), 0)
            self.assertEqual(gateway.restore_failures(), 0)
            gateway.stop()
            lab.stop()

    def test_streams_and_all_apis_reuse_and_say_what_cold_ones_say(self):
        lab, gateway = self.pair_lab()
        shared = words(120)
        bodies = [
            ("/v1/messages", {"system": "messages " + shared, "max_tokens": 12,
                              "messages": [{"role": "user", "content": "{}"}]}),
            (CHAT, system_body(shared, "{}")),
            ("/v1/completions", {"prompt": shared + "{}", "max_tokens": 12}),
            ("/completion", {"prompt": shared + " native {}", "n_predict": 12})]

        def with_marker(body, marker):
            return json.loads(json.dumps(body).replace("{}", marker))
        for i, (path, body) in enumerate(bodies):
            self.ask(gateway, with_marker(body, "apples"), path)
            wait_until(lambda: gateway.replica()["saves"] > i, lambda: f"saved: {path} {gateway.replica()}")
            gateway.wait_quiet()
        self.restart_both(lab, gateway)
        for path, body in bodies:
            self.ask(gateway, with_marker(body, "dragons"), path)
            gateway.wait_quiet()
        wait_until(lambda: gateway.total("restored_tokens") > 3.5 * len(shared),
                   lambda: f"restored: {gateway.stats()}")
        body = system_body(shared, "streamed")
        stream = gateway.fetch("POST", CHAT, body | {"stream": True})
        self.assertEqual(stream_text(stream.body), self.cold(CHAT, body))

    def test_random_chats_are_answered_as_by_cold_engines(self):
        lab, gateway = self.pair_lab({"store": {"ram_bytes": "1MiB", "max_bytes": "2MiB"}})
        rng = random.Random(4)
        systems = [words(rng.randint(10, 50), f"system {i}") for i in range(4)]
        chats = []
        for step in range(30):
            if chats and rng.random() < 0.5:
                messages = rng.choice(chats)
            else:
                messages = [{"role": "system", "content": rng.choice(systems)}]
                chats.append(messages)
            messages.append({"role": "user", "content": words(rng.randint(1, 15), f"{step}")})
            answer = self.ask(gateway, chat_body(messages, max_tokens=rng.randint(1, 30)))
            messages.append(answer["choices"][0]["message"])
            if step == 15:
                self.restart_both(lab, gateway)
        gateway.wait_quiet()
        self.assertEqual(gateway.restore_failures(), 0)
        self.assertGreater(gateway.replica()["restores"], 0)

    def test_engine_with_other_weights_gets_none_of_the_old_blocks(self):
        lab, gateway = self.pair_lab()
        body = system_body(words(100), "apples")
        self.ask(gateway, body)
        gateway.wait_quiet()
        lab.stop()
        lab.flags["seed"] = 2
        lab.start()
        wait_until(lambda: gateway.replica()["restarts"] > 0 and gateway.mode() == "store",
                   "the new engine is known")
        answer = gateway.fetch("POST", CHAT, body).json()
        self.assertEqual(cached(answer), 0)
        self.assertNotEqual(answer_text(CHAT, answer), self.cold(CHAT, body))


class Misbehaviour(LabCase):
    def test_all_ways_can_be_named(self):
        lab = self.lab(misbehave="cut,late")
        lab.misbehave()
        error = lab.post("/lab/misbehave", {"misbehave": "cut,lates"}, 400)["error"]
        self.assertIn('did you mean "late"?', error["message"])

    def assert_observes(self, reason, **flags):
        """The self-test notices; answers are right all the same."""
        lab, gateway = self.pair_lab(mode="observe", **flags)
        self.assertIn(reason, gateway.replica()["mode_reason"])
        for user in ("apples", "dragons"):
            self.ask(gateway, system_body(words(60), user))
        self.assertEqual(gateway.replica()["restores"], 0)
        return lab, gateway

    def test_restore_that_lies_fails_the_self_test(self):
        self.assert_observes("restored slots are not reused", misbehave="restore-lies")

    def test_no_reuse_after_restore_fails_the_self_test(self):
        self.assert_observes("not reused (0 of", misbehave="no-reuse-after-restore")

    def test_wrong_counts_fail_the_self_test(self):
        self.assert_observes("not reused (1", misbehave="wrong-counts")

    def test_engine_without_slots_endpoint_is_a_plain_proxy(self):
        self.assert_observes("--no-slots", misbehave="no-slots")

    def test_engine_without_slot_files_is_a_plain_proxy(self):
        self.assert_observes("--slot-save-path", files=False)

    def learned(self, n=4):
        """An engine and a gateway that knows the start of n prompts, each with an end that
        it does not know yet; the slots hold something else."""
        lab, gateway = self.pair_lab()
        bodies = [system_body(words(60, f"prompt {i}"), "apples") for i in range(n)]
        for body in bodies:
            self.ask(gateway, body)
            gateway.wait_quiet()
        for i in range(2):
            self.ask(gateway, chat_body(words(40, f"other {i}")))
            gateway.wait_quiet()
        return lab, gateway, [system_body(words(60, f"prompt {i}"), "dragons")
                              for i in range(n)]

    def test_restores_that_come_to_nothing_end_store_mode(self):
        lab, gateway, bodies = self.learned()
        lab.misbehave("no-reuse-after-restore")
        for body in bodies:
            self.ask(gateway, body)
        wait_until(lambda: gateway.mode() == "observe", lambda: f"{gateway.replica()}")
        self.assertIn("3 restores in a row", gateway.replica()["mode_reason"])

    def test_restores_that_lie_make_no_answer_wrong(self):
        lab, gateway, bodies = self.learned()
        lab.misbehave("restore-lies")
        for body in bodies:
            self.assertLess(cached(self.ask(gateway, body)), 64)
            gateway.wait_quiet()

    def test_counts_that_cannot_be_are_counted_as_such(self):
        lab, gateway, bodies = self.learned(1)
        lab.misbehave("wrong-counts")
        self.ask(gateway, bodies[0])
        wait_until(lambda: gateway.total("implausible") == 1, lambda: f"{gateway.stats()}")
        lab.misbehave()
        self.ask(gateway, bodies[0])

    def test_answers_that_are_cut_stay_cut_for_the_client(self):
        lab, gateway, bodies = self.learned(1)
        lab.misbehave("cut")
        for stream in (False, True):
            with gateway.client() as client:
                body = json.dumps(bodies[0] | {"stream": stream}).encode()
                client.send(request_bytes("POST", CHAT, body))
                answer = client.read_answer()
                self.assertEqual((answer.status, answer.complete), (200, False))
                self.assertTrue(client.wait_closed())
        lab.misbehave()
        self.ask(gateway, bodies[0])

    def test_reset_instead_of_an_answer_is_502(self):
        lab, gateway, bodies = self.learned(1)
        lab.misbehave("reset")
        for stream in (False, True):
            answer = gateway.fetch("POST", CHAT, bodies[0] | {"stream": stream})
            self.assertEqual(answer.status, 502)
            self.assertIn("error", answer.json())
        lab.misbehave()
        self.ask(gateway, bodies[0])

    def test_answer_that_is_late_is_504(self):
        # Below the two seconds, and enough for the self-test of a build with sanitizers.
        lab, gateway = self.pair_lab({"timeouts": {"first_byte": "1500ms"}})
        body = system_body(words(20), "apples")
        lab.misbehave("late")
        self.assertEqual(gateway.fetch("POST", CHAT, body).status, 504)
        lab.misbehave()
        lab.wait_idle()
        self.ask(gateway, body)

    def test_slot_that_stays_busy_is_left_alone(self):
        lab, gateway, bodies = self.learned(2)
        lab.misbehave("stays-busy")
        with gateway.client() as client:
            body = json.dumps(chat_body("x", stream=True, ignore_eos=True, max_tokens=5000))
            client.send(request_bytes("POST", CHAT, body.encode()))
            client.read_until(b"content")
            busy = wait_until(lambda: [s["id"] for s in lab.slots() if s["is_processing"]],
                              "a busy slot")[0]
        wait_until(lambda: gateway.replica()["slots"][busy]["state"] == "zombie",
                   lambda: f"a zombie: {gateway.replica()}")
        for body in bodies:
            self.assertEqual(gateway.fetch("POST", CHAT, body).status, 200)
        self.assertTrue(lab.slots()[busy]["is_processing"])
        self.assertEqual(lab.metric("requests_deferred"), 0)
        lab.misbehave()
        wait_until(lambda: gateway.replica()["slots"][busy]["state"] == "idle",
                   lambda: f"idle again: {gateway.replica()}")
        self.ask(gateway, bodies[0])


if __name__ == "__main__":
    unittest.main()
