#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The layout is what .clang-format says: `make format` puts it right.
set -uo pipefail

dirs=()
for d in include src tests bench; do [ -d $d ] && dirs+=("$d"); done
find "${dirs[@]}" -name '*.[ch]' -print0 | xargs -0 clang-format --dry-run -Werror
