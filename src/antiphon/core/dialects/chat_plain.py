"""The chunk that nearly every chunk is: one choice with a piece of text, and nothing else.

Owns what counts as such a chunk, written as types, so that msgspec says it in one step. Whatever the types
leave out is refused: usage, a finish reason, tool calls, an error, another choice. They accept a part of what
`chat_wire` accepts and read it in the same way; `chat_wire` is for everything else.

    decode_plain(b'{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}').content  -> "Hi"
    decode_plain(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')                      -> None
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

# A member that says nothing, in the ways servers have to say so.
NoText = Literal[""] | None
NoList = Annotated[list[None], Meta(max_length=0)] | None


class PlainDelta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: NoText = None
    tool_calls: NoList = None
    extra_content: None = None
    reasoning_details: None = None
    function_call: None = None


class PlainChoice(Struct, gc=False):
    delta: PlainDelta
    index: Literal[0] | None = 0
    finish_reason: NoText = None
    usage: None = None
    message: None = None
    error: None = None


class PlainChunk(Struct, gc=False):
    choices: tuple[PlainChoice]
    usage: None = None
    prompt_progress: None = None
    error: None = None
    object: Literal["chat.completion.chunk"] | None = None
    type: None = None
    base_resp: None = None


_decode = msgspec.json.Decoder(PlainChunk).decode


def decode_plain(payload: bytes) -> PlainDelta | None:
    """What a plain chunk says, or None: it is none."""
    try:
        return _decode(payload).choices[0].delta
    except (msgspec.DecodeError, RecursionError):
        return None
