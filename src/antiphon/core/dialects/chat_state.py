"""State that an upstream wants back word for word: reasoning details, thought signatures.

Owns what of an answer is such state, how its fragments belong together, and when it leaves: as an `Opaque`
part, already sealed. What it means is the upstream's business; the way back is `chat_sides`'.

    keeper = StateKeeper(seal)
    keeper.note_details([{"type": "reasoning.encrypted", "data": "zz", "index": 0}])
    keeper.take()   -> [Opaque("ap1....")]        (before the next text or tool call, and at the end)

Plain reasoning text needs none of this: it comes back from the thinking block itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

from antiphon.core.parts import Opaque

Seal: TypeAlias = Callable[[Any], str | None]
"""JSON to a sealed text; None where it is too large to travel."""

_PIECES = ("text", "summary", "data")  # members that come in fragments


def no_seal(value: Any) -> None:
    """Without a key nothing travels."""


class StateKeeper:
    """The state of one answer. `counts` takes what was too large to seal."""

    __slots__ = ("_counts", "_message", "_seal", "waiting")

    def __init__(self, seal: Seal, counts: Counter[str]) -> None:
        self._seal = seal
        self._counts = counts
        self.waiting: list[Any] = []  # `reasoning_details` since the last time
        self._message: Any = None

    def note_details(self, fragments: list[Any]) -> None:
        """`reasoning_details` of a delta (protocol: OpenRouter). Fragments of one entry share its index."""
        for fragment in fragments:
            last = self.waiting[-1] if self.waiting else None
            if (
                isinstance(fragment, dict)
                and isinstance(last, dict)
                and (fragment.get("type"), fragment.get("index")) == (last.get("type"), last.get("index"))
            ):
                _join(last, fragment)
            else:
                self.waiting.append(dict(fragment) if isinstance(fragment, dict) else fragment)

    def note_message(self, extra_content: Any) -> None:
        """`extra_content` of a message; the last one counts."""
        self._message = extra_content

    def of_call(self, key: int, extra_content: Any) -> list[Opaque]:
        """`extra_content` of a tool call (protocol: Gemini's thought signatures)."""
        return self._sealed({"extra_content": extra_content}, key)

    def take(self) -> list[Opaque]:
        """The details since the last time, if there is anything in them that text alone would lose."""
        details, self.waiting = self.waiting, []
        if not any(_is_opaque(entry) for entry in details):
            return []
        return self._sealed({"reasoning_details": details})

    def take_all(self) -> list[Opaque]:
        """At the end of the answer: what is left, the message's own state with it."""
        left = self.take()
        if self._message is not None:
            left += self._sealed({"message_extra_content": self._message})
            self._message = None
        return left

    def _sealed(self, value: Any, key: int | None = None) -> list[Opaque]:
        signature = self._seal(value)
        if signature is None:
            self._counts["state_not_sealed"] += 1
            return []
        return [Opaque(signature, key)]


def _join(entry: dict[str, Any], fragment: dict[str, Any]) -> None:
    for name, value in fragment.items():
        if name in _PIECES and isinstance(value, str) and isinstance(entry.get(name), str):
            entry[name] += value
        elif value is not None:
            entry[name] = value


def _is_opaque(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    return bool(entry.get("signature") or entry.get("data") or entry.get("type") == "reasoning.encrypted")
