"""The tolerant way to read a Chat Completions frame: any JSON in, the structs of `chat_wire` out.

Owns what odd servers do to types: content as a list, arguments as an object, a string for an index,
usage in floats or in another place. It must say the same as `chat_wire` about every frame that both
can read; a test holds them together.
"""

from __future__ import annotations

import json
from typing import Any

from antiphon.core.dialects.chat_wire import Call, Choice, Chunk, Delta
from antiphon.core.parts import Usage

NOT_JSON = object()


def load(payload: bytes) -> Any:
    """Decode JSON as liberally as Python does; NOT_JSON if it is none. Bad UTF-8 becomes U+FFFD."""
    try:
        return json.loads(payload.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        return NOT_JSON


def chunk(document: dict[str, Any]) -> Chunk:
    choices = document.get("choices")
    return Chunk(
        [_choice(item) for item in choices if isinstance(item, dict)] if isinstance(choices, list) else [],
        _usage(document.get("usage")),
    )


def _choice(item: dict[str, Any]) -> Choice:
    index = item.get("index")
    matched = item.get("stop_reason")
    if matched is None:
        matched = item.get("matched_stop")
    finish = item.get("finish_reason")
    delta, message = item.get("delta"), item.get("message")
    return Choice(
        int(index) if isinstance(index, (int, float)) else 0,
        _delta(delta) if isinstance(delta, dict) else None,
        finish if isinstance(finish, str) else None,
        matched if isinstance(matched, str) else None,
        _usage(item.get("usage")),
        _delta(message) if isinstance(message, dict) else None,
    )


def _delta(item: dict[str, Any]) -> Delta:
    out = Delta()
    # One fragment under several names counts once.
    for name in ("reasoning_content", "reasoning", "reasoning_details"):
        text = _reasoning(item.get(name))
        if text:
            out.reasoning = text
            break
    content = item.get("content")
    if isinstance(content, str):
        out.content = content
    elif isinstance(content, (list, dict)):
        out.segments = tuple(_segments(content if isinstance(content, list) else [content]))
    refusal = item.get("refusal")
    if isinstance(refusal, str):
        out.refusal = refusal
    calls = item.get("tool_calls")
    entries = calls if isinstance(calls, list) else []
    out.tool_calls = [_call(entry) for entry in entries if isinstance(entry, dict)] or None
    old = item.get("function_call")
    if out.tool_calls is None and isinstance(old, dict):
        out.tool_calls = [_call({"index": 0, "function": old})]
    return out


def _call(entry: dict[str, Any]) -> Call:
    function = entry.get("function")
    if not isinstance(function, dict):
        function = {}
    name, id_, arguments = function.get("name"), entry.get("id"), function.get("arguments")
    if isinstance(arguments, (dict, list)):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    index = entry.get("index")
    if isinstance(index, str):
        index = None  # position and id decide
    return Call(
        count(index),
        id_ if isinstance(id_, str) else None,
        name if isinstance(name, str) else None,
        arguments if isinstance(arguments, str) else None,
    )


def _reasoning(value: Any) -> str:
    """Text of a reasoning field: a string, an object with `text`, or a list of such (reasoning_details)."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _reasoning(value.get("text") or value.get("summary"))
    if isinstance(value, list):
        return "".join(_reasoning(part) for part in value)
    return ""


def _segments(parts: list[Any]) -> list[tuple[bool, str]]:
    """Content as a list: text is text, thinking is thinking, anything else is no part of the answer."""
    out: list[tuple[bool, str]] = []
    for part in parts:
        if isinstance(part, str):
            out.append((False, part))
        elif isinstance(part, dict):
            if part.get("type") in ("thinking", "reasoning"):
                out.append((True, _reasoning(part.get("thinking") or part.get("text"))))
            elif part.get("type") in ("text", "output_text", None) and isinstance(part.get("text"), str):
                out.append((False, part["text"]))
    return [(is_reasoning, text) for is_reasoning, text in out if text]


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    spent = value.get("completion_tokens_details")
    spent = spent if isinstance(spent, dict) else {}
    return Usage(
        count(value.get("prompt_tokens")),
        count(value.get("completion_tokens")),
        _first(details.get("cached_tokens"), value.get("prompt_cache_hit_tokens")),
        _first(details.get("cache_write_tokens"), details.get("created_cache_tokens")),
        _first(spent.get("reasoning_tokens"), value.get("reasoning_tokens")),
    )


def _first(*values: Any) -> int | None:
    return next((number for number in map(count, values) if number is not None), None)


def count(value: Any) -> int | None:
    """A count as JSON may spell it: 7 and 7.0 are 7; negative, null, bool and text are not reported."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and value >= 0 else None
