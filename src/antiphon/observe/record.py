"""What is known of one exchange when it ends: the one record that logs, metrics and traces read.

Owns its fields and the log line. Prompts, answers and keys have no field here.

    record = ExchangeRecord(request_id="req_1", model="m", upstream="gpu-1", streaming=True, began=clock())
    record.write()     # exchange  request_id=req_1 surface=messages model=m upstream=gpu-1 ...
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import structlog
from msgspec import Struct, field

log = structlog.get_logger("antiphon.exchange")

# In the line only where there is something to tell.
_IF_ANY = (
    "key",
    "kind",
    "fallback",
    "stop_reason",
    "error",
    "failure",
    "retries",
    "cached_tokens",
    "written_tokens",
    "thinking_tokens",
)


# Ends that are neither a client's nor the load's doing.
_TROUBLE = frozenset({"upstream", "deadline", "shutdown", "lost", "internal"})


class ExchangeRecord(Struct, kw_only=True):
    """Times are seconds of the process's monotonic clock; None: that moment never came."""

    request_id: str
    surface: str = "messages"
    key: str = ""  # the name of the client's key, never the key
    model: str
    fallback: str = ""  # the other model's name, where the configuration has one in its place
    upstream: str
    kind: str = ""  # what kind of server that is, once it was asked
    streaming: bool
    began: float
    queued: float | None = None  # seconds in queues, of all attempts; None: it was in none, and had no slot
    sent: float | None = None
    first_token: float | None = None
    ended: float | None = None
    phase: str = "queued"  # the last phase before the end
    failure: str = ""  # what the upstream did wrong: a row of core.failover.ROWS
    tried: list[str] = field(default_factory=list)  # upstream and failure of each attempt before that
    retries: int = 0  # attempts that failed before the one that counts
    # Why it was tried elsewhere, and how often: `elsewhere` (another target), or the fallback that was taken.
    further: Counter[str] = field(default_factory=Counter)
    cause: str = ""  # why it ended: a row of server.exchange_terms.CAUSES
    status: int = 0  # the HTTP status of the answer; 0: none was sent
    stop_reason: str | None = None
    error: str | None = None  # an Anthropic error type
    input_tokens: int = 0  # without the cached and the written ones
    output_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0  # into a cache, where an upstream tells it
    tells_cached: bool = False  # the upstream has told how much was cached, be it nothing
    expected_cached: float = 0.0  # the share of the prompt, 0 to 1, that was taken to be cached
    thinking_tokens: int = 0
    estimated: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)

    def fields(self) -> dict[str, Any]:
        """The record as one flat log line; what does not apply is left out."""
        line: dict[str, Any] = {
            "request_id": self.request_id,
            "surface": self.surface,
            "model": self.model,
            "upstream": self.upstream,
            "streaming": self.streaming,
            "cause": self.cause,
            "phase": self.phase,
            "status": self.status,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }
        for name, start, end in (
            ("queue_ms", 0.0, self.queued),
            ("ttft_ms", self.began, self.first_token),
            ("duration_ms", self.began, self.ended),
        ):
            if end is not None:
                line[name] = round((end - start) * 1000, 1)
        for name in _IF_ANY:
            if value := getattr(self, name):
                line[name] = value
        for name in ("tried", "estimated", "degraded", "ignored"):
            if value := getattr(self, name):
                line[name] = ",".join(value)
        for name in ("further", "counts"):
            if value := getattr(self, name):
                line[name] = dict(value)
        return line

    def write(self) -> None:
        """One line; what an operator should look at is a warning."""
        tell = log.warning if self.cause in _TROUBLE else log.info
        tell("exchange", **self.fields())
