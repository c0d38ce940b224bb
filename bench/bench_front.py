#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Many clients at one gateway, and bad ones: is the service for others still there, and do
the limits hold?

    bench/bench_front.py build/release/incipit           500 of everything, small bodies
    bench/bench_front.py --full build/release/incipit    10,000 idle, 2,000 streams, 64 MB

Each part has a gateway of its own in front of a service that does nothing (a child of
this script), and a neighbour who asks for a short document all the time, one request
behind the other. What the neighbour sees is printed, and the gateway's memory (VmHWM, the
most it ever had, over what it had before) and processor time. The exit status is 1 where a
request of the neighbour failed or memory grew more than the part allows. RLIMIT_NOFILE of
this process has to allow two descriptors for each client.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests",
                                "lib"))
sys.dont_write_bytecode = True
from harness import Client, Gateway, request_bytes  # noqa: E402

PATH = "/v1/chat/completions"
MIB = 1 << 20
WORD = json.dumps({"choices": [{"index": 0, "delta": {"content": " word"}}]})
EVENT = f"data: {WORD}\n\n".encode()
DOCUMENT = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant",
                                                            "content": "word"},
                                    "finish_reason": "stop"}]}).encode()
MODELS = b'{"data":[{"id":"nothing"}]}'
SMALL = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()


# ---- the service behind the gateway -------------------------------------------------------

async def read_request(reader):
    """Its body, but for the most of a long one."""
    head = await reader.readuntil(b"\r\n\r\n")
    left = int((re.search(rb"content-length: *(\d+)", head, re.I) or [0, 0])[1])
    body = b""
    while left:
        piece = await reader.read(min(left, 1 << 18))
        if not piece:
            raise EOFError
        left -= len(piece)
        body += piece if len(body) < 4096 else b""
    return head, body


async def answer(writer, body):
    """Events as "user" says: "N every MS of BYTES"; else one document."""
    if not (wish := re.search(rb'"(\d+) every (\d+) of (\d+)"', body)):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(DOCUMENT) + DOCUMENT)
        return await writer.drain()
    n, ms, size = map(int, wish.groups())
    event = EVENT * max(1, size // len(EVENT))
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                 b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(n):
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(ms / 1000)
    end = b"data: [DONE]\n\n"
    writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))
    await writer.drain()


async def serve_one(reader, writer):
    with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError):
        while True:
            head, body = await read_request(reader)
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" %
                             (len(MODELS), MODELS))
                await writer.drain()
            else:
                await answer(writer, body)
    writer.close()


async def serve():
    server = await asyncio.start_server(serve_one, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


# ---- a gateway, its service and a neighbour -----------------------------------------------

def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(rf"{name}:\s+(\d+)", f.read())[1]) / 1024


