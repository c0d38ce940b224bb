# SPDX-License-Identifier: MIT
"""What the gateway is for: prompt starts that were computed once are put back, never wrong
ones, and any trouble inside the cache leaves a plain proxy."""

import glob
import json
import os
import unittest

from harness import CHAT, Case, chat_body, common, request_bytes, wait_until, words


def system_body(system, user, **more):
    return chat_body([{"role": "system", "content": system},
                      {"role": "user", "content": user}], **more)


class ReuseCase(Case):
    def ask(self, gateway, body, path=CHAT):
        """Sends a chat body; the answer must be what a cold engine says."""
        answer = gateway.fetch("POST", path, body)
        self.assertEqual(answer.status, 200, answer.body[:300])
        return answer.json()

    def ask_right(self, gateway, engine, body):
        answer = self.ask(gateway, body)
        self.assert_right(engine, body, answer["choices"][0]["message"]["content"])
        return answer

    def record(self, engine, marker):
        return engine.bodies(marker)[-1]

    def learn(self, engine, gateway, saves=1):
        """Waits until what was in the slots is in the store."""
        wait_until(lambda: len(engine.events("save")) >= saves,
                   lambda: f"{saves} saves: {engine.events('save')} {gateway.stats()}")
        gateway.wait_quiet()
        wait_until(lambda: gateway.store_stats().get("blocks", 0) > 0, "blocks in the store")

    def restart_all(self, engine, gateway, **changes):
        """A new engine process and a new gateway process over the same folders."""
        self.assertEqual(gateway.stop(), 0)
        engine.restart(**changes)
        gateway.start()
        gateway.wait_ready("store")
        engine.wait_idle()
        engine.reset_log()

    def used(self, engine, marker):
        return self.record(engine, marker).cache_n


