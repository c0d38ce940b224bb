# SPDX-License-Identifier: MIT
"""The first user already hits: what is listed or asked for is computed, stored and pinned
before anybody needs it, and stays."""

import glob
import json
import os
import subprocess
import threading

from harness import CHAT, Case, Client, binary, chat_body, request_bytes, wait_until, words

BLOCK = 64


def chat(system, user="hello there", **more):
    return chat_body([{"role": "system", "content": system},
                      {"role": "user", "content": user}], **more)


class WarmCase(Case):
    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text if isinstance(text, str) else json.dumps(text))
        return path

    def listed(self, *items, **more):
        """A configuration with these files; `model` as chat_body() names it."""
        return {"warm": [{"model": "standin-tiny", **item} for item in items], **more}

    def wait_warm(self, gateway, n=1):
        wait_until(lambda: gateway.stats()["warm"]["done"] == n,
                   lambda: f"{n} warm: {gateway.cache()['warm']}")

    def post(self, gateway, path, body=b"", **headers):
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        status, text = gateway.admin(path, "POST", body, headers)
        return status, json.loads(text)

    def cached(self, gateway, body, path=CHAT):
        """Tokens that the engine reused for it, by its own count."""
        answer = gateway.fetch("POST", path, body)
        self.assertEqual(answer.status, 200, answer.body[:300])
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def ask_as(self, gateway, key, system, user, headers=(), **more):
        """Tokens reused for a request under this key, that was alone."""
        gateway.wait_quiet()
        body = chat(system, user, **more)
        answer = gateway.fetch("POST", CHAT, body, headers=[("x-api-key", key), *headers])
        self.assertEqual(answer.status, 200, answer.body[:300])
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def start_tokens(self, gateway, system):
        """Tokens of a system prompt up to the user's words: what two requests with other
        words have in common, as the engine counts it."""
        self.cached(gateway, chat(system, "alpha"))
        return self.cached(gateway, chat(system, "omega"))

    def forget_slots(self, engine, gateway):
        """A new engine process: what is reused now comes out of the store."""
        engine.restart()
        gateway.wait_ready("store")
        wait_until(lambda: gateway.replica()["restarts"] == 1 and
                   gateway.mode() == "store", lambda: gateway.replica())
        engine.wait_idle()


