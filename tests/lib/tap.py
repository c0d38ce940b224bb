# SPDX-License-Identifier: MIT
"""A TCP relay that writes down what passes: the bytes at an engine's socket, as they are."""

import socket
import threading


class Tap:
    """Listens on a port of its own; each connection is relayed to `port` and recorded."""

    def __init__(self, port):
        self.target = port
        self.answers = []  # one bytearray a connection: what the engine sent
        self.questions = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                engine = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            question, answer = bytearray(), bytearray()
            self.questions.append(question)
            self.answers.append(answer)
            for source, to, into in ((client, engine, question), (engine, client, answer)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(source, to, into),
                                 daemon=True).start()

    @staticmethod
    def _pump(source, to, into):
        while True:
            try:
                data = source.recv(65536)
                into += data
                if not data:
                    break
                to.sendall(data)
            except OSError:
                break
        for s in (source, to):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self._listener.close()


def answer_bodies(raw):
    """Bodies of the answers in a recorded byte stream, chunked coding taken off."""
    bodies, at, raw = [], 0, bytes(raw)
    while True:
        end = raw.find(b"\r\n\r\n", at)
        if end < 0:
            return bodies
        head, at = raw[at:end].lower(), end + 4
        if b"transfer-encoding: chunked" in head:
            body = b""
            while True:
                line = raw.find(b"\r\n", at)
                if line < 0:
                    return bodies
                size = int(raw[at:line].split(b";")[0], 16)
                body += raw[line + 2:line + 2 + size]
                at = line + 2 + size + 2
                if size == 0:
                    break
        else:
            length = 0
            for field in head.split(b"\r\n"):
                if field.startswith(b"content-length:"):
                    length = int(field.split(b":")[1])
            body, at = raw[at:at + length], at + length
        bodies.append(body)
