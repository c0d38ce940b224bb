# SPDX-License-Identifier: MIT
"""`incipit lab serve` as a child: the built-in engine in the hands of a test."""

import json
import os
import re
import subprocess
import threading

from harness import PATIENCE_S, binary, fetch, wait_until

GENERATIONS = ("/v1/chat/completions", "/v1/completions", "/completion", "/v1/messages")


class Lab:
    """One engine process; stop() and start() again keep its port."""

    def __init__(self, slot_dir=None, **flags):
        self.flags = dict(flags)
        if slot_dir:
            self.flags["slot_save_path"] = slot_dir
        self.port = 0
        self.child = None
        self.output = []

    def command(self):
        out = [binary(), "lab", "serve", "--listen", f"127.0.0.1:{self.port}"]
        for name, value in self.flags.items():
            out += ["--" + name.replace("_", "-"), str(value)]
        return out

    def start(self):
        self.child = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._thread = threading.Thread(target=self._collect, args=(self.child.stdout,),
                                        daemon=True)
        self.listening = False
        self._thread.start()
        wait_until(lambda: self.listening or self.child.poll() is not None,
                   lambda: f"listening: {self.text()}")
        assert self.child.poll() is None, self.text()
        return self

    def _collect(self, pipe):
        for line in pipe:
            text = line.decode(errors="replace").rstrip("\n")
            self.output.append(text)
            if match := re.match(r"listening on \S*:(\d+)$", text):
                self.port = int(match[1])
                self.listening = True
        pipe.close()

    def text(self):
        return "\n".join(self.output)

    def stop(self):
        """Ends it; returns the exit status."""
        if self.child is None:
            return 0
        if self.child.poll() is None:
            self.child.terminate()
        code = self.child.wait(PATIENCE_S)
        self._thread.join(5)
        self.child = None
        return code

    def kill(self):
        self.child.kill()
        self.child.wait(PATIENCE_S)
        self._thread.join(5)
        self.child = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    # -- what tests ask it directly --

    def get(self, path):
        answer = fetch(self.port, "GET", path)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json()

    def post(self, path, body, status=200):
        answer = fetch(self.port, "POST", path, body)
        assert answer.status == status, (answer.status, answer.body)
        return answer.json()

    def misbehave(self, *names):
        """From now on these ways and no others."""
        self.post("/lab/misbehave", {"misbehave": ",".join(names)})

    def slots(self):
        return self.get("/slots")

    def wait_idle(self):
        wait_until(lambda: not any(s["is_processing"] for s in self.slots()), "idle slots")

    def metric(self, name):
        body = fetch(self.port, "GET", "/metrics").body.decode()
        return float(re.search(rf"^llamacpp:{name} (\S+)$", body, re.M)[1])

    def on_slot(self, slot, action, name=None, status=200):
        return self.post(f"/slots/{slot}?action={action}",
                         {"filename": name} if name else {}, status)


def shared_start(a, b):
    """Tokens that two prompts have in common."""
    return len(os.path.commonprefix([a, b]))


def answer_text(path, answer):
    """The text of an answer of any of the APIs, not streamed."""
    if path == "/completion":
        return answer["content"]
    if path == "/v1/messages":
        return answer["content"][0]["text"]
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def sse(body):
    """[(event name or None, document)] of a stream; the closing [DONE] is ("done", None)."""
    out = []
    for block in body.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line)
        if lines.get("data") == "[DONE]":
            out.append(("done", None))
        elif "data" in lines:
            out.append((lines.get("event"), json.loads(lines["data"])))
    return out