class Listed(WarmCase):
    def test_first_user_hits(self):
        system = words(600)
        engine, gateway = self.pair(self.listed({"file": self.write("support.txt", system)}),
                                    mode="store")
        self.wait_warm(gateway)
        self.assertEqual(list(gateway.pins()), ["support"])
        self.forget_slots(engine, gateway)
        first = self.cached(gateway, chat(system))
        gateway.wait_quiet()
        self.assertGreaterEqual(first, self.start_tokens(gateway, system) - BLOCK)
        pin = gateway.pins()["support"]
        self.assertTrue(pin["complete"])
        self.assertGreaterEqual(gateway.replica()["restores"], 1)
        self.assertEqual(pin["hits"], 3)

    def test_public_starts_are_shared_by_all_tenants(self):
        system, private = words(600, "public"), words(600, "private")
        engine, gateway = self.pair(self.listed(
            {"file": self.write("public.txt", system), "public": True},
            {"file": self.write("private.txt", private)}), mode="store", slots=2)
        self.wait_warm(gateway, 2)
        self.assertEqual({n: p["public"] for n, p in gateway.pins().items()},
                         {"public": True, "private": False})
        full = self.start_tokens(gateway, system)
        for key in ("one", "two"):
            self.assertGreaterEqual(self.ask_as(gateway, key, system, f"I am {key}"),
                                    full - BLOCK, key)
        self.assertLess(self.ask_as(gateway, "one", private, "hello"), BLOCK)
        self.assertEqual(gateway.restore_failures(), 0)
        self.assertIn("restored=1", gateway.text().splitlines()[-2])
        # What one adds stays its own, and a salt shares nothing at all.
        secret = words(300, "secret")
        self.ask_as(gateway, "one", system, secret)
        mine = self.ask_as(gateway, "one", system, secret + " again")
        self.assertGreater(mine, full + 200)
        self.assertLess(self.ask_as(gateway, "two", system, secret + " again"), full + BLOCK)
        self.assertLess(self.ask_as(gateway, "two", system, "hello", cache_salt="x"), BLOCK)
        self.assertLess(self.ask_as(gateway, "two", system, "hello",
                                    headers=[("X-Cache-Salt", "y")]), BLOCK)
        self.assertGreaterEqual(gateway.pins()["public"]["hits"], 5)
        # After a restart as well.
        gateway.wait_quiet()
        self.assertEqual(gateway.stop(), 0)
        gateway.start(wait="listening")
        gateway.wait_ready("store")
        self.wait_warm(gateway, 2)
        self.assertGreaterEqual(self.ask_as(gateway, "three", system, "new here"), full - BLOCK)
        self.assert_clean(engine)

    def test_public_start_for_messages(self):
        system = words(600, "letters")
        body = {"model": "standin-tiny", "max_tokens": 4, "system": system,
                "messages": [{"role": "user", "content": "x"}]}
        start = {**body, "messages": [{"role": "user", "content": ""}]}
        engine, gateway = self.pair(self.listed(
            {"file": self.write("letters.json", start), "public": True}), mode="store", slots=2)
        self.wait_warm(gateway)
        for key in ("one", "two"):
            gateway.wait_quiet()
            answer = gateway.fetch("POST", "/v1/messages", body, headers=[("x-api-key", key)])
            self.assertGreater(answer.json()["usage"]["cache_read_input_tokens"], 500, key)
        self.assert_clean(engine)

    def test_the_promise_is_kept(self):
        system = words(600)
        _, gateway = self.pair(self.listed({"file": self.write("a.txt", system)}),
                               mode="store")
        self.wait_warm(gateway)
        self.cached(gateway, chat(system))
        total = gateway.stats()["total"]
        self.assertGreater(total["captured_tokens"], 400)
        self.assertLessEqual(total["captured_tokens"], total["delivered_tokens"])

    def test_what_is_stored_is_not_computed_again(self):
        system = words(600)
        path = self.write("support.txt", system)
        engine, gateway = self.pair(self.listed({"file": path}), mode="store")
        self.wait_warm(gateway)
        self.assertGreater(gateway.stats()["warm"]["computed_tokens"], 500)
        self.assertEqual(gateway.stop(), 0)
        engine.restart()
        gateway.start()
        gateway.wait_ready("store")
        self.wait_warm(gateway)
        self.assertEqual(gateway.stats()["warm"]["computed_tokens"], 0)
        self.assertTrue(gateway.pins()["support"]["complete"])
        engine.wait_idle()
        self.assertGreater(self.cached(gateway, chat(system)), 500)

    def test_request_bodies_of_each_api(self):
        text, tool = words(500), {"type": "function", "function": {
            "name": "look", "description": words(80, "tool"), "parameters": {
                "type": "object", "properties": {"x": {"type": "number"}}, "v": 0.10}}}
        document = chat_body([{"role": "system", "content": words(200, "sys")},
                              {"role": "user", "content": words(300, "doc")}], tools=[tool])
        files = [self.write("chat.json", document),
                 self.write("raw.json", {"model": "standin-tiny", "prompt": text}),
                 self.write("native.json", {"model": "standin-tiny", "prompt": text,
                                            "n_predict": 7})]
        engine, gateway = self.pair(self.listed(*({"file": f} for f in files)),
                                    mode="store")
        self.wait_warm(gateway, 3)
        self.assertEqual(set(gateway.pins()), {"chat", "raw", "native"})
        self.forget_slots(engine, gateway)
        turn = {"role": "assistant", "content": "yes"}
        longer = dict(document, messages=document["messages"] + [
            turn, {"role": "user", "content": "and now?"}])
        self.assertGreater(self.cached(gateway, longer), 400)
        more = {"model": "standin-tiny", "prompt": text + " and more", "max_tokens": 2}
        self.assertGreater(self.cached(gateway, more, "/v1/completions"), 400)
        answer = gateway.fetch("POST", "/completion", {**more, "n_predict": 2}).json()
        self.assertGreater(answer["timings"]["cache_n"], 400)

    def test_messages_api(self):
        system = words(500)
        body = {"model": "standin-tiny", "max_tokens": 4, "system": system, "messages": []}
        _, gateway = self.pair(self.listed({"file": self.write("m.json", body)}),
                               mode="store")
        self.wait_warm(gateway)
        body["messages"] = [{"role": "user", "content": "who are you?"}]
        answer = gateway.fetch("POST", "/v1/messages", body).json()
        self.assertGreater(answer["usage"]["cache_read_input_tokens"], 400)

    def test_what_cannot_be_warmed_says_why(self):
        config = self.listed({"file": os.path.join(self.folder, "absent.txt")},
                             {"file": self.write("broken.json", "{\"messages\": [")},
                             {"file": self.write("pictures.json", chat_body([
                                 {"role": "user", "content": [
                                     {"type": "text", "text": words(100)},
                                     {"type": "image_url", "image_url": {
                                         "url": "data:image/png;base64,AAAA"}}]}]))},
                             {"file": self.write("good.txt", words(200))})
        _, gateway = self.pair(config, mode="store")
        self.wait_warm(gateway)
        items = {x["name"]: x for x in gateway.cache()["warm"]}
        for name, why in (("absent", "absent.txt"), ("broken", "byte"),
                          ("pictures", "pictures")):
            self.assertEqual(items[name]["state"], "failed")
            self.assertIn(why, items[name]["why"])
        self.assertEqual(items["good"]["state"], "done")
        self.assertEqual(gateway.stats()["warm"]["failed"], 3)

    def test_damaged_block_of_a_pin_is_computed_again(self):
        system = words(600)
        engine, gateway = self.pair(
            self.listed({"file": self.write("support.txt", system)},
                        store={"ram_bytes": "1MiB"}), mode="store")
        self.wait_warm(gateway)
        tokens = gateway.pins()["support"]["tokens"]
        self.assertEqual(gateway.stop(), 0)
        blocks = sorted(glob.glob(os.path.join(gateway.store_dir, "blocks", "*", "*", "*")))
        for path in blocks:
            with open(path, "r+b") as f:
                f.seek(-30, os.SEEK_END)
                f.write(b"damaged!")
        gateway.start()
        gateway.wait_ready("store")
        self.forget_or_ask(engine, gateway, system)
        wait_until(lambda: gateway.store_stats()["damaged"] > 0 and
                   gateway.pins()["support"]["complete"],
                   lambda: f"whole again: {gateway.cache()}")
        self.assertGreaterEqual(gateway.pins()["support"]["tokens"], tokens - BLOCK)

    def forget_or_ask(self, engine, gateway, system):
        """Has the blocks read, which shows the damage."""
        engine.restart()
        wait_until(lambda: gateway.replica()["restarts"] == 1 and
                   gateway.mode() == "store", lambda: gateway.replica())
        engine.wait_idle()
        self.cached(gateway, chat(system))

    def test_ready_waits_where_it_should(self):
        path = self.write("support.txt", words(600))
        engine = self.engine()
        gateway = self.gateway(engine, self.listed({"file": path}, warm_before_ready="on"),
                               wait=None)
        wait_until(lambda: gateway.admin("/readyz")[0] == 200,
                   lambda: f"ready: {gateway.cache()['warm']}")
        self.assertEqual(gateway.stats()["warm"]["done"], 1)

    def test_clients_go_first(self):
        engine, gateway = self.pair(mode="store", slots=1)
        engine.hold("head")
        with gateway.client() as client:
            client.send(request_bytes("POST", CHAT, json.dumps(
                chat_body("holds the slot")).encode()))
            wait_until(lambda: gateway.in_flight() == 1, "in flight")
            warm = threading.Thread(target=self.post, args=(
                gateway, "/cache/warm?model=standin-tiny", words(200, "background")))
            warm.start()
            wait_until(lambda: gateway.stats()["warm"]["running"] == 1, "it waits")
            with gateway.client() as second:
                second.send(request_bytes("POST", CHAT, json.dumps(
                    chat_body("came later")).encode()))
                wait_until(lambda: gateway.in_flight() == 2, "queued")
                engine.release("head")
                self.assertEqual(client.read_answer().status, 200)
                self.assertEqual(second.read_answer().status, 200)
            warm.join(30)
        order = [("later" if "came later" in str(r.body) else "warm")
                 for r in engine.bodies("came later") + engine.bodies(
                     words(200, "background")[:40])]
        self.assertEqual(order, ["later", "warm"])
        later, warmed = engine.bodies("came later")[0], engine.bodies(
            words(200, "background")[:40])[0]
        self.assertLess(later.index, warmed.index)


