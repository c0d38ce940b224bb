# SPDX-License-Identifier: MIT
"""litellm as a client library, with its providers for both APIs."""

import sys
import time

import litellm

from asking import serve

litellm.suppress_debug_info = True
litellm.telemetry = False


def complete(ask, provider="openai", **more):
    base = ask["url"] + ("/v1" if provider == "openai" else "")
    return litellm.completion(**{
        "model": f"{provider}/{ask['model']}", "messages": ask["messages"], "temperature": 0,
        "max_tokens": ask["limit"], "api_base": base, "api_key": "none", "num_retries": 0,
        "max_retries": 0, "timeout": 120, "extra_headers": ask.get("headers"), **more})


def plain(ask):
    return complete(ask).model_dump()


def messages(ask):
    """By way of /v1/messages."""
    return complete(ask, "anthropic").model_dump()


def stream(ask, **more):
    return [c.model_dump() for c in complete(
        ask, stream=True, stream_options={"include_usage": True}, **more)]


def tools(ask):
    """Both answers of a round trip, or one where the engine has called nothing."""
    first = complete(ask, tools=ask["tools"])
    message = first.choices[0].message
    if not message.tool_calls:
        return [first.model_dump()]
    more = [message.model_dump()] + [
        {"role": "tool", "tool_call_id": call.id, "content": ask["result"]}
        for call in message.tool_calls]
    return [first.model_dump(), complete(
        dict(ask, messages=ask["messages"] + more), tools=ask["tools"]).model_dump()]


def tools_stream(ask):
    return stream(ask, tools=ask["tools"])


def cancel(ask):
    chunks = complete(ask, stream=True, extra_body={"ignore_eos": True})
    for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            left = time.monotonic()
            chunks.close()
            return {"left": left}
    return None


def failed(ask, **more):
    try:
        return complete(ask, **more).model_dump()
    except Exception as error:  # it has a class for each status, without a common one
        return {"class": type(error).__name__, "status": getattr(error, "status_code", None),
                "body": str(error).replace(ask["url"], "")}


def bad(ask):
    return failed(ask, extra_body={"max_tokens": "four"})


def down(ask):
    return failed(ask)


serve(sys.modules[__name__])
