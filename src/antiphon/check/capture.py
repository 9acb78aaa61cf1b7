"""A captured answer, a stream or a whole message: what it breaks, what a client holds in the end.

Owns finding out what the bytes are (`curl -i` heads are skipped) and numbering violations as a reader counts.

    judge_capture(Path("answer.sse").read_bytes()).violations
"""

from __future__ import annotations

import json
import re
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.check.fold import Folded, fold, remarks
from antiphon.check.frames import read_frames
from antiphon.check.grammar import judge, table
from antiphon.check.message import judge_message
from antiphon.check.rules import Violation

_HEAD = re.compile(rb"\AHTTP/[0-9.]+ [^\n]*\n(?:[^\r\n]+\r?\n)*\r?\n")


class NotAnAnswer(ValueError):  # noqa: N818 - not an error of the program
    """The bytes hold no event and no JSON object."""


class Judged(Struct):
    """A judged capture. Violations are in the order of the events, those without a number last.

    `lines` has the line of each numbered event. `remarks` are legal things that still hurt.
    """

    form: Literal["stream", "message"]
    violations: list[Violation]
    folded: Folded
    remarks: list[str]
    lines: dict[int, int]


def judge_capture(data: bytes) -> Judged:
    """Raises `NotAnAnswer` if there is nothing to judge."""
    while head := _HEAD.match(data):
        data = data[head.end() :]
    if data.lstrip()[:1] in (b"{", b"["):
        return _judge_body(data)
    frames, violations = read_frames(data)
    usable = [frame for frame in frames if frame.event is not None]
    if not usable:
        raise NotAnAnswer("no event and no JSON object in it")
    events = [frame.event for frame in usable]
    for broken in judge(events):
        number = None if broken.at is None else usable[broken.at - 1].number
        violations.append(msgspec.structs.replace(broken, at=number))
    violations.sort(key=lambda v: len(frames) + 1 if v.at is None else v.at)
    folded = fold(events)
    lines = {frame.number: frame.line for frame in frames}
    return Judged("stream", violations, folded, remarks(folded), lines)


def _judge_body(data: bytes) -> Judged:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as broken:
        raise NotAnAnswer(f"it looks like JSON and is none: {broken}") from broken
    message = table(body)
    content = message.get("content")
    blocks = [table(block) for block in content] if isinstance(content, list) else []
    error = table(message["error"]) if message.get("type") == "error" else None
    folded = Folded(
        id=message.get("id"),
        model=message.get("model"),
        content=blocks,
        stop_reason=message.get("stop_reason"),
        stop_sequence=message.get("stop_sequence"),
        usage=table(message.get("usage")),
        error=error,
    )
    return Judged("message", judge_message(body), folded, [], {})
