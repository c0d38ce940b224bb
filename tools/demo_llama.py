#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A real llama-server with a small real model, without and with incipit in front of it.

    python3 tools/demo_llama.py BINARY [--json FILE]

The same requests go through two arms, one after the other: the stock engine with its
default flags (its RAM prompt cache included), and an engine behind the gateway. In the
middle of each arm all of its processes are restarted. Everything lies in a temporary folder
and listens on loopback only. KEEP=1 in the environment leaves the second arm running until
Ctrl-C; JSON=FILE is the same as --json FILE.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import llama_server  # noqa: E402

WORKLOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo_workload.json")
MODEL, MODEL_TITLE = "full", "SmolLM2-135M-Instruct"
PATIENCE_S = 120
OTHERS = 0.1  # share of the CPUs taken by other processes: above it, times are worth little


class Failed(Exception):
    """The demo cannot go on; the text says why."""


def say(text=""):
    print(text, flush=True)


def paragraph(text):
    say(textwrap.fill(" ".join(text.split()), 88))


def wait_until(condition, what, timeout=PATIENCE_S):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"not within {timeout} s: {what}")
        time.sleep(0.01)


def last_words(path, n=12):
    """The end of a process's output, to be put behind what is said of it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            lines = f.read().splitlines()[-n:]
    except OSError:
        lines = []
    return "".join(["; its last words:"] + [f"\n    {x}" for x in lines]) if lines else ""


class CpuWatch:
    """What part of all CPUs others took, over the times that these processes were watched."""

    def __init__(self):
        self.all = self.others = 0
        self.since = None

    @staticmethod
    def read(pids):
        with open("/proc/stat", encoding="ascii") as f:
            times = [int(x) for x in f.readline().split()[1:9]]
        own = 0
        for pid in [os.getpid(), *pids]:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                own += sum(int(x) for x in f.read().rpartition(")")[2].split()[11:13])
        return sum(times), sum(times) - times[3] - times[4] - own  # not idle, not our own

    def begin(self, pids):
        self.since = self.read(pids)

    def end(self, pids):
        now = self.read(pids)
        self.all += now[0] - self.since[0]
        self.others += now[1] - self.since[1]

    def share(self):
        return max(self.others, 0) / max(self.all, 1)


# ---- the workload ------------------------------------------------------------------------

class Workload:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            w = json.load(f)
        self.system = "\n".join(w["system"])
        self.documents = {k: "\n".join(v) for k, v in w["documents"].items()}
        self.requests = w["requests"]
        self.restart_after = w["restart_after"]
        self.max_tokens = w["max_tokens"]

    def body(self, request):
        """What stays the same comes first: system prompt, document, question."""
        text = f"{self.documents[request['document']]}\n\n{request['question']}"
        return {"messages": [{"role": "system", "content": self.system},
                             {"role": "user", "content": text}],
                "max_tokens": self.max_tokens, "temperature": 0,
                "stream": request.get("stream", True)}


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


# ---- the gateway -------------------------------------------------------------------------

class Gateway:
    """One gateway process in front of one engine, on ports that the system picks."""

    def __init__(self, program, folder, engine):
        self.program, self.folder, self.engine = program, folder, engine
        self.log = os.path.join(folder, "gateway.log")
        self.child, self.port, self.admin_port = None, 0, 0

    def start(self):
        command = [self.program, "serve", "--listen", "127.0.0.1:0",
                   "--admin", "127.0.0.1:0",
                   "--upstream", f"http://127.0.0.1:{self.engine.port}",
                   "--slot-dir", self.engine.slot_dir,
                   "--store-dir", os.path.join(self.folder, "store")]
        with open(self.log, "wb") as log:
            # Out of the terminal's group: Ctrl-C beside our own signal would be the second
            # one, which tells it to stop at once.
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                          stderr=log, start_new_session=True)
        wait_until(self._listening, "the gateway listens")
        wait_until(self._ready, "the gateway and its engine are ready to save and restore")

    def _alive(self):
        if self.child.poll() is not None:
            raise Failed(f"the gateway ended with {self.child.returncode}"
                         f"{last_words(self.log)}")

    def _listening(self):
        self._alive()
        with open(self.log, encoding="utf-8", errors="replace") as f:
            ports = dict(re.findall(r"^(listening|admin) on \S*:(\d+)$", f.read(), re.M))
        self.port, self.admin_port = (int(ports.get(k, 0)) for k in ("listening", "admin"))
        return self.port and self.admin_port

    def _ready(self):
        self._alive()
        replica = self.stats()["replicas"][0]
        if replica["mode"] == "observe":
            raise Failed(f"the gateway cannot save and restore: {replica['mode_reason']}")
        return replica["mode"] == "store"

    def admin(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            data = answer.read()
        except OSError as e:
            raise Failed(f"the gateway's admin side: {e}{last_words(self.log)}") from e
        finally:
            connection.close()
        if answer.status != 200:
            raise Failed(f"{path} of the gateway's admin side: status {answer.status}")
        return data

    def stats(self):
        return json.loads(self.admin("/stats"))

    def wait_saved(self):
        """Nothing under way, nothing left to save. Returns /stats of that moment."""
        last = {}

        def saved():
            self._alive()
            last.update(self.stats())
            replica = last["replicas"][0]
            return (last["total"]["in_flight"] == 0 and replica["kv_operations"] == 0
                    and not any(s["unsaved"] for s in replica["slots"]))
        wait_until(saved, "the gateway has saved what its slots hold", 60)
        return last

    def stop(self):
        """Ends it, if it still runs; it saves what there is to save before it goes."""
        if self.child is None or self.child.poll() is not None:
            return
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(35)
        except subprocess.TimeoutExpired:
            self.child.kill()
        if self.child.wait() != 0:
            raise Failed(f"told to end, the gateway ended with {self.child.returncode}"
                         f"{last_words(self.log)}")


# ---- the arms ----------------------------------------------------------------------------

class Arm:
    """One way of serving: starts, answers, is restarted, answers. Subclasses say how."""

    name = title = None

    def __init__(self, folder):
        self.folder = os.path.join(folder, self.name)
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

    def new_engine(self, **options):
        self.engine = llama_server.LlamaServer(self.folder, MODEL, threads=os.cpu_count(),
                                               **options)
        try:
            self.engine.start()
        except llama_server.Unavailable as why:
            log = os.path.join(self.folder, f"engine-{self.engine.port}.log")
            raise Failed(f"{why}{last_words(log)}") from why

    def run(self, workload):
        self.start()
        for i, request in enumerate(workload.requests):
            if i == workload.restart_after:
                self.end_part()
                self.stop()
                self.start()
                say(f"  {self.name:8} {self.restart_line}, ready again after "
                    f"{sum(self.ready_s[-1]):.1f} s")
            result = send(self.port(), workload.body(request))
            result.update(number=i + 1, document=request["document"],
                          after_restart=i >= workload.restart_after)
            self.results.append(result)
            say(self.line(result))
        self.end_part()

    def line(self, r):
        if r["ttft_ms"] is None:
            how, ttft = "whole", "TTFT      -"
        else:
            how, ttft = "streamed", f"TTFT {r['ttft_ms']:6.0f} ms"
        return (f"  {self.name:8} {r['number']:2}  {r['document']:6} {how:9} prompt "
                f"{r['prompt_tokens']:4}  reused {r['reused_tokens']:4}  {ttft}")

    def pids(self):
        return [self.engine.process.pid]

    def end_part(self):
        """Before processes are stopped, and when the last answer is there."""
        self.cpu.end(self.pids())

    def stop(self):
        if self.engine:
            self.engine.stop()


class Stock(Arm):
    name, title = "stock", "stock engine"
    restart_line = "--- engine restarted"

    def steps(self):
        return [lambda: self.new_engine(managed=False)]

    def port(self):
        return self.engine.port


class Incipit(Arm):
    name, title = "incipit", "with incipit"
    restart_line = "--- engine and gateway restarted"

    def __init__(self, folder, program):
        super().__init__(folder)
        self.program, self.gateway, self.parts = program, None, []

    def steps(self):
        return [lambda: self.new_engine(managed=True, slots=2), self.start_gateway]

    def start_gateway(self):
        self.gateway = Gateway(self.program, self.folder, self.engine)
        self.gateway.start()

    def port(self):
        return self.gateway.port

    def pids(self):
        return [*super().pids(), self.gateway.child.pid]

    def end_part(self):
        self.parts.append(self.gateway.wait_saved())
        super().end_part()

    def stop(self):
        try:
            if self.gateway:
                self.gateway.stop()
        finally:
            super().stop()


# ---- figures -----------------------------------------------------------------------------

def spread(values):
    """Median, range and number of times in ms."""
    return {"median_ms": statistics.median(values) if values else None,
            "min_ms": min(values, default=None), "max_ms": max(values, default=None),
            "n": len(values)}


def figures_of(arm):
    timed = [r for r in arm.results if r["ttft_ms"] is not None]
    cached = [r for r in timed if r["reused_tokens"] * 2 >= r["prompt_tokens"]]
    total = sum(r["prompt_tokens"] for r in arm.results)
    after = [r for r in arm.results if r["after_restart"]]
    return {"requests": len(arm.results), "streamed": len(timed), "prompt_tokens": total,
            "reused_tokens": sum(r["reused_tokens"] for r in arm.results),
            "prompt_tokens_after_restart": sum(r["prompt_tokens"] for r in after),
            "reused_tokens_after_restart": sum(r["reused_tokens"] for r in after),
            "ttft_cold": spread([r["ttft_ms"] for r in timed if r not in cached]),
            "ttft_cached": spread([r["ttft_ms"] for r in cached]),
            "ttft_sum_ms": sum(r["ttft_ms"] for r in timed),
            "wall_ms": sum(r["wall_ms"] for r in arm.results),
            "ready_s": arm.ready_s, "cpu_of_others": arm.cpu.share(), "each": arm.results}


def figures(stock, incipit):
    out = {"engine": incipit.parts[-1]["replicas"][0]["build"], "model": MODEL_TITLE,
           "threads": os.cpu_count(), "stock": figures_of(stock),
           "incipit": figures_of(incipit)}
    mine, totals = out["incipit"], [p["total"] for p in incipit.parts]
    store = incipit.parts[-1]["store"]
    for name in ("resident_tokens", "restored_tokens", "saved_ms", "saved_n"):
        mine[name] = sum(t[name] for t in totals)
    for name in ("restores", "saves", "saves_skipped", "save_failures"):
        mine[name] = sum(p["replicas"][0][name] for p in incipit.parts)
    mine["restore_failures"] = sum(sum(p["replicas"][0]["restore_failures"].values())
                                   for p in incipit.parts)
    mine["misses"] = {k: n for k in totals[0]["misses"]
                      if (n := sum(t["misses"][k] for t in totals))}
    mine["blocks_stored"], mine["bytes_stored"] = store["blocks"], store["bytes"]
    out["stock"]["resident_tokens"] = out["stock"]["reused_tokens"]
    out["saved_measured_ms"] = out["stock"]["ttft_sum_ms"] - mine["ttft_sum_ms"]
    out["saved_measured_n"] = mine["streamed"]
    counted = mine["resident_tokens"] + mine["restored_tokens"]
    if counted != mine["reused_tokens"]:
        raise Failed(f"the gateway counted {counted} reused tokens, its clients "
                     f"{mine['reused_tokens']}")
    return out


def ms(value):
    return f"{value:,.0f} ms"


def spread_text(s):
    if not s["n"]:
        return "- (n 0)"
    return f"{s['median_ms']:,.0f} ({s['min_ms']:,.0f} to {s['max_ms']:,.0f}, n {s['n']})"


def share(part, whole):
    return f"{part:,} ({100 * part / whole:.0f} %)"


def table(f):
    s, g = f["stock"], f["incipit"]
    both = lambda name, show=str: (show(s[name]), show(g[name]))  # noqa: E731
    after = "prompt_tokens_after_restart", "reused_tokens_after_restart"
    estimate = f"{ms(g['saved_ms'])}" if g["saved_n"] else "-"
    return [
        ("", Stock.title, Incipit.title),
        ("requests", *both("requests")),
        ("  of these streamed, so with a TTFT", *both("streamed")),
        ("prompt tokens", *both("prompt_tokens", "{:,}".format)),
        ("tokens reused", *(share(x["reused_tokens"], x["prompt_tokens"]) for x in (s, g))),
        ("  resident: the engine still had them",
         *both("resident_tokens", "{:,}".format)),
        ("  restored: the gateway put them back", "-", f"{g['restored_tokens']:,}"),
        ("  of the tokens after the restart",
         *(share(x[after[1]], x[after[0]]) for x in (s, g))),
        ("TTFT cold, median and range in ms", *both("ttft_cold", spread_text)),
        ("TTFT cached, median and range in ms", *both("ttft_cached", spread_text)),
        ("TTFT, all added up", *both("ttft_sum_ms", ms)),
        ("saved time, the gateway's own estimate", "-", f"{estimate} (n {g['saved_n']})"),
        ("saved time, difference of the TTFT sums", "-",
         f"{ms(f['saved_measured_ms'])} (n {f['saved_measured_n']})"),
        ("all requests, first byte to last", *both("wall_ms", ms)),
        ("restart: engine ready, then gateway ready",
         *both("ready_s", lambda v: ", ".join(f"{x:.1f} s" for x in v[-1]))),
        ("CPUs taken by others meanwhile",
         *both("cpu_of_others", lambda x: f"{100 * x:.0f} %")),
        ("blocks stored", "-", f"{g['blocks_stored']:,}"),
        ("bytes stored", "-", f"{g['bytes_stored'] / 2**20:,.1f} MiB"),
    ]


def print_table(rows):
    width = [max(len(r[i]) for r in rows) for i in range(3)]
    for n, row in enumerate(rows):
        say(f"{row[0]:{width[0]}}  {row[1]:>{width[1]}}  {row[2]:>{width[2]}}")
        if n == 0:
            say("-" * (sum(width) + 4))


# ---- the whole ---------------------------------------------------------------------------

def explain_before(workload):
    cpus = os.cpu_count()
    paragraph(f"""A real llama-server answers {len(workload.requests)} questions about
        {len(workload.documents)} documents with {MODEL_TITLE}, on {cpus} CPUs of this
        machine. Every prompt begins with the same system prompt, then comes one of the
        documents, then the question. In the middle all processes are restarted. First the
        engine alone, with its default flags; then another one behind incipit, with the
        same model, threads, requests and restart. Each request is alone, and the next one
        is sent as soon as the last one is answered.""")
    say()


def explain_after(busy):
    say()
    if busy:
        paragraph("""Other processes kept the CPUs busy meanwhile: the times of the two columns
            cannot be compared. Run it again when the machine has nothing else to do.""")
        say()
    paragraph("""How to read it: cached means that the engine took over at least half of the
        prompt instead of computing it, and TTFT is the time from the sent request to the
        first text, as the client sees it, in both columns alike. While it keeps running and
        everything fits into its memory the stock engine reuses about as much by itself;
        what the gateway adds here comes back after the restart, and is paid for with saves
        (part of "all requests"), disk and a longer start. The gateway's own estimate covers
        only what it can compare: it needs five requests since its start, among them cold
        prompts of such lengths.""")
    say()
    paragraph("""Not claimed: that other models, machines or prompts gain the same. This is one
        run of a very small model on CPUs, with few requests and nobody else waiting.""")


def keep_running(arm):
    gateway = arm.gateway
    say()
    say("KEEP=1: engine and gateway keep running; Ctrl-C ends them.")
    say(f"  gateway  http://127.0.0.1:{gateway.port}/v1/chat/completions")
    for page in ("/stats", "/metrics", "/cache"):
        say(f"  admin    http://127.0.0.1:{gateway.admin_port}{page}")
    try:
        while arm.engine.process.poll() is None and gateway.child.poll() is None:
            time.sleep(0.2)
    except KeyboardInterrupt:
        say()
        return
    raise Failed("the engine or the gateway has ended by itself")


def demo(options, folder, arms):
    workload = Workload(WORKLOAD)
    llama_server.install()
    explain_before(workload)
    for make in (lambda: Stock(folder), lambda: Incipit(folder, options.binary)):
        arms.append(make())
        arms[-1].run(workload)
        if len(arms) == 1:
            arms[0].stop()
            say()
    result = figures(*arms)
    say()
    print_table(table(result))
    explain_after(max(arm.cpu.share() for arm in arms) > OTHERS)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=2)
            f.write("\n")
    if os.environ.get("KEEP", "0") not in ("", "0"):
        keep_running(arms[-1])


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
    parser.add_argument("binary", help="the gateway: build/release/incipit")
    parser.add_argument("--json", metavar="FILE", default=os.environ.get("JSON"),
                        help="write the figures there as well")
    options = parser.parse_args()
    options.binary = os.path.abspath(options.binary)
    if not os.access(options.binary, os.X_OK):
        parser.error(f"{options.binary} is no program; make builds it")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder, arms, status = tempfile.mkdtemp(prefix="incipit-demo-"), [], 1
    try:
        demo(options, folder, arms)
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
