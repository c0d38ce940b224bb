#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The same questions to an engine alone, and to one with incipit in front of it.

    python3 tools/demo.py lab BINARY      the built-in engine: needs nothing else
    python3 tools/demo.py llama BINARY    a real llama-server with a small real model

The same requests go through two arms, one after the other: the engine alone, and an engine
behind the gateway. In the middle of each arm all of its processes are restarted. With
--observe they go before that to an engine behind a gateway that only looks on, and what it
foretells stands in the table. Everything lies in a temporary folder and listens on loopback only. KEEP=1 in the environment leaves
the second arm running until Ctrl-C; JSON=FILE is the same as --json FILE.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import llama_server  # noqa: E402
from demo_figures import figures, table, table_text  # noqa: E402
from demo_process import (CpuWatch, Failed, Gateway, LabEngine, LlamaEngine,  # noqa: E402
                          Observer, PATIENCE_S)

WORKLOAD = os.path.join(HERE, "demo_workload.json")
OTHERS = 0.1  # share of the CPUs taken by other processes: above it, times are worth little


def say(text=""):
    print(text, flush=True)


def paragraph(text):
    say(textwrap.fill(" ".join(text.split()), 88, break_on_hyphens=False))
    say()


# ---- the engines -------------------------------------------------------------------------

class Lab:
    """`make demo`"""

    plan, model = "lab", "incipit-lab"
    arm, title = "alone", "engine alone"
    exact = True  # the same answers, whatever was computed before
    slots = 2

    def __init__(self, binary):
        self.binary = binary

    def prepare(self):
        pass

    def engine(self, folder, managed):
        return LabEngine(self.binary, folder, self.slots, managed)

    what = """incipit's built-in engine answers {questions} questions about {documents}
        documents. It is a very small transformer that computes a real KV cache and speaks
        llama-server's API; its tokens are bytes, and since its weights are random its answers
        are noise. What can be seen is how long they take to begin."""
    alone = f"""First the engine alone, with {slots} slots: it reuses what a slot still holds,
        as a real one does that has no prompt cache in RAM. Then another one behind incipit,
        with the same slots, requests and restart."""
    reading = """The engine alone puts each prompt into the slot that has most in common with
        it. As all of them share the system prompt, one document takes the place of another,
        and a restart takes everything. The gateway keeps the KV of every document in blocks
        on disk and puts them back before a request runs; what that costs is in "all
        requests", in the bytes stored and in the longer start."""
    not_claimed = """This shows how it works and claims nothing about real engines. They have
        other models, more slots and caches of their own: a stock llama-server keeps prompts
        in RAM and would have reused most of them by itself until its restart. `make
        demo-llama` asks one."""


class Llama:
    """`make demo-llama`"""

    plan, model = "llama", "SmolLM2-135M-Instruct"
    arm, title = "stock", "stock engine"
    exact = False  # other batches round otherwise

    def __init__(self, binary):
        pass

    def prepare(self):
        llama_server.install()

    def engine(self, folder, managed):
        return LlamaEngine(folder, "full", threads=os.cpu_count(),
                           flags="managed" if managed else "stock", slots=2)

    what = f"""A real llama-server answers {{questions}} questions about {{documents}} documents
        with {model}, on {os.cpu_count()} CPUs of this machine."""
    alone = """First the engine alone, with its default flags; then another one behind incipit,
        with the same model, threads, requests and restart."""
    reading = """While it keeps running and everything fits into its memory the stock engine
        reuses about as much by itself; what the gateway adds here comes back after the
        restart, and is paid for with saves (part of "all requests"), disk and a longer
        start."""
    not_claimed = """Not claimed: that other models, machines or prompts gain the same. This is
        one run of a very small model on CPUs, with few requests and nobody else waiting."""


ENGINES = {"lab": Lab, "llama": Llama}


# ---- the workload ------------------------------------------------------------------------