class Neighbour(threading.Thread):
    """Asks for a document, one after the other, each on a connection of its own."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.times, self.failed = port, [], []
        self.over = threading.Event()

    def run(self):
        while not self.over.is_set():
            began = time.monotonic()
            try:
                with Client(self.port, 60) as client:
                    client.send(request_bytes("POST", PATH, SMALL))
                    got = client.read_answer("POST")
                if got.status != 200 or not got.complete:
                    self.failed.append(f"{got.status} {got.body[:100]}")
            except (OSError, EOFError) as error:
                self.failed.append(repr(error))
            self.times.append(time.monotonic() - began)
            self.over.wait(0.05)

    def end(self):
        self.over.set()
        self.join(60)
        return self


class Part:
    """with Part(...) as p: the gateway at p.port; afterwards a line, and whether all held."""

    failures = 0

    def __init__(self, name, program, allowed_mib, config=None, sanitized=False):
        self.name, self.allowed_mib, self.sanitized = name, allowed_mib, sanitized
        self.folder = tempfile.TemporaryDirectory(prefix="incipit-front-")
        self.said = ""
        limits = {"connections": 30000, "connections_per_client": 30000,
                  **(config or {}).pop("limits", {})}
        self.config = {"limits": limits, "log": {"level": "warn", "access": "off"},
                       **(config or {})}
        os.environ["INCIPIT_BIN"] = os.path.abspath(program)

    def __enter__(self):
        self.service = subprocess.Popen([sys.executable, os.path.abspath(__file__),
                                         "--service"], stdout=subprocess.PIPE)
        port = int(self.service.stdout.readline())
        self.gateway = Gateway(self.folder.name, None, {
            "upstreams": [{"url": f"http://127.0.0.1:{port}", "driver": "openai"}],
            **self.config}, store=False)
        self.gateway.start(wait="ready")
        self.port, self.pid = self.gateway.port, self.gateway.child.pid
        with Client(self.port) as client:      # what is needed once is there
            client.send(request_bytes("POST", PATH, SMALL))
            assert client.read_answer("POST").status == 200
        self.before, self.cpu, self.began = (memory_mib(self.pid, "VmRSS"),
                                             cpu_seconds(self.pid), time.monotonic())
        self.neighbour = Neighbour(self.port)
        self.neighbour.start()
        return self

    def __exit__(self, kind, error, trace):
        neighbour = self.neighbour.end()
        try:
            if kind is None:
                self.report(neighbour)
        finally:
            self.gateway.stop()
            self.service.kill()
            self.service.wait()
            self.service.stdout.close()
            self.folder.cleanup()

    def report(self, neighbour):
        grown = memory_mib(self.pid, "VmHWM") - self.before
        took = time.monotonic() - self.began
        times = sorted(neighbour.times)
        held = not neighbour.failed and times and (grown <= self.allowed_mib
                                                   or self.sanitized)
        Part.failures += not held
        print(f"{self.name}: {self.said}\n"
              f"    memory +{grown:.1f} MiB of {self.allowed_mib:.0f} allowed, "
              f"{cpu_seconds(self.pid) - self.cpu:.2f} s of a core in {took:.1f} s; "
              f"neighbour: {len(times)} requests, {len(neighbour.failed)} failed, "
              f"p50 {1000 * times[len(times) // 2]:.0f} ms, "
              f"worst {1000 * times[-1]:.0f} ms{'' if held else '   DOES NOT HOLD'}",
              flush=True)
        for why in neighbour.failed[:3]:
            print(f"    {why}")

    def fail(self, what):
        Part.failures += 1
        print(f"{self.name}: {what}", flush=True)


def open_sockets(port, n):
    out = []
    for _ in range(n):
        sock = socket.socket()
        sock.connect(("127.0.0.1", port))
        out.append(sock)
    return out


def close_all(socks):
    for sock in socks:
        sock.close()


# ---- the parts ----------------------------------------------------------------------------

def idle(o):
    """Connections that say nothing, and do not go away by themselves meanwhile."""
    with Part(f"{o.idle} idle connections", o.program, max(10, o.idle / 100),
              {"timeouts": {"head": "10m", "idle": "10m"}}, o.sanitized) as part:
        socks = open_sockets(part.port, o.idle)
        time.sleep(o.seconds)
        alive = part.gateway.metric("incipit_client_connections")
        part.said = (f"{alive:.0f} open, "
                     f"{1024 * (memory_mib(part.pid, 'VmRSS') - part.before) / o.idle:.2f} "
                     "KiB each")
        if alive < o.idle:
            part.fail(f"only {alive:.0f} of {o.idle} are open")
        close_all(socks)


def resting(o):
    """Connections that have sent a body, have their answer and stay open."""
    with Part(f"{o.idle} connections that rest", o.program, max(10, o.idle / 100),
              {"timeouts": {"idle": "10m"}}, o.sanitized) as part:
        body = json.dumps({"messages": [{"role": "user", "content": "a" * 60000}]}).encode()
        clients = []
        for _ in range(o.idle):
            client = Client(part.port, 60)
            client.send(request_bytes("POST", PATH, body))
            if client.read_answer("POST").status != 200:
                part.fail("one was not answered")
            clients.append(client)
        part.said = (f"{1024 * (memory_mib(part.pid, 'VmRSS') - part.before) / o.idle:.2f} "
                     "KiB each")
        for client in clients:
            client.close()


def streams(o):
    with Part(f"{o.streams} streams side by side", o.program, max(20, o.streams / 20), None,
              o.sanitized) as part:
        async def all_of_them():
            async def one():
                try:
                    return await asyncio.wait_for(
                        stream_until_done(part.port, o.events, 500), 300)
                except (OSError, EOFError, asyncio.TimeoutError):
                    return False
            return await asyncio.gather(*(one() for _ in range(o.streams)))
        whole = sum(asyncio.run(all_of_them()))
        part.said = f"{whole} whole, {o.events} events each, one every 500 ms"
        if whole != o.streams:
            part.fail(f"only {whole} of {o.streams} were whole")


async def stream_until_done(port, events, ms):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"stream": True, "user": f"{events} every {ms} of 1",
                       "messages": [{"role": "user", "content": "hello"}]}).encode()
    writer.write(request_bytes("POST", PATH, body))
    got = b""
    while b"0\r\n\r\n" not in got[-8:]:
        piece = await reader.read(1 << 16)
        if not piece:
            break
        got += piece
    writer.close()
    return got.count(b" word") == events and b"[DONE]" in got


def drip(o, name, head, byte):
    """Clients that send a byte each second. Who is too slow is cut, and not before."""
    with Part(f"{o.slow} {name} that drip", o.program, max(20, o.slow / 20),
              {"timeouts": {"head": "5s", "body": "5s", "pace": "3s"}}, o.sanitized) as part:
        socks = open_sockets(part.port, o.slow)
        for sock in socks:
            sock.sendall(head)
        cut = set()
        began = time.monotonic()
        while len(cut) < o.slow and time.monotonic() < began + 30:
            for sock in socks:
                if sock not in cut:
                    try:
                        sock.send(byte)
                    except OSError:
                        cut.add(sock)
            time.sleep(1)
        part.said = f"{len(cut)} cut within {time.monotonic() - began:.0f} s"
        if len(cut) < o.slow:
            part.fail(f"only {len(cut)} of {o.slow} were cut")
        close_all(socks)


def slow_readers(o):
    """They ask for 4 MiB each and read nothing of it."""
    with Part(f"{o.slow} clients that do not read", o.program, max(30, o.slow / 2), None,
              o.sanitized) as part:
        socks = []
        body = json.dumps({"stream": True, "user": "16 every 1000 of 262144",
                           "messages": [{"role": "user", "content": "hello"}]}).encode()
        for _ in range(o.slow):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", part.port))
            sock.sendall(request_bytes("POST", PATH, body))
            socks.append(sock)
        time.sleep(o.seconds)
        grown = memory_mib(part.pid, "VmRSS") - part.before
        part.said = f"4 MiB asked for by each, {1024 * grown / o.slow:.1f} KiB held for each"
        close_all(socks)


def big_bodies(o):
    """More bytes at once than may be held: who does not fit is told, and comes again. Beside
    the bodies there may be what is known of prompts (index), what is read from one at a time
    and what is on its way through connections."""
    size, budget = o.body_mib * MIB, o.budget_mib
    with Part(f"{o.bodies} bodies of {o.body_mib} MiB at once", o.program,
              budget + 32,
              {"limits": {"body_bytes": f"{2 * o.body_mib}MiB",
                          "buffered_bytes": f"{budget}MiB"},
               "index": {"max_bytes": "1MiB"}}, o.sanitized) as part:
        text = b'{"messages":[{"role":"user","content":"' + b"a" * size + b'"}]}'
        count = {"told to come back": 0, "passed": 0}
        lock = threading.Lock()

        def one():
            for _ in range(2000):
                try:
                    with Client(part.port, 120) as client:
                        client.send(request_bytes("POST", PATH, text))
                        status = client.read_answer("POST").status
                except (OSError, EOFError):
                    status = 503       # it answered and closed before it had all
                with lock:
                    count["passed" if status == 200 else "told to come back"] += 1
                if status == 200:
                    return
                time.sleep(0.3)

        threads = [threading.Thread(target=one) for _ in range(o.bodies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        part.said = f"{count}, limits.buffered_bytes {budget} MiB"
        if count["passed"] != o.bodies:
            part.fail(f"only {count['passed']} of {o.bodies} passed")


def heads(o):
    drip(o, "heads", b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ", b"a")


def bodies(o):
    drip(o, "bodies", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
         b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", b" ")


PARTS = {"idle": idle, "resting": resting, "streams": streams, "heads": heads, "bodies": bodies,
         "readers": slow_readers, "big": big_bodies}
QUICK = {"idle": 500, "streams": 200, "events": 4, "slow": 100, "bodies": 8, "body_mib": 4,
         "budget_mib": 16, "seconds": 1}
FULL = {"idle": 10000, "streams": 2000, "events": 20, "slow": 1000, "bodies": 50,
        "body_mib": 64, "budget_mib": 512, "seconds": 5}


def main():
    parser = argparse.ArgumentParser(description="Many clients at one gateway, and bad ones.")
    parser.add_argument("program", nargs="?", default="build/release/incipit")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("-k", action="append", choices=PARTS, help="only this part")
    parser.add_argument("--service", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if o.service:
        return asyncio.run(serve())
    vars(o).update(FULL if o.full else QUICK)
    o.sanitized = "asan" in subprocess.run(["ldd", o.program], capture_output=True, text=True,
                                           check=False).stdout
    for name in o.k or PARTS:
        PARTS[name](o)
    return 1 if Part.failures else 0


if __name__ == "__main__":
    sys.exit(main())
