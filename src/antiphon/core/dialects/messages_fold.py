"""Native events folded into the one message that a client gets which did not ask to stream.

Owns that message's form: the upstream's own members, known or not, and the rule for tool calls in it: what is
no JSON object never reaches a client that would run it with `{}`.

    fold = NativeFold(counts=Counter())
    fold.block_start(0, {}, {"type": Raw(b'"text"'), "text": Raw(b'""')})
    fold.delta(0, Piece(0, "text_delta", "Hi"))
    fold.message()   -> None until `message_end`, then b'{"id":"msg_1",...}'
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from msgspec import Raw

from antiphon.core import own_faults
from antiphon.core.arguments import is_object
from antiphon.core.dialects.messages_frames import MessageEnd
from antiphon.core.dialects.messages_wire import DELTA_TEXT, Piece, members_of, size_of, word_of
from antiphon.core.parts import Fault
from antiphon.core.surfaces.messages.fold import FOLD_LIMIT


class _NotAnObjectError(Exception):
    """A call that no client may get; the argument is the tool's name."""


class _Folded:
    """One block: its members as it started, and what its deltas brought, by the member that it adds to."""

    __slots__ = ("citations", "members", "texts")

    def __init__(self, members: dict[str, Any]) -> None:
        self.members = members
        self.texts: dict[str, list[str]] = {}
        self.citations: list[Raw] = []


class NativeFold:
    """Collects one message. `limit` is in bytes of what the events carry; more than that is a 502.

    `counts` takes the calls that were left out.
    """

    __slots__ = ("_blocks", "_counts", "_end", "_limit", "_message", "_size", "fault")

    def __init__(self, *, counts: Counter[str], limit: int = FOLD_LIMIT) -> None:
        self._counts = counts
        self._limit = limit
        self._message: dict[str, Any] = {}
        self._blocks: list[_Folded] = []
        self._end: MessageEnd | None = None
        self._size = 0
        self.fault: Fault | None = None  # why there is no message, if there is none

    def message_start(self, members: dict[str, Any]) -> None:
        self._message = members["message"]

    def block_start(self, index: int, event: dict[str, Raw], block: dict[str, Any]) -> None:
        self._blocks.append(_Folded(dict(block)))
        self._grow(sum(map(size_of, block.values())))

    def delta(self, index: int, piece: Piece) -> None:
        if self.fault is not None:
            return
        block = self._blocks[index]
        name = DELTA_TEXT.get(piece.word)
        if name == "signature":
            block.texts[name] = [piece.text]  # the last one counts (protocol: SDK accumulators)
        elif name is not None:
            block.texts.setdefault(name, []).append(piece.text)
        else:
            self._add_other(block, piece)
        self._grow(len(piece.text) if name is not None else len(piece.payload))

    def block_stop(self, index: int) -> None:
        """A whole message has no stops."""

    def message_end(self, end: MessageEnd) -> None:
        self._end = end

    def error(self, fault: Fault) -> None:
        self.fault = self.fault or fault

    def message(self) -> bytes | None:
        """The message as JSON; None if it has not ended well, `fault` tells why."""
        end = self._end
        if self.fault is not None or end is None:
            return None
        try:
            items = [self._content(block, cut_short=end.cut_short) for block in self._blocks]
        except _NotAnObjectError as call:
            said = f"the model called {call} with arguments that are no JSON object"
            self.fault = Fault("api_error", said, 502)
            return None
        content = [item for item in items if item is not None]
        usage = {**self._message["usage"], **end.usage}
        return msgspec.json.encode({**self._message, "content": content, **end.delta, "usage": usage})

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._limit and self.fault is None:
            self.fault = own_faults.UPSTREAM_TOO_LARGE

    def _add_other(self, block: _Folded, piece: Piece) -> None:
        """Citations are a list; what other deltas bring are members of the block."""
        event = members_of(piece.payload) or {}
        delta = members_of(event.get("delta")) or {}
        if piece.word == "citations_delta":
            if "citation" in delta:
                block.citations.append(delta["citation"])
            return
        block.members |= {name: raw for name, raw in delta.items() if name != "type"}

    def _content(self, block: _Folded, *, cut_short: bool) -> dict[str, Any] | None:
        members = block.members
        if block.citations:
            members["citations"] = block.citations
        for name, pieces in block.texts.items():
            text = "".join(pieces)
            if name != "partial_json":
                members[name] = text
            elif is_object(text):
                members["input"] = Raw(text.strip().encode())  # as it came: key order, big numbers and all
            elif word_of(members.get("type")) != "tool_use":
                pass  # the upstream runs it itself, and knows what it said
            elif cut_short:
                self._counts["cut_call_left_out"] += 1
                return None
            else:
                raise _NotAnObjectError(word_of(members.get("name")))
        return members
