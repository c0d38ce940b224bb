#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/proxy.sh nginx|haproxy: prints the path of that program. Where it is not installed,
# Debian's package is unpacked into build/: nothing is installed, and no service starts.
# Exit status 1, with the reason, where it cannot be had.
set -euo pipefail

name=${1:-}
case $name in
nginx) packages=(nginx) ;;
haproxy) packages=(haproxy liblua5.3-0 libpcre2-posix3) ;;
*) echo "usage: tools/proxy.sh nginx|haproxy" >&2; exit 1 ;;
esac
PATH=$PATH:/usr/sbin:/sbin
if [ -z "${UNPACK:-}" ] && command -v "$name"; then exit; fi # UNPACK=1: not an installed one
dir=$(cd "$(dirname "$0")/.." && pwd)/build/$name

. "$(dirname "$0")/unpack.sh"
lock "$dir"
if [ ! -x "$dir/start" ]; then
    unpack "$dir" "${packages[@]}"
    libs=$(find "$dir" -name '*.so.*' -printf '%h\n' | sort -u | paste -sd:)
    printf '#!/bin/bash\nLD_LIBRARY_PATH=%q exec %q "$@"\n' \
        "$libs" "$dir/usr/sbin/$name" >"$dir/start.new"
    chmod 755 "$dir/start.new"
    "$dir/start.new" -v >/dev/null 2>&1 || { echo "Debian's $name does not run here" >&2; exit 1; }
    mv "$dir/start.new" "$dir/start"
fi
echo "$dir/start"
