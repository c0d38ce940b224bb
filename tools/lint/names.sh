#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Exported symbols start with the name of their file; functions that overflow, or keep
# hidden state, are not called. File names are unique among the sources.
set -uo pipefail

obj=build/release/obj
bad=0

# The prefixes of a file: tree_mark.c, one of several bodies of tree.h, exports tree_mark…
# and tree_…. Others need a reason, here and in the header.
prefixes() {
    local name
    name=$(basename "$1" .c)
    echo "$name"
    while [[ $name = *_* ]]; do
        name=${name%_*}
        echo "$name"
    done
    case $1 in
    src/io/loop.c) echo timer ;;                        # timers live in a loop
    src/wire/upstream.c) echo call ;;                   # calls go to an upstream
    src/engine/engine.c) echo replica restore_failure save_skip ;; # see engine.h
    src/engine/openai.c) echo engine ;;                 # the driver engine_openai
    src/engine/llamacpp*.c) echo engine llama lesson ;; # llamacpp_internal.h
    esac
}

for source in $(find src -name '*.c'); do
    object=$obj/${source%.c}.o
    [ -f "$object" ] || continue # main.c where there is nothing to link yet
    allowed=$(prefixes "$source")
    for symbol in $(nm -g --defined-only "$object" | awk '{ print $3 }'); do
        ok=0
        [ "$symbol" = main ] && ok=1
        for prefix in $allowed; do
            case $symbol in "$prefix"_* | "$prefix") ok=1 ;; esac
        done
        if [ $ok = 0 ]; then
            echo "$source: exports $symbol, expected" $allowed
            bad=1
        fi
    done
    for symbol in $(nm -u "$object" | awk '{ sub("@.*", "", $2); print $2 }'); do
        case $symbol in
        strcpy | strcat | strncat | sprintf | vsprintf | strtok | atoi | atol | gets | \
            gmtime | localtime | asctime | ctime | __strcpy_chk | __strcat_chk | \
            __sprintf_chk | __strncat_chk)
            echo "$source: calls $symbol"
            bad=1
            ;;
        esac
    done
done

# gcc compiles some of them away, so the text counts as well.
if grep -nE '\b(strcpy|strcat|strncat|sprintf|vsprintf|strtok|atoi|atol|gmtime|localtime|alloca)[[:space:]]*\(' \
    -r src include tests bench --include='*.[ch]'; then
    echo "(the functions above are forbidden)"
    bad=1
fi

twice=$(find src -name '*.c' -exec basename {} \; | sort | uniq -d)
if [ -n "$twice" ]; then
    echo "file names used twice: $twice"
    bad=1
fi
exit $bad
