# SPDX-License-Identifier: MIT
"""What the clients in Python have in common: lines of JSON in, lines of JSON out.

A question is {"do": CASE, "url": …, …}, see test_clients.py; CASE is a function of the
client. Its answer is what the library made of the engine's, as plain JSON.
"""

import json
import sys


def serve(module):
    """Answers until the end of input. The first line out says that the library is there."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        print(json.dumps(getattr(module, ask["do"])(ask)), flush=True)


def failure(error):
    """An exception of a library: its class, and what it read in the answer."""
    return {"class": type(error).__name__, "status": getattr(error, "status_code", None),
            "body": getattr(error, "body", None)}
