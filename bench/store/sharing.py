# SPDX-License-Identifier: MIT
"""What is stored for several endings of one document: the document once, and for each
ending its own tokens and at most a block."""

import contender
from client import ask
from demo_process import Failed
from workload import text

ENDINGS = 12
ANSWER_TOKENS = 8
BLOCK = 64


def bodies(rng):
    document, out = text(rng, 1000), []
    for _ in range(ENDINGS):
        out.append({"messages": [{"role": "user",
                                  "content": f"{document}\n\n{text(rng, 100)}"}],
                    "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True,
                    "ignore_eos": True})
    return out


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def measure(folder, setup, rng, token_bytes):
    c = contender.Incipit(folder, setup, 256 * contender.MIB, 256 * contender.MIB)
    try:
        c.start()
        prompts = []
        for body in bodies(rng):
            answer = ask(c.port, body)
            if answer.error:
                raise Failed(f"an ending of the document: {answer.error}")
            c.gateway.wait_saved()
            prompts.append(c.engine.ids(body["messages"]))
        stored = c.counters()["store"]["bytes"]
    finally:
        c.stop()
    document = min(common(prompts[0], p) for p in prompts[1:])
    held = [len(p) + ANSWER_TOKENS - 1 for p in prompts]
    bound = document + sum(n - document + BLOCK for n in held)
    return {"endings": ENDINGS, "document_tokens": document, "stored_bytes": stored,
            "bound_bytes": bound * token_bytes, "whole_bytes": sum(held) * token_bytes,
            "holds": stored <= bound * token_bytes}
