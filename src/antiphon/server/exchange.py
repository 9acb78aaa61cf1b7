"""One request from first byte to last: the only place where core meets I/O.

Owns the phases of an exchange and its one way out, `close(cause)`: synchronous, idempotent, the only
code that gives back a slot, an upstream connection or a place in a queue. Before the client was promised
anything, a failed attempt may be followed by another one elsewhere (server.retries decides). The client's
side of it is server.exchange_client, the upstream's server.attempt. It must not know routes, request
translation or an upstream's dialect.

    exchange = Exchange(job, chooser=..., answers=..., retries=..., limits=limits, clock=time.monotonic)
    await exchange.serve(link, send)      # in the request's ASGI task; everything else is callbacks
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from functools import wraps
from typing import TypeVarTuple

import structlog
from msgspec import structs

from antiphon.config import Limits
from antiphon.core import own_faults
from antiphon.core.answer import Answer
from antiphon.core.failover import judge
from antiphon.core.parts import Fault, MessageUsage
from antiphon.observe.log import log_bug
from antiphon.observe.record import ExchangeRecord
from antiphon.server.admission import Lease
from antiphon.server.answering import Answering
from antiphon.server.answers import Headers, Send, answer_headers
from antiphon.server.attempt import Attempt
from antiphon.server.choosing import Chooser
from antiphon.server.exchange_client import ClientSide
from antiphon.server.exchange_terms import CAUSES, CLIENT_IS_GONE, ClientLink, Job, Phase
from antiphon.server.exchange_time import ExchangeTime
from antiphon.server.plan import Aim
from antiphon.server.retries import Retries
from antiphon.server.seats import Place, Seats

log = structlog.get_logger("antiphon.exchange")

_LOYAL = 30.0  # seconds for which it waits where its prompt is warm, while no slot is free elsewhere

A = TypeVarTuple("A")


def guarded(method: Callable[[Exchange, *A], None]) -> Callable[[Exchange, *A], None]:
    """A callback whose bug ends its own exchange and nothing else."""

    @wraps(method)
    def wrapper(self: Exchange, /, *args: *A) -> None:
        try:
            method(self, *args)
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self.fail_internally(error)

    return wrapper


class Exchange:
    """See the module. `clock` is monotonic, in seconds.

    `upstream_closed` is told how many seconds after a client had left its upstream's connection was closed.
    """

    __slots__ = (
        "_aim",
        "_answering",
        "_attempt",
        "_chooser",
        "_client",
        "_clock",
        "_failure",
        "_limits",
        "_message_id",
        "_news",
        "_plan",
        "_retries",
        "_seat",
        "_seats",
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
        self._chooser = chooser
        self._answering = answering
        self._retries = retries
        self._upstream_closed = upstream_closed
        self._limits = limits
        self._clock = clock
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._plan = job.plan
        self._aim: Aim | None = None  # where the request must be planned for, before it can go on
        self._failure: Fault | None = None  # what is said if it cannot be planned for there
        self._seats: Seats | None = None  # its places in queues
        self._seat: tuple[Place, Lease] | None = None  # a slot, for which the request is not planned yet
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
        return self._answering.answer(self._plan, self.job.request_id, self._message_id, self.record.counts)

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
                self._begin()
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
        if self._aim is not None and self.cause is None:
            await self._replan(self._aim)

    def wake(self) -> None:
        self._news.set()

    @property
    def charged(self) -> MessageUsage | None:
        """What its key has used up; None: no upstream has worked for it."""
        worked = self.answer.begun or (self.record.sent is not None and self.cause in CLIENT_IS_GONE)
        return self.answer.usage if worked else None

    @property
    def output_tokens(self) -> int:
        """Generated so far: reported, or estimated while nothing was reported; 0 before the first token."""
        return self.answer.usage.output_tokens if self.answer.begun else 0

    def headers(self) -> Headers:
        """Of every answer that is not an error."""
        record = self.record
        waited = ((record.granted or self._clock()) - record.began) * 1000
        headers = answer_headers(self.job.request_id, self._plan.chat.degraded)
        headers += [*self.job.headers, *self.job.surface.id_headers(self.job.request_id)]
        if record.granted is not None or len(self._plan.route.targets) == 1:
            headers.append((b"antiphon-upstream", record.upstream.encode()))
        headers.append((b"antiphon-queue-ms", b"%d" % waited))
        return headers

    # --- a slot, a connection ---

    @guarded
    def _begin(self) -> None:
        if self.cause is not None:
            return
        job, places = self.job, self._chooser.places(self._plan, self._retries.failed)
        if not places:
            self._refuse(self._chooser.refusal(self._plan))
            return
        wait = min(place.upstream.slots.expected_wait(share=job.share, weight=job.weight) for place in places)
        if wait > job.patience:
            self._overload(own_faults.queue_timeout(math.ceil(wait)))
            return
        seats = self._seats = Seats(
            places,
            owner=job.request_id,
            share=job.share,
            granted=self.on_granted,
            refused=self.on_refused,
            priority=job.priority,
            weight=job.weight,
        )
        seats.ask(everywhere=not self._chooser.stays(self._plan, places[0]))

    def _expected_wait(self) -> int:
        """Whole seconds after which it may be worth to come back."""
        places = self._chooser.places(self._plan)
        waits = (
            place.upstream.slots.expected_wait(share=self.job.share, weight=self.job.weight)
            for place in places
        )
        return math.ceil(min(waits, default=0.0))

    def _overload(self, fault: Fault, cause: str = "overload") -> None:
        """There is no slot in time: another model may have one."""
        aim = None if self._client.started else self._retries.instead("overloaded", self._plan)
        if aim is None:
            self.close(cause, fault)
        else:
            self._leave_queues()
            self.enter(Phase.QUEUED)  # the time in the next queue is its own
            self._go_to(aim, fault)

    @guarded
    def on_refused(self) -> None:
        """Every queue is full, or this place went to somebody of a share that waits less."""
        self._seats = None
        self._overload(own_faults.queue_full(self._expected_wait()))

    @guarded
    def on_granted(self, place: Place, lease: Lease) -> None:
        """A slot is ours: from this moment until it is given back it is used."""
        self._seats = None
        if self.cause is not None:
            lease.release()
            return
        self._seat = (place, lease)
        if not self._chooser.admits(self._plan, place, self._retries.failed):
            # It fell ill while we waited, and its slots are free because everybody fails there at once.
            self._seat = None
            lease.release()
            self._begin()
            return
        self.record.granted = self._clock()
        self.record.upstream = place.upstream.name
        if place.target.reads_as(self._plan.target):
            self._send()
        else:
            self._go_to(Aim(model=self._plan.name, target=place.target))

    def _send(self) -> None:
        if self._seat is None:
            return
        self.enter(Phase.CONNECTING)
        (place, lease) = self._seat
        self._attempt = Attempt(
            self,
            self._plan,
            self.answer,
            place,
            lease,
            time=self._time,
            limits=self._limits,
            clock=self._clock,
            prefixes=self._chooser.prefixes,
            session=self._chooser.session,
            headers=self.job.forwarded if self._plan.target.quirks.speaks == "messages" else (),
        )
        self._seat = None

    def _go_to(self, aim: Aim, failure: Fault | None = None) -> None:
        """The request must be planned again: its task does that. `failure`: why another model is next."""
        self._aim, self._failure = aim, failure
        self.wake()

    async def _replan(self, aim: Aim) -> None:
        planned = await self.job.replan(aim)
        self._aim = None  # not before: no limit runs out, and nothing else is begun, while it is planned
        if self.cause is not None:
            return  # closed meanwhile: the slot, if there was one, is given back
        if isinstance(planned, Fault):
            self._cannot_go_there(planned)
            return
        if planned.name != self._plan.name:
            self._give_seat_back()  # it does not fit there: another model is next
        # The chain stays the request's own: choosing and learning must not depend on how it is written.
        self._plan = structs.replace(planned, chain=self._plan.chain)
        self.record.degraded, self.record.ignored = planned.chat.degraded, planned.chat.ignored
        self._renew()
        if self._seat is None:
            self._begin()
        else:
            self._send()

    def _cannot_go_there(self, fault: Fault) -> None:
        """The request cannot be written for this place: another one may take it as it is."""
        place = self._give_seat_back()
        if place is not None:
            self._retries.failed.add(place.upstream.name)
        if place is not None and self._chooser.places(self._plan, self._retries.failed):
            self._begin()
            return
        # A model that cannot take the request leaves the failure as it was: no upstream has said this one.
        self.answer.refuse(self._failure or fault)
        self.close("upstream")

    def _give_seat_back(self) -> Place | None:
        seat, self._seat = self._seat, None
        if seat is None:
            return None
        seat[1].release()
        return seat[0]

    def _leave_queues(self) -> None:
        seats, self._seats = self._seats, None
        if seats is not None:
            seats.leave()

    def _renew(self) -> None:
        """A fresh answer. What the client was promised, or has already, holds for this one too."""
        promised = self.answer.committed
        self.answer = self._new_answer()
        if promised:
            self.answer.commit()
        if self._client.started:
            self.answer.frames()  # `message_start`, which the client has

    def _refuse(self, fault: Fault) -> None:
        """Nobody is asked, because nobody can be."""
        self.answer.refuse(fault)
        self.received()

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
            if self._attempt is not None:
                self._attempt.mark_active()
        if answer.ended:
            fault = answer.fault
            if fault is None:
                self.close("finished")
            elif not self._go_on(fault):
                self.close("upstream")
        elif not self._client.started and answer.committed:
            self.wake()

    def _go_on(self, fault: Fault) -> bool:
        """Try elsewhere, if nothing was promised yet and something is left to try."""
        attempt, answer = self._attempt, self.answer
        if self.cause is not None or self._client.started or (answer.streaming and answer.committed):
            return False
        lost = status = None
        if attempt is not None:
            self._retries.failed.add(attempt.place.upstream.name)
            lost, status = attempt.lost, attempt.status
        others = bool(self._chooser.places(self._plan, self._retries.failed))
        aim = self._retries.after(judge(fault, lost=lost, status=status), self._plan, others=others)
        if aim is None:
            return False
        if attempt is not None:
            attempt.let_go(clean=False, fault=fault)
            self._attempt = None
        self.record.retries += 1
        self.record.first_token = self.record.sent = None
        self.enter(Phase.QUEUED)
        self.answer = self._new_answer()  # at once: nobody must take the failed one for what is said
        if aim.model is None:
            self._begin()
        else:
            self._go_to(aim, fault)
        return True

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
        elif self.cause is None and self._aim is not None:
            self._client.keep_alive(now, self.record.began)  # it is being planned: that has its own limit
        elif self.cause is None:
            fault = time.overdue(
                now,
                self.phase,
                self.record,
                self.answer,
                reports_usage=self._plan.asks_usage,
                expected_wait=self._expected_wait,
            )
            if fault is not None:
                self._overdue(fault)
            else:
                if self._seats is not None:
                    self._seats.offer(self._chooser.places(self._plan, self._retries.failed))
                    if now - self.record.began > _LOYAL:
                        self._seats.widen()
                    else:
                        self._seats.spread()
                self._client.keep_alive(now, self.record.began)

    def _overdue(self, fault: Fault) -> None:
        if self.phase is Phase.QUEUED:
            self._overload(fault, "deadline")
        elif self.phase is not Phase.CONNECTING or not self._go_on(fault):
            self.close("deadline", fault)

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
        self._leave_queues()
        self._give_seat_back()
        if self._attempt is None:
            return
        closed = None
        if self.cause == "client":
            told, clock, left = self._upstream_closed, self._clock, self._clock()

            def closed() -> None:
                told(clock() - left)

        judged = self.cause in ("upstream", "deadline")
        self._attempt.let_go(clean=clean, fault=fault if judged else None, closed=closed)

    def _end_message(self, fault: Fault | None) -> None:
        """Bring the message to an end that is true: with a fault, unless the upstream had finished."""
        self.answer.end(fault)
        if self.answer.streaming:
            self._client.write_end()
        else:
            self.answer.fold()

    def _note(self) -> None:
        usage, record = self.answer.usage, self.record
        record.input_tokens, record.output_tokens = usage.input_tokens, usage.output_tokens
        record.cached_tokens, record.estimated = usage.cache_read_input_tokens or 0, usage.estimated
        record.thinking_tokens = usage.thinking_tokens or 0
        record.written_tokens = usage.cache_creation_input_tokens or 0
        record.tells_cached = usage.cache_read_input_tokens is not None and "input" not in usage.estimated
        record.fallback = "" if self._plan.name == self._plan.model else self._plan.name
        if self._attempt is not None:
            record.kind = self._attempt.place.upstream.quirks.name
            record.expected_cached = self._attempt.expected_cached
        if self.answer.fault is not None:
            record.error = self.answer.fault.kind
