#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The block store on a real llama-server against what else there is (bench/README.md).

    python3 bench/store/run.py [--quick] [--engine old|new] [--workloads W1,W2,W3] …

Everything lies in a temporary folder and listens on loopback. Results go to bench/results/
as JSON and as a table. Ctrl-C keeps what was measured until then.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

import contender
from client import Round
from figures import cell_figures, progress_line
from report import write_results
import sharing
import workload

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tools"))
import llama_server  # noqa: E402
from demo_process import CpuWatch, Failed  # noqa: E402

ROOT = llama_server.ROOT
DISK_SHARE = 2  # of the working set, where a workload has a disk tier


def say(text):
    print(text, flush=True)


class Plan:
    """Cells of one workload: nothing first, then each budget with all contenders."""

    def __init__(self, name, quick, clients):
        self.name, self.disk = name, name == "W3"
        self.shares = [0.25] if self.disk else [0.25, 1.0] if quick else [0.25, 0.5, 1.0]
        self.clients = clients


class Bench:
    def __init__(self, options, folder):
        self.o, self.folder = options, folder
        self.setup = contender.Setup(options.binary, options.engine, options.model, 2, 16384,
                                     512, 1)
        self.token_bytes = self._token_bytes()
        self.cells, self.missing, self.working_sets = [], {}, {}
        self.sharing, self.slotfile = None, []
        self.n_folders, self.began = 0, time.monotonic()
        self.done_work = self.all_work = 0.0

    def _token_bytes(self):
        out = subprocess.run([self.o.binary, "kvsize", llama_server.model(self.o.model),
                              "--json"], stdout=subprocess.PIPE, check=True)
        return json.loads(out.stdout)["bytes_per_token"]["first"]

    def new_folder(self):
        self.n_folders += 1
        return os.path.join(self.folder, str(self.n_folders))

    # ---- before measuring ----------------------------------------------------------------

    def prepare(self, plan):
        """The workload, and the unique tokens of its prompts by the engine's own template
        and tokenizer. Its budgets follow from them."""
        folder = self.new_folder()
        os.makedirs(folder)
        engine = contender.Engine(folder, self.setup)
        engine.start()
        try:
            def cut(text, n):
                pieces = engine.post("/tokenize", {"content": text, "with_pieces": True})[1]
                return "".join(p["piece"] for p in pieces["tokens"][:n])

            w = workload.make(plan.name, self.o.seed, self.o.quick, cut)
            n, reachable = workload.survey(w, engine.ids)
            self.setup.build_name = engine.get("/props")[1].get("build_info", "unknown")
        finally:
            engine.stop()
        self.working_sets[plan.name] = {"tokens": n, "bytes": n * self.token_bytes,
                                        "title": w.title, "requests": len(w.rounds[0][1]),
                                        "reachable": reachable}
        say(f"\n{plan.name}: {w.title}; {plan.clients} at a time\n"
            f"  working set {n:,} tokens, {n * self.token_bytes / 1e6:.1f} MB; at most "
            f"{100 * reachable:.1f} % can be reused")
        return w

    # ---- one cell ------------------------------------------------------------------------

    def measure(self, kind, w, plan, ram, disk, rounds_wanted, restart=True):
        """One contender through the first rounds; its folder is gone afterwards."""
        folder = self.new_folder()
        c = kind(folder, self.setup, ram, disk)
        state, rounds, cpu = w.start(), {}, CpuWatch()
        held, counters = {}, []
        try:
            c.start()
            began_with = contender.settle(c)
            for name, order in w.rounds[:rounds_wanted]:
                if name == "after" and restart:
                    c.stop()
                    c.start()
                cpu.begin(c.pids())
                since = time.monotonic()
                answers = Round(w, state, order, c.port, c.extra).run(plan.clients)
                rounds[name] = (answers, time.monotonic() - since)
                cpu.end(c.pids())
                counters.append(c.counters())
                if name == "main":
                    held = {"rss_growth": max(0, c.rss() - began_with),
                            "disk_bytes": c.disk_bytes()}
        finally:
            c.stop()
            if not self.o.keep:
                shutil.rmtree(folder, ignore_errors=True)
        return cell_figures(rounds, held, cpu.share(), counters)

    def cell(self, kind, w, plan, share, run):
        ws = self.working_sets[plan.name]["bytes"]
        ram = max(1, -(-int(share * ws) // contender.MIB)) * contender.MIB
        disk = DISK_SHARE * ws if plan.disk else ram
        cell = {"workload": plan.name, "contender": kind.name, "share": share,
                "ram_budget": ram if share else 0, "disk_budget": disk if share else 0,
                "clients": plan.clients, "run": run}
        last = bool(share) and share == plan.shares[-1]
        cell.update(self.measure(kind, w, plan, ram, disk, 3 if last else 1))
        if last and self.o.control and kind is contender.Incipit:
            control = self.measure(kind, w, plan, ram, disk, 3, restart=False)
            cell["without_restart"] = control["after"]
        self.cells.append(cell)
        say(progress_line(cell, self.left()))

    def left(self):
        """Seconds, from the cells so far: each counts as many as its workload's requests."""
        self.done_work += 1
        spent = time.monotonic() - self.began
        return spent / self.done_work * max(0, self.all_work - self.done_work)

    # ---- all cells -----------------------------------------------------------------------

    def run_workload(self, plan, kinds):
        w = self.prepare(plan)
        if contender.Nothing in kinds:
            self.try_cell(contender.Nothing, w, plan, 0, 0)
        others = [k for k in kinds if k is not contender.Nothing]
        for run in range(self.o.runs):
            for share in plan.shares:
                turn = run % max(1, len(others))
                for kind in others[turn:] + others[:turn]:
                    self.try_cell(kind, w, plan, share, run)

    def try_cell(self, kind, w, plan, share, run):
        try:
            self.cell(kind, w, plan, share, run)
        except Failed as why:
            self.missing[f"{kind.name} {plan.name} {share:.0%}"] = str(why)
            say(f"  {kind.title}: {why}")

    def run(self, plans):
        kinds = []
        for kind in contender.ALL:
            why = kind.name not in self.o.contenders and "not asked for" or kind.unavailable()
            if why:
                self.missing[kind.name] = why
                say(f"{kind.title} is missing: {why}")
            else:
                kinds.append(kind)
        with_budget = len([k for k in kinds if k is not contender.Nothing])
        self.all_work = sum(len(kinds) - with_budget + len(p.shares) * with_budget * self.o.runs
                            for p in plans)
        self.began = time.monotonic()
        for plan in plans:
            self.run_workload(plan, kinds)
        if contender.Incipit in kinds:
            self.also_measure()

    def also_measure(self):
        rng = random.Random(f"{self.o.seed} sharing")
        try:
            self.sharing = sharing.measure(self.new_folder(), self.setup, rng,
                                           self.token_bytes)
        except Failed as why:
            self.missing["endings of one document"] = str(why)
        program = os.path.join(os.path.dirname(self.o.binary), "bench", "bench_slotfile")
        try:
            out = subprocess.run([program], stdout=subprocess.PIPE, check=True)
            self.slotfile = out.stdout.decode().splitlines()
        except (OSError, subprocess.CalledProcessError) as why:
            self.missing["bench_slotfile"] = f"not run: {why}"


def parse(arguments):
    p = argparse.ArgumentParser(description="the block store against the alternatives")
    p.add_argument("binary", nargs="?", default=os.path.join(ROOT, "build/release/incipit"))
    p.add_argument("--quick", action="store_true", help="a smaller version, under 5 minutes")
    p.add_argument("--engine", default="old",
                   help="old, new (tools/llama_server.py) or the path of a llama-server")
    p.add_argument("--model", choices=["mini", "tiny", "full"], default="tiny")
    p.add_argument("--workloads", default="W1,W2,W3", type=lambda s: s.split(","))
    p.add_argument("--contenders", default="nothing,stock,hearth,incipit",
                   type=lambda s: s.split(","))
    p.add_argument("--shares", type=lambda s: [float(x) for x in s.split(",")],
                   help="budgets as shares of the working set")
    p.add_argument("--clients", type=int, default=2)
    p.add_argument("--runs", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--control", action="store_true",
                   help="incipit once more without the restart, to tell the two apart")
    p.add_argument("--keep", action="store_true", help="keep folders (logs, stores)")
    p.add_argument("--out", help="results as FILE.json and FILE.md")
    o = p.parse_args(arguments)
    engine = o.engine if o.engine in ("old", "new") else "own"
    name = f"store-{'quick-' if o.quick else ''}{engine}-{o.model}"
    o.out = o.out or os.path.join(ROOT, "bench", "results", name)
    return o


def install(o):
    """llama-server, its models, and the one that only this bench needs."""
    llama_server.install()
    path = llama_server.model("mini")
    if o.model == "mini" and not os.path.exists(path):
        llama_server._run(llama_server._python("new"),
                          os.path.join(os.path.dirname(__file__), "mini.py"),
                          llama_server.model("full"), path)


def main(arguments):
    o = parse(arguments)
    try:
        install(o)
    except llama_server.Unavailable as why:
        print(f"skipped: no llama-server: {why}", file=sys.stderr)
        return 0
    folder = tempfile.mkdtemp(prefix="incipit-bench-")
    bench, status = Bench(o, folder), 0
    plans = [Plan(name, o.quick, o.clients) for name in o.workloads]
    for plan in plans:
        plan.shares = o.shares or plan.shares
    say(f"seed {o.seed}, engine {o.engine}, model {o.model}, {bench.token_bytes:,} bytes of "
        f"KV a token; {bench.setup.slots} slots, context {bench.setup.ctx:,}, batch "
        f"{bench.setup.batch}, {bench.setup.threads} thread")
    try:
        bench.run(plans)
    except KeyboardInterrupt:
        say("\nended early; what was measured is kept")
        status = 130
    except Failed as why:
        print(f"bench: {why}", file=sys.stderr)
        status = 1
    finally:
        if bench.cells:
            write_results(bench, o)
        if o.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