class Restored(ReuseCase):
    def test_fourth_prompt_reuses_what_three_shared_after_both_restarted(self):
        engine, gateway = self.pair(mode="store")
        system = words(1000)
        for topic in ("apples", "bridges", "candles"):
            self.ask_right(gateway, engine, system_body(system, f"tell me about {topic}"))
            self.learn(engine, gateway)
        self.restart_all(engine, gateway)
        fourth = system_body(system, "tell me about dragons")
        shared = max(common(engine.prompt_of(fourth),
                            engine.prompt_of(system_body(system, f"tell me about {topic}")))
                     for topic in ("apples", "bridges", "candles"))
        self.assertGreater(shared, 950)
        self.ask_right(gateway, engine, fourth)
        self.assertGreaterEqual(self.used(engine, "dragons"), 0.99 * shared)
        self.assertEqual(len(engine.events("restore")), 1)
        wait_until(lambda: gateway.total("restored_tokens") > 0, "restored tokens counted")
        self.assertGreaterEqual(gateway.total("restored_tokens"), 0.99 * shared)
        self.assertEqual(gateway.total("resident_tokens"), 0)
        self.assert_clean()

    def test_endings_of_one_document_are_stored_behind_it(self):
        """The document once, each ending by itself, and a block that both begin in."""
        engine, gateway = self.pair(mode="store")
        document, n = words(700, "document"), 6
        bodies = [system_body(document, words(150, f"ending {i}")) for i in range(n)]
        held = []
        for i, body in enumerate(bodies):
            usage = self.ask_right(gateway, engine, body)["usage"]
            self.learn(engine, gateway, saves=i + 1)
            held.append(usage["prompt_tokens"] + usage["completion_tokens"] - 1)
        prompts = [engine.prompt_of(body) for body in bodies]
        shared = min(common(prompts[0], p) for p in prompts[1:])
        block = json.loads(gateway.admin("/cache")[1])["block_tokens"]
        token_bytes = gateway.replica()["token_bytes"]
        stored = gateway.store_stats()["bytes"]
        self.assertGreaterEqual(stored, token_bytes * (shared + sum(
            tokens - shared - block for tokens in held)))
        self.assertLessEqual(stored, token_bytes * (shared + sum(
            tokens - shared + block for tokens in held)))

    def test_streams_reuse_as_well(self):
        engine, gateway = self.pair(mode="store")
        system = words(600, "stream")
        self.assertEqual(gateway.fetch("POST", CHAT, system_body(
            system, "apples", stream=True)).status, 200)
        self.learn(engine, gateway)
        self.restart_all(engine, gateway)
        self.assertEqual(gateway.fetch("POST", CHAT, system_body(
            system, "dragons", stream=True)).status, 200)
        self.assertGreater(self.used(engine, "dragons"), 580)
        self.assert_clean()

    def test_third_turn_reuses_two_turns_with_their_answers(self):
        engine, gateway = self.pair(mode="store")
        messages = [{"role": "system", "content": words(300, "chat")}]
        for turn in ("first question", "second question"):
            messages.append({"role": "user", "content": turn})
            answer = self.ask_right(gateway, engine, chat_body(messages, max_tokens=60))
            messages.append(answer["choices"][0]["message"])
            self.learn(engine, gateway, len(messages) // 2)
        held = len(engine.prompt_of(chat_body(messages))) - 5
        self.restart_all(engine, gateway)
        messages.append({"role": "user", "content": "third question"})
        self.ask_right(gateway, engine, chat_body(messages))
        prompt = engine.prompt_of(chat_body(messages))
        shared = min(held, len(prompt))
        self.assertGreaterEqual(self.used(engine, "third question"), 0.95 * shared - 64)
        self.assertGreater(self.used(engine, "third question"),
                           len(engine.prompt_of(chat_body(messages[:4]))) - 64)
        self.assert_clean()

    def test_savings_are_estimated_where_every_hit_is_a_restore(self):
        engine, gateway = self.pair(mode="store", slots=1)
        documents = [words(300, "estimate one"), words(300, "estimate two")]
        for turn in (words(9, "nothing longer is seen"), "second", "third"):
            for document in documents:
                self.assertEqual(gateway.fetch("POST", CHAT, chat_body(
                    f"{document} {turn}", stream=True)).status, 200)
                gateway.wait_quiet()
        self.assertEqual(gateway.replica()["restores"], 4)
        self.assertGreater(gateway.total("savings")["confirmed"]["n"], 0)

    def test_completions_and_native_prompts_reuse(self):
        engine, gateway = self.pair(mode="store")
        for path, marker in (("/v1/completions", "oai"), ("/completion", "native")):
            body = {"prompt": words(500, marker) + " apples", "max_tokens": 3, "n_predict": 3}
            before = len(engine.events("save"))
            self.ask(gateway, body, path)
            self.learn(engine, gateway, before + 1)
        self.restart_all(engine, gateway)
        for path, marker in (("/v1/completions", "oai"), ("/completion", "native")):
            body = {"prompt": words(500, marker) + f" {marker}-dragons", "max_tokens": 3,
                    "n_predict": 3}
            self.ask(gateway, body, path)
            self.assertGreater(self.used(engine, f"{marker}-dragons"), 480, path)
        self.assert_clean()

    def test_K27_prompts_of_token_ids_reuse_blocks(self):
        engine, gateway = self.pair(mode="store")
        ids = gateway.fetch("POST", "/tokenize", {"content": words(450)}).json()["tokens"][:400]
        self.ask(gateway, {"prompt": ids + [65, 66], "max_tokens": 2}, "/v1/completions")
        self.learn(engine, gateway)
        self.restart_all(engine, gateway)
        self.ask(gateway, {"prompt": ids + [67, 68], "max_tokens": 2}, "/v1/completions")
        self.assertGreaterEqual(self.used(engine, "67, 68]"), 384)
        self.assert_clean()

    def test_messages_api_reuses_though_it_cannot_be_pinned(self):
        engine, gateway = self.pair(mode="store")
        system = words(800, "messages")
        body = {"system": system, "max_tokens": 3,
                "messages": [{"role": "user", "content": "apples"}]}
        self.ask(gateway, body, "/v1/messages")
        self.learn(engine, gateway)
        self.restart_all(engine, gateway)
        body["messages"] = [{"role": "user", "content": "dragons"}]
        self.ask(gateway, body, "/v1/messages")
        record = self.record(engine, "dragons")
        self.assertGreater(record.cache_n, 780)
        self.assertNotIn(b"id_slot", record.body)
        self.assert_clean()

    def test_tools_first_templates_reuse_the_tools(self):
        engine, gateway = self.pair(mode="store", order="tools-first")
        tools = [{"type": "function", "function": {"name": f"tool_{i}", "parameters": {},
                  "description": words(60, str(i))}} for i in range(8)]
        body = system_body("You are one.", "apples", tools=tools)
        self.ask(gateway, body)
        self.learn(engine, gateway)
        self.restart_all(engine, gateway)
        self.ask(gateway, system_body("Somebody else is speaking.", "dragons", tools=tools))
        self.assertGreater(self.used(engine, "dragons"), 400)
        self.assert_clean()

    def test_engine_restart_is_noticed_and_its_slots_are_filled_again(self):
        engine, gateway = self.pair(mode="store")
        system = words(700, "restart")
        self.ask_right(gateway, engine, system_body(system, "apples"))
        self.learn(engine, gateway)
        looks = len(engine.requests("/props"))
        engine.restart()
        engine.wait_for(lambda: len(engine.requests("/props")) > looks,
                        what="the gateway looks again")
        gateway.wait_ready("store")
        for marker in ("bridges", "candles", "dragons"):
            self.ask_right(gateway, engine, system_body(system, marker))
        self.assertGreater(self.used(engine, "dragons"), 680)
        wait_until(lambda: gateway.total("in_flight") == 0, "idle")
        self.assert_clean()

    def test_more_chats_than_slots_each_find_their_state(self):
        engine, gateway = self.pair(mode="store")
        names = [f"chat-{i}" for i in range(6)]
        for name in names:
            before = len(engine.events("save"))
            self.ask_right(gateway, engine, system_body(words(400, name), f"{name} one"))
            self.learn(engine, gateway, before + 1)
        for name in names:
            self.ask_right(gateway, engine, system_body(words(400, name), f"{name} two"))
            self.assertGreater(self.used(engine, f"{name} two"), 380, name)
        self.assert_clean()

    def test_version_4_and_one_stream_work_too(self):
        for settings in self.engines_of({"state_version": 4}, {"unified": True}, {"slots": 1},
                                        {"state_version": 4, "slots": 3}):
            with self.subTest(settings):
                engine, gateway = self.pair(mode="store", store=False, **settings)
                system = words(300, str(settings))
                self.ask_right(gateway, engine, system_body(system, "apples"))
                self.learn(engine, gateway)
                for i in range(engine.settings.slots):
                    self.ask_right(gateway, engine, system_body(words(300, f"other {i}"), "x"))
                gateway.wait_quiet()
                self.ask_right(gateway, engine, system_body(system, "dragons"))
                self.assertGreater(self.used(engine, "dragons"), 280)
                self.assert_clean(engine)
                gateway.stop()
                engine.stop()


class NeverShared(ReuseCase):
    def first_sight(self, engine, body, marker, at_most=0):
        record = self.record(engine, marker)
        self.assertLessEqual(record.cache_n, at_most)
        self.assert_clean()

    def test_other_weights_under_the_same_name_share_nothing(self):
        engine, gateway = self.pair(mode="store")
        system = words(500, "weights")
        self.ask_right(gateway, engine, system_body(system, "apples"))
        self.learn(engine, gateway)
        self.restart_all(engine, gateway, weights=2)
        body = system_body(system, "dragons")
        self.ask_right(gateway, engine, body)
        self.first_sight(engine, body, "dragons")
        self.assertEqual(engine.events("restore"), [])

    def test_other_weights_while_the_gateway_runs(self):
        engine, gateway = self.pair(mode="store")
        system = words(500, "swap")
        self.ask_right(gateway, engine, system_body(system, "apples"))
        self.learn(engine, gateway)
        engine.restart(weights=3)
        wait_until(lambda: gateway.fetch("GET", "/health").status == 200, "engine is back")
        for marker in ("bridges", "candles"):
            self.ask_right(gateway, engine, system_body(system, marker))
        self.assert_clean()

    def test_other_weights_while_a_restore_is_on_its_way(self):
        """The restart is noticed between the plan and the restore."""
        engine, gateway = self.pair(mode="store", slots=1)
        for name in ("a-fam", "b-fam"):
            before = len(engine.events("save"))
            self.ask_right(gateway, engine, system_body(words(300, name), f"{name} one"))
            self.learn(engine, gateway, before + 1)
        engine.restart(held=["slots"], weights=5)
        engine.wait_held("slots")   # the gateway looks what became of the engine
        body = system_body(words(300, "a-fam"), "a-fam two")
        with gateway.client() as client:
            client.send(request_bytes("POST", CHAT, json.dumps(body).encode()))
            # Where /props was asked just then it is noticed without GET /slots.
            wait_until(lambda: gateway.in_state("restore") == 1 or
                       gateway.replica()["restarts"] == 1, "a restore is prepared")
            engine.release("slots")
            answer = client.read_answer()
        self.assert_right(engine, body, answer.json()["choices"][0]["message"]["content"])
        self.assert_clean()

    def test_other_model_file_shares_nothing(self):
        path = os.path.join(self.folder, "model.gguf")
        with open(path, "wb") as f:
            f.write(b"GGUF first" * 100)
        engine, gateway = self.pair(mode="store", model_path=path)
        system = words(500, "file")
        self.ask_right(gateway, engine, system_body(system, "apples"))
        self.learn(engine, gateway)
        with open(path, "wb") as f:
            f.write(b"GGUF other" * 100)
        self.restart_all(engine, gateway, weights=4)
        body = system_body(system, "dragons")
        self.ask_right(gateway, engine, body)
        self.first_sight(engine, body, "dragons")

    def test_K33_adapters_do_not_share(self):
        engine, gateway = self.pair(mode="store", lora=1)
        prompt = words(400, "lora")
        body = {"prompt": prompt + " apples", "n_predict": 2, "lora": [{"id": 0, "scale": 1.0}]}
        self.ask(gateway, body, "/completion")
        gateway.wait_quiet()
        self.restart_all(engine, gateway)
        for scale, marker in ((0.5, "half"), (0.0, "none")):
            self.ask(gateway, {"prompt": prompt + f" {marker}", "n_predict": 2,
                               "lora": [{"id": 0, "scale": scale}]}, "/completion")
            self.assertEqual(self.used(engine, f" {marker}"), 0)
        self.assert_clean()

    def test_K33_equal_tokens_under_two_adapters_keep_their_own_blocks(self):
        engine, gateway = self.pair(mode="store", lora=1, slots=1)

        def ask(scale, marker, n):
            lora = {} if scale is None else {"lora": [{"id": 0, "scale": scale}]}
            self.ask(gateway, {"prompt": words(300, "adapted") + marker, "n_predict": 2, **lora},
                     "/completion")
            if n:
                self.learn(engine, gateway, n)

        for n, scale in enumerate((0.25, 0.5, None), 1):
            ask(scale, " first", n)
        for scale in (0.25, 0.5, None, 0.5):
            ask(scale, f" again {scale}", 0)
            gateway.wait_quiet()
        # The engine throws a slot's content away when adapters change, so nothing was
        # restored for these, and that is no fault of its restores.
        self.assertEqual(gateway.mode(), "store", gateway.replica()["mode_reason"])
        self.assertEqual(gateway.restore_failures(), 0)
        # Between requests under one set they are put back.
        self.ask(gateway, {"prompt": words(300, "other"), "n_predict": 2,
                           "lora": [{"id": 0, "scale": 0.5}]}, "/completion")
        gateway.wait_quiet()
        ask(0.5, " last", 0)
        self.assertGreater(self.used(engine, " last"), 280)
        self.assert_clean()

    def test_salts_do_not_share(self):
        engine, gateway = self.pair(mode="store")
        system = words(400, "salt")
        self.ask_right(gateway, engine, system_body(system, "apples", cache_salt="one"))
        gateway.wait_quiet()
        self.restart_all(engine, gateway)
        self.ask_right(gateway, engine, system_body(system, "dragons", cache_salt="two"))
        self.assertEqual(engine.events("restore"), [])
        self.assertEqual(self.used(engine, "dragons"), 0)
        self.assert_clean()

    def test_K32_pictures_end_the_shared_part(self):
        self.need_standin("pictures")
        engine, gateway = self.pair(mode="store")
        text = words(300, "picture")

        def look(picture, question):
            url = {"url": "data:image/png;base64," + picture * 200}
            return chat_body([{"role": "user", "content": [
                {"type": "text", "text": text}, {"type": "image_url", "image_url": url},
                {"type": "text", "text": question}]}])

        self.ask(gateway, look("AAAA", "apples"))
        gateway.wait_quiet()
        self.ask(gateway, look("BBBB", "dragons"))
        self.assert_clean()
        shared = common(engine.prompt_of(look("AAAA", "apples")),
                        engine.prompt_of(look("BBBB", "dragons")))
        self.assertLessEqual(self.used(engine, "dragons"), shared)

    def test_no_reuse_where_the_client_said_no(self):
        engine, gateway = self.pair(mode="store")
        system = words(400, "no cache")
        self.ask_right(gateway, engine, system_body(system, "apples"))
        self.learn(engine, gateway)
        self.restart_all(engine, gateway)
        before = gateway.total("delivered_tokens")
        self.ask_right(gateway, engine, system_body(system, "dragons", cache_prompt=False))
        self.assertEqual(self.used(engine, "dragons"), 0)
        self.assertEqual(engine.events("restore"), [])
        wait_until(lambda: gateway.total("in_flight") == 0, "idle")
        self.assertEqual(gateway.total("delivered_tokens"), before)

    def test_slot_chosen_by_the_client_is_respected(self):
        engine, gateway = self.pair(mode="store")
        for slot in (1, 0, 1):
            body = system_body(words(200, f"pin {slot}"), f"pinned {slot}", id_slot=slot)
            self.ask_right(gateway, engine, body)
            record = self.record(engine, f"pinned {slot}")
            self.assertEqual(record.slot, slot)
            self.assertEqual(record.body.count(b"id_slot"), 1)
        self.assert_clean()

    def test_several_answers_leave_no_false_belief(self):
        engine, gateway = self.pair(mode="store")
        system = words(400, "n")
        self.ask_right(gateway, engine, system_body(system, "apples"))
        self.learn(engine, gateway)
        answer = self.ask(gateway, system_body(system, "both", n=2))
        self.assertEqual(len(answer["choices"]), 2)
        gateway.wait_quiet()
        for marker in ("bridges", "candles", "dragons"):
            self.ask_right(gateway, engine, system_body(system, marker))
        self.assert_clean()


class Damaged(ReuseCase):
    def stored(self):
        engine, gateway = self.pair(mode="store")
        system = words(500, "damage")
        self.ask_right(gateway, engine, system_body(system, "apples"))
        self.learn(engine, gateway)
        self.assertEqual(gateway.stop(), 0)
        files = [f for f in glob.glob(os.path.join(gateway.store_dir, "**"), recursive=True)
                 if os.path.isfile(f) and os.path.getsize(f) > 4096]
        self.assertTrue(files, "files of blocks")
        return engine, gateway, system, files

    def after(self, engine, gateway, system):
        """Starts over the damaged store: the right answer, and the damage is told."""
        engine.restart()
        gateway.start()
        gateway.wait_ready("store")
        engine.wait_idle()
        engine.reset_log()
        self.ask_right(gateway, engine, system_body(system, "dragons"))
        self.assert_clean()

    def damaged(self, gateway):
        return (gateway.store_stats().get("damaged", 0),
                glob.glob(os.path.join(gateway.store_dir, "damaged", "*")))

    def test_blocks_cut_short_never_reach_the_engine(self):
        engine, gateway, system, files = self.stored()
        for path in files:
            os.truncate(path, os.path.getsize(path) - 7)
        self.after(engine, gateway, system)
        self.assertEqual(self.used(engine, "dragons"), 0)
        count, aside = self.damaged(gateway)
        self.assertGreater(count, 0)
        self.assertTrue(aside, "put aside")
        self.assertGreater(gateway.metric("incipit_store_damaged_total") or 0, 0)

    def test_flipped_bits_never_reach_the_engine(self):
        engine, gateway, system, files = self.stored()
        for i, path in enumerate(files):
            with open(path, "r+b") as f:
                at = os.path.getsize(path) * (i % 7 + 1) // 8
                f.seek(at)
                byte = f.read(1)
                f.seek(at)
                f.write(bytes([byte[0] ^ 0x10]))
        self.after(engine, gateway, system)
        self.assertEqual(self.used(engine, "dragons"), 0)
        self.assertGreater(self.damaged(gateway)[0], 0)

    def test_one_damaged_block_costs_what_is_behind_it_only(self):
        engine, gateway, system, files = self.stored()
        if len(files) < 4:
            self.skipTest("blocks share files")
        first = min(files, key=os.path.getmtime)
        with open(first, "r+b") as f:
            f.seek(-5, os.SEEK_END)
            f.write(b"\xff\0\xff\0\xff")
        self.after(engine, gateway, system)

    def test_missing_and_foreign_files_are_no_trouble(self):
        engine, gateway, system, files = self.stored()
        for path in files[::2]:
            os.unlink(path)
        with open(os.path.join(gateway.store_dir, "README"), "w", encoding="ascii") as f:
            f.write("what is this doing here\n")
        self.after(engine, gateway, system)

    def test_garbage_in_every_small_file_is_no_trouble(self):
        engine, gateway, system, _ = self.stored()
        for path in glob.glob(os.path.join(gateway.store_dir, "**"), recursive=True):
            name = os.path.basename(path)
            if os.path.isfile(path) and name.startswith(("prompts", "note")):
                with open(path, "r+b") as f:
                    f.write(b"\x5a" * min(200, os.path.getsize(path)))
        self.after(engine, gateway, system)

    def test_crash_leaves_whole_blocks_or_none(self):
        engine, gateway = self.pair(mode="store")
        system = words(500, "crash")
        self.ask_right(gateway, engine, system_body(system, "apples"))
        self.learn(engine, gateway)
        log = os.path.join(gateway.store_dir, "prompts.log")
        wait_until(lambda: gateway.store_stats()["disk_blocks"] == gateway.store_stats()["blocks"]
                   and os.path.exists(log) and os.path.getsize(log), "all is on disk")
        self.ask_right(gateway, engine, system_body(words(800, "late"), "bridges"))
        gateway.crash()
        engine.restart()
        gateway.start()
        gateway.wait_ready("store")
        engine.wait_idle()
        engine.reset_log()
        self.ask_right(gateway, engine, system_body(system, "dragons"))
        self.assertGreater(self.used(engine, "dragons"), 440)
        self.assert_clean()

    def test_second_gateway_on_the_same_store_is_refused(self):
        engine, gateway = self.pair(mode="store")
        with self.assertRaisesRegex(AssertionError, "gateway ended with"):
            self.gateway(engine)
        self.gateways.pop()
        self.assertTrue(gateway.alive())


class EngineSaysNo(ReuseCase):
    def families(self, engine, gateway, names):
        for name in names:
            before = len(engine.events("save"))
            self.ask_right(gateway, engine, system_body(words(300, name), f"{name} one"))
            self.learn(engine, gateway, before + 1)

    def test_K43_yes_that_means_no_is_switched_off_after_three(self):
        engine, gateway = self.pair(mode="store", slots=1)
        names = ["a-fam", "b-fam", "c-fam", "d-fam", "e-fam"]
        self.families(engine, gateway, names)
        engine.set(restore_lies=True)
        before = gateway.total("restored_tokens")
        for name in names[:4]:
            self.ask_right(gateway, engine, system_body(words(300, name), f"{name} two"))
            gateway.wait_quiet()
        self.assertEqual(gateway.total("restored_tokens"), before, "credit for nothing")
        wait_until(lambda: gateway.mode() != "store", lambda: f"switched off: {gateway.stats()}")
        self.assertTrue(gateway.replica()["mode_reason"])
        restores = len(engine.events("restore"))
        self.assertLessEqual(restores, 4)
        self.ask_right(gateway, engine, system_body(words(300, "e-fam"), "e-fam two"))
        self.assertEqual(len(engine.events("restore")), restores)
        self.assertGreaterEqual(gateway.restore_failures(), 3)
        self.assert_clean()

    def test_transposed_v_is_cut_and_composed(self):
        for settings in self.engines_of({"v_transposed": 1}):
            engine, gateway = self.pair(mode="store", slots=1, **settings)
            self.families(engine, gateway, ["a-fam", "b-fam"])
            self.ask_right(gateway, engine, system_body(words(300, "a-fam"), "a-fam two"))
            self.assertGreater(self.used(engine, "a-fam two"), 280)
            # What was stored is of use to an engine that has it the other way round.
            self.assertEqual(gateway.stop(), 0)
            engine.restart(v_transposed=0)
            gateway.start()
            gateway.wait_ready("store")
            self.ask_right(gateway, engine, system_body(words(300, "a-fam"), "a-fam three"))
            self.assertGreater(self.used(engine, "a-fam three"), 280)
            self.assert_clean()

    def test_refused_restores_run_cold_and_are_counted(self):
        engine, gateway = self.pair(mode="store", slots=1)
        self.families(engine, gateway, ["a-fam", "b-fam"])
        engine.set(restore_fails=True)
        self.ask_right(gateway, engine, system_body(words(300, "a-fam"), "a-fam two"))
        self.assertEqual(self.used(engine, "a-fam two"), 0)
        self.assertGreaterEqual(gateway.restore_failures(), 1)
        engine.set(restore_fails=False)
        gateway.wait_quiet()
        self.ask_right(gateway, engine, system_body(words(300, "b-fam"), "b-fam two"))
        self.assertGreater(self.used(engine, "b-fam two"), 280)
        self.assert_clean()

    def test_self_test_finds_engines_that_cannot(self):
        for settings in self.engines_of(
                {"restore_lies": True}, {"restore_fails": True}, {"slot_dir": ""},
                {"no_slots": True}, {"state_version": 3}):
            with self.subTest(settings):
                engine = self.engine(**settings)
                gateway = self.gateway(engine, store=False)
                wait_until(lambda g=gateway: g.mode() == "observe",
                           lambda g=gateway: f"observe: {g.stats()}")
                self.assertTrue(gateway.replica()["mode_reason"])
                for marker in ("apples", "dragons"):
                    self.ask_right(gateway, engine, system_body(words(100), marker))
                self.assert_clean(engine)
                gateway.stop()
                engine.stop()

    def test_full_slot_folder_costs_hits_only(self):
        engine, gateway = self.pair(mode="store", slots=1)
        self.families(engine, gateway, ["a-fam", "b-fam"])
        os.rename(gateway.slot_dir, gateway.slot_dir + ".away")
        try:
            self.ask_right(gateway, engine, system_body(words(300, "a-fam"), "a-fam two"))
            gateway.wait_quiet()
        finally:
            os.rename(gateway.slot_dir + ".away", gateway.slot_dir)
        self.ask_right(gateway, engine, system_body(words(300, "b-fam"), "b-fam two"))
        self.assert_clean(allowed=("restore-missing",))

    def test_scratch_files_are_removed(self):
        engine, gateway = self.pair(mode="store", slots=1)
        self.families(engine, gateway, ["a-fam", "b-fam", "c-fam"])
        self.ask_right(gateway, engine, system_body(words(300, "a-fam"), "a-fam two"))
        gateway.wait_quiet()
        wait_until(lambda: os.listdir(gateway.slot_dir) == [],
                   lambda: f"empty: {os.listdir(gateway.slot_dir)}")

    def test_K45_links_in_the_slot_folder_lead_nowhere(self):
        victim = os.path.join(self.folder, "victim")
        with open(victim, "w", encoding="ascii") as f:
            f.write("precious")
        engine, gateway = self.pair(mode="store", slots=1)
        os.symlink(victim, os.path.join(gateway.slot_dir, "link.kv"))
        self.families(engine, gateway, ["a-fam", "b-fam"])
        self.ask_right(gateway, engine, system_body(words(300, "a-fam"), "a-fam two"))
        with open(victim, encoding="ascii") as f:
            self.assertEqual(f.read(), "precious")


    def test_K46_engine_that_lost_its_slots_in_silence_costs_prefill_only(self):
        engine, gateway = self.pair(mode="store")
        system = words(300, "lost")
        for marker in ("apples", "bridges", "candles", "dragons"):
            self.ask_right(gateway, engine, system_body(system, marker))
            gateway.wait_quiet()
            engine.forget_slots()
        self.assertLessEqual(gateway.total("delivered_tokens"),
                             sum(r.cache_n for r in engine.generations()))
        self.assert_clean(allowed=("save-empty",))


class Bounded(ReuseCase):
    def test_store_stays_within_its_bytes(self):
        limit = 1 << 20
        engine, gateway = self.pair({"store": {"max_bytes": "1MiB", "ram_bytes": "1MiB"}},
                                    mode="store")
        for i in range(12):
            before = len(engine.events("save"))
            self.ask_right(gateway, engine, system_body(words(1200, f"big {i}"), f"big-{i}"))
            self.learn(engine, gateway, before + 1)
            self.assertLessEqual(gateway.store_stats()["bytes"], limit * 1.1)
        on_disk = sum(os.path.getsize(f) for f in
                      glob.glob(os.path.join(gateway.store_dir, "**"), recursive=True)
                      if os.path.isfile(f))
        self.assertLess(on_disk, 2 * limit)
        self.assertGreater(gateway.store_stats()["evicted"], 0)
        self.assert_clean()


if __name__ == "__main__":
    unittest.main()
