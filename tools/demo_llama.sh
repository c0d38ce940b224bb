#!/bin/bash
# SPDX-License-Identifier: MIT
#
# tools/demo_llama.sh BINARY [--json FILE]: the demo with a real engine. Makes sure that
# Python can make an environment of its own; the rest is in demo.py.
set -euo pipefail
cd "$(dirname "$0")/.."

can_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

can_venv || tools/deps.sh
can_venv || {
    echo "demo: python3 with venv and ensurepip is needed (Debian: python3-venv)" >&2
    exit 1
}
exec python3 tools/demo.py llama "$@"
