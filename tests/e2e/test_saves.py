# SPDX-License-Identifier: MIT
"""When slots are saved and restored: never while somebody waits, one at a time, within
store.max_stall, within the room of the slot directory; and calls that are not answered."""

import glob
import json
import os
import struct
import subprocess
import time

from harness import CHAT, Case, chat_body, request_bytes, wait_until, words


def chat_bytes(text, **more):
    return request_bytes("POST", CHAT, json.dumps(chat_body(text, **more)).encode())


class SaveCase(Case):
    def ask(self, gateway, text, **more):
        body = chat_body(text, **more)
        answer = gateway.fetch("POST", CHAT, body)
        self.assertEqual(answer.status, 200, answer.body)
        self.assert_right(self.engines[-1], body,
                          answer.json()["choices"][0]["message"]["content"])

    def skipped(self, gateway):
        return {k: n for k, n in gateway.replica()["saves_skipped"].items() if n}

    def sent(self, engine):
        """What the engine was asked for, without what only looks."""
        out = []
        for r in engine.requests():
            action = r.target.partition("?action=")[2]
            if action:
                out.append(action)
            elif r.method == "POST":
                out.append(r.json()["messages"][-1]["content"].split()[-1])
        return out

    def stored(self, gateway, document, name):
        """A document that lies in the store and in no slot."""
        self.ask(gateway, f"{document} {name}")
        gateway.wait_quiet()
        for i in range(len(gateway.replica()["slots"])):
            self.ask(gateway, f"something else {i}", id_slot=i)
        gateway.wait_quiet()


