"""What a native upstream says about usage: passed on as it is, completed where it says nothing.

Owns the members of `usage` in both events that carry it. What was reported goes out as it came, with members
that nobody here knows; a count that is missing, null, no number, or zero for something that was generated is
filled from `core.usage.Tally` and is then an estimate. Counts are cumulative for the whole message (protocol:
`message_delta.usage`).

    usage = NativeUsage(input_tokens=9)
    usage.note({"input_tokens": Raw(b"100"), "output_tokens": Raw(b"1")}, final=False)
    usage.start_members()   -> {"input_tokens": 100, "output_tokens": 1}
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw

from antiphon.core.dialects.messages_wire import members_of, value_of
from antiphon.core.parts import MessageUsage, Usage
from antiphon.core.usage import Tally

_CACHE: Final = ("cache_creation_input_tokens", "cache_read_input_tokens")
_COUNTS: Final = ("input_tokens", "output_tokens", *_CACHE)
_LARGEST: Final = 2**53


class NativeUsage:
    """`input_tokens` is the estimate of the prompt that stands until the upstream reports it."""

    __slots__ = ("_cache_read", "_cache_write", "_first", "_input", "_last", "_told", "tally")

    def __init__(self, *, input_tokens: int) -> None:
        self.tally = Tally(input_tokens=input_tokens)
        self._first: dict[str, Raw] = {}  # as `message_start` had it
        self._last: dict[str, Raw] = {}  # as all `message_delta` together have it
        self._told: dict[str, int] = {}  # the counts that the client heard in `message_start`
        self._input: int | None = None  # as reported; cached tokens are not in it
        self._cache_read: int | None = None
        self._cache_write: int | None = None

    def note(self, members: dict[str, Raw], *, final: bool) -> None:
        """Take a report. `final`: it is `message_delta`'s; `message_start` does not know the output yet."""
        if final:
            self._last |= {name: raw for name, raw in members.items() if raw != _NULL or name not in _COUNTS}
        else:
            self._first = {**self._first, **members}
        written, read = (count_of(members.get(name)) for name in _CACHE)
        self._cache_write = self._cache_write if written is None else written
        self._cache_read = self._cache_read if read is None else read
        told = count_of(members.get("input_tokens"))
        if told or (told == 0 and self._cached):
            self._input = told
        output = count_of(members.get("output_tokens")) if final else None
        if output == 0 and self.tally.deltas:
            output = None  # something was generated, and nobody counted it
        details = members_of(members.get("output_tokens_details")) or {}
        self.tally.note(
            Usage(
                prompt=None if self._input is None else self._input + self._cached,
                completion=output,
                cache_read=self._cache_read,
                cache_write=self._cache_write,
                reasoning=count_of(details.get("thinking_tokens")),
            )
        )

    @property
    def _cached(self) -> int:
        return (self._cache_read or 0) + (self._cache_write or 0)

    @property
    def reported(self) -> bool:
        """The upstream told what it generated."""
        return self.tally.reported

    @property
    def usage(self) -> MessageUsage:
        """In Anthropic's terms; what nobody reported is estimated, and named in `estimated`."""
        return self.tally.usage

    def start_members(self, *, begun: bool) -> dict[str, Any]:
        """`usage` of `message_start`. `begun`: something was generated already."""
        members = _sound(self._first, ())
        usage = self.usage
        if members.get("input_tokens") is None or not count_of(self._first.get("input_tokens")):
            members["input_tokens"] = usage.input_tokens
        if members.get("output_tokens") is None:
            members["output_tokens"] = int(begun)
        self._told = {
            name: count for name in _COUNTS if (count := count_of_any(members.get(name))) is not None
        }
        return members

    def final_members(self) -> dict[str, Any]:
        """`usage` of `message_delta`: what the upstream said there, and what else its client has to know."""
        members = _sound(self._last, _COUNTS)
        usage = self.usage
        if count_of(self._last.get("output_tokens")) != usage.output_tokens:
            members["output_tokens"] = usage.output_tokens
        known = {
            "input_tokens": usage.input_tokens,
            "cache_creation_input_tokens": usage.cache_creation_input_tokens,
            "cache_read_input_tokens": usage.cache_read_input_tokens,
        }
        for name, count in known.items():
            said = count_of(self._last.get(name))
            heard = self._told.get(name) if said is None else said
            if count is not None and heard != count:
                members[name] = count
        return members


def count_of(raw: Raw | None) -> int | None:
    """A count as reported; None for what is none (null, negative, no number). `7.0` is 7."""
    return count_of_any(value_of(raw))


def count_of_any(value: Any) -> int | None:
    """The same for a decoded value, or for raw JSON."""
    if isinstance(value, Raw):
        return count_of(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    return int(value) if value == int(value) else None


def _sound(members: dict[str, Raw], dropped_if_null: tuple[str, ...]) -> dict[str, Any]:
    """The members without counts that are none; cache counts may be null where the API allows it."""
    sound: dict[str, Any] = {}
    for name, raw in members.items():
        if name in _COUNTS:
            count = count_of(raw)
            if count is not None:
                sound[name] = raw if raw == Raw(b"%d" % count) else Raw(b"%d" % count)
            elif raw == _NULL and name in _CACHE and name not in dropped_if_null:
                sound[name] = raw
        else:
            sound[name] = raw
    return sound


_NULL: Final = Raw(b"null")
