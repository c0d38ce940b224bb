# SPDX-License-Identifier: MIT
"""Who is compared. Each contender is an engine process and what stands in front of it.

All engines have the same model, build, slots, context, batch and threads. A budget is a
number of bytes of KV that may be kept outside the slots:

    nothing   prompt caching off: every prompt is computed
    stock     llama-server with its default flags, --cache-ram at the budget
    hearth    hearth-llm in front of llama-server, --max-cache-gb at the disk budget. It
              drives one slot and asks for --parallel 1: the same context, one slot, and
              its clients wait for each other
    incipit   the gateway, store.ram_bytes at the budget and store.max_bytes at the disk
              budget; the engine's own cache is off
"""

import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tools"))
import llama_server  # noqa: E402
from demo_process import Failed, Gateway, last_words, wait_until  # noqa: E402

HEARTH = "hearth-llm==0.1.1"
MIB = 2**20


class Setup:
    """What is the same for all. build: "old", "new" or the path of a llama-server."""

    build_name = "unknown"

    def __init__(self, program, build, model, slots, ctx, batch, threads):
        self.program, self.build, self.model = program, build, model
        self.slots, self.ctx, self.batch, self.threads = slots, ctx, batch, threads


class Engine(llama_server.LlamaServer):
    """cache_ram_mib: 0 switches the engine's own cache off."""

    def __init__(self, folder, setup, cache_ram_mib=0, slots=None, slot_save=False,
                 cache_prompt=True):
        own = os.path.sep in setup.build
        params = {"n_parallel": slots or setup.slots, "n_ctx": setup.ctx,
                  "n_batch": setup.batch, "kv_unified": False,
                  "cache_ram_mib": cache_ram_mib, "cache_idle_slots": cache_ram_mib > 0,
                  "cache_prompt": cache_prompt}
        super().__init__(folder, setup.model, "old" if own else setup.build,
                         "saving" if slot_save else "stock", threads=setup.threads, params=params)
        self.program = setup.build if own else None

    def _command(self):
        if not self.program:
            return super()._command()
        o, p = self.options, self.options["params"]
        command = [self.program, "-m", o["model"], "--host", "127.0.0.1", "--port",
                   str(self.port), "-t", str(o["threads"]), "-np", str(p["n_parallel"]),
                   "-c", str(p["n_ctx"]), "-b", str(p["n_batch"]),
                   "--cache-ram", str(p["cache_ram_mib"])]
        if not p["cache_idle_slots"]:
            command.append("--no-cache-idle-slots")
        if not p["cache_prompt"]:
            command.append("--no-cache-prompt")
        if self.flags == "saving":
            command += ["--slot-save-path", self.slot_dir]
        return command

    def ids(self, messages, answered=False):
        """Token ids of a chat, by the engine's own template and tokenizer."""
        body = {"messages": messages, "add_generation_prompt": not answered}
        text = self.post("/apply-template", body)[1]["prompt"]
        return self.post("/tokenize", {"content": text, "add_special": True,
                                       "parse_special": True})[1]["tokens"]


