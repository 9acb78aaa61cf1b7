"""Builders for turns and blocks of a Messages request, and what becomes of them on the way upstream."""

import json

import pytest

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.quirks import GENERIC
from antiphon.core.surfaces.messages.request import RequestError, parse


def user(*blocks):
    return {
        "role": "user",
        "content": list(blocks) if len(blocks) != 1 or isinstance(blocks[0], dict) else blocks[0],
    }


def assistant(*blocks):
    return user(*blocks) | {"role": "assistant"}


def system(*blocks):
    return user(*blocks) | {"role": "system"}


def text(words):
    return {"type": "text", "text": words}


def call(name="a", tool="f", **arguments):
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def result(name="a", content=None, **more):
    return (
        {"type": "tool_result", "tool_use_id": name}
        | ({} if content is None else {"content": content})
        | more
    )


def picture(data="iVBORw0KGgo="):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def outcome(*turns, to=GENERIC, **fields):
    whole = {"model": "m", "max_tokens": 64, "messages": list(turns), **fields}
    return encode(parse(json.dumps(whole).encode()), to)


def sent(*turns, to=GENERIC, **fields):
    return json.loads(outcome(*turns, to=to, **fields).body)["messages"]


def refusal(*turns, to=GENERIC):
    with pytest.raises(RequestError) as caught:
        outcome(*turns, to=to)
    assert caught.value.fault.status == 400
    return str(caught.value)


def said(content):
    return {"role": "user", "content": content}
