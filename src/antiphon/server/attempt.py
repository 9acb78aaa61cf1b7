"""One try at one upstream: the slot that it has, its connection, and what comes back on it.

Owns the upstream's side of an exchange, and nothing of the client's. The hot path begins here: a read of
the upstream's socket is `on_body` and `on_read`, without a task switch. `let_go` gives everything back, in
the call; after it nothing that the upstream says is heard.

    attempt = Attempt(exchange, plan, answer, place, lease, ...)   # sends; callbacks follow from the loop
    attempt.let_go(clean=False)
"""

from __future__ import annotations

import asyncio
import time as wall
from collections.abc import Callable
from typing import Protocol

import structlog

from antiphon.config import Limits
from antiphon.core import own_faults
from antiphon.core.answer import Answer
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.failover import Lost, judge, row_of, seconds_to_wait
from antiphon.core.parts import Fault
from antiphon.server.admission import Lease, Left
from antiphon.server.exchange_terms import Phase
from antiphon.server.exchange_time import ExchangeTime
from antiphon.server.guarding import Failing, guard
from antiphon.server.health import Attempt as Trial
from antiphon.server.plan import Plan
from antiphon.server.prefixes import PrefixIndex
from antiphon.server.seats import Place
from antiphon.server.upstream import Call, Failure

log = structlog.get_logger("antiphon.server")

_ERROR_BODY_LIMIT = 64 * 1024


class Owner(Protocol):
    """The exchange, as far as its attempt knows it."""

    phase: Phase

    @property
    def left(self) -> Left:
        """What is shown of it while its slot drains."""

    def enter(self, phase: Phase) -> None: ...
    def received(self) -> None:
        """The answer has taken something in."""

    def flush(self) -> None:
        """A read is over: one write for everything that it held."""

    def hold_back(self) -> None:
        """The answer holds more than it should for a client that does not read."""

    def fail_internally(self, error: BaseException) -> None: ...


def _way_out(self: Attempt) -> Failing:
    return self._owner.fail_internally


guarded = guard(_way_out)


