r"""Bytes of an event stream to numbered frames, and what is wrong with the framing.

Owns the SSE rules (WHATWG HTML, 9.2) as a judge needs them: nothing is forgiven in silence, nothing
raises. It does not know the events' order; that is `grammar`.

    frames, violations = read_frames(b'event: ping\ndata: {"type":"ping"}\n\n')
    frames[0].event   -> {"type": "ping"}
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from antiphon.check.rules import Violation

_LINE_END = re.compile(r"\r\n|\r|\n")  # these three only: U+2028 and its like are text
_BOM = "\ufeff"


class Frame(Struct):
    """One dispatched frame. `number` counts from 1, `line` is where it begins; `event` None is unusable."""

    number: int
    line: int
    name: str | None
    data: str
    event: dict[str, Any] | None = None


def read_frames(body: bytes) -> tuple[list[Frame], list[Violation]]:
    """The frames with data, in order, and the violations of their framing. Comments are skipped."""
    violations: list[Violation] = []
    try:
        text = body.decode()
    except UnicodeDecodeError as broken:
        text = body.decode("utf-8", "replace")
        violations.append(Violation("frame.utf8", None, f"the body is not UTF-8 at byte {broken.start}"))
    if text.startswith(_BOM):
        text = text.removeprefix(_BOM)
        violations.append(Violation("frame.bom", 1, "a byte order mark stands before the first event"))

    frames: list[Frame] = []
    name: str | None = None
    data: list[str] = []
    begun: int | None = None
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        lines.pop()  # what follows the last line end is no line
    for at, line in enumerate([*lines, ""], start=1):
        if line == "":
            if begun is not None and at > len(lines):
                violations.append(
                    Violation("frame.unfinished", len(frames) + 1, "no blank line follows the last frame")
                )
            if data:
                frames.append(_frame(len(frames) + 1, begun or at, name, "\n".join(data), violations))
            name, data, begun = None, [], None
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "":
            continue  # a comment
        begun = begun or at
        if key == "event":
            name = value.strip()
        elif key == "data":
            data.append(value)
        elif key in ("id", "retry"):
            violations.append(Violation("frame.field", len(frames) + 1, f"the frame has a `{key}:` line"))
    return frames, violations


def _frame(number: int, line: int, name: str | None, data: str, violations: list[Violation]) -> Frame:
    frame = Frame(number, line, name, data)
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        done = data.strip() == "[DONE]"
        text = "[DONE] is no event" if done else f"the data is not JSON: {data[:60]!r}"
        violations.append(Violation("frame.done" if done else "frame.json", number, text))
        return frame
    if not isinstance(event, dict):
        violations.append(Violation("frame.object", number, f"the data is not an object: {data[:60]!r}"))
        return frame
    if not name:
        violations.append(Violation("frame.no_event", number, "the frame has no `event:` line"))
    elif event.get("type") != name:
        violations.append(
            Violation(
                "frame.name", number, f"the event line says {name!r}, the type is {event.get('type')!r}"
            )
        )
    frame.event = event
    return frame
