#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Runs every check in tools/lint/; each prints what it found and exits 1 for it.
set -uo pipefail
cd "$(dirname "$0")/../.."

failed=0 n=0
for check in tools/lint/*.sh; do
    [ "$check" = tools/lint/all.sh ] && continue
    n=$((n + 1))
    if ! "$check"; then
        echo "lint: $check failed"
        failed=$((failed + 1))
    fi
done
echo "$((n - failed)) passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
