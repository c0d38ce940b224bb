#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the cache saves, as `incipit bench` sees it, as an independent client sees it and as
the gateway itself says (bench/README.md, "clients").

    bench/clients.py [INCIPIT] [--model full|tiny] [--turns ABBA] …

The independent client is aiperf, installed from PyPI into build/clients. Results go to
bench/results/clients-MODEL.{json,md}, or to --results.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "tests", "lib")]
import llama_server  # noqa: E402
from demo_process import Failed, Gateway, LlamaEngine, wait_until  # noqa: E402
from stub_service import DONE, Stub, begin_stream, end_stream, event, send_chunk  # noqa: E402

HOME = os.path.join(ROOT, "build", "clients")
PACKAGE = "aiperf==0.13.0"
MODEL = "bench"
RESAMPLES = 4000
ALIKE = 0.2   # a held-out request reuses less of its prompt than this, another one more

# Its tokens are not used: the client counts by the engine's usage, and asks for a tokenizer.
MAKE_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
t = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
PreTrainedTokenizerFast(tokenizer_object=t, unk_token="?", bos_token="?", eos_token="?",
                        pad_token="?").save_pretrained(sys.argv[1])
"""


# ---- services ----------------------------------------------------------------------------

class Holdout(Gateway):
    """The gateway with a share of requests that run cold."""

    share = 25

    def options(self):
        path = os.path.join(self.folder, "incipit.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"listen: 127.0.0.1:0\nadmin:\n  listen: 127.0.0.1:0\nupstreams:\n"
                    f"  - url: http://127.0.0.1:{self.engine.port}\n"
                    f"    slot_dir: {self.engine.slot_dir}\n"
                    f"measure:\n  holdout: {self.share}%\n")
        return ["--config", path]

    def start(self):
        self.launch(["serve", *self.options()], "listening", "admin")
        wait_until(self._ready, self.ready_means)


class Services:
    """A gateway with an engine of its own for each client, so that each has figures of its
    own; and one engine alone, with the flags that it has by itself."""

    def __init__(self, o, folder):
        self.engines, self.gateways, self.threads = {}, {}, o.threads
        for name, flags in (("bench", "managed"), ("aiperf", "managed"), ("stock", "stock")):
            home = os.path.join(folder, name)
            os.mkdir(home)
            self.engines[name] = LlamaEngine(home, o.model, o.build, flags, alias=MODEL,
                                             threads=o.threads)
            if name != "stock":
                self.gateways[name] = Holdout(o.binary, home, self.engines[name])
                self.gateways[name].share = o.holdout

    def start(self):
        """Engines and gateways on the last cores, and this process with the clients that it
        starts on the others, where there are as many: a client that takes much of a
        processor would make the engine slower, and with it what is measured."""
        cores = sorted(os.sched_getaffinity(0))
        theirs = cores[-self.threads:]
        if len(cores) > len(theirs):
            os.sched_setaffinity(0, theirs)
        for name, engine in self.engines.items():
            engine.start()
            if name in self.gateways:
                self.gateways[name].start()
        if len(cores) > len(theirs):
            os.sched_setaffinity(0, cores[:-self.threads])

    def stop(self):
        for gateway in self.gateways.values():
            gateway.stop()
        for engine in self.engines.values():
            engine.stop()

    def url(self, name):
        port = (self.gateways.get(name) or self.engines[name]).port
        return f"http://127.0.0.1:{port}"


# ---- clients -----------------------------------------------------------------------------

def profile(o):
    return (f"shared,documents={o.documents},questions={o.questions},in={o.length},"
            f"ask={o.ask},out={o.answer}")


def run_incipit(o, folder, *arguments):
    """Rows of `incipit bench`, by arm, in the order of the plan."""
    path = os.path.join(folder, "rows.csv")
    done = subprocess.run([o.binary, "bench", *arguments, "--profile", profile(o), "--model",
                           MODEL, "--csv", path], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"incipit bench: {done.stderr.strip()}")
    arms = {"A": [], "B": []}
    with open(path, encoding="utf-8", newline="") as f:
        for row in csv.DictReader(f):
            arms[row["arm"]].append(row)
    for rows in arms.values():
        rows.sort(key=lambda r: int(r["index"]))
    return arms


def seen(rows, block):
    """What both clients tell of a request. A document is of its block alone. An answer
    without a word has no first token, one that was cut off no usage: such a request is
    None."""
    return [{"document": f"{block}.{r['group']}", "turn": int(r["turn"]),
             "ttft": float(r["ttft_ms"]), "prompt": int(r["prompt_tokens"]),
             "cached": int(r["cached_tokens"])} if r["ttft_ms"] else None for r in rows]


def bench_block(o, services, folder, block):
    arms = run_incipit(o, folder, services.url("bench"), "--ab", services.url("stock"),
                       "--seed", str(o.seed + block))
    return {"gateway": seen(arms["A"], block), "stock": seen(arms["B"], block)}


def write_bodies(o, folder, block):
    """The same workload with another seed: the bodies, and which document they ask."""
    def answer(stub, sock, number, body):
        begin_stream(sock)
        send_chunk(sock, event({"content": "a"}) + DONE)
        end_stream(sock)
    stub = Stub(answer)
    try:
        rows = run_incipit(o, folder, stub.url, "--seed", str(o.seed + block))["A"]
    finally:
        stub.close()
    path = os.path.join(folder, "bodies.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(body) + "\n" for body in stub.requests)
    return path, rows


def run_aiperf(o, url, bodies, rows, folder, block):
    out = os.path.join(folder, "artifacts")
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run(
        [os.path.join(HOME, "aiperf", "bin", "aiperf"), "profile", "--model", MODEL, "--url",
         url, "--endpoint-type", "raw", "--custom-endpoint", "/v1/chat/completions",
         "--streaming", "--input-file", bodies, "--custom-dataset-type", "raw-payload",
         "--dataset-sampling-strategy", "sequential", "--request-count", str(len(rows)),
         "--concurrency", "1", "--tokenizer", os.path.join(HOME, "tokenizer"),
         "--use-server-token-count", "--export-level", "raw", "--output-artifact-dir", out,
         "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Failed(f"aiperf: {done.stdout[-2000:]}")
    times = {r["metadata"]["session_num"]: r["metrics"].get("time_to_first_token", {})
             .get("value") for r in lines(os.path.join(out, "profile_export.jsonl"))}
    told = {r["metadata"]["session_num"]: usage_of(r)
            for r in lines(os.path.join(out, "profile_export_raw.jsonl"))}
    if sorted(times) != list(range(len(rows))) or sorted(told) != sorted(times):
        raise Failed(f"aiperf: {len(times)} of {len(rows)} requests have a time")
    return seen([{**row, "ttft_ms": times[i] if told[i] else None,
                  "prompt_tokens": told[i] and told[i][0],
                  "cached_tokens": told[i] and told[i][1]}
                 for i, row in enumerate(rows)], block)


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def usage_of(record):
    """Prompt and cached tokens, of the last chunk that tells them; None for none."""
    for response in reversed(record["responses"]):
        for packet in response["packets"]:
            if packet["value"].startswith("{"):
                usage = json.loads(packet["value"]).get("usage")
                if usage:
                    return (usage["prompt_tokens"],
                            usage["prompt_tokens_details"]["cached_tokens"])
    return None


def aiperf_block(o, services, folder, block):
    """Both services in turn; which is first changes from block to block."""
    bodies, rows = write_bodies(o, folder, block)
    names = [("gateway", "aiperf"), ("stock", "stock")]
    return {name: run_aiperf(o, services.url(service), bodies, rows, folder, block)
            for name, service in (names if block % 2 else reversed(names))}


BLOCKS = {"A": ("bench", bench_block), "B": ("aiperf", aiperf_block)}


# ---- figures -----------------------------------------------------------------------------

def is_held_out(r):
    return r["turn"] > 0 and r["cached"] < ALIKE * r["prompt"]


def is_hit(r):
    return r["turn"] > 0 and not is_held_out(r)


def weighted(documents, of):
    """Mean over documents of cold less warm, each by the number of its requests."""
    total = sum(len(cold) + len(warm) for cold, warm in documents)
    return sum((of(cold) - of(warm)) * (len(cold) + len(warm))
               for cold, warm in documents) / total


def interval(draws):
    draws = sorted(draws)
    return draws[int(0.025 * len(draws))], draws[int(0.975 * len(draws))]


def figure(value, draws, n, digits=1):
    low, high = interval(draws)
    return {"value": round(value, digits), "low": round(low, digits),
            "high": round(high, digits), "n": n}


def held_out_saving(requests, rng):
    """Held-out requests less hits, within each document; resampled within both."""
    documents = {}
    for r in requests:
        if r["turn"] > 0:
            arms = documents.setdefault(r["document"], ([], []))
            arms[0 if is_held_out(r) else 1].append(r["ttft"])
    documents = [d for d in documents.values() if d[0] and d[1]]
    if not documents:
        raise Failed("no document has a request that was held out")
    out = {}
    for name, of in (("mean", statistics.fmean), ("median", statistics.median)):
        draws = [weighted([(rng.choices(c, k=len(c)), rng.choices(w, k=len(w)))
                           for c, w in documents], of) for _ in range(RESAMPLES)]
        out[name] = figure(weighted(documents, of), draws,
                           [sum(len(c) for c, _ in documents),
                            sum(len(w) for _, w in documents)])
    return out


def first_question_saving(requests, rng):
    """The first question of each document, which is cold, less its hits."""
    documents = {}
    for r in requests:
        arms = documents.setdefault(r["document"], ([], []))
        if r["turn"] == 0:
            arms[0].append(r["ttft"])
        elif is_hit(r):
            arms[1].append(r["ttft"])
    gains = [c[0] - statistics.fmean(w) for c, w in documents.values() if c and w]
    draws = [statistics.fmean(rng.choices(gains, k=len(gains))) for _ in range(RESAMPLES)]
    return figure(statistics.fmean(gains), draws, len(gains))


def against_stock(gateway, stock, rng):
    """Stock less gateway, of pairs in which the gateway was free to reuse."""
    gains = [s["ttft"] - g["ttft"] for g, s in zip(gateway, stock)
             if g and s and is_hit(g)]
    out = {}
    for name, of in (("mean", statistics.fmean), ("median", statistics.median)):
        draws = [of(rng.choices(gains, k=len(gains))) for _ in range(RESAMPLES)]
        out[name] = figure(of(gains), draws, len(gains))
    return out


def own_figures(stats):
    """What the gateway says of its requests, each as a mean for one."""
    savings = stats["replicas"][0]["savings"]
    confirmed, measured = savings["confirmed"], savings["measured"]
    n = confirmed["n"]
    out = {"raw": savings, "control": stats["total"]["misses"]["control"],
           "confirmed": None, "measured": None}
    if n and confirmed["saved_ms"] is not None:
        out["confirmed"] = {
            "value": round(confirmed["saved_ms"] / n, 1), "low": round(confirmed["low"] / n, 1),
            "high": round(confirmed["high"] / n, 1), "n": n}
    if measured["saved_ms_per_request"] is not None:
        out["measured"] = {
            "value": round(measured["saved_ms_per_request"], 1),
            "low": round(measured["low"], 1), "high": round(measured["high"], 1),
            "n": [measured["n_cold"], measured["n_cached"]]}
    return out


def overlap(a, b):
    return a["low"] <= b["high"] and b["low"] <= a["high"]


def analyse(blocks, stats, rng):
    out = {}
    for name in ("bench", "aiperf"):
        gateway = [r for b in blocks if b["client"] == name for r in b["gateway"]]
        stock = [r for b in blocks if b["client"] == name for r in b["stock"]]
        if gateway:
            pairs = gateway, stock
            gateway, stock = ([r for r in rows if r] for rows in pairs)
            out[name] = {"held_out": held_out_saving(gateway, rng),
                         "first_question": first_question_saving(gateway, rng),
                         "against_stock": against_stock(*pairs, rng),
                         "without_first_token": sum(r is None for r in pairs[0] + pairs[1]),
                         "own": own_figures(stats[name]),
                         "requests": len(gateway),
                         "held_out_seen": sum(map(is_held_out, gateway)),
                         "reused": {n: round(sum(r["cached"] for r in rows) /
                                             sum(r["prompt"] for r in rows), 4)
                                    for n, rows in (("gateway", gateway), ("stock", stock))}}
    return out


# ---- the run -----------------------------------------------------------------------------

def install():
    """The client and a tokenizer for it, once."""
    llama_server.install()
    venv = os.path.join(HOME, "aiperf")
    os.makedirs(HOME, exist_ok=True)
    if not os.path.exists(os.path.join(venv, "bin", "aiperf")):
        print(f"installing {PACKAGE} …", flush=True)
        llama_server._run(sys.executable, "-m", "venv", venv)
        llama_server._run(os.path.join(venv, "bin", "pip"), "--disable-pip-version-check",
                          "install", "-q", PACKAGE)
    tokenizer = os.path.join(HOME, "tokenizer")
    if not os.path.exists(os.path.join(tokenizer, "tokenizer.json")):
        llama_server._run(os.path.join(venv, "bin", "python"), "-c", MAKE_TOKENIZER, tokenizer)


def run_blocks(o, services, folder):
    """What fails ends the run; the blocks before it are kept."""
    blocks = []
    for block, letter in enumerate(o.turns):
        name, work = BLOCKS[letter]
        print(f"{block + 1} of {len(o.turns)}: {name} …", flush=True)
        load = os.getloadavg()[0]
        try:
            done = work(o, services, folder, block)
        except Failed as why:
            if not blocks:
                raise
            print(f"block {block + 1} failed: {why}", flush=True)
            break
        blocks.append({"client": name, "load_before": round(load, 2), **done,
                       "load_after": round(os.getloadavg()[0], 2)})
    return blocks


def measure(o):
    install()
    with tempfile.TemporaryDirectory(prefix="incipit-clients-") as folder:
        services = Services(o, folder)
        try:
            services.start()
            blocks = run_blocks(o, services, folder)
            stats = {n: g.wait_saved() for n, g in services.gateways.items()}
        finally:
            services.stop()
    return {"settings": {"model": o.model, "build": o.build, "profile": profile(o),
                         "turns": o.turns, "seed": o.seed, "holdout": o.holdout,
                         "threads": o.threads, "client": PACKAGE,
                         "flags": {"gateway": "managed", "stock": "stock"}},
            "machine": {"cores": os.cpu_count(), "kernel": platform.release(),
                        "processor": platform.machine()},
            "date": str(datetime.date.today()),
            "figures": analyse(blocks, stats, random.Random(o.seed)),
            "blocks": blocks}


# ---- the table ---------------------------------------------------------------------------

def show(f):
    if f is None:
        return "not told", "-"
    n = " and ".join(map(str, f["n"])) if isinstance(f["n"], list) else f["n"]
    return f"{f['value']:,.1f} ({f['low']:,.1f} to {f['high']:,.1f})", n


def verdict(what, a, b):
    if a is None or b is None:
        return f"* {what}: one of them is not told."
    return f"* {what}: the intervals {'overlap' if overlap(a, b) else 'DO NOT OVERLAP'}."


ROWS = [("held-out less hit, mean", lambda f: f["held_out"]["mean"]),
        ("the gateway's measured saving", lambda f: f["own"]["measured"]),
        ("the gateway's confirmed saving", lambda f: f["own"]["confirmed"]),
        ("held-out less hit, median", lambda f: f["held_out"]["median"]),
        ("first question less hit, mean", lambda f: f["first_question"]),
        ("stock less gateway, mean", lambda f: f["against_stock"]["mean"]),
        ("stock less gateway, median", lambda f: f["against_stock"]["median"])]


def table(figures):
    names = list(figures)
    out = ["| ms of TTFT | " + " | ".join(f"{n} | n" for n in names) + " |",
           "|---" * (1 + 2 * len(names)) + "|"]
    for title, of in ROWS:
        cells = [c for n in names for c in map(str, show(of(figures[n])))]
        out.append(f"| {title} | " + " | ".join(cells) + " |")
    return out


def verdicts(figures):
    out = []
    for name, f in figures.items():
        mean = f["held_out"]["mean"]
        out += [verdict(f"{name} against the gateway's measured saving", mean,
                        f["own"]["measured"]),
                verdict(f"{name} against the gateway's confirmed saving", mean,
                        f["own"]["confirmed"])]
    if len(figures) == 2:
        a, b = figures.values()
        for title, of in ROWS:
            if not title.startswith("the gateway"):
                out.append(verdict(f"{' against '.join(figures)}, {title}", of(a), of(b)))
    return out


def report(doc):
    s, figures = doc["settings"], doc["figures"]
    out = [f"# What clients see of the saving, {doc['date']}", "",
           f"llama-server ({s['build']}), model {s['model']}, `{s['profile']}`, turns "
           f"{s['turns']} (A incipit bench, B {s['client']}), one request at a time, hold-out "
           f"{s['holdout']} %, seed {s['seed']}, {s['threads']} threads on "
           f"{doc['machine']['cores']} cores; load average at the blocks' starts: "
           f"{', '.join(str(b['load_before']) for b in doc['blocks'])}.", "",
           "95 % intervals. What is compared: bench/README.md, \"clients\".", "",
           *table(figures), "", *verdicts(figures), ""]
    for name, f in figures.items():
        out.append(f"{name}: {f['requests']} requests to the gateway, "
                   f"{f['held_out_seen']} seen as held out (the gateway says "
                   f"{f['own']['control']}), {f['without_first_token']} answers without "
                   f"a first token (not in the figures); prompt tokens reused: gateway "
                   f"{100 * f['reused']['gateway']:.1f} %, stock "
                   f"{100 * f['reused']['stock']:.1f} %.")
    return "\n".join(out) + "\n"


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("binary", nargs="?", default=os.path.join(ROOT, "build/release/incipit"))
    p.add_argument("--model", default="full", help="of tools/llama_server.py")
    p.add_argument("--build", default="new", help="old or new, of the same")
    p.add_argument("--turns", default="ABBA", help="A: incipit bench, B: the other client")
    p.add_argument("--documents", type=int, default=2, help="of a block")
    p.add_argument("--questions", type=int, default=20, help="about each")
    p.add_argument("--length", type=int, default=300, help="words of a document")
    p.add_argument("--ask", type=int, default=30, help="words of a question")
    p.add_argument("--answer", type=int, default=4, help="tokens of an answer")
    p.add_argument("--holdout", type=int, default=25, help="percent that run cold")
    p.add_argument("--threads", type=int, default=1, help="of each engine")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    p.add_argument("--results", default=os.path.join(ROOT, "bench", "results"))
    return p.parse_args()


def main():
    o = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))   # by way of `finally`
    try:
        doc = measure(o)
    except (Failed, llama_server.Unavailable) as why:
        print(f"clients: {why}", file=sys.stderr)
        return 1
    text = report(doc)
    name = os.path.join(o.results, f"clients-{o.model}")
    with open(f"{name}.json", "w", encoding="utf-8") as f:
        json.dump(doc, f, indent=1)
        f.write("\n")
    with open(f"{name}.md", "w", encoding="utf-8") as f:
        f.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
