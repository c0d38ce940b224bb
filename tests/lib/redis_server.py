# SPDX-License-Identifier: MIT
"""A real Redis as a child of a test, and a relay before it that can hold and cut."""

import os
import socket
import subprocess
import threading

from harness import PATIENCE_S, wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def find_program():
    """(path, None), or (None, why not)."""
    found = subprocess.run([os.path.join(ROOT, "tools", "redis_server.sh")], text=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
    return (found.stdout.strip(), None) if found.returncode == 0 else (
        None, (found.stderr.strip().splitlines() or ["no redis-server"])[-1])


PROGRAM, MISSING = find_program()


class RedisServer:
    """Listens on a UNIX socket in `folder` and nowhere else. It keeps nothing on disk."""

    def __init__(self, folder, *arguments):
        self.path = os.path.join(folder, "redis.sock")
        self.folder, self.arguments = folder, arguments
        self.child = None

    @property
    def url(self):
        return "unix:" + self.path

    def start(self):
        self.child = subprocess.Popen(
            [PROGRAM, "--port", "0", "--unixsocket", self.path, "--save", "",
             "--appendonly", "no", "--dir", self.folder, "--daemonize", "no",
             *self.arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, "an answer of redis-server")
        return self

    def _answers(self):
        assert self.child.poll() is None, "redis-server has ended"
        try:
            self.ask("PING")
        except RedisError:    # it asks for a password
            return True
        except OSError:
            return False
        return True

    def stop(self):
        if self.child and self.child.poll() is None:
            self.child.kill()
            self.child.wait(PATIENCE_S)
        self.child = None

    def ask(self, *words):
        """One command on a connection of its own. An error of Redis is raised."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE_S)
            sock.connect(self.path)
            words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
            sock.sendall(b"*%d\r\n" % len(words) +
                         b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
            with sock.makefile("rb") as answer:
                return read_answer(answer)

    def keys(self, kind):
        """Those of one kind: b blocks, p places, s sequences."""
        return sorted(self.ask("KEYS", f"*:{kind}:*"))


class RedisError(Exception):
    pass


def read_answer(stream):
    line = stream.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest.decode()
    if kind == b"-":
        raise RedisError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [read_answer(stream) for _ in range(int(rest))]
    raise ConnectionError(f"no answer: {line!r}")


class Relay:
    """Passes bytes between clients and a server, except while it holds the answers."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.flow = threading.Event()
        self.flow.set()
        self.socks, self.lock = [], threading.Lock()
        self.closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def hold(self):
        self.flow.clear()

    def release(self):
        self.flow.set()

    def cut(self):
        """Ends all connections."""
        with self.lock:
            socks, self.socks = self.socks, []
        for sock in socks:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.closed = True
        self.listener.close()
        self.flow.set()
        self.cut()

    def _accept(self):
        while not self.closed:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.path)
            except OSError:
                client.close()
                server.close()
                continue
            with self.lock:
                self.socks += [client, server]
            threading.Thread(target=self._pass, args=(client, server, False),
                             daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True),
                             daemon=True).start()

    def _pass(self, source, sink, answers):
        try:
            while data := source.recv(1 << 18):
                if answers:
                    self.flow.wait()
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
