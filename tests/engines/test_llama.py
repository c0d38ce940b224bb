# SPDX-License-Identifier: MIT
"""The gateway in front of a real llama-server. Answers of a model depend in their last bits
on how its batches were cut, so answers are compared only at equal numbers of reused tokens.
"""

import http.client
import json
import os
import shutil
import socket
import tempfile
import threading
import time
import unittest

import harness
import llama_server
import tap

CHAT = "/v1/chat/completions"
FACTS = [f"Rule {i}: figure {i * 7} is read at gauge {i % 9} and noted with its hour."
         for i in range(1, 46)]
SHARED = "You keep the book of a small harbour.\n" + "\n".join(FACTS)


def chat(question, system=SHARED, n=12, **more):
    return {"messages": [{"role": "system", "content": system},
                         {"role": "user", "content": question}],
            "max_tokens": n, "temperature": 0, **more}


class Bench(unittest.TestCase):
    """One engine and one gateway in a folder of their own; subclasses name the build."""

    build = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="incipit-engines-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.engines, self.gateways = [], []
        self.addCleanup(self.stop_all)

    def stop_all(self):
        for p in self.gateways + self.engines:
            p.stop()

    def engine(self, **options):
        try:
            e = llama_server.LlamaServer(self.folder, build=self.build, **options).start()
        except llama_server.Unavailable as why:
            self.skipTest(str(why))
        self.engines.append(e)
        return e

    def gateway(self, engine, port=None, mode="store"):
        g = harness.Gateway(os.path.join(self.folder, f"gateway-{len(self.gateways)}"),
                            f"http://127.0.0.1:{port or engine.port}")
        g.slot_dir, g.store_dir = engine.slot_dir, os.path.join(self.folder, "store")
        g.start()
        self.gateways.append(g)
        g.wait_ready(mode)
        return g

    def restart(self, engine, gateway, **options):
        gateway.stop()
        engine.stop()
        again = self.engine(**options)
        return again, self.gateway(again)

    def ask(self, gateway, body, path=CHAT):
        c = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=120)
        try:
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = c.getresponse()
            data = answer.read()
        finally:
            c.close()
        self.assertEqual(answer.status, 200, data[:300])
        return json.loads(data)

    @staticmethod
    def text(answer):
        return answer["choices"][0]["message"]["content"]

    def shared_tokens(self, engine, bodies):
        """Tokens at the start that all these prompts have in common, by the engine."""
        lists = []
        for b in bodies:
            prompt = engine.post("/apply-template", b)[1]["prompt"]
            lists.append(engine.post("/tokenize", {"content": prompt, "add_special": True,
                                                   "parse_special": True})[1]["tokens"])
        n = 0
        while all(len(t) > n and t[n] == lists[0][n] for t in lists):
            n += 1
        return n


