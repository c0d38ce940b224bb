#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A stand-in for llama-server. It is not an engine: it is a script that behaves like one.

What a gateway can see of llama-server is kept: the HTTP it speaks, connections that end
behind every stream, slots that hold token lists and reuse the longest common start,
deferred requests that others overtake, slot files down to the last byte, an abort where
a file is cut short. What a test needs is added: every request is recorded byte for byte;
requests can be held at named points and let go, so that no test sleeps; faults can be
ordered; and rows that belong to another prefix or model than the slot says are noticed
and recorded (`poison`).

    engine = Standin(slots=2, slot_dir=DIR).start()     in a test's own process
    python3 tests/lib/standin.py --slots 2 --slot-dir DIR     as a program; prints its port

As a program it is steered through /_test/…, see CONTROLS.

One thread per connection carries its requests from head to answer; Engine.lock guards
everything they share. One thread watches all sockets for a peer that leaves.

Points where requests can be held (in this order):

    arrive    request read, no slot yet         slots save restore erase   those calls
    prefill   slot taken, a batch "runs": leaving changes nothing
    head      prompt done, no byte of the answer sent
    event     before each event of a stream
    stream    once, behind the first event with content
    finish    before the end of the answer
    framing   behind the last event of a stream, before the end of its framing
    zombie    a cancelled request gives its slot back only behind this
