# SPDX-License-Identifier: MIT
"""The engine that end-to-end tests run against; INCIPIT_ENGINE names it.

    standin                the scripted stand-in (where nothing is said)
    lab                    the built-in engine: `incipit lab serve`
    llama-old, llama-new   a real llama-server, see tools/llama_server.py

An engine process is asked through a relay, which has the handles of the stand-in, since it
is the stand-in without its model: it writes down each request and its answer, and does to
them what a network can do: hold them, cut them, end connections. What an engine says and
what happens in its slots is the engine's own. A test that needs more than that is skipped
with a reason that begins with NEEDS.
"""

import atexit
import json
import os
import re
import select
import sys
import threading
import unittest

import standin
from harness import Client, ROOT, fetch, wait_until

sys.path.insert(0, os.path.join(ROOT, "tools"))
import lab_engine  # noqa: E402
import llama_server  # noqa: E402

NEEDS = "needs the stand-in: "
PATIENCE_S = 120
ENDS = re.compile(rb'\[DONE\]|"type": ?"message_stop"|"stop": ?true')  # of streams


REASONS = {  # of settings that only the stand-in has
    "counts": "counts that lie", "crlf": "events in another form",
    "comments": "events in another form", "usage_twice": "events in another form",
    "lora": "adapters", "order": "templates of other orders", "unified": "one stream for all",
    "max_body": "answers of a script", "model_path": "a model file of the test",
    "slot_dir": "no slot directory", "state_version": "other state versions",
    "v_transposed": "V transposed", "window": "a sliding window",
    "swa_full": "a sliding window", "empties_idle": "idle slots emptied",
    "no_slots": "no /slots", "restore_lies": "restores that lie",
}


def make(kind, folder, settings):
    """An engine of this kind that runs, with the settings of standin.Settings."""
    if kind == "standin":
        return standin.Standin(**settings).start()
    return KINDS[kind](folder, settings).start()


def can(kind, settings):
    """Whether that kind of engine has these settings."""
    return kind == "standin" or not KINDS[kind].missing(settings)


# ---- a connection and its other half ---------------------------------------------------

