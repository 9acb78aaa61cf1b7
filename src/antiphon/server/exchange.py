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
import os
import secrets
import traceback
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import wraps
from typing import Any, Protocol, TypeAlias, TypeVarTuple

import structlog
from msgspec import Struct

from antiphon.config import Limits
from antiphon.core import own_faults, tool_ids
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.dialects.chat_stream import ChatStream
from antiphon.core.faults import error_body, fault_of_response
from antiphon.core.parts import End, Event, Fault, MessageDelta, Part
from antiphon.core.stream import Stream
from antiphon.core.surfaces.messages.events import PING, EventEncoder
from antiphon.core.surfaces.messages.fold import Fold
from antiphon.observe.record import ExchangeRecord
from antiphon.server.admission import Lease, QueueFullError, Ticket
from antiphon.server.upstream import Call, Failure
from antiphon.server.upstreams import Upstream

Send: TypeAlias = Callable[[Any], Awaitable[None]]

log = structlog.get_logger("antiphon.exchange")

_ERROR_BODY_LIMIT = 64 * 1024


class Phase(Enum):
    """Where an exchange is, seen from its upstream."""

    QUEUED = "queued"
    CONNECTING = "connecting"
    WAITING = "waiting"  # the request is sent, no response head yet
    PREFILL = "prefill"  # a head, no content yet
    STREAMING = "streaming"
    OVER = "over"  # the upstream has nothing more to say


class Cause(Struct, frozen=True):
    """What an end does.

    `fault` is said to the client if the message has not ended; `drops_client` aborts the client.
    """

    meaning: str
    fault: Fault | None = None
    drops_client: bool = False


CAUSES: dict[str, Cause] = {
    "finished": Cause("the upstream's answer came to its end"),
    "upstream": Cause("the upstream failed; its fault is in the stream"),
    "client": Cause("the client is gone; nothing is said"),
    "deadline": Cause("a time limit ran out; the limit's own fault is said"),
    "stall": Cause("the client left a full buffer unread", drops_client=True),
    "shutdown": Cause("the gateway stops", own_faults.SHUTTING_DOWN),
    "operator": Cause(
        "somebody cancelled it", Fault("api_error", "the request was cancelled by the operator", 500)
    ),
    "internal": Cause("a bug of this gateway; the log has the traceback, and the machine is not asked"),
}


