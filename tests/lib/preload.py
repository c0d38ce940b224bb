# SPDX-License-Identifier: MIT
"""Libraries that stand between a gateway and the C library (LD_PRELOAD)."""

import os
import subprocess

from harness import ROOT


class Unavailable(Exception):
    """The library cannot be built or loaded here; the text says why."""


def build(source):
    """The library, built where it is older than its source (below tests/)."""
    path = os.path.join(ROOT, "tests", source)
    out = os.path.join(ROOT, "build", "preload", os.path.splitext(source)[0] + ".so")
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(path):
        os.makedirs(os.path.dirname(out), exist_ok=True)
        new = f"{out}.{os.getpid()}"
        done = subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror",
                               "-D_GNU_SOURCE", "-o", new, path], capture_output=True,
                              text=True, check=False)
        if done.returncode:
            raise Unavailable(f"{source}: {done.stderr}")
        os.replace(new, out)
    return out


def is_sanitized(program):
    """The sanitizers want to be first; such a library as well."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return "asan" in text.stdout
