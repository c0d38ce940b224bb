#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a trace of this folder from a trace of the Mooncake project.

    convert.py conversation_trace.jsonl[.gz] > mooncake_conversation.txt

Keeps the block ids alone: one request a line, runs of ids as "first-last".
"""

import gzip
import json
import sys


def ranges(ids):
    """[3, 4, 5, 9] → "3-5,9"."""
    runs = []
    for i in ids:
        if runs and runs[-1][1] + 1 == i:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(str(a) if a == z else f"{a}-{z}" for a, z in runs)


def main(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as lines:
        for line in lines:
            print(ranges(json.loads(line)["hash_ids"]))


main(sys.argv[1])
