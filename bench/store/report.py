# SPDX-License-Identifier: MIT
"""Results as JSON, and as a table that says which targets were met."""

import datetime
import json
import os
import statistics

from figures import percent

TITLES = {"nothing": "no cache", "stock": "stock llama-server", "hearth": "hearth-llm 0.1.1",
          "incipit": "incipit"}


def middle(values):
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def mean_of(cells, part, key):
    return middle([c[part][key] for c in cells if part in c])


def mb(value):
    return "-" if not value else f"{value / 1e6:,.1f}"


def ms(value):
    return "-" if value is None else f"{value:,.0f}"


class Table:
    """The cells of one bench, several runs of the same as one row."""

    def __init__(self, cells):
        self.groups = {}
        for c in cells:
            key = c["workload"], c["share"], c["contender"]
            self.groups.setdefault(key, []).append(c)

    def get(self, workload, share, contender):
        return self.groups.get((workload, share, contender), [])

    def rate(self, workload, share, contender, part="main"):
        return mean_of(self.get(workload, share, contender), part, "hit_rate")

    def shares(self, workload):
        return sorted({s for w, s, _ in self.groups if w == workload and s})

    def row(self, workload, share, contender):
        cells = self.get(workload, share, contender)
        rates = [c["main"]["hit_rate"] for c in cells]
        spread = ""
        if len(cells) > 1:
            spread = f" ({percent(min(rates))} to {percent(max(rates))})"
        first = cells[0]
        budget = mb(first["ram_budget"]) if share else "-"
        if share and contender == "hearth":
            budget = mb(first["disk_budget"])
        elif share and first["disk_budget"] != first["ram_budget"] and contender == "incipit":
            budget += " + " + mb(first["disk_budget"])
        errors = sum(c["main"]["errors"] for c in cells)
        return [f"{100 * share:.0f} %" if share else "-", budget, TITLES[contender],
                percent(middle(rates)) + spread,
                ms(mean_of(cells, "main", "ttft_p50_ms")),
                ms(mean_of(cells, "main", "ttft_p95_ms")),
                f"{sum(c['main']['ttft_n'] for c in cells):,}" +
                (f" ({errors} failed)" if errors else ""),
                percent(mean_of(cells, "before", "hit_rate")),
                percent(mean_of(cells, "after", "hit_rate")),
                mb(middle([c["rss_growth"] for c in cells])),
                mb(middle([c["disk_bytes"] for c in cells])),
                percent(middle([c["cpu_of_others"] for c in cells]))]

    def rows(self, workload):
        keys = [k for k in self.groups if k[0] == workload]
        order = list(TITLES)
        for key in sorted(keys, key=lambda k: (k[1], order.index(k[2]))):
            yield self.row(*key)


HEAD = ["budget", "MB", "contender", "prompt tokens reused", "TTFT p50 ms", "p95 ms", "n",
        "next request each", "the same after a restart", "RAM grown MB", "on disk MB",
        "CPU of others"]


def markdown(rows):
    line = lambda r: "| " + " | ".join(r) + " |"  # noqa: E731
    return "\n".join([line(HEAD), "|" + "---|" * len(HEAD), *(line(r) for r in rows)])


# ---- targets -----------------------------------------------------------------------------

def verdict(ok, text):
    word = "missing" if ok is None else "met" if ok else "NOT met"
    return f"* {word}: {text}"


def compare(table, workload, share, text, holds):
    a, b = (table.rate(workload, share, n) for n in ("incipit", "stock"))
    if a is None or b is None:
        return verdict(None, f"{workload} at {share:.0%}: {text}")
    return verdict(holds(a, b), f"{workload} at {share:.0%}: {text} "
                                f"(incipit {percent(a)}, stock {percent(b)})")


