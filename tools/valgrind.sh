#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/valgrind.sh: prints the path of a valgrind that can check programs here. Where none
# is installed, Debian's packages are unpacked into build/valgrind: nothing is installed.
# Exit status 1, with the reason, where it cannot be had or does not work.
set -euo pipefail

dir=$(cd "$(dirname "$0")/.." && pwd)/build/valgrind

. "$(dirname "$0")/unpack.sh"

# Names in the dynamic linker are needed (libc6-dbg); without them it does not start.
works() {
    "$1" -q /bin/true >/dev/null 2>&1
}

found=$(command -v valgrind || true)
if [ -n "$found" ] && works "$found"; then
    echo "$found"
    exit
fi
lock "$dir"
if [ ! -x "$dir/valgrind" ]; then
    unpack "$dir" valgrind libc6-dbg
    printf '#!/bin/bash\nVALGRIND_LIB=%q exec %q --extra-debuginfo-path=%q "$@"\n' \
        "$dir/usr/libexec/valgrind" "$dir/usr/bin/valgrind.bin" "$dir/usr/lib/debug" \
        >"$dir/start"
    chmod 755 "$dir/start"
    works "$dir/start" || { echo "Debian's valgrind does not run here" >&2; exit 1; }
    mv "$dir/start" "$dir/valgrind"
fi
echo "$dir/valgrind"
