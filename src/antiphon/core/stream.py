"""THE state machine: parts in, ordered events out.

Owns how a message begins and ends. It must not know a dialect, a clock, a socket or an encoding; ids and
estimates come in as arguments.

The rules are two tables: `PHASE`, here, says what an input does to the message; `BLOCK`, in
`core.block_queue`, what it does to one content block. Both are total: a pair that nobody thought of does not
exist. Blocks stand in a queue and only its head is on the wire; which argument text belongs to which tool
call is `core.tool_calls`' to tell.

    stream = Stream(tool_id=lambda original: original or "toolu_1", input_tokens=9, counts=Counter())
    stream.receive([Text("Hi"), Finish("end_turn"), End(clean=True)])
    stream.take()   -> [MessageStart(...), BlockStart(...), TextDelta(...), BlockStop(...), ...]

`receive` changes the state, `take` renders what the state allows: while a client does not read, nobody
takes, and what comes merges in its block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import structs

from antiphon.core import own_faults
from antiphon.core.block_queue import BLOCK, BlockQueue
from antiphon.core.parts import (
    End,
    Error,
    Event,
    Fault,
    Finish,
    Malformed,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    StopReason,
    Text,
    ToolArgs,
    ToolOpen,
    Usage,
)
from antiphon.core.tool_calls import ToolCalls
from antiphon.core.usage import Tally

__all__ = ["BLOCK", "HELD_LIMIT", "PHASE", "Phase", "Stream"]

HELD_LIMIT = 8 * 1024 * 1024


class Phase(StrEnum):
    """Where a message is. Until something of it is committed, a failure is still an HTTP status.

    NEW: there is no content. STREAMING: there is, or the client was promised a stream. FINISHING: the
    upstream said why it stops, so what breaks from here on takes nothing away. ENDED: nothing more counts.
    """

    NEW = "NEW"
    STREAMING = "STREAMING"
    FINISHING = "FINISHING"
    ENDED = "ENDED"


_N, _S, _F, _E = Phase

Row: TypeAlias = tuple[str, Phase]
"""What is done, and the phase afterwards (unless that met an end of its own)."""

# fmt: off
_ROWS: dict[str, tuple[Row, Row, Row, Row]] = {
    # input       in NEW                  in STREAMING            in FINISHING            in ENDED
    "text":      (("add_text", _S),       ("add_text", _S),       ("add_text", _F),       ("ignore", _E)),
    "blank":     (("add_blank", _N),      ("add_blank", _S),      ("add_blank", _F),      ("ignore", _E)),
    "reasoning": (("add_reasoning", _S),  ("add_reasoning", _S),  ("add_reasoning", _F),  ("ignore", _E)),
    "tool":      (("open_tool", _S),      ("open_tool", _S),      ("open_tool", _F),      ("ignore", _E)),
    "nameless":  (("open_tool", _N),      ("open_tool", _S),      ("open_tool", _F),      ("ignore", _E)),
    "args":      (("add_args", _N),       ("add_args", _S),       ("add_args", _F),       ("ignore", _E)),
    "opaque":    (("add_opaque", _S),     ("add_opaque", _S),     ("add_opaque", _F),     ("ignore", _E)),
    "usage":     (("note_usage", _N),     ("note_usage", _S),     ("note_usage", _F),     ("ignore", _E)),
    "finish":    (("note_finish", _F),    ("note_finish", _F),    ("note_finish", _F),    ("ignore", _E)),
    "fault":     (("fail", _E),           ("fail", _E),           ("fail", _E),           ("ignore", _E)),
    "malformed": (("fail", _E),           ("fail", _E),           ("count_malformed", _F),("ignore", _E)),
    "done":      (("complete_unsaid", _E),("complete_unsaid", _E),("complete", _E),       ("ignore", _E)),
    "cut":       (("fail", _E),           ("fail", _E),           ("complete_cut", _E),   ("ignore", _E)),
    "commit":    (("commit_now", _S),     ("commit_now", _S),     ("commit_now", _F),     ("ignore", _E)),
}
# fmt: on

PHASE: dict[Phase, dict[str, Row]] = {
    phase: {name: cells[column] for name, cells in _ROWS.items()} for column, phase in enumerate(Phase)
}

_CUT_SHORT = ("max_tokens", "refusal")  # reasons after which a call may be half of what the model meant


class _Commit:
    """What the shell says: the client has waited long enough."""


_COMMIT = (_Commit(),)


class Stream:
    """One message.

    `tool_id` turns an upstream's id (None: none given) into the one that clients see; `input_tokens` is
    what `message_start` says until the upstream reports better; `counts` takes what was dropped, mended
    or inferred, by kind; `held_limit` is in characters that wait behind the block on the wire.
    """

    __slots__ = (
        "_calls",
        "_closing",
        "_finish",
        "_held_limit",
        "_promised",
        "_refusal",
        "_started",
        "_tally",
        "blocks",
        "counts",
        "fault",
        "phase",
    )

    def __init__(
        self,
        *,
        tool_id: Callable[[str | None], str],
        input_tokens: int,
        counts: Counter[str],
        held_limit: int = HELD_LIMIT,
    ) -> None:
        self.phase = Phase.NEW
        self.fault: Fault | None = None  # why it failed; before the commit point an honest HTTP answer
        self.counts = counts
        self._tally = Tally(input_tokens=input_tokens)
        self._calls = ToolCalls(counts)
        self.blocks = BlockQueue(tool_id=tool_id, tally=self._tally, counts=counts)
        self._held_limit = held_limit
        self._refusal = False
        self._finish: Finish | None = None
        self._promised = False  # the client gets a stream whatever comes, or the message ended well
        self._started = False  # message_start was taken
        self._closing: list[Event] = []  # what is said last, not taken yet

    # --- what a shell asks ---

    @property
    def begun(self) -> bool:
        """Some content is there: the first token has come."""
        return self.blocks.begun

    @property
    def committed(self) -> bool:
        """The status may go out: there is content, or a good end, or the client was promised a stream."""
        return self._promised or self.blocks.begun

    @property
    def ended(self) -> bool:
        """Nothing more will be taken in. If it is not committed, `fault` is an honest HTTP answer."""
        return self.phase is _E

    @property
    def finished(self) -> bool:
        """The upstream gave a reason to stop: what breaks from here on takes nothing away."""
        return self._finish is not None

    @property
    def pending(self) -> int:
        """Characters received and not yet taken."""
        return self.blocks.pending

    @property
    def usage(self) -> MessageUsage:
        """What the message has used so far, in Anthropic's terms; what nobody reported is estimated."""
        return self._tally.usage

    def guess_input(self, tokens: int) -> None:
        """A better estimate of the prompt, in tokens."""
        self._tally.guess_input(tokens)

    def count_input(self, tokens: int) -> None:
        """The prompt was counted by the upstream's tokenizer, in tokens; what the upstream reports wins."""
        self._tally.count_input(tokens)

    @property
    def usage_reported(self) -> bool:
        """The upstream told how many tokens it generated."""
        return self._tally.reported

    # --- parts in ---

    def receive(self, parts: Iterable[Part | _Commit]) -> None:
        """Take parts. Never raises for what an upstream says; after the end they are ignored."""
        for part in parts:
            act, phase = _PHASE[self.phase][_INPUT[type(part)](part)]
            act(self, part)
            # an action that met its own end (a late fragment) has the last word
            if self.phase is not _E:
                self.phase = phase
        if self.blocks.held > self._held_limit and self.phase is not _E:
            self.counts["held_too_much"] += 1
            self._end(own_faults.UPSTREAM_TOO_LARGE)

    def commit(self) -> None:
        """The client has waited long enough: promise a stream, whatever comes."""
        self.receive(_COMMIT)

    def _ignore(self, part: Any) -> None:
        pass

    def _commit_now(self, part: _Commit) -> None:
        self._promised = True

    def _add_text(self, part: Text | Refusal) -> None:
        if type(part) is Refusal:
            self._refusal = True
        self.blocks.add_text(part.s)

    def _add_blank(self, part: Text | Refusal) -> None:
        self.blocks.add_blank(part.s)

    def _add_reasoning(self, part: Reasoning) -> None:
        self.blocks.add_thinking(part.s)

    def _add_opaque(self, part: Opaque) -> None:
        if part.key is None:
            self.blocks.sign(part.signature)
        else:
            self.blocks.seal(self._calls.at(part.key), part.signature)

    def _open_tool(self, part: ToolOpen) -> None:
        steps = self._calls.open(part)
        self.blocks.overlap = self._calls.overlap
        self.blocks.follow(steps)

    def _add_args(self, part: ToolArgs) -> None:
        steps = self._calls.feed(part.key, part.s)
        self.blocks.overlap = self._calls.overlap
        self.blocks.follow(steps)
        if self.blocks.broken:
            self._end(_LATE)

    def _note_usage(self, part: Usage) -> None:
        self._tally.note(part)

    def _note_finish(self, part: Finish) -> None:
        self._finish = part

    def _count_malformed(self, part: Malformed) -> None:
        self.counts["malformed_after_finish"] += 1

    # --- the end ---

    def _fail(self, part: Fault | Malformed | End) -> None:
        self._end(_fault_of(part))

    def _complete_cut(self, part: End) -> None:
        self.counts["cut_after_finish"] += 1
        self._complete(part)

    def _complete_unsaid(self, part: End) -> None:
        """`[DONE]` without a finish reason is a normal end, unless a call is incomplete."""
        self.counts["finish_inferred"] += 1
        self.blocks.follow(self._calls.finish())
        if self._calls.unfinished:
            self._end(own_faults.UPSTREAM_CUT)
        else:
            self._complete(part)

    def _complete(self, part: End) -> None:
        self.blocks.follow(self._calls.finish())
        for call in self._calls.nameless:
            if not call.scan.blank:
                self._end(_NAMELESS)
                return
            self.counts["nameless_call_dropped"] += 1
        finish = self._finish or Finish("end_turn")
        self.blocks.finish(cut_short=finish.reason in _CUT_SHORT)
        reason = self._stop_reason(finish.reason)
        matched = finish.matched if reason == "stop_sequence" else None
        self._promised = True
        self._end(None)
        self._closing = [MessageDelta(reason, matched, self.usage), MessageStop()]

    def _stop_reason(self, reason: StopReason) -> StopReason:
        if self._refusal:
            return "refusal"
        if reason in _CUT_SHORT:
            return reason
        if self.blocks.tools:
            return "tool_use"
        if reason == "tool_use":
            self.counts["tool_use_without_call"] += 1
            return "end_turn"
        return reason

    def _end(self, fault: Fault | None) -> None:
        self.phase = _E
        self.fault = fault
        if fault is not None:
            self._closing = [Error(fault)]

    # --- events out ---

    def take(self) -> list[Event]:
        """Everything that may go on the wire now, in order; each block's backlog is one delta."""
        if not (self._started or self.committed):
            return []
        events = self.blocks.take()
        if not self._started:
            self._started = True
            usage = self.usage
            if "output" in usage.estimated:
                usage = structs.replace(usage, output_tokens=1 if self.begun else 0)
            events.insert(0, MessageStart(usage))
        if self._closing:
            events += self._closing
            self._closing = []
        return events