class When(SaveCase):
    def test_most_valuable_first_and_the_queue_is_looked_at_in_between(self):
        engine, gateway = self.pair(mode="store", slots=3)
        engine.hold("head", "blocker")
        with gateway.client() as blocks, gateway.client() as waits, gateway.client() as late:
            blocks.send(chat_bytes("this is the blocker", id_slot=2))
            engine.wait_held("head")
            waits.send(chat_bytes("this one waits", id_slot=2))
            wait_until(lambda: gateway.in_state("queue") == 1, "waits")
            self.ask(gateway, words(150, "short") + " short", id_slot=0)
            self.ask(gateway, words(500, "long") + " long", id_slot=1)
            engine.hold("save")
            engine.release("head", match="blocker")
            self.assertEqual([c.read_answer().status for c in (blocks, waits)], [200, 200])
            engine.wait_held("save")
            late.send(chat_bytes("comes during the save late"))
            wait_until(lambda: gateway.in_state("queue") == 1, "waits for the save")
            self.assertEqual(engine.held("save"), 1)
            engine.release("save", 1)
            self.assertEqual(late.read_answer().status, 200)   # and for no other one
            self.assertEqual(len(engine.events("save")), 1)
            engine.release("save")
        gateway.wait_quiet()
        first, second = engine.events("save")
        self.assertGreater(first["tokens"], second["tokens"])
        self.assert_clean()

    def one_behind_another(self, config):
        """One slot, and two prompts without a pause: what was sent, in order."""
        engine, gateway = self.pair({"store": config}, mode="store", slots=1)
        engine.hold("head")
        with gateway.client() as one, gateway.client() as two:
            one.send(chat_bytes(words(300, "one") + " one"))
            engine.wait_held("head")
            two.send(chat_bytes(words(200, "two") + " two"))
            wait_until(lambda: gateway.in_state("queue") == 1, "waits")
            engine.release("head")
            self.assertEqual([c.read_answer().status for c in (one, two)], [200, 200])
        gateway.wait_quiet()
        self.assert_clean()
        return gateway, self.sent(engine)

    def test_who_overwrites_what_is_worth_a_save_waits_for_it(self):
        gateway, sent = self.one_behind_another({"save_first": "on"})
        self.assertEqual(sent, ["one", "save", "two", "save"])
        self.assertEqual(self.skipped(gateway), {})

    def test_nothing_is_saved_first_where_that_is_switched_off(self):
        gateway, sent = self.one_behind_another({"save_first": "off"})
        self.assertEqual(sent, ["one", "two", "save"])
        self.assertEqual(self.skipped(gateway), {"overwritten": 1})
        self.assertEqual(gateway.metric("incipit_saves_skipped_total", reason="overwritten"), 1)

    def test_next_turn_overwrites_nothing(self):
        engine, gateway = self.pair(mode="store", slots=1)
        engine.hold("head")
        text = words(300, "turn")
        with gateway.client() as one, gateway.client() as two:
            one.send(chat_bytes(text + " one"))
            engine.wait_held("head")
            two.send(chat_bytes(text + " two"))
            wait_until(lambda: gateway.in_state("queue") == 1, "waits")
            engine.release("head")
            self.assertEqual([c.read_answer().status for c in (one, two)], [200, 200])
        gateway.wait_quiet()
        self.assertEqual(self.skipped(gateway), {})
        self.assertGreater(engine.bodies("two")[0].cache_n, 280)

    def test_save_above_the_cap_waits_until_nothing_runs(self):
        """A slot of 13,000 tokens takes more than a millisecond, one of 3,000 does not."""
        self.need_standin("bytes of a token")
        engine, gateway = self.pair({"store": {"max_stall": "1ms"}}, mode="store", slots=3)
        engine.hold("stream")
        with gateway.client() as runs:
            runs.send(chat_bytes("running", stream=True, max_tokens=30))
            engine.wait_held("stream")
            self.ask(gateway, words(3000, "within") + " within")
            gateway.wait_quiet(but=1)
            self.assertEqual(self.sent(engine), ["running", "within", "save"])
            self.ask(gateway, words(13000, "above") + " above")
            slots = gateway.replica()["slots"]
            self.assertTrue(any(s["unsaved"] for s in slots), slots)
            self.ask(gateway, "in between")   # on the third
            self.assertEqual(self.sent(engine).count("save"), 1)
            engine.release("stream")
            self.assertEqual(runs.read_answer().status, 200)
        gateway.wait_quiet()
        self.assertEqual(self.sent(engine).count("save"), 2)
        self.assert_clean()

    def test_one_slow_save_is_not_the_last_one(self):
        """It makes the next ones look not worth their time, and as long as none is made
        nothing shows that they would be quick again."""
        self.need_standin("the time of a token")
        engine, gateway = self.pair(mode="store", slots=1, prefill_us=100)
        prompts = (f"{words(200, f'prompt {i}')} number-{i}" for i in range(200))

        def saves_of(n):
            """Behind n prompts without a pause."""
            before = len(engine.events("save"))
            for _ in range(n):
                self.ask(gateway, next(prompts))
            return len(engine.events("save")) - before
        self.assertGreater(saves_of(30), 10)
        gateway.wait_quiet()
        engine.hold("save")
        self.ask(gateway, next(prompts))
        engine.wait_held("save")
        time.sleep(2)   # so long it takes
        engine.release("save")
        gateway.wait_quiet()
        saves_of(60)
        self.assertGreater(saves_of(30), 10)
        self.assert_clean()

    def test_switched_off_nothing_is_saved(self):
        engine, gateway = self.pair({"store": {"save": False}}, mode="store")
        self.ask(gateway, words(200, "off") + " off")
        gateway.wait_quiet()
        self.assertEqual(self.sent(engine), ["off"])
        self.assertEqual(self.skipped(gateway), {"switched-off": 1})


