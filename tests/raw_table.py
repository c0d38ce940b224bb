#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The rows of e2e/test_smuggling.py and some more, sent to incipit, nginx and HAProxy.

    tests/raw_table.py [-k WORD] [-o docs/raw-http.md]

Each row is sent whole, in single bytes, and with a hidden request behind it. Behind each
stands a recorder that writes down what reaches it. The table goes to standard output, or
between the two marks of the page. The exit status is 1 where incipit passes on what both
others refuse, or where a request that it did not see as one reached the recorder.
"""

import argparse
import collections
import datetime
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "lib"), os.path.join(HERE, "e2e")]
from harness import Client, Gateway, ROOT, binary, wait_until  # noqa: E402
from test_smuggling import ACCEPTED, CHUNKS, HIDDEN, REFUSED, post  # noqa: E402

LONGEST = 1 << 40       # what the recorder takes for a length
PROBES = b"/props", b"/v1/models", b"/slots", b"/health"    # of incipit, on its own account
DEADLINE_S = 5          # without a byte for so long: it waits for more
WAYS = ("whole", "bytes", "hidden")
MARKS = "<!-- table: make raw-table -->", "<!-- end of table -->"


def get(target, *lines, version=b"HTTP/1.1"):
    return b"\r\n".join([b"GET " + target + b" " + version, *lines]) + b"\r\n\r\n"


# name: (bytes, a header whose fate is of interest)
MORE = {
    "absolute_form": (get(b"http://x/odd", b"Host: x"), None),
    "absolute_form_other_Host": (get(b"http://y/odd", b"Host: x"), None),
    "1_0_without_Host": (get(b"/odd", version=b"HTTP/1.0"), None),
    "Connection_names_X-A": (get(b"/odd", b"Host: x", b"Connection: X-A", b"X-A: 1"), b"X-A"),
    "Connection_names_length": (post(b"Connection: Content-Length", b"Content-Length: 3",
                                     body=b"abc"), None),
    "Keep-Alive": (get(b"/odd", b"Host: x", b"Keep-Alive: 5"), b"Keep-Alive"),
    "Proxy-Connection": (get(b"/odd", b"Host: x", b"Proxy-Connection: a"), b"Proxy-Connection"),
    "TE_trailers": (get(b"/odd", b"Host: x", b"TE: trailers", b"Connection: TE"), b"TE"),
    "Upgrade_h2c": (get(b"/odd", b"Host: x", b"Connection: Upgrade", b"Upgrade: h2c"), b"Upgrade"),
    "underscore_in_name": (get(b"/odd", b"Host: x", b"X_A: 1"), b"X_A"),
    "byte_0x80_in_value": (get(b"/odd", b"Host: x", b"X-A: \x80"), b"X-A"),
    "empty_line_before": (b"\r\n" + get(b"/odd", b"Host: x"), None),
    "GET_with_body": (get(b"/odd", b"Host: x", b"Content-Length: 3") + b"abc", None),
    "GET_chunked": (get(b"/odd", b"Host: x", b"Transfer-Encoding: chunked") + CHUNKS, None),
}


def rows():
    """name: (bytes, header). `/health` gets another name: it is asked by incipit itself."""
    out = {name: (raw, None) for name, (_, raw) in REFUSED.items()}
    out.update((name, (raw, None)) for name, raw in ACCEPTED.items())
    out.update(MORE)
    return {name: (raw.replace(b"/hea", b"/Hea"), header) for name, (raw, header) in out.items()}


# ---- what stands behind ------------------------------------------------------------------

class Seen:
    """One request as it arrived."""

    def __init__(self, head):
        self.head = head
        first, *lines = head[:-4].split(b"\r\n")
        self.target = first.split(b" ")[1] if b" " in first else first
        pairs = [x.partition(b":") for x in lines]
        self.headers = [(name.lower(), value.strip()) for name, _, value in pairs]
        self.lengths = self.all(b"Content-Length")
        self.codings = self.all(b"Transfer-Encoding")
        self.body = None         # until it is complete

    def all(self, name):
        return [v for k, v in self.headers if k == name.lower()]

    def is_probe(self):
        return self.target.startswith(PROBES)

    def odd(self):
        """What a next parser could read in another way."""
        bare = self.head.replace(b"\r\n", b"")
        found = [text for bad, text in (
            (self.lengths and self.codings, "both framings"),
            (len(self.lengths) > 1, "two lengths"),
            (self.codings and self.codings != [b"chunked"], "odd coding"),
            (b"\n" in bare or b"\r" in bare, "bare CR or LF"),
            (re.search(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]", bare), "control byte"),
            (re.search(rb"\r\n[ \t]", self.head), "folded line"),
            (re.search(rb"\r\n[^:\r]*[ \t]:", self.head), "blank before colon")) if bad]
        return found

    def framing(self):
        if self.body is None:
            return "a part"
        if self.codings:
            return f"chunked {len(self.body)}"
        return f"length {self.lengths[0].decode('latin-1')}" if self.lengths else "no body"


class Recorder:
    """Reads requests by the letter of RFC 9112 and answers each with 200."""

    def __init__(self):
        self.seen, self.lock, self.open = [], threading.Lock(), set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        self.open.add(sock)
        with sock, sock.makefile("rb") as stream:
            try:
                while self._one(sock, stream):
                    pass
            except (OSError, ValueError):
                pass             # it left, or it does not speak HTTP
            self.open.discard(sock)

    def _one(self, sock, stream):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()
            if not line:
                return False
            head += line
        request = Seen(head)
        if not request.is_probe():
            with self.lock:
                self.seen.append(request)
        request.body = self._body(request, stream)
        status = b"404 Not Found" if request.is_probe() else b"200 OK"
        sock.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
        return True

    @staticmethod
    def _body(request, stream):
        if not request.codings:
            length = int(request.lengths[0]) if request.lengths else 0
            if length > LONGEST:
                raise ValueError("no length that can be meant")
            return stream.read(length)
        body = b""
        while size := int(stream.readline().split(b";")[0], 16):
            body += stream.read(size)
            stream.readline()
        while stream.readline().strip():
            pass
        return body

    def take(self, place):
        """What has come since the last time, bytes that are still on their way included:
        a request of our own that is sent now arrives behind them."""
        with Client(place) as client:
            client.send(get(b"/sync", b"Host: x"))
            client.read_answer()
        wait_until(lambda: not select.select([*self.open, self.listener], [], [], 0)[0],
                   "all that has come is read")
        with self.lock:
            out, self.seen = [x for x in self.seen if x.target != b"/sync"], []
        return out

    def close(self):
        self.listener.close()


# ---- who is asked ------------------------------------------------------------------------

class Incipit:
    name = "incipit"

    def __init__(self, folder, recorder):
        self.gateway = Gateway(folder, f"http://127.0.0.1:{recorder.port}", store=False)
        self.gateway.start(wait="ready")
        self.place = self.gateway.port

    @staticmethod
    def version():
        with open(os.path.join(ROOT, "build/llhttp/include/llhttp.h"), encoding="ascii") as f:
            parts = re.findall(r"LLHTTP_VERSION_\w+ (\d+)", f.read())
        said = subprocess.run([binary(), "version"], capture_output=True, text=True, check=True)
        return f"{said.stdout.split(chr(10))[0]} (llhttp {'.'.join(parts)})"

    def stop(self):
        self.gateway.stop()


class Proxy:
    """A foreign one, on a UNIX socket: the port need not be guessed."""

    name = None

    def __init__(self, folder, recorder):
        self.program = self.find()
        self.folder, self.recorder = folder, recorder
        self.place = os.path.join(folder, self.name + ".sock")
        config = os.path.join(folder, self.name + ".conf")
        with open(config, "w", encoding="utf-8") as f:
            f.write(self.config())
        self.log = os.path.join(folder, self.name + ".log")
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(self.command(config), stdout=log, stderr=log)
        wait_until(lambda: self.listens() or self.child.poll() is not None,
                   f"{self.name} listens")
        if self.child.poll() is not None:
            with open(self.log, encoding="utf-8", errors="replace") as f:
                raise RuntimeError(f"{self.name} does not start: {f.read()}")

    @classmethod
    def find(cls):
        """Raises CalledProcessError, with the reason, where it is not to be had."""
        return subprocess.run([os.path.join(ROOT, "tools", "proxy.sh"), cls.name], check=True,
                              capture_output=True, text=True).stdout.strip()

    @classmethod
    def version(cls):
        said = subprocess.run([cls.find(), "-v"], capture_output=True, text=True, check=True)
        number = re.search(r"(?:version |/)(\d[\w.+~-]*)", said.stdout + said.stderr)[1]
        return f"{cls.name} {number}"

    def listens(self):
        try:
            Client(self.place).close()
        except OSError:
            return False
        return True

    def stop(self):
        self.child.terminate()
        self.child.wait(15)


class Nginx(Proxy):
    name = "nginx"

    def config(self):
        temporary = "".join(f"{x}_temp_path {self.folder}/{x};\n" for x in
                            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        return f"""daemon off; master_process off; pid {self.folder}/nginx.pid;
