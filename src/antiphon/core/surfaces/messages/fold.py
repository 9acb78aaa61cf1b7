"""Messages API: the events of a message folded into the one that a non-streaming client gets.

Owns the whole message's form and the rule for tool calls in it: what is no JSON object never reaches a
client that would run it with `{}`.

    fold = Fold(message_id="msg_1", model="m", counts=Counter())
    fold.add(stream.take())
    fold.message()  -> b'{"id":"msg_1","type":"message",...}'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from antiphon.core import own_faults
from antiphon.core.arguments import is_object
from antiphon.core.parts import (
    BlockStart,
    Error,
    Event,
    Fault,
    InputJsonDelta,
    MessageDelta,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from antiphon.core.surfaces.messages.events import delta_fields, usage_fields

FOLD_LIMIT = 32 * 1024 * 1024


class _NotAnObjectError(Exception):
    """A call that no client may get; the argument is the tool's name."""


class _Block(Struct):
    start: BlockStart
    pieces: list[str]
    signature: str = ""


class Fold:
    """Collects one message. `limit` is in characters; more than that is a 502.

    `counts` takes the calls that were left out.
    """

    __slots__ = ("_blocks", "_counts", "_end", "_limit", "_message_id", "_model", "_size", "fault")

    def __init__(self, *, message_id: str, model: str, counts: Counter[str], limit: int = FOLD_LIMIT) -> None:
        self._message_id = message_id
        self._model = model
        self._counts = counts
        self._limit = limit
        self._blocks: list[_Block] = []
        self._end: MessageDelta | None = None
        self._size = 0
        self.fault: Fault | None = None  # why there is no message, if there is none

    def add(self, events: Iterable[Event]) -> None:
        """Take the next events, in order."""
        for event in events:
            if self.fault is not None:
                return
            if isinstance(event, (TextDelta, ThinkingDelta, InputJsonDelta)):
                self._blocks[event.index].pieces.append(event.s)
                self._size += len(event.s)
                if self._size > self._limit:
                    self.fault = own_faults.UPSTREAM_TOO_LARGE
            elif isinstance(event, BlockStart):
                self._blocks.append(_Block(event, []))
            elif isinstance(event, SignatureDelta):
                self._blocks[event.index].signature += event.s
            elif isinstance(event, MessageDelta):
                self._end = event
            elif isinstance(event, Error):
                self.fault = event.fault

    def message(self) -> bytes | None:
        """The message as JSON; None if there is none, then `fault` tells why."""
        if self.fault is not None:
            return None
        if self._end is None:
            self.fault = own_faults.UPSTREAM_CUT
            return None
        content: list[dict[str, Any]] = []
        for block in self._blocks:
            try:
                item = self._content(block, self._end)
            except _NotAnObjectError as call:
                said = f"the model called {call} with arguments that are no JSON object"
                self.fault = Fault("api_error", said, 502)
                return None
            if item is not None:
                content.append(item)
        return msgspec.json.encode(
            {
                "id": self._message_id,
                "type": "message",
                "role": "assistant",
                "model": self._model,
                "content": content,
                **delta_fields(self._end),
                "usage": usage_fields(self._end.usage, final=True),
            }
        )

    def _content(self, block: _Block, end: MessageDelta) -> dict[str, Any] | None:
        text = "".join(block.pieces)
        start = block.start
        if start.kind == "text":
            return {"type": "text", "text": text}
        if start.kind == "thinking":
            return {"type": "thinking", "thinking": text, "signature": block.signature}
        if is_object(text):
            # as it came: key order, big numbers and all
            return {
                "type": "tool_use",
                "id": start.id,
                "name": start.name,
                "input": Raw(text.strip().encode()),
            }
        if end.stop_reason in ("max_tokens", "refusal"):
            self._counts["cut_call_left_out"] += 1
            return None
        raise _NotAnObjectError(start.name)