class Cases:
    """What every build has to show."""

    def test_fourth_ending_after_both_were_restarted(self):
        engine = self.engine()
        gateway = self.gateway(engine)
        endings = [chat(q) for q in ("What does rule one say?", "Name the ninth figure, please.",
                                     "How often is gauge four read?",
                                     "Who may change the book, and when?")]
        for body in endings[:3]:
            self.ask(gateway, body)
            gateway.wait_quiet()
        shared = self.shared_tokens(engine, [endings[0], endings[3]])
        self.assertGreater(shared, 900)
        engine, gateway = self.restart(engine, gateway)
        answer = self.ask(gateway, endings[3])
        reused = answer["timings"]["cache_n"]
        print(f"        {self.build}: {reused} of {shared} shared tokens reused after both "
              f"restarted, {answer['timings']['prompt_n']} computed", flush=True)
        self.assertGreaterEqual(reused, 0.99 * shared)
        self.assertEqual(gateway.total("restored_tokens"), reused)
        # The same slot content, computed by the engine and left in place.
        reference = self.engine()
        reference.post(CHAT, dict(endings[0], id_slot=0))
        left = reference.post(CHAT, dict(endings[3], id_slot=0))[1]
        self.assertEqual(left["timings"]["cache_n"], reused)
        self.assertEqual(self.text(left), self.text(answer))

    def test_other_weights_under_the_same_alias_get_nothing(self):
        engine = self.engine(alias="house-model")
        gateway = self.gateway(engine)
        self.ask(gateway, chat("What does rule one say?"))
        gateway.wait_quiet()
        engine, gateway = self.restart(engine, gateway, alias="house-model",
                                       model_name="other")
        answer = self.ask(gateway, chat("What does rule two say?"))
        self.assertEqual(answer["timings"]["cache_n"], 0)
        self.assertEqual(gateway.replica()["restores"], 0)
        # And while the gateway keeps running.
        engine.stop()
        again = self.engine(alias="house-model", model_name="tiny", port=engine.port)
        gateway.wait_ready("store")
        answer = self.ask(gateway, chat("What does rule three say?"))
        self.assertGreater(answer["timings"]["cache_n"], 900)
        self.assertEqual(gateway.replica()["restarts"], 1)
        self.assertTrue(again.idle())

    def test_third_turn_reuses_two_turns_with_their_answers(self):
        engine = self.engine()
        gateway = self.gateway(engine)
        body = chat("First: what is rule five?", n=48)
        spans = []
        for turn in ("Second: and rule six?", "Third: and rule seven?", None):
            answer = self.ask(gateway, body)
            spans.append(answer)
            gateway.wait_quiet()
            body["messages"] += [{"role": "assistant", "content": self.text(answer)},
                                 {"role": "user", "content": turn}]
        t = spans[2]["timings"]
        second = spans[1]["timings"]
        held = second["cache_n"] + second["prompt_n"] + second["predicted_n"] - 1
        print(f"        {self.build}: turn 3 reused {t['cache_n']} of {held} tokens of turns "
              f"1 and 2 with their answers, computed {t['prompt_n']}", flush=True)
        # The answer's text may be cut into other tokens when it is read again.
        self.assertGreater(t["cache_n"], second["cache_n"] + second["prompt_n"])
        # The same after a restart of both: from the store.
        engine, gateway = self.restart(engine, gateway)
        body["messages"] = body["messages"][:-2]
        again = self.ask(gateway, body)["timings"]
        self.assertGreaterEqual(again["cache_n"], t["cache_n"] - 1)

    def test_eight_streams_on_two_slots_byte_for_byte(self):
        engine = self.engine()
        wire = tap.Tap(engine.port)
        self.addCleanup(wire.close)
        gateway = self.gateway(engine, port=wire.port)
        seen = [None] * 8

        def run(i):
            c = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=120)
            c.request("POST", CHAT, json.dumps(chat(f"Stream {i}?", n=40, stream=True)))
            seen[i] = c.getresponse().read()
            c.close()

        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        upstream = [b for raw in wire.answers for b in tap.answer_bodies(raw)
                    if b.startswith(b"data: ")]
        self.assertEqual(len(upstream), 8)
        self.assertEqual(sorted(upstream), sorted(seen))
        for body in seen:
            self.assertTrue(body.endswith(b"data: [DONE]\n\n"))

    # ---- clients that leave --------------------------------------------------------------

    def open_request(self, gateway, body):
        s = socket.create_connection(("127.0.0.1", gateway.port))
        data = json.dumps(body).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: "
                  + str(len(data)).encode() + b"\r\n\r\n" + data)
        return s

    def busy(self, engine):
        return sum(s["is_processing"] for s in engine.get("/slots")[1])

    def right_after(self, gateway, engine, reference):
        """Twenty requests, each cold and alone: equal to what the engine says by itself."""
        for i in range(20):
            body = chat(f"Short question {i}?", system="Be brief.", n=4, cache_prompt=False)
            if i not in reference:
                reference[i] = self.text(engine.post(CHAT, body)[1])
            self.assertEqual(self.text(self.ask(gateway, body)), reference[i], i)

    def leave(self, gateway, engine, state, body, arrived):
        """Opens a request, waits until it is where it should be, leaves, and measures."""
        s = self.open_request(gateway, body)
        harness.wait_until(lambda: arrived(s), state, timeout=60)
        s.close()
        since = time.monotonic()
        harness.wait_until(lambda: gateway.in_flight() == 0, "gauges at zero")
        gone_ms = (time.monotonic() - since) * 1e3
        harness.wait_until(lambda: self.busy(engine) == 0, "engine idle", timeout=120)
        idle_ms = (time.monotonic() - since) * 1e3
        print(f"        {self.build}: left {state}: gateway done after {gone_ms:.0f} ms, "
              f"slot idle after {idle_ms:.0f} ms", flush=True)

    def test_clients_that_leave_in_each_state(self):
        engine = self.engine()
        gateway = self.gateway(engine)
        plain = self.engine()  # the same engine without a gateway, for reference answers
        reference = {}
        long_text = "\n".join(f"{i}. {f}" for i, f in enumerate(FACTS * 6))
        streaming = chat("Go on.", n=3000, stream=True, system="Count.", ignore_eos=True)

        def has_bytes(s, n=1):
            s.setblocking(False)
            try:
                return len(s.recv(65536, socket.MSG_PEEK)) >= n
            except BlockingIOError:
                return False
            finally:
                s.setblocking(True)

        def state_is(name):
            return lambda s: gateway.stats()["total"]["states"][name] > 0

        # Queued: both slots are taken by long streams.
        holders = [self.open_request(gateway, dict(streaming, seed=i)) for i in range(2)]
        harness.wait_until(lambda: self.busy(engine) == 2, "both slots busy")
        s = self.open_request(gateway, chat("Queued?"))
        harness.wait_until(lambda: state_is("queue")(s), "queued")
        s.close()
        since = time.monotonic()
        harness.wait_until(lambda: gateway.stats()["total"]["states"]["queue"] == 0, "left")
        print(f"        {self.build}: left queued: gateway done after "
              f"{(time.monotonic() - since) * 1e3:.0f} ms, nothing was in the engine",
              flush=True)
        for h in holders:
            h.close()
        harness.wait_until(lambda: self.busy(engine) == 0, "idle again", timeout=60)
        self.right_after(gateway, plain, reference)

        for state, body, arrived in (
                ("before the head", chat("Q?", system=long_text + " a", n=8),
                 state_is("first-byte")),
                ("in prefill", chat("Q?", system=long_text + " b", n=8, stream=True),
                 lambda s: self.busy(engine) == 1),
                ("in the stream", streaming, lambda s: has_bytes(s, 2000)),
                ("in a plain answer", chat("Go on.", n=1500, system="Count.",
                                           ignore_eos=True),
                 lambda s: self.busy(engine) == 1)):
            with self.subTest(state):
                self.leave(gateway, engine, state, body, arrived)
                self.right_after(gateway, plain, reference)
        self.assertEqual(gateway.replica()["in_flight"], 0)


class Old(Cases, Bench):
    build = "old"


class New(Cases, Bench):
    build = "new"


if __name__ == "__main__":
    unittest.main()
