# SPDX-License-Identifier: MIT
"""llama-server's router mode, the real one: several models behind one port, each in a server
of its own that comes and goes."""

import unittest

import llama_server
from test_llama import CHAT, Bench, chat


class Router(Bench):
    build = "router"

    def router(self):
        try:
            router = llama_server.Router(self.folder).start()
        except llama_server.Unavailable as why:
            self.skipTest(str(why))
        self.engines.append(router)
        return router

    def test_router_is_left_alone_and_served(self):
        router = self.router()
        gateway = self.gateway(router, mode="observe")
        reason = gateway.replica()["mode_reason"]
        self.assertIn("several models share this port", reason)
        self.assertEqual([m["status"]["value"] for m in router.get("/v1/models")[1]["data"]],
                         ["unloaded"] * 2)   # looking at it starts no model
        for name in ("tiny", "other", "tiny"):
            answer = self.ask(gateway, dict(chat("What does rule one say?"), model=name))
            self.assertEqual(answer["model"], name)
        reused, all_of_it = answer["timings"]["cache_n"], answer["usage"]["prompt_tokens"]
        print(f"        router: {reused} of {all_of_it} tokens of a prompt that was asked again "
              "reused, by the engine alone", flush=True)
        self.assertGreater(reused, 1000)
        self.assertEqual(gateway.replica()["saves"], 0)
        self.assertEqual(gateway.replica()["mode_reason"], reason)

    def test_each_models_own_server_has_a_gateway(self):
        """What the reason advises, tried on the servers that the router has started."""
        router = self.router()
        for name in ("tiny", "other"):
            router.post(CHAT, dict(chat("Hello?", system="Briefly.", n=1), model=name))
            gateway = self.gateway(router, port=router.child_port(name))
            for question in ("What does rule one say?", "What does rule two say?"):
                answer = self.ask(gateway, chat(question, model=name))
                gateway.wait_quiet()
            gateway.stop()
            for s in range(2):   # its slots are emptied: only the store has it
                router.post(f"/slots/{s}?action=erase", {"model": name})
            gateway = self.gateway(router, port=router.child_port(name))
            again = self.ask(gateway, chat("What does rule three say?", model=name))
            print(f"        router, {name}: {again['timings']['cache_n']} tokens reused behind "
                  f"a restart of the gateway, {answer['timings']['cache_n']} in the slot",
                  flush=True)
            self.assertGreater(again["timings"]["cache_n"], 1000)
            self.assertEqual(gateway.total("restored_tokens"), again["timings"]["cache_n"])
            gateway.stop()


if __name__ == "__main__":
    unittest.main()
