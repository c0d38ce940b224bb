# SPDX-License-Identifier: MIT
#
# tools/unpack.sh: for scripts that want a program of Debian's without installing it.

# lock DIR: one at a time works on it, until the script ends.
lock() {
    mkdir -p "${1%/*}"
    exec 9>"$1.lock"
    flock 9
}

# unpack DIR PACKAGE…: what the packages hold, in DIR and nothing else. Ends the script with
# status 1, and the reason, where they cannot be downloaded; the first one is named.
unpack() {
    local dir=$1 name=$2 package
    shift
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    # apt warns that root cannot drop to its sandbox user here; the files are verified anyway.
    (cd "$tmp" && apt-get download -qq -o APT::Sandbox::User=root "$@" >/dev/null 2>&1) ||
        { echo "Debian's $name cannot be downloaded" >&2; exit 1; }
    rm -rf "$dir"
    mkdir -p "$dir"
    for package in "$tmp"/*.deb; do dpkg-deb -x "$package" "$dir"; done
}
