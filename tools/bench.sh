#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/bench.sh DIR bench/bench_X.c…: runs DIR/bench_X and keeps what it prints, with
# the machine it ran on, in bench/results/X.txt.
set -euo pipefail

dir=$1
shift
mkdir -p bench/results
for source in "$@"; do
    name=$(basename "$source" .c)
    result=bench/results/${name#bench_}.txt
    {
        echo "# $(date -u +%F), $(git rev-parse --short HEAD 2>/dev/null || echo no git)"
        echo "# $(nproc) x $(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -1)"
        "$dir/$name"
    } | tee "$result.tmp"
    mv "$result.tmp" "$result"
done
