#!/bin/bash
# SPDX-License-Identifier: MIT
#
# conf/incipit.yaml and docs/configuration.md name the keys of the table in
# src/gateway/options.c, all of them and no others. (That the defaults agree as well is
# tested in tests/unit/test_options.c.)
set -uo pipefail

table=src/gateway/options.c conf=conf/incipit.yaml docs=docs/configuration.md
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

sed -nE 's/^    \{"([a-z_.]+)",.*/\1/p' $table | sort >"$tmp/table"
sed -nE 's/^\| `([a-z_.]+)` \|.*/\1/p' $docs | sort >"$tmp/docs"

# Nested maps give dotted names; a key that stands alone on its line opens a map. A key
# that is commented out has its # right before it.
awk '/^ *#?[a-z_]+:/ {
    depth = match($0, /[^ ]/) - 1
    key = $1; sub(/^#/, "", key); sub(/:.*/, "", key)
    while (n && indent[n] >= depth) n--
    name = ""
    for (i = 1; i <= n; i++) name = name group[i] "."
    if ($0 ~ /: *(#.*)?$/) { n++; indent[n] = depth; group[n] = key; next }
    print name key
}' $conf | sort >"$tmp/conf"

bad=0
[ -s "$tmp/table" ] || { echo "no keys found in $table"; bad=1; }
for other in conf docs; do
    if ! diff "$tmp/table" "$tmp/$other" >"$tmp/diff"; then
        echo "${!other}: differs from $table (< only there, > only here)"
        grep '^[<>]' "$tmp/diff"
        bad=1
    fi
done
exit $bad