class Unanswered(SaveCase):
    """timeouts.slot passes while the engine is at it."""

    def test_restore_that_is_late_is_erased_before_the_request_runs(self):
        engine, gateway = self.pair({"timeouts": {"slot": "1s"}}, mode="store")
        document = words(300, "late")
        self.stored(gateway, document, "one")
        engine.reset_log()
        engine.hold("restore")
        engine.hold("erase")   # or it could overtake on another connection
        with gateway.client() as client:
            client.send(chat_bytes(f"{document} two"))
            engine.wait_held("restore")
            engine.wait_for(lambda: "erase" in self.sent(engine), what="the erase")
            engine.release("restore")
            engine.wait_for(lambda: engine.events("restore"), what="the restore's end")
            engine.release("erase")
            self.assertEqual(client.read_answer().status, 200)
        gateway.wait_quiet()
        self.assertEqual(self.sent(engine)[:3], ["restore", "erase", "two"])
        self.assertEqual([e["event"] for e in engine.events("restore", "erase")],
                         ["restore", "erase"])
        self.assertEqual(engine.bodies("two")[0].cache_n, 0)
        self.assertEqual(gateway.replica()["restore_failures"]["engine-unreachable"], 1)
        self.assert_clean(allowed=("slot-action-busy",))

    def test_slot_whose_erase_is_late_too_is_not_known_after_its_request(self):
        engine, gateway = self.pair({"timeouts": {"slot": "200ms"}}, mode="store")
        document = words(300, "never")
        self.stored(gateway, document, "one")
        engine.reset_log()
        engine.hold("restore")
        engine.hold("erase")
        with gateway.client() as client:
            client.send(chat_bytes(f"{document} two"))
            engine.wait_for(lambda: "two" in self.sent(engine), what="runs all the same")
            slot = engine.bodies("two")[0].json()["id_slot"]
            engine.release("erase")
            engine.release("restore")
            self.assertEqual(client.read_answer().status, 200)
        gateway.wait_quiet()
        self.assertEqual(gateway.replica()["slots"][slot]["tokens"], 0)
        self.assertEqual(self.sent(engine), ["restore", "erase", "two"])   # and no save
        self.ask(gateway, f"{document} three")
        gateway.wait_quiet()
        self.assert_clean(allowed=("slot-action-busy", "restore-missing", "restore-damaged"))

    def test_file_of_a_save_that_is_late_is_removed_when_it_comes(self):
        engine, gateway = self.pair({"timeouts": {"slot": "200ms"}}, mode="store")
        engine.hold("save")
        self.ask(gateway, words(200, "late") + " one")
        engine.wait_held("save")
        wait_until(lambda: gateway.replica()["save_failures"] == 1, "given up")
        self.assertEqual(os.listdir(gateway.slot_dir), [])
        engine.release("save")
        engine.wait_for(lambda: engine.events("save"), what="is written")
        wait_until(lambda: os.listdir(gateway.slot_dir) == [], "is removed")
        self.assertEqual([s["tokens"] for s in gateway.replica()["slots"]], [0, 0])
        self.ask(gateway, words(200, "late") + " two")
        gateway.wait_quiet()
        self.assert_clean()

    def test_one_who_left_before_the_restore_has_overwritten_nothing(self):
        engine, gateway = self.pair(mode="store", slots=1)
        document = words(300, "left")
        self.stored(gateway, document, "one")
        other = words(200, "stays")
        self.ask(gateway, f"{other} one stays")
        gateway.wait_quiet()
        engine.hold("slots")   # it is looked at right before
        with gateway.client() as client:
            client.send(chat_bytes(f"{document} two"))
            wait_until(lambda: gateway.in_state("restore") == 1, "is prepared")
            engine.wait_held("slots")
        wait_until(lambda: gateway.in_flight() == 0, "has left")
        engine.release("slots")
        gateway.wait_quiet()
        self.assertEqual(engine.events("restore"), [])
        self.ask(gateway, f"{other} two stays")
        self.assertGreater(engine.bodies("stays")[-1].cache_n, 180)
        self.assert_clean()


class Short(SaveCase):
    def files(self, gateway):
        """Of blocks, by how many blocks lie before."""
        found = {}
        for path in glob.glob(os.path.join(gateway.store_dir, "blocks", "**", "*.kv"),
                              recursive=True):
            with open(path, "rb") as f:
                found[struct.unpack("<I", f.read(68)[64:])[0]] = path
        return found

    def damaged(self, at):
        engine, gateway = self.pair(mode="store")
        document = words(700, "short")
        self.ask(gateway, f"{document} one")
        gateway.wait_quiet()
        self.assertEqual(gateway.stop(), 0)
        with open(self.files(gateway)[at], "r+b") as f:
            f.seek(-30, os.SEEK_END)
            f.write(b"\x5a\xa5" * 5)
        engine.restart()
        gateway.start()
        gateway.wait_ready("store")
        engine.wait_idle()
        engine.reset_log()
        self.ask(gateway, f"{document} two")
        self.assertEqual(gateway.store_stats()["damaged"], 1)
        self.assert_clean()
        return engine, gateway

    def test_good_blocks_before_a_damaged_one_are_restored(self):
        engine, gateway = self.damaged(6)
        self.assertEqual(engine.bodies("two")[0].cache_n, 6 * 64)
        self.assertEqual(gateway.restore_failures(), 0)
        gateway.wait_quiet()
        self.ask(gateway, f"{words(700, 'short')} three")
        self.assertGreater(engine.bodies("three")[-1].cache_n, 640)

    def test_nothing_before_a_damaged_block_is_a_cold_run(self):
        engine, gateway = self.damaged(0)
        self.assertEqual(engine.bodies("two")[0].cache_n, 0)
        self.assertEqual(gateway.replica()["restore_failures"]["block-lost"], 1)


