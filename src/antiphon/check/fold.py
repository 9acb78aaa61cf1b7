"""Events folded to what a client would hold, and what it would think of it.

Owns the fold and the remarks: things that no rule forbids and that still hurt. Never raises.

    fold(events).content   -> [{"type": "text", "text": "Hello"}]
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from antiphon.check.grammar import table


class Folded(Struct):
    """A message as a client holds it. `input` of a tool whose JSON is broken is its text.

    `closed` counts `content_block_stop`s, `closed_tools` names the calls among them; `open_blocks` are the
    indices that were never stopped.
    """

    id: str | None = None
    model: str | None = None
    content: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    start_usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    closed: int = 0
    closed_tools: list[str] = field(default_factory=list)
    open_blocks: list[int] = field(default_factory=list)
    pings: int = 0
    events: int = 0


_TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def fold(events: Iterable[object]) -> Folded:
    """Fold a stream, legal or not."""
    held = Folded()
    arguments: list[str] = []  # for each block
    place: dict[Any, int] = {}  # a block's index to its place in the content
    for event in events:
        if not isinstance(event, dict):
            continue
        held.events += 1
        index = event.get("index")
        at = place.get(index) if isinstance(index, int) else None
        match event.get("type"):
            case "message_start":
                message = table(event.get("message"))
                held.id, held.model = message.get("id"), message.get("model")
                held.start_usage = dict(table(message.get("usage")))
                held.usage.update(held.start_usage)
            case "ping":
                held.pings += 1
            case "content_block_start":
                if isinstance(index, int):
                    place[index] = len(held.content)
                    held.open_blocks.append(index)
                held.content.append(dict(table(event.get("content_block"))))
                arguments.append("")
            case "content_block_delta" if at is not None:
                delta = table(event.get("delta"))
                kind = delta.get("type")
                if kind == "input_json_delta":
                    arguments[at] += as_text(delta.get("partial_json"))
                elif isinstance(kind, str) and kind in _TEXT_OF:
                    name = _TEXT_OF[kind]
                    held.content[at][name] = as_text(held.content[at].get(name)) + as_text(delta.get(name))
            case "content_block_stop":
                held.closed += 1
                if at is not None and index in held.open_blocks:
                    held.open_blocks.remove(index)
                    if held.content[at].get("type") == "tool_use":
                        held.closed_tools.append(str(held.content[at].get("name")))
            case "message_delta":
                delta = table(event.get("delta"))
                held.stop_reason, held.stop_sequence = delta.get("stop_reason"), delta.get("stop_sequence")
                held.usage.update({k: v for k, v in table(event.get("usage")).items() if v is not None})
            case "error":
                held.error = table(event.get("error"))
    for block, text in zip(held.content, arguments, strict=True):
        if block.get("type") == "tool_use" and (text or "input" not in block):
            block["input"] = _parsed(text)
    return held


def as_text(value: object) -> str:
    """A delta's text. What is not a string is shown as JSON, so that it cannot pass for text."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _parsed(text: str) -> Any:
    if not text:
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def remarks(held: Folded) -> list[str]:
    """What is legal in this stream and will still surprise its reader."""
    out = [
        f"The arguments of tool {block.get('name')} are not a whole JSON object: SDKs raise or see {{}}."
        for block in held.content
        if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict)
    ]
    if held.error is not None and held.closed:
        out.append(
            f"The stream failed after {held.closed} closed block{'s' * (held.closed != 1)}: Claude Code does"
            " not repeat such a turn."
        )
        if held.closed_tools:
            out.append(f"It runs these tools, which were closed before: {', '.join(held.closed_tools)}.")
    elif held.error is not None:
        out.append("The stream failed before any block was closed: Claude Code repeats the turn by itself.")
    if held.start_usage.get("input_tokens") == 0:
        out.append("message_start says input_tokens 0: the context meter of Claude Code does not move.")
    if held.error is None and not held.content:
        out.append("The message is empty: Claude Code asks again once.")
    return out
