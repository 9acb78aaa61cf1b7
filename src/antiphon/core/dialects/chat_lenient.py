"""The tolerant way to read a Chat Completions frame: any JSON in, the structs of `chat_wire` out.

Owns what odd servers do to types: content as a list, arguments as an object, a string for an index,
usage in floats or in another place. It must say the same as `chat_wire` about every frame that both
can read; a test holds them together. What is neither readable nor telling is left out, never raised.

    chunk(load(b'{"choices":[{"delta":{"content":[{"type":"text","text":"Hi"}]}}]}'))
    -> Chunk([Choice(0, OddDelta(segments=((False, "Hi"),)))])
"""

from __future__ import annotations

import json
from typing import Any

from antiphon.core.dialects.chat_wire import (
    LARGEST_COUNT,
    Call,
    Choice,
    Chunk,
    Delta,
    Function,
    InputDetails,
    OddDelta,
    OutputDetails,
    PromptProgress,
    WireUsage,
)

NOT_JSON = object()
_DEEPEST = 3  # levels at which the text of a reasoning field stands


def load(payload: bytes) -> Any:
    """Decode JSON as liberally as Python does; NOT_JSON if it is none. Bad UTF-8 becomes U+FFFD."""
    try:
        return json.loads(payload.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        return NOT_JSON


def chunk(document: dict[str, Any]) -> Chunk:
    """What is used of a chunk, or of a whole completion."""
    choices = document.get("choices")
    return Chunk(
        [_choice(item) for item in choices if isinstance(item, dict)] if isinstance(choices, list) else [],
        _usage(document.get("usage")),
        _progress(document.get("prompt_progress")),
    )


def _choice(item: dict[str, Any]) -> Choice:
    return Choice(
        index(item.get("index")) or 0,
        _delta(item.get("delta")),
        _text(item.get("finish_reason")),
        _text(item.get("stop_reason")),
        _text(item.get("matched_stop")),
        _usage(item.get("usage")),
        _message(item.get("message")),
        item.get("error") or None,
    )


def _delta(item: Any) -> Delta | None:
    if not isinstance(item, dict):
        return None
    # One fragment under several names counts once.
    names = ("reasoning_content", "reasoning", "reasoning_details")
    said = (_reasoning(item.get(name)) for name in names)
    content = item.get("content")
    return OddDelta(
        content=_text(content),
        reasoning_content=next((text for text in said if text), None),
        refusal=_text(item.get("refusal")),
        tool_calls=_calls(item.get("tool_calls")) or _old_call(item.get("function_call")),
        extra_content=item.get("extra_content"),
        segments=_segments(content),
        details=_details(item.get("reasoning_details")),
    )


def _details(entries: Any) -> tuple[Any, ...]:
    return tuple(entry for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else ()


def _message(item: Any) -> Delta | None:
    """A whole message is one delta, in which every entry of `tool_calls` is a call of its own."""
    message = _delta(item)
    if message is not None and message.tool_calls:
        for position, call in enumerate(message.tool_calls):
            call.index = position
    return message


def _calls(entries: Any) -> list[Call]:
    return [_call(entry) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _old_call(function: Any) -> list[Call] | None:
    """`function_call`, which came before `tool_calls`: one call in a message, without an id."""
    return [Call(0, None, _function(function))] if isinstance(function, dict) else None


def _call(entry: dict[str, Any]) -> Call:
    return Call(
        index(entry.get("index")),
        _text(entry.get("id")),
        _function(entry.get("function")),
        entry.get("extra_content"),
    )


def _function(item: Any) -> Function | None:
    if not isinstance(item, dict):
        return None
    arguments = item.get("arguments")
    if isinstance(arguments, dict) or (isinstance(arguments, list) and arguments):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return Function(_text(item.get("name")), _text(arguments))


def _reasoning(value: Any, depth: int = 0) -> str:
    """Text of a reasoning field: a string, an object with `text`, or a list of such (reasoning_details)."""
    if isinstance(value, str):
        return value
    if depth < _DEEPEST:
        if isinstance(value, dict):
            return _reasoning(value.get("text") or value.get("summary"), depth + 1)
        if isinstance(value, list):
            return "".join([_reasoning(part, depth + 1) for part in value])
    return ""


def _segments(content: Any) -> tuple[tuple[bool, str], ...]:
    """Content as a list: text is text, thinking is thinking, anything else is no part of the answer."""
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return ()
    said = (_segment(part) for part in content)
    return tuple((is_reasoning, text) for is_reasoning, text in said if text)


def _segment(part: Any) -> tuple[bool, str]:
    if isinstance(part, str):
        return False, part
    if not isinstance(part, dict):
        return False, ""
    if part.get("type") in ("thinking", "reasoning"):
        return True, _reasoning(part.get("thinking") or part.get("text"))
    if part.get("type") in ("text", "output_text", None):
        return False, _text(part.get("text")) or ""
    return False, ""


def _usage(value: Any) -> WireUsage | None:
    if not isinstance(value, dict):
        return None
    details, spent = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    return WireUsage(
        count(value.get("prompt_tokens")),
        count(value.get("completion_tokens")),
        InputDetails(
            count(details.get("cached_tokens")),
            count(details.get("cache_write_tokens")),
            count(details.get("created_cache_tokens")),
        )
        if isinstance(details, dict)
        else None,
        OutputDetails(count(spent.get("reasoning_tokens"))) if isinstance(spent, dict) else None,
        count(value.get("prompt_cache_hit_tokens")),
        count(value.get("reasoning_tokens")),
    )


def _progress(value: Any) -> PromptProgress | None:
    return PromptProgress(count(value.get("total"))) if isinstance(value, dict) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def index(value: Any) -> int | None:
    """An index as servers spell it: 0, 0.0 and "0"; None for what cannot tell two calls apart."""
    if isinstance(value, str) and value.isdecimal() and len(value) < _LONG_INDEX:
        return int(value)
    return count(value)


_LONG_INDEX = 10  # digits


def count(value: Any) -> int | None:
    """A count as JSON may spell it: 7 and 7.0 are 7; negative, null, bool and text are not reported."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= LARGEST_COUNT else None