class Room(SaveCase):
    def small(self, size):
        """A slot directory on a file system of its own."""
        path = os.path.join(self.folder, "slots")
        os.makedirs(path, mode=0o700)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700",
                               "none", path], stderr=subprocess.PIPE)
        if done.returncode:
            self.skipTest(f"no file system can be mounted: {done.stderr.decode().strip()}")
        self.addCleanup(subprocess.run, ["umount", path], check=True)

    def test_slot_without_room_for_its_file_is_not_saved(self):
        self.need_standin("bytes of a token")
        self.small("200k")
        engine, gateway = self.pair(mode="store")
        self.assertIn("event=scratch-small", gateway.text())
        replica = gateway.replica()
        self.assertEqual(replica["scratch_size"], 200 << 10)
        self.assertGreater(replica["scratch_wanted"], 3 * 16384 * 64)
        self.ask(gateway, words(200, "small") + " small")
        gateway.wait_quiet()
        self.ask(gateway, words(6000, "large") + " large")
        gateway.wait_quiet()
        self.assertEqual(self.sent(engine), ["small", "save", "large"])
        self.assertEqual(self.skipped(gateway), {"scratch-full": 1})
        self.assert_clean()

    def test_no_room_for_a_restore_is_a_cold_run(self):
        self.need_standin("bytes of a token")
        self.small("200k")
        engine, gateway = self.pair(mode="store", slots=1)
        document = words(300, "room")
        self.stored(gateway, document, "one")
        with open(os.path.join(gateway.slot_dir, "somebody-elses"), "wb") as f:
            f.write(b"x" * (184 << 10))
        self.ask(gateway, f"{document} two")
        self.assertEqual(engine.events("restore"), [])
        self.assertEqual(gateway.replica()["restore_failures"]["scratch-full"], 1)
        self.assertEqual(gateway.mode(), "store")
        self.assert_clean()

    def test_64_MiB_of_a_container_are_told(self):
        self.need_standin("bytes of a token")
        self.small("64m")
        gateway = self.gateway(self.engine(n_ctx=1 << 20), mode="store")
        self.assertIn("--shm-size", gateway.text())

    def test_enough_room_is_not_talked_about(self):
        _, gateway = self.pair(mode="store")
        self.assertNotIn("scratch-small", gateway.text())
        replica = gateway.replica()
        self.assertGreater(replica["scratch_free"], replica["scratch_wanted"])


class EmptiesIdle(SaveCase):
    """llama-server with its own defaults: a request that begins empties all idle slots."""

    def test_is_told_and_lived_with(self):
        self.need_standin("idle slots emptied")
        engine, gateway = self.pair(mode="store", empties_idle=True)
        self.assertIn("--no-cache-idle-slots", gateway.replica()["mode_reason"])
        self.assertTrue(gateway.replica()["empties_idle_slots"])
        chats = [words(300, "one"), words(300, "two")]
        for turn in range(3):
            for chat in chats:
                self.ask(gateway, f"{chat} {turn}")
                gateway.wait_quiet()
        used = [r.cache_n for r in engine.generations()]
        self.assertGreater(min(used[2:]), 280)
        self.assertEqual(gateway.restore_failures(), 0)
        self.assertEqual(len(engine.events("restore")), 4)
        self.assert_clean()

    def test_nothing_begins_beside_a_restore(self):
        self.need_standin("idle slots emptied")
        engine, gateway = self.pair(mode="store", empties_idle=True)
        document = words(300, "restored")
        self.stored(gateway, document, "one")
        engine.reset_log()
        engine.hold("restore")
        with gateway.client() as one, gateway.client() as two:
            one.send(chat_bytes(f"{document} two"))
            engine.wait_held("restore")
            two.send(chat_bytes("beside"))
            wait_until(lambda: gateway.in_state("queue") == 1, "waits")
            engine.release("restore")
            self.assertEqual([c.read_answer().status for c in (one, two)], [200, 200])
        self.assertEqual(self.sent(engine)[:2], ["restore", "two"])
        self.assertGreater(engine.bodies("two")[0].cache_n, 280)
        self.assert_clean()

    def test_engines_that_keep_them_are_not_blamed(self):
        _, gateway = self.pair(mode="store")
        self.assertFalse(gateway.replica()["empties_idle_slots"])
        self.assertNotIn("--no-cache-idle-slots", gateway.replica()["mode_reason"])