class Attempt:
    """See the module. It is the listener of its call (server.upstream.Listener)."""

    __slots__ = (
        "_belief",
        "_call",
        "_clock",
        "_counting",
        "_error_body",
        "_error_head",
        "_lease",
        "_limits",
        "_live",
        "_owner",
        "_plan",
        "_prefixes",
        "_time",
        "_trial",
        "answer",
        "failure",
        "place",
        "sent",
        "status",
    )

    def __init__(
        self,
        owner: Owner,
        plan: Plan,
        answer: Answer,
        place: Place,
        lease: Lease,
        *,
        time: ExchangeTime,
        limits: Limits,
        clock: Callable[[], float],
        prefixes: PrefixIndex,
        session: str,
        headers: tuple[tuple[str, str], ...],
    ) -> None:
        self._owner = owner
        self._plan = plan
        self._lease = lease
        self._time = time
        self._limits = limits
        self._clock = clock
        self._live = True
        self._counting: asyncio.Task[None] | None = None  # asks the upstream's tokenizer, for message_start
        self._error_head: tuple[int, dict[str, str]] | None = None
        self._error_body = b""
        self.answer = answer
        self.place = place
        self.sent: float | None = None  # when the connection stood
        self.status: int | None = None  # of the upstream's answer
        self.failure: Failure | None = None  # of its connection
        self._prefixes = prefixes
        # From here on its prompt is on its way into that cache.
        self._belief = prefixes.learn(place.key, plan.chain, session)
        self._trial: Trial = place.upstream.health.began(clock())
        try:
            # Last, so that no call runs that nobody holds.
            self._call: Call | None = place.upstream.pool.post(
                plan.path, plan.chat.body, self, accept=plan.accept, headers=headers
            )
        except BaseException:
            place.upstream.health.abandoned(clock(), self._trial)
            raise

    # --- what the upstream says (server.upstream.Listener) ---

    @guarded
    def on_open(self) -> None:
        self._owner.enter(Phase.WAITING)
        self.sent = self._time.silent_since
        if self._counting is None and isinstance(self._plan.chat, ChatRequest):
            upstream, plan = self.place.upstream, self._plan
            known = upstream.prefix_counts.guess(plan.sends, plan.chain)
            if known is not None:
                self.answer.guess_input(known)
            # Beside the request, never before it: the first token does not wait for a count.
            self._counting = upstream.counter.tell(plan.chat.body, self.answer.count_input)

    @guarded
    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self._owner.phase = Phase.PREFILL
        self._time.heard = True
        self.status = status
        if 200 <= status < 300:
            self.answer.on_head(status, headers)
        else:
            self._error_head = (status, headers)

    def on_body(self, data: bytes) -> None:
        try:  # this and `on_read` come with every token: `guarded`, written out
            self._time.heard = True
            if self._error_head is not None:
                self._error_body += data[:_ERROR_BODY_LIMIT]
                if len(self._error_body) >= _ERROR_BODY_LIMIT:
                    self._end()
            elif self._live and self.answer.feed(data):
                self._owner.received()
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self._owner.fail_internally(error)

    def on_read(self) -> None:
        try:
            self._owner.flush()
            # Parts merge in their block while the client does not read; only then the upstream waits.
            if self.answer.pending > self._limits.max_behind:
                self._owner.hold_back()
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self._owner.fail_internally(error)

    @guarded
    def on_end(self) -> None:
        self._call = None
        self._end()

    @guarded
    def on_lost(self, failure: Failure) -> None:
        self._call = None
        self.failure = failure
        self._end(_fault_of(failure))
        self._owner.flush()

    def _end(self, fault: Fault | None = None) -> None:
        """Nothing more will come: `fault` is what cut a good answer."""
        if not self._live:
            return
        if self._error_head is not None:
            status, headers = self._error_head
            self.answer.refuse_response(status, headers, self._error_body)
        else:
            self.answer.end(fault)
        self._owner.received()

    @property
    def lost(self) -> Lost | None:
        """How its call was lost, if it was and no status told more."""
        return self.failure.kind if self.failure is not None and self.status is None else None

    # --- back-pressure, and what the exchange tells of the answer ---

    def mark_active(self) -> None:
        """It has begun to answer: the upstream's own report counts this slot as busy."""
        self._lease.active = True
        now = self._clock()
        waited = None if self.sent is None else now - self.sent
        self.place.upstream.health.succeeded(now, waited, self._trial)

    @property
    def expected_cached(self) -> float:
        """The share of its prompt, 0 to 1, that was sure to be in this cache when it was sent."""
        chain = self._plan.chain
        return self._belief.warm / chain[-1].size if chain else 0.0

    def learn(self) -> None:
        """What this conversation counted is where its next turn begins."""
        usage, plan = self.answer.usage, self._plan
        if "input" in usage.estimated:
            return
        read = usage.cache_read_input_tokens
        total = usage.input_tokens + (read or 0) + (usage.cache_creation_input_tokens or 0)
        self.place.upstream.prefix_counts.learn(plan.sends, plan.chain, total)
        if read is not None:
            self._prefixes.observed(self.place.key, plan.chain, self._belief, read, total)

    def pause(self) -> bool:
        """Stop reading. False: there is nothing to read from any more."""
        if self._call is None:
            return False
        self._call.pause_reading()
        return True

    def resume(self) -> None:
        if self._call is not None:
            self._call.resume_reading()

    # --- the one way out ---

    def let_go(
        self, *, clean: bool, fault: Fault | None = None, closed: Callable[[], None] | None = None
    ) -> None:
        """Give back the connection and the slot. Idempotent.

        `clean`: the upstream said that it has finished. `fault`: what it did wrong; None: nothing that it can
        be blamed for. `closed` is told when an aborted connection is closed.
        """
        if not self._live:
            return
        self._live = False
        self._tell_health(clean, fault)
        call, self._call = self._call, None
        if self._counting is not None:
            self._counting.cancel()
        abandoned = call is not None and self._owner.phase is not Phase.CONNECTING and not clean
        if call is not None and clean:
            call.release()
        elif call is not None and closed is not None:
            call.abort(closed)
        elif call is not None:
            call.abort()
        if abandoned and not self.place.upstream.cancels_everywhere:
            self._lease.drain(self._clock() + self._limits.release_grace, self._owner.left)
        else:
            self._lease.release()

    def failed_as(self, fault: Fault) -> str:
        """The kind of failure, for the log: a row of core.failover.ROWS."""
        return row_of(fault, lost=self.lost, status=self.status)

    def _tell_health(self, clean: bool, fault: Fault | None) -> None:
        """What this attempt says of its server. Before its slot is free: the next one should know."""
        health, now = self.place.upstream.health, self._clock()
        was = health.state(now)
        if clean:
            health.succeeded(now, None, self._trial)
        elif fault is None:
            health.abandoned(now, self._trial)
        else:
            verdict = judge(fault, lost=self.lost, status=self.status)
            wait = seconds_to_wait(fault.retry_after, wall.time())
            health.learn(verdict.finding, now, self._trial, retry_after=wait)
            if was == "closed" and health.state(now) != "closed":
                log.warning("upstream_lost", upstream=self.place.upstream.name, trouble=verdict.finding)


def _fault_of(failure: Failure) -> Fault:
    """A transport failure in a client's words."""
    if failure.kind in ("connect", "tls"):
        return Fault("api_error", f"the model's server cannot be reached: {failure.message}", 502)
    if failure.before_response:
        return Fault("api_error", "the upstream closed the connection without an answer", 502)
    return (
        own_faults.UPSTREAM_CUT
        if failure.kind in ("reset", "eof")
        else Fault("api_error", failure.message, 502)
    )