class ClientLink(Protocol):
    """The client's side of a response, as server.edge and server.asgi_link provide it."""

    listener: Any

    @property
    def gone(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    def begin(self) -> None: ...
    def write(self, frames: bytes) -> None: ...
    def abort(self) -> None: ...


class Job(Struct, frozen=True):
    """What is to be done, made from a client's request before anything is promised."""

    request_id: str
    model: str  # as the client named it; it only ever sees this name
    streaming: bool
    chat: ChatRequest


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
    """See the module. `clock` is monotonic, in seconds."""

    __slots__ = (
        "_bug",
        "_call",
        "_clock",
        "_encoder",
        "_error_body",
        "_error_head",
        "_fold",
        "_heard",
        "_held_back",
        "_lease",
        "_limits",
        "_link",
        "_news",
        "_paused_since",
        "_quiet_since",
        "_reader",
        "_sent_status",
        "_silent_since",
        "_started",
        "_stream",
        "_ticket",
        "_told",
        "_upstream",
        "_wrote",
        "cause",
        "job",
        "phase",
        "record",
    )

    def __init__(self, job: Job, *, upstream: Upstream, limits: Limits, clock: Callable[[], float]) -> None:
        self.job = job
        self.phase = Phase.QUEUED
        self.cause: str | None = None
        self._upstream = upstream
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
        self._held_back = False  # the upstream is paused: its silence is ours
        self._sent_status = 0
        self._error_head: tuple[int, dict[str, str]] | None = None
        self._error_body = b""
        now = clock()
        # The ticker's view of time: the hot path sets flags, the tick turns them into moments.
        self._heard = False
        self._wrote = False
        self._silent_since = now  # nothing came from the upstream
        self._quiet_since = now  # nothing went to the client
        self._paused_since: float | None = None
        self.record = ExchangeRecord(
            request_id=job.request_id,
            model=job.model,
            upstream=upstream.name,
            streaming=job.streaming,
            began=now,
            degraded=job.chat.degraded,
            ignored=job.chat.ignored,
        )
        counts = self.record.counts
        taken = set(job.chat.history_tool_ids)

        def tool_id(original: str | None) -> str:
            made = tool_ids.outgoing(original, taken=taken, entropy=os.urandom)
            taken.add(made)
            return made

        message_id = f"msg_{secrets.token_hex(12)}"
        self._reader = ChatStream(
            counts=counts,
            stop_sequences=job.chat.stop_sequences,
            think_tags=upstream.think_tags,
            max_frame=limits.max_frame,
            max_body=limits.max_fold,
        )
        self._stream = Stream(
            tool_id=tool_id, input_tokens=job.chat.input_estimate, counts=counts, held_limit=limits.max_held
        )
        self._encoder = EventEncoder(message_id=message_id, model=job.model, request_id=job.request_id)
        self._fold = (
            None
            if job.streaming
            else Fold(message_id=message_id, model=job.model, counts=counts, limit=limits.max_fold)
        )

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
            await self._answer(link, send)
        except asyncio.CancelledError:
            # The server gives the task up: its client hears why all the same, if it listens.
            self.close("shutdown")
            await self._answer(link, send)
            raise
        except Exception as error:  # noqa: BLE001 - every bug has this one exit
            self.fail_internally(error)
            await self._answer(link, send)
        finally:
            self.close("shutdown")  # of the whole process, if there is no cause yet
            link.listener = None
            self.record.ended = self._clock()
            self.record.status = self._sent_status

    async def _answer(self, link: ClientLink, send: Send) -> None:
        """Say what there is to say, in the form that is still open: a stream, or a status."""
        if self.cause in _CLIENT_IS_GONE:
            return
        if self._started or (self._streams and self._bug is None):
            await self._serve_stream(link, send)
        elif self._bug is not None:
            await self._refuse(send, self._bug)
        else:
            await self._serve_whole(send)

    @property
    def _streams(self) -> bool:
        """The answer is a stream, and its status may go out."""
        return self._fold is None and self._stream.committed

    async def _wait(self) -> None:
        await self._news.wait()
        self._news.clear()

    async def _serve_stream(self, link: ClientLink, send: Send) -> None:
        if not self._started:
            link.begin()
            await send({"type": "http.response.start", "status": 200, "headers": self._stream_headers()})
            self._sent_status = 200
            self._started = True
            self._flush()
        while self.cause is None:
            await self._wait()
        if self.cause in _CLIENT_IS_GONE:
            return
        if self._bug is not None:
            self._say_bug()
        elif not self._told:  # it ended while the client lagged behind, or before it had its status
            self._write_events(link)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _serve_whole(self, send: Send) -> None:
        """A whole message, or an honest error. Nothing was promised before this."""
        fault = self._stream.fault
        if fault is None and self._fold is not None:
            body = self._fold.message()
            if body is not None:
                await respond(send, 200, body, self._headers())
                self._sent_status = 200
                return
            fault = self._fold.fault
        await self._refuse(send, fault or own_faults.internal(self.job.request_id))

    async def _refuse(self, send: Send, fault: Fault) -> None:
        self.record.error = fault.kind
        await respond_fault(send, fault, self.job.request_id)
        self._sent_status = fault.status

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"request-id", self.job.request_id.encode())]
        degraded = degraded_header(self.job.chat.degraded)
        return [*headers, (b"antiphon-degraded", degraded)] if degraded else headers

    def _stream_headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self._headers(),
        ]

    # --- a slot, a connection ---

    @guarded
    def _begin(self) -> None:
        if self.cause is not None:
            return
        refusal = self._upstream.refusal()
        if refusal is not None:
            self._receive([refusal])
            return
        try:
            self._ticket = self._upstream.slots.request(self.job.request_id, self.on_granted)
        except QueueFullError:
            self._receive([own_faults.queue_full(retry_after=5)])

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

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._silent_since = self._clock()
        self._heard = False

    # --- what the upstream says (server.upstream.Listener) ---

    @guarded
    def on_open(self) -> None:
        self._enter(Phase.WAITING)
        self.record.sent = self._silent_since

    @guarded
    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self.phase = Phase.PREFILL
        self._heard = True
        if not 200 <= status < 300:
            self._error_head = (status, headers)

    @guarded
    def on_body(self, data: bytes) -> None:
        self._heard = True
        if self._error_head is not None:
            self._error_body += data[:_ERROR_BODY_LIMIT]
            if len(self._error_body) >= _ERROR_BODY_LIMIT:
                self._receive([self._upstream_error()])
            return
        self._receive(self._reader.feed(data))

    @guarded
    def on_read(self) -> None:
        """Everything of this read was taken in: one write for all of it."""
        self._flush()
        link = self._link
        if link is None or not link.paused or self._call is None or self.cause is not None:
            return
        # Parts merge in their block while the client does not read; only then the upstream waits.
        if self._stream.pending > self._limits.max_behind:
            self._held_back = True
            self._call.pause_reading()

    @guarded
    def on_end(self) -> None:
        self._call = None
        self._receive([self._upstream_error()] if self._error_head else self._reader.end())

    @guarded
    def on_lost(self, failure: Failure) -> None:
        self._call = None
        if self._error_head is not None:
            self._receive([self._upstream_error()])
        else:
            self._receive(self._reader.end(_fault_of(failure)))
        self._flush()

    def _upstream_error(self) -> Fault:
        status, headers = self._error_head or (502, {})
        return fault_of_response(status, headers, self._error_body)

    def _receive(self, parts: list[Part]) -> None:
        if self.cause is not None:
            return
        stream = self._stream
        before = stream.begun
        stream.receive(parts)
        if stream.begun and not before:
            self.phase = Phase.STREAMING
            self.record.first_token = self._clock()
            if self._lease is not None:
                self._lease.active = True
        if stream.ended:
            self.close("finished" if stream.fault is None else "upstream")
        elif stream.committed and not self._started:
            self._news.set()

    # --- what the client does (server.edge.LinkListener) ---

    @guarded
    def on_client_gone(self) -> None:
        self.close("client")

    @guarded
    def on_client_paused(self) -> None:
        self._paused_since = self._clock()

    @guarded
    def on_client_resumed(self) -> None:
        self._paused_since = None
        self._flush()
        if self._held_back and self._call is not None:
            self._held_back = False
            self._silent_since = self._clock()
            self._call.resume_reading()

    def _flush(self) -> None:
        """Write what the machine allows, if the client has its status and reads."""
        if self._bug is not None:
            return
        if self._fold is not None:
            self._fold.add(self._take())
            if self._fold.fault is not None:
                self.close("upstream", self._fold.fault)
            return
        link = self._link
        if not self._started or link is None or link.paused or self.cause in _CLIENT_IS_GONE:
            return
        self._write_events(link)

    def _write_events(self, link: ClientLink) -> None:
        events = self._take()
        if events:
            link.write(self._encoder.encode(events))
            self._wrote = True
            self._told = self._stream.ended

    def _take(self) -> list[Event]:
        events = self._stream.take()
        if self._stream.ended:
            for event in events:
                if isinstance(event, MessageDelta):
                    self.record.stop_reason = event.stop_reason
        return events

    # --- time ---

    @guarded
    def tick(self, now: float) -> None:
        """About once a second. `now` is on the same clock as the exchange's."""
        if self._heard or self._held_back:
            self._heard = False
            self._silent_since = now
        if self._wrote:
            self._wrote = False
            self._quiet_since = now
        if self._paused_since is not None and now - self._paused_since > self._limits.write_stall:
            self._give_up_client()
        elif self.cause is None:
            fault = self._overdue(now)
            if fault is not None:
                self.close("deadline", fault)
            else:
                self._keep_alive(now)

    def _overdue(self, now: float) -> Fault | None:
        """The fault of the limit that has run out, if one has."""
        limits, record = self._limits, self.record
        silent = now - self._silent_since
        if self.phase is Phase.QUEUED:
            return (
                own_faults.queue_timeout(retry_after=10)
                if now - record.began > limits.queue_timeout
                else None
            )
        if self.phase is Phase.CONNECTING:
            return own_faults.UPSTREAM_CONNECT_TIMEOUT if silent > limits.connect else None
        if self._stream.finished:
            missing = self._upstream.reports_usage and not self._stream.usage_reported
            grace = limits.finish_grace_usage if missing else limits.finish_grace
            return own_faults.UPSTREAM_CUT if silent > grace else None
        if self.phase is Phase.STREAMING:
            return own_faults.UPSTREAM_STALLED if silent > limits.gap else None
        waited = now - (record.sent if record.sent is not None else now)
        return own_faults.UPSTREAM_TIMEOUT if waited > limits.first_token else None

    def _keep_alive(self, now: float) -> None:
        link = self._link
        if self._fold is not None or link is None:
            return  # a whole answer promises nothing early: its status is chosen at the end
        if not self._stream.committed:
            if now - self.record.began >= self._limits.commit_after:
                self._stream.commit()
                self._news.set()
        elif self._started and not link.paused and now - self._quiet_since >= self._limits.ping_interval:
            self._quiet_since = now
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
        frames = "".join(traceback.format_tb(error.__traceback__))
        log.error("internal", request_id=self.job.request_id, error=type(error).__name__, traceback=frames)
        self._bug = own_faults.internal(self.job.request_id)
        self.close("internal")
        if self.cause not in _CLIENT_IS_GONE:
            self.record.cause, self.record.error = "internal", self._bug.kind
        self._say_bug()

    def _say_bug(self) -> None:
        """The last event of a stream that a bug ended, made without the machine and the encoder."""
        link = self._link
        if self._bug is None or link is None or not self._started or self._told:
            return
        if self.cause not in _CLIENT_IS_GONE:
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
            if cause not in _CLIENT_IS_GONE:
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
        abandoned = call is not None and self.phase is not Phase.CONNECTING and not clean
        if call is not None and clean:
            call.release()
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
        if not self._stream.ended:
            self._stream.receive(self._reader.end(fault) or [End(clean=False, fault=fault)])
        if self._fold is not None:
            self._fold.add(self._take())
        elif self._started and self._link is not None:
            # Also to a client that lags behind: its buffer takes it, `write_stall` bounds it.
            self._write_events(self._link)

    def _note(self) -> None:
        usage, record = self._stream.usage, self.record
        record.input_tokens, record.output_tokens = usage.input_tokens, usage.output_tokens
        record.cached_tokens, record.estimated = usage.cache_read_input_tokens or 0, usage.estimated
        if self._stream.fault is not None:
            record.error = self._stream.fault.kind


