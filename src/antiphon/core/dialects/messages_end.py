"""How a native upstream's message ends: its `message_delta`s, however many, as the one that clients get.

Owns the stop reason: which words there are, what those of other APIs mean, and what holds together with tool
calls. It must not decide whether the message ended well, only what it then says.

    end = Ending(stop_sequences=())
    end.note(Native("message_delta", {"delta": Raw(b'{"stop_reason":"end_turn"}'), ...}))
    end.decide(tools=1, counts=Counter())   -> "tool_use"

Source: Anthropic's `types/stop_reason.py` and its beta twin; clients overwrite `stop_reason` with every
`message_delta` (protocol: SDK accumulators), so there is exactly one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, cast, get_args

import msgspec
from msgspec import Raw

from antiphon.core.dialects.chat_stream import FINISH_WORDS
from antiphon.core.dialects.messages_frames import MessageEnd
from antiphon.core.dialects.messages_wire import Native, encoded, members_of, value_of, word_of
from antiphon.core.faults import finish_fault
from antiphon.core.parts import Fault, StopReason

_CUT_SHORT: Final = ("max_tokens", "refusal", "model_context_window_exceeded")

# `compaction` is beta: a client gets it only where it asked for it.
_WORDS: Final = frozenset({*get_args(StopReason), "compaction"})
_ABORTED = Fault("api_error", "the upstream ended its answer without a reason to stop", 502)


class Ending:
    """For one message. `stop_sequences` are the client's, to tell a matched one."""

    __slots__ = ("_delta", "_members", "_payload", "_stops", "_usage", "_word", "seen")

    def __init__(self, *, stop_sequences: tuple[str, ...]) -> None:
        self._stops = stop_sequences
        self._members: dict[str, Raw] = {}  # of the event, beside those below
        self._delta: dict[str, Raw] = {}
        self._usage: dict[str, Raw] = {}
        self._payload = b""  # of the event, if there was only one
        self._word = ""
        self.seen = False  # a `message_delta` came

    @property
    def told(self) -> bool:
        """The upstream gave a reason to stop: what breaks from here on takes nothing away."""
        return bool(self._word)

    @property
    def cut_short(self) -> bool:
        """A call may be half of what the model meant."""
        return self._reason in _CUT_SHORT

    @property
    def fault(self) -> Fault | None:
        """The reason to stop is a failure."""
        if self._word:
            return None if self._word in _WORDS else finish_fault(self._word)
        # vLLM says so of a request that was aborted
        return _ABORTED if self._delta.get("stop_reason") == _NULL else None

    def note(self, event: Native, counts: Counter[str]) -> dict[str, Raw]:
        """Take a `message_delta`; later members win, unless they say nothing. Returns its `usage` members."""
        delta = members_of(event.members.get("delta")) or {}
        usage = members_of(event.members.get("usage")) or {}
        if self.seen:
            counts["message_delta_joined"] += 1
        self._payload = b"" if self.seen else event.payload
        self.seen = True
        self._members |= event.members
        self._delta |= {name: raw for name, raw in delta.items() if raw != _NULL or name not in self._delta}
        self._usage = usage
        word = word_of(delta.get("stop_reason")).strip()
        self._word = word or self._word
        return usage

    def decide(self, *, tools: int, counts: Counter[str]) -> str:
        """The stop reason that the client gets, given how many tool calls it got."""
        if not self._word:
            counts["stop_reason_inferred"] += 1
        reason = self._reason
        if reason == "end_turn" and self._matched in self._stops:
            reason = "stop_sequence"  # llama.cpp tells the string and not the reason
        if reason == "stop_sequence" and self._matched is None:
            reason = "end_turn"  # Ollama's word for anything unusual
        if reason == "end_turn" and tools:
            reason = "tool_use"
        if reason == "tool_use" and not tools:
            reason = "end_turn"
        if self._word and reason != self._word:
            counts["stop_reason_mended"] += 1
        return reason

    @property
    def _reason(self) -> str:
        """The word in the protocol's own spelling."""
        return self._word if self._word in _WORDS else FINISH_WORDS.get(self._word.lower(), "end_turn")

    @property
    def _matched(self) -> str | None:
        value = value_of(self._delta.get("stop_sequence"))
        return value if isinstance(value, str) else None

    def close(self, reason: str, usage: dict[str, Any]) -> MessageEnd:
        """The one `message_delta`: in the upstream's own bytes, if there is nothing to mend in them."""
        matched = self._matched if reason == "stop_sequence" else None
        delta = {**self._delta, "stop_reason": encoded(reason), "stop_sequence": encoded(matched)}
        payload = self._payload
        if not payload or delta != self._delta or usage != self._usage:
            kept = {
                name: raw for name, raw in self._members.items() if name not in ("type", "delta", "usage")
            }
            payload = msgspec.json.encode({"type": "message_delta", "delta": delta, "usage": usage, **kept})
        return MessageEnd(payload, delta, usage, self.cut_short)


def stop_reason_of(reason: str) -> StopReason:
    """For records: a word of the beta API is one as well."""
    return cast("StopReason", reason)


_NULL: Final = Raw(b"null")
