"""The strict judge of a Messages event stream: which rules do these events break?

Owns the order of events and what each must carry:

    message_start  (block)*  message_delta  message_stop         ping anywhere after message_start
    block = content_block_start  content_block_delta*  content_block_stop

Indices count 0, 1, 2 without gaps and one block is open at a time. A stream that fails ends with one
`error`, an open block stays open. What may come when is one table, `_GRAMMAR`; a kind without a cell in
the row of its phase breaks the rule that the row names. The judge goes on after a violation, as if the
event had been meant well, and never raises.

    judge([{"type": "ping"}])[0].rule   -> "order.start"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, TypeGuard

from antiphon.check.rules import Violation

STOP_REASONS: Final = frozenset(
    (
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "refusal",
        "model_context_window_exceeded",
    )
)
ERROR_TYPES: Final = frozenset(
    (
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "conflict_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "timeout_error",
        "overloaded_error",
    )
)
COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
# Which deltas a block takes, and the member of each that is text (None: not text).
DELTAS: Final[dict[str, dict[str, str | None]]] = {
    "text": {"text_delta": "text", "citations_delta": None},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
    "redacted_thinking": {},
}
_EMPTY: Final[dict[str, tuple[str, Any]]] = {
    "text": ("text", ""),
    "thinking": ("thinking", ""),
    "tool_use": ("input", {}),
}
_ENVELOPE: Final[tuple[tuple[str, Any], ...]] = (
    ("type", "message"),
    ("role", "assistant"),
    ("content", []),
    ("stop_reason", None),
    ("stop_sequence", None),
)
_TOOL_ID = re.compile(r"[A-Za-z0-9_-]+")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")

Blame = Callable[[str, str], None]
"""Takes a rule and what broke it."""


def judge(events: Iterable[object], *, prefix: bool = False) -> list[Violation]:
    """What `events` break, in their order. `prefix`: the stream may go on, so a missing end is no fault."""
    judging = _Judging()
    for event in events:
        judging.take(event)
    if not prefix:
        judging.end()
    return judging.violations


# --- Values that both a stream and a whole message carry ---------------------------------------------


def is_count(value: object) -> TypeGuard[int]:
    """A whole number, 0 or more; true and 1.0 are none."""
    return type(value) is int and value >= 0


def table(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty one: a missing member is then found by its own rule."""
    return value if isinstance(value, dict) else {}


def judge_identity(message: dict[str, Any], blame: Blame) -> None:
    """The id and the model of a message."""
    for key in ("id", "model"):
        if not isinstance(message.get(key), str) or not message[key]:
            blame("start.identity", f"message.{key} is {message.get(key)!r}, not a name")
    if not str(message.get("id")).startswith("msg_"):
        blame("start.id_prefix", f"message.id {message.get('id')!r} has no msg_ prefix")


def judge_tool(block: dict[str, Any], seen: set[str], blame: Blame) -> None:
    """Id and name of a tool_use block; its id is added to `seen`."""
    tool_id, name = block.get("id"), block.get("name")
    if not isinstance(tool_id, str) or not _TOOL_ID.fullmatch(tool_id):
        blame("tool.id", f"tool id {tool_id!r}")
    if str(tool_id) in seen:
        blame("tool.id_twice", f"tool id {tool_id!r} was used before")
    seen.add(str(tool_id))
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        blame("tool.name", f"tool name {name!r}")


def judge_finish(holder: dict[str, Any], tools: int, blame: Blame) -> None:
    """stop_reason and stop_sequence, wherever they stand, for a message with `tools` tool_use blocks."""
    reason, matched = holder.get("stop_reason"), holder.get("stop_sequence")
    if not isinstance(reason, str) or reason not in STOP_REASONS:
        blame("finish.stop_reason", f"stop_reason is {reason!r}")
    if "stop_sequence" not in holder:
        blame("finish.no_stop_sequence", "stop_sequence is missing")
    if isinstance(matched, str) != (reason == "stop_sequence"):
        blame("finish.stop_sequence", f"stop_reason {reason!r} stands with stop_sequence {matched!r}")
    if (reason == "tool_use" and not tools) or (reason == "end_turn" and tools):
        blame("finish.tools", f"stop_reason is {reason} with {tools} tool_use block{'s' * (tools != 1)}")


