# SPDX-License-Identifier: MIT
"""What end-to-end tests stand on: processes, raw HTTP, event streams, the admin side.

A test gets its own temporary folder, its own engine and its own gateway, on ports that
the system picks. It never sleeps for luck: it waits for something it can observe, with a
deadline. Where a test fails, the gateway's output is shown.
"""

import collections
import hashlib
import http.client
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import toy_model  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT_BIN = os.path.join(ROOT, "build", "release", "incipit")
PATIENCE_S = float(os.environ.get("INCIPIT_PATIENCE", "15"))
STOP_S = 5    # that a gateway has to end in
ENGINE = os.environ.get("INCIPIT_ENGINE", "standin")   # see engines.py


def binary():
    return os.environ.get("INCIPIT_BIN", DEFAULT_BIN)


def under():
    """What gateways run under, as words: valgrind and its flags (tests/run.py)."""
    return shlex.split(os.environ.get("INCIPIT_UNDER", ""))


def wait_until(condition, what, timeout=None, step=0.005):
    """Asks until condition() is true and returns its value."""
    deadline = time.monotonic() + (timeout or PATIENCE_S)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout or PATIENCE_S} s: "
                                 f"{what() if callable(what) else what}")
        time.sleep(step)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


# ---- raw HTTP ----------------------------------------------------------------------------

class Answer:
    """One answer as received. `complete` is False where its framing did not end."""

    def __init__(self, head):
        self.raw_head = head
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        self.version, status, _ = (first + "  ").split(" ", 2)
        self.status = int(status)
        self.headers = [(k, v.strip()) for k, _, v in (x.partition(":") for x in lines)]
        self.body = b""
        self.trailing = b""
        self.complete = False

    def get(self, name):
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def all(self, name):
        return [v for k, v in self.headers if k.lower() == name.lower()]

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<Answer {self.status} {len(self.body)} bytes complete={self.complete}>"


class Client:
    """A connection in the hands of a test: it sends any bytes, in any cuts."""

    def __init__(self, port, timeout=None, receive_buffer=None):
        is_path = isinstance(port, str)      # of a UNIX socket
        self.sock = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(timeout or PATIENCE_S)
        self.sock.connect(port if is_path else ("127.0.0.1", port))
        if not is_path:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.closed = False      # the peer has sent FIN
        self.reset = False       # or RST

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def hang_up(self):
        """Ends what other threads wait for on this connection."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def abort(self):
        """Leaves with an RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, data, cut=None):
        """Sends the bytes; with `cut`, in pieces of that size, each in its own segment."""
        for at in range(0, len(data), cut or len(data) or 1):
            self.sock.sendall(data[at:at + (cut or len(data))])

    def fill(self):
        """Takes what has come; False at the end."""
        if self.closed or self.reset:
            return False
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionResetError:
            self.reset = True
            return False
        if not data:
            self.closed = True
            return False
        self.buffer += data
        return True

    def read_until(self, mark):
        while (at := self.buffer.find(mark)) < 0:
            if not self.fill():
                raise EOFError(f"closed before {mark!r}; had {self.buffer[-200:]!r}")
        return self.take(at + len(mark))

    def take(self, n):
        while len(self.buffer) < n:
            if not self.fill():
                raise EOFError(f"closed after {len(self.buffer)} of {n} bytes")
        out, self.buffer = self.buffer[:n], self.buffer[n:]
        return out

    def read_head(self):
        return Answer(self.read_until(b"\r\n\r\n"))

    def read_answer(self, method="GET", skip_1xx=True):
        """Head and body. A body that is cut short leaves complete False."""
        answer = self.read_head()
        while skip_1xx and 100 <= answer.status < 200:
            answer = self.read_head()
        return self.read_rest(answer, method)

    def read_rest(self, answer, method="GET"):
        """What follows a head."""
        if method == "HEAD" or answer.status in (204, 304) or answer.status < 200:
            answer.complete = True
            return answer
        self._read_body(answer)
        return answer

    def _read_body(self, answer):
        try:
            if "chunked" in (answer.get("Transfer-Encoding") or ""):
                for piece in self.chunks():
                    answer.body += piece
                answer.complete = True
            elif (length := answer.get("Content-Length")) is not None:
                answer.body = self.take(int(length))
                answer.complete = True
            else:
                while self.fill():
                    pass
                answer.body, self.buffer = self.buffer, b""
                answer.complete = self.closed
        except EOFError:
            answer.body += self.buffer

    def chunks(self):
        """Decoded chunks as they come; ends behind the last one."""
        while size := int(self.read_until(b"\r\n"), 16):
            piece = self.take(size)
            if self.take(2) != b"\r\n":
                raise ValueError("chunk without its end")
            yield piece
        if self.read_until(b"\r\n") != b"\r\n":
            raise ValueError("trailers")

    def events(self):
        """Events of a chunked stream as (bytes, time of arrival of the last byte)."""
        pending = b""
        for piece in self.chunks():
            now = time.monotonic()
            pending += piece
            while match := re.search(rb"\r?\n\r?\n", pending):
                yield pending[:match.end()], now
                pending = pending[match.end():]
        if pending:
            yield pending, time.monotonic()

    def wait_closed(self, timeout=None):
        """Reads (and keeps) until the peer closes; True where it did."""
        self.sock.settimeout(timeout or PATIENCE_S)
        try:
            while self.fill():
                pass
            return True
        except TimeoutError:
            return False

    def silent(self, seconds=0.05):
        """True where nothing comes. For showing that something did NOT happen."""
        self.sock.settimeout(seconds)
        try:
            return not self.fill() and not self.buffer
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(PATIENCE_S)


