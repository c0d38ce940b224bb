#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/fuzz.sh DIR SECONDS: runs each fuzz target in DIR for so many seconds, one after
# the other. New inputs collect under build/fuzz/found and stay out of the seed corpus;
# an input that breaks something is kept as build/fuzz/crash-*: fix, then add it there.
set -uo pipefail

dir=$1 seconds=$2 failed=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    found=$dir/found/${name#fuzz_}
    mkdir -p "$found" "tests/fuzz/corpus/${name#fuzz_}"
    echo "== $name, $seconds s"
    "$dir/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$dir/crash-${name#fuzz_}-" -print_final_stats=1 \
        "$found" "tests/fuzz/corpus/${name#fuzz_}" >"$dir/$name.log" 2>&1
    status=$?
    if [ $status -ne 0 ]; then
        failed=$((failed + 1))
        tail -40 "$dir/$name.log"
    fi
    grep -E '^(stat::number_of_executed_units|stat::average_exec|artifact|Test unit)' \
        "$dir/$name.log"
done
echo "$failed fuzz targets failed"
[ $failed -eq 0 ]
