"""An exchange's view of time: what the hot path flags, the ticker turns into moments and limits.

Owns which limit has run out. A read or a write costs one assignment here, no clock and no timer.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.config import Limits
from antiphon.core import own_faults
from antiphon.core.answer import Answer
from antiphon.core.parts import Fault
from antiphon.observe.record import ExchangeRecord
from antiphon.server.exchange_terms import Phase


class ExchangeTime:
    """`now` is always the exchange's monotonic clock, in seconds."""

    __slots__ = ("heard", "held_back", "limits", "paused_since", "quiet_since", "silent_since", "wrote")

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.heard = False  # something came from the upstream since the last tick
        self.wrote = False  # something went to the client since the last tick
        self.held_back = False  # the upstream is paused: its silence is ours
        self.silent_since = now
        self.quiet_since = now
        self.paused_since: float | None = None  # the client's buffer is full

    def begin_phase(self, now: float) -> None:
        self.silent_since = now
        self.heard = False

    def tick(self, now: float) -> None:
        if self.heard or self.held_back:
            self.heard = False
            self.silent_since = now
        if self.wrote:
            self.wrote = False
            self.quiet_since = now

    def stalled(self, now: float) -> bool:
        """The client has left a full buffer unread for too long."""
        return self.paused_since is not None and now - self.paused_since > self.limits.write_stall

    def overdue(
        self,
        now: float,
        phase: Phase,
        record: ExchangeRecord,
        answer: Answer,
        *,
        reports_usage: bool,
        expected_wait: Callable[[], int],
    ) -> Fault | None:
        """The fault of the limit that has run out, if one has.

        `reports_usage`: usage was asked for. `expected_wait`: seconds until a newcomer had a slot.
        """
        limits = self.limits
        silent = now - self.silent_since
        if phase is Phase.QUEUED:
            return own_faults.queue_timeout(expected_wait()) if silent > limits.queue_timeout else None
        if phase is Phase.CONNECTING:
            return own_faults.UPSTREAM_CONNECT_TIMEOUT if silent > limits.connect else None
        if answer.finished:
            missing = reports_usage and not answer.usage_reported
            grace = limits.finish_grace_usage if missing else limits.finish_grace
            return own_faults.UPSTREAM_CUT if silent > grace else None
        if phase is Phase.STREAMING:
            return own_faults.UPSTREAM_STALLED if silent > limits.gap else None
        waited = now - (record.sent if record.sent is not None else now)
        return own_faults.UPSTREAM_TIMEOUT if waited > limits.first_token else None