_CLIENT_IS_GONE = ("client", "stall")


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


def error_frame(fault: Fault, request_id: str) -> bytes:
    """A stream's `event: error`, without an encoder."""
    return b"event: error\ndata: %b\n\n" % error_body(fault, request_id)


def degraded_header(paths: tuple[str, ...], limit: int = 1024) -> bytes:
    """Field paths for `antiphon-degraded`: ASCII, at most `limit` bytes, then `+N` for the rest."""
    shown: list[str] = []
    size = 0
    for position, path in enumerate(paths):
        clean = "".join(letter if "!" <= letter <= "~" and letter != "," else "_" for letter in path)
        if size + len(clean) + 2 > limit - 8:
            return ", ".join([*shown, f"+{len(paths) - position}"]).encode()
        shown.append(clean)
        size += len(clean) + 2
    return ", ".join(shown).encode()


async def respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A whole JSON answer through ASGI."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def respond_fault(
    send: Send, fault: Fault, request_id: str, extra: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """An error answer in Anthropic's shape, with what tells SDKs whether and when to come back."""
    headers = [(b"request-id", request_id.encode()), *extra]
    if fault.retry_after is not None:
        headers.append((b"retry-after", fault.retry_after.encode("ascii", "replace")))
    if fault.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if fault.should_retry else b"false"))
    await respond(send, fault.status, error_body(fault, request_id), headers)
