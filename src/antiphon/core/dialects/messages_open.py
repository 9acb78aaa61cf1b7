"""The content blocks that a native upstream has not stopped yet, and which of them a delta belongs to.

Owns that one question. Servers repeat an index, count from one, leave it out, or send text into a block of
thinking; a delta goes to a block that takes it, or starts one. When blocks start and stop for the client is
`messages_blocks`' to say.

    situation                               rule
    a block at its index takes it           it is that one, the latest of several
    no index, or arguments under a wrong    the latest block that takes it
    none takes it                           a block of the fitting type is started; arguments are a failure
    the block had to make room already      text and thinking go on in a new block, a late signature is
                                            dropped, everything else is a failure

    open_ = OpenBlocks(Counter())
    open_.owner(Piece(0, "text_delta", "Hi"))   -> Block("text", 0, ...), and `block_start_missing` is counted
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from msgspec import Raw

from antiphon.core.blocks import State
from antiphon.core.dialects.messages_block import EMPTY_BLOCK, KIND_OF, TEXTUAL, Block
from antiphon.core.dialects.messages_wire import DELTA_TEXT, Piece
from antiphon.core.parts import Fault

MOST_OPEN: Final = 256

_LATE = Fault("api_error", "the upstream went on with a content block that was already complete", 502)
_HOMELESS = Fault("api_error", "the upstream sent the arguments of a tool call that it never started", 502)
_TOO_MANY = Fault("api_error", "the upstream started too many content blocks at once", 502)


class OpenBlocks:
    """Those of one message, in the order of their starts. `counts` takes what was mended or dropped."""

    __slots__ = ("_counts", "_last", "blocks", "fault", "overlap")

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._last: Block | None = None  # the one that took the last delta
        self.blocks: list[Block] = []
        self.overlap = False  # two calls were open at once
        self.fault: Fault | None = None

    def admit(self, block: Block) -> bool:
        """A block was started. False: there are too many, and `fault` says so."""
        if len(self.blocks) >= MOST_OPEN:
            self.fault = _TOO_MANY
            return False
        if block.kind == "tool_use" and any(
            other.scan is not None and not other.scan.whole for other in self.blocks
        ):
            self.overlap = True
        self.blocks.append(block)
        return True

    def repeats(self, kind: str, source: int | None, members: dict[str, Raw]) -> bool:
        """The same block is started once more, before anything came of it."""
        return kind in (*TEXTUAL, "tool_use") and any(
            block.source == source
            and block.kind == kind
            and block.state is State.HELD
            and not block.held
            and all(block.members.get(name) == members.get(name) for name in ("id", "name"))
            for block in self.blocks
        )

    def find(self, source: int | None) -> Block | None:
        """The block that a stop means: the latest one at this index, or of all if it names none."""
        found = [block for block in self.blocks if source is None or block.source == source]
        return found[-1] if found else None

    def owner(self, piece: Piece) -> Block | None:
        """The block that a delta belongs to. None: to none, which was counted or is the `fault`."""
        block = self._last
        if block is None or block.source != piece.index or not block.open or not block.takes(piece.word):
            block = self._look_for(piece)
        if block is not None and block.state is State.STOPPED:
            block = self._after_stop(block, piece)
        if block is not None:
            self._last = block
        return block

    def _look_for(self, piece: Piece) -> Block | None:
        word, index = piece.word, piece.index
        if not word:
            self._counts["odd_delta_dropped"] += 1
            return None
        takers = [block for block in self.blocks if block.takes(word)]
        at_index = [block for block in takers if block.source == index]
        if at_index:
            return at_index[-1]
        blank = word in DELTA_TEXT and not piece.text.strip()
        if takers and (index is None or word == "input_json_delta"):
            if not blank:
                self._counts["delta_index_mended"] += 1
            return takers[-1]
        return self._start(piece, blank=blank)

    def _start(self, piece: Piece, *, blank: bool) -> Block | None:
        """A block for a delta that has none."""
        kind = KIND_OF.get(piece.word)
        if kind is None:
            self._counts["unknown_delta_dropped"] += 1
        elif piece.word in DELTA_TEXT and not piece.text:
            self._counts["empty_delta_dropped"] += 1
        elif kind != "tool_use":
            block = Block(kind, piece.index, EMPTY_BLOCK[kind])
            if self.admit(block):
                self._counts["block_start_missing"] += 1
                return block
        elif not blank:
            self.fault = _HOMELESS
        return None

    def _after_stop(self, block: Block, piece: Piece) -> Block | None:
        """More of a block that had to make room."""
        if piece.word == "signature_delta":
            if piece.text:
                self._counts["signature_late"] += 1
        elif block.kind in TEXTUAL:
            if not piece.text and piece.word in DELTA_TEXT:
                return None
            self._counts["block_reopened"] += 1
            again = Block(block.kind, block.source, EMPTY_BLOCK[block.kind])
            self.blocks[self.blocks.index(block)] = again
            return again
        elif piece.text.strip() or piece.word not in DELTA_TEXT:
            self.fault = _LATE
        return None