class Commands(WarmCase):
    def run_command(self, gateway, *arguments):
        done = subprocess.run([binary(), "warm", "--admin", f"127.0.0.1:{gateway.admin_port}",
                               *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def test_warm_by_command(self):
        system = words(600)
        engine, gateway = self.pair(mode="store")
        files = [self.write("one.txt", system), self.write("two.txt", words(300, "two"))]
        code, out, err = self.run_command(gateway, "--model", "standin-tiny", *files)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out.splitlines()[0], r"one\.txt: .*[5-9]\d\d tokens")
        self.assertEqual(len(out.splitlines()), 2)
        self.assertEqual(set(gateway.pins()), {"one", "two"})
        self.forget_slots(engine, gateway)
        self.assertGreater(self.cached(gateway, chat(system)), 500)

    def test_command_makes_it_public(self):
        _, gateway = self.pair(mode="store")
        path = self.write("open.txt", words(300, "open"))
        self.assertEqual(self.run_command(gateway, path, "--model", "standin-tiny",
                                          "--public")[0], 0)
        self.assertTrue(gateway.pins()["open"]["public"])
        self.assertGreater(self.ask_as(gateway, "one", words(300, "open"), "x"), 200)
        self.assertEqual(self.post(gateway, "/cache/pin?name=open&model=standin-tiny",
                                   words(300, "open"))[0], 200)
        self.assertFalse(gateway.pins()["open"]["public"])   # as it was said last
        self.assertLess(self.ask_as(gateway, "two", words(300, "open"), "x"), BLOCK)

    def test_command_tells_what_is_wrong(self):
        _, gateway = self.pair(mode="store")
        good = self.write("good.txt", words(100))
        for arguments, status, text in (
                ([], 2, "FILE"), (["/no/such/file"], 1, "/no/such/file"),
                ([self.write("bad.json", "{")], 1, "request body"),
                (["--name", "x", good, good], 2, "--name"),
                (["--path", "/v1/embeddings", good], 1, "path")):
            code, _, err = self.run_command(gateway, *arguments)
            self.assertEqual(code, status, err)
            self.assertIn(text, err)
        gateway.stop()
        code, _, err = self.run_command(gateway, good)
        self.assertEqual(code, 1)
        self.assertIn("refused", err)

    def test_without_a_pin_it_is_only_stored(self):
        system = words(300)
        _, gateway = self.pair(mode="store")
        status, doc = self.post(gateway, "/cache/warm?pin=off&model=standin-tiny", system)
        self.assertEqual(status, 200, doc)
        self.assertFalse(doc["warmed"][0]["pinned"])
        self.assertEqual(gateway.pins(), {})
        self.assertGreater(self.cached(gateway, chat(system)), 250)

    def test_pin_takes_what_is_stored_and_nothing_else(self):
        system = words(400)
        _, gateway = self.pair(mode="store")
        status, doc = self.post(gateway, "/cache/pin?name=p", chat(system))
        self.assertEqual(status, 404, doc)
        self.assertIn("/cache/warm", doc["error"]["message"])
        gateway.fetch("POST", CHAT, chat(system))
        gateway.wait_quiet()
        status, doc = self.post(gateway, "/cache/pin?name=p", chat(system))
        self.assertEqual(status, 200, doc)
        self.assertTrue(gateway.pins()["p"]["complete"])
        self.assertEqual(self.post(gateway, "/cache/unpin?name=p")[0], 200)
        self.assertEqual(self.post(gateway, "/cache/unpin?name=p")[0], 404)
        self.assertEqual(gateway.pins(), {})

    def test_flush_leaves_pins_and_drop_takes_them(self):
        _, gateway = self.pair(mode="store")
        self.post(gateway, "/cache/warm?name=stays&model=standin-tiny", words(300))
        gateway.fetch("POST", CHAT, chat_body(words(300, "goes")))
        gateway.wait_quiet()
        held = gateway.pins()["stays"]["bytes"]
        self.assertGreater(gateway.cache()["tree"]["bytes"], held)
        self.assertGreater(self.post(gateway, "/cache/flush")[1]["blocks"], 0)
        self.assertEqual(gateway.cache()["tree"]["bytes"], held)
        self.assertTrue(gateway.pins()["stays"]["complete"])
        self.assertGreater(self.post(gateway, "/cache/drop?name=stays")[1]["blocks"], 0)
        self.assertEqual(gateway.cache()["tree"]["blocks"], 0)
        self.assertEqual(self.post(gateway, "/cache/drop?name=stays")[0], 404)

    def test_more_than_may_be_pinned_is_refused(self):
        _, gateway = self.pair({"store": {"max_pinned": "0%"}}, mode="store")
        status, doc = self.post(gateway, "/cache/warm?name=x&model=standin-tiny", words(300))
        self.assertEqual(status, 507, doc)
        self.assertIn("store.max_pinned", doc["error"]["message"])
        self.assertEqual(gateway.pins(), {})

    def test_pins_stay_after_a_restart_without_computing(self):
        system = words(600)
        engine, gateway = self.pair(mode="store")
        self.post(gateway, "/cache/warm?name=kept&model=standin-tiny", system)
        self.assertEqual(gateway.stop(), 0)
        for log in glob.glob(os.path.join(gateway.store_dir, "prompts.log*")):
            os.remove(log)       # the pin brings its own way to be found
        engine.restart()
        gateway.start()
        gateway.wait_ready("store")
        engine.wait_idle()
        self.assertTrue(gateway.pins()["kept"]["complete"])
        self.assertGreater(self.cached(gateway, chat(system)), 500)

    def test_24_pins_stay_while_others_pass_through(self):
        engine, gateway = self.pair(mode="store")
        room = int(2.5 * 24 * 3 * BLOCK * gateway.replica()["token_bytes"]) // 1024
        gateway.stop()
        gateway.config = {"store": {"max_bytes": f"{max(room, 1024)}KiB",
                                    "ram_bytes": "1MiB"}}
        gateway.start()
        gateway.wait_ready("store")
        systems = [words(100, f"pin {i}") for i in range(24)]
        for i, system in enumerate(systems):
            status, doc = self.post(gateway, f"/cache/warm?name=p{i}&model=standin-tiny",
                                    system)
            self.assertEqual(status, 200, doc)
        for i in range(30):
            gateway.fetch("POST", CHAT, chat_body(words(600, f"passes {i}"), max_tokens=1))
            gateway.wait_quiet()
        tree = gateway.cache()["tree"]
        self.assertGreater(tree["evicted"], 100)
        self.assertLessEqual(tree["bytes"], max(room, 1024) * 1024)
        pins = gateway.pins()
        self.assertEqual(len(pins), 24)
        self.assertTrue(all(pin["complete"] for pin in pins.values()), pins)
        self.assertEqual(gateway.stop(), 0)
        engine.restart()
        gateway.start()
        gateway.wait_ready("store")
        engine.wait_idle()
        for system in systems:
            self.assertGreaterEqual(self.cached(gateway, chat(system)), BLOCK)


class Failures(WarmCase):
    WARM = "/cache/warm?name=w&model=standin-tiny"

    def message(self, answer, status):
        self.assertEqual(answer[0], status, answer)
        return answer[1]["error"]["message"]

    def test_an_engine_that_fails_is_asked_again(self):
        self.need_standin("faults")
        engine, gateway = self.pair(mode="store")
        for name, fault in (("busy", {"kind": "error", "status": 503}),
                            ("gone", {"kind": "close-before-head"})):
            engine.fault(**fault)
            status, doc = self.post(gateway, f"/cache/warm?name={name}&model=standin-tiny",
                                    words(300, name))
            self.assertEqual(status, 200, doc)
            self.assertTrue(gateway.pins()[name]["complete"])
            self.assertRegex(gateway.text(), rf"event=warm name={name} .*state=again try=2 ")

    def test_what_an_engine_refuses_is_said_in_its_words(self):
        self.need_standin("faults")
        engine, gateway = self.pair(mode="store")
        for body, why in ((b'{"error":{"message":"too \xc3\xa4 long"}}', "400: too ?? long"),
                          (b'{"error":"no"}', "400: "), (b"nonsense", "400: ")):
            engine.fault("error", status=400, body=body)
            self.assertEqual(self.message(self.post(gateway, self.WARM, words(300)), 400),
                             "the engine answered " + why)
        self.assertNotIn("state=again", gateway.text())
        self.assertEqual(gateway.pins(), {})

    def test_a_text_that_is_none_and_a_replica_that_is_not_there(self):
        _, gateway = self.pair(mode="store")
        for body, more, why in ((b"", "", "it is empty"), (b"\r\n", "", "it is empty"),
                                (b"gr\xfc\xdf", "", "it is not UTF-8"),
                                (b"x", "&replica=nobody", 'no replica is named "nobody"'),
                                (b'{"model":"m"}', "", "neither messages nor a prompt"),
                                (b'{"prompt":[1,"a"]}', "", "takes no part in caching")):
            self.assertIn(why, self.message(self.post(gateway, self.WARM + more, body), 400))

    def test_where_nothing_is_stored_it_says_so(self):
        _, gateway = self.pair({"store": {"save": False}}, mode="store")
        self.assertIn("store.save is off", self.message(
            self.post(gateway, self.WARM, words(300)), 503))

    def test_where_a_replica_observes_it_says_why(self):
        _, gateway = self.pair({"observe": True}, mode="observe", store=False)
        self.assertIn("does not store: ", self.message(
            self.post(gateway, self.WARM, words(300)), 503))

    def test_who_asked_may_leave(self):
        engine, gateway = self.pair(mode="store")
        engine.hold("head")
        with Client(gateway.admin_port) as client:
            client.send(request_bytes("POST", self.WARM, words(300).encode(),
                                      host="localhost"))
            wait_until(lambda: gateway.stats()["warm"]["running"] == 1, "it runs")
        engine.release("head")
        wait_until(lambda: "w" in gateway.pins(), gateway.cache)
        self.assertTrue(gateway.pins()["w"]["complete"])


class Doors(WarmCase):
    def test_only_post_changes_and_unknown_actions_are_told(self):
        _, gateway = self.pair(mode="store")
        for path in ("/cache/flush", "/cache/drop?name=x", "/cache/warm"):
            self.assertEqual(gateway.admin(path)[0], 405, path)
        status, doc = self.post(gateway, "/cache/nothing")
        self.assertEqual(status, 404)
        for path in ("warm", "pin", "unpin", "drop", "flush"):
            self.assertIn(f"/cache/{path}", doc["error"]["message"])
        self.assertEqual(self.post(gateway, "/cache/unpin")[0], 400)
        self.assertEqual(self.post(gateway, "/cache/unpin?name=" + "x" * 200)[0], 400)
        for name in ("a%20b", "a%2", "a%zz", "a%00b", "a%0Ab"):
            self.assertEqual(self.post(gateway, f"/cache/warm?name={name}", "text")[0], 400)

    def test_web_pages_cannot_change_anything(self):
        _, gateway = self.pair(mode="store")
        port = gateway.admin_port
        self.assertEqual(self.post(gateway, "/cache/flush")[0], 200)
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"},
                        {"Host": "evil.example"}, {"Host": f"evil.example:{port}"},
                        {"Host": "127.evil.example"}, {"Host": "10.0.0.1"}):
            status, doc = self.post(gateway, "/cache/flush", **headers)
            self.assertEqual(status, 403, headers)
            self.assertIn("message", doc["error"])
        for host in ("localhost", f"localhost:{port}", "127.0.0.1", "[::1]", f"[::1]:{port}"):
            self.assertEqual(self.post(gateway, "/cache/flush", Host=host)[0], 200, host)

    def test_bodies_are_bounded(self):
        _, gateway = self.pair({"limits": {"body_bytes": "4KiB"}})
        self.assertEqual(gateway.admin("/cache/warm", "POST", b"x" * 5000)[0], 413)