class Workload:
    """One of the plans: which documents are asked about, in which order."""

    def __init__(self, path, plan):
        with open(path, encoding="utf-8") as f:
            w = json.load(f)
        p = w["plans"][plan]
        self.system = "\n".join(w["system"])
        self.documents = {k: "\n".join(v[:p.get("document_lines")])
                          for k, v in w["documents"].items() if k in p["order"].split()}
        questions = {k: iter(v) for k, v in w["questions"].items()}
        self.requests = [{"document": d, "question": next(questions[d]),
                          "stream": n not in p["whole"]}
                         for n, d in enumerate(p["order"].split(), 1)]
        self.one_more = {"document": self.requests[-1]["document"],
                         "question": w["one_more"], "stream": False}
        self.restart_after = p["restart_after"]
        self.max_tokens = p["max_tokens"]

    def body(self, request):
        """What stays the same comes first: system prompt, document, question."""
        text = f"{self.documents[request['document']]}\n\n{request['question']}"
        return {"messages": [{"role": "system", "content": self.system},
                             {"role": "user", "content": text}],
                "max_tokens": self.max_tokens, "temperature": 0,
                "stream": request["stream"]}


# ---- one request -------------------------------------------------------------------------

def read_stream(answer, sent):
    """(time to the first event with content, answer text, the engine's timings)"""
    ttft_ms, text, timings = None, "", None
    while line := answer.readline():
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            answer.read()
            if timings is None:
                raise Failed("a stream ended without the engine's timings")
            return ttft_ms, text, timings
        event = json.loads(line[6:])
        content = "".join(c["delta"].get("content") or "" for c in event["choices"])
        if content and ttft_ms is None:
            ttft_ms = (time.monotonic() - sent) * 1e3
        text += content
        timings = event.get("timings", timings)
    raise Failed("a stream was cut off")


def send(port, body):
    """One request on a connection of its own, measured where the client stands."""
    data = json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    begin = time.monotonic()
    try:
        connection.request("POST", "/v1/chat/completions", data,
                           {"Content-Type": "application/json"})
        sent = time.monotonic()
        answer = connection.getresponse()
        if answer.status != 200:
            text = answer.read(300).decode("utf-8", "replace")
            raise Failed(f"status {answer.status}: {text}")
        if body["stream"]:
            ttft_ms, text, timings = read_stream(answer, sent)
        else:
            whole = json.loads(answer.read())
            ttft_ms, timings = None, whole["timings"]
            text = whole["choices"][0]["message"]["content"]
    except (OSError, http.client.HTTPException, KeyError, ValueError) as e:
        raise Failed(f"a request failed: {type(e).__name__}: {e}") from e
    finally:
        connection.close()
    reused = timings["cache_n"]
    return {"ttft_ms": ttft_ms, "wall_ms": (time.monotonic() - begin) * 1e3,
            "prompt_tokens": reused + timings["prompt_n"], "reused_tokens": reused,
            "text": text}


# ---- the arms ----------------------------------------------------------------------------

