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

. "$(dirname "$0")/unpack.sh"
lock "$dir"
if [ ! -x "$dir/redis-server" ]; then
    unpack "$dir" "${packages[@]}"
    # The server is the program redis-check-rdb under another name.
    lib=$(dirname "$(find "$dir" -name 'liblua5.1.so.0' -print -quit)")
    printf '#!/bin/bash\nLD_LIBRARY_PATH=%q exec -a redis-server %q "$@"\n' \
        "$lib" "$dir/usr/bin/redis-check-rdb" >"$dir/start"
    chmod 755 "$dir/start"
    "$dir/start" --version >/dev/null || { echo "Debian's redis-server does not run here" >&2; exit 1; }
    mv "$dir/start" "$dir/redis-server"
fi
echo "$dir/redis-server"
