"""The client's side of an exchange: its status, its frames, and what it is told at the end.

Owns what was promised to the client and what it has been told. It decides nothing about the upstream: it
writes what the answer allows, when the client reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.core import own_faults
from antiphon.core.answer import Head
from antiphon.core.parts import Fault
from antiphon.server.answers import Send, respond
from antiphon.server.exchange_terms import CLIENT_IS_GONE, ClientLink

if TYPE_CHECKING:
    from antiphon.server.exchange import Exchange
    from antiphon.server.exchange_time import ExchangeTime


class ClientSide:
    """`link` is there from the moment in which the request's task serves it."""

    __slots__ = ("_exchange", "_time", "link", "sent_status", "started", "told")

    def __init__(self, exchange: Exchange, time: ExchangeTime) -> None:
        self._exchange = exchange
        self._time = time
        self.link: ClientLink | None = None
        self.started = False  # the client has its status
        self.told = False  # the client has the stream's last event
        self.sent_status = 0

    @property
    def streams(self) -> bool:
        """The answer is a stream, and its status may go out."""
        answer = self._exchange.answer
        return answer.streaming and answer.committed

    @property
    def gone(self) -> bool:
        return self._exchange.cause in CLIENT_IS_GONE

    # --- in the request's ASGI task ---

    async def say(self, send: Send) -> None:
        """Say what there is to say, in the form that is still open: a stream, or a status."""
        link, bug = self.link, self._exchange.bug
        if self.gone or link is None:
            return
        if self.started or (self.streams and bug is None):
            await self._serve_stream(link, send)
        elif bug is not None:
            await self._refuse(send, bug)
        else:
            await self._serve_whole(send)

    async def _serve_stream(self, link: ClientLink, send: Send) -> None:
        exchange = self._exchange
        if not self.started:
            status, headers = self._head()
            link.begin()
            await send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": [*headers, *exchange.headers()],
                }
            )
            self.sent_status = status
            self.started = True
            self.flush()
        while exchange.cause is None:
            await exchange.news()
        if self.gone:
            return
        if exchange.bug is not None:
            self.say_bug()
        elif not self.told:  # it ended while the client lagged behind, or before it had its status
            self.write(link)
        if exchange.answer.broken or (exchange.bug is not None and not exchange.job.surface.ends_with_error):
            link.cut()
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _head(self) -> Head:
        """How the answer begins. A stream that passes is told to proxies on the way as our own are."""
        usual = self._exchange.job.surface.stream_head
        status, headers = self._exchange.answer.head or (200, usual)
        said = dict(headers)
        if said.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            headers = [*headers, *(each for each in usual if each[0] not in said)]
        return status, headers

    async def _serve_whole(self, send: Send) -> None:
        """A whole message, or an honest error. Nothing was promised before this."""
        exchange = self._exchange
        body = exchange.answer.message()
        if body is None:
            await self._refuse_answer(send)
            return
        await respond(send, 200, body, exchange.headers())
        self.sent_status = 200

    async def _refuse_answer(self, send: Send) -> None:
        """Say why there is no answer: in its own words, if it has any."""
        exchange = self._exchange
        fault = exchange.answer.fault or own_faults.internal(exchange.job.request_id)
        said = exchange.answer.refusal(fault)
        if said is None:
            await self._refuse(send, fault)
            return
        exchange.record.error = fault.kind
        length = (b"content-length", b"%d" % len(said.body))
        headers = [length, *said.headers, *exchange.headers()]
        await send({"type": "http.response.start", "status": said.status, "headers": headers})
        await send({"type": "http.response.body", "body": said.body, "more_body": False})
        self.sent_status = said.status

    async def _refuse(self, send: Send, fault: Fault) -> None:
        exchange, job = self._exchange, self._exchange.job
        exchange.record.error = fault.kind
        headers = (*job.headers, *exchange.where)
        self.sent_status = await job.surface.respond(send, fault, job.request_id, headers)

    # --- from callbacks ---

    def flush(self) -> None:
        """Write what the answer allows, if the client has its status and reads."""
        link = self.link
        if self.started and link is not None and not link.paused and not self.gone:
            self.write(link)

    def write(self, link: ClientLink) -> None:
        answer = self._exchange.answer
        frames = answer.frames()
        if frames:
            link.write(frames)
            self._time.wrote = True
            self.told = answer.ended

    def write_end(self) -> None:
        """Also to a client that lags behind: its buffer takes it, `write_stall` bounds it."""
        if self.started and self.link is not None:
            self.write(self.link)

    def say_bug(self) -> None:
        """The last event of a stream that a bug ended, made without the machine and the encoder."""
        exchange, link = self._exchange, self.link
        if exchange.bug is None or link is None or not self.started or self.told or self.gone:
            return
        self.told = True
        words = exchange.answer.last_words(exchange.bug)
        if words is None:
            words = exchange.job.surface.error_frame(exchange.bug, exchange.job.request_id)
        if words:
            link.write(words)

    def keep_alive(self, now: float, began: float) -> None:
        """A promise to a client that has waited long enough, then pings. `began`: when its request came."""
        exchange, link, limits = self._exchange, self.link, self._time.limits
        answer, ping = exchange.answer, exchange.job.surface.ping
        if not answer.streaming or link is None:
            return  # a whole answer promises nothing early: its status is chosen at the end
        if not answer.committed:
            if now - began >= limits.commit_after:
                answer.commit()
                exchange.wake()
        elif (
            self.started and ping and not link.paused and now - self._time.quiet_since >= limits.ping_interval
        ):
            self._time.quiet_since = now
            link.write(ping)

    def abort(self) -> None:
        if self.link is not None:
            self.link.abort()