class Arm:
    """One way of serving: starts, answers, is restarted, answers. Subclasses say how."""

    restarts = True

    def __init__(self, folder, kind, name):
        self.name, self.kind = name, kind
        self.folder = os.path.join(folder, name)
        os.mkdir(self.folder)
        self.engine = None
        self.results = []
        self.ready_s = []  # per start: the time that each step took
        self.cpu = CpuWatch()

    def start(self):
        self.ready_s.append([])
        for step in self.steps():
            begin = time.monotonic()
            step()
            self.ready_s[-1].append(time.monotonic() - begin)
        self.cpu.begin(self.pids())

    def new_engine(self, managed):
        self.engine = self.kind.engine(self.folder, managed)
        self.engine.start()

    def run(self, workload):
        self.start()
        self.say_started()
        for i, request in enumerate(workload.requests):
            if i == workload.restart_after and self.restarts:
                self.end_part()
                self.stop()
                self.start()
                self.say(f"{self.restart_line}, ready again after "
                         f"{sum(self.ready_s[-1]):.1f} s")
                self.say_started()
            result = send(self.port(), workload.body(request))
            result.update(number=i + 1, document=request["document"],
                          after_restart=i >= workload.restart_after)
            self.results.append(result)
            self.say(self.line(result))
        self.end_part()

    def say(self, text):
        say(f"  {self.name:8} {text}")

    @staticmethod
    def line(r):
        if r["ttft_ms"] is None:
            how, ttft = "whole", "TTFT      -"
        else:
            how, ttft = "streamed", f"TTFT {r['ttft_ms']:6.0f} ms"
        return (f"{r['number']:2}  {r['document']:6} {how:9} prompt "
                f"{r['prompt_tokens']:4}  reused {r['reused_tokens']:4}  {ttft}")

    def say_started(self):
        pass

    def pids(self):
        return [self.engine.process.pid]

    def end_part(self):
        """Before processes are stopped, and when the last answer is there."""
        self.cpu.end(self.pids())

    def stop(self):
        if self.engine:
            self.engine.stop()


class Alone(Arm):
    restart_line = "--- engine restarted"

    def __init__(self, folder, kind):
        super().__init__(folder, kind, kind.arm)

    def steps(self):
        return [lambda: self.new_engine(managed=False)]

    def port(self):
        return self.engine.port


class Fronted(Arm):
    """Behind a gateway."""

    def __init__(self, folder, kind, name, program):
        super().__init__(folder, kind, name)
        self.program, self.gateway = program, None

    def start_gateway(self):
        self.gateway = Gateway(self.program, self.folder, self.engine)
        self.gateway.start()

    def port(self):
        return self.gateway.port

    def pids(self):
        return [*super().pids(), self.gateway.process.pid]

    def stop(self):
        try:
            if self.gateway:
                self.gateway.stop()
        finally:
            super().stop()


class Observed(Fronted):
    """The gateway changes nothing and says what it would gain. Nothing is restarted: it
    would forget what it has seen."""

    restarts = False

    def __init__(self, folder, kind, program):
        super().__init__(folder, kind, "observed", program)
        self.told = None

    def steps(self):
        return [lambda: self.new_engine(managed=False), self.start_gateway]

    def start_gateway(self):
        self.gateway = Observer(self.program, self.folder, self.engine)
        self.gateway.start()

    def end_part(self):
        super().end_part()
        self.told = self.gateway.told()


class Incipit(Fronted):
    title = "with incipit"
    restart_line = "--- engine and gateway restarted"

    def __init__(self, folder, kind, program):
        super().__init__(folder, kind, "incipit", program)
        self.parts = []

    def steps(self):
        return [lambda: self.new_engine(managed=True), self.start_gateway]

    def say_started(self):
        self.say(f"admin {self.gateway.admin_url('/stats')}  "
                 f"metrics {self.gateway.admin_url('/metrics')}")

    def end_part(self):
        self.parts.append(self.gateway.wait_saved())
        super().end_part()


# ---- the whole ---------------------------------------------------------------------------

def explain_before(kind, workload):
    what = kind.what.format(questions=len(workload.requests),
                            documents=len(workload.documents))
    paragraph(f"""{what} Every prompt begins with the same system prompt, then comes one of the
        documents, then the question. In the middle all processes are restarted. {kind.alone}
        Each request is alone, and the next one is sent as soon as the last one is
        answered.""")


def explain_after(kind, busy):
    if busy:
        paragraph("""Other processes kept the CPUs busy meanwhile: the times of the two columns
            cannot be compared. Run it again when the machine has nothing else to do.""")
    paragraph(f"""How to read it: cached means that the engine took over at least half of the
        prompt instead of computing it, and TTFT is the time from the sent request to the
        first text, as the client sees it, in both columns alike. {kind.reading} The gateway's
        own estimate covers only what it can compare: it needs five requests since its start,
        among them cold prompts of such lengths.""")
    paragraph(kind.not_claimed)


