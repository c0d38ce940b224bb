# SPDX-License-Identifier: MIT
"""The stand-in against the facts about llama-server that the other tests rely on."""

import json
import os
import struct
import subprocess
import sys
import threading
import unittest

import slot_bytes
import toy_model as model
from harness import (CHAT, Case, Client, chat_body, fetch, request_bytes, sha256,
                     stream_events, stream_text, words)


def complete(engine, prompt, **more):
    answer = fetch(engine.port, "POST", "/completion", {"prompt": prompt, "n_predict": 1, **more})
    return answer.json()


def slot_call(engine, slot, action, name="a.kv"):
    answer = fetch(engine.port, "POST", f"/slots/{slot}?action={action}", {"filename": name})
    return answer.status, answer.json()


class Tokens(unittest.TestCase):
    def test_text_survives_the_tokenizer(self):
        for text in ("the river bank", "Grüße 漢字 🙂", '{"a": 12345}', "<|im_start|>user\nx",
                     "a\r\n\tb", words(50)):
            self.assertEqual(model.detokenize(model.tokenize(text)), text)

    def test_tokens_of_a_start_need_not_start_the_tokens(self):
        whole, start = model.tokenize("the river"), model.tokenize("the riv")
        self.assertNotEqual(whole[:len(start)], start)

    def test_generated_words_keep_their_tokens_when_quoted(self):
        tokens = model.ANSWER_IDS
        self.assertEqual(model.tokenize(model.detokenize(tokens)), tokens)


