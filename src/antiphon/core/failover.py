"""What a failed attempt means: may another target be asked, how is its server, which fallback model is next.

Owns one table, `ROWS`, and how a failure finds its row. It decides nothing: how many attempts there are,
what the budget allows and who is asked next is the exchange's business. It knows neither a clock nor a
target's history.

    verdict = judge(fault_of_response(503, {}, b'{"error":{"message":"Loading model"}}'), status=503)
    verdict.elsewhere, verdict.finding, verdict.fallback   -> True, "loading", "overloaded"

A failure finds its row in this order: how the call was lost; a fault of this gateway's own; words of a
server that loads a model; the kind of the upstream's fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from antiphon.core import own_faults
from antiphon.core.overflow import PHRASE
from antiphon.core.parts import Fault

Lost: TypeAlias = Literal["connect", "tls", "reset", "eof", "protocol", "encoding"]
"""How a call ended without its end: the kind of a `server.upstream.Failure`."""

Trouble: TypeAlias = Literal[
    "connect", "tls", "reset", "eof", "protocol", "timeout", "status", "refused", "loading", "busy"
]
"""What is wrong with a server. `loading` and `busy` pass by themselves, the others count against it.

`connect`: no connection, or not in time. `protocol`: what it says cannot be read. `timeout`: no answer in
time. `status`: it reports a failure of its own. `refused`: it does not accept this gateway (key, account).
"""

Finding: TypeAlias = Literal["well"] | Trouble
"""`well`: it did its work, even if that was to refuse a request that was wrong."""

Fallback: TypeAlias = Literal["overflow", "overloaded", "failed"]
"""The fallbacks of a model (`config.Fallbacks`), by what went wrong."""


class Verdict(Struct, frozen=True):
    """What one failed attempt means.

    `elsewhere`: another target of the same model may be asked. `finding`: what it says of this target's
    server; None: nothing. `fallback`: which fallback model is next once no target is left. Where
    `elsewhere` is false that is now.
    """

    elsewhere: bool
    finding: Finding | None
    fallback: Fallback | None


def _broken(finding: Trouble) -> Verdict:
    return Verdict(elsewhere=True, finding=finding, fallback="failed")


_THE_END = Verdict(elsewhere=False, finding=None, fallback=None)

ROWS: Final[Mapping[str, Verdict]] = {
    # --- the call was lost ---
    "connect": _broken("connect"),
    "tls": _broken("tls"),
    # On a fresh connection the server may have begun to work: never again on the same target (`Call`
    # repeats by itself what a reused connection swallowed), but somebody else's answer harms nobody.
    "reset": _broken("reset"),
    "eof": _broken("eof"),
    "protocol": _broken("protocol"),
    "encoding": _broken("protocol"),
    # --- a time limit of this gateway ---
    "connect_timeout": _broken("connect"),
    # After ten minutes the client has given up, or is about to: a second wait would serve nobody.
    "first_token": Verdict(elsewhere=False, finding="timeout", fallback=None),
    "stalled": Verdict(elsewhere=False, finding="timeout", fallback=None),
    # --- a 200 whose stream is no answer ---
    "cut": _broken("eof"),
    "empty": _broken("eof"),
    "malformed": _broken("protocol"),
    # Our limit, and a client's wish for a long answer may have hit it.
    "held_too_much": _THE_END,
    # --- this gateway, or the embedded server that it keeps ---
    "restarting": Verdict(elsewhere=True, finding="loading", fallback="overloaded"),
    # Every target's queue was tried, or none takes requests: nobody was asked anything.
    "no_slot": Verdict(elsewhere=False, finding=None, fallback="overloaded"),
    "shutting_down": _THE_END,
    # --- what the upstream said ---
    "loading": Verdict(elsewhere=True, finding="loading", fallback="overloaded"),
    "busy": Verdict(elsewhere=True, finding="busy", fallback="overloaded"),
    # Targets of one model have one window; a longer one is another model.
    "overflow": Verdict(elsewhere=False, finding="well", fallback="overflow"),
    "invalid": Verdict(elsewhere=False, finding="well", fallback=None),
    # A limit on bodies belongs to what stands before one server (nginx has 1 MiB), not to the model.
    "too_large": Verdict(elsewhere=True, finding="well", fallback=None),
    # The model is missing there. A mistake in the configuration, which a restart of the server can cause.
    "no_model": Verdict(elsewhere=True, finding="well", fallback="failed"),
    # One surface is missing there (501 for embeddings): for the other ones it is well.
    "no_path": Verdict(elsewhere=True, finding="well", fallback="failed"),
    # 401, 402, 403, 407: what fails at once looks free, so it would draw all requests were it not counted.
    "refused": _broken("refused"),
    "conflict": Verdict(elsewhere=True, finding="well", fallback=None),
    # A proxy's patience is about a minute: there is time for another.
    "upstream_timeout": _broken("timeout"),
    "status": _broken("status"),
    # 401 and 403 of this gateway's own doors: no upstream was asked.
    "own_door": _THE_END,
}

_OWN: Final[Mapping[Fault, str]] = {
    structs.replace(fault, retry_after=None): row
    for fault, row in (
        (own_faults.UPSTREAM_UNREACHABLE, "connect"),
        (own_faults.UPSTREAM_CONNECT_TIMEOUT, "connect_timeout"),
        (own_faults.UPSTREAM_TIMEOUT, "first_token"),
        (own_faults.UPSTREAM_STALLED, "stalled"),
        (own_faults.UPSTREAM_CUT, "cut"),
        (own_faults.UPSTREAM_EMPTY, "empty"),
        (own_faults.UPSTREAM_MALFORMED, "malformed"),
        (own_faults.UPSTREAM_TOO_LARGE, "held_too_much"),
        (own_faults.UPSTREAM_RESTARTING, "restarting"),
        (own_faults.SHUTTING_DOWN, "shutting_down"),
        (own_faults.COORDINATOR_GONE, "no_slot"),
        (own_faults.no_upstream(1), "no_slot"),
        (own_faults.queue_full(1), "no_slot"),
        (own_faults.queue_timeout(1), "no_slot"),
    )
}

_KINDS: Final[Mapping[str, str]] = {
    "invalid_request_error": "invalid",
    "authentication_error": "own_door",
    "billing_error": "refused",
    "permission_error": "own_door",
    "not_found_error": "no_model",
    "conflict_error": "conflict",
    "request_too_large": "too_large",
    "rate_limit_error": "busy",
    "api_error": "status",
    "timeout_error": "upstream_timeout",
    "overloaded_error": "busy",
}

# llama.cpp "Loading model", Hugging Face "Model X is currently loading", Ollama's finish reason `load`
# in our words. SGLang while it warms up.
_LOADS: Final = re.compile(
    r"\bloading (?:the )?model\b|\bmodel\b.{0,200}\bis (?:currently |still )?(?:being loaded|loading)\b"
    r"|\bserver is (?:still )?(?:starting|warming up)\b",
    re.IGNORECASE,
)
# The two sentences that `core.overflow` makes of every wording.
_OVERFLOWS: Final = re.compile(rf"{re.escape(PHRASE)}|exceed context limit", re.IGNORECASE)
# Statuses of a server that does not serve this path, or serves it elsewhere.
_NO_PATH: Final = frozenset({404, 405, 410, 501})


def judge(
    fault: Fault, *, lost: Lost | None = None, status: int | None = None, committed: bool = False
) -> Verdict:
    """The verdict on an attempt that ended with `fault`. Total: every fault of `core.faults` has a row.

    `lost`: the call ended so, and no status told more. `status`: the HTTP status that the upstream
    answered with, None if it did not. `committed`: the answer has content, or the client its status; then
    nobody else is asked and no fallback is tried. A bug of this gateway is nobody's failure: do not ask.
    """
    verdict = ROWS[row_of(fault, lost=lost, status=status)]
    return structs.replace(verdict, elsewhere=False, fallback=None) if committed else verdict


def row_of(fault: Fault, *, lost: Lost | None = None, status: int | None = None) -> str:
    """The name of the row in `ROWS`, as `judge` finds it."""
    if lost is not None:
        return lost
    own = _OWN.get(structs.replace(fault, retry_after=None))
    if own is not None:
        return own
    if fault.kind == "overloaded_error" and _LOADS.search(fault.message):
        return "loading"
    if fault.kind == "invalid_request_error" and _OVERFLOWS.search(fault.message):
        return "overflow"
    if fault.kind == "api_error" and fault.should_retry is False and fault.status == 502:
        # `core.faults` marks so what no repetition mends; an upstream's own `x-should-retry: false` with a
        # 5xx speaks of itself, and says nothing about others.
        if status is not None and (status in _NO_PATH or 300 <= status < 400):
            return "no_path"
        if status is None or status < 500:
            return "refused"
    return _KINDS.get(fault.kind, "status")


def seconds_to_wait(retry_after: str | None, wall: float) -> float | None:
    """A fault's `retry_after` as seconds from `wall` (Unix time), None if it gives none. Never negative."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - wall)
    except (ValueError, OverflowError, OSError):  # not a date of this world: nothing was asked
        return None