"""

import argparse
import dataclasses
import errno
import hashlib
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
import urllib.parse
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import slot_bytes  # noqa: E402
import toy_model as model  # noqa: E402

KEEP_BODY = 4 << 20
ESTABLISHED = 1  # of enum tcp_state
FILE_NAME = re.compile(r'^(?![ ])[^\x00-\x1f/\\:*?"<>|]{1,255}(?<![ .])$')


class ClientGone(Exception):
    """The peer left, or the stand-in was told to go."""


class Refused(Exception):
    def __init__(self, status, message, kind="invalid_request_error", **more):
        super().__init__(message)
        self.status = status
        self.error = {"code": status, "message": message, "type": kind, **more}


@dataclasses.dataclass
class Settings:
    """What can be set at the start and changed while it runs."""
    slots: int = 2
    n_ctx: int = 16384
    slot_dir: str = ""            # empty: save, restore and erase answer 501
    weights: object = 1           # other weights: other states, other answers
    model_path: str = "standin-tiny.gguf"
    alias: str = "standin-tiny"
    build: str = "b1-standin"
    state_version: int = 2
    unified: bool = False         # one stream for all slots
    v_transposed: int = 0         # 1: as without flash attention
    window: int = 0               # tokens that some of its layers look back; 0: all do
    swa_full: bool = False        # trusts in restored windows that they go back to the start
    order: str = "system-first"   # of the template; or tools-first, tools-late
    media: bool = True
    lora: int = 0                 # adapters loaded
    noise: float = 0              # of log-probabilities, as from other batches or cores
    answer_tokens: int = 8        # length of an answer without limit
    batch: int = 2048
    prefill_us: float = 0         # cost of a prompt token, of a generated token
    decode_us: float = 0
    keep_alive_s: float = 5
    keep_alive_max: int = 100
    max_body: int = 1 << 30       # beyond it: 413, before the body is read
    early_head: bool = False      # newer builds: 200 and head before the prefill
    empties_idle: bool = False    # when a task begins, all other idle slots are cleared
    no_slots: bool = False        # GET /slots: 501
    no_metrics: bool = False
    ignore_id_slot: bool = False
    restore_fails: bool = False
    restore_lies: bool = False    # says yes and means no
    drop_reused: bool = False     # reset instead of answering on a used connection
    zombies: bool = False         # cancelled requests wait at point `zombie`
    crlf: bool = False            # events with CRLF and no space behind the colon
    comments: bool = False        # a comment line between events
    usage_twice: bool = False     # a first usage without detail, then the real one
    chunk_cut: int = 0            # cut a stream into chunks of so many bytes
    counts: dict = dataclasses.field(default_factory=dict)  # lies about counts
    headers: list = dataclasses.field(default_factory=list)  # more headers of answers
    inflates: bool = False   # takes packed bodies


class Slot:
    def __init__(self, index, adapters):
        self.id = index
        self.clear()
        self.lora = adapters      # of its last task; a restore does not change it
        self.busy = None          # id of the task
        self.request = None       # in the log, of the last task
        self.id_task = None       # of the last one; None in a fresh process
        self.last_used = -1
        self.processed = self.cached = 0
        self.stream = False

    def clear(self):
        self.tokens, self.states = [], []
        self.unusable = False     # restored, but means no
        self.first = None         # cell of its window, where it was restored
        self.restored = 0         # tokens

    def cut(self, n):
        del self.tokens[n:], self.states[n:]

    def common(self, tokens):
        n = min(len(self.tokens), len(tokens))
        return next((i for i in range(n) if self.tokens[i] != tokens[i]), n)


class Task:
    """A generation: one prompt, `n` answers."""

    def __init__(self, body, tokens, stream):
        self.tokens, self.stream = tokens, stream
        self.pinned = body.get("id_slot", -1)
        self.cache = body.get("cache_prompt", True)
        self.lora = tuple((a["id"], a["scale"]) for a in body.get("lora") or [])
        self.n = body.get("n") or body.get("n_cmpl") or 1
        limits = [body.get(k) for k in ("n_predict", "max_completion_tokens", "max_tokens")]
        self.limit = next((x for x in limits if x is not None), -1)
        self.id = None
        self.slots = []
        self.cache_n = 0
        self.answer = []
        self.reason = "limit"
        self.prompt_ms = self.predicted_ms = 0.0


class Engine:
    """Slots and what happens in them. Knows requests, not sockets."""

    def __init__(self, settings):
        self.settings = settings
        self.lock = threading.Condition()
        self.compute = threading.Lock()   # one batch at a time
        self.gates = []                   # [point, match, credits or None]
        self.waiting = []                 # (point, record) held right now
        self.events = []
        self.most_inside = 0
        self.generation = 0               # of the process: grows with each restart
        self.adapter_sets = set()         # ever used, whatever the process
        self.reset()

    def reset(self):
        """A fresh process."""
        self.global_lora = {i: 1.0 for i in range(self.settings.lora)}
        adapters = tuple(sorted(self.global_lora.items()))
        self.adapter_sets.add(adapters)
        self.slots = [Slot(i, adapters) for i in range(self.settings.slots)]
        self.deferred = []
        self.next_task = 0
        self.inside = []    # generations before the last bytes of their answers
        self.totals = {"prompt_tokens": 0, "cached": 0, "predicted": 0, "decodes": 0}
        self.generation += 1
        self.start_time = int(time.time()) * 1000 + self.generation

    def note(self, event, **facts):
        with self.lock:
            self.events.append({"t": time.monotonic(), "event": event, **facts})
            self.lock.notify_all()

    # ---- points -------------------------------------------------------------------------

    def _gate(self, point, record):
        return next((g for g in self.gates
                     if g[0] == point and (not g[1] or g[1] in record.body)), None)

    def pass_point(self, point, record, cancellable=True):
        """Waits while a gate holds this point; a credit lets one through."""
        with self.lock:
            gate = self._gate(point, record)
            if gate is None:
                return
            here = (point, record)
            self.waiting.append(here)
            self.lock.notify_all()
            try:
                while gate in self.gates and not gate[2]:
                    if record.conn.dropped or (cancellable and record.conn.gone):
                        raise ClientGone
                    self.lock.wait(5)
                if gate in self.gates:
                    gate[2] -= 1
            finally:
                self.waiting.remove(here)
                self.lock.notify_all()

    # ---- slots --------------------------------------------------------------------------

    def _pick(self, task):
        """The slots that a task may have now, or None."""
        idle = [s for s in self.slots if s.busy is None]
        if len(idle) < task.n:
            return None
        if task.pinned != -1 and not self.settings.ignore_id_slot:
            first = self.slots[task.pinned % len(self.slots)]
        else:
            best = max(idle, key=lambda s: s.common(task.tokens))
            if best.common(task.tokens) > 0.10 * len(task.tokens):
                first = best
            else:
                first = min(idle, key=lambda s: s.last_used)
        if first.busy is not None:
            return None
        return [first] + [s for s in idle if s is not first][:task.n - 1]

    def acquire(self, task, record):
        """Takes slots. A busy slot is not a queue: who comes when it is idle gets it."""
        with self.lock:
            task.id = self.next_task
            self.next_task += 1
            slots = self._pick(task)
            if slots is None:
                self.note("deferred", task=task.id, request=record.index)
                self.deferred.append(task)
                try:
                    while slots is None:
                        if record.conn.dropped or (record.conn.gone and task.stream):
                            raise ClientGone
                        self.lock.wait(5)
                        slots = self._pick(task)
                finally:
                    self.deferred.remove(task)
            for slot in slots:
                slot.busy = slot.id_task = task.id
                slot.request = record.index
                slot.stream = task.stream
            for other in self.slots if self.settings.empties_idle else ():
                if other.busy is None:
                    other.clear()
            task.slots = slots
            self.lock.notify_all()

    def release(self, task):
        with self.lock:
            for slot in task.slots:
                slot.busy = None
                slot.processed = slot.cached = 0
                slot.last_used = time.monotonic()
            task.slots = []
            self.lock.notify_all()

    def enter(self, record):
        """A generation, with or without a slot."""
        with self.lock:
            self.inside.append(record)
            self.most_inside = max(self.most_inside, len(self.inside))

    def leave(self, record):
        """Before its client can know; again does no harm."""
        with self.lock:
            if record in self.inside:
                self.inside.remove(record)
                self.lock.notify_all()

    # ---- one generation -----------------------------------------------------------------

    def generate(self, task, record):
        """Yields None when the prompt is done, then each token of the answer."""
        slot = task.slots[0]
        began = time.monotonic()
        weights = model.Weights(self.settings.weights, self._adapters(task))
        with self.lock:
            task.cache_n = self._reuse(task, slot, weights, record)
        self.pass_point("prefill", record, cancellable=False)
        for at in range(task.cache_n, len(task.tokens), self.settings.batch):
            if at > task.cache_n and record.conn.gone and task.stream:
                raise ClientGone
            batch = task.tokens[at:at + self.settings.batch]
            self._spend(self.settings.prefill_us * len(batch))
            with self.lock:
                weights.extend(slot.states, batch)
                slot.tokens += batch
        with self.lock:
            slot.processed, slot.cached = len(task.tokens) - task.cache_n, task.cache_n
            for other in task.slots[1:]:
                other.tokens, other.states = list(slot.tokens), list(slot.states)
            self.totals["prompt_tokens"] += len(task.tokens) - task.cache_n
            self.totals["cached"] += task.cache_n
        task.prompt_ms = (time.monotonic() - began) * 1000
        self.pass_point("head", record, cancellable=task.stream)
        yield None
        yield from self._decode(task, weights, record)

    def _adapters(self, task):
        return task.lora or tuple(sorted(self.global_lora.items()))

    def _reuse(self, task, slot, weights, record):
        """Cuts the slot back to what it shares with the prompt; returns how much."""
        adapters = self._adapters(task)
        if slot.lora != adapters:
            slot.clear()
        slot.lora = adapters
        self.adapter_sets.add(adapters)
        common = 0
        if task.cache and not slot.unusable:
            common = min(slot.common(task.tokens), len(task.tokens) - 1)
        common = self._behind_window(slot, common, record)
        wrong = weights.first_wrong(slot.states[:common], task.tokens)
        if wrong is not None:
            self.note("poison", where="use", slot=slot.id, token=wrong, request=record.index)
        slot.unusable = False
        slot.cut(max(common, 0))
        return max(common, 0)

    def _behind_window(self, slot, common, record):
        """What can be used of a restored window: it begins with its first cell."""
        s = self.settings
        if not s.window or slot.first is None:
            return common
        if slot.first >= max(0, common - (0 if s.swa_full else s.window)):
            slot.clear()
            return 0
        if common < slot.restored - 1:   # the next token looks at rows that are not there
            self.note("poison", where="window", slot=slot.id, request=record.index)
        return common

    def _decode(self, task, weights, record):
        began = time.monotonic()
        limit = task.limit if task.limit >= 0 else self.settings.answer_tokens + 1
        limit = max(limit, 1)
        slot = task.slots[0]
        for i in range(limit):
            if record.conn.dropped or (record.conn.gone and task.stream):
                raise ClientGone
            self._spend(self.settings.decode_us)
            with self.lock:
                for s in task.slots if task.answer else []:
                    s.tokens.append(task.answer[-1])
                    weights.extend(s.states, [task.answer[-1]])
                self.totals["decodes"] += 1
                if task.limit < 0 and i == self.settings.answer_tokens:
                    task.reason = "eos"
                    break
                if len(slot.tokens) + 1 >= self.settings.n_ctx:
                    break
                token = model.next_token(slot.states[-1])
                task.answer.append(token)
                self.totals["predicted"] += 1
            task.predicted_ms = (time.monotonic() - began) * 1000
            yield token

    def _spend(self, microseconds):
        if microseconds:
            with self.compute:
                time.sleep(microseconds / 1e6)

    # ---- slot actions -------------------------------------------------------------------

    def on_slot(self, index, action, name, record):
        """save, restore or erase, when the slot is idle and nobody else waits for it."""
        slot = self.slots[index % len(self.slots)]
        with self.lock:
            if slot.busy is not None:
                self.note("slot-action-busy", action=action, slot=slot.id, busy=slot.busy,
                          request=slot.request)
            while slot.busy is not None or any(
                    t.pinned in (-1, slot.id) for t in self.deferred):
                if record.conn.dropped:
                    raise ClientGone
                self.lock.wait(5)
            slot.busy = f"{action} {self.next_task}"
            self.next_task += 1
        try:
            self.pass_point(action, record, cancellable=False)
            with self.lock:
                return getattr(self, "_" + action)(slot, index, name)
        finally:
            with self.lock:
                slot.busy = None
                self.lock.notify_all()

    def _path(self, name):
        return os.path.join(self.settings.slot_dir, name)

    def _save(self, slot, index, name):
        s = self.settings
        if not slot.tokens:
            self.note("save-empty", slot=slot.id)
        data = slot_bytes.write(slot.tokens, slot.states, s.state_version,
                                1 if s.unified else s.slots, slot.id, s.v_transposed,
                                s.window)
        try:
            with open(self._path(name), "wb") as f:
                f.write(data)
        except OSError:
            raise Refused(500, "Unable to save slot", "server_error") from None
        self.note("save", slot=slot.id, name=name, tokens=len(slot.tokens), bytes=len(data))
        return {"id_slot": index, "filename": name, "n_saved": len(slot.tokens),
                "n_written": len(data), "timings": {"save_ms": 0.1}}

    def _restore(self, slot, index, name):
        s = self.settings
        slot.clear()
        try:
            with open(self._path(name), "rb") as f:
                data = f.read()
        except OSError:
            self.note("restore-missing", slot=slot.id, name=name)
            data = b""
        try:
            if s.restore_fails:
                raise slot_bytes.Damaged("told to fail")
            tokens, states, first = slot_bytes.read(data, s.state_version,
                                                    1 if s.unified else s.slots,
                                                    s.v_transposed, s.window)
            if len(tokens) > s.n_ctx:
                raise slot_bytes.Damaged("does not fit")
        except slot_bytes.Damaged as why:
            if not s.restore_fails:
                self.note("restore-damaged", slot=slot.id, name=name, why=str(why))
            raise Refused(400, "Unable to restore slot: No available space in KV cache or "
                               "invalid slot save file") from None
        self._check_rows(slot, tokens, states)
        slot.tokens, slot.states = tokens, [state or bytes(64) for state in states]
        slot.first, slot.restored = first, len(tokens)
        slot.unusable = s.restore_lies
        self.note("restore", slot=slot.id, name=name, tokens=len(tokens), bytes=len(data))
        return {"id_slot": index, "filename": name, "n_restored": len(tokens),
                "n_read": len(data), "timings": {"restore_ms": 0.1}}

    def _check_rows(self, slot, tokens, states):
        """Rows must be those of their tokens under these weights, whatever the adapters."""
        wrong = [model.Weights(self.settings.weights, a).first_wrong(states, tokens)
                 for a in self.adapter_sets]
        if None not in wrong:
            self.note("poison", where="restore", slot=slot.id, token=max(wrong))

    def _erase(self, slot, index, name):
        n = len(slot.tokens)
        slot.clear()
        self.note("erase", slot=slot.id, tokens=n)
        return {"id_slot": index, "n_erased": n}

    # ---- listings -----------------------------------------------------------------------

    def listing(self):
        with self.lock:
            self.next_task += 1   # looking is a task as well
            return [self._slot_entry(s) for s in self.slots]

    def _slot_entry(self, s):
        entry = {"id": s.id, "n_ctx": self.settings.n_ctx, "speculative": False,
                 "is_processing": isinstance(s.busy, int)}
        if s.id_task is not None:
            entry |= {"id_task": s.id_task, "n_prompt_tokens": len(s.tokens),
                      "n_prompt_tokens_processed": s.processed,
                      "n_prompt_tokens_cache": s.cached,
                      "params": {"stream": s.stream, "n_keep": 0},
                      "next_token": [{"has_next_token": isinstance(s.busy, int),
                                      "has_new_line": False, "n_remain": -1, "n_decoded": 0}]}
        return entry

    def metrics(self):
        rows = [("prompt_tokens_total", "counter", self.totals["prompt_tokens"]),
                ("prompt_tokens_cached_total", "counter", self.totals["cached"]),
                ("tokens_predicted_total", "counter", self.totals["predicted"]),
                ("n_decode_total", "counter", self.totals["decodes"]),
                ("requests_processing", "gauge", sum(s.busy is not None for s in self.slots)),
                ("requests_deferred", "gauge", len(self.deferred))]
        return "".join(f"# HELP llamacpp:{n} {n}\n# TYPE llamacpp:{n} {k}\nllamacpp:{n} {v}\n"
                       for n, k, v in rows)


# ---- HTTP ------------------------------------------------------------------------------

@dataclasses.dataclass
class Record:
    """One request as it came, and what became of it."""
    conn: object
    index: int
    nth: int                     # on its connection, from 0
    t: float
    raw_head: bytes = b""
    method: str = ""
    target: str = ""
    headers: list = dataclasses.field(default_factory=list)
    body: bytes = b""            # empty where longer than KEEP_BODY
    body_len: int = 0
    sha256: str = ""
    status: int = 0
    sent: bytearray = dataclasses.field(default_factory=bytearray)  # body of the answer
    done: bool = False           # answered to the end
    gone_t: float = 0            # when the peer left, before the end
    slot: int = -1
    cache_n: int = -1
    prompt_n: int = -1
    n_events: int = 0

    @property
    def path(self):
        return self.target.split("?")[0]

    def header(self, name):
        return [v for k, v in self.headers if k.lower() == name.lower()]

    def json(self):
        return json.loads(self.body)

    def public(self):
        return {"conn": self.conn.id, "index": self.index, "nth": self.nth, "t": self.t,
                "raw_head": self.raw_head.decode("latin-1"), "method": self.method,
                "target": self.target, "body_len": self.body_len, "sha256": self.sha256,
                "status": self.status, "done": self.done, "gone_t": self.gone_t,
                "slot": self.slot, "cache_n": self.cache_n, "prompt_n": self.prompt_n}


@dataclasses.dataclass
class Fault:
    """Ordered trouble for the next `times` generations whose body holds `match`."""
    kind: str           # close-before-head rst-before-head cut rst no-terminal error
    match: bytes = b""
    times: int = 1
    after: int = 2      # events sent before it (cut, rst)
    status: int = 400
    body: bytes = b'{"error":{"code":400,"message":"scripted","type":"invalid_request_error"}}'


class Connection:
    """A gateway's connection, and what is heard and said on it."""

    def __init__(self, server, sock, index):
        self.server, self.sock, self.id = server, sock, index
        self.buffer = bytearray()
        self.gone = False        # the peer has left
        self.dropped = False     # we have dropped it
        self.record = None
        self.opened = time.monotonic()

    # -- reading --

    def fill(self):
        data = self.sock.recv(1 << 18)
        if not data:
            raise ClientGone
        self.buffer += data

    def take_until(self, mark):
        while (at := self.buffer.find(mark)) < 0:
            self.fill()
        out = bytes(self.buffer[:at + len(mark)])
        del self.buffer[:at + len(mark)]
        return out

    def take(self, n):
        while len(self.buffer) < n:
            self.fill()
        out = bytes(self.buffer[:n])
        del self.buffer[:n]
        return out

    def read_head(self, nth):
        raw = self.take_until(b"\r\n\r\n")
        with self.server.engine.lock:
            record = Record(self, len(self.server.log), nth, time.monotonic(), raw)
            self.server.log.append(record)
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        record.method, record.target = first.split(" ")[:2]
        record.headers = [(k, v.strip()) for k, _, v in (x.partition(":") for x in lines)]
        return record

    def read_body(self, record):
        length = int((record.header("Content-Length") or ["0"])[0])
        if length > self.server.settings.max_body:
            raise Refused(413, "Payload Too Large")
        if "100-continue" in record.header("Expect"):
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if record.header("Transfer-Encoding"):
            body = b"".join(self._chunks())
        else:
            body = self.take(length)
        record.sha256 = hashlib.sha256(body).hexdigest()
        record.body_len = len(body)
        record.body = body if len(body) <= KEEP_BODY else b""
        if self.server.settings.inflates and record.header("Content-Encoding"):
            body = inflate(body)
        return body

    def _chunks(self):
        while size := int(self.take_until(b"\r\n").split(b";")[0], 16):
            yield self.take(size)
            self.take(2)
        while self.take_until(b"\r\n") != b"\r\n":
            pass

    def peer_left(self):
        """By the state of the TCP connection: a stale event names a number used anew."""
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != ESTABLISHED

    # -- writing --

    def send(self, data):
        try:
            self.sock.sendall(data)
        except OSError:
            raise ClientGone from None

    def answer(self, status, body, headers=(), record=None):
        record = record or self.record
        record.status = status
        text = {200: "OK", 400: "Bad Request", 404: "Not Found", 413: "Payload Too Large",
                500: "Internal Server Error", 501: "Not Implemented",
                503: "Service Unavailable"}.get(status, "Status")
        head = [f"HTTP/1.1 {status} {text}", "Server: llama.cpp", "Access-Control-Allow-Origin: "]
        head += [f"{k}: {v}" for k, v in (*headers, *self.server.settings.headers)]
        if not any(k == "Content-Type" for k, _ in headers):
            head.append("Content-Type: application/json; charset=utf-8")
        head.append(f"Content-Length: {len(body)}")
        head.append("Connection: close" if status >= 400 else self._keep_alive())
        record.sent += body
        self.send("\r\n".join(head).encode("latin-1") + b"\r\n\r\n"
                  + (b"" if record.method == "HEAD" else body))
        record.done = True
        return status < 400

    def _keep_alive(self):
        s = self.server.settings
        return f"Keep-Alive: timeout={s.keep_alive_s:g}, max={s.keep_alive_max}"

    def answer_json(self, value, status=200, headers=()):
        return self.answer(status, json.dumps(value, separators=(",", ":"),
                                              ensure_ascii=False).encode(), headers)

    def begin_stream(self):
        self.record.status = 200
        head = ["HTTP/1.1 200 OK", "Server: llama.cpp", "Access-Control-Allow-Origin: ",
                "X-Accel-Buffering: no", "Content-Type: text/event-stream",
                "Transfer-Encoding: chunked", self._keep_alive()]
        head += [f"{k}: {v}" for k, v in self.server.settings.headers]
        self.send("\r\n".join(head).encode("latin-1") + b"\r\n\r\n")

    def send_event(self, lines):
        """One event; the gate `event` may hold it, settings may disfigure it."""
        s, record = self.server.settings, self.record
        self.server.engine.pass_point("event", record)
        if self.gone:
            raise ClientGone
        if s.crlf:
            data = b"".join(x.replace(b": ", b":", 1) + b"\r\n" for x in lines) + b"\r\n"
        else:
            data = b"".join(x + b"\n" for x in lines) + b"\n"
        if s.comments and record.n_events:
            data = b": ping\n\n" + data
        record.n_events += 1
        record.sent += data
        step = s.chunk_cut or len(data)
        for at in range(0, len(data), step):
            piece = data[at:at + step]
            self.send(b"%x\r\n%s\r\n" % (len(piece), piece))

    def end_stream(self):
        self.send(b"0\r\n\r\n")
        self.record.done = True

    def left(self):
        """The peer is gone; Engine.lock is held."""
        self.gone = True

    def drop(self, reset=False):
        """Closes; with `reset` the peer gets an RST."""
        self.dropped = True
        try:
            if reset:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                     struct.pack("ii", 1, 0))
            else:
                self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if reset:
            self.sock.close()

    # -- life --

    def run(self):
        s = self.server.settings
        try:
            for nth in range(s.keep_alive_max):
                self.sock.settimeout(s.keep_alive_s)
                self.record = None
                if not self.buffer:
                    self.fill()
                self.sock.settimeout(60)
                if not self._one(nth):
                    break
        except (ClientGone, OSError, ValueError):
            pass
        finally:
            if self.record and not self.record.done:
                self.record.gone_t = self.record.gone_t or time.monotonic()
            self.server.forget(self)

    def _one(self, nth):
        """One request; False where the connection ends behind it."""
        if nth and self.server.settings.drop_reused:
            self.drop(reset=True)
            raise ClientGone
        self.record = record = self.read_head(nth)
        try:
            body = self.read_body(record)
        except Refused as no:
            self.answer_json({"error": no.error}, no.status)
            self._linger()
            return False
        with self.server.engine.lock:
            self.server.engine.lock.notify_all()
        try:
            going = self.server.handle(self, record, body)
        except Refused as no:
            going = self.answer_json({"error": no.error}, no.status)
        with self.server.engine.lock:
            self.server.engine.lock.notify_all()
        return going and "close" not in record.header("Connection")

    def _linger(self):
        self.sock.shutdown(socket.SHUT_WR)
        self.sock.settimeout(2)
        while self.sock.recv(1 << 18):
            pass


