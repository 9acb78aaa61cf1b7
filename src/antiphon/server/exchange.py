"""One request from first byte to last: the only place where core meets I/O.

Owns the phases of an exchange and its one way out, `close(cause)`: synchronous, idempotent, the only
code that gives back a slot, an upstream connection or a place in the queue. The hot path runs through
here without a task switch: `on_body` (parts), `on_read` (events, one write). It must not know routes,
request translation or an upstream's dialect beyond its reader.

    exchange = Exchange(job, upstream=upstream, limits=limits, clock=time.monotonic)
    await exchange.serve(link, send)      # in the request's ASGI task; everything else is callbacks
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
from collections.abc import Callable
from functools import wraps
from typing import TypeVarTuple

import structlog

from antiphon.config import Limits
from antiphon.core import own_faults
from antiphon.core.faults import fault_of_response
from antiphon.core.parts import Fault
from antiphon.core.surfaces.messages.events import PING
from antiphon.core.translation import Translation
from antiphon.observe.log import log_bug
from antiphon.observe.record import ExchangeRecord
from antiphon.server.admission import Lease, QueueFullError, Ticket
from antiphon.server.answers import (
    EVENT_STREAM,
    Headers,
    Send,
    answer_headers,
    error_frame,
    respond,
    respond_fault,
)
from antiphon.server.exchange_terms import CAUSES, CLIENT_IS_GONE, ClientLink, Job, Phase
from antiphon.server.exchange_time import ExchangeTime
from antiphon.server.upstream import Call, Failure
from antiphon.server.upstreams import Upstream

log = structlog.get_logger("antiphon.exchange")

_ERROR_BODY_LIMIT = 64 * 1024

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
        "_answer",
        "_bug",
        "_call",
        "_clock",
        "_counting",
        "_digest",
        "_error_body",
        "_error_head",
        "_lease",
        "_limits",
        "_link",
        "_news",
        "_sent_status",
        "_started",
        "_stream",
        "_ticket",
        "_time",
        "_told",
        "_upstream",
        "_upstream_closed",
        "cause",
        "job",
        "phase",
        "record",
    )

    def __init__(
        self,
        job: Job,
        *,
        upstream: Upstream,
        limits: Limits,
        clock: Callable[[], float],
        upstream_closed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.job = job
        self.phase = Phase.QUEUED
        self.cause: str | None = None
        self._upstream = upstream
        self._upstream_closed = upstream_closed
        self._limits = limits
        self._clock = clock
        self._link: ClientLink | None = None
        self._ticket: Ticket | None = None
        self._lease: Lease | None = None
        self._call: Call | None = None
        self._news = asyncio.Event()  # something changed that the ASGI task must see
        self._started = False  # the client has its status
        self._told = False  # the client has the stream's last event
        self._bug: Fault | None = None  # what is said in place of everything else
        self._digest: bytes | None = None  # of the conversation, for what its next turn will count
        self._counting: asyncio.Task[None] | None = None  # asks the upstream's tokenizer, for message_start
        self._sent_status = 0
        self._error_head: tuple[int, dict[str, str]] | None = None
        self._error_body = b""
        now = clock()
        self._time = ExchangeTime(limits, now)
        self.record = ExchangeRecord(
            request_id=job.request_id,
            model=job.model,
            upstream=upstream.name,
            streaming=job.streaming,
            began=now,
            degraded=job.chat.degraded,
            ignored=job.chat.ignored,
        )
        self._answer = Translation(
            job.chat,
            model=job.model,
            message_id=f"msg_{secrets.token_hex(12)}",
            request_id=job.request_id,
            streaming=job.streaming,
            entropy=os.urandom,
            counts=self.record.counts,
            think_tags=upstream.think_tags,
            seal=job.seal,
            max_frame=limits.max_frame,
            max_body=limits.max_fold,
            max_held=limits.max_held,
            max_fold=limits.max_fold,
        )
        self._stream = self._answer.stream

    # --- the request's ASGI task ---

    async def serve(self, link: ClientLink, send: Send) -> None:
        """Run the exchange and answer the client. Whatever happens to this task, nothing is left behind."""
        self._link = link
        link.listener = self
        try:
            if link.gone:
                self.close("client")
            else:
                self._begin()
            while self.cause is None and not self._streams:
                await self._wait()
            await self._say(link, send)
        except asyncio.CancelledError:
            # The server gives the task up: its client hears why all the same, if it listens.
            self.close("shutdown")
            await self._say(link, send)
            raise
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self.fail_internally(error)
            await self._say(link, send)
        finally:
            self.close("shutdown")  # of the whole process, if there is no cause yet
            link.listener = None
            self.record.ended = self._clock()
            self.record.status = self._sent_status
            self.record.stop_reason = self._answer.stop_reason
            self._learn()

    async def _say(self, link: ClientLink, send: Send) -> None:
        """Say what there is to say, in the form that is still open: a stream, or a status."""
        if self.cause in CLIENT_IS_GONE:
            return
        if self._started or (self._streams and self._bug is None):
            await self._serve_stream(link, send)
        elif self._bug is not None:
            await self._refuse(send, self._bug)
        else:
            await self._serve_whole(send)

    def _expected_wait(self) -> int:
        """Whole seconds after which it may be worth to come back."""
        return math.ceil(self._upstream.slots.expected_wait(share=self.job.share))

    def _learn(self) -> None:
        """What this conversation counted is where its next turn begins."""
        usage = self._stream.usage
        if self.cause == "finished" and "input" not in usage.estimated:
            cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
            self._upstream.prefix_counts.learn(self._digest, usage.input_tokens + cached)

    @property
    def output_tokens(self) -> int:
        """Generated so far: reported, or estimated while nothing was reported; 0 before the first token."""
        return self._stream.usage.output_tokens if self._stream.begun else 0

    def _answer_headers(self) -> Headers:
        record = self.record
        waited = ((record.granted or record.began) - record.began) * 1000
        return [
            *answer_headers(self.job.request_id, self.job.chat.degraded),
            (b"antiphon-upstream", self._upstream.name.encode()),
            (b"antiphon-queue-ms", b"%d" % waited),
        ]

    @property
    def _streams(self) -> bool:
        """The answer is a stream, and its status may go out."""
        return self._answer.streaming and self._stream.committed

    async def _wait(self) -> None:
        await self._news.wait()
        self._news.clear()

    async def _serve_stream(self, link: ClientLink, send: Send) -> None:
        if not self._started:
            link.begin()
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [*EVENT_STREAM, *self._answer_headers()],
                }
            )
            self._sent_status = 200
            self._started = True
            self._flush()
        while self.cause is None:
            await self._wait()
        if self.cause in CLIENT_IS_GONE:
            return
        if self._bug is not None:
            self._say_bug()
        elif not self._told:  # it ended while the client lagged behind, or before it had its status
            self._write_events(link)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _serve_whole(self, send: Send) -> None:
        """A whole message, or an honest error. Nothing was promised before this."""
        body = self._answer.message()
        if body is None:
            await self._refuse(send, self._answer.fault or own_faults.internal(self.job.request_id))
            return
        await respond(send, 200, body, self._answer_headers())
        self._sent_status = 200

    async def _refuse(self, send: Send, fault: Fault) -> None:
        self.record.error = fault.kind
        await respond_fault(send, fault, self.job.request_id)
        self._sent_status = fault.status

    # --- a slot, a connection ---

    @guarded
    def _begin(self) -> None:
        if self.cause is not None:
            return
        refusal = self._upstream.refusal()
        if refusal is not None:
            self._answer.refuse(refusal)
            self._received()
            return
        job, slots = self.job, self._upstream.slots
        wait = slots.expected_wait(share=job.share)
        if wait > job.patience:
            self.close("overload", own_faults.queue_timeout(math.ceil(wait)))
            return
        try:
            ticket = slots.request(
                job.request_id,
                self.on_granted,
                share=job.share,
                priority=job.priority,
                displaced=self.on_displaced,
            )
        except QueueFullError:
            self.on_displaced()
            return
        if self.cause is None:
            self._ticket = ticket

    @guarded
    def on_displaced(self) -> None:
        """The queue is full, and this place went to somebody who waits less than we do."""
        self._ticket = None
        self.close("overload", own_faults.queue_full(self._expected_wait()))

    @guarded
    def on_granted(self, lease: Lease) -> None:
        """A slot is ours: from this moment until `close` it is used."""
        if self.cause is not None:
            lease.release()
            return
        self._lease = lease
        self.record.granted = self._clock()
        self._enter(Phase.CONNECTING)
        self._call = self._upstream.pool.post("/chat/completions", self.job.chat.body, self)

    @guarded
    def on_lease_lost(self) -> None:
        """The slot is somebody else's by now (coordination.SharedSlots, `lost`)."""
        self.close("lost")

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._time.begin_phase(self._clock())

    # --- what the upstream says (server.upstream.Listener) ---

    @guarded
    def on_open(self) -> None:
        self._enter(Phase.WAITING)
        self.record.sent = self._time.silent_since
        if self._counting is None:
            self._digest, known = self._upstream.prefix_counts.guess(self.job.chat.body)
            if known is not None:
                self._stream.guess_input(known)
            # Beside the request, never before it: the first token does not wait for a count.
            self._counting = self._upstream.counter.tell(self.job.chat.body, self._stream.count_input)

    @guarded
    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self.phase = Phase.PREFILL
        self._time.heard = True
        if not 200 <= status < 300:
            self._error_head = (status, headers)

    def on_body(self, data: bytes) -> None:
        try:  # this and `on_read` come with every token: `guarded`, written out
            self._time.heard = True
            if self._error_head is not None:
                self._error_body += data[:_ERROR_BODY_LIMIT]
                if len(self._error_body) >= _ERROR_BODY_LIMIT:
                    self._end_upstream()
            elif self.cause is None and self._answer.feed(data):
                self._received()
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self.fail_internally(error)

    def on_read(self) -> None:
        """Everything of this read was taken in: one write for all of it."""
        try:
            self._flush()
            # Parts merge in their block while the client does not read; only then the upstream waits.
            if self._stream.blocks.pending > self._limits.max_behind:
                self._hold_back()
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self.fail_internally(error)

    def _hold_back(self) -> None:
        if self._link is not None and self._link.paused and self._call is not None and self.cause is None:
            self._time.held_back = True
            self._call.pause_reading()

    @guarded
    def on_end(self) -> None:
        self._call = None
        self._end_upstream()

    @guarded
    def on_lost(self, failure: Failure) -> None:
        self._call = None
        self._end_upstream(_fault_of(failure))
        self._flush()

    def _end_upstream(self, fault: Fault | None = None) -> None:
        """Nothing more will come: `fault` is what cut a good answer."""
        if self.cause is not None:
            return
        if self._error_head is not None:
            status, headers = self._error_head
            self._answer.refuse(fault_of_response(status, headers, self._error_body))
        else:
            self._answer.end(fault)
        self._received()

    def _received(self) -> None:
        """The machine has taken something in: what does it mean for this exchange?"""
        stream = self._stream
        if self.record.first_token is None and stream.begun:
            self.phase = Phase.STREAMING
            self.record.first_token = self._clock()
            if self._lease is not None:
                self._lease.active = True
        if stream.ended:
            self.close("finished" if stream.fault is None else "upstream")
        elif not self._started and stream.committed:
            self._news.set()

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
        self._flush()
        if time.held_back and self._call is not None:
            time.held_back = False
            time.silent_since = self._clock()
            self._call.resume_reading()

    def _flush(self) -> None:
        """Write what the machine allows, if the client has its status and reads."""
        link = self._link
        if self._bug is not None:
            return
        if self._started:
            if link is not None and not link.paused and self.cause not in CLIENT_IS_GONE:
                self._write_events(link)
        elif not self._answer.streaming:
            self._answer.fold()
            if self._answer.fault is not None:
                self.close("upstream", self._answer.fault)

    def _write_events(self, link: ClientLink) -> None:
        frames = self._answer.frames()
        if frames:
            link.write(frames)
            self._time.wrote = True
            self._told = self._stream.ended

    # --- time ---

    @guarded
    def tick(self, now: float) -> None:
        """About once a second. `now` is on the same clock as the exchange's."""
        time = self._time
        time.tick(now)
        if time.stalled(now):
            self._give_up_client()
        elif self.cause is None:
            fault = time.overdue(
                now,
                self.phase,
                self.record,
                self._stream,
                reports_usage=self._upstream.reports_usage,
                expected_wait=self._expected_wait,
            )
            if fault is not None:
                self.close("deadline", fault)
            else:
                self._keep_alive(now)

    def _keep_alive(self, now: float) -> None:
        link = self._link
        if not self._answer.streaming or link is None:
            return  # a whole answer promises nothing early: its status is chosen at the end
        if not self._stream.committed:
            if now - self.record.began >= self._limits.commit_after:
                self._stream.commit()
                self._news.set()
        elif self._started and not link.paused and now - self._time.quiet_since >= self._limits.ping_interval:
            self._time.quiet_since = now
            link.write(PING)

    def _give_up_client(self) -> None:
        if self.cause is None:
            self.close("stall")
        elif self._link is not None:
            self._link.abort()  # the upstream is long done; only the client's buffer was left

    # --- the one way out ---

    def fail_internally(self, error: BaseException) -> None:
        """A bug: its own exchange ends, with a traceback in the log and no content in it."""
        if self._bug is not None:
            return  # one bug, one traceback: what it broke may well raise again
        log_bug(log, error, request_id=self.job.request_id)
        self._bug = own_faults.internal(self.job.request_id)
        self.close("internal")
        if self.cause not in CLIENT_IS_GONE:
            self.record.cause, self.record.error = "internal", self._bug.kind
        self._say_bug()

    def _say_bug(self) -> None:
        """The last event of a stream that a bug ended, made without the machine and the encoder."""
        link = self._link
        if self._bug is None or link is None or not self._started or self._told:
            return
        if self.cause not in CLIENT_IS_GONE:
            self._told = True
            link.write(error_frame(self._bug, self.job.request_id))

    def close(self, cause: str, fault: Fault | None = None) -> None:
        """End it, for a row of CAUSES. Idempotent; the state is changed before anything else is done."""
        if self.cause is not None:
            return
        row = CAUSES[cause]
        self.cause = cause
        self.record.cause = cause
        self.record.phase = self.phase.value
        clean = self._stream.ended and self._stream.fault is None
        self._news.set()
        self._let_go(clean=clean)
        self.phase = Phase.OVER
        link = self._link
        if row.drops_client and link is not None:
            link.abort()
        if cause == "internal":
            return
        try:
            if cause not in CLIENT_IS_GONE:
                self._end_message(fault or row.fault)
            self._note()
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self.fail_internally(error)

    def _let_go(self, *, clean: bool) -> None:
        """Give back what the upstream side holds: the place in the queue, the connection, the slot."""
        ticket, self._ticket = self._ticket, None
        call, self._call = self._call, None
        lease, self._lease = self._lease, None
        if ticket is not None:
            ticket.cancel()
        if self._counting is not None:
            self._counting.cancel()
        abandoned = call is not None and self.phase is not Phase.CONNECTING and not clean
        if call is not None and clean:
            call.release()
        elif call is not None and self.cause == "client":
            told, clock, left = self._upstream_closed, self._clock, self._clock()
            call.abort(lambda: told(clock() - left))
        elif call is not None:
            call.abort()
        if lease is None:
            return
        if abandoned and not self._upstream.cancels_everywhere:
            lease.drain(until=self._clock() + self._limits.release_grace)
        else:
            lease.release()

    def _end_message(self, fault: Fault | None) -> None:
        """Bring the message to an end that is true: with a fault, unless the upstream had finished."""
        self._answer.end(fault)
        if not self._answer.streaming:
            self._answer.fold()
        elif self._started and self._link is not None:
            # Also to a client that lags behind: its buffer takes it, `write_stall` bounds it.
            self._write_events(self._link)

    def _note(self) -> None:
        usage, record = self._stream.usage, self.record
        record.input_tokens, record.output_tokens = usage.input_tokens, usage.output_tokens
        record.cached_tokens, record.estimated = usage.cache_read_input_tokens or 0, usage.estimated
        record.thinking_tokens = usage.thinking_tokens or 0
        if self._stream.fault is not None:
            record.error = self._stream.fault.kind


def _fault_of(failure: Failure) -> Fault:
    """A transport failure in a client's words."""
    if failure.kind in ("connect", "tls"):
        return Fault("api_error", failure.message, 502)
    if failure.before_response:
        return Fault("api_error", "the upstream closed the connection without an answer", 502)
    return (
        own_faults.UPSTREAM_CUT
        if failure.kind in ("reset", "eof")
        else Fault("api_error", failure.message, 502)
    )