def rss(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        for line in f:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def bytes_below(folder, ending):
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            if name.endswith(ending):
                try:
                    total += os.stat(os.path.join(path, name)).st_size
                except FileNotFoundError:
                    pass  # evicted meanwhile
    return total


class Contender:
    """One cell's processes in a folder of their own."""

    name = title = None
    extra = {}  # fields of each request body

    def __init__(self, folder, setup, ram, disk):
        os.makedirs(folder, mode=0o700)
        self.folder, self.setup, self.ram, self.disk = folder, setup, ram, disk
        self.engine = self._engine()

    @classmethod
    def unavailable(cls):
        """Why it cannot take part, or None."""
        return None

    def _engine(self):
        raise NotImplementedError

    def start(self):
        try:
            self.engine.start()
        except llama_server.Unavailable as why:
            log = os.path.join(self.folder, f"engine-{self.engine.port}.log")
            raise Failed(f"{why}{last_words(log)}") from why

    def stop(self):
        self.engine.stop()

    @property
    def port(self):
        return self.engine.port

    def pids(self):
        return [self.engine.process.pid]

    def rss(self):
        return sum(rss(pid) for pid in self.pids())

    def disk_bytes(self):
        return 0

    def counters(self):
        """What it says of itself."""
        return {}


class Nothing(Contender):
    name, title = "nothing", "no cache"
    extra = {"cache_prompt": False}

    def _engine(self):
        return Engine(self.folder, self.setup, cache_prompt=False)


class Stock(Contender):
    name, title = "stock", "stock llama-server"

    def _engine(self):
        return Engine(self.folder, self.setup, cache_ram_mib=self.ram // MIB)


class Hearth(Contender):
    name, title = "hearth", "hearth-llm"

    process = None

    @staticmethod
    def home():
        return os.path.join(llama_server.ROOT, "build", "hearth")

    @classmethod
    def unavailable(cls):
        program = os.path.join(cls.home(), "bin", "hearth")
        if os.path.exists(program):
            return None
        print(f"installing {HEARTH} …", flush=True)
        try:
            shutil.rmtree(cls.home(), ignore_errors=True)
            llama_server._run(sys.executable, "-m", "venv", cls.home())
            llama_server._run(os.path.join(cls.home(), "bin", "pip"),
                              "--disable-pip-version-check", "install", "-q",
                              "--no-cache-dir", HEARTH)
        except llama_server.Unavailable as why:
            shutil.rmtree(cls.home(), ignore_errors=True)
            return str(why)
        return None

    def _engine(self):
        return Engine(self.folder, self.setup, slots=1, slot_save=True)

    def start(self):
        super().start()
        self.own_port = llama_server.free_port()
        log_path = os.path.join(self.folder, "hearth.log")
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen(
                [os.path.join(self.home(), "bin", "hearth"), "serve", "--upstream",
                 f"http://127.0.0.1:{self.engine.port}", "--port", str(self.own_port),
                 "--cache-dir", self.engine.slot_dir,
                 "--max-cache-gb", repr(self.disk / 2**30)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

        def listens():
            if self.process.poll() is not None:
                raise Failed(f"hearth ended with {self.process.returncode}"
                             f"{last_words(log_path)}")
            try:
                return bool(self._stats())
            except OSError:
                return False
        wait_until(listens, "hearth listens")

    def _stats(self):
        probe = llama_server.LlamaServer(self.folder, port=self.own_port)
        return probe.get("/hearth/stats")[1]

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        super().stop()

    @property
    def port(self):
        return self.own_port

    def pids(self):
        return [self.process.pid, *super().pids()]

    def disk_bytes(self):
        return bytes_below(self.engine.slot_dir, ".kv")

    def counters(self):
        return self._stats()


class BenchGateway(Gateway):
    """With budgets, which have no flags."""

    def configure(self, ram, disk):
        path = os.path.join(self.folder, "incipit.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"listen: 127.0.0.1:0\nadmin:\n  listen: 127.0.0.1:0\nupstreams:\n"
                    f"  - url: http://127.0.0.1:{self.engine.port}\n"
                    f"    slot_dir: {self.engine.slot_dir}\n"
                    f"store:\n  dir: {os.path.join(self.folder, 'store')}\n"
                    f"  max_bytes: {disk}B\n  ram_bytes: {ram}B\n")
        self.arguments = ["serve", "--config", path]

    def start(self):
        self.launch(self.arguments, "listening", "admin")
        wait_until(self._ready, "the gateway and its engine are ready to save and restore")


class Incipit(Contender):
    name, title = "incipit", "incipit"

    gateway = None

    def _engine(self):
        return Engine(self.folder, self.setup, slot_save=True)

    def start(self):
        super().start()
        self.gateway = BenchGateway(self.setup.program, self.folder, self.engine)
        self.gateway.configure(self.ram, self.disk)
        self.gateway.start()

    def stop(self):
        if self.gateway:
            self.gateway.stop()
        super().stop()

    @property
    def port(self):
        return self.gateway.port

    def pids(self):
        return [self.gateway.process.pid, *super().pids()]

    def disk_bytes(self):
        return bytes_below(os.path.join(self.folder, "store"), ".kv")

    def counters(self):
        doc = self.gateway.stats()
        replica, total = doc["replicas"][0], doc["total"]
        out = {k: replica[k] for k in ("restores", "saves", "saves_skipped",
                                       "save_failures")}
        out["restore_failures"] = sum(replica["restore_failures"].values())
        out.update({k: total[k] for k in ("available_tokens", "captured_tokens",
                                          "delivered_tokens", "resident_tokens",
                                          "restored_tokens")})
        out["misses"] = {k: n for k, n in total["misses"].items() if n}
        out["store"] = doc["store"]
        return out


ALL = [Nothing, Stock, Hearth, Incipit]


def settle(contender, patience_s=5):
    """Memory as it is when the processes have started, for growth to be told from."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < patience_s:
        now = contender.rss()
        if now == last:
            return now
        last = now
        time.sleep(0.2)
    return last
