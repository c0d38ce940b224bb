# SPDX-License-Identifier: MIT
"""Client libraries read the same through the gateway as from the engine itself.

Each library runs as a process of its own (ask_NAME) that is asked for one case after the
other: of the engine, then of the gateway in front of the same engine. What it parsed must
be equal but for ids, dates and durations. Before each question all slots are emptied, since
the last bits of what llama-server computes depend on what it reuses.
"""

import json
import os
import statistics
import subprocess
import sys
import threading

import engines
import packages
from harness import Case, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
FREED_S = 0.1      # promised: a client that leaves closes its upstream connection within
CANCELS = 5
ANSWER_S = 240     # of a library, on a machine that is busy with other things
MODEL = "standin-tiny"   # the name that both engines have for theirs
OF_THIS_ANSWER = {"id", "created", "timings"}
USUAL = ("plain", "stream", "models", "tools", "tools_stream")
ERRORS = {"not_found": 404, "bad": 400}
REQUEST_IDS = [("X-Request-Id", "openai-style"), ("request-id", "anthropic-style")]


class LlamaWithTools(engines.NewLlamaEngine):
    """A model that follows examples, and a template that has tools."""
    model = "full"
    with open(os.path.join(HERE, "tools.jinja"), encoding="utf-8") as f:
        params = {"chat_template": f.read()}


engines.KINDS["llama-new"] = LlamaWithTools


# ---- what is asked -----------------------------------------------------------------------

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def example(city):
    call = {"id": f"call-{city}", "type": "function", "function": {
        "name": "weather", "arguments": json.dumps({"city": city})}}
    return [{"role": "user", "content": f"Weather in {city}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "sun"},
            {"role": "assistant", "content": f"There is sun in {city}."}]


def script(name):
    return os.path.join(HERE, name)


def question(do, tag, **more):
    """`tag` is the first of its text: no two questions have a block in common."""
    messages = [{"role": "system", "content": f"{tag} {do}"}]
    limit = 24
    if do.startswith("tools"):
        limit = 64
        messages += example("Paris") + example("London") + example("Rome")
        messages.append({"role": "user", "content": "Weather in Oslo?"})
    else:
        messages.append({"role": "user", "content": "Tell me of the sea and its ships."})
    return {"do": do, "model": MODEL, "messages": messages, "tools": [WEATHER],
            "result": "rain", "limit": limit, **more}


def bare(value):
    """Without what differs from one answer to the next."""
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if k not in OF_THIS_ANSWER or v == MODEL}
    if isinstance(value, list):
        return [bare(v) for v in value]
    return value


class Library:
    """A client as a process."""

    def __init__(self, command, folder):
        env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"
               and not k.lower().endswith("_proxy")
               and not k.startswith(("OPENAI_", "ANTHROPIC_", "LITELLM_"))}
        env |= {"NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "PYTHONPYCACHEPREFIX": os.path.join(packages.HOME, "pycache")}
        self.log = os.path.join(folder, "library.log")
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log,
                                          stdout=subprocess.PIPE, env=env, text=True)
        assert self._line() == {"ready": True}

    def _line(self):
        late = threading.Timer(ANSWER_S, self.child.kill)
        late.start()
        line = self.child.stdout.readline()
        late.cancel()
        if not line:
            with open(self.log, encoding="utf-8", errors="replace") as f:
                raise AssertionError(f"the library has ended:\n{f.read()[-4000:]}")
        return json.loads(line)

    def ask(self, port, question):
        self.child.stdin.write(json.dumps(
            dict(question, url=f"http://127.0.0.1:{port}")) + "\n")
        self.child.stdin.flush()
        return self._line()

    def stop(self):
        self.child.stdin.close()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.child.stdout.close()


# ---- the tests ---------------------------------------------------------------------------

