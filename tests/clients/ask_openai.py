# SPDX-License-Identifier: MIT
"""The official Python package of the OpenAI API as a client."""

import sys
import time

import openai

from asking import failure, serve


def client(ask):
    return openai.OpenAI(base_url=ask["url"] + "/v1", api_key="none", max_retries=0,
                         timeout=120, default_headers=ask.get("headers"))


def question(ask, **more):
    return {"model": ask["model"], "messages": ask["messages"], "max_tokens": ask["limit"],
            "temperature": 0, **more}


def plain(ask):
    return client(ask).chat.completions.create(**question(ask)).model_dump()


def stream(ask, **more):
    with client(ask).chat.completions.create(**question(
            ask, stream=True, stream_options={"include_usage": True}, **more)) as chunks:
        return [c.model_dump() for c in chunks]


def models(ask):
    return [m.model_dump() for m in client(ask).models.list()]


def tools(ask):
    """Both answers of a round trip, or one where the engine has called nothing."""
    asked = question(ask, tools=ask["tools"])
    first = client(ask).chat.completions.create(**asked)
    message = first.choices[0].message
    if not message.tool_calls:
        return [first.model_dump()]
    asked["messages"] = asked["messages"] + [message] + [
        {"role": "tool", "tool_call_id": call.id, "content": ask["result"]}
        for call in message.tool_calls]
    return [first.model_dump(), client(ask).chat.completions.create(**asked).model_dump()]


def tools_stream(ask):
    return stream(ask, tools=ask["tools"])


def cancel(ask):
    with client(ask).chat.completions.create(**question(
            ask, stream=True, extra_body={"ignore_eos": True})) as chunks:
        for chunk in chunks:
            if chunk.choices and chunk.choices[0].delta.content:
                left = time.monotonic()
                chunks.close()
                return {"left": left}
    return None


def request_id(ask):
    return client(ask).chat.completions.create(**question(ask))._request_id


def not_found(ask):
    try:
        return client(ask).models.retrieve("no-such-model").model_dump()
    except openai.APIError as error:
        return failure(error)


def bad(ask):
    try:
        return client(ask).chat.completions.create(**question(
            ask, extra_body={"max_tokens": "four"})).model_dump()
    except openai.APIError as error:
        return failure(error)


def down(ask):
    try:
        return plain(ask)
    except openai.APIError as error:
        return failure(error)


serve(sys.modules[__name__])
