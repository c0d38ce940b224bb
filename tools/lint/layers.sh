#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Includes go one way: a folder may include itself and folders of a lower rank. Each
# foreign library is visible in one folder only.
set -uo pipefail

find src include -name '*.[ch]' -print0 | xargs -0 awk '
BEGIN {
    n = split("base:0 proto:1 io:1 prefix:1 route:2 store:2 wire:2 engine:3 lab:3 load:3 gateway:4 cmd:5",
              pair, " ")
    for (i = 1; i <= n; i++) { split(pair[i], p, ":"); rank[p[1]] = p[2] }

    owner["event2/"] = "io"
    owner["openssl/"] = "io"
    owner["zlib.h"] = "proto"
    owner["llhttp.h"] = "proto"
    owner["xxhash.h"] = "prefix"
    owner["yaml.h"] = "gateway"
    owner["hiredis"] = "store"
    owner["nettle/"] = "gateway"
    # `incipit version` prints the versions of the libraries.
    exception["src/cmd/cmd_version.c"] = 1
}
FNR == 1 {
    split(FILENAME, path, "/")
    folder = path[2]
    if (!(folder in rank)) { print FILENAME ": the folder " folder " has no rank"; bad = 1 }
}
/^#[ \t]*include[ \t]*"/ {
    split($0, quote, "\"")
    split(quote[2], part, "/")
    if (!(part[1] in rank)) next
    if (part[1] != folder && rank[part[1]] >= rank[folder]) {
        print FILENAME ":" FNR ": " folder " must not include " quote[2]
        bad = 1
    }
}
/^#[ \t]*include[ \t]*[<"]/ && !(FILENAME in exception) {
    split($0, part, /[<">]/)
    for (lib in owner)
        if (index(part[2], lib) == 1 && folder != owner[lib]) {
            print FILENAME ":" FNR ": " part[2] " belongs into " owner[lib] "/ alone"
            bad = 1
        }
}
END { exit bad }'