error_log stderr; events {{}}
http {{
access_log off;
{temporary}
upstream engine {{ server 127.0.0.1:{self.recorder.port}; keepalive 8; }}
server {{
    listen unix:{self.place};
    location / {{
        proxy_pass http://engine;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_buffering off;
    }}
}}
}}
"""

    def command(self, config):
        return [self.program, "-c", config, "-e", "stderr"]


class Haproxy(Proxy):
    name = "haproxy"

    def config(self):
        return f"""global
    nbthread 1
defaults
    mode http
    timeout connect 10s
    timeout client 30s
    timeout server 30s
frontend front
    bind unix@{self.place}
    default_backend engine
backend engine
    server engine 127.0.0.1:{self.recorder.port}
"""

    def command(self, config):
        return [self.program, "-db", "-f", config]


# ---- one row, one way --------------------------------------------------------------------

def send_pieces(client, data, cut):
    """Until all is sent, or something comes back."""
    try:
        for at in range(0, len(data), cut):
            if select.select([client.sock], [], [], 0)[0]:
                return
            client.send(data[at:at + cut])
    except OSError:
        pass                     # it closed


def read_answer(client):
    """The status of an answer, or a word for what came in its place."""
    try:
        return client.read_answer().status
    except TimeoutError:
        return "waits" if not client.buffer else "no HTTP/1 answer"
    except (EOFError, OSError):
        return "no HTTP/1 answer" if client.buffer else "closed"
    except ValueError:
        return "no HTTP/1 answer"


def ask(place, recorder, raw, way, header):
    """A compact verdict: what was answered, what reached the recorder, and how."""
    follower = HIDDEN if way == "hidden" else b""
    with Client(place, timeout=DEADLINE_S) as client:
        data = raw + follower
        cut = len(data) if way != "bytes" else (700 if len(raw) > 2000 else 1)
        send_pieces(client, data, cut)
        first = read_answer(client)
        second = None
        if isinstance(first, int):
            if not follower:     # does it take another one on this connection?
                send_pieces(client, HIDDEN, len(HIDDEN))
            second = read_answer(client)
    return verdict(first, second, recorder.take(place), header)


def verdict(first, second, seen, header):
    """Smuggled: the engine saw a request that nobody had sent as one of its own."""
    more = ["smuggled"] if second != 200 and any(
        x.target == b"/smuggled" for x in seen) else []
    reached = [x for x in seen if x.target != b"/smuggled"]
    if first != 200:
        more += [f"but {x.framing()} reached the engine" for x in reached]
        if isinstance(second, int):
            more.append("stays open")
        return ", ".join([str(first), *more])
    for x in reached:
        more += [x.framing(), *x.odd()]
        if x.target.startswith(b"http"):
            more.append("absolute")
        if header:
            more.append(("with " if x.all(header) else "without ") + header.decode())
    if not isinstance(second, int):
        more.append("then closed")
    return "→ " + ", ".join(more)


def play(kind, chosen, folder, out):
    recorder = Recorder()
    subject = kind(folder, recorder)
    try:
        for name, (raw, header) in chosen.items():
            out[name] = [ask(subject.place, recorder, raw, way, header) for way in WAYS]
    finally:
        subject.stop()
        recorder.close()


# ---- the table ---------------------------------------------------------------------------

def cell(verdicts):
    """One verdict where all ways agree."""
    groups = collections.defaultdict(list)
    for way, text in zip(WAYS, verdicts):
        groups[text].append(way)
    if len(groups) == 1:
        return verdicts[0]
    return "; ".join(f"{'+'.join(ways)}: {text}" for text, ways in groups.items())


def summary(names, chosen, results):
    passed = {row: [passes(results[n][row]) for n in names] for row in chosen}
    same = sum(len(set(by)) == 1 for by in passed.values())
    lenient = [f"`{row}`" for row, (own, *others) in passed.items() if own and not all(others)]
    strict = sum(not own and any(others) for own, *others in passed.values())
    return (f"Of {len(chosen)} rows {same} are passed on by all or by none; {strict} are refused by "
            f"incipit and passed on by another; passed on by incipit and "
            f"refused by another: {', '.join(lenient) or 'none'}.")


def table(names, chosen, results):
    lines = ["| row | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in chosen:
        lines.append("| " + " | ".join([f"`{row}`", *(cell(results[n][row]) for n in names)]) + " |")
    return "\n".join(lines)


def passes(verdicts):
    return any("→" in text or "reached" in text for text in verdicts)


def faults(names, chosen, results):
    for row in chosen:
        if any("smuggled" in text for text in results["incipit"][row]):
            yield f"{row}: smuggled through incipit"
        if len(names) == 3 and passes(results["incipit"][row]) and not any(
                passes(results[n][row]) for n in names if n != "incipit"):
            yield f"{row}: incipit passes on what the others refuse"


def put(path, text):
    with open(path, encoding="utf-8") as f:
        before, _, rest = f.read().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}")


def available(kinds):
    for kind in kinds:
        try:
            kind.version()
            yield kind
        except subprocess.CalledProcessError as why:
            print(f"without {kind.name}: {why.stderr.strip()}", file=sys.stderr)


def run(kinds, chosen):
    results = {kind.name: {} for kind in kinds}
    folder = tempfile.mkdtemp(prefix="incipit-raw-")
    try:
        threads = [threading.Thread(target=play, args=(k, chosen, folder, results[k.name]))
                   for k in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("-k", metavar="WORD", default="", help="rows whose name contains it")
    options.add_argument("-o", metavar="PAGE", help="put the table there")
    options = options.parse_args()
    kinds = list(available([Incipit, Nginx, Haproxy]))
    chosen = {name: row for name, row in rows().items() if options.k in name}
    results = run(kinds, chosen)
    if any(len(found) < len(chosen) for found in results.values()):
        sys.exit("raw_table: not all rows could be played")
    names = [kind.name for kind in kinds]
    text = (f"{datetime.date.today()}: {', '.join(kind.version() for kind in kinds)}.\n"
            f"{summary(names, chosen, results)}\n\n{table(names, chosen, results)}")
    whole = len(names) == 3 and not options.k
    if options.o and whole:
        put(options.o, text)
    else:
        print(text)
    if options.o and not whole:
        print(f"{options.o} stays as it is: it takes all rows and all three", file=sys.stderr)
    found = list(faults(names, chosen, results))
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
