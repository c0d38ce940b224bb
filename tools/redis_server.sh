#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/redis_server.sh: prints the path of a redis-server for tests. Where none is
# installed, Debian's packages are unpacked into build/redis: nothing is installed, and no
# service starts. Exit status 1, with the reason, where it cannot be had.
set -euo pipefail

if command -v redis-server; then exit; fi
dir=$(cd "$(dirname "$0")/.." && pwd)/build/redis
packages=(redis-tools libjemalloc2 liblua5.1-0 liblzf1 lua-cjson lua-bitop libatomic1)

# apt warns that root cannot drop to its sandbox user here; the files are verified anyway.
download() {
    (cd "$1" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}" >/dev/null 2>&1)
}

mkdir -p "${dir%/*}"
exec 9>"$dir.lock"
flock 9 # others may want it at the same time
if [ ! -x "$dir/redis-server" ]; then
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    download "$tmp" || { echo "Debian's redis-tools cannot be downloaded" >&2; exit 1; }
    rm -rf "$dir"
    mkdir -p "$dir"
    for package in "$tmp"/*.deb; do dpkg-deb -x "$package" "$dir"; done
    # The server is the program redis-check-rdb under another name.
    lib=$(dirname "$(find "$dir" -name 'liblua5.1.so.0' -print -quit)")
    printf '#!/bin/bash\nLD_LIBRARY_PATH=%q exec -a redis-server %q "$@"\n' \
        "$lib" "$dir/usr/bin/redis-check-rdb" >"$dir/start"
    chmod 755 "$dir/start"
    "$dir/start" --version >/dev/null || { echo "Debian's redis-server does not run here" >&2; exit 1; }
    mv "$dir/start" "$dir/redis-server"
fi
echo "$dir/redis-server"
