# SPDX-License-Identifier: MIT
"""Which engine states belong together, on real ones: settings that must share blocks, and
settings that must not."""

import unittest

from test_llama import CHAT, SHARED, Bench, chat

ROPE = "llama_rope_scaling_type.LLAMA_ROPE_SCALING_TYPE_"
FA_OFF = "llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED"
KV = {f"cache_type_{x}": "ggml_type.GGML_TYPE_Q8_0" for x in "kv"}


class Kinds:
    def fingerprint(self, gateway):
        return gateway.replica()["fingerprint"]

    def taught(self, **options):
        engine = self.engine(**options)
        gateway = self.gateway(engine)
        self.ask(gateway, chat("What does rule one say?"))
        gateway.wait_quiet()
        return engine, gateway

    def reused(self, gateway, question="What does rule two say?"):
        return self.ask(gateway, chat(question))["timings"]["cache_n"]

    def test_cores_batches_and_flash_attention_share(self):
        engine, gateway = self.taught()
        first = self.fingerprint(gateway)
        for options in ({"threads": 2, "batch": 2048, "ctx": 8192},
                        {"batch": 64, "params": {"n_ubatch": 64}},
                        {"params": {"flash_attn_type": FA_OFF}}):
            engine, gateway = self.restart(engine, gateway, **options)
            self.assertEqual(self.fingerprint(gateway), first, options)
            self.assertGreater(self.reused(gateway), 900, options)

    def test_without_flash_attention_blocks_are_cut(self):
        """Slot files have V transposed then, blocks do not."""
        options = {"params": {"flash_attn_type": FA_OFF}}
        engine, gateway = self.taught(**options)
        self.assertFalse(gateway.replica()["whole_states"])
        engine, gateway = self.restart(engine, gateway, **options)
        body = dict(chat("What does rule two say?"), logprobs=True, top_logprobs=5)
        answer = self.ask(gateway, body)
        reference = self.engine(**options)
        reference.post(CHAT, dict(chat("What does rule one say?"), id_slot=0))
        left = reference.post(CHAT, dict(body, id_slot=0))[1]
        reused = [a["timings"]["cache_n"] for a in (answer, left)]
        print(f"        {self.build}, -fa off: {reused[0]} tokens reused behind a restart of "
              f"both, {reused[1]} where left in place", flush=True)
        self.assertEqual(*reused)
        self.assertGreater(reused[0], 900)
        self.assertEqual(answer["choices"][0]["logprobs"], left["choices"][0]["logprobs"])

    def test_positions_separate(self):
        """Told nowhere; only the answers show them."""
        engine, gateway = self.taught()
        seen = [self.fingerprint(gateway)]
        for params in ({"rope_freq_base": 1e6},
                       {"rope_scaling_type": ROPE + "YARN", "rope_freq_scale": 0.25,
                        "yarn_orig_ctx": 2048}):
            engine, gateway = self.restart(engine, gateway, params=params)
            self.assertNotIn(self.fingerprint(gateway), seen, params)
            self.assertLess(self.reused(gateway), 10, params)
            seen.append(self.fingerprint(gateway))

    def test_other_type_keeps_old_blocks_apart(self):
        engine, gateway = self.taught()
        first = self.fingerprint(gateway)
        engine, gateway = self.restart(engine, gateway, params=KV)
        self.assertNotEqual(self.fingerprint(gateway), first)
        self.assertEqual(self.reused(gateway), 0)
        engine, gateway = self.restart(engine, gateway)
        self.assertEqual(self.fingerprint(gateway), first)
        self.assertGreater(self.reused(gateway), 900)

    def test_adapters_that_somebody_sets(self):
        engine, gateway = self.taught(adapters=["adapter"], slots=1)
        first = self.fingerprint(gateway)
        self.ask(gateway, chat("Hello?", system="Something else. " * 40))
        gateway.wait_quiet()
        engine.post("/lora-adapters", [{"id": 0, "scale": 0.5}])
        self.assertLess(self.reused(gateway), 10)
        self.assertEqual(gateway.replica()["restores"], 0)
        gateway.wait_ready("store")
        self.assertNotEqual(self.fingerprint(gateway), first)

    def test_windows_that_the_engine_keeps_whole_are_observed(self):
        engine = self.engine(model_name="swa", params={"swa_full": True})
        gateway = self.gateway(engine, mode="observe")
        reason = gateway.replica()["mode_reason"]
        print(f"        {self.build}, --swa-full: {reason}", flush=True)
        self.assertIn("without --swa-full", reason)
        self.ask(gateway, chat("Still served?", system="Briefly.", n=2))

    def go_on(self, gateway, messages, question):
        """A turn of a chat, one token long: longer answers of random weights need not be cut
        into the same tokens when the next turn quotes them."""
        messages.append({"role": "user", "content": question})
        answer = self.ask(gateway, {"messages": messages, "max_tokens": 1, "temperature": 0,
                                    "logprobs": True, "top_logprobs": 5})
        messages.append({"role": "assistant", "content": self.text(answer)})
        gateway.wait_quiet()
        return answer

    def test_whole_states_go_on_where_they_were(self):
        for name, params in (("hybrid", {}), ("recurrent", {}), ("swa", {}),
                             ("hybrid", {"flash_attn_type": FA_OFF}),
                             ("swa", {"flash_attn_type": FA_OFF})):
            with self.subTest(name, params=params):
                options = {"model_name": name, "params": params}
                engine = self.engine(**options)
                gateway = self.gateway(engine)
                self.assertTrue(gateway.replica()["whole_states"])
                self.chats_go_on(options, engine, gateway)

    def chats_go_on(self, options, engine, gateway):
        chats = [[{"role": "system", "content": f"Harbour {i}. {SHARED}"}] for i in range(4)]
        last = [self.go_on(gateway, c, "What does rule one say?") for c in chats]
        for i, c in enumerate(chats[:3]):
            self.compare(options, c, last[i],
                         self.go_on(gateway, c, "And what does rule two say?"))
        engine, gateway = self.restart(engine, gateway, **options)
        self.compare(options, chats[3], last[3],
                     self.go_on(gateway, chats[3], "And what does rule two say?"))
        self.assertEqual(gateway.restore_failures(), 0)
        gateway.stop()
        engine.stop()

    def compare(self, options, messages, before, answer):
        """With the same turns in a slot of an engine of its own, left in place."""
        reused, held = answer["timings"]["cache_n"], before["usage"]["prompt_tokens"]
        reference = self.engine(**options)
        for n in (2, 4):
            left = reference.post(CHAT, {"messages": messages[:n], "max_tokens": 1,
                                         "temperature": 0, "logprobs": True,
                                         "top_logprobs": 5, "id_slot": 0})[1]
        reference.stop()
        print(f"        {self.build}, {options}: {reused} tokens reused, {held} held, "
              f"{left['timings']['cache_n']} where left in place", flush=True)
        self.assertEqual(reused, held)
        self.assertEqual(left["timings"]["cache_n"], held)
        self.assertEqual(answer["choices"][0]["logprobs"], left["choices"][0]["logprobs"])

    def test_chats_shorter_than_the_window_are_not_kept(self):
        engine = self.engine(model_name="swa")
        gateway = self.gateway(engine)
        messages = [{"role": "system", "content": "Briefly."}]
        held = self.go_on(gateway, messages, "What?")["usage"]["prompt_tokens"]
        self.assertLess(held, 64)
        self.assertEqual(gateway.replica()["saves"], 0)
        self.go_on(gateway, messages, SHARED[:600])
        self.assertEqual(gateway.replica()["saves"], 1)