def inflate(body):
    try:
        return zlib.decompress(body, 32 + 15)      # gzip or zlib
    except zlib.error:
        return body


def strict_json(body):
    """As nlohmann's parser: a byte-order mark is skipped, NaN and lone halves are not."""
    def no(name):
        raise ValueError(name)
    try:
        text = body.removeprefix(b"\xef\xbb\xbf").decode()
        value = json.loads(text, parse_constant=no)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError):
        raise Refused(500, "[json.exception.parse_error.101] parse error",
                      "server_error") from None


def listen_at(port, patience_s=10):
    """A port that was left a moment ago may still be another connection's own for a while."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return socket.create_server(("127.0.0.1", port), backlog=512)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def keep_port(port):
    """Nobody else gets this port, and who connects is refused."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", port))
    return place


class Standin:
    """The server: routes, formats of the APIs, and the handles for tests."""

    connection = Connection
    own_headers = {"Server": "llama.cpp", "Access-Control-Allow-Origin": ""}

    def __init__(self, **settings):
        self.settings = Settings(**settings)
        self.engine = Engine(self.settings)
        self.log = []
        self.faults = []
        self.scripts = {}
        self.connections = {}
        self.n_connections = 0
        self.died = False
        self.listener = None
        self.port = 0
        self.on_death = None
        self._place = None       # keeps the port while nobody listens
        self._watch = select.epoll()
        self._watching = self._stopped = self._pausing = False

    # ---- life ---------------------------------------------------------------------------

    def start(self, port=0):
        if self._place:
            self._place = self._place.close()
        self.listener = listen_at(port or self.port)
        self.port = self.listener.getsockname()[1]
        self.died = False
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watcher, daemon=True).start()
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        self._stopped = True
        self.kill()
        if self._place:
            self._place.close()

    def kill(self):
        """The process is gone: listener and connections, without a farewell."""
        if self.listener:
            listener, self.listener = self.listener, None
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            listener.close()
            if not self._stopped:
                self._place = keep_port(self.port)
        with self.engine.lock:
            connections = list(self.connections.values())
            for c in connections:
                c.dropped = True
            self.engine.lock.notify_all()
        for c in connections:
            c.drop()
        with self.engine.lock:
            self.engine.gates.clear()
            self.engine.lock.notify_all()
            self.engine.lock.wait_for(lambda: not self.connections, 5)

    def restart(self, held=(), **changes):
        """A fresh process on the same port. `held`: points that are held from its start.
        Nobody finds the port closed in between; use kill() and restart() for that."""
        with self.engine.lock:
            self._pausing = True
            connections = list(self.connections.values())
            for conn in connections:
                conn.dropped = True
            self.engine.gates.clear()
            self.engine.lock.notify_all()
        for conn in connections:
            conn.drop()
        with self.engine.lock:
            self.engine.lock.wait_for(
                lambda: not any(c in self.connections.values() for c in connections), 5)
            for key, value in changes.items():
                setattr(self.settings, key, value)
            self.fresh_process()
            self.engine.gates = [[point, b"", 0] for point in held]
            self._pausing = False
            self.engine.note("restarted")
        if self.listener is None:
            self.start()

    def fresh_process(self):
        self.engine.reset()

    def die(self):
        """What llama-server does with a file that is cut short."""
        self.died = True
        self.engine.note("died")
        if self.on_death:
            self.on_death()
        threading.Thread(target=self.kill, daemon=True).start()

    def _accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.engine.lock:
                self.engine.lock.wait_for(lambda: not self._pausing)
                conn = self.connection(self, sock, self.n_connections)
                self.n_connections += 1
                self.connections[sock.fileno()] = conn
            self._watch.register(sock.fileno(), select.EPOLLRDHUP | select.EPOLLONESHOT)
            threading.Thread(target=conn.run, daemon=True).start()

    def _watcher(self):
        """Sees peers leave while their requests are at work."""
        while not self._stopped:
            for fd, _ in self._watch.poll(1):
                now = time.monotonic()
                with self.engine.lock:
                    conn = self.connections.get(fd)
                    if conn and not conn.dropped and conn.peer_left():
                        conn.left()
                        if conn.record and not conn.record.done:
                            conn.record.gone_t = now
                        self.engine.note("eof", conn=conn.id)

    def forget(self, conn):
        with self.engine.lock:
            for fd, known in list(self.connections.items()):
                if known is conn:
                    del self.connections[fd]
            conn.dropped = True
            conn.sock.close()
            self.engine.lock.notify_all()

    # ---- handles for tests --------------------------------------------------------------

    def set(self, **changes):
        with self.engine.lock:
            for key, value in changes.items():
                assert hasattr(self.settings, key), key
                setattr(self.settings, key, value)
            self.engine.lock.notify_all()

    def hold(self, point, match=b"", in_slot=False):
        """From now on requests (whose body holds `match`) wait at this point. `in_slot`:
        and GET /slots must say so."""
        match = match.encode() if isinstance(match, str) else match
        with self.engine.lock:
            self.engine.gates.append([point, match, 0])

    def release(self, point, n=None, match=b""):
        """Lets n of them through, or opens the gate for good."""
        match = match.encode() if isinstance(match, str) else match
        with self.engine.lock:
            for gate in [g for g in self.engine.gates if g[:2] == [point, match]]:
                if n is None:
                    self.engine.gates.remove(gate)
                else:
                    gate[2] += n
            self.engine.lock.notify_all()

    def release_all(self):
        with self.engine.lock:
            self.engine.gates.clear()
            self.engine.lock.notify_all()

    def wait_for(self, condition, timeout=10, what="condition"):
        """Waits until condition() is true; it is asked again at every change."""
        with self.engine.lock:
            if not self.engine.lock.wait_for(condition, timeout):
                raise TimeoutError(f"stand-in: {what}; state: {self.state()}")

    def wait_held(self, point, n=1, timeout=10):
        self.wait_for(lambda: self.held(point) >= n, timeout, f"{n} held at {point}")

    def held(self, point):
        return sum(p == point for p, _ in self.engine.waiting)

    def wait_idle(self, timeout=10):
        self.wait_for(lambda: not self.engine.inside
                      and all(s.busy is None for s in self.engine.slots), timeout, "idle")

    def fault(self, kind, **more):
        if isinstance(more.get("match"), str):
            more["match"] = more["match"].encode()
        self.faults.append(Fault(kind, **more))

    def script(self, path, *parts):
        """Answers requests for this path with exact bytes. A part is bytes, "close",
        "rst" or "@point", which waits there."""
        self.scripts[path] = parts

    def close_idle(self):
        """Closes all connections that have no request under way, as a time-out would."""
        with self.engine.lock:
            for conn in self.connections.values():
                if conn.record is None or conn.record.done:
                    conn.drop()

    def state(self):
        with self.engine.lock:
            return {"inside": len(self.engine.inside),
                    "most_inside": self.engine.most_inside,
                    "deferred": len(self.engine.deferred), "requests": len(self.log),
                    "held": [p for p, _ in self.engine.waiting], "died": self.died,
                    "slots": [{"id": s.id, "busy": s.busy, "tokens": len(s.tokens)}
                              for s in self.engine.slots]}

    def events(self, *names):
        with self.engine.lock:
            return [e for e in self.engine.events if not names or e["event"] in names]

    def forget_slots(self):
        """Its slots are empty, and nobody was told."""
        with self.engine.lock:
            for slot in self.engine.slots:
                slot.clear()

    def prompt_of(self, body):
        """The tokens that it makes of a chat body."""
        return model.prompt_tokens(*model.render(body["messages"], body.get("tools"),
                                                 self.settings.order))

    def right_answer(self, body):
        """What it answers to a chat body with max_tokens where it holds nothing."""
        weights = model.Weights(self.settings.weights)
        states, answer = [], []
        weights.extend(states, self.prompt_of(body))
        for _ in range(body["max_tokens"]):
            answer.append(model.next_token(states[-1]))
            weights.extend(states, answer[-1:])
        return model.detokenize(answer)

    def requests(self, path=None):
        with self.engine.lock:
            return [r for r in self.log if path is None or r.path == path]

    def generations(self):
        return [r for r in self.requests() if r.path in GENERATIONS]

    def bodies(self, marker):
        """Requests whose body holds the marker."""
        marker = marker.encode() if isinstance(marker, str) else marker
        return [r for r in self.requests() if marker in r.body]

    def reset_log(self):
        with self.engine.lock:
            self.log.clear()
            self.engine.events.clear()
            self.engine.most_inside = len(self.engine.inside)

    # ---- routes -------------------------------------------------------------------------

    def handle(self, conn, record, body):
        path = record.path
        if path in self.scripts:
            return self._run_script(conn, record, self.scripts[path])
        if path.startswith("/_test/"):
            return control(self, conn, record, body)
        route = ROUTES.get(("GET" if record.method == "HEAD" else record.method, path))
        if record.method == "OPTIONS":
            return conn.answer(200, b"", [("Content-Type", "text/html")])
        if route:
            return route(self, conn, record, body)
        match = re.fullmatch(r"/slots/([^/]+)", path)
        if match and record.method == "POST":
            return self.slot_action(conn, record, body, match[1])
        raise Refused(404, "File Not Found", "not_found_error")

    def _run_script(self, conn, record, parts):
        for part in parts:
            if part in ("close", "rst"):
                conn.drop(reset=part == "rst")
                raise ClientGone
            if isinstance(part, str):
                self.engine.pass_point(part[1:], record)
            else:
                conn.send(part)
        record.done = True
        return True

    def health(self, conn, record, body):
        return conn.answer_json({"status": "ok"})

    def props(self, conn, record, body):
        s = self.settings
        mark = '{{ tools }}' if s.order == "tools-first" else "{{ messages }}"
        return conn.answer_json({
            "default_generation_settings": {"params": {"temperature": 0.8, "n_predict": -1},
                                            "n_ctx": s.n_ctx},
            "total_slots": s.slots, "model_alias": s.alias, "model_ftype": "F16",
            "model_path": s.model_path,
            "modalities": {"vision": s.media, "video": False, "audio": s.media},
            "media_marker": model.MEDIA_MARK, "endpoint_slots": not s.no_slots,
            "endpoint_props": False, "endpoint_metrics": not s.no_metrics,
            "chat_template": f"ChatML of the stand-in, {s.order}: {mark}",
            "chat_template_caps": {"supports_tools": True, "supports_system_role": True},
            "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "build_info": s.build,
            "is_sleeping": False})

    def models(self, conn, record, body):
        s = self.settings
        return conn.answer_json({"object": "list", "data": [{
            "id": s.alias, "aliases": [s.alias], "tags": [], "object": "model",
            "created": 1700000000, "owned_by": "llamacpp",
            "meta": {"vocab_type": 2, "n_vocab": model.N_VOCAB, "n_ctx": s.n_ctx,
                     "n_ctx_train": 131072, "n_embd": 16, "n_params": 1536 * 64,
                     "size": 1536 * 128, "ftype": "F16"}}]})

    def slots(self, conn, record, body):
        if self.settings.no_slots:
            raise Refused(501, "This server does not support slots endpoint. Start it with "
                               "`--slots`", "not_supported_error")
        self.engine.pass_point("slots", record)
        listing = self.engine.listing()
        if "fail_on_no_slot=1" in record.target and all(s["is_processing"] for s in listing):
            raise Refused(503, "no slot available", "unavailable_error")
        return conn.answer_json(listing)

    def slot_action(self, conn, record, body, which):
        if not self.settings.slot_dir:
            raise Refused(501, "This server does not support slots action. Start it with "
                               "`--slot-save-path`", "not_supported_error")
        if not re.fullmatch(r"-?\d+", which):
            raise Refused(400, "Invalid slot ID")
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(record.target).query)
        action = query.get("action", [""])[0]
        if action not in ("save", "restore", "erase"):
            raise Refused(400, "Invalid action")
        name = ""
        if action != "erase":
            value = strict_json(body)
            if "filename" not in value:
                raise Refused(500, "[json.exception.out_of_range.403] key 'filename' not "
                                   "found", "server_error")
            name = value["filename"]
            if not FILE_NAME.match(name) or ".." in name:
                raise Refused(400, "Invalid filename")
        try:
            return conn.answer_json(self.engine.on_slot(int(which), action, name, record))
        except slot_bytes.CutShort:
            self.engine.note("restore-cut", name=name)
            self.die()
            raise ClientGone from None

    def metrics(self, conn, record, body):
        if self.settings.no_metrics:
            raise Refused(501, "This server does not support metrics endpoint. Start it with "
                               "`--metrics`", "not_supported_error")
        return conn.answer(200, self.engine.metrics().encode(),
                           [("Process-Start-Time-Unix", str(self.engine.start_time)),
                            ("Content-Type", "text/plain; version=0.0.4")])

    def lora_list(self, conn, record, body):
        return conn.answer_json([{"id": i, "path": f"adapter-{i}.gguf", "scale": scale}
                                 for i, scale in sorted(self.engine.global_lora.items())])

    def lora_set(self, conn, record, body):
        with self.engine.lock:
            for entry in strict_json(body):
                self.engine.global_lora[entry["id"]] = float(entry["scale"])
        return conn.answer_json({"success": True})

    def props_set(self, conn, record, body):
        raise Refused(501, "This server does not support changing global properties. Start "
                           "it with `--props`", "not_supported_error")

    def tokenize(self, conn, record, body):
        content = strict_json(body).get("content", "")
        parts = content if isinstance(content, list) else [content]
        tokens = [t for p in parts
                  for t in ([p] if isinstance(p, int) else model.tokenize(p))]
        return conn.answer_json({"tokens": tokens})

    def detokenize(self, conn, record, body):
        return conn.answer_json({"content": model.detokenize(strict_json(body)["tokens"])})

    def apply_template(self, conn, record, body):
        value = strict_json(body)
        return conn.answer_json({"prompt": self.rendered(value)[0]})

    def count_tokens(self, conn, record, body):
        value = strict_json(body)
        if record.path == "/v1/messages/count_tokens":
            value = from_messages(value)
        return conn.answer_json({"input_tokens": len(self.chat_prompt(value))})

    def unsupported(self, conn, record, body):
        raise Refused(501, "This server does not support this. Start it with the option",
                      "not_supported_error")

    # ---- prompts ------------------------------------------------------------------------

    def rendered(self, value):
        if not isinstance(value, dict) or "messages" not in value:
            raise Refused(400, "'messages' is required")
        if not isinstance(value["messages"], list):
            raise Refused(400, "Expected 'messages' to be an array")
        try:
            text, media = model.render(value["messages"], value.get("tools"),
                                       self.settings.order,
                                       value.get("add_generation_prompt", True))
        except (AttributeError, TypeError, ValueError) as why:
            raise Refused(400, f"unreadable messages: {why}") from None
        if media and not self.settings.media:
            raise Refused(500, "image input is not supported", "server_error")
        return text, media

    def chat_prompt(self, value):
        return model.prompt_tokens(*self.rendered(value))

    def text_prompts(self, value):
        """The prompts of a completion request, as lists of tokens."""
        if not isinstance(value, dict) or "prompt" not in value:
            raise Refused(400, "[json.exception.out_of_range.403] key 'prompt' not found")
        prompt = value["prompt"]
        batch = isinstance(prompt, list) and prompt and (
            all(isinstance(p, (str, list)) for p in prompt))
        out = []
        for one in prompt if batch else [prompt]:
            parts = one if isinstance(one, list) else [one]
            tokens = []
            for part in parts:
                if isinstance(part, int) and not isinstance(part, bool):
                    tokens.append(part % model.N_VOCAB)
                elif isinstance(part, str):
                    tokens += model.tokenize(part)
                else:
                    raise Refused(400, '"prompt" elements must be a string, a list of '
                                       'tokens, a list of mixed strings & tokens')
            out.append(tokens)
        return out, batch

    # ---- generations --------------------------------------------------------------------

    def _fault(self, record):
        with self.engine.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.match in record.body:
                    fault.times -= 1
                    return fault
        return None

    def generation(self, conn, record, body):
        value = strict_json(body)
        api = GENERATIONS[record.path]
        if record.path == "/v1/messages":
            value = from_messages(value)
        elif record.path == "/v1/responses":
            value = from_responses(value)
        batch = False
        if api in (Native, Completions):
            prompts, batch = self.text_prompts(value)
        else:
            prompts = [self.chat_prompt(value)]
        tasks = []
        for tokens in prompts:
            tokens = tokens or [model.END_OF_TEXT]
            if len(tokens) >= self.settings.n_ctx:
                raise Refused(400, f"request ({len(tokens)} tokens) exceeds the available "
                              f"context size ({self.settings.n_ctx} tokens), try increasing it",
                              "exceed_context_size_error", n_prompt_tokens=len(tokens),
                              n_ctx=self.settings.n_ctx)
            try:
                tasks.append(Task(value, tokens, bool(value.get("stream")) and not batch))
            except (KeyError, TypeError):
                raise Refused(400, "a field has the wrong type") from None
            if not isinstance(tasks[-1].n, int) or not 1 <= tasks[-1].n <= self.settings.slots:
                raise Refused(400, f"Field 'n': Value must be between 1 <= value <= "
                                   f"{self.settings.slots}, but got {tasks[-1].n}")
            if not isinstance(tasks[-1].limit, int):
                raise Refused(400, "a field has the wrong type")
        self.engine.enter(record)
        try:
            self.engine.pass_point("arrive", record)
            fault = self._fault(record)
            if fault and fault.kind.endswith("before-head"):
                self.engine.leave(record)
                conn.drop(reset=fault.kind.startswith("rst"))
                raise ClientGone
            if fault and fault.kind == "error":
                self.engine.leave(record)
                return conn.answer(fault.status, fault.body)
            return self._generate(conn, record, api(self, conn, value), tasks, batch, fault)
        finally:
            self.engine.leave(record)

    def _generate(self, conn, record, api, tasks, batch, fault):
        results = []
        for task in tasks:
            try:
                self.engine.acquire(task, record)
                record.slot = task.slots[0].id
                if task.stream:
                    return self._stream(conn, record, api, task, fault)
                for _ in self.engine.generate(task, record):
                    pass
                self._account(record, task)
                slot = record.slot
            except ClientGone:
                if self.settings.zombies and task.slots:
                    self.engine.pass_point("zombie", record, cancellable=False)
                raise
            finally:
                self.engine.release(task)
            results.append(api.whole(task, slot, len(results)))
        self.engine.pass_point("finish", record, cancellable=False)
        self.engine.leave(record)
        if fault and fault.kind in ("cut", "rst"):
            whole = json.dumps(results[0]).encode()
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(whole) + whole[:len(whole) // 2])
            conn.drop(reset=fault.kind == "rst")
            raise ClientGone
        return conn.answer_json(api.batch(results) if batch else results[0])

    def _account(self, record, task):
        record.cache_n = task.cache_n
        record.prompt_n = len(task.tokens) - task.cache_n

    def _stream(self, conn, record, api, task, fault):
        if self.settings.early_head:
            conn.begin_stream()
        steps = self.engine.generate(task, record)
        next(steps)
        self._account(record, task)
        if not self.settings.early_head:
            conn.begin_stream()
        slot = task.slots[0].id
        first = True
        for event in api.events(task, slot, steps):
            if fault and fault.kind in ("cut", "rst") and record.n_events >= fault.after:
                self.engine.release(task)
                self.engine.leave(record)
                conn.drop(reset=fault.kind == "rst")
                raise ClientGone
            if event is api.CONTENT_SENT:
                if first:
                    self.engine.pass_point("stream", record)
                    first = False
                continue
            if event is api.ENDING:
                # The slot is free before the last bytes are on their way.
                if fault and fault.kind == "no-terminal":
                    break
                self.engine.release(task)
                self.engine.leave(record)
                self.engine.pass_point("finish", record)
                continue
            conn.send_event(event)
        self.engine.release(task)
        self.engine.pass_point("framing", record)
        conn.end_stream()
        return False   # as the real one: whatever the head said


# ---- the APIs ----------------------------------------------------------------------------

def data_line(value):
    return [b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()]


class Api:
    """How one API words an answer."""
    CONTENT_SENT, ENDING = object(), object()

    def __init__(self, server, conn, value):
        self.server, self.value = server, value
        self.id = "chatcmpl-" + hashlib.sha256(b"%d" % conn.record.index).hexdigest()[:32]
        options = value.get("stream_options")
        self.include_usage = isinstance(options, dict) and options.get("include_usage") is True

    def common(self, kind):
        return {"created": 1700000000, "model": self.server.settings.alias,
                "system_fingerprint": self.server.settings.build, "object": kind,
                "id": self.id}

    def counts(self, **facts):
        """Counts, or the lies that the settings order."""
        return {k: self.server.settings.counts.get(k, v) for k, v in facts.items()}

    def timings(self, task):
        new, out = len(task.tokens) - task.cache_n, len(task.answer)
        ms, pms = max(task.prompt_ms, 0.001), max(task.predicted_ms, 0.001)
        return self.counts(cache_n=task.cache_n, prompt_n=new, prompt_ms=round(ms, 3),
                           prompt_per_token_ms=ms / new, prompt_per_second=new * 1e3 / ms,
                           predicted_n=out, predicted_ms=round(pms, 3),
                           predicted_per_token_ms=pms / max(out, 1),
                           predicted_per_second=out * 1e3 / pms)

    def usage(self, task):
        usage = self.counts(completion_tokens=len(task.answer),
                            prompt_tokens=len(task.tokens),
                            total_tokens=len(task.tokens) + len(task.answer))
        details = self.counts(cached_tokens=task.cache_n)
        if details["cached_tokens"] is not None:
            usage["prompt_tokens_details"] = details
        return usage

    def with_timings(self, task, value):
        return value | {"timings": self.timings(task)}

    def batch(self, results):
        return results

    def stopped(self, task):
        return "stop" if task.reason == "eos" else "length"

    def text(self, task):
        return model.detokenize(task.answer)


class Chat(Api):
    def whole(self, task, slot, index):
        choices = [{"finish_reason": self.stopped(task), "index": i,
                    "message": {"role": "assistant", "content": self.text(task)}}
                   for i in range(task.n)]
        return self.with_timings(task, {"choices": choices, **self.common("chat.completion"),
                                        "usage": self.usage(task)})

    def chunk(self, choices, **more):
        return data_line({"choices": choices, **self.common("chat.completion.chunk"), **more})

    def choices(self, task, delta, reason=None):
        return [{"finish_reason": reason, "index": i, "delta": delta} for i in range(task.n)]

    def events(self, task, slot, steps):
        yield self.chunk(self.choices(task, {"role": "assistant", "content": None}))
        for token in steps:
            yield self.chunk(self.choices(task, {"content": model.detokenize([token])}))
            yield self.CONTENT_SENT
        yield self.ENDING
        last = self.choices(task, {}, self.stopped(task))
        usage, timings = self.usage(task), self.timings(task)
        if self.include_usage:
            first = {k: v for k, v in usage.items() if k != "prompt_tokens_details"}
            twice = {"usage": first} if self.server.settings.usage_twice else {}
            yield self.chunk(last, **twice)
            yield self.chunk([], usage=usage, timings=timings)
        else:
            yield self.chunk(last, timings=timings)
        yield [b"data: [DONE]"]


class Completions(Api):
    def choice(self, text, reason, index=0):
        return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}

    def whole(self, task, slot, index):
        return self.with_timings(task, {
            "choices": [self.choice(self.text(task), self.stopped(task), index)],
            **self.common("text_completion"), "usage": self.usage(task)})

    def batch(self, results):
        return results[0] | {"choices": [r["choices"][0] for r in results]}

    def events(self, task, slot, steps):
        common = self.common("text_completion")
        for token in steps:
            yield data_line({"choices": [self.choice(model.detokenize([token]), None)]} | common)
            yield self.CONTENT_SENT
        yield self.ENDING
        yield data_line({"choices": [self.choice("", self.stopped(task))], **common,
                         "usage": self.usage(task), "timings": self.timings(task)})
        yield [b"data: [DONE]"]


