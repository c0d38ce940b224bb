# SPDX-License-Identifier: MIT
"""curl as a client: what a shell script gets."""

import json
import subprocess
import sys
import time

from asking import serve

CURL = ["curl", "-q", "-sS", "-N", "--noproxy", "*", "--max-time", "120"]


def command(ask, path, body=None, *more):
    out = [*CURL, *more]
    for name, value in (ask.get("headers") or {}).items():
        out += ["-H", f"{name}: {value}"]
    if body is not None:
        out += ["-H", "Content-Type: application/json", "--data-binary", json.dumps(body)]
    return [*out, ask["url"] + path]


def curl(ask, path, body=None, *more):
    return subprocess.run(command(ask, path, body, *more), check=True,
                          stdout=subprocess.PIPE).stdout.decode()


def question(ask, **more):
    return {"model": ask["model"], "messages": ask["messages"], "max_tokens": ask["limit"],
            "temperature": 0, **more}


CHAT = "/v1/chat/completions"


def plain(ask):
    return json.loads(curl(ask, CHAT, question(ask)))


def stream(ask, **more):
    lines = curl(ask, CHAT, question(ask, stream=True, **more)).split("\n")
    return [json.loads(line[6:]) if line.startswith("data: {") else line
            for line in lines]


def models(ask):
    return json.loads(curl(ask, "/v1/models"))


def tools(ask):
    """Both answers of a round trip, or one where the engine has called nothing."""
    asked = question(ask, tools=ask["tools"])
    first = json.loads(curl(ask, CHAT, asked))
    message = first["choices"][0]["message"]
    if not message.get("tool_calls"):
        return [first]
    asked["messages"] = asked["messages"] + [message] + [
        {"role": "tool", "tool_call_id": call["id"], "content": ask["result"]}
        for call in message["tool_calls"]]
    return [first, json.loads(curl(ask, CHAT, asked))]


def tools_stream(ask):
    return stream(ask, tools=ask["tools"])


def cancel(ask):
    with subprocess.Popen(command(ask, CHAT, question(ask, stream=True, ignore_eos=True)),
                          stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get(
                    "content"):
                left = time.monotonic()
                child.terminate()
                return {"left": left}
    return None


def request_id(ask):
    head = curl(ask, CHAT, question(ask), "-D", "-", "-o", "/dev/null")
    return next((line.partition(":")[2].strip() for line in head.split("\n")
                 if line.lower().startswith("x-request-id:")), None)


def failed(ask, path, body=None):
    text, _, status = curl(ask, path, body, "-w", "\n%{http_code}").rpartition("\n")
    return {"class": "curl", "status": int(status), "body": text}


def not_found(ask):
    return failed(ask, "/v1/models/no-such-model")


def bad(ask):
    return failed(ask, CHAT, question(ask) | {"max_tokens": "four"})


def down(ask):
    return failed(ask, CHAT, question(ask))


serve(sys.modules[__name__])
