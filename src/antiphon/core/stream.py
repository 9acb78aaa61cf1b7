"""THE state machine: parts in, ordered events out.

Owns the order of a Messages stream: which block is on the wire, when it starts, when it stops, and how
the message ends. It must not know a dialect, a clock, a socket or an encoding; ids and estimates come
in as arguments.

The rules are the two tables at the top. `PHASE` says what an input does to the message, `BLOCK` what it
does to one content block. Both are total: a pair that nobody thought of does not exist.

Blocks stand in a queue and only its head is on the wire. Parts append to their own block; when the head
may stop, the next one becomes head with everything that it held. What clients do with a
`content_block_stop` decides when it may be sent: the stop of a `tool_use` is an order to run it.

    stream = Stream(tool_id=lambda original: original or "toolu_1", input_tokens=9)
    stream.receive([Text("Hi"), Finish("end_turn"), End(clean=True)])
    stream.take()   -> [MessageStart(...), BlockStart(...), TextDelta(...), BlockStop(...), ...]

`receive` changes the state, `take` renders what the state allows: while a client does not read, nobody
takes, and what comes merges in its block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import structs

from antiphon.core.blocks import Block, State, ToolBlock, tool_name
from antiphon.core.parts import (
    BlockStart,
    BlockStop,
    End,
    Error,
    Event,
    Fault,
    Finish,
    InputJsonDelta,
    Malformed,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    SignatureDelta,
    StopReason,
    Text,
    TextDelta,
    ThinkingDelta,
    ToolArgs,
    ToolOpen,
    Usage,
)

if TYPE_CHECKING:
    from collections import Counter

HELD_LIMIT = 8 * 1024 * 1024


class Phase(Enum):
    """Where a message is. NEW: nothing is promised to the client yet, a failure is an HTTP status."""

    NEW = "NEW"
    STREAMING = "STREAMING"
    FINISHING = "FINISHING"
    ENDED = "ENDED"


Row: TypeAlias = tuple[str, Phase]

_NEW, _STREAMING, _FINISHING, _ENDED = Phase

# input of the message -> (what is done, phase afterwards)
PHASE: dict[Phase, dict[str, Row]] = {
    _NEW: {
        "text": ("add_text", _STREAMING),
        "blank": ("add_blank", _NEW),
        "reasoning": ("add_reasoning", _STREAMING),
        "tool": ("open_tool", _STREAMING),
        "nameless": ("open_tool", _NEW),
        "args": ("add_args", _NEW),
        "opaque": ("add_opaque", _STREAMING),
        "usage": ("note_usage", _NEW),
        "finish": ("note_finish", _FINISHING),
        "fault": ("refuse", _ENDED),
        "malformed": ("refuse", _ENDED),
        "done": ("complete_unsaid", _ENDED),
        "cut": ("refuse", _ENDED),
        "commit": ("nothing", _STREAMING),
    },
    _STREAMING: {
        "text": ("add_text", _STREAMING),
        "blank": ("add_blank", _STREAMING),
        "reasoning": ("add_reasoning", _STREAMING),
        "tool": ("open_tool", _STREAMING),
        "nameless": ("open_tool", _STREAMING),
        "args": ("add_args", _STREAMING),
        "opaque": ("add_opaque", _STREAMING),
        "usage": ("note_usage", _STREAMING),
        "finish": ("note_finish", _FINISHING),
        "fault": ("fail", _ENDED),
        "malformed": ("fail", _ENDED),
        "done": ("complete_unsaid", _ENDED),
        "cut": ("fail", _ENDED),
        "commit": ("nothing", _STREAMING),
    },
    _FINISHING: {
        "text": ("add_text", _FINISHING),
        "blank": ("add_blank", _FINISHING),
        "reasoning": ("add_reasoning", _FINISHING),
        "tool": ("open_tool", _FINISHING),
        "nameless": ("open_tool", _FINISHING),
        "args": ("add_args", _FINISHING),
        "opaque": ("add_opaque", _FINISHING),
        "usage": ("note_usage", _FINISHING),
        "finish": ("note_finish", _FINISHING),
        "fault": ("fail", _ENDED),
        "malformed": ("count_malformed", _FINISHING),
        "done": ("complete", _ENDED),
        "cut": ("complete_cut", _ENDED),
        "commit": ("nothing", _FINISHING),
    },
    _ENDED: {
        name: ("nothing", _ENDED)
        for name in (
            "text",
            "blank",
            "reasoning",
            "tool",
            "nameless",
            "args",
            "opaque",
            "usage",
            "finish",
            "fault",
            "malformed",
            "done",
            "cut",
            "commit",
        )
    },
}

# what happens to one block -> what is done. "delta": content for it came; "whole": its arguments became
# one JSON object; "next": a later block has content; "finish": the message ends well; "late": content
# came after its stop.
BLOCK: dict[State, dict[str, str]] = {
    State.HELD: {
        "delta": "keep",
        "whole": "keep",
        "next": "keep",
        "finish": "finish_block",
        "late": "keep",
    },
    State.LIVE: {
        "delta": "keep",
        "whole": "keep",
        "next": "yield_to_next",
        "finish": "finish_block",
        "late": "keep",
    },
    State.STOPPED: {
        "delta": "late",
        "whole": "nothing",
        "next": "nothing",
        "finish": "nothing",
        "late": "late",
    },
}


class Stream:
    """One message.

    `tool_id` turns an upstream's id (None: none given) into the one that clients see; `input_tokens` is
    what `message_start` says until the upstream reports better; `counts` takes what was dropped, mended
    or inferred, by kind; `held_limit` is in characters that were received and not yet taken.
    """

    __slots__ = (
        "_blank",
        "_blocks",
        "_by_key",
        "_calls",
        "_chars",
        "_committed",
        "_deltas",
        "_finish",
        "_head",
        "_held_limit",
        "_input_tokens",
        "_next_index",
        "_overlap",
        "_refusal",
        "_sent_end",
        "_sent_start",
        "_stop_reason",
        "_tool_id",
        "_tools",
        "_usage",
        "_wire",
        "counts",
        "fault",
        "pending",
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
        self.fault: Fault | None = None  # why it failed, if it did
        self.counts = counts
        self.pending = 0  # characters received and not yet taken
        self._tool_id = tool_id
        self._input_tokens = input_tokens
        self._held_limit = held_limit
        self._blocks: list[Block] = []  # the queue: everything in it has content
        self._head = 0  # the first block that is not stopped
        self._wire = 0  # the first block whose stop was not taken
        self._next_index = 0
        self._calls: list[ToolBlock] = []  # every call, those without a name too
        self._by_key: dict[int, ToolBlock] = {}
        self._tools = 0  # calls that are, or will be, on the wire
        self._overlap = False  # two calls were in flight at once
        self._blank = ""  # white space that may still open a text block
        self._refusal = False
        self._finish: Finish | None = None
        self._stop_reason: StopReason = "end_turn"
        self._usage = Usage()
        self._chars = 0
        self._deltas = 0
        self._committed = False
        self._sent_start = False
        self._sent_end = False

    # --- what a shell asks ---

    @property
    def committed(self) -> bool:
        """The status may go out: there is content, or the upstream said how it ended."""
        return self._committed

    @property
    def begun(self) -> bool:
        """Some content is there: the first token has come."""
        return bool(self._blocks)

    @property
    def ended(self) -> bool:
        """Nothing more will be taken in. If it is not committed, `fault` is an honest HTTP answer."""
        return self.phase is Phase.ENDED

    @property
    def finished(self) -> bool:
        """The upstream gave a reason to stop: what breaks from here on takes nothing away."""
        return self._finish is not None

    @property
    def usage_reported(self) -> bool:
        return self._usage.completion is not None

    @property
    def usage(self) -> MessageUsage:
        """What the message has used so far, in Anthropic's terms; what nobody reported is estimated."""
        told, estimated = self._usage, []
        if told.prompt is None:
            prompt = self._input_tokens
            estimated.append("input")
        else:
            prompt = max(0, told.prompt - (told.cache_read or 0) - (told.cache_write or 0))
        if told.completion is None:
            # Most servers send one token a delta; those that batch are caught by the length.
            completion = max(1, self._deltas, -(-self._chars // 4))
            estimated.append("output")
        else:
            completion = told.completion
        return MessageUsage(
            prompt, completion, told.cache_write, told.cache_read, told.reasoning, tuple(estimated)
        )

    # --- parts in ---

    def receive(self, parts: Iterable[Part]) -> None:
        """Take parts. Never raises for what an upstream says; after the end they are ignored."""
        for part in parts:
            self._step(_INPUT[type(part)](part), part)

    def commit(self) -> None:
        """The client has waited long enough: promise a stream, whatever comes."""
        self._step("commit", None)

    def _step(self, name: str, part: Any) -> None:
        act, phase = _PHASE[self.phase][name]
        act(self, part)
        # an action that met its own end (a late fragment, too much held) has the last word
        if self.phase is not _ENDED:
            self.phase = phase
            if phase is not _NEW:
                self._committed = True

    def _nothing(self, part: Any) -> None:
        pass

    def _add_text(self, part: Text | Refusal) -> None:
        if type(part) is Refusal:
            self._refusal = True
        tail = self._blocks[-1] if self._blocks else None
        if tail is not None and tail.kind == "text":
            self._put(tail, part.s)
            return
        block = Block("text")
        text = self._blank + part.s
        self.pending -= len(self._blank)
        self._blank = ""
        self._enqueue(block)
        self._put(block, text)
        self._promote()

    def _add_blank(self, part: Text | Refusal) -> None:
        """White space never opens a block; behind text it is text."""
        if self._blocks and self._blocks[-1].kind == "text":
            self._add_text(part)
        else:
            self._blank += part.s
            self._hold(len(part.s))

    def _add_reasoning(self, part: Reasoning) -> None:
        tail = self._blocks[-1] if self._blocks else None
        if tail is not None and tail.kind == "thinking" and not tail.signature:
            self._put(tail, part.s)
            return
        block = Block("thinking")
        self._enqueue(block)
        self._put(block, part.s)
        self._promote()

    def _add_opaque(self, part: Opaque) -> None:
        if part.key is None:
            tail = self._blocks[-1] if self._blocks else None
            if tail is None or tail.kind != "thinking" or tail.signature:
                tail = Block("thinking")
                self._enqueue(tail)
            tail.signature = part.signature
            self._promote()
            return
        call = self._by_key.get(part.key) or self._new_call(part.key)
        if not call.queued:
            call.seal = part.signature
        elif call.state is State.HELD:
            carrier = Block("thinking")
            carrier.signature = part.signature
            self._blocks.insert(self._blocks.index(call), carrier)
            self._promote()
        else:
            self.counts["opaque_too_late"] += 1

    def _open_tool(self, part: ToolOpen) -> None:
        call = self._by_key.get(part.key)
        if call is None:
            call = self._new_call(part.key)
        elif part.name and call.name and part.name != call.name and not call.empty:
            if call.scan.whole:
                call = self._new_call(part.key)
            else:
                self.counts["name_after_arguments"] += 1
                return
        if part.id and call.upstream_id is None and not call.id:
            call.upstream_id = part.id
        if part.name and part.name != call.name and (call.empty or not call.name):
            call.name += part.name
        if call.name and not call.queued:
            self._queue_call(call)
            self._promote()

    def _add_args(self, part: ToolArgs) -> None:
        call = self._by_key.get(part.key) or self._new_call(part.key)
        self._feed(call, part.s)
        self._promote()

    def _note_usage(self, part: Usage) -> None:
        old = self._usage
        self._usage = Usage(
            old.prompt if part.prompt is None else part.prompt,
            old.completion if part.completion is None else part.completion,
            old.cache_read if part.cache_read is None else part.cache_read,
            old.cache_write if part.cache_write is None else part.cache_write,
            old.reasoning if part.reasoning is None else part.reasoning,
        )

    def _note_finish(self, part: Finish) -> None:
        self._finish = part

    def _count_malformed(self, part: Malformed) -> None:
        self.counts["malformed_after_finish"] += 1

    # --- tool calls ---

    def _new_call(self, key: int) -> ToolBlock:
        if any(not call.scan.whole for call in self._calls):
            self._overlap = True
        call = ToolBlock(key)
        self._calls.append(call)
        self._by_key[key] = call
        return call

    def _queue_call(self, call: ToolBlock) -> None:
        if call.seal:
            carrier = Block("thinking")
            carrier.signature = call.seal
            self._enqueue(carrier)
        call.queued = True
        self._enqueue(call)

    def _feed(self, call: ToolBlock, text: str) -> None:
        """Argument text for a call: its own, a placeholder's successor, a repeat, or another call's."""
        if call.repeat:
            self._feed_repeat(call, text)
            return
        if not call.scan.whole:
            end = call.scan.feed(text)
            self._put(call, text if end is None else text[:end])
            if end is not None and text[end:]:
                self._feed(call, text[end:])
            return
        rest = text.strip()
        if not rest:
            self.counts["white_space_after_arguments"] += 1
        elif call.bare and call.state is State.HELD:
            if rest == "{}":
                return
            if rest[0] == "{":
                self.counts["placeholder_arguments"] += 1
                self.pending -= call.forget_arguments()
                self._feed(call, text)
            else:
                call.scan.spoil(text)
                self._put(call, text)
        elif rest[0] == "{":
            self._feed_repeat(call, text.lstrip())
        else:
            if call.state is not State.STOPPED:
                call.scan.spoil(text)
            self._put(call, text)

    def _feed_repeat(self, call: ToolBlock, text: str) -> None:
        """`{` after a whole object: the same text once more, or another call at the same index?"""
        call.repeat += text
        whole = call.scan.text
        if whole is not None:
            whole = whole.strip()
            if whole.startswith(call.repeat) and whole != call.repeat:
                return
            if call.repeat.startswith(whole):
                self.counts["arguments_repeated"] += 1
                rest, call.repeat = call.repeat[len(whole) :], ""
                if rest:
                    self._feed(call, rest)
                return
        self._split(call)

    def _split(self, call: ToolBlock) -> None:
        self.counts["call_split"] += 1
        text, call.repeat = call.repeat, ""
        other = self._new_call(call.key)
        other.name = call.name
        if other.name:
            self._queue_call(other)
        self._feed(other, text)

    # --- the queue ---

    def _enqueue(self, block: Block) -> None:
        if self._blank:
            self.pending -= len(self._blank)
            self._blank = ""
            self.counts["blank_text_dropped"] += 1
        self._blocks.append(block)

    def _put(self, block: Block, text: str) -> None:
        _BLOCK[block.state]["delta"](self, block, text)

    def _keep(self, block: Block, text: str) -> None:
        block.pending.append(text)
        self._chars += len(text)
        self._deltas += 1
        self._hold(len(text))

    def _hold(self, size: int) -> None:
        self.pending += size
        if self.pending > self._held_limit:
            self.counts["held_too_much"] += 1
            self._end(_fault("the answer holds back more than this gateway keeps for one request"))

    def _late(self, block: Block, text: str) -> None:
        if text.strip():
            self.counts["late_fragment"] += 1
            self._end(_fault("the upstream went on with a tool call that was already complete"))

    def _promote(self) -> None:
        """Let the head stop if it may, and the next one start: until one stays on the wire."""
        while self._head < len(self._blocks):
            block = self._blocks[self._head]
            if block.state is State.HELD:
                if not block.startable:
                    return
                self._start(block)
            if self._head + 1 < len(self._blocks):
                _BLOCK[block.state]["next"](self, block, "")
            if block.state is not State.STOPPED:
                return
            self._head += 1

    def _start(self, block: Block) -> None:
        block.state = State.LIVE
        if isinstance(block, ToolBlock):
            name = tool_name(block.name)
            if name != block.name:
                self.counts["tool_name_mended"] += 1
                block.name = name
            block.id = self._tool_id(block.upstream_id)
            self._tools += 1

    def _yield_to_next(self, block: Block, text: str) -> None:
        if isinstance(block, ToolBlock) and (not block.scan.whole or block.bare or self._overlap):
            return
        block.state = State.STOPPED

    def _finish_block(self, block: Block, text: str) -> None:
        if block.state is State.HELD:
            if isinstance(block, ToolBlock) and (block.empty or block.bare):
                if self._stop_reason in ("max_tokens", "refusal"):
                    # Cut before its arguments: a client would run it with {}.
                    self.counts["cut_call_dropped"] += 1
                    block.dropped = True
                    block.state = State.STOPPED
                    return
                if block.empty:
                    self.pending -= block.forget_arguments()
                    block.pending.append("{}")
                    self.pending += 2
            self._start(block)
        block.state = State.STOPPED

    # --- the end ---

    def _refuse(self, part: Fault | Malformed | End) -> None:
        self._end(_fault_of(part))

    _fail = _refuse  # the same act; before the commit point nobody has heard of the message

    def _end(self, fault: Fault | None) -> None:
        self.fault = fault
        self.phase = _ENDED

    def _complete(self, part: End) -> None:
        finish = self._finish or Finish("end_turn")
        for call in list(self._calls):
            if call.repeat:
                self._split(call)
        for call in self._calls:
            if call.queued:
                continue
            if not call.empty:
                self._end(_fault("the upstream sent a tool call without a name"))
                return
            self.counts["nameless_call_dropped"] += 1
        self._stop_reason = "refusal" if self._refusal else finish.reason
        for block in self._blocks[self._head :]:
            _BLOCK[block.state]["finish"](self, block, "")
        self._head = len(self._blocks)
        if self._blank:
            self.counts["blank_text_dropped"] += 1
        if self._stop_reason not in ("max_tokens", "refusal"):
            if self._tools:
                self._stop_reason = "tool_use"
            elif self._stop_reason == "tool_use":
                self.counts["tool_use_without_call"] += 1
                self._stop_reason = "end_turn"
        self._committed = True
        self._end(None)

    def _complete_cut(self, part: End) -> None:
        self.counts["cut_after_finish"] += 1
        self._complete(part)

    def _complete_unsaid(self, part: End) -> None:
        """`[DONE]` without a finish reason is a normal end, unless a call is incomplete."""
        self.counts["finish_inferred"] += 1
        if any(not call.empty and not call.scan.whole for call in self._calls):
            self._end(_fault("the upstream ended its stream inside a tool call"))
        else:
            self._complete(part)

    # --- events out ---

    def take(self) -> list[Event]:
        """Everything that may go on the wire now, in order; each block's backlog is one delta."""
        events: list[Event] = []
        if not self._committed or self._sent_end:
            return events
        if not self._sent_start:
            self._sent_start = True
            usage = self.usage
            if "output" in usage.estimated:
                usage = structs.replace(usage, output_tokens=1 if self._blocks else 0)
            events.append(MessageStart(usage))
        while self._wire < len(self._blocks):
            block = self._blocks[self._wire]
            if block.state is State.HELD:
                break
            if not block.dropped:
                self._render(block, events)
            if block.state is not State.STOPPED:
                break
            self._wire += 1
        if self.phase is _ENDED:
            self._sent_end = True
            if self.fault is not None:
                events.append(Error(self.fault))
            else:
                matched = (
                    self._finish.matched if self._finish and self._stop_reason == "stop_sequence" else None
                )
                events.append(MessageDelta(self._stop_reason, matched, self.usage))
                events.append(MessageStop())
        return events

    def _render(self, block: Block, events: list[Event]) -> None:
        if not block.on_wire:
            block.on_wire = True
            block.index = self._next_index
            self._next_index += 1
            if isinstance(block, ToolBlock):
                events.append(BlockStart(block.index, block.kind, block.id, block.name))
            else:
                events.append(BlockStart(block.index, block.kind))
        if block.pending:
            text = block.pending[0] if len(block.pending) == 1 else "".join(block.pending)
            block.pending.clear()
            self.pending -= len(text)
            events.append(_DELTA[block.kind](block.index, text))
        if block.state is State.STOPPED:
            if block.signature:
                events.append(SignatureDelta(block.index, block.signature))
            events.append(BlockStop(block.index))


def _fault(message: str) -> Fault:
    return Fault("api_error", message, 502)


def _fault_of(part: Fault | Malformed | End) -> Fault:
    if isinstance(part, Fault):
        return part
    if isinstance(part, Malformed):
        return _fault(part.message)
    return part.fault or _fault("the upstream ended its answer unexpectedly")


_DELTA: dict[str, Callable[[int, str], Event]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_use": InputJsonDelta,
}

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
}

# The tables above name what is done; here the names become the methods, once.
_PHASE: dict[Phase, dict[str, tuple[Callable[[Stream, Any], None], Phase]]] = {
    phase: {name: (getattr(Stream, f"_{act}"), after) for name, (act, after) in rows.items()}
    for phase, rows in PHASE.items()
}
_BLOCK: dict[State, dict[str, Callable[[Stream, Block, str], None]]] = {
    state: {name: getattr(Stream, f"_{act}") for name, act in rows.items()} for state, rows in BLOCK.items()
}
