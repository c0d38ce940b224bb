#!/bin/bash
# SPDX-License-Identifier: MIT
#
# docs/field-reports.md has a row for each family, every test that it names exists, and for
# every row with tests tests/mutants.py has a fault that they must see, and whose place is there.
set -uo pipefail

docs=docs/field-reports.md
bad=0

for n in $(seq -w 1 53); do
    grep -q "^| K$n " $docs || { echo "$docs: no row for K$n"; bad=1; }
done
for n in $(seq -w 1 44); do
    grep -qE "^\| (H[0-9]+, )?H$n[ ,]" $docs || { echo "$docs: no row for H$n"; bad=1; }
done
while IFS=: read -r file name; do
    source=$(ls tests/unit/"$file".c tests/e2e/"$file".py 2>/dev/null)
    if [ -z "$source" ] || ! grep -qE "\b$name\b" $source; then
        echo "$docs: there is no test $file:$name"
        bad=1
    fi
done < <(grep -oE '`test_[a-z0-9_]+:[A-Za-z0-9_]+`' $docs | tr -d '`' | sort -u)

# Names of a table row stand in its first cell; of a fault, in the first text of its row.
ids='[KH][0-9][0-9]|CVE-[0-9]+-[0-9]+'
faults=$(sed -nE 's/^    \("([^"]+)", .*/\1/p' tests/mutants.py | tr ' ' '\n' | sort -u)
while read -r row; do
    grep -qx "$row" <<<"$faults" || { echo "tests/mutants.py: no fault for $row"; bad=1; }
done < <(grep '`test_' $docs | cut -d'|' -f2 | grep -oE "$ids" | sort -u)
python3 -B tools/mutants.py --fit || bad=1
exit $bad
