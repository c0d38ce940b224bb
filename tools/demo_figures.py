# SPDX-License-Identifier: MIT
"""What the demo's requests took and reused, and the table of it."""

import math
import os
import statistics

from demo_process import Failed


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


def confirmed(totals):
    """Of several lives of a gateway: errors of each are its own."""
    known = [t for t in totals if t["n"]]
    half = math.sqrt(sum(((t["high"] - t["low"]) / 2) ** 2 for t in known))
    return {"saved_ms": sum(t["saved_ms"] for t in known), "saved_half_ms": half,
            "saved_n": sum(t["n"] for t in known)}


def figures(model, stock, incipit, told=None):
    """told: what a gateway that looked on has foretold."""
    out = {"engine": incipit.parts[-1]["replicas"][0]["build"], "model": model,
           "threads": os.cpu_count(), "stock": figures_of(stock),
           "incipit": figures_of(incipit), "told": told}
    mine, totals = out["incipit"], [p["total"] for p in incipit.parts]
    store = incipit.parts[-1]["store"]
    for name in ("resident_tokens", "restored_tokens"):
        mine[name] = sum(t[name] for t in totals)
    for name in ("restores", "saves", "save_failures"):
        mine[name] = sum(p["replicas"][0][name] for p in incipit.parts)
    mine["saves_skipped"] = sum(sum(p["replicas"][0]["saves_skipped"].values())
                                for p in incipit.parts)
    mine |= confirmed([t["savings"]["confirmed"] for t in totals])
    mine["restore_failures"] = sum(sum(p["replicas"][0]["restore_failures"].values())
                                   for p in incipit.parts)
    mine["misses"] = {k: n for k in totals[0]["misses"]
                      if (n := sum(t["misses"][k] for t in totals))}
    mine["blocks_stored"], mine["bytes_stored"] = store["blocks"], store["bytes"]
    out["stock"]["resident_tokens"] = out["stock"]["reused_tokens"]
    out["saved_measured_ms"] = out["stock"]["ttft_sum_ms"] - mine["ttft_sum_ms"]
    out["saved_measured_n"] = mine["streamed"]
    out["equal_answers"] = sum(a["text"] == b["text"]
                               for a, b in zip(stock.results, incipit.results))
    counted = mine["resident_tokens"] + mine["restored_tokens"]
    if counted != mine["reused_tokens"]:
        raise Failed(f"the gateway counted {counted} reused tokens, its clients "
                     f"{mine['reused_tokens']}")
    return out


# ---- the table ---------------------------------------------------------------------------

def ms(value):
    return f"{value:,.0f} ms"


def spread_text(s):
    if not s["n"]:
        return "- (n 0)"
    return f"{s['median_ms']:,.0f} ({s['min_ms']:,.0f} to {s['max_ms']:,.0f}, n {s['n']})"


def share(part, whole):
    return f"{part:,} ({100 * part / whole:.0f} %)"


def table(f, titles):
    """Rows of three texts; the first row has the titles."""
    s, g = f["stock"], f["incipit"]
    both = lambda name, show=str: (show(s[name]), show(g[name]))  # noqa: E731
    after = "prompt_tokens_after_restart", "reused_tokens_after_restart"
    estimate = (f"{ms(g['saved_ms'])} ± {ms(g['saved_half_ms'])}" if g["saved_n"]
                else "-")
    told = [("  as --observe foretold, without a restart",
             *(f"{100 * f['told'][k]:.0f} %" for k in ("engine_share", "store_share")))
            ] if f["told"] else []
    return [
        ("", *titles),
        ("requests", *both("requests")),
        ("  of these streamed, so with a TTFT", *both("streamed")),
        ("prompt tokens", *both("prompt_tokens", "{:,}".format)),
        ("tokens reused", *(share(x["reused_tokens"], x["prompt_tokens"]) for x in (s, g))),
        *told,
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


def table_text(rows):
    width = [max(len(r[i]) for r in rows) for i in range(3)]
    lines = [f"{a:{width[0]}}  {b:>{width[1]}}  {c:>{width[2]}}" for a, b, c in rows]
    return "\n".join([lines[0], "-" * (sum(width) + 4), *lines[1:]])