def restart(table, workload, share):
    text = f"{workload} at {share:.0%}: after a restart of everything 95 % of before"
    b, a = (table.rate(workload, share, "incipit", part) for part in ("before", "after"))
    if not b or a is None:
        return verdict(None, text)
    stock = [percent(table.rate(workload, share, "stock", p)) for p in ("before", "after")]
    control = table.rate(workload, share, "incipit", "without_restart")
    aside = f"; the same round without a restart {percent(control)}" if control else ""
    return verdict(a >= 0.95 * b, f"{text} (incipit {percent(b)} and {percent(a)}{aside}; "
                                  f"stock {stock[0]} and {stock[1]})")


def targets(table):
    for workload in ("W1", "W2", "W3"):
        for share in table.shares(workload):
            yield compare(table, workload, share, "at most 2 points below stock",
                          lambda a, b: a >= b - 0.02)
    for share in table.shares("W2")[:1]:
        yield compare(table, "W2", share, "5 points above stock", lambda a, b: a >= b + 0.05)
    for share in table.shares("W3"):
        yield compare(table, "W3", share, "twice stock", lambda a, b: a >= 2 * b)
    for workload in ("W1", "W2", "W3"):
        for share in table.shares(workload)[-1:]:
            yield restart(table, workload, share)


# ---- all of it ---------------------------------------------------------------------------

def machine():
    name = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
        for line in f:
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{os.cpu_count()} x {name}"


def sharing_text(s):
    if not s:
        return "missing"
    return (f"{s['endings']} endings of one document of {s['document_tokens']:,} tokens: "
            f"{s['stored_bytes'] / 1e6:.2f} MB stored, {s['bound_bytes'] / 1e6:.2f} MB are "
            f"document + each ending and a block, {s['whole_bytes'] / 1e6:.2f} MB all prompts "
            "whole")


def document(bench, o):
    table, setup = Table(bench.cells), bench.setup
    out = [f"# The block store on llama-server, {datetime.date.today()}", "",
           f"Engine {setup.build_name}, model {setup.model} ({bench.token_bytes:,} bytes of KV "
           f"a token), {setup.slots} slots (hearth: 1), context {setup.ctx:,}, batch "
           f"{setup.batch}, {setup.threads} thread(s); {o.clients} clients in a closed loop; "
           f"seed {o.seed}, {o.runs} run(s) of each cell; {machine()}.", "",
           "How it is measured and what the columns mean: `bench/README.md`."]
    for name, ws in bench.working_sets.items():
        rows = list(table.rows(name))
        if not rows:
            continue
        out += ["", f"## {name}: {ws['title']}", "",
                f"{ws['requests']:,} requests. Working set {ws['tokens']:,} tokens, "
                f"{ws['bytes'] / 1e6:.1f} MB. At most {percent(ws['reachable'])} of the prompt "
                "tokens can be reused, with room for everything.", "", markdown(rows)]
    out += ["", "## Targets", "", *targets(table), "", "## Also measured", "",
            f"* {sharing_text(bench.sharing)}"]
    out += ["", "```", *bench.slotfile, "```"] if bench.slotfile else []
    if bench.missing:
        out += ["", "## Missing", "", *(f"* {k}: {why}" for k, why in bench.missing.items())]
    return "\n".join(out) + "\n"


def write_results(bench, o):
    os.makedirs(os.path.dirname(os.path.abspath(o.out)), exist_ok=True)
    setup = bench.setup
    doc = {"date": str(datetime.date.today()), "machine": machine(), "seed": o.seed,
           "runs": o.runs, "clients": o.clients, "quick": o.quick,
           "engine": setup.build_name, "model": setup.model, "slots": setup.slots,
           "context": setup.ctx, "batch": setup.batch, "threads": setup.threads,
           "token_bytes": bench.token_bytes, "working_sets": bench.working_sets,
           "cells": bench.cells, "sharing": bench.sharing, "slotfile": bench.slotfile,
           "missing": bench.missing}
    with open(o.out + ".json", "w", encoding="utf-8") as f:
        json.dump(doc, f, indent=1)
        f.write("\n")
    text = document(bench, o)
    with open(o.out + ".md", "w", encoding="utf-8") as f:
        f.write(text)
    print(f"\n{text}\nwritten to {o.out}.json and .md", flush=True)