class Wire(standin.Connection):
    """A gateway's connection and the one to the engine that it is relayed to."""

    def __init__(self, server, sock, index):
        super().__init__(server, sock, index)
        self.engine = None
        self.goes_on = False      # the engine is not told that its client has left

    def fill(self):
        """Where the engine closes a connection that rests, so do we."""
        both = [self.sock] + ([self.engine.sock] if self.engine else [])
        ready, _, _ = select.select(both, [], [], self.sock.gettimeout())
        if self.sock not in ready:
            raise standin.ClientGone
        super().fill()

    def left(self):
        super().left()
        if self.record:
            self.server.engine.leave(self.record)
        if not self.goes_on:
            self.close_engine()

    def drop(self, reset=False):
        super().drop(reset)
        self.close_engine()

    def close_engine(self):
        if self.engine:
            self.engine.hang_up()

    def run(self):
        try:
            super().run()
        finally:
            if self.engine:
                self.engine.close()

    # -- one request --

    def relay(self, record, body, fault):
        """Asks the engine and passes its answer on; False: the connection ends behind it."""
        process = self.server.process
        if not process:
            raise standin.ClientGone
        if self.engine is None:
            self.engine = Client(process.port, PATIENCE_S)
        if self.dropped or (self.gone and not self.goes_on):
            raise standin.ClientGone
        head = re.sub(rb"\r\nExpect:[^\r]*", b"", record.raw_head, flags=re.I)
        more = self.server.hold_header(record)
        try:
            self.engine.send(head[:-2] + more + b"\r\n" + body)
            if more:
                self.server.while_held(self, record)
            answer = self.engine.read_head()
            while answer.status < 200:
                answer = self.engine.read_head()
            record.status, record.answer = answer.status, answer
            if not more and record in self.server.engine.inside:
                self.server.engine.pass_point("head", record)
            if "event-stream" in (answer.get("Content-Type") or ""):
                self._stream(record, answer, fault)
            else:
                self._whole(record, answer, fault)
        except EOFError:
            self.server.look_after_process()
            self.server.engine.leave(record)
            self.drop()
            raise standin.ClientGone from None
        return "close" not in (answer.get("Connection") or "").lower()

    def _head(self, answer):
        more = "".join(f"{k}: {v}\r\n" for k, v in self.server.settings.headers)
        return answer.raw_head[:-2] + more.encode("latin-1") + b"\r\n"

    def _whole(self, record, answer, fault):
        self.engine.read_rest(answer, record.method)
        if not answer.complete:
            raise EOFError
        body = answer.body
        self.server.account(record, body)
        self.server.note_action(record, body)
        self.server.engine.leave(record)
        if fault:
            self._break(record, fault, self._head(answer) + body[:len(body) // 2])
        record.sent += body
        if answer.get("Transfer-Encoding"):
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        self.send(self._head(answer) + body)
        record.done = True

    def _stream(self, record, answer, fault):
        self.send(self._head(answer))
        content = False
        for piece in self.engine.chunks():
            if fault and record.n_events >= fault.after:
                self._break(record, fault)
            self.server.account(record, piece)
            if ENDS.search(piece):
                self.server.engine.leave(record)
            self.server.engine.pass_point("event", record)
            record.n_events += 1
            record.sent += piece
            step = self.server.settings.chunk_cut or len(piece)
            for at in range(0, len(piece), step):
                part = piece[at:at + step]
                self.send(b"%x\r\n%s\r\n" % (len(part), part))
            if not content and has_content(piece):
                content = True
                self.server.engine.pass_point("stream", record)
        self.server.engine.leave(record)
        self.server.engine.pass_point("framing", record)
        self.end_stream()

    def _break(self, record, fault, last=b""):
        self.send(last)
        self.server.engine.leave(record)
        self.drop(reset=fault.kind == "rst")
        raise standin.ClientGone


def has_content(piece):
    """Generated text, in the words of any API."""
    return any(found != b"" for found in re.findall(
        rb'"(?:content|text)": ?"((?:[^"\\]|\\.)*)"', piece))


def parts_of(data):
    """The JSON documents of an answer or of events."""
    lines = [line[5:] for line in data.split(b"\n") if line.startswith(b"data:")]
    for text in lines or [data]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def counts_of(value):
    """Reused and computed prompt tokens that a document tells, or None."""
    timings = value.get("timings")
    if timings:
        return timings["cache_n"], timings["prompt_n"]
    usage = value.get("usage") or (value.get("message") or {}).get("usage") or {}
    if "cache_read_input_tokens" in usage:
        return usage["cache_read_input_tokens"], usage["input_tokens"]
    return None


# ---- an engine process behind a relay ----------------------------------------------------

class Relayed(standin.Standin):
    """What all engine processes share. Subclasses say what they can."""

    connection = Wire
    points = ("arrive", "slots", "save", "restore", "erase", "head", "event", "stream",
              "framing")
    faults_here = ("close-before-head", "rst-before-head", "cut", "rst")
    # What the relay does, and what nobody sees.
    wire_settings = ("restore_fails", "drop_reused", "chunk_cut", "zombies", "alias",
                     "headers")
    settings_here = ()
    holds_slots = False  # can hold a request in its slot
    tells_idle = False   # a slot is idle before the last bytes of its answer are sent

    def __init__(self, folder, settings):
        self._skip_unless(not self.missing(settings), ", ".join(self.missing(settings)))
        super().__init__(**settings)
        self.settings.keep_alive_s, self.settings.keep_alive_max = 60, 1 << 30
        self.folder = folder
        self.process = None

    @classmethod
    def missing(cls, settings):
        """Settings that this kind of engine does not have, in words."""
        usual = standin.Settings()
        return [REASONS.get(name, name) for name, value in settings.items()
                if value != getattr(usual, name) and name not in cls.wire_settings
                and not cls.has(name, value)]

    @classmethod
    def has(cls, name, value):
        return name in cls.settings_here

    @staticmethod
    def _skip_unless(fine, what):
        if not fine:
            raise unittest.SkipTest(NEEDS + what)

    # ---- life ---------------------------------------------------------------------------

    def start(self, port=0):
        if self.process is None:
            self.process = self.make_process()
        return super().start(port)

    def kill(self):
        super().kill()
        process, self.process = self.process, None
        if process:
            self.kill_process(process)

    def stop(self):
        self._stopped = True
        process, self.process = self.process, None
        super().kill()
        if self._place:
            self._place.close()
        if process:
            self.end_process(process)

    def fresh_process(self):
        if self.process:
            self.kill_process(self.process)
        self.engine.reset()
        self.process = self.make_process()

    def look_after_process(self):
        if self.process and not self.alive():
            self.died = True
            self.engine.note("died")

    # ---- handles ------------------------------------------------------------------------

    def set(self, **changes):
        lost = self.missing(changes)
        self._skip_unless(not lost, ", ".join(lost))
        super().set(**changes)

    def hold(self, point, match=b"", in_slot=False):
        fine = point in self.points and (self.holds_slots or not in_slot)
        self._skip_unless(fine, "held in its slot")
        super().hold(point, match)

    def fault(self, kind, **more):
        self._skip_unless(kind in self.faults_here, "answers of a script")
        super().fault(kind, **more)

    def script(self, path, *parts):
        self._skip_unless(False, "answers of a script")

    def direct(self, method, path, body=None):
        """Asks the engine itself, past the relay."""
        if not self.process:
            raise standin.ClientGone
        answer = fetch(self.process.port, method, path, body, timeout=PATIENCE_S)
        if answer.status != 200:
            raise AssertionError(f"{path}: {answer.status} {answer.body[:200]}")
        return answer.json()

    def slots_at_work(self):
        if self.settings.no_slots:
            return []
        return [s["id"] for s in self.direct("GET", "/slots") if s["is_processing"]]

    def wait_idle(self, timeout=PATIENCE_S):
        def idle():
            with self.engine.lock:
                busy = [r for r in self.log if not r.done and not r.gone_t
                        and r.path.startswith("/slots/")]
                if self.engine.inside or self.engine.waiting or busy:
                    return False
            return not self.slots_at_work()
        wait_until(idle, lambda: f"idle: {self.state()} {self.slots_at_work()}", timeout)

    def forget_slots(self):
        for slot in range(self.settings.slots):
            self.direct("POST", f"/slots/{slot}?action=erase", {})

    def prompt_of(self, body):
        prompt = self.direct("POST", "/apply-template", body)["prompt"]
        return self.direct("POST", "/tokenize", {"content": prompt, "add_special": True,
                                                 "parse_special": True})["tokens"]

    def right_answer(self, body):
        return None   # depends in its last bits on how batches were cut

    # ---- requests -----------------------------------------------------------------------

    def handle(self, conn, record, body):
        action = re.fullmatch(r"/slots/(\d+)", record.path)
        if record.path in standin.GENERATIONS and record.method == "POST":
            return self._generation(conn, record, body)
        if action and record.method == "POST":
            return self._slot_action(conn, record, body, int(action[1]))
        if record.path == "/slots":
            self.engine.pass_point("slots", record)
        return conn.relay(record, body, None)

    def hold_header(self, record):
        """Where a test holds it in its slot, what tells an engine that can do so."""
        return b""

    def _generation(self, conn, record, body):
        record.slot, record.n, record.stream = self._wishes(record, body)
        self._enter(record)
        try:
            self.engine.pass_point("arrive", record)
            fault = self._fault(record)
            if fault and fault.kind.endswith("before-head"):
                self.engine.leave(record)
                conn.drop(reset=fault.kind.startswith("rst"))
                raise standin.ClientGone
            return conn.relay(record, body, fault)
        finally:
            self.engine.leave(record)

    def _wishes(self, record, body):
        """The slot that it names, and how many it takes."""
        value = next(parts_of(body), {})
        slot, n = value.get("id_slot", -1), value.get("n", 1)
        if type(slot) is not int or slot < 0 or record.path == "/v1/messages":
            slot = -1
        return (slot % self.settings.slots if slot >= 0 else -1,
                n if type(n) is int and n > 0 else 1, value.get("stream") is True)

    def _enter(self, record):
        with self.engine.lock:
            others = list(self.engine.inside)
            self.engine.enter(record)
        waits = (sum(r.n for r in others) + record.n > self.settings.slots
                 or (record.slot >= 0 and record.slot in [r.slot for r in others]))
        if waits or (self.tells_idle and record.slot in self.slots_at_work()):
            self.engine.note("deferred", request=record.index)

    def account(self, record, data):
        if b'"cache_n"' in data or b'"cache_read_input_tokens"' in data:
            for value in parts_of(data):
                if counts := counts_of(value):
                    record.cache_n, record.prompt_n = counts
                if value.get("id_slot", -1) >= 0:
                    record.slot = value["id_slot"]

    # ---- slot actions -------------------------------------------------------------------

    def _slot_action(self, conn, record, body, slot):
        action = record.target.partition("?action=")[2]
        conn.goes_on = True   # as it is done whoever waits for it
        self.engine.pass_point(action, record, cancellable=False)
        if self.tells_idle and slot in self.slots_at_work():
            self.engine.note("slot-action-busy", action=action, slot=slot)
        name = next(parts_of(body), {}).get("filename", "")
        if action == "restore":
            if not os.path.exists(os.path.join(self.settings.slot_dir, name)):
                self.engine.note("restore-missing", slot=slot, name=name)
            elif self.settings.restore_fails:
                body = body.replace(name.encode(), b"-" * len(name))
        going = conn.relay(record, body, None)
        conn.goes_on = False
        return going

    def note_action(self, record, body):
        """What became of a slot action; the gateway is told behind this."""
        if not re.match(r"/slots/\d", record.path):
            return
        action, value = record.target.partition("?action=")[2], next(parts_of(body), {})
        slot, name = value.get("id_slot"), value.get("filename")
        if "error" in value:
            if action == "restore" and not self.settings.restore_fails:
                self.engine.note("restore-damaged", why=value["error"].get("message"))
        elif action == "save":
            if not value["n_saved"]:
                self.engine.note("save-empty", slot=slot)
            self.engine.note("save", slot=slot, name=name, tokens=value["n_saved"],
                             bytes=value["n_written"])
        elif action == "restore":
            self.engine.note("restore", slot=slot, name=name, tokens=value["n_restored"],
                             bytes=value["n_read"])
        elif action == "erase":
            self.engine.note("erase", slot=slot, tokens=value["n_erased"])


# ---- the built-in engine -------------------------------------------------------------------

class Lab(lab_engine.Lab):
    """INCIPIT_LAB_BIN: another build than the gateway's, one that computes faster."""

    def command(self):
        program, *rest = super().command()
        return [os.environ.get("INCIPIT_LAB_BIN", program), *rest]


class LabEngine(Relayed):
    points = (*Relayed.points, "prefill", "zombie")
    settings_here = ("slots", "n_ctx", "slot_dir", "weights", "restore_lies", "no_slots")
    own_headers = {}
    holds_slots = tells_idle = True

    @classmethod
    def has(cls, name, value):
        return super().has(name, value) or (name == "state_version" and value in (2, 4))

    def make_process(self):
        s = self.settings
        return Lab(s.slot_dir, slots=s.slots, context=s.n_ctx, seed=s.weights, alias=s.alias,
                   state_version=s.state_version, predict=s.answer_tokens,
                   misbehave=",".join(self._ways())).start()

    def _ways(self):
        given = {"restore-lies": self.settings.restore_lies, "no-slots": self.settings.no_slots,
                 "stays-busy": any(g[0] == "zombie" for g in self.engine.gates)}
        return [way for way, wanted in given.items() if wanted]

    def _tell_ways(self):
        if self.process:
            self.process.misbehave(*self._ways())

    def set(self, **changes):
        super().set(**changes)
        self._tell_ways()

    def hold(self, point, match=b"", in_slot=False):
        super().hold(point, match)
        if point == "zombie":
            self._tell_ways()

    def release(self, point, n=None, match=b""):
        super().release(point, n, match)
        if point == "zombie":
            self._tell_ways()

    def release_all(self):
        super().release_all()
        self._tell_ways()

    # -- held in a slot --

    def hold_header(self, record):
        with self.engine.lock:
            if record in self.engine.inside and any(
                    self.engine._gate(p, record) for p in ("prefill", "head")):
                return b"X-Lab-Hold: %d\r\n" % (record.index + 1)
        return b""

    def while_held(self, conn, record):
        name = record.index + 1
        wait_until(lambda: name in self.direct("GET", "/lab/held") or conn.dropped, "held")
        self._find_slot(record)
        try:
            conn.goes_on = True
            self.engine.pass_point("prefill", record, cancellable=False)
            conn.goes_on = False
            if conn.gone:
                conn.close_engine()
            self.engine.pass_point("head", record, cancellable=record.stream)
        finally:
            if not conn.dropped:
                self.direct("POST", "/lab/release", {"hold": name})

    def _find_slot(self, record):
        """The slot of one that named none."""
        if record.slot < 0 and record.n == 1:
            busy = set(self.slots_at_work())
            with self.engine.lock:
                busy -= {r.slot for r in self.engine.inside}
            record.slot = busy.pop() if len(busy) == 1 else -1

    def alive(self):
        return self.process.child.poll() is None

    @staticmethod
    def kill_process(process):
        process.kill()

    @staticmethod
    def end_process(process):
        code = process.stop()
        if code or "Sanitizer" in process.text():
            raise AssertionError(f"lab engine ended with {code}: {process.text()}")

    def right_answer(self, body):
        """Of an engine that computes every prompt from its first token."""
        answer = fetch(twin(self.settings.weights).port, "POST", "/v1/chat/completions",
                       body | {"cache_prompt": False, "stream": False}, timeout=PATIENCE_S)
        return answer.json()["choices"][0]["message"]["content"]


_twins, _twins_lock = {}, threading.Lock()


def twin(weights):
    """A process for reference answers, one for all tests of this process."""
    with _twins_lock:
        if weights not in _twins:
            _twins[weights] = Lab(context=16384, seed=weights).start()
            atexit.register(_twins[weights].stop)
        return _twins[weights]


# ---- llama-server ----------------------------------------------------------------------------

class LlamaEngine(Relayed):
    settings_here = ("slots", "n_ctx", "weights")
    build, version = "old", 2
    model, params = None, {}   # other than the usual ones, see tools/llama_server.py

    @classmethod
    def missing(cls, settings):
        no_folder = settings.get("slot_dir") == ""
        return super().missing(settings) + [REASONS["slot_dir"]] * no_folder

    @classmethod
    def has(cls, name, value):
        return (super().has(name, value) or name == "slot_dir"
                or (name == "state_version" and value == cls.version))

    def make_process(self):
        s = self.settings
        try:
            return llama_server.LlamaServer(
                os.path.dirname(s.slot_dir), self.model or
                ("tiny" if s.weights == 1 else "other"), self.build, slots=s.slots,
                ctx=s.n_ctx * s.slots, alias=s.alias, predict=s.answer_tokens,
                params=self.params).start()
        except llama_server.Unavailable as why:
            raise unittest.SkipTest(str(why)) from None

    def alive(self):
        return self.process.process.poll() is None

    @staticmethod
    def kill_process(server):
        server.process.kill()
        server.process.wait()

    @staticmethod
    def end_process(server):
        server.stop()


class NewLlamaEngine(LlamaEngine):
    build, version = "new", 4


KINDS = {"lab": LabEngine, "llama-old": LlamaEngine, "llama-new": NewLlamaEngine}