def judge_counts(usage: dict[str, Any], blame: Blame) -> None:
    """The numbers of a usage object that are there."""
    for key in COUNTS:
        if key in usage and not is_count(usage[key]):
            blame("usage.count", f"usage.{key} is {usage[key]!r}, not a count")


def judge_error(error: object, blame: Blame) -> None:
    """The `error` member of an error event or an error body."""
    members = table(error)
    if not isinstance(members.get("type"), str) or members["type"] not in ERROR_TYPES:
        blame("error.type", f"error.type is {members.get('type')!r}")
    if not isinstance(members.get("message"), str) or not members["message"]:
        blame("error.message", "error.message is empty or missing")


# --- The stream ----------------------------------------------------------------------------------


class _Phase(Enum):
    NEW = "new"
    """Nothing yet."""
    BODY = "body"
    """Blocks come."""
    FINISHED = "finished"
    """message_delta was seen."""
    ENDED = "ended"


class _Judging:
    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._number = 0
        self._phase = _Phase.NEW
        self._open: int | None = None
        self._next = 0
        self._block: str | None = None  # the type of the last block, also after its stop
        self._filled = False
        self._signed = False
        self._tools: set[str] = set()

    def take(self, event: object) -> None:
        self._number += 1
        if not isinstance(event, dict):
            self._blame("event.object", f"not an object: {str(event)[:60]!r}")
            return
        kind = event.get("type")
        if not isinstance(kind, str):
            kind = f"type {kind!r}"
        rows, refusal = _GRAMMAR[self._phase]
        step = rows.get(kind)
        if step is not None:
            step(self, event)
        else:
            self._blame(refusal, f"{kind} {_REFUSED[refusal]}")

    def end(self) -> None:
        if self._phase is not _Phase.ENDED:
            text = "neither message_stop nor error closed the stream"
            self.violations.append(Violation("end.missing", None, text))

    def _blame(self, rule: str, text: str) -> None:
        self.violations.append(Violation(rule, self._number, text))

    # --- one method for each cell of the table ---

    def _begin(self, event: dict[str, Any]) -> None:
        if self._phase is _Phase.NEW:
            self._phase = _Phase.BODY
        else:
            self._blame("order.second_start", "a second message_start")
        message = table(event.get("message"))
        for key, want in _ENVELOPE:
            if key not in message or message[key] != want:
                self._blame("start.envelope", f"message.{key} is {message.get(key)!r}, not {want!r}")
        judge_identity(message, self._blame)
        usage = table(message.get("usage"))
        for key in COUNTS[:2]:
            if not is_count(usage.get(key)):
                self._blame("start.usage", f"message.usage.{key} is {usage.get(key)!r}, not a count")

    def _early_error(self, event: dict[str, Any]) -> None:
        self._phase = _Phase.ENDED
        self._blame("order.start", f"error {_REFUSED['order.start']}: it should have been an HTTP status")

    def _ping(self, event: dict[str, Any]) -> None:
        if len(event) > 1:
            self._blame("ping.fields", f"ping carries {', '.join(sorted(set(event) - {'type'}))}")

    def _error(self, event: dict[str, Any]) -> None:
        self._phase = _Phase.ENDED
        judge_error(event.get("error"), self._blame)

    def _stop_message(self, event: dict[str, Any]) -> None:
        if self._phase is not _Phase.FINISHED:
            self._blame("order.no_message_delta", "message_stop without a message_delta before it")
        self._phase = _Phase.ENDED

    def _start_block(self, event: dict[str, Any]) -> None:
        if self._open is not None:
            self._blame("block.overlap", f"a block starts while block {self._open} is open")
        index = event.get("index")
        if type(index) is not int or index != self._next:
            self._blame("block.index", f"the block has index {index!r}, the next is {self._next}")
        self._open, self._next = self._next, self._next + 1
        self._filled = self._signed = False
        block = table(event.get("content_block"))
        kind = block.get("type")
        self._block = kind if isinstance(kind, str) else None
        if self._block not in DELTAS:
            self._blame("block.type", f"unknown block type {kind!r}")
            return
        if self._block in _EMPTY:
            key, want = _EMPTY[self._block]
            if key not in block or block[key] != want:
                self._blame("block.start", f"the {kind} block starts with {key} {block.get(key)!r}")
        if self._block == "thinking" and "signature" not in block:
            self._blame("block.signature", "the thinking block starts without signature")
        if self._block == "tool_use":
            judge_tool(block, self._tools, self._blame)

    def _delta(self, event: dict[str, Any]) -> None:
        index, delta = event.get("index"), table(event.get("delta"))
        if self._open is None or type(index) is not int or index != self._open:
            self._blame("delta.block", f"a delta for block {index!r}, {self._where()}")
        kind = delta.get("type")
        takes = DELTAS.get(self._block or "")
        if takes is not None and not (isinstance(kind, str) and kind in takes):
            self._blame("delta.kind", f"{kind!r} inside a {self._block} block")
        elif takes is not None and (key := takes[str(kind)]) is not None:
            if not isinstance(delta.get(key), str):
                self._blame("delta.value", f"delta.{key} is {delta.get(key)!r}, not a string")
            elif key in ("text", "thinking") and not delta[key]:
                self._blame("delta.empty", f"an empty {kind}")
        if self._signed:
            self._blame("delta.after_signature", f"{kind} after the signature_delta of its block")
        self._filled, self._signed = True, kind == "signature_delta"

    def _stop_block(self, event: dict[str, Any]) -> None:
        index = event.get("index")
        if self._open is None or type(index) is not int or index != self._open:
            self._blame("block.stop", f"a stop for block {index!r}, {self._where()}")
        elif self._block in ("text", "thinking") and not self._filled:
            self._blame("block.empty", f"{self._block} block {index} is empty")
        self._open = None

    def _finish(self, event: dict[str, Any]) -> None:
        self._phase = _Phase.FINISHED
        if self._open is not None:
            self._blame("finish.open_block", f"message_delta while block {self._open} is open")
        judge_finish(table(event.get("delta")), len(self._tools), self._blame)
        usage = table(event.get("usage"))
        if "output_tokens" not in usage:
            self._blame("finish.usage", "usage.output_tokens is missing")
        judge_counts(usage, self._blame)

    def _where(self) -> str:
        return "none is open" if self._open is None else f"block {self._open} is open"


_Step = Callable[[_Judging, dict[str, Any]], None]
_ANYWHERE: Final[dict[str, _Step]] = {
    "message_start": _Judging._begin,
    "ping": _Judging._ping,
    "error": _Judging._error,
    "message_stop": _Judging._stop_message,
}
# For each phase: what a kind does, and which rule any other kind breaks.
_GRAMMAR: Final[dict[_Phase, tuple[dict[str, _Step], str]]] = {
    _Phase.NEW: ({"message_start": _Judging._begin, "error": _Judging._early_error}, "order.start"),
    _Phase.BODY: (
        _ANYWHERE
        | {
            "content_block_start": _Judging._start_block,
            "content_block_delta": _Judging._delta,
            "content_block_stop": _Judging._stop_block,
            "message_delta": _Judging._finish,
        },
        "event.unknown",
    ),
    _Phase.FINISHED: (_ANYWHERE, "order.after_finish"),
    _Phase.ENDED: ({}, "order.after_end"),
}
_REFUSED: Final = {
    "order.start": "before message_start",
    "event.unknown": "is no event of this protocol",
    "order.after_finish": "after message_delta",
    "order.after_end": "after the end of the stream",
}