def step_by_step(client, engine, n=4):
    """Events of a stream whose engine holds "event" and has let go of one: n of them, each
    before the next one exists, then the rest."""
    events = client.events()
    seen = [next(events)[0]]
    while len(seen) < n:
        engine.wait_held("event")
        engine.release("event", 1)
        seen.append(next(events)[0])
    engine.release("event")
    return seen + [x[0] for x in events]


def request_bytes(method, path, body=None, headers=(), host="test"):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{k}: {v}" for k, v in headers]
    if body is not None and not any(k.lower() in ("content-length", "transfer-encoding")
                                    for k, _ in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def fetch(port, method, path, body=None, headers=(), timeout=None):
    """One request on its own connection."""
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
        headers = (*headers, ("Content-Type", "application/json"))
    with Client(port, timeout) as client:
        client.send(request_bytes(method, path, body, headers))
        return client.read_answer(method)


# ---- requests of the APIs ----------------------------------------------------------------

CHAT = "/v1/chat/completions"


def chat_body(messages, **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": "standin-tiny", "messages": messages, "max_tokens": 4, **more}


def words(n, seed="words"):
    """Text of about n tokens of the engine in use, always the same for the same seed."""
    out, state = [], seed.encode()
    for i in range(n):
        if ENGINE == "lab" and len(" ".join(out)) > n:   # its tokens are bytes
            break
        if i % 16 == 0:
            state = hashlib.sha256(state).digest()
        at = int.from_bytes(state[2 * (i % 16):2 * (i % 16) + 2], "little")
        out.append(toy_model.token_bytes(
            toy_model.ANSWER_IDS[at % len(toy_model.ANSWER_IDS)]).decode().strip())
    return " ".join(out)


def stream_events(body):
    """The JSON of each data line of an event stream."""
    out = []
    for line in body.replace(b"\r\n", b"\n").split(b"\n"):
        if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
            out.append(json.loads(line[5:]))
    return out


def stream_text(body):
    return "".join(c["delta"].get("content") or "" for e in stream_events(body)
                   for c in e["choices"])


def common(a, b):
    return next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]),
                min(len(a), len(b)))


# ---- the gateway ---------------------------------------------------------------------------

def to_yaml(value, indent=0):
    """Mappings, lists of scalars or of mappings, scalars: enough for configuration files."""
    lines = []
    for key, item in value.items():
        pad = "  " * indent
        if isinstance(item, dict):
            lines += [f"{pad}{key}:", to_yaml(item, indent + 1)]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            lines += [f"{pad}{key}:"]
            for x in item:
                first, *rest = (f"{k}: {_scalar(v)}" for k, v in x.items())
                lines += [f"{pad}  - {first}"] + [f"{pad}    {y}" for y in rest]
        elif isinstance(item, list):
            lines.append(f"{pad}{key}: [{', '.join(_scalar(x) for x in item)}]")
        else:
            lines.append(f"{pad}{key}: {_scalar(item)}")
    return "\n".join(lines)