class Old(Kinds, Bench):
    build = "old"


class New(Kinds, Bench):
    build = "new"


class Together(Bench):
    """Both builds over one store directory."""

    def test_builds_do_not_restore_each_others_blocks(self):
        self.build = "old"
        engine = self.engine()
        gateway = self.gateway(engine)
        self.ask(gateway, chat("What does rule one say?"))
        gateway.wait_quiet()
        first = gateway.replica()["fingerprint"]
        for build, reuses in (("new", False), ("old", True), ("new", True)):
            self.build = build
            engine, gateway = self.restart(engine, gateway)
            self.assertEqual(gateway.replica()["fingerprint"] == first, build == "old")
            answer = self.ask(gateway, chat(f"What does rule two say, {build} build?"))
            gateway.wait_quiet()
            reused = answer["timings"]["cache_n"]
            print(f"        one store, {build} build: {reused} tokens reused", flush=True)
            self.assertEqual(reused > 900, reuses, build)
            reference = self.engine()
            reference.post(CHAT, dict(chat("What does rule one say?"), id_slot=0))
            left = reference.post(CHAT, dict(chat(f"What does rule two say, {build} build?"),
                                             id_slot=0))[1]
            if left["timings"]["cache_n"] == reused:
                self.assertEqual(self.text(left), self.text(answer))
            reference.stop()


if __name__ == "__main__":
    unittest.main()
