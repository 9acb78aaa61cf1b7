"""How long an upstream asks to wait, read from its headers, whatever it calls them.

Owns the forms of `retry-after` and its relatives; must not look at a clock, so points in time stay
points in time (HTTP dates) and only lengths become seconds.

    retry_after({"retry-after-ms": "1500"})  -> "2"
    retry_after({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"})  -> "360"
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

_NUMBER = re.compile(r"[0-9]{1,13}(?:\.[0-9]{1,9})?")
_DURATION = re.compile(
    r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?",
    re.ASCII,
)
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)


def retry_after(headers: Mapping[str, str], *, limited: bool = False) -> str | None:
    """The value for a `retry-after` header (whole seconds, or an HTTP date), None if nothing usable is there.

    `headers` may be spelled in any case. `limited` says that the upstream refused because of a rate:
    only then do its `x-ratelimit-reset-*` headers (OpenAI, Groq) and `anthropic-ratelimit-*-reset` count,
    the ones of an exhausted limit before all others, else the one that ends first. `retry-after-ms` goes
    before `retry-after`, as in the SDKs.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = lower.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds) and float(milliseconds) > 0:
        return _seconds(float(milliseconds) / 1000)
    return read_wait(lower.get("retry-after", "")) or (_reset(lower) if limited else None)


def read_wait(value: str) -> str | None:
    """One value: seconds (`7`), a length (`6m0s`, `120ms`), an HTTP date, RFC 3339, or epoch time."""
    if _NUMBER.fullmatch(value):
        return _point(float(value)) if float(value) >= 1e9 else _seconds(float(value))
    lengths = _DURATION.fullmatch(value)
    if value and lengths:
        return _seconds(sum(float(n) * unit for n, unit in zip(lengths.groups(), _UNITS, strict=True) if n))
    return _date(value)


def _seconds(value: float) -> str:
    return str(math.ceil(value))


def _point(epoch: float) -> str | None:
    """Epoch seconds (or milliseconds) as an HTTP date: no clock is needed to say when."""
    try:
        return format_datetime(
            datetime.fromtimestamp(epoch / 1000 if epoch >= 1e11 else epoch, UTC), usegmt=True
        )
    except (ValueError, OverflowError, OSError):  # no such year
        return None


def _date(value: str) -> str | None:
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            when = parse(value)
            # A time without a zone is meant as UTC in both forms.
            when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
            return format_datetime(when, usegmt=True)
        except (ValueError, OverflowError, TypeError, IndexError):  # not this form
            continue
    return None


_RESET = re.compile(
    r"(?P<head>x-ratelimit-|anthropic-ratelimit-)(?:reset(?:-(?P<what>[\w-]+))?|(?P<which>[\w-]+)-reset)"
)


def _reset(headers: Mapping[str, str]) -> str | None:
    exhausted: list[str] = []
    others: list[str] = []
    for name, value in headers.items():
        match = _RESET.fullmatch(name)
        wait = read_wait(value) if match else None
        if match is None or wait is None:
            continue
        head, what = match["head"], match["what"] or match["which"]
        left = headers.get(
            f"{head}remaining-{what}"
            if match["what"]
            else f"{head}{what}-remaining"
            if what
            else f"{head}remaining"
        )
        (exhausted if left == "0" else others).append(wait)
    if exhausted:
        return max(exhausted, key=_order)
    # Which limit it was is not known: a daily one among them must not keep the client away for a day.
    return min(others, key=_order, default=None)


def _order(wait: str) -> float:
    """Lengths before dates (the two do not compare without a clock), each by size."""
    return float(wait) if wait.isdigit() else 1e9 + parsedate_to_datetime(wait).timestamp()
