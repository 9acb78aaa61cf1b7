"""What is used of a Chat Completions chunk, as structs: the fast path's types.

Owns the shapes and the strict decoder. A frame that the decoder refuses, or that has a member which only
`chat_lenient` understands, is None here; `chat_lenient` builds the same structs.

    decode_chunk(b'{"choices":[{"index":0,"delta":{"content":"Hi"}}]}')  -> Chunk([Choice(0, Delta("Hi"))])
    decode_chunk(b'{"choices":[{"delta":{"content":[{"text":"Hi"}]}}]}') -> None
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta, Struct

from antiphon.core.parts import Usage

# More than this is no count: JSON numbers lose their unit digit there, and clients read doubles.
LARGEST_COUNT = 2**53

Count: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
Segments: TypeAlias = tuple[tuple[bool, str], ...]


class Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class Call(Struct, gc=False):
    """One entry of `tool_calls`: None where something was absent or unusable."""

    index: Count | None = None
    id: str | None = None
    function: Function | None = None
    extra_content: Any = None


class Delta(Struct, gc=False):
    """A delta, or a whole message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    extra_content: Any = None
    # members for the other path
    reasoning_details: Any = None
    function_call: Any = None

    segments: ClassVar[Segments] = ()
    details: ClassVar[tuple[Any, ...]] = ()


class OddDelta(Delta, gc=False):
    """A delta with content that came as a list: (is reasoning, text) in its order.

    `details` are entries of `reasoning_details`, as they came.
    """

    segments: Segments = ()  # type: ignore[misc]  # an instance's own, where the plain delta has none
    details: tuple[Any, ...] = ()  # type: ignore[misc]  # likewise


class InputDetails(Struct, gc=False):
    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    created_cache_tokens: Count | None = None  # vLLM's name


class OutputDetails(Struct, gc=False):
    reasoning_tokens: Count | None = None


class WireUsage(Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    prompt_cache_hit_tokens: Count | None = None  # DeepSeek
    reasoning_tokens: Count | None = None  # SGLang


class Choice(Struct, gc=False):
    """`stop_reason` (vLLM) and `matched_stop` (SGLang) are the stop string that was hit, or a token id.

    `usage`, `message` and `error` are decoded by `chat_lenient` alone: WireUsage, Delta, any JSON.
    """

    index: Count | None = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    usage: Any = None
    message: Any = None
    error: Any = None

    @property
    def matched(self) -> str | None:
        """The stop string that the server says it hit."""
        for told in (self.stop_reason, self.matched_stop):
            if isinstance(told, str):
                return told
        return None


class PromptProgress(Struct, gc=False):
    """llama.cpp's, with `return_progress`: how far the prefill is, in tokens."""

    total: Count | None = None


class Chunk(Struct, gc=False):
    """`error`, `object`, `type` and `base_resp` only tell that this may be no chunk but a failure."""

    choices: list[Choice]
    usage: WireUsage | None = None
    prompt_progress: PromptProgress | None = None
    error: Any = None
    object: str | None = None
    type: str | None = None
    base_resp: Any = None


_decode = msgspec.json.Decoder(Chunk).decode


def decode_chunk(payload: bytes) -> Chunk | None:
    """A chunk of the ordinary kind, or None: then `chat_lenient` reads it."""
    try:
        chunk = _decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not chunk.choices or chunk.error is not None or chunk.base_resp is not None:
        return None
    if chunk.object == "error" or chunk.type == "error":
        return None
    for choice in chunk.choices:
        if choice.message is not None or choice.usage is not None or choice.error is not None:
            return None
        delta = choice.delta
        if delta is not None and (delta.reasoning_details is not None or delta.function_call is not None):
            return None
    return chunk


def usage_part(wire: WireUsage) -> Usage | None:
    """The part that a report makes; None if it says nothing."""
    read, write, reasoning = wire.prompt_cache_hit_tokens, None, wire.reasoning_tokens
    details, spent = wire.prompt_tokens_details, wire.completion_tokens_details
    if details is not None:
        read = read if details.cached_tokens is None else details.cached_tokens
        write = details.cache_write_tokens
        if write is None:
            write = details.created_cache_tokens
    if spent is not None and spent.reasoning_tokens is not None:
        reasoning = spent.reasoning_tokens
    part = Usage(wire.prompt_tokens, wire.completion_tokens, read, write, reasoning)
    return None if part == _NOTHING else part


_NOTHING = Usage()
