#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The metrics of the program and those of docs/metrics.md are the same.
set -uo pipefail

diff <(grep -oE '"incipit_[a-z_]+"' src/gateway/metrics.c | tr -d '"' | sort -u) \
     <(grep -oE '^\| `incipit_[a-z_]+`' docs/metrics.md | tr -d '|` ' | sort -u) ||
    { echo "(< in src/gateway/metrics.c, > in docs/metrics.md)"; exit 1; }