def _scalar(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class Pipes:
    """Lines of a process's pipes, in order of arrival, to `take(line)`: on a thread as they
    come, and in drain() all that was written before. So who has seen something happen
    finds what was said of it."""

    def __init__(self, pipes, take):
        self._pipes, self._take = list(pipes), take
        self._rest = {pipe: b"" for pipe in self._pipes}   # of those that are open
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @staticmethod
    def _ready(pipes, timeout_ms):
        poll = select.poll()
        for pipe in pipes:
            poll.register(pipe, select.POLLIN)
        return {fd for fd, _ in poll.poll(timeout_ms)}

    def _read(self, pipe):
        data = os.read(pipe.fileno(), 1 << 16)
        *lines, rest = (self._rest[pipe] + data).split(b"\n")
        if not data:
            del self._rest[pipe]
            lines += [rest] if rest else []
        else:
            self._rest[pipe] = rest
        for line in lines:
            self._take(line.decode(errors="replace"))

    def drain(self):
        with self._lock:
            while ready := self._ready(self._rest, 0):
                for pipe in [p for p in self._rest if p.fileno() in ready]:
                    self._read(pipe)

    def _watch(self):
        while pipes := list(self._rest):
            self._ready(pipes, None)
            self.drain()
        for pipe in self._pipes:
            pipe.close()

    def join(self, timeout):
        self._thread.join(timeout)


class Gateway:
    """One gateway process. Its configuration is written from a dict."""

    def __init__(self, folder, upstream, config=None, store=True, arguments=(), env=None):
        self.folder, self.config, self.env = folder, dict(config or {}), env
        self.arguments = list(arguments)
        self.upstream = upstream     # None: the configuration has some
        self.slot_dir = os.path.join(folder, "slots")
        self.store_dir = os.path.join(folder, "store") if store else None
        self.child = None
        self._lines = []             # of both streams, in order of arrival
        self.listen = self.admin_listen = "127.0.0.1:0"
        self.port = self.admin_port = 0      # or paths of UNIX sockets
        self._pipes = None
        self.exit_codes = [0]        # that a test puts up with

    def command(self):
        out = [*under(), binary(), "serve", "--listen", self.listen, "--admin", self.admin_listen]
        if self.upstream:
            out += ["--upstream", self.upstream, "--slot-dir", self.slot_dir]
        if self.store_dir:
            out += ["--store-dir", self.store_dir]
        if self.config:
            path = os.path.join(self.folder, "incipit.yaml")
            with open(path, "w", encoding="utf-8") as f:
                f.write(to_yaml(self.config) + "\n")
            out += ["--config", path]
        return out + self.arguments

    def start(self, wait="listening"):
        os.makedirs(self.slot_dir, mode=0o700, exist_ok=True)
        self.port = self.admin_port = 0
        self.child = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      env=dict(os.environ, **(self.env or {})))
        self._pipes = Pipes((self.child.stdout, self.child.stderr), self._take)
        wait_until(lambda: (self.port and self.admin_port) or self.child.poll() is not None,
                   lambda: f"two listening lines; output: {self.text()}")
        if self.child.poll() is not None:
            raise AssertionError(f"gateway ended with {self.child.returncode}:\n{self.text()}")
        if wait == "ready":
            self.wait_ready()
        return self

    def _take(self, text):
        self._lines.append(text)
        if match := re.match(r"(listening|admin) on (?:unix:(/.*)|\S*:(\d+))$", text):
            place = match[2] or int(match[3])
            if match[1] == "admin":
                self.admin_port = place
            else:
                self.port = place

    @property
    def output(self):
        """All lines that it has written by now."""
        if self._pipes:
            self._pipes.drain()
        return self._lines

    def text(self):
        return "\n".join(self.output)

    def alive(self):
        return self.child is not None and self.child.poll() is None

    def signal(self, number=signal.SIGTERM):
        self.child.send_signal(number)

    def wait_exit(self, timeout=None):
        code = self.child.wait(timeout or PATIENCE_S)
        self._pipes.join(5)
        return code

    def stop(self):
        """Ends it however it takes; returns the exit status."""
        if self.child is None:
            return None
        if self.alive():
            self.signal()
            try:
                return self.wait_exit(PATIENCE_S if under() else STOP_S)
            except subprocess.TimeoutExpired:
                self._lines += [f"test: still there {STOP_S} s after it was told to stop",
                                *self.threads()]
                self.child.kill()
        return self.wait_exit(5)

    def threads(self):
        """What each thread of it is at, as the kernel sees it: a line each."""
        folder = f"/proc/{self.child.pid}/task"
        for task in sorted(os.listdir(folder), key=int):
            seen = [f"test: thread {task}"]
            for name in ("comm", "stat", "wchan", "syscall"):
                try:
                    with open(os.path.join(folder, task, name), encoding="ascii") as f:
                        seen.append(f"{name}={f.read().strip()[:200]}")
                except OSError as why:
                    seen.append(f"{name}: {why.strerror}")
            yield " ".join(seen)

    def crash(self):
        self.child.kill()
        self.exit_codes.append(-signal.SIGKILL)
        return self.wait_exit(5)

    def resident_kib(self):
        with open(f"/proc/{self.child.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])

    def descriptors(self):
        """How many of its descriptors are "sockets", and how many are "files"."""
        folder = f"/proc/{self.child.pid}/fd"
        kinds = collections.Counter()
        for fd in os.listdir(folder):
            try:
                target = os.readlink(os.path.join(folder, fd))
            except OSError:
                continue
            kinds["sockets" if target.startswith("socket:") else "files"] += 1
        return kinds

    # -- the admin side: the only place that knows its shape --

    def admin(self, path, method="GET", body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", timeout=PATIENCE_S)
        connection.sock = Client(self.admin_port).sock
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def cache(self):
        status, body = self.admin("/cache")
        assert status == 200, (status, body)
        return json.loads(body)

    def pins(self):
        """{name: pin} of /cache."""
        return {pin["name"]: pin for pin in self.cache()["pins"]}

    def stats(self):
        status, body = self.admin("/stats")
        assert status == 200, (status, body)
        return json.loads(body)

    def total(self, name):
        return self.stats()["total"][name]

    def replica(self):
        return self.stats()["replicas"][0]

    def mode(self):
        replicas = self.stats()["replicas"]
        return replicas[0]["mode"] if replicas else None

    def restore_failures(self):
        return sum(self.replica().get("restore_failures", {}).values())

    def store_stats(self):
        return self.stats().get("store") or {}

    def in_flight(self):
        return self.stats()["total"]["in_flight"]

    def in_state(self, name):
        """Requests that are in this state of their life now."""
        return self.stats()["total"]["states"][name]

    def metrics(self):
        """{name{labels}: value} of /metrics, checked for form on the way."""
        status, body = self.admin("/metrics")
        assert status == 200, (status, body)
        return parse_metrics(body.decode())

    def metric(self, name, **labels):
        """Sum of all samples of that name whose labels contain these."""
        found = [value for (sample, given), value in self.metrics().items()
                 if sample == name and labels.items() <= dict(given).items()]
        return sum(found) if found else None

    def wait_ready(self, mode=None):
        """The replica is known (and in that mode)."""
        def ready():
            if not self.alive():
                raise AssertionError(f"gateway ended: {self.text()}")
            return self.admin("/readyz")[0] == 200 and (mode is None or self.mode() == mode)
        wait_until(ready, lambda: f"ready in mode {mode}: {self.admin('/stats')}")
        return self

    def wait_quiet(self, but=0):
        """Nothing in flight and all slots idle, but for so many requests: what had to be
        learned is learned, what had to be written was."""
        def quiet():
            stats = self.stats()
            written = not stats["store"]["unwritten_bytes"]
            return written and stats["total"]["in_flight"] == but and all(
                r.get("kv_operations", 0) == 0 and not r.get("unbound") and
                sum(slot["state"] != "idle" or slot["unsaved"] for slot in r["slots"]) == but
                for r in stats["replicas"])
        wait_until(quiet, lambda: f"quiet: {self.stats()}")

    def fetch(self, *arguments, **more):
        return fetch(self.port, *arguments, **more)

    def client(self, **more):
        return Client(self.port, **more)


SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parse_metrics(text):
    """Prometheus text format, strictly: each sample has HELP and TYPE before it."""
    out, known = {}, {}
    assert text.endswith("\n"), "last line without end"
    for line in text.splitlines():
        if line.startswith("# "):
            kind, name, value = (line[2:] + " ").split(" ", 2)
            assert kind in ("HELP", "TYPE"), line
            assert (kind, name) not in known, f"twice: {line}"
            known[kind, name] = value.strip()
            continue
        match = SAMPLE.match(line)
        assert match, f"not a sample: {line!r}"
        name, labels, value = match[1], match[2] or "", float(match[3])
        pairs = LABEL.findall(labels)
        assert LABEL.sub("", labels) == "", f"bad labels: {line!r}"
        family = name
        if ("TYPE", name) not in known:
            family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert ("TYPE", family) in known and ("HELP", family) in known, f"unannounced: {line}"
        if known["TYPE", family] == "counter":
            assert name.endswith("_total"), f"counter without _total: {name}"
            assert value >= 0, line
        key = (name, tuple(sorted(pairs)))
        assert key not in out, f"twice: {line}"
        out[key] = value
    return out


# ---- the test case -------------------------------------------------------------------------

# Things that a gateway must never make an engine do, whatever the test.
NEVER = ("poison", "died", "slot-action-busy", "save-empty", "restore-missing",
         "restore-damaged", "restore-cut")


class Case(unittest.TestCase):
    """One engine, one gateway, one folder. `allowed` names what a test provokes."""

    allowed = ()

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="incipit-e2e-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.engines, self.gateways = [], []
        self.addCleanup(self._end)

    def _end(self):
        for gateway in self.gateways:
            code = gateway.stop()
            if code not in (*gateway.exit_codes, None) or "Sanitizer" in gateway.text():
                self._show(gateway)
                self.fail(f"gateway ended with {code}")
        for engine in self.engines:
            engine.stop()
        if self._failed():
            for gateway in self.gateways:
                self._show(gateway)

    def _failed(self):
        """By what the result has been told so far: from Python 3.11 on that is at once."""
        result = self._outcome.result
        return self.id() in getattr(result, "broken", ()) or any(
            test is self for test, _ in [*result.failures, *result.errors])

    def _show(self, gateway):
        print(f"--- output of the gateway in {self.id()}", *gateway.output[-80:], "---",
              sep="\n", file=sys.stderr)

    def need_gateway(self):
        if not os.access(binary(), os.X_OK):
            self.skipTest(f"no gateway program at {os.path.relpath(binary(), ROOT)}")

    def engine(self, **settings):
        settings.setdefault("slot_dir", os.path.join(self.folder, "slots"))
        if settings["slot_dir"]:
            os.makedirs(settings["slot_dir"], mode=0o700, exist_ok=True)
        import engines   # which needs this module
        engine = engines.make(ENGINE, self.folder, settings)
        self.engines.append(engine)
        return engine

    def need_standin(self, what):
        """Other engines skip a test that cannot be without this."""
        import engines
        if ENGINE != "standin":
            self.skipTest(engines.NEEDS + what)

    def engines_of(self, *settings):
        """Those of the settings that the engine in use has."""
        import engines
        return [s for s in settings if engines.can(ENGINE, s)]

    def assert_right(self, engine, body, text):
        """An answer is what the engine says where it holds nothing; llama-server's depend
        in their last bits on how batches were cut, and are not compared."""
        expected = engine.right_answer(body)
        if expected is not None:
            self.assertEqual(text, expected)

    def gateway(self, engine, config=None, wait="ready", mode=None, **more):
        self.need_gateway()
        upstream = engine.url if hasattr(engine, "url") else engine
        gateway = Gateway(self.folder, upstream, config, **more)
        self.gateways.append(gateway)
        gateway.start(wait="listening")
        if wait == "ready":
            gateway.wait_ready(mode)
        return gateway

    def pair(self, config=None, mode=None, store=True, **settings):
        """An engine and a gateway in front of it, probes and self-test over."""
        self.need_gateway()
        engine = self.engine(**settings)
        gateway = self.gateway(engine, config, mode=mode, store=store)
        engine.wait_idle()
        engine.reset_log()
        return engine, gateway

    def assert_clean(self, *engines, allowed=()):
        """The engine was never made to do what it must not."""
        for engine in engines or self.engines:
            bad = [e for e in engine.events(*NEVER)
                   if e["event"] not in (*self.allowed, *allowed)]
            self.assertEqual(bad, [])
            self.assertLessEqual(engine.engine.most_inside, engine.settings.slots,
                                 "more requests inside the engine than slots")
