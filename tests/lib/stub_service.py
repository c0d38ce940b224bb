# SPDX-License-Identifier: MIT
"""A service with known delays, for benchmarks of the benchmark: it streams chat answers
and writes down when it did what, on the clock that the program under test uses."""

import json
import re
import socket
import struct
import threading
import time


def event(delta=None, **more):
    choice = {"index": 0, "delta": delta or {}, **more}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def usage(prompt, cached, output):
    return b"data: " + json.dumps({"choices": [], "usage": {
        "prompt_tokens": prompt, "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached}}}).encode() + b"\n\n"


def role():
    return event({"role": "assistant", "content": None})


DONE = b"data: [DONE]\n\n"


class Stub:
    """`behave(stub, conn, number, body)` answers request `number` (from 0)."""

    def __init__(self, behave, model="stub-model"):
        self.model = model
        self.behave, self.requests, self.lock = behave, [], threading.Lock()
        self.headers, self.released = [], threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        self.released.set()
        self.listener.close()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        with sock:
            try:
                while b"\r\n\r\n" not in data:
                    data += sock.recv(1 << 16)
                head, body = data.split(b"\r\n\r\n", 1)
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                while length and len(body) < int(length[1]):
                    body += sock.recv(1 << 16)
                self._answer(sock, head, body)
            except OSError:
                pass   # the client has left

    def _answer(self, sock, head, body):
        if head.startswith(b"GET "):
            send_json(sock, 200, {"data": [{"id": self.model, "owned_by": "stub"}]})
            return
        with self.lock:
            number = len(self.requests)
            self.requests.append(json.loads(body))
            self.headers.append(head.decode())
        self.behave(self, sock, number, self.requests[number])


def send_json(sock, status, value):
    body = json.dumps(value).encode()
    sock.sendall(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                 b"Connection: close\r\n\r\n" % (status, len(body)) + body)


def begin_stream(sock):
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                 b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")


def send_chunk(sock, data):
    sock.sendall(b"%x\r\n" % len(data) + data + b"\r\n")


def end_stream(sock):
    sock.sendall(b"0\r\n\r\n")


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def timed(first_s, gap_s, tokens, notes=None):
    """Role at once, first token after first_s, then one every gap_s. `notes` collects
    (received, first sent) of each request, in seconds of the monotonic clock."""
    def behave(stub, sock, number, body):
        received = time.monotonic()
        begin_stream(sock)
        send_chunk(sock, role())
        send_chunk(sock, b": ping\n\n")
        time.sleep(first_s)
        first = time.monotonic()
        send_chunk(sock, event({"content": "a"}))
        for _ in range(tokens - 1):
            time.sleep(gap_s)
            send_chunk(sock, event({"content": "b"}))
        send_chunk(sock, event(finish_reason="stop") + usage(100, 40, tokens) + DONE)
        end_stream(sock)
        if notes is not None:
            notes[number] = (received, first)
    return behave