class Native(Api):
    def whole(self, task, slot, index):
        value = {"index": index, "content": self.text(task),
                 "tokens": task.answer if self.value.get("return_tokens") else [],
                 "id_slot": slot, "stop": True, "model": self.server.settings.alias,
                 "tokens_predicted": len(task.answer), "tokens_evaluated": len(task.tokens),
                 "generation_settings": {"n_predict": task.limit, "stream": task.stream},
                 "prompt": model.detokenize(task.tokens), "has_new_line": False,
                 "truncated": False, "stop_type": task.reason, "stopping_word": "",
                 "tokens_cached": len(task.tokens) + max(len(task.answer) - 1, 0)}
        n = self.value.get("n_probs")
        if isinstance(n, int) and n > 0:
            value["completion_probabilities"] = self.probabilities(task, n)
        return self.with_timings(task, value)

    def probabilities(self, task, n):
        weights = model.Weights(self.server.settings.weights, self.server.engine._adapters(task))
        states = []
        weights.extend(states, task.tokens + task.answer)
        noise, out = self.server.settings.noise, []
        for i in range(len(task.answer)):
            top = [{"id": t, "token": model.detokenize([t]),
                    "bytes": list(model.token_bytes(t)), "logprob": p + noise * (-1) ** k}
                   for k, (t, p) in enumerate(
                       model.log_probabilities(states[len(task.tokens) - 1 + i], n))]
            out.append(top[0] | {"top_logprobs": top})
        return out

    def events(self, task, slot, steps):
        for i, token in enumerate(steps):
            yield data_line({"index": 0, "content": model.detokenize([token]),
                             "tokens": [token], "stop": False, "id_slot": -1,
                             "tokens_predicted": i + 1, "tokens_evaluated": len(task.tokens)})
            yield self.CONTENT_SENT
        yield self.ENDING
        yield data_line(self.whole(task, slot, 0) | {"content": ""})


