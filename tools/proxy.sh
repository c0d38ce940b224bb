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

# apt warns that root cannot drop to its sandbox user here; the files are verified anyway.
download() {
    (cd "$1" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}" >/dev/null 2>&1)
}

mkdir -p "${dir%/*}"
exec 9>"$dir.lock"
flock 9 # others may want it at the same time
if [ ! -x "$dir/start" ]; then
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    download "$tmp" || { echo "Debian's $name cannot be downloaded" >&2; exit 1; }
    rm -rf "$dir"
    mkdir -p "$dir"
    for package in "$tmp"/*.deb; do dpkg-deb -x "$package" "$dir"; done
    libs=$(find "$dir" -name '*.so.*' -printf '%h\n' | sort -u | paste -sd:)
    printf '#!/bin/bash\nLD_LIBRARY_PATH=%q exec %q "$@"\n' \
        "$libs" "$dir/usr/sbin/$name" >"$dir/start.new"
    chmod 755 "$dir/start.new"
    "$dir/start.new" -v >/dev/null 2>&1 || { echo "Debian's $name does not run here" >&2; exit 1; }
    mv "$dir/start.new" "$dir/start"
fi
echo "$dir/start"
