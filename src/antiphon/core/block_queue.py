"""The content blocks of one message, in their order: a queue of which only the head is on the wire.

Owns when a block starts and stops, what is held behind the head, and the events of blocks. It must not
know how a message begins or ends: that is `core.stream`'s.

The rules are the table at the top. A text block is stopped when another block has content. A tool block is
stopped only when nothing can change it any more, because clients run a call whose block was stopped,
whatever comes after.

    blocks = BlockQueue(tool_id=str, tally=Tally(input_tokens=9), counts=Counter())
    blocks.add_text("Hi")
    blocks.take()   -> [BlockStart(0, "text"), TextDelta(0, "Hi")]
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from antiphon.core.blocks import Block, State, ToolBlock, tool_name
from antiphon.core.parts import (
    BlockStart,
    BlockStop,
    Event,
    InputJsonDelta,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from antiphon.core.tool_calls import Step
from antiphon.core.usage import Tally

_HELD, _LIVE, _STOPPED = State

LOOSE = 256
"""Pieces that a block holds one by one: a token as an object of its own takes a dozen times its length."""

# What is done with a block. delta: text of its own; whole: its arguments became one JSON object; next: a
# later block has content; finish: the message ends well; late: text behind its whole arguments.
# fmt: off
BLOCK: dict[State, dict[str, str]] = {
    _HELD:    {"delta": "keep", "whole": "nothing", "next": "nothing", "finish": "conclude", "late": "keep"},
    _LIVE:    {"delta": "keep", "whole": "yield",   "next": "yield",   "finish": "stop",     "late": "keep"},
    _STOPPED: {"delta": "late", "whole": "nothing", "next": "nothing", "finish": "nothing",  "late": "late"},
}
# fmt: on


class BlockQueue:
    """`tool_id` turns an upstream's id (None: none given) into the one that clients see."""

    __slots__ = (
        "_behind_text",
        "_blank",
        "_counts",
        "_cut_short",
        "_head",
        "_next_index",
        "_out",
        "_queue",
        "_tail",
        "_tally",
        "_tool_id",
        "begun",
        "broken",
        "held",
        "overlap",
        "pending",
        "tools",
    )

    def __init__(self, *, tool_id: Callable[[str | None], str], tally: Tally, counts: Counter[str]) -> None:
        self.begun = False  # there is content
        self.broken = False  # text came for a block that is stopped: the client has something else
        self.overlap = False  # two calls were in flight at once: order tells nothing about them
        self.tools = 0  # calls that are, or were, on the wire
        self.pending = 0  # characters received and not yet taken
        self.held = 0  # those of them in blocks that did not start, and in white space
        self._tool_id = tool_id
        self._tally = tally
        self._counts = counts
        self._head: Block | None = None  # the block that is on the wire
        self._queue: deque[Block] = deque()  # blocks with content behind it
        self._tail: Block | None = None  # the last block of all
        self._out: list[Block] = []  # started blocks whose stop was not taken
        self._next_index = 0
        self._behind_text: list[str] = []  # state that came behind a text, for a block of its own
        self._blank = ""  # white space that may still open a text block
        self._cut_short = False

    # --- content in ---

    def add_text(self, text: str) -> None:
        """Text goes on with the last block, if that is a text block, else it opens one."""
        tail = self._tail
        if tail is not None and tail.kind == "text":
            self._apply("delta", tail, text)
        else:
            self._open(Block("text"), self._take_blank() + text)

    def add_blank(self, text: str) -> None:
        """White space never opens a block; behind text it is text."""
        tail = self._tail
        if tail is not None and tail.kind == "text":
            self._apply("delta", tail, text)
        else:
            self._blank += text
            self.held += len(text)
            self.pending += len(text)

    def add_thinking(self, text: str) -> None:
        """Reasoning goes on with the last block, if that is an open thought, else it opens one."""
        self.drop_blank()
        tail = self._tail
        if tail is not None and tail.kind == "thinking" and not tail.signature:
            self._apply("delta", tail, text)
        else:
            self._open(Block("thinking"), text)

    def sign(self, signature: str) -> None:
        """Opaque state of the last thought, or a thought of its own."""
        tail = self._tail
        if tail is not None and tail.kind == "thinking" and not tail.signature:
            tail.signature = signature
        elif self._behind_text or (tail is not None and tail.kind == "text"):
            # It goes before the next block. Behind the last one it would be what Claude Code's `-p` prints
            # of the answer: nothing.
            self._behind_text.append(signature)
            self._tail = None
        else:
            self._enqueue(_sealed(signature))
        self._promote()

    def seal(self, call: ToolBlock, signature: str) -> None:
        """Opaque state of a tool call: it goes into a thinking block right before it."""
        if not call.queued:
            call.seal = signature
        elif call.state is _HELD:
            self._queue.insert(self._queue.index(call), _sealed(signature))
            self._promote()
        else:
            self._counts["opaque_too_late"] += 1

    def follow(self, steps: list[Step]) -> None:
        """What `ToolCalls` made of a part."""
        for name, call, text in steps:
            if name == "named":
                call.queued = True
                if call.seal:
                    self._enqueue(_sealed(call.seal))
                self._enqueue(call)
            else:
                self.drop_blank()
                self._apply(name, call, text)
        self._promote()

    def finish(self, *, cut_short: bool) -> None:
        """The message ends well; `cut_short`: a call may be half of what the model meant."""
        self.drop_blank()
        self._cut_short = cut_short
        if self._behind_text:
            self._counts["state_behind_text"] += len(self._behind_text)
            self._behind_text.clear()
        if self._head is not None:
            self._apply("finish", self._head)
        while self._queue:
            self._apply("finish", self._queue.popleft())

    def drop_blank(self) -> None:
        """Something else than text came: the white space before it stays out."""
        if self._blank:
            self._take_blank()
            self._counts["blank_text_dropped"] += 1

    # --- the lane of core.translation: text that goes straight through ---

    @property
    def flowing(self) -> Block | None:
        """The text or thinking block on the wire, if more of its kind is nothing but a delta of it.

        Asked right after `take`, so its start is out and nothing else waits.
        """
        tail = self._tail
        if tail is None or tail.state is not _LIVE or tail.kind == "tool_use":
            return None
        return None if tail.signature or self._blank else tail

    def flow(self, block: Block, text: str) -> None:
        """What `add_text` or `add_thinking` does, for the block that is `flowing`."""
        self._keep(block, text)

    def take_flow(self, block: Block) -> Event:
        """What `take` gives after `flow`."""
        return _DELTA[block.kind](block.index, self._take_backlog(block))

    # --- the queue ---

    def _take_blank(self) -> str:
        blank, self._blank = self._blank, ""
        self.held -= len(blank)
        self.pending -= len(blank)
        return blank

    def _open(self, block: Block, text: str) -> None:
        self._enqueue(block)
        self._apply("delta", block, text)
        self._promote()

    def _enqueue(self, block: Block) -> None:
        self.drop_blank()
        self._queue.extend(map(_sealed, self._behind_text))
        self._behind_text.clear()
        self._queue.append(block)
        self._tail = block
        self.begun = True

    def _promote(self) -> None:
        """Let the head stop if it may, and the next one start: until one stays on the wire."""
        while True:
            if self._head is not None:
                if self._queue:
                    self._apply("next", self._head)
                if self._head.state is _LIVE:
                    return
                self._head = None
            if not self._queue or not self._queue[0].startable:
                return
            self._head = self._queue.popleft()
            self._start(self._head)

    def _start(self, block: Block) -> None:
        block.state = _LIVE
        self.held -= block.size
        self._out.append(block)
        if isinstance(block, ToolBlock):
            self.tools += 1
            block.id = self._tool_id(block.upstream_id)
            name = tool_name(block.name)
            if name != block.name:
                self._counts["tool_name_mended"] += 1
                block.name = name

    # --- what the table names ---

    def _apply(self, name: str, block: Block, text: str = "") -> None:
        _BLOCK[block.state][name](self, block, text)

    def _nothing(self, block: Block, text: str) -> None:
        pass

    def _keep(self, block: Block, text: str) -> None:
        size = len(text)
        pending = block.pending
        pending.append(text)
        if len(pending) - block.folded >= LOOSE:
            pending[block.folded :] = ["".join(pending[block.folded :])]
            block.folded += 1
        block.size += size
        self.pending += size
        if block.state is _HELD:
            self.held += size
        tally = self._tally
        tally.characters += size
        tally.deltas += 1

    def _yield(self, block: Block, text: str) -> None:
        """The head makes room, if somebody waits and nothing that may come can change it any more."""
        if self._queue and block.certain and not (self.overlap and block.kind == "tool_use"):
            block.state = _STOPPED

    def _stop(self, block: Block, text: str) -> None:
        block.state = _STOPPED

    def _conclude(self, block: Block, text: str) -> None:
        if isinstance(block, ToolBlock) and block.nothing_said:
            if self._cut_short:
                # Cut before its arguments: a client would run it with {}.
                self._counts["cut_call_dropped"] += 1
                self.held -= block.size
                self.pending -= block.size
                return
            if not block.pending:
                self._keep(block, "{}")
        self._start(block)
        block.state = _STOPPED

    def _late(self, block: Block, text: str) -> None:
        self._counts["late_fragment"] += 1
        self.broken = True

    # --- events out ---

    def take(self) -> list[Event]:
        """Everything of the blocks that may go on the wire now; each block's backlog is one delta."""
        events: list[Event] = []
        for block in self._out:
            self._render(block, events)
        if self._out and self._out[-1].state is _LIVE:
            del self._out[:-1]
        else:
            self._out.clear()
        return events

    def _render(self, block: Block, events: list[Event]) -> None:
        if block.index < 0:
            block.index = self._next_index
            self._next_index += 1
            if isinstance(block, ToolBlock):
                events.append(BlockStart(block.index, block.kind, block.id, block.name))
            else:
                events.append(BlockStart(block.index, block.kind))
        if block.size:
            events.append(_DELTA[block.kind](block.index, self._take_backlog(block)))
        if block.state is _STOPPED:
            if block.signature:
                events.append(SignatureDelta(block.index, block.signature))
            events.append(BlockStop(block.index))

    def _take_backlog(self, block: Block) -> str:
        pending = block.pending
        text = pending[0] if len(pending) == 1 else "".join(pending)
        pending.clear()
        block.folded = 0
        self.pending -= block.size
        block.size = 0
        return text


def _sealed(signature: str) -> Block:
    """A thinking block that carries state and no text."""
    block = Block("thinking")
    block.signature = signature
    return block


_DELTA: dict[str, Callable[[int, str], Event]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_use": InputJsonDelta,
}

# The table names what is done; here the names become the methods, once.
_BLOCK: dict[State, dict[str, Callable[[BlockQueue, Block, str], None]]] = {
    state: {name: getattr(BlockQueue, f"_{act}") for name, act in rows.items()}
    for state, rows in BLOCK.items()
}
