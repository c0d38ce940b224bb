#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Each header compiles alone with both compilers, so it includes what it needs; it opens
# with its licence and is guarded by its own name.
set -uo pipefail

bad=0
for header in $(find include -name '*.h' | sort); do
    for cc in gcc clang; do
        $cc -std=gnu11 -D_GNU_SOURCE -Iinclude -isystem build/llhttp/include \
            -Wall -Wextra -Werror -fsyntax-only -x c \
            -include "${header#include/}" /dev/null || bad=1
    done
    guard=INCIPIT_$(echo "${header#include/}" | tr 'a-z/.-' 'A-Z___')
    grep -q "^#ifndef $guard\$" "$header" || { echo "$header: the guard is not $guard"; bad=1; }
done
for file in $(find src include tests bench -name '*.[ch]'); do
    head -1 "$file" | grep -q 'SPDX-License-Identifier: MIT' ||
        { echo "$file: the first line is no licence"; bad=1; }
done
exit $bad
