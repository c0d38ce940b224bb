# SPDX-License-Identifier: MIT
"""The official Python package of the Anthropic API as a client."""

import json
import sys
import time

import anthropic

from asking import failure, serve


def client(ask):
    return anthropic.Anthropic(base_url=ask["url"], api_key="none", max_retries=0,
                               timeout=120, default_headers=ask.get("headers"))


def in_its_form(message):
    """A message of the OpenAI API, of those that test_clients.py makes."""
    if message["role"] == "tool":
        return {"role": "user", "content": [{
            "type": "tool_result", "tool_use_id": message["tool_call_id"],
            "content": message["content"]}]}
    if message.get("tool_calls"):
        return {"role": "assistant", "content": [{
            "type": "tool_use", "id": call["id"], "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"])}
            for call in message["tool_calls"]]}
    return message


def question(ask, **more):
    system, *rest = ask["messages"]
    return {"model": ask["model"], "system": system["content"], "max_tokens": ask["limit"],
            "messages": [in_its_form(m) for m in rest], "extra_body": {"temperature": 0}, **more}


def tools_of(ask):
    return [{"name": t["function"]["name"], "description": t["function"]["description"],
             "input_schema": t["function"]["parameters"]} for t in ask["tools"]]


def plain(ask):
    return client(ask).messages.create(**question(ask)).model_dump()


def stream(ask, **more):
    """All events, and the message that the library has put together."""
    with client(ask).messages.stream(**question(ask, **more)) as events:
        return [e.model_dump() for e in events] + [events.get_final_message().model_dump()]


def count(ask):
    return client(ask).messages.count_tokens(
        **{k: v for k, v in question(ask).items()
           if k in ("model", "system", "messages")}).model_dump()


def tools(ask):
    """Both answers of a round trip, or one where the engine has called nothing."""
    asked = question(ask, tools=tools_of(ask))
    first = client(ask).messages.create(**asked)
    calls = [part for part in first.content if part.type == "tool_use"]
    if not calls:
        return [first.model_dump()]
    asked["messages"] = asked["messages"] + [
        {"role": "assistant", "content": [part.model_dump() for part in first.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                      "content": ask["result"]} for call in calls]}]
    return [first.model_dump(), client(ask).messages.create(**asked).model_dump()]


def tools_stream(ask):
    return stream(ask, tools=tools_of(ask))


def cancel(ask):
    with client(ask).messages.stream(**question(
            ask, extra_body={"ignore_eos": True, "temperature": 0})) as events:
        for event in events:
            if event.type == "content_block_delta":
                left = time.monotonic()
                events.close()
                return {"left": left}
    return None


def request_id(ask):
    return client(ask).messages.create(**question(ask))._request_id


def not_found(ask):
    try:
        return client(ask).models.retrieve("no-such-model").model_dump()
    except anthropic.APIError as error:
        return failure(error)


def bad(ask):
    try:
        return client(ask).messages.create(**question(
            ask, extra_body={"max_tokens": "four"})).model_dump()
    except anthropic.APIError as error:
        return failure(error)


def down(ask):
    try:
        return plain(ask)
    except anthropic.APIError as error:
        return failure(error)


serve(sys.modules[__name__])
