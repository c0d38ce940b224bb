# SPDX-License-Identifier: MIT
"""Figures of one cell: one contender, one workload, one budget, one run."""

import math


def quantile(values, q):
    """Nearest rank; None of nothing."""
    v = sorted(values)
    return v[max(0, math.ceil(q * len(v)) - 1)] if v else None


def round_figures(answers, wall_s):
    good = [a for a in answers if not a.error]
    ttft = [a.ttft_ms for a in good if a.ttft_ms is not None]
    prompt = sum(a.prompt_tokens for a in good)
    cached = sum(a.cached_tokens for a in good)
    errors = sorted({a.error for a in answers if a.error})
    return {"requests": len(answers), "errors": len(answers) - len(good),
            "what_errors": errors[:3], "prompt_tokens": prompt, "cached_tokens": cached,
            "hit_rate": cached / prompt if prompt else None,
            "ttft_p50_ms": quantile(ttft, 0.5), "ttft_p95_ms": quantile(ttft, 0.95),
            "ttft_n": len(ttft), "wall_s": wall_s}


def cell_figures(rounds, held, cpu_of_others, counters):
    """held: bytes at the end of the main round: growth of the resident memory of all its
    processes, and what lies in files."""
    out = {name: round_figures(*r) for name, r in rounds.items()}
    return {**out, **held, "cpu_of_others": cpu_of_others, "counters": counters}


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def progress_line(cell, left_s):
    m = cell["main"]
    errors = f", {m['errors']} errors ({m['what_errors'][0]})" if m["errors"] else ""
    budget = f"{100 * cell['share']:3.0f} %" if cell["share"] else "     "
    ms = (f"{m['ttft_p50_ms']:,.0f}/{m['ttft_p95_ms']:,.0f} ms" if m["ttft_n"] else "-")
    restart = "".join(f", {n} {percent(cell[n]['hit_rate'])}"
                      for n in ("before", "after") if n in cell)
    return (f"  {cell['workload']} {budget} {cell['contender']:8} hit {percent(m['hit_rate']):>7}"
            f"  TTFT {ms:>13}{restart}  {m['wall_s']:4.0f} s{errors}"
            f"  [about {left_s / 60:.0f} min left]")
