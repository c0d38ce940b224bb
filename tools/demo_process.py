# SPDX-License-Identifier: MIT
"""What the demo runs: the gateway and the engines as children, and a watch on the CPUs."""

import http.client
import json
import os
import re
import signal
import subprocess
import time

import llama_server

PATIENCE_S = 120


class Failed(Exception):
    """The demo cannot go on; the text says why."""


def wait_until(condition, what, timeout=PATIENCE_S):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"not within {timeout} s: {what}")
        time.sleep(0.01)


def last_words(path, n=12):
    """The end of a process's output, to be put behind what is said of it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            lines = f.read().splitlines()[-n:]
    except OSError:
        lines = []
    return "".join(["; its last words:"] + [f"\n    {x}" for x in lines]) if lines else ""


class CpuWatch:
    """What part of all CPUs others took, over the times that these processes were watched."""

    def __init__(self):
        self.all = self.others = 0
        self.since = None

    @staticmethod
    def read(pids):
        with open("/proc/stat", encoding="ascii") as f:
            times = [int(x) for x in f.readline().split()[1:9]]
        own = 0
        for pid in [os.getpid(), *pids]:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                own += sum(int(x) for x in f.read().rpartition(")")[2].split()[11:13])
        return sum(times), sum(times) - times[3] - times[4] - own  # not idle, not our own

    def begin(self, pids):
        self.since = self.read(pids)

    def end(self, pids):
        now = self.read(pids)
        self.all += now[0] - self.since[0]
        self.others += now[1] - self.since[1]

    def share(self):
        return max(self.others, 0) / max(self.all, 1)


# ---- children ----------------------------------------------------------------------------

class Program:
    """incipit as a child, on ports that the system picks; subclasses say what it does."""

    what = None
    stop_s = 35  # the gateway saves what there is to save before it goes

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.log = os.path.join(folder, f"{self.what.replace(' ', '-')}.log")
        self.process, self.ports = None, {}

    @property
    def port(self):
        return self.ports["listening"]

    def launch(self, arguments, *ports):
        """Returns when it has printed these ports."""
        with open(self.log, "wb") as log:
            # Out of the terminal's group: Ctrl-C beside our own signal would be the second
            # one, which tells the gateway to stop at once.
            self.process = subprocess.Popen([self.program, *arguments], stdout=log,
                                            stderr=log, stdin=subprocess.DEVNULL,
                                            start_new_session=True)

        def listening():
            self.check()
            with open(self.log, encoding="utf-8", errors="replace") as f:
                found = re.findall(r"^(listening|admin) on \S*:(\d+)$", f.read(), re.M)
            self.ports = {name: int(port) for name, port in found}
            return all(name in self.ports for name in ports)
        wait_until(listening, f"the {self.what} listens")

    def check(self):
        if self.process.poll() is not None:
            raise Failed(f"the {self.what} ended with {self.process.returncode}"
                         f"{last_words(self.log)}")

    def stop(self):
        """Ends it, if it still runs."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.process.wait() != 0:
            raise Failed(f"told to end, the {self.what} ended with "
                         f"{self.process.returncode}{last_words(self.log)}")


class LabEngine(Program):
    """The built-in engine."""

    what = "built-in engine"

    def __init__(self, program, folder, slots, managed):
        super().__init__(program, folder)
        self.slots, self.managed = slots, managed
        self.slot_dir = os.path.join(folder, "slots")

    def start(self):
        arguments = ["lab", "serve", "--listen", "127.0.0.1:0", "--slots", str(self.slots)]
        if self.managed:
            os.makedirs(self.slot_dir, mode=0o700, exist_ok=True)
            arguments += ["--slot-save-path", self.slot_dir]
        self.launch(arguments, "listening")


class LlamaEngine(llama_server.LlamaServer):
    """A real llama-server; one without a managing gateway gets no flags of ours."""

    def start(self):
        try:
            super().start()
        except llama_server.Unavailable as why:
            log = os.path.join(self.folder, f"engine-{self.port}.log")
            raise Failed(f"{why}{last_words(log)}") from why


class Gateway(Program):
    """One gateway process in front of one engine."""

    what = "gateway"
    ready_means = "the gateway and its engine are ready to save and restore"

    def __init__(self, program, folder, engine):
        super().__init__(program, folder)
        self.engine = engine

    def start(self):
        self.launch(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                     "--upstream", f"http://127.0.0.1:{self.engine.port}", *self.options()],
                    "listening", "admin")
        wait_until(self._ready, self.ready_means)

    def options(self):
        return ["--slot-dir", self.engine.slot_dir,
                "--store-dir", os.path.join(self.folder, "store")]

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def admin_url(self, path):
        return f"http://127.0.0.1:{self.ports['admin']}{path}"

    def _ready(self):
        self.check()
        replica = self.stats()["replicas"][0]
        if replica["mode"] == "observe":
            raise Failed(f"the gateway cannot save and restore: {replica['mode_reason']}")
        return replica["mode"] == "store"

    def admin(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["admin"], timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            data = answer.read()
        except OSError as e:
            raise Failed(f"the gateway's admin side: {e}{last_words(self.log)}") from e
        finally:
            connection.close()
        if answer.status != 200:
            raise Failed(f"{path} of the gateway's admin side: status {answer.status}")
        return data

    def stats(self):
        return json.loads(self.admin("/stats"))

    def wait_saved(self):
        """Nothing under way, nothing left to save. Returns /stats of that moment."""
        last = {}

        def saved():
            self.check()
            last.update(self.stats())
            replica = last["replicas"][0]
            return (last["total"]["in_flight"] == 0 and replica["kv_operations"] == 0
                    and not any(s["unsaved"] for s in replica["slots"]))
        wait_until(saved, "the gateway has saved what its slots hold", 60)
        return last


class Observer(Gateway):
    """One that only looks on."""

    ready_means = "the gateway looks on"

    def options(self):
        return ["--observe"]

    def _ready(self):
        self.check()
        return self.stats()["replicas"][0]["mode"] == "observe"

    def told(self):
        """Share of the prompt tokens that the engine reused by itself, and that a store
        with room for everything would have made of it."""
        wait_until(lambda: self.stats()["total"]["in_flight"] == 0, "all requests have ended")
        report = json.loads(self.admin("/observe"))
        return {"engine_share": report["engine_reused_share"],
                "store_share": report["sizes"][-1]["reused_share"],
                "requests": report["requests"]}
