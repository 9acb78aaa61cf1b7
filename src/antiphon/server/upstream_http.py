"""One HTTP/1.1 connection to an upstream: an `asyncio.Protocol` around llhttp.

Owns the reading and writing of one message at a time and the decision whether the connection can
carry another. It does not connect, choose, repeat or keep time: `upstream.py` does. A read costs one
pass: `data_received` -> parser -> `listener.on_body` -> `listener.on_read`; no task, no queue, no log.

    OPENING --start--> BUSY --end--> IDLE --take--> OPENING --start--> ...
    BUSY --release--> SETTLING --end--> IDLE
    everything --abort, failure, time up, an end that does not allow another message--> DEAD

What the parser (httptools 0.9 on llhttp) does and does not do, each with a test:

- it has no limit for headers, trailers or chunk extensions: they are counted here;
- it cannot be told of an EOF, so bodies that end with the connection are ended here;
- it goes straight on to a second message in the same read: stopped here by an exception;
- it wraps what a callback raises in HttpParserCallbackError, with the cause in `__context__`;
- it refuses `content-length` beside `transfer-encoding` and a second `content-length` on its own,
  but reads codings other than `chunked` as bodies without an end: refused here.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final, Protocol, cast

import httptools

from antiphon.server.upstream_encoding import EncodingError, decoder_for
from antiphon.server.upstream_listener import Failure, report

if TYPE_CHECKING:
    from antiphon.server.upstream_encoding import Decoder
    from antiphon.server.upstream_listener import FailureKind, Listener

WRITE_PIECE: Final = 64 * 1024
"""Bytes of a request body handed to the transport at once: it copies what the kernel does not take."""


class Caller(Protocol):
    """Who put a request on a connection."""

    def answered(self) -> None:
        """The final response head is here: the request will not be repeated."""

    def ended(self) -> None:
        """The response is complete and its listener has heard everything."""

    def lost(self, failure: Failure, *, stale: bool) -> None:
        """The response will not come to its end. `stale`: a reused connection died before any byte."""

    def blamed(self) -> None:
        """The listener raised; the connection is gone, the listener is not called again."""


class Owner(Protocol):
    """Who holds the connections."""

    def free(self, connection: Connection) -> None:
        """It is idle and can carry another request."""

    def dead(self, connection: Connection) -> None:
        """It will never carry another one."""

    def closed(self, connection: Connection) -> None:
        """Its transport is gone."""


class State(enum.Enum):
    """Where a connection is in its life; the picture is in the module's docstring."""

    OPENING = enum.auto()
    BUSY = enum.auto()
    SETTLING = enum.auto()
    IDLE = enum.auto()
    DEAD = enum.auto()


class _ProtocolError(Exception):
    """The upstream broke a rule that the parser does not check."""


class _SurplusError(Exception):
    """A second message in the same read. Nobody asked for it."""


