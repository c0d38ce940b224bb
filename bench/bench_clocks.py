#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How far `incipit bench` is off: a service writes down when it had a request whole and
when it sent the first token; the program's TTFT should be the time between. Prints the
quantiles of the difference in ms, for a closed and an open loop.

    bench/bench_clocks.py [REQUESTS]
"""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
from stub_service import Stub, timed  # noqa: E402


def quantile(values, p):
    values = sorted(values)
    return values[max(0, -(-int(p * 100) * len(values) // 100) - 1)]


def measure(name, n, *flags, in_order=False):
    """Differences of each request where they come in order, else of equal ranks."""
    notes = {}
    stub = Stub(timed(0.02, 0.005, 8, notes))
    done = subprocess.run([os.path.join(ROOT, "build/release/incipit"), "bench", stub.url,
                           "--requests", str(n), "--json", "-", *flags],
                          capture_output=True, text=True, check=True)
    arm = json.loads(done.stdout)["arms"][0]
    stub.close()
    told = arm["samples"]["ttft_ms"]
    known = [(notes[i][1] - notes[i][0]) * 1e3 for i in range(n)]
    if not in_order:
        told, known = sorted(told), sorted(known)
    off = [a - b for a, b in zip(told, known)]
    print(f"{name}: {len(off)} requests, TTFT told - known, ms: "
          f"p50 {quantile(off, 0.5):+.3f}, p90 {quantile(off, 0.9):+.3f}, "
          f"p99 {quantile(off, 0.99):+.3f}; own lag p99 "
          f"{arm['quantiles']['lag_ms']['p99']:.3f}")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    measure("closed loop of 1", count, in_order=True)
    measure("closed loop of 8", count, "--concurrency", "8")
    measure("open loop, 50/s  ", count, "--rate", "50")