class Messages(Api):
    """Anthropic's: no timings, and input_tokens counts what was not reused."""

    def usage(self, task):
        return self.counts(cache_read_input_tokens=task.cache_n,
                           input_tokens=len(task.tokens) - task.cache_n,
                           output_tokens=len(task.answer))

    def message(self, task, content, reason):
        return {"id": self.id, "type": "message", "role": "assistant", "content": content,
                "model": self.server.settings.alias, "stop_reason": reason,
                "stop_sequence": None, "usage": self.usage(task)}

    def stopped(self, task):
        return "end_turn" if task.reason == "eos" else "max_tokens"

    def whole(self, task, slot, index):
        return self.message(task, [{"type": "text", "text": self.text(task)}],
                            self.stopped(task))

    def event(self, kind, **facts):
        return [b"event: " + kind.encode()] + data_line({"type": kind, **facts})

    def events(self, task, slot, steps):
        yield self.event("message_start", message=self.message(task, [], None))
        yield self.event("content_block_start", index=0,
                         content_block={"type": "text", "text": ""})
        for token in steps:
            yield self.event("content_block_delta", index=0,
                             delta={"type": "text_delta", "text": model.detokenize([token])})
            yield self.CONTENT_SENT
        yield self.ENDING
        yield self.event("content_block_stop", index=0)
        yield self.event("message_delta", usage={"output_tokens": len(task.answer)},
                         delta={"stop_reason": self.stopped(task), "stop_sequence": None})
        yield self.event("message_stop")


