# SPDX-License-Identifier: MIT
"""The n-th call fails: what a gateway does when one system call, or one large allocation,
does not work, for every one that it makes.

Two scenes are played with each call of each kind failing once: a gateway that starts over
a store and ends ("start"), and one that runs ("serve": a document that is computed, saved,
displaced, restored and streamed, and a third API). For n = 1, 2, ... until the scene is
over before its n-th call of that kind. Which calls are tried is drawn where all are too
many.
"""

import collections
import errno
import http.client
import json
import mmap
import os
import random
import shutil
import struct
import sys
import tempfile
import time
import traceback

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib")]

import engines
import preload
from harness import Client, Gateway, request_bytes, wait_until
from lab_engine import answer_text
from load import CONTEXT, Texts, right_answer, text_so_far

PATIENCE_S = 60
WEIGHTS = 1
LONG = json.dumps({"prompt": "long " * 60000, "max_tokens": 4}).encode()

KINDS = {  # in the order of faultcalls.c: what a kernel may answer
    "recv": (errno.ECONNRESET,), "send": (errno.EPIPE, errno.ECONNRESET),
    "read": (errno.EIO,), "write": (errno.ENOSPC, errno.EIO),
    "connect": (errno.EADDRNOTAVAIL, errno.ECONNREFUSED), "connected": (errno.ETIMEDOUT,),
    "accept": (errno.EMFILE, errno.ECONNABORTED), "epoll_ctl": (errno.ENOSPC, errno.ENOMEM),
    "socket": (errno.EMFILE, errno.ENOBUFS), "timerfd": (errno.EMFILE,),
    "eventfd": (errno.EMFILE,), "open": (errno.EMFILE, errno.EACCES), "sync": (errno.EIO,),
    "stat": (errno.EIO,), "mmap": (errno.ENOMEM,), "thread": (errno.EAGAIN,),
    "malloc": (errno.ENOMEM,),
}
RULE = struct.Struct("=IIII")
# Whose failure ends the process, with a word about it: base/mem.h.
ENDS = {"malloc": "incipit: out of memory"}


