#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/cover.sh OBJDIR: share of executed lines of each file in src/, from gcov's data.
set -euo pipefail

find "$1/src" -name '*.gcda' -print0 | xargs -0 gcov -n -r 2>/dev/null | awk '
    /^File / { gsub("\x27", ""); file = $2 }
    /^Lines executed:/ && file ~ /^src\// {
        split($0, part, /[:% ]+/)
        percent = part[3]; lines = part[5]
        printf "%6.1f %%  %5d  %s\n", percent, lines, file
        all += lines; hit += lines * percent / 100
        file = ""
    }
    END { if (all) printf "%6.1f %%  %5d  all\n", 100 * hit / all, all }' | sort -k4