class Responses(Api):
    def whole(self, task, slot, index):
        text = {"type": "output_text", "annotations": [], "logprobs": [],
                "text": self.text(task)}
        return {"id": self.id, "object": "response", "created_at": 1700000000,
                "model": self.server.settings.alias, "status": "completed",
                "output": [{"content": [text], "id": "msg_1", "role": "assistant",
                            "status": "completed", "type": "message"}],
                "usage": self.counts(input_tokens=len(task.tokens),
                                     output_tokens=len(task.answer))
                | {"input_tokens_details": self.counts(cached_tokens=task.cache_n)}}

    def event(self, kind, **facts):
        return [b"event: " + kind.encode()] + data_line({"type": kind, **facts})

    def events(self, task, slot, steps):
        yield self.event("response.created", response={"id": self.id, "status": "in_progress"})
        for token in steps:
            yield self.event("response.output_text.delta", delta=model.detokenize([token]))
            yield self.CONTENT_SENT
        yield self.ENDING
        yield self.event("response.completed", response=self.whole(task, slot, 0))


def from_messages(value):
    """An Anthropic body as the chat body that llama-server makes of it: without a slot."""
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise Refused(400, "'messages' is required")
    messages = list(value["messages"])
    if value.get("system"):
        messages.insert(0, {"role": "system", "content": value["system"]})
    keep = {k: v for k, v in value.items()
            if k not in ("id_slot", "cache_prompt", "system", "messages", "n")}
    return keep | {"messages": messages}


