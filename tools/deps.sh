#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/deps.sh [DIR]: makes sure that the compilers and libraries are installed and that
# the sources of llhttp lie in DIR (build/llhttp). Does nothing, and needs no network,
# where both are there. Packages are Debian's (12 and later).
set -euo pipefail

dir=${1:-build/llhttp}
packages=(gcc clang make pkg-config binutils clang-format libc6-dev libevent-dev
    libssl-dev openssl zlib1g-dev
    libjansson-dev libxxhash-dev libyaml-dev libhiredis-dev nettle-dev libcmocka-dev
    python3 python3-venv)

say() { echo "deps: $*" >&2; }

# As root, or with sudo where it asks for no password; otherwise a person has to do it.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# The run-time library of the sanitizers belongs to one version of clang.
clang_rt() {
    local v
    v=$(clang -dumpversion 2>/dev/null | cut -d. -f1) || true
    [ -n "$v" ] || v=$(apt-cache depends clang 2>/dev/null |
        sed -nE 's/^ *Depends: clang-([0-9]+)$/\1/p' | head -1)
    if [ "${v:-14}" -lt 14 ]; then echo "libclang-common-$v-dev"; else echo "libclang-rt-${v:-14}-dev"; fi
}

missing() {
    local p
    for p in "${packages[@]}" "$(clang_rt)"; do installed "$p" || echo "$p"; done
}

install_packages() {
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        say "this is no Debian; make sure these are there: ${packages[*]}"
        return
    fi
    [ -n "$(missing)" ] || return 0
    if ! as_root true; then
        say "packages are missing. As root, run:"
        say "  apt-get update && apt-get install -y --no-install-recommends" $(missing)
        exit 1
    fi
    say "installing:" $(missing)
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $(missing) >/dev/null
}

# Debian ships llhttp's generated C sources inside node-llhttp, whose dependencies
# (nodejs) we do not want: take the one package apart instead of installing it.
fetch_llhttp() {
    [ -f "$dir/llhttp.c" ] && [ -f "$dir/include/llhttp.h" ] && return
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    download_llhttp "$tmp" || { as_root apt-get update -qq && download_llhttp "$tmp"; } || {
        say "cannot download the package node-llhttp (llhttp's C sources). Put llhttp.c, api.c"
        say "and http.c into $dir/ and llhttp.h into $dir/include/, then run make again."
        exit 1
    }
    dpkg-deb -x "$tmp"/node-llhttp_*.deb "$tmp/x"
    mkdir -p "$dir/include"
    local f to
    for f in api.c http.c llhttp.h llhttp.c; do # llhttp.c last: it says that all is there
        case $f in *.h) to=$dir/include ;; *) to=$dir ;; esac
        cp "$(find "$tmp/x" -name "$f" -print -quit)" "$to/$f"
    done
}

# apt warns that root cannot drop to its sandbox user here; the file is verified anyway.
download_llhttp() {
    (cd "$1" && apt-get download -qq -o APT::Sandbox::User=root node-llhttp >/dev/null 2>&1)
}

install_packages
fetch_llhttp
