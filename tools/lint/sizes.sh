#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Functions of src/ have at most 70 lines, files 800, lines 90 columns. The layout that
# .clang-format decides makes functions easy to see: { and } stand in the first column.
set -uo pipefail

bad=0
if LC_ALL=C.UTF-8 grep -nE '^.{91,}' -r src include --include='*.[ch]'; then
    echo "(more than 90 columns)"
    bad=1
fi
find src include -name '*.[ch]' -print0 | xargs -0 awk '
function complain(line, what) { print FILENAME ":" line ": " what; bad = 1 }
FNR == 1 { start = 0 }
/^[a-z].*\(/ { name = $0 }
/^\{/ { start = FNR }
/^\}/ && start {
    if (FNR - start - 1 > 70) complain(start, FNR - start - 1 " lines, at most 70: " name)
    start = 0
}
FNR == 801 { complain(FNR, "more than 800 lines") }
END { exit bad }' || bad=1
exit $bad
