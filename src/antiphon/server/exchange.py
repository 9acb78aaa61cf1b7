"""One request from first byte to last: the only place where core meets I/O.

Owns the phases of an exchange and its one way out, `close(cause)`: synchronous, idempotent, the only
code that gives back a slot, an upstream connection or a place in a queue. Before the client was promised
anything, a failed attempt may be followed by another one elsewhere (server.seeking). The client's side of it
is server.exchange_client, the upstream's server.attempt. It must not know routes, request translation or an
upstream's dialect.

    exchange = Exchange(job, chooser=..., answers=..., retries=..., limits=limits, clock=time.monotonic)
    await exchange.serve(link, send)      # in the request's ASGI task; everything else is callbacks
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import structlog

from antiphon.config import Limits
from antiphon.core import own_faults
from antiphon.core.answer import Answer
from antiphon.core.parts import Fault, MessageUsage
from antiphon.observe.log import log_bug
from antiphon.observe.record import ExchangeRecord
from antiphon.server.admission import Lease, Left
from antiphon.server.answering import Answering
from antiphon.server.answers import Headers, Send, answer_headers
from antiphon.server.attempt import Attempt
from antiphon.server.choosing import Chooser
from antiphon.server.exchange_client import ClientSide
from antiphon.server.exchange_terms import CAUSES, CLIENT_IS_GONE, ClientLink, Job, Phase
from antiphon.server.exchange_time import ExchangeTime
from antiphon.server.guarding import Failing, guard
from antiphon.server.plan import Plan
from antiphon.server.retries import Retries
from antiphon.server.seats import Place
from antiphon.server.seeking import Seeking

log = structlog.get_logger("antiphon.exchange")


def _way_out(self: Exchange) -> Failing:
    return self.fail_internally


guarded = guard(_way_out)


class Exchange:
    """See the module. `clock` is monotonic, in seconds.

    `upstream_closed` is told how many seconds after a client had left its upstream's connection was closed.
    """

    __slots__ = (
        "_answering",
        "_attempt",
        "_client",
        "_clock",
        "_limits",
        "_message_id",
        "_news",
        "_prefixes",
        "_seeking",
        "_time",
        "_upstream_closed",
        "answer",
        "bug",
        "cause",
        "job",
        "phase",
        "record",
    )

    def __init__(
        self,
        job: Job,
        *,
        chooser: Chooser,
        answering: Answering,
        retries: Retries,
        limits: Limits,
        clock: Callable[[], float],
        upstream_closed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.job = job
        self.phase = Phase.QUEUED
        self.cause: str | None = None
        self.bug: Fault | None = None  # what is said in place of everything else
        self._answering = answering
        self._prefixes = chooser.prefixes
        self._upstream_closed = upstream_closed
        self._limits = limits
        self._clock = clock
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._seeking = Seeking(self, job.plan, chooser, retries, clock=clock)
        self._attempt: Attempt | None = None
        self._news = asyncio.Event()  # something changed that the ASGI task must see
        now = clock()
        self._time = ExchangeTime(limits, now)
        self.record = ExchangeRecord(
            request_id=job.request_id,
            surface=job.surface.name,
            key=job.key,
            model=job.plan.model,
            further=retries.further,
            upstream=job.plan.target.upstream,
            streaming=job.plan.streaming,
            began=now,
            degraded=job.plan.chat.degraded,
            ignored=job.plan.chat.ignored,
        )
        self.answer: Answer = self._new_answer()
        self._client = ClientSide(self, self._time)

    def _new_answer(self) -> Answer:
        return self._answering.answer(
            self._seeking.plan, self.job.request_id, self._message_id, self.record.counts
        )

    # --- the request's ASGI task ---

    async def serve(self, link: ClientLink, send: Send) -> None:
        """Run the exchange and answer the client. Whatever happens to this task, nothing is left behind."""
        client = self._client
        client.link = link
        link.listener = self
        try:
            if link.gone:
                self.close("client")
            else:
                self._seeking.begin()
            while self.cause is None and not client.streams:
                await self.news()
            await client.say(send)
        except asyncio.CancelledError:
            # The server gives the task up: its client hears why all the same, if it listens.
            self.close("shutdown")
            await client.say(send)
            raise
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self.fail_internally(error)
            await client.say(send)
        finally:
            self.close("shutdown")  # of the whole process, if there is no cause yet
            link.listener = None
            self.record.ended = self._clock()
            self.record.status = client.sent_status
            self.record.stop_reason = self.answer.stop_reason
            if self.cause == "finished" and self._attempt is not None:
                self._attempt.learn()

    async def news(self) -> None:
        """Wait until something changed that the ASGI task must see; what has to be awaited is done here."""
        await self._news.wait()
        self._news.clear()
        if self.cause is None:
            await self._seeking.replan()

    def wake(self) -> None:
        self._news.set()

    @property
    def over(self) -> bool:
        """It is closed: nothing is begun any more."""
        return self.cause is not None

    @property
    def started(self) -> bool:
        """The client has its status."""
        return self._client.started

    @property
    def promised(self) -> bool:
        """It is over, or too late to try elsewhere: a whole answer promises nothing before its end."""
        answer = self.answer
        return self.cause is not None or self.started or (answer.streaming and answer.committed)

    @property
    def charged(self) -> MessageUsage | None:
        """What its key has used up; None: no upstream has worked for it."""
        worked = self.answer.begun or (self.record.sent is not None and self.cause in CLIENT_IS_GONE)
        return self.answer.usage if worked else None

    @property
    def output_tokens(self) -> int:
        """Generated so far: reported, or estimated while nothing was reported; 0 before the first token."""
        return self.answer.usage.output_tokens if self.answer.begun else 0

    @property
    def left(self) -> Left:
        """What is shown of it while a slot that it had drains."""
        return Left(self.job.key, self.job.plan.model, self.output_tokens)

    @property
    def _upstream(self) -> str | None:
        """Who answers, or was or would have been asked. None: one of several may yet, while it waits."""
        if self._attempt is not None:
            return self._attempt.place.upstream.name
        targets = self._seeking.plan.route.targets
        if len(targets) == 1:
            return targets[0].upstream
        return self.record.upstream if self.cause is not None else None

    @property
    def where(self) -> tuple[tuple[bytes, bytes], ...]:
        """Of every answer: where it comes from, and how long the request waited for slots."""
        waited = (b"antiphon-queue-ms", b"%d" % ((self._seeking.waited or 0.0) * 1000))
        upstream = self._upstream
        return (waited,) if upstream is None else ((b"antiphon-upstream", upstream.encode()), waited)

    def headers(self) -> Headers:
        """Of every answer whose words are the upstream's."""
        headers = answer_headers(self.job.request_id, self._seeking.plan.chat.degraded)
        headers += [*self.job.headers, *self.job.surface.id_headers(self.job.request_id), *self.where]
        return headers

    # --- a slot, a connection (server.seeking) ---

    def granted(self, place: Place) -> None:
        """There is a slot."""
        if self.record.queued is None:
            self.record.queued = 0.0
        self.record.upstream = place.upstream.name

    def send(self, plan: Plan, place: Place, lease: Lease) -> None:
        """Send the request: from here on the slot is the attempt's."""
        self.enter(Phase.CONNECTING)
        self._attempt = Attempt(
            self,
            plan,
            self.answer,
            place,
            lease,
            time=self._time,
            limits=self._limits,
            clock=self._clock,
            prefixes=self._prefixes,
            session=self.job.session,
            headers=self.job.forwarded if plan.target.quirks.speaks == "messages" else (),
        )

    def start_over(self, fault: Fault) -> None:
        """The attempt has failed, and another one follows: nothing of it is said."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.let_go(clean=False, fault=fault)
            self.record.tried.append(f"{attempt.place.upstream.name}:{attempt.failed_as(fault)}")
        self.record.retries += 1
        self.record.first_token = self.record.sent = None
        self.enter(Phase.QUEUED)
        self.answer = self._new_answer()  # at once: nobody must take the failed one for what is said

    def renew(self, plan: Plan) -> None:
        """A fresh answer for another plan. What the client was promised, or has already, holds for it too."""
        self.record.degraded, self.record.ignored = plan.chat.degraded, plan.chat.ignored
        promised = self.answer.committed
        self.answer = self._new_answer()
        if promised:
            self.answer.commit()
        if self.started:
            self.answer.frames()  # `message_start`, which the client has

    @guarded
    def on_lease_lost(self) -> None:
        """The slot is somebody else's by now (coordination.SharedSlots, `lost`)."""
        self.close("lost")

    # --- what the upstream says (server.attempt.Owner) ---

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self._time.begin_phase(self._clock())
        if phase is Phase.WAITING:
            self.record.sent = self._time.silent_since

    def received(self) -> None:
        """The answer has taken something in: what does it mean for this exchange?"""
        answer = self.answer
        if self.record.first_token is None and answer.begun:
            self.phase = Phase.STREAMING
            self.record.first_token = self._clock()
            if answer.streaming:
                self.job.forget()  # nothing is tried elsewhere from here on: its body need not be kept
            if self._attempt is not None:
                self._attempt.mark_active()
        if answer.ended:
            fault = answer.fault
            if fault is None:
                self.close("finished")
            elif self.promised or not self._seeking.go_on(fault, self._attempt):
                self.close("upstream")
        elif not self._client.started and answer.committed:
            self.wake()

    def flush(self) -> None:
        """Write what may go out; a whole answer takes it in."""
        if self.bug is not None:
            return
        if self._client.started:
            self._client.flush()
        elif not self.answer.streaming:
            self.answer.fold()
            fault = self.answer.fault
            if fault is not None and self.cause is None:
                self.close("upstream", fault)

    def hold_back(self) -> None:
        link = self._client.link
        if link is not None and link.paused and self.cause is None and self._attempt is not None:
            self._time.held_back = self._attempt.pause()

    # --- what the client does (server.edge.LinkListener) ---

    @guarded
    def on_client_gone(self) -> None:
        self.close("client")

    @guarded
    def on_client_paused(self) -> None:
        self._time.paused_since = self._clock()

    @guarded
    def on_client_resumed(self) -> None:
        time = self._time
        time.paused_since = None
        self.flush()
        if time.held_back and self._attempt is not None:
            time.held_back = False
            time.silent_since = self._clock()
            self._attempt.resume()

    # --- time ---

    @guarded
    def tick(self, now: float) -> None:
        """About once a second. `now` is on the same clock as the exchange's."""
        time = self._time
        time.tick(now)
        if time.stalled(now):
            self._give_up_client()
        elif self.cause is None:
            # While it is planned for elsewhere no limit runs out: planning has its own.
            fault = None if self._seeking.aim is not None else self._overdue(now)
            if fault is None:
                self._seeking.tick(now - self.record.began)
                if self.cause is None:
                    self._client.keep_alive(now, self.record.began)
            elif self.phase is Phase.QUEUED:
                self._seeking.overload(fault, "deadline")
            elif self.answer.finished:
                # Only the end is missing: an answer like any other, and nothing to blame its server for.
                self.answer.end(fault)
                self.received()
            elif (
                self.phase is not Phase.CONNECTING
                or self.promised
                or not self._seeking.go_on(fault, self._attempt)
            ):
                self.close("deadline", fault)

    def _overdue(self, now: float) -> Fault | None:
        return self._time.overdue(
            now,
            self.phase,
            self.record,
            self.answer,
            reports_usage=self._seeking.plan.asks_usage,
            expected_wait=self._seeking.expected_wait,
        )

    def _give_up_client(self) -> None:
        if self.cause is None:
            self.close("stall")
        else:
            self._client.abort()  # the upstream is long done; only the client's buffer was left

    # --- the one way out ---

    def fail_internally(self, error: BaseException) -> None:
        """A bug: its own exchange ends, with a traceback in the log and no content in it."""
        if self.bug is not None:
            return  # one bug, one traceback: what it broke may well raise again
        log_bug(log, error, request_id=self.job.request_id)
        self.bug = own_faults.internal(self.job.request_id)
        self.close("internal")
        if self.cause not in CLIENT_IS_GONE:
            self.record.cause, self.record.error = "internal", self.bug.kind
        self._client.say_bug()

    def close(self, cause: str, fault: Fault | None = None) -> None:
        """End it, for a row of CAUSES. Idempotent; the state is changed before anything else is done."""
        if self.cause is not None:
            return
        row = CAUSES[cause]
        self.cause = cause
        self.record.cause = cause
        self.record.phase = self.phase.value
        clean = self.answer.ended and self.answer.fault is None
        self.wake()
        self._let_go(clean=clean, fault=fault or self.answer.fault)
        self.phase = Phase.OVER
        if row.drops_client:
            self._client.abort()
        if cause == "internal":
            return
        try:
            if cause not in CLIENT_IS_GONE:
                self._end_message(fault or row.fault)
            self._note()
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self.fail_internally(error)

    def _let_go(self, *, clean: bool, fault: Fault | None) -> None:
        """Give back what the upstream side holds: the places in queues, the connection, the slot."""
        self._seeking.leave()
        if self._attempt is None:
            return
        closed = None
        if self.cause == "client":
            told, clock, left = self._upstream_closed, self._clock, self._clock()

            def closed() -> None:
                told(clock() - left)

        judged = self.cause in ("upstream", "deadline")
        if judged and fault is not None:
            self.record.failure = self._attempt.failed_as(fault)
        self._attempt.let_go(clean=clean, fault=fault if judged else None, closed=closed)

    def _end_message(self, fault: Fault | None) -> None:
        """Bring the message to an end that is true: with a fault, unless the upstream had finished."""
        self.answer.end(fault)
        if self.answer.streaming:
            self._client.write_end()
        else:
            self.answer.fold()

    def _note(self) -> None:
        record, plan = self.record, self._seeking.plan
        record.fallback = "" if plan.name == plan.model else plan.name
        if self.answer.fault is not None:
            record.error = self.answer.fault.kind
        if self._attempt is not None:
            record.kind = self._attempt.place.upstream.quirks.name
            record.expected_cached = self._attempt.expected_cached
        usage = self.charged
        if usage is None:
            return  # no upstream has worked for it: there is nothing to count
        record.input_tokens, record.output_tokens = usage.input_tokens, usage.output_tokens
        record.cached_tokens, record.estimated = usage.cache_read_input_tokens or 0, usage.estimated
        record.thinking_tokens = usage.thinking_tokens or 0
        record.written_tokens = usage.cache_creation_input_tokens or 0
        record.tells_cached = usage.cache_read_input_tokens is not None and "input" not in usage.estimated