_NAMELESS = Fault("api_error", "the upstream sent a tool call without a name", 502)
_LATE = Fault("api_error", "the upstream went on with a tool call that was already complete", 502)


def _fault_of(part: Fault | Malformed | End) -> Fault:
    if isinstance(part, Fault):
        return part
    if isinstance(part, Malformed):
        return Fault("api_error", part.message, 502)
    return part.fault or own_faults.UPSTREAM_CUT


_INPUT: dict[type, Callable[[Any], str]] = {
    Text: lambda part: "blank" if part.s.isspace() else "text",
    Refusal: lambda part: "blank" if part.s.isspace() else "text",
    Reasoning: lambda part: "reasoning",
    ToolOpen: lambda part: "tool" if part.name else "nameless",
    ToolArgs: lambda part: "args",
    Opaque: lambda part: "opaque",
    Usage: lambda part: "usage",
    Finish: lambda part: "finish",
    Fault: lambda part: "fault",
    Malformed: lambda part: "malformed",
    End: lambda part: "done" if part.clean else "cut",
    _Commit: lambda part: "commit",
}

# The table names what is done; here the names become the methods, once.
_PHASE: dict[Phase, dict[str, tuple[Callable[[Stream, Any], None], Phase]]] = {
    phase: {name: (getattr(Stream, f"_{act}"), after) for name, (act, after) in rows.items()}
    for phase, rows in PHASE.items()
}