class Control:
    """Which call fails, and how many there were; it outlives the gateway."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "faultcalls")
        with open(self.path, "wb") as f:
            f.truncate(len(KINDS) * RULE.size)
        with open(self.path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 0)
        self.env = {"LD_PRELOAD": preload.build("faults/faultcalls.c"), "FAULTCALLS": self.path}

    def arm(self, kind=None, n=0, error=0):
        """From now on calls are counted from 1; the n-th of that kind fails."""
        self.map[:] = bytes(len(self.map))
        if kind:
            RULE.pack_into(self.map, list(KINDS).index(kind) * RULE.size, error, n, 0, 0)

    def calls(self):
        return {kind: RULE.unpack_from(self.map, i * RULE.size)[2]
                for i, kind in enumerate(KINDS)}

    def hit(self):
        return any(RULE.unpack_from(self.map, i * RULE.size)[3] for i in range(len(KINDS)))


class Wrong(Exception):
    """What must never happen."""


class Ended(Exception):
    """The gateway has ended, as it may."""


class Stage:
    """An engine, a store, and a gateway that is started when one is needed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="incipit-calls-")
        self.slots = os.path.join(self.folder, "slots")
        os.mkdir(self.slots, 0o700)
        self.control = Control(self.folder)
        self.engine = engines.Lab(self.slots, slots=1, context=CONTEXT, seed=WEIGHTS).start()
        self.texts = Texts(self.rng)
        self.gateway = Gateway(self.folder, self.engine.url,
                               {"block_tokens": 16, "log": {"level": "info"},
                                "store": {"retry": "50ms", "max_bytes": 4 << 20,
                                          "ram_bytes": 1 << 20},
                                "timeouts": {"connect": "1s", "queue": "20s", "slot": "5s",
                                             "drain": "5s"}},
                               env=self.control.env)
        self.files = None
        self.log_from = 0
        self.counted = {}                   # calls of the last scene, by kind
        self.seen = collections.Counter()

    def close(self):
        self.control.arm()
        code = self.gateway.stop()
        self.engine.stop()
        shutil.rmtree(self.folder, True)
        return code

    def log(self):
        return self.gateway.output[self.log_from:]

    # ---- what is asked --------------------------------------------------------------------

    def ask(self, question, must=False):
        """Right, or refused, or cut: never wrong, and never without an end."""
        try:
            with Client(self.gateway.port, PATIENCE_S) as client:
                client.send(question.bytes())
                answer = client.read_answer("POST")
        except TimeoutError:
            raise Wrong(f"nothing within {PATIENCE_S} s") from None
        except (OSError, EOFError) as error:
            return self._failed(must, repr(error))
        if answer.status != 200:
            if answer.complete and b'"error"' not in answer.body:
                raise Wrong(f"{answer.status} without a reason: {answer.body[:200]}")
            return self._failed(must, f"{answer.status} {answer.body[:200]}")
        if question.stream:
            text, ended = text_so_far(question.path, answer.body)
            whole = answer.complete and ended
        else:
            whole = answer.complete
            text = answer_text(question.path, answer.json()) if whole else ""
        right = right_answer(question, WEIGHTS)
        if not (text == right if whole else right.startswith(text)):
            raise Wrong(f"WRONG ANSWER {text!r} instead of {right!r}")
        return True if whole else self._failed(must, f"cut: {answer.body[-200:]}")

    def ask_too_long(self):
        """A body for which memory is asked several times; the engine refuses it."""
        try:
            with Client(self.gateway.port, PATIENCE_S) as client:
                client.send(request_bytes("POST", "/v1/completions", LONG))
                answer = client.read_answer("POST")
        except TimeoutError:
            raise Wrong(f"nothing within {PATIENCE_S} s") from None
        except (OSError, EOFError) as error:
            self._failed(False, repr(error))
            return
        if answer.status == 200:
            raise Wrong("a prompt longer than the context was answered")
        self.seen["bodies refused for want of memory"] += b"no memory" in answer.body

    def _failed(self, must, what):
        if not self.gateway.alive():
            raise Ended
        if must:
            raise Wrong(f"not served any more: {what}")
        self.seen["requests refused or cut"] += 1
        return False

    # ---- scenes ---------------------------------------------------------------------------

    def start(self):
        self.gateway.start(wait="listening")
        self.files = None

    def patiently(self, wait):
        """wait() until it comes back: what asks the admin side may be what fails."""
        def is_over():
            try:
                wait()
                return True
            except (OSError, ValueError, AssertionError, http.client.HTTPException):
                if not self.gateway.alive():
                    raise Ended from None
                return False
        wait_until(is_over, wait.__name__, PATIENCE_S)

    def quiet(self):
        self.patiently(self.gateway.wait_quiet)

    def serve(self):
        """The engine has one slot: each document displaces the other."""
        self.texts.renew()
        one, two = self.rng.sample(self.texts.documents, 2)
        for n, (document, api) in enumerate(((one, "chat"), (two, "messages"), (one, "chat"),
                                             (two, "completions"))):
            question = self.texts.about(document, n, api)
            question.stream = n > 1
            self.ask(question)
            self.quiet()
        self.ask_too_long()
        self.quiet()

    def check(self):
        """What must be true behind each fault."""
        self.control.arm()
        for n in range(2):
            self.ask(self.texts.about(self.texts.words(60), n, "chat"), must=True)
        self.gateway.wait_ready("store")
        self.gateway.wait_quiet()
        stats = self.gateway.stats()
        gauges = {**stats["total"]["states"], "in flight": stats["total"]["in_flight"],
                  "queued": stats["replicas"][0]["queued"],
                  "buffered": self.gateway.metric("incipit_body_buffered_bytes")}
        bad = [f"{name} is {n}" for name, n in gauges.items() if n]
        if bad:
            raise Wrong("; ".join(bad))
        self.check_descriptors()
        left = os.listdir(self.slots)
        if left:
            raise Wrong(f"left in the slot directory: {left[:5]}")

    def check_descriptors(self):
        """As many files as behind the first scene; sockets: listening ones, the pool, and
        the connection that is about to close."""
        if self.files is None:
            self.files = self.gateway.descriptors()["files"]
        try:
            wait_until(lambda: self.gateway.descriptors()["files"] <= self.files
                       and self.gateway.descriptors()["sockets"] <= 2 + 16, "", 10)
        except AssertionError:
            raise Wrong(f"{self.gateway.descriptors()} open, {self.files} files before") from None

    # ---- one call fails ---------------------------------------------------------------------

    def ended_well(self, kind):
        """Behind an end that was allowed: not by a signal, or as base/mem.h says it."""
        code = self.gateway.wait_exit(PATIENCE_S)
        if kind in ENDS and code == -6 and ENDS[kind] in self.gateway.text():
            self.seen["ended for want of memory"] += 1
            return
        raise Wrong(f"ended with {code}")

    def fault_while_serving(self, kind, n, error):
        """False where the scene had no such call."""
        if not self.gateway.alive():
            self.control.arm()
            self.gateway.output.clear()
            self.start()
            self.gateway.wait_ready("store")
            self.check()
        self.log_from = len(self.gateway.output)
        self.control.arm(kind, n, error)
        try:
            self.serve()
            self.counted, hit = self.control.calls(), self.control.hit()
            self.check()
        except Ended:
            hit = True
            self.ended_well(kind)
        return hit

    def fault_at_start(self, kind, n, error):
        """It starts and serves, or says why not; either way it ends."""
        self.gateway.stop()
        self.gateway.output.clear()
        self.log_from = 0
        self.control.arm(kind, n, error)
        try:
            self.start()
        except AssertionError:
            if self.gateway.alive():
                raise
            code = self.gateway.wait_exit()
            if (code <= 0 or not self.gateway.output) and kind not in ENDS:
                raise Wrong(f"did not start, status {code}") from None
            self.seen["did not start, and said why"] += 1
            return self.control.hit()
        try:
            self.patiently(self.gateway.wait_ready)
            self.quiet()
            self.counted, hit = self.control.calls(), self.control.hit()
            self.control.arm()
            if self.gateway.mode() == "store":
                self.check()
        except (Ended, AssertionError):
            if self.gateway.alive():
                raise
            self.ended_well(kind)
            return self.control.hit()
        self.gateway.signal()
        code = self.gateway.wait_exit(PATIENCE_S)
        if code != 0 and not (code == -15 and "event=signal" in self.gateway.text()):
            raise Wrong(f"ended with {code}")
        return hit


