# SPDX-License-Identifier: MIT
"""The client libraries, in pinned versions under build/client-libraries.

They come from the registries that pip and npm are configured for. What cannot be had is
Unavailable, with the reason; nothing else depends on it.
"""

import fcntl
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOME = os.path.join(ROOT, "build", "client-libraries")
PYTHON = ("openai==3.57.0", "anthropic==2.15.0", "litellm==1.110.2")
NPM = "openai@6.49.0"   # the last major version that runs on Node.js 20


class Unavailable(Exception):
    """A library cannot be had here; the text says why."""


def _run(*command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, timeout=600)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{os.path.basename(command[0])} did not end") from None
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        said = [x for x in lines if x.startswith(("ERROR", "npm error"))] + lines + [str(done.returncode)]
        raise Unavailable(f"{os.path.basename(command[0])} failed: {said[0]}")


_failed = {}   # stamp: why


def _once(folder, stamp, work):
    """Does it unless it was done with the same stamp, or failed in this process."""
    if stamp in _failed:
        raise _failed[stamp]
    done = os.path.join(folder, "installed")
    os.makedirs(HOME, exist_ok=True)
    with open(os.path.join(HOME, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(done):
            with open(done) as f:
                if f.read() == stamp:
                    return
        shutil.rmtree(folder, ignore_errors=True)
        print(f"installing {stamp} …", flush=True)
        try:
            work()
        except Unavailable as why:
            _failed[stamp] = why
            raise
        with open(done, "w") as f:
            f.write(stamp)


def python():
    """A Python that has these packages."""
    folder = os.path.join(HOME, "python")
    program = os.path.join(folder, "bin", "python")

    def install():
        _run(sys.executable, "-m", "venv", folder)
        _run(program, "-m", "pip", "--disable-pip-version-check", "install", "-q",
             "--no-cache-dir", "--no-compile", "--retries", "1", "--only-binary", ":all:",
             *PYTHON)

    _once(folder, " ".join(PYTHON), install)
    return program


def node():
    """Node.js, and the folder whose node_modules has NPM."""
    programs = [shutil.which(p) for p in ("node", "npm")]
    if not all(programs):
        raise Unavailable("no node and npm")
    major = subprocess.run([programs[0], "-p", "process.versions.node.split('.')[0]"],
                           capture_output=True, text=True).stdout.strip()
    if not major.isdigit() or int(major) < 20:
        raise Unavailable(f"Node.js {major or '?'}, the openai package wants 20 or later")
    folder = os.path.join(HOME, "npm")

    def install():
        os.makedirs(folder)
        _run(programs[1], "install", "--prefix", folder, "--no-audit", "--no-fund",
             "--ignore-scripts", "--fetch-retries", "1", "--loglevel", "error", NPM)

    _once(folder, NPM, install)
    return programs[0], folder


def curl():
    program = shutil.which("curl")
    if not program:
        raise Unavailable("no curl")
    return program
