"""What is used of a Chat Completions chunk, as structs: the fast path's types.

Owns the shapes and the strict decoder. A frame that the decoder refuses, or that has a member which
only `chat_lenient` understands, is None here.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from antiphon.core.parts import Usage

_NONE = Raw(b"null")


class Call(Struct, gc=False):
    """One entry of `tool_calls`: None where it was absent or unusable."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class Delta(Struct, gc=False):
    """A delta, or a whole message; `segments` are (is reasoning, text) of content that came as a list."""

    reasoning: str | None = None
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    segments: tuple[tuple[bool, str], ...] = ()
    opaque: tuple[str, ...] = ()


class Choice(Struct, gc=False):
    """`matched` is the stop string that the server says it hit, if it is a string."""

    index: int = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    matched: str | None = None
    usage: Usage | None = None
    message: Delta | None = None


class Chunk(Struct, gc=False):
    choices: list[Choice] | None = None
    usage: Usage | None = None


# --- the wire's own shape, for msgspec ---


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    # members for the other path
    function_call: Raw = _NONE
    reasoning_details: Raw = _NONE


class _Details(Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    created_cache_tokens: int | None = None


class _OutDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _OutDetails | None = None
    # members for the other path
    prompt_cache_hit_tokens: Raw = _NONE
    reasoning_tokens: Raw = _NONE


class _Choice(Struct, gc=False):
    index: int | None = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    usage: Raw = _NONE
    message: Raw = _NONE


class _Chunk(Struct, gc=False):
    choices: list[_Choice]
    usage: _Usage | None = None
    error: Raw = _NONE
    object: str | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


def decode_chunk(payload: bytes) -> Chunk | None:
    """A chunk of the ordinary kind, or None: then `chat_lenient` reads it."""
    try:
        wire = _decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    if wire.error is not _NONE and bytes(wire.error) != b"null":
        return None
    if wire.object == "error":
        return None
    usage = None
    if wire.usage is not None:
        usage = _usage(wire.usage)
        if usage is None:
            return None
    choices = []
    for item in wire.choices:
        if item.usage is not _NONE or item.message is not _NONE:
            return None
        matched = item.stop_reason if item.stop_reason is not None else item.matched_stop
        choice = Choice(
            item.index or 0, None, item.finish_reason, matched if isinstance(matched, str) else None
        )
        delta = item.delta
        if delta is not None:
            if delta.function_call is not _NONE or delta.reasoning_details is not _NONE:
                return None
            calls = None
            if delta.tool_calls:
                calls = []
                for call in delta.tool_calls:
                    if call.index is not None and call.index < 0:
                        return None
                    function = call.function or _Function()
                    calls.append(Call(call.index, call.id, function.name, function.arguments))
            choice.delta = Delta(
                delta.reasoning_content or delta.reasoning, delta.content, delta.refusal, calls
            )
        choices.append(choice)
    return Chunk(choices, usage)


def _usage(usage: _Usage) -> Usage | None:
    """Counts as the wire has them, or None where one is odd (negative, elsewhere): the other path's work."""
    if usage.prompt_cache_hit_tokens is not _NONE or usage.reasoning_tokens is not _NONE:
        return None
    read = write = reasoning = None
    if usage.prompt_tokens_details is not None:
        read = usage.prompt_tokens_details.cached_tokens
        write = usage.prompt_tokens_details.cache_write_tokens
        if write is None:
            write = usage.prompt_tokens_details.created_cache_tokens
    if usage.completion_tokens_details is not None:
        reasoning = usage.completion_tokens_details.reasoning_tokens
    counts = (usage.prompt_tokens, usage.completion_tokens, read, write, reasoning)
    if any(count is not None and count < 0 for count in counts):
        return None
    return Usage(*counts)