def from_responses(value):
    given = value.get("input", "") if isinstance(value, dict) else ""
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else [
        {"role": m.get("role", "user"), "content": m["content"]}
        for m in given if isinstance(m, dict) and "content" in m]
    if value.get("instructions"):
        messages.insert(0, {"role": "system", "content": value["instructions"]})
    keep = {k: v for k, v in value.items() if k in ("id_slot", "cache_prompt", "stream")}
    return keep | {"messages": messages, "max_tokens": value.get("max_output_tokens", -1)}


GENERATIONS = {
    "/v1/chat/completions": Chat, "/chat/completions": Chat,
    "/v1/completions": Completions, "/completion": Native, "/completions": Native,
    "/v1/messages": Messages, "/v1/responses": Responses, "/responses": Responses,
}

ROUTES = {
    ("GET", "/health"): Standin.health, ("GET", "/v1/health"): Standin.health,
    ("GET", "/props"): Standin.props, ("POST", "/props"): Standin.props_set,
    ("GET", "/v1/models"): Standin.models, ("GET", "/models"): Standin.models,
    ("GET", "/slots"): Standin.slots, ("GET", "/metrics"): Standin.metrics,
    ("GET", "/lora-adapters"): Standin.lora_list,
    ("POST", "/lora-adapters"): Standin.lora_set,
    ("POST", "/tokenize"): Standin.tokenize, ("POST", "/detokenize"): Standin.detokenize,
    ("POST", "/apply-template"): Standin.apply_template,
    ("POST", "/v1/messages/count_tokens"): Standin.count_tokens,
    ("POST", "/v1/chat/completions/input_tokens"): Standin.count_tokens,
    ("POST", "/v1/embeddings"): Standin.unsupported, ("POST", "/v1/rerank"): Standin.unsupported,
    ("POST", "/infill"): Standin.unsupported,
    **{("POST", path): Standin.generation for path in GENERATIONS},
}