class SlotFiles(unittest.TestCase):
    def setUp(self):
        self.tokens, self.states = model.tokenize(words(40)), []
        model.Weights(1).extend(self.states, self.tokens)

    def test_write_and_read_agree_in_both_versions(self):
        for version in (2, 4):
            data = slot_bytes.write(self.tokens, self.states, version, 2, 1)
            self.assertEqual(slot_bytes.read(data, version, 2), (self.tokens, self.states, 0))

    def test_layout_is_the_documented_one(self):
        data = slot_bytes.write(self.tokens, self.states)
        n = len(self.tokens)
        self.assertEqual(struct.unpack("<6I", data[:24]),
                         (0x67677371, 2, n + 4, 0xFFFFFFFF, 1, n))
        self.assertEqual(len(data), 24 + 4 * n + 4 + 4 + 4 + 12 * n + 8 + 4 * 12 + 128 * n)

    def test_cut_short_and_damaged_are_told_apart(self):
        data = slot_bytes.write(self.tokens, self.states)
        for end in (len(data) - 1, len(data) // 2):
            with self.assertRaises(slot_bytes.CutShort):
                slot_bytes.read(data[:end])
        for bad in (b"x" + data[1:], data + b"\0", data[:20]):
            with self.assertRaises(slot_bytes.Damaged):
                slot_bytes.read(bad)


class Reuse(Case):
    def test_longest_common_start_at_most_all_but_one(self):
        engine = self.engine()
        text = words(50)
        first = complete(engine, text, id_slot=0)
        again = complete(engine, text, id_slot=0)
        n = first["timings"]["prompt_n"]
        self.assertEqual(first["timings"]["cache_n"], 0)
        self.assertEqual((again["timings"]["cache_n"], again["timings"]["prompt_n"]), (n - 1, 1))
        self.assertEqual(first["content"], again["content"])
        self.assertEqual(complete(engine, text, cache_prompt=False)["timings"]["cache_n"], 0)

    def test_slot_holds_prompt_and_all_but_the_last_generated(self):
        engine = self.engine()
        done = complete(engine, words(20), n_predict=5, id_slot=1)
        listing = fetch(engine.port, "GET", "/slots").json()
        self.assertEqual(listing[1]["n_prompt_tokens"], done["tokens_evaluated"] + 4)
        self.assertNotIn("id_task", listing[0])

    def test_slot_is_chosen_by_similarity_then_by_age(self):
        engine = self.engine()
        self.assertEqual(complete(engine, words(50, "a"))["id_slot"], 0)
        self.assertEqual(complete(engine, words(50, "b"))["id_slot"], 1)
        self.assertEqual(complete(engine, words(50, "b") + " more")["id_slot"], 1)
        self.assertEqual(complete(engine, words(50, "c"))["id_slot"], 0)

    def test_chat_turns_reuse_the_answer(self):
        engine = self.engine()
        turns = [{"role": "user", "content": words(60)}]
        first = fetch(engine.port, "POST", CHAT, chat_body(turns)).json()
        turns += [first["choices"][0]["message"], {"role": "user", "content": "go on"}]
        second = fetch(engine.port, "POST", CHAT, chat_body(turns)).json()
        self.assertEqual(second["timings"]["cache_n"],
                         first["usage"]["prompt_tokens"] + 3)

    def test_messages_cannot_be_pinned_and_has_no_timings(self):
        engine = self.engine()
        body = chat_body(words(30), id_slot=1)
        answer = fetch(engine.port, "POST", "/v1/messages", body).json()
        self.assertEqual(engine.generations()[-1].slot, 0)
        self.assertNotIn("timings", answer)
        again = fetch(engine.port, "POST", "/v1/messages", body).json()
        self.assertEqual(again["usage"]["input_tokens"], 1)

    def test_adapters_do_not_share(self):
        engine = self.engine(lora=1)
        plain = complete(engine, words(30), id_slot=0, lora=[{"id": 0, "scale": 0.5}])
        other = complete(engine, words(30), id_slot=0, lora=[{"id": 0, "scale": 1.0}])
        self.assertEqual(other["timings"]["cache_n"], 0)
        self.assertEqual(plain["timings"]["cache_n"], 0)

    def test_n_answers_fill_n_slots(self):
        engine = self.engine()
        answer = fetch(engine.port, "POST", CHAT, chat_body("hello", n=2)).json()
        self.assertEqual(len(answer["choices"]), 2)
        self.assertTrue(all(s["tokens"] for s in engine.state()["slots"]))
        self.assertEqual(fetch(engine.port, "POST", CHAT, chat_body("x", n=3)).status, 400)


class SlotActions(Case):
    def test_save_restore_elsewhere_and_reuse(self):
        engine = self.engine()
        text = words(80)
        cold = complete(engine, text, id_slot=0, n_predict=0)
        n = cold["tokens_evaluated"]
        status, saved = slot_call(engine, 0, "save")
        self.assertEqual((status, saved["n_saved"]), (200, n))
        engine.restart()
        self.assertEqual(slot_call(engine, 1, "restore")[1]["n_restored"], n)
        warm = complete(engine, text + " more", id_slot=1)
        self.assertEqual(warm["timings"]["cache_n"], n)
        self.assertEqual(engine.events("poison"), [])

    def test_any_number_of_tokens_of_a_file_restores(self):
        engine = self.engine()
        text = words(80)
        complete(engine, text, id_slot=0)
        slot_call(engine, 0, "save")
        path = os.path.join(engine.settings.slot_dir, "a.kv")
        with open(path, "rb") as f:
            tokens, states, _ = slot_bytes.read(f.read(), streams=2)
        with open(path, "wb") as f:
            f.write(slot_bytes.write(tokens[:33], states[:33], streams=2))
        engine.restart()
        self.assertEqual(slot_call(engine, 0, "restore")[1]["n_restored"], 33)
        self.assertEqual(complete(engine, text, id_slot=0)["timings"]["cache_n"], 33)

    def test_rows_of_other_weights_are_noticed(self):
        engine = self.engine()
        complete(engine, words(40), id_slot=0)
        slot_call(engine, 0, "save")
        engine.restart(weights=2)
        self.assertEqual(slot_call(engine, 0, "restore")[0], 200)
        complete(engine, words(40), id_slot=0)
        self.assertEqual([e["where"] for e in engine.events("poison")], ["restore", "use"])

    def test_file_cut_short_kills_and_a_broken_frame_empties(self):
        engine = self.engine()
        complete(engine, words(40), id_slot=0)
        slot_call(engine, 0, "save")
        path = os.path.join(engine.settings.slot_dir, "a.kv")
        os.truncate(path, os.path.getsize(path) - 5)
        with self.assertRaises((EOFError, ConnectionError)):
            slot_call(engine, 1, "restore")
        engine.wait_for(lambda: engine.listener is None and not engine.connections)
        engine.restart()
        complete(engine, words(40), id_slot=1)
        with open(path, "wb") as f:
            f.write(b"nonsense" * 9)
        status, answer = slot_call(engine, 1, "restore")
        self.assertEqual(status, 400)
        self.assertIn("No available space", answer["error"]["message"])
        self.assertEqual(engine.state()["slots"][1]["tokens"], 0)

    def test_without_a_folder_501(self):
        engine = self.engine(slot_dir="")
        for action in ("save", "restore", "erase"):
            self.assertEqual(slot_call(engine, 0, action)[0], 501)

    def test_bad_names_and_actions_400(self):
        engine = self.engine()
        for name in ("a/b", "..", "", " a", "a.", "x" * 256):
            self.assertEqual(slot_call(engine, 0, "save", name)[0], 400, name)
        self.assertEqual(slot_call(engine, 0, "copy")[0], 400)
        self.assertEqual(slot_call(engine, "x", "erase")[0], 400)

    def test_later_requests_overtake_a_deferred_restore(self):
        engine = self.engine()
        complete(engine, words(40, "saved"), id_slot=0)
        slot_call(engine, 0, "save")
        engine.hold("head", "first")
        results = {}

        def run(name, call, *arguments, **more):
            thread = threading.Thread(target=lambda: results.update(
                {name: call(engine, *arguments, **more)}))
            thread.start()
            return thread

        threads = [run("first", complete, "first", id_slot=0)]
        engine.wait_held("head")
        threads.append(run("restore", slot_call, 0, "restore"))
        engine.wait_for(lambda: engine.events("slot-action-busy"))
        threads.append(run("second", complete, words(40, "saved"), id_slot=0))
        engine.wait_for(lambda: engine.events("deferred"))
        engine.release("head", match="first")
        for thread in threads:
            thread.join(10)
        self.assertEqual(results["second"]["timings"]["cache_n"], 0)
        self.assertEqual(results["restore"][0], 200)


class Leaving(Case):
    def start(self, engine, stream, point):
        engine.hold(point)
        client = Client(engine.port)
        body = json.dumps(chat_body("hello there", stream=stream)).encode()
        client.send(request_bytes("POST", CHAT, body))
        engine.wait_held(point)
        return client

    def test_stream_in_decode_is_freed_at_once(self):
        engine = self.engine()
        client = self.start(engine, True, "stream")
        client.close()
        engine.wait_idle()
        self.assertFalse(engine.generations()[0].done)

    def test_stream_in_prefill_is_freed_behind_the_batch(self):
        engine = self.engine()
        client = self.start(engine, True, "prefill")
        client.close()
        engine.wait_for(lambda: engine.events("eof"))
        self.assertIsNotNone(engine.state()["slots"][0]["busy"])
        engine.release("prefill")
        engine.wait_idle()
        self.assertEqual(len(engine.generations()[0].sent), 0)

    def test_answer_without_stream_runs_to_its_end(self):
        engine = self.engine()
        client = self.start(engine, False, "head")
        client.abort()
        engine.wait_for(lambda: engine.events("eof"))
        self.assertIsNotNone(engine.state()["slots"][0]["busy"])
        engine.release("head")
        engine.wait_idle()
        self.assertEqual(engine.state()["slots"][0]["tokens"],
                         len(model.prompt_tokens(*model.render(
                             [{"role": "user", "content": "hello there"}]))) + 3)


class Wire(Case):
    def test_stream_has_role_content_finish_timings_done(self):
        engine = self.engine()
        answer = fetch(engine.port, "POST", CHAT, chat_body("hello", stream=True))
        events = stream_events(answer.body)
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": None})
        self.assertEqual(len(events), 6)
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length")
        self.assertIn("timings", events[-1])
        self.assertTrue(answer.body.endswith(b"data: [DONE]\n\n"))
        plain = fetch(engine.port, "POST", CHAT, chat_body("hello")).json()
        self.assertEqual(plain["choices"][0]["message"]["content"], stream_text(answer.body))

    def test_usage_comes_last_with_empty_choices(self):
        engine = self.engine()
        body = chat_body("hello", stream=True, stream_options={"include_usage": True})
        events = stream_events(fetch(engine.port, "POST", CHAT, body).body)
        self.assertEqual(events[-1]["choices"], [])
        self.assertEqual(events[-1]["usage"]["prompt_tokens_details"], {"cached_tokens": 0})
        self.assertIn("timings", events[-1])
        self.assertNotIn("timings", events[-2])

    def test_requests_are_recorded_byte_for_byte(self):
        engine = self.engine()
        raw = b"POST /tokenize HTTP/1.1\r\nhOsT:  x\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 17\r\n\r\n"
        body = b'{"content":"abc"}'
        with Client(engine.port) as client:
            client.send(raw + body, cut=7)
            self.assertEqual(client.read_answer().status, 200)
        record = engine.log[0]
        self.assertEqual((record.raw_head, record.body, record.sha256), (raw, body, sha256(body)))

    def test_errors_close_and_answers_keep_alive(self):
        engine = self.engine(keep_alive_max=3)
        with Client(engine.port) as client:
            for _ in range(3):
                client.send(request_bytes("GET", "/health"))
                self.assertEqual(client.read_answer().status, 200)
            self.assertTrue(client.wait_closed())
        with Client(engine.port) as client:
            client.send(request_bytes("GET", "/nothing"))
            answer = client.read_answer()
            self.assertEqual((answer.status, answer.get("Connection")), (404, "close"))
            self.assertTrue(client.wait_closed())

    def test_idle_connection_is_closed(self):
        engine = self.engine(keep_alive_s=0.05)
        with Client(engine.port) as client:
            self.assertTrue(client.wait_closed(5))

    def test_413_before_the_body(self):
        engine = self.engine(max_body=100)
        with Client(engine.port) as client:
            client.send(request_bytes("POST", "/tokenize", b"", [("Content-Length", "5000")]))
            self.assertEqual(client.read_answer().status, 413)

    def test_faults_reset_and_cut(self):
        engine = self.engine()
        engine.fault("rst", after=2)
        engine.fault("cut", after=2)
        for reset in (True, False):
            with Client(engine.port) as client:
                client.send(request_bytes("POST", CHAT, json.dumps(
                    chat_body("hi", stream=True)).encode()))
                answer = client.read_answer()
                self.assertFalse(answer.complete)
                self.assertEqual((client.reset, client.closed), (reset, not reset))

    def test_lies_about_counts_arrive_as_told(self):
        engine = self.engine(counts={"cache_n": -5, "cached_tokens": 2 ** 63, "prompt_n": "x"})
        answer = fetch(engine.port, "POST", CHAT, chat_body("hi")).json()
        self.assertEqual(answer["timings"]["cache_n"], -5)
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2 ** 63)

    def test_odd_json_as_the_engine_takes_it(self):
        engine = self.engine()
        good = b'\xef\xbb\xbf{"messages":[{"role":"user","content":"x"}]}\n\n'
        for body, status in ((good, 200), (b'{"messages":NaN}', 500), (b"{", 500),
                             (b'{"messages":[{"role":"user","content":"\\ud83d"}]}', 500),
                             (b'{"messages":7}', 400), (b"[]", 400)):
            self.assertEqual(fetch(engine.port, "POST", CHAT, body).status, status, body)

    def test_template_orders(self):
        for order, expected in (("system-first", "STU"), ("tools-first", "TSU"),
                                ("tools-late", "STU")):
            engine = self.engine(order=order)
            body = {"messages": [{"role": "system", "content": "@S"},
                                 {"role": "user", "content": "@U"}], "tools": [{"name": "@T"}]}
            prompt = fetch(engine.port, "POST", "/apply-template", body).json()["prompt"]
            seen = "".join(sorted("STU", key=lambda x: prompt.index("@" + x)))
            self.assertEqual(seen, expected, order)


class Program(unittest.TestCase):
    def test_it_runs_as_a_program_and_is_steered(self):
        script = os.path.join(os.path.dirname(model.__file__), "standin.py")
        child = subprocess.Popen([sys.executable, script, "--slots", "3"],
                                 stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        try:
            port = int(child.stdout.readline())
            self.assertEqual(fetch(port, "GET", "/props").json()["total_slots"], 3)
            fetch(port, "POST", "/_test/set", {"build": "b2"})
            self.assertEqual(fetch(port, "GET", "/props").json()["build_info"], "b2")
            self.assertEqual(len(fetch(port, "GET", "/_test/log").json()), 2)
        finally:
            child.terminate()
            child.stdout.close()
            self.assertEqual(child.wait(10), 0)


if __name__ == "__main__":
    unittest.main()