class Clients(Case):
    allowed = ("save-empty",)   # slots are emptied behind the gateway's back

    def compare(self, name, command, answers, errors, has_id=None):
        """All that one library is asked. has_id: where it shows the id of a request."""
        self.engine_, self.gateway_ = self.pair(mode="store")
        self.library = Library(command, self.folder)
        self.addCleanup(self.library.stop)
        self.name = name
        for do in answers:
            with self.subTest(do):
                self.same(do)
        for do, status in errors.items():
            with self.subTest(do):
                self.same_error(do, status)
        if has_id:
            with self.subTest("ids"):
                self.ids_pass(has_id)
        took = [self.cancelled(i) for i in range(CANCELS)]
        print(f"        {name}: {len(answers) + len(errors)} cases parsed alike; upstream "
              f"connections closed {', '.join(f'{t * 1000:.1f}' for t in sorted(took))} ms "
              "after it left a stream", flush=True)
        # What else runs here can only add to the time.
        self.assertLessEqual(min(took), FREED_S, took)
        self.assertLessEqual(statistics.median(took), 20 * FREED_S, took)
        with self.subTest("after cancels"):
            self.same("plain", "afterwards")
        with self.subTest("down"):
            self.engine_down()
        self.assert_clean()

    def both(self, do, tag):
        """The same question to the engine and through the gateway."""
        out = []
        for port in (self.engine_.process.port, self.gateway_.port):
            self.gateway_.wait_quiet()
            self.engine_.wait_idle()
            self.engine_.forget_slots()
            out.append(self.library.ask(port, question(do, f"{self.name} {tag}")))
        return out

    def same(self, do, tag="asks"):
        before = self.gateway_.total("completed")
        direct, through = self.both(do, tag)
        self.assertGreater(self.gateway_.total("completed"), before)
        self.assertTrue(direct)
        self.assertEqual(bare(direct), bare(through))
        if do.endswith("stream"):
            self.assertGreater(len(direct), 5)
        if do.startswith("tools") and isinstance(self.engine_, LlamaWithTools):
            self.assertIn("weather", json.dumps(direct), "it has called its tool")
            self.assertEqual(len(direct) == 2, do == "tools")

    def same_error(self, do, status):
        direct, through = self.both(do, "asks")
        self.assertEqual(direct, through)
        self.assertEqual(direct["status"], status)
        self.assertTrue(direct["body"])

    def ids_pass(self, style):
        """The client's id reaches the engine, the engine's id the client; where it has
        none, that of the gateway's log."""
        given = question("request_id", f"{self.name} given", headers={
            "X-Request-Id": "given-by-the-client"})
        shown = self.library.ask(self.gateway_.port, given)
        record = self.engine_.bodies(f"{self.name} given")[0]
        self.assertEqual(record.header("X-Request-Id"), ["given-by-the-client"])
        if style == "openai-style":   # the header that the gateway uses
            wait_until(lambda: f"event=access id={shown} " in self.gateway_.text(),
                       f"{shown} is in the log")
        self.engine_.set(headers=REQUEST_IDS)
        self.assertEqual(self.library.ask(self.gateway_.port, question(
            "request_id", f"{self.name} its own")), style)
        self.engine_.set(headers=[])

    def cancelled(self, i):
        """Seconds from where the library left to the end of the connection to the engine."""
        tag = f"{self.name} leaves {i}"
        self.engine_.hold("stream", tag)
        left = self.library.ask(self.gateway_.port, question("cancel", tag, limit=4000))["left"]
        record = self.engine_.bodies(tag)[0]
        self.engine_.wait_for(lambda: record.gone_t, what="upstream connection closed")
        self.engine_.release("stream", match=tag)
        self.engine_.wait_idle()
        wait_until(lambda: self.gateway_.in_flight() == 0, "nothing in flight")
        self.gateway_.wait_quiet()
        for (metric, labels), value in self.gateway_.metrics().items():
            if "in_flight" in metric or "queued" in metric or "zombie" in metric:
                self.assertEqual(value, 0, (metric, labels))
        return record.gone_t - left

    def engine_down(self):
        self.engine_.kill()
        for _ in range(2):   # whether the gateway knows it already or not
            failed = self.library.ask(self.gateway_.port, question("down", self.name))
            self.assertIn(failed["status"], (502, 503), failed)
            self.assertTrue(failed["body"])
        self.assertEqual(self.gateway_.in_flight(), 0)

    def had(self, find):
        """What packages.py finds; without it there is no test."""
        try:
            return find()
        except packages.Unavailable as why:
            self.skipTest(str(why))

    def test_openai(self):
        self.compare("openai", [self.had(packages.python), script("ask_openai.py")],
                     USUAL, ERRORS, "openai-style")

    def test_anthropic(self):
        self.compare("anthropic", [self.had(packages.python), script("ask_anthropic.py")],
                     ("plain", "stream", "count", "tools", "tools_stream"), ERRORS,
                     "anthropic-style")

    def test_litellm(self):
        self.compare("litellm", [self.had(packages.python), script("ask_litellm.py")],
                     ("plain", "messages", "stream", "tools", "tools_stream"), {"bad": 400})

    def test_curl(self):
        self.had(packages.curl)
        self.compare("curl", [sys.executable, script("ask_curl.py")],
                     USUAL, ERRORS, "openai-style")

    def test_openai_npm(self):
        node, folder = self.had(packages.node)
        self.compare("openai-npm", [node, script("ask_openai.mjs"), folder],
                     USUAL, ERRORS, "openai-style")