SCENES = {"serve": Stage.fault_while_serving, "start": Stage.fault_at_start}


def plan(rng, calls, limit):
    """(kind, n) that are tried: all, or so many, drawn, of each kind at least one."""
    every = [(kind, n) for kind, count in calls.items() for n in range(1, count + 1)]
    if not limit or limit >= len(every):
        return every
    some = [(kind, rng.randint(1, count)) for kind, count in calls.items() if count]
    some += rng.sample(every, max(0, limit - len(some)))
    return sorted(set(some), key=every.index)


def play(stage, scene, kind, n):
    """One fault; what went wrong, or None."""
    error = stage.rng.choice(KINDS[kind])
    try:
        SCENES[scene](stage, kind, n, error)
        return None
    except Exception as why:  # pylint: disable=broad-except
        return (f"{errno.errorcode[error]}: {type(why).__name__}: {why}\n" +
                "".join(traceback.format_tb(why.__traceback__)[-3:]))


def without_fault(stage, scene):
    """Plays it; how many calls of each kind it makes."""
    SCENES[scene](stage, None, 0, 0)
    return stage.counted


def run(seed, limit=0, only=(), verbose=False):
    """Passed and failed faults. `limit`: so many of each scene; 0: all of them."""
    rng = random.Random(seed)
    passed = failed = 0
    seen = collections.Counter()
    for scene in SCENES:
        stage = Stage(rng.random())
        calls = without_fault(stage, scene)
        for kind, n in plan(rng, {k: c for k, c in calls.items() if not only or k in only},
                            limit):
            began = time.monotonic()
            why = play(stage, scene, kind, n)
            if why or verbose:
                print(f"{'FAILED' if why else 'ok':8}{scene} {kind} {n} of {calls[kind]} "
                      f"({(time.monotonic() - began) * 1000:.0f} ms)", flush=True)
            passed, failed = passed + (why is None), failed + (why is not None)
            if why:
                print(why, "--- the gateway said", *stage.log()[-40:], "---", sep="\n",
                      flush=True)
                seen.update(stage.seen)
                stage.close()
                stage = Stage(rng.random())
        seen.update(stage.seen)
        stage.close()
    for what, n in sorted(seen.items()):
        print(f"{n:8} {what}")
    return passed, failed


def main():
    """tests/faults/calls.py [KIND...]: every call of these kinds."""
    only = sys.argv[1:]
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"calls: seed {seed}", flush=True)
    passed, failed = run(seed, int(os.environ.get("CALLS") or 0), only, True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
