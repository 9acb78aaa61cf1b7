r"""The shape of one Chat Completions answer, whatever it looks like. Pure.

Owns reading an answer's bytes as a stranger: nothing is assumed, nothing raises. It says what is there
(line ends, `[DONE]`, names of fields), not what it should be.

    seen = read_chat(b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n')
    seen.text, seen.done, seen.line_ends   -> ("Hi", True, "LF")
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct, field

from antiphon.check.frames import read_frames
from antiphon.check.grammar import is_count, table

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
STOP_FIELDS = ("stop_reason", "matched_stop")


class CallSeen(Struct):
    """One tool call as its fragments came. `pieces` counts fragments that carried arguments."""

    name: str = ""
    arguments: str = ""
    id: str | None = None
    pieces: int = 0
    fragments: int = 0
    ids: int = 0
    names: int = 0
    indices: list[Any] = field(default_factory=list)
    object_arguments: bool = False


class ChatSeen(Struct):
    """What an answer held. `form` is "events", "json" or "neither"."""

    form: str = "neither"
    line_ends: str = "none"
    comments: int = 0
    chunks: int = 0
    bad_frames: int = 0
    done: bool = False
    text: str = ""
    reasoning: str = ""
    reasoning_fields: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    matched: dict[str, Any] = field(default_factory=dict)
    """Members of the finishing choice that say which stop string matched, with their values."""
    usage: dict[str, Any] | None = None
    usage_places: list[str] = field(default_factory=list)
    """Where usage stood: "first", "every chunk", "finish chunk", "own chunk", "choice", "body"."""
    calls: list[CallSeen] = field(default_factory=list)
    error: Any = None


def read_chat(body: bytes) -> ChatSeen:
    """Read a streamed or a whole answer."""
    seen = ChatSeen(line_ends=_line_ends(body))
    try:
        whole = json.loads(body)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict):
        seen.form = "json"
        _take(seen, whole, "message")
        if isinstance(whole.get("usage"), dict):
            seen.usage_places = ["body"]
        return seen
    seen.comments = sum(line.startswith(b":") for line in re.split(rb"[\r\n]+", body))
    frames, _ = read_frames(body)
    chunks = []
    for frame in frames:
        if frame.data.strip() == "[DONE]":
            seen.done = True
        elif frame.event is None:
            seen.bad_frames += 1
        else:
            chunks.append(frame.event)
    if chunks or seen.done:
        seen.form = "events"
    seen.chunks = len(chunks)
    for chunk in chunks:
        _take(seen, chunk, "delta")
    seen.usage_places = _usage_places(chunks)
    return seen


def _line_ends(body: bytes) -> str:
    crlf = body.count(b"\r\n")
    lf, cr = body.count(b"\n") - crlf, body.count(b"\r") - crlf
    kinds = [name for name, count in (("CRLF", crlf), ("LF", lf), ("CR", cr)) if count]
    return " and ".join(kinds) or "none"


def _choice(chunk: dict[str, Any]) -> dict[str, Any]:
    choices = chunk.get("choices")
    return table(choices[0]) if isinstance(choices, list) and choices else {}


def _take(seen: ChatSeen, chunk: dict[str, Any], member: str) -> None:
    if chunk.get("error") is not None:
        seen.error = seen.error or chunk["error"]
    elif chunk.get("object") == "error":
        seen.error = seen.error or chunk
    choice = _choice(chunk)
    delta = table(choice.get(member))
    content = delta.get("content")
    if isinstance(content, str):
        seen.text += content
    elif isinstance(content, list):
        for part in content:
            _take_part(seen, table(part))
    for name in REASONING_FIELDS:
        value = delta.get(name)
        if value:
            if name not in seen.reasoning_fields:
                seen.reasoning_fields.append(name)
            if isinstance(value, str) and name == seen.reasoning_fields[0]:
                seen.reasoning += value
    calls = delta.get("tool_calls")
    for at, fragment in enumerate(calls if isinstance(calls, list) else []):
        _take_fragment(seen, at, table(fragment))
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        seen.finish_reason = reason
        seen.matched = {name: choice[name] for name in STOP_FIELDS if name in choice}
    for usage in (chunk.get("usage"), choice.get("usage")):
        if isinstance(usage, dict) and is_count(usage.get("prompt_tokens")):
            seen.usage = usage


def _take_part(seen: ChatSeen, part: dict[str, Any]) -> None:
    if part.get("type") == "thinking":
        if "content[].thinking" not in seen.reasoning_fields:
            seen.reasoning_fields.append("content[].thinking")
        inner = part.get("thinking")
        pieces = inner if isinstance(inner, list) else [{"text": inner}]
        seen.reasoning += "".join(str(table(piece).get("text") or "") for piece in pieces)
    else:
        seen.text += str(part.get("text") or "")


def _take_fragment(seen: ChatSeen, at: int, fragment: dict[str, Any]) -> None:
    function = table(fragment.get("function"))
    name, arguments, tool_id = function.get("name"), function.get("arguments"), fragment.get("id")
    index = fragment.get("index")
    call = _call_of(seen, index, tool_id, name)
    call.fragments += 1
    call.indices.append(index)
    if tool_id:
        call.ids += 1
        call.id = call.id or str(tool_id)
    if name:
        call.names += 1
        call.name = call.name or str(name)
    if isinstance(arguments, dict):
        call.object_arguments = True
        arguments = json.dumps(arguments)
    if arguments:
        call.pieces += 1
        call.arguments += str(arguments)


def _call_of(seen: ChatSeen, index: Any, tool_id: Any, name: Any) -> CallSeen:
    """The call that a fragment belongs to: a new id or a new index begins one, anything else goes on."""
    last = seen.calls[-1] if seen.calls else None
    begins = last is None or (
        bool(name) and ((tool_id and last.id is not None and tool_id != last.id) or index not in last.indices)
    )
    if last is None or begins:
        last = CallSeen()
        seen.calls.append(last)
    return last


def _usage_places(chunks: list[dict[str, Any]]) -> list[str]:
    places = []
    with_usage = [isinstance(chunk.get("usage"), dict) for chunk in chunks]
    if with_usage and with_usage[0]:
        places.append("first chunk")
    if len(with_usage) > 2 and all(with_usage):
        places.append("every chunk")
    for chunk in chunks:
        has = isinstance(chunk.get("usage"), dict)
        if has and chunk.get("choices") == []:
            places.append("a chunk of its own")
        elif has and _choice(chunk).get("finish_reason"):
            places.append("the finishing chunk")
        if isinstance(_choice(chunk).get("usage"), dict):
            places.append("choices[0].usage")
    return list(dict.fromkeys(places))