def rows_of(kind, result):
    rows = table(result, (kind.title, Incipit.title))
    if kind.exact:
        equal, n = result["equal_answers"], result["incipit"]["requests"]
        if equal != n:
            raise Failed(f"only {equal} of {n} answers are those of the engine alone")
        rows.append(("answers equal to the last byte", "-", f"{equal} of {n}"))
    return rows


def keep_running(arm, workload):
    gateway = arm.gateway
    question = os.path.join(arm.folder, "question.json")
    with open(question, "w", encoding="utf-8") as f:
        json.dump(workload.body(workload.one_more), f)
    say("KEEP=1: engine and gateway keep running; Ctrl-C ends them.")
    say(f"  gateway  {gateway.url('/v1/chat/completions')}")
    for page in ("/stats", "/metrics", "/cache"):
        say(f"  admin    {gateway.admin_url(page)}")
    say()
    paragraph("""One more question about the last document. Look at the headers Cache-Status and
        Server-Timing, and at cache_n in the answer: the tokens that were not computed.""")
    say(f"  curl -si {gateway.url('/v1/chat/completions')} -H 'Content-Type: application/json' "
        f"-d @{question}")
    try:
        while arm.engine.process.poll() is None and gateway.process.poll() is None:
            time.sleep(0.2)
    except KeyboardInterrupt:
        say()
        return
    raise Failed("the engine or the gateway has ended by itself")


def demo(kind, options, folder, arms):
    workload = Workload(WORKLOAD, options.plan or kind.plan)
    kind.prepare()
    explain_before(kind, workload)
    observed = [Observed(folder, kind, options.binary)] if options.observe else []
    for arm in (*observed, Alone(folder, kind), Incipit(folder, kind, options.binary)):
        if arms:
            arms[-1].stop()
        arms.append(arm)
        arm.run(workload)
        say()
    result = figures(kind.model, *arms[-2:], told=observed[0].told if observed else None)
    say(table_text(rows_of(kind, result)) + "\n")
    explain_after(kind, max(arm.cpu.share() for arm in arms) > OTHERS)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=2)
            f.write("\n")
    if os.environ.get("KEEP", "0") not in ("", "0"):
        keep_running(arms[-1], workload)
    else:
        say("KEEP=1 in front of the command leaves it running, with something to try.")


def clean_up(folder, arms):
    """Ends own children only, and is not interrupted at that. False where one was ill."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    well = True
    for arm in arms:
        try:
            arm.stop()
        except Failed as why:
            print(f"demo: {why}", file=sys.stderr)
            well = False
    shutil.rmtree(folder, ignore_errors=True)
    return well


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("binary", help="the gateway: build/release/incipit")
    parser.add_argument("--json", metavar="FILE", default=os.environ.get("JSON"),
                        help="write the figures there as well")
    parser.add_argument("--observe", action="store_true",
                        help="first let a gateway look on and foretell what is reused")
    parser.add_argument("--plan", help="another plan of demo_workload.json: quick")
    options = parser.parse_args()
    options.binary = os.path.abspath(options.binary)
    if not os.access(options.binary, os.X_OK):
        parser.error(f"{options.binary} is no program; make builds it")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder, arms, status = tempfile.mkdtemp(prefix="incipit-demo-"), [], 1
    try:
        demo(ENGINES[options.engine](options.binary), options, folder, arms)
        status = 0
    except llama_server.Unavailable as why:
        print(f"demo: llama-server is not to be had: {why}", file=sys.stderr)
    except (Failed, OSError) as why:
        print(f"demo: {why}", file=sys.stderr)
    except KeyboardInterrupt:
        status = 130
    finally:
        if not clean_up(folder, arms):
            status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())