class Connection(asyncio.Protocol):
    """One connection. `state` is for reading; only the methods change it."""

    __slots__ = (
        "_answered",
        "_caller",
        "_complete",
        "_decoder",
        "_ends_with_eof",
        "_header_bytes",
        "_headers",
        "_interim",
        "_listener",
        "_loop",
        "_max_header_bytes",
        "_owner",
        "_parser",
        "_paused",
        "_rest",
        "_reusable",
        "_reused",
        "_since_body",
        "_timer",
        "_transport",
        "_write_paused",
        "state",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner, *, max_header_bytes: int) -> None:
        self._loop = loop
        self._owner = owner
        self._max_header_bytes = max_header_bytes
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None  # settling or idle: gone when it fires
        self._write_paused = False
        self._reused = False
        self.state = State.OPENING
        self._forget()

    def _forget(self) -> None:
        """Drop everything that belongs to one message."""
        self._caller: Caller | None = None
        self._listener: Listener | None = None
        # A parser per message: it starts clean, and an idle connection does not hold one.
        self._parser: httptools.HttpResponseParser | None = None
        self._headers: dict[str, str] | None = None  # None once the final head is complete
        self._decoder: Decoder | None = None
        self._rest: memoryview | None = None  # of the request body; None: all handed to the transport
        self._paused = False
        self._answered = False  # a byte of the response has arrived
        self._interim = False  # reading a 1xx response
        self._complete = False
        self._ends_with_eof = False
        self._reusable = False
        self._header_bytes = 0
        self._since_body = 0

    # --- What the call does with it ---------------------------------------------------------------

    def start(
        self, caller: Caller, listener: Listener, head: bytes, body: bytes, *, reused: bool, paused: bool
    ) -> None:
        """Write a request; from now on `listener` hears. The state must be OPENING."""
        transport = self._transport
        assert transport is not None  # noqa: S101  OPENING connections are handed out when made
        self.state = State.BUSY
        self._caller = caller
        self._listener = listener
        self._reused = reused
        self._headers = {}
        self._parser = httptools.HttpResponseParser(self)
        if paused:
            self.pause()
        if len(body) <= WRITE_PIECE:
            transport.write(head + body)
        else:
            self._rest = memoryview(body)
            transport.write(head)
            self._send(transport)

    def take(self) -> bool:
        """An idle connection is about to be used again. False (and dead) if it cannot be."""
        self._cancel_timer()
        if self.state is not State.IDLE or self._transport is None or self._transport.is_closing():
            self.abort()
            return False
        self.state = State.OPENING
        return True

    def pause(self) -> None:
        """Read no more from the socket. What is already in the current read is still delivered."""
        if self.state is State.BUSY and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Undo `pause`."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def release(self, settle: float) -> None:
        """Nobody listens any longer; the connection lives on if its message ends in `settle` seconds."""
        self._caller = self._listener = None
        hopeless = self._headers is None and not self._reusable
        if self.state is not State.BUSY or self._rest is not None or hopeless:
            self.abort()
            return
        self.state = State.SETTLING
        self.resume()
        self._timer = self._loop.call_later(settle, self.abort)

    def expire_after(self, seconds: float) -> None:
        """Close it if it is not taken within `seconds`."""
        self._timer = self._loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        """Close at once, in any state, also from inside a callback. No callback afterwards."""
        if self.state is State.DEAD:
            return
        self.state = State.DEAD
        self._cancel_timer()
        self._forget()
        self._owner.dead(self)
        if self._transport is not None:
            self._transport.abort()

    # --- What the transport says ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        if self.state is State.DEAD:  # given up during the handshake
            made.abort()

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:  # nothing was asked: whatever this is, the connection cannot be trusted
            self.abort()
            return
        self._answered = True
        self._since_body += len(data)
        if self._decoder is not None:
            self._decoder.begin_read()
        try:
            parser.feed_data(data)
        except Exception as error:  # noqa: BLE001  nothing is swallowed: sorted out there
            self._misread(error)
        listener = self._listener
        if listener is not None:
            try:
                listener.on_read()
            except Exception as error:  # noqa: BLE001  handed to the loop's exception handler
                self._blame(error)
        if self._complete:
            self._finish()
        elif self._since_body > self._max_header_bytes:
            # Headers, trailers or chunk extensions without an end: `on_header` sees only whole ones.
            self._fail("protocol", self._too_large())

    def eof_received(self) -> None:
        if self._parser is None:
            self.abort()
        elif not self._ends_with_eof:
            where = "in the middle of its answer" if self._answered else "without an answer"
            self._fail("eof", f"the upstream closed the connection {where}")
        else:
            try:
                self.on_message_complete()
                if self._listener is not None:
                    self._listener.on_read()
            except EncodingError as error:
                self._fail("encoding", str(error))
            except Exception as error:  # noqa: BLE001  handed to the loop's exception handler
                self._blame(error)
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._parser is None:
            self.abort()
        else:
            where = "in the middle of its answer" if self._answered else "before it answered"
            self._fail("reset" if exc else "eof", f"the connection to the upstream was lost {where}")
        self._transport = None
        self._owner.closed(self)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._rest is not None and self._transport is not None:
            self._send(self._transport)

    def _send(self, transport: asyncio.Transport) -> None:
        rest = self._rest
        # `is_closing`: after a write error asyncio warns of every further write.
        while rest is not None and not self._write_paused and not transport.is_closing():
            transport.write(rest[:WRITE_PIECE])
            rest = rest[WRITE_PIECE:] if len(rest) > WRITE_PIECE else None
            self._rest = rest

    # --- What the parser says ---------------------------------------------------------------------
    # After `abort` in the middle of a read the parser goes on to the read's end; nobody listens then.

    def on_message_begin(self) -> None:
        if self._complete:
            raise _SurplusError

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4  # ": " and the line's end
        if self._header_bytes > self._max_header_bytes:
            raise _ProtocolError(self._too_large())
        headers = self._headers
        if headers is not None:  # else a trailer: counted, not used
            key = name.decode("latin-1").lower()
            text = value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        if parser is None or headers is None:
            return
        status = parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise _ProtocolError(f"the upstream answered with status {status:03}")
            self._interim = True
            self._headers = {}
            return
        version = parser.get_http_version()
        if version not in {"1.1", "1.0"}:
            raise _ProtocolError(f"the upstream answered in HTTP/{version}")
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.strip().lower() != "chunked":
            raise EncodingError("the response has a transfer-encoding other than chunked")
        # Not so for 204 and 304, which have no body: the parser ends them right behind their head.
        self._ends_with_eof = coding is None and "content-length" not in headers
        self._decoder = decoder_for(headers.get("content-encoding", ""))
        # An answer before the request was sent: what is left of it will not be, so that the upstream
        # cannot find the next request's beginning.
        self._reusable = self._rest is None and version == "1.1" and parser.should_keep_alive()
        self._rest = None
        self._headers = None
        if self._caller is not None:
            self._caller.answered()
        if self._listener is not None:
            self._listener.on_head(status, headers)

    def on_body(self, data: bytes) -> None:
        self._since_body = 0
        listener = self._listener
        if listener is None:
            return
        if self._decoder is None:
            listener.on_body(data)
            return
        for piece in self._decoder.decode(data):
            listener.on_body(piece)
            if self._listener is None:  # it aborted or released
                return

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            return
        if self._decoder is not None and self._listener is not None:
            self._decoder.close()
        self._complete = True
        if self._listener is not None:
            self._listener.on_end()

    # --- Ends -------------------------------------------------------------------------------------

    def _misread(self, error: Exception) -> None:
        """Sort out what came out of the parser: the upstream's fault or the listener's."""
        cause: BaseException = error
        if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
            cause = error.__context__
        if isinstance(cause, _SurplusError) or (
            self._complete and isinstance(cause, httptools.HttpParserError)
        ):
            self._reusable = False  # the answer was whole; what follows it is not our business
        elif isinstance(cause, EncodingError):
            self._fail("encoding", str(cause))
        elif isinstance(cause, _ProtocolError):
            self._fail("protocol", str(cause))
        elif isinstance(cause, httptools.HttpParserError):
            self._fail("protocol", f"the upstream's answer is not valid HTTP: {cause}")
        elif isinstance(cause, Exception):
            self._blame(cause)
        else:  # KeyboardInterrupt and its like are nobody's callback error
            self.abort()
            raise cause

    def _blame(self, error: Exception) -> None:
        caller = self._caller
        self.abort()
        if caller is not None:
            caller.blamed()
        report(self._loop, error)

    def _fail(self, kind: FailureKind, message: str) -> None:
        caller, answered, reused = self._caller, self._answered, self._reused
        self.abort()
        if caller is not None:
            caller.lost(Failure(kind, message, not answered), stale=reused and not answered)

    def _finish(self) -> None:
        """The message is complete and its listener has heard of it."""
        transport = self._transport
        if self.state is State.DEAD or transport is None:
            return
        self._cancel_timer()
        caller = self._caller
        # Bytes still in the transport: the answer came before the request was sent.
        reusable = self._reusable and not transport.is_closing() and not transport.get_write_buffer_size()
        self.resume()
        self._forget()
        if reusable:
            self.state = State.IDLE
            self._owner.free(self)
        else:
            self.abort()
        if caller is not None:
            caller.ended()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_large(self) -> str:
        return f"the response's headers are larger than {self._max_header_bytes} bytes"
