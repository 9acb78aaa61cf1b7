"""What is known of one exchange when it ends: the one record that logs, metrics and traces read.

Owns its fields and the log line. Prompts, answers and keys have no field here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import structlog
from msgspec import Struct, field

log = structlog.get_logger("antiphon.exchange")


class ExchangeRecord(Struct, kw_only=True):
    """Times are seconds of the process's monotonic clock; None: that moment never came."""

    request_id: str
    surface: str = "messages"
    key: str = ""  # the name of the client's key, never the key
    model: str
    upstream: str
    streaming: bool
    began: float
    granted: float | None = None
    sent: float | None = None
    first_token: float | None = None
    ended: float | None = None
    phase: str = "queued"  # the last phase before the end
    retries: int = 0  # attempts that failed before the one that counts
    cause: str = ""  # why it ended: a row of server.exchange_terms.CAUSES
    status: int = 0  # the HTTP status of the answer; 0: none was sent
    stop_reason: str | None = None
    error: str | None = None  # an Anthropic error type
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
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
            "queue_ms": _ms(self.began, self.granted),
            "ttft_ms": _ms(self.began, self.first_token),
            "duration_ms": _ms(self.began, self.ended),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }
        for name in ("key", "stop_reason", "error", "retries", "cached_tokens", "thinking_tokens"):
            if value := getattr(self, name):
                line[name] = value
        for name in ("estimated", "degraded", "ignored"):
            if value := getattr(self, name):
                line[name] = ",".join(value)
        if self.counts:
            line["counts"] = dict(self.counts)
        return line

    def write(self) -> None:
        log.info("exchange", **self.fields())


def _ms(start: float, end: float | None) -> float | None:
    return None if end is None else round((end - start) * 1000, 1)