# ---- steering as a program -----------------------------------------------------------------

def _query(record):
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(record.target).query))


def _control_log(server, query, body):
    return [r.public() for r in server.requests() if not r.path.startswith("/_test/")]


def _control_release(server, query, body):
    n = query.get("n")
    server.release(query["point"], int(n) if n else None, query.get("match", ""))


CONTROLS = {
    "log": _control_log,                                   # all requests so far
    "state": lambda server, query, body: server.state(),
    "events": lambda server, query, body: server.events(),
    "hold": lambda server, query, body: server.hold(query["point"], query.get("match", "")),
    "release": _control_release,                           # ?point=…[&n=…][&match=…]
    "set": lambda server, query, body: server.set(**json.loads(body)),
    "fault": lambda server, query, body: server.fault(**json.loads(body)),
    "close-idle": lambda server, query, body: server.close_idle(),
}


def control(server, conn, record, body):
    name = record.path.removeprefix("/_test/")
    if name == "restart":
        conn.answer_json({"ok": True})
        threading.Thread(target=server.restart, daemon=True).start()
        return False
    if name not in CONTROLS:
        raise Refused(404, "File Not Found", "not_found_error")
    return conn.answer_json(CONTROLS[name](server, _query(record), body))


def main():
    parser = argparse.ArgumentParser(description="A stand-in for llama-server.")
    parser.add_argument("--port", type=int, default=0)
    types = {int: int, str: str, float: float}
    for field in dataclasses.fields(Settings):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool or field.type == "bool":
            parser.add_argument(flag, action=argparse.BooleanOptionalAction,
                                default=field.default)
        elif isinstance(field.default, (int, str, float)):
            parser.add_argument(flag, type=types[type(field.default)], default=field.default)
    options = vars(parser.parse_args())
    port = options.pop("port")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = Standin(**options)
    server.on_death = lambda: os._exit(134)
    server.start(port)
    print(server.port, flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
