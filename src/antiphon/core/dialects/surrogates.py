r"""Text without lone surrogates: JSON can spell half a character, UTF-8 and clients cannot.

Owns the mending, and the high halves that wait for the low half in the next piece of their channel. A
half whose other half does not come becomes U+FFFD.

    mend = SurrogateMender(counts)
    mend.text((Text, 0), "a\ud83d")    -> "a"
    mend.text((Text, 0), "\ude00b")    -> "\U0001f600b"
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, TypeAlias

_HALF = re.compile(r"[\ud800-\udfff]")
_LOST = "\ufffd"

Channel: TypeAlias = tuple[Any, int]
"""The kind of part that the text becomes, and for arguments the call's key."""


class SurrogateMender:
    """For one message. `counts` takes how many pieces had a half without its other half."""

    __slots__ = ("_counts", "waiting")

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.waiting: dict[Channel, str] = {}

    def text(self, channel: Channel, text: str) -> str:
        """The next piece of a channel; "" if it is nothing but a half that waits."""
        if self.waiting:
            text = self.waiting.pop(channel, "") + text
        if text.isascii() or not _HALF.search(text):
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self.waiting[channel] = text[-1]
            text = text[:-1]
        # UTF-16 joins pairs, and shows what has no partner
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if joined.count(_LOST) > text.count(_LOST):
            self._counts["lone_surrogate"] += 1
        return joined

    def give_up(self, kind: Any) -> list[tuple[Channel, str]]:
        """Text of `kind` comes (None: nothing more): what waits in channels of another kind waits in vain."""
        lost = [channel for channel in self.waiting if channel[0] is not kind]
        for channel in lost:
            del self.waiting[channel]
            self._counts["lone_surrogate"] += 1
        return [(channel, _LOST) for channel in lost]


def whole(word: str) -> str:
    """A name or an id, which does not come in pieces: every half is lost."""
    return word if word.isascii() else _HALF.sub(_LOST, word)
