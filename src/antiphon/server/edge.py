"""The client side of a connection: the one file that knows uvicorn's insides.

Owns what plain ASGI on uvicorn cannot promise: deadlines and size limits for headers and bodies,
protocol errors in the shape of their surface, a client that vanished without a FIN, a disconnect that is
heard at once, and a write that costs no task switch. It knows no route and no model.

The protocol object itself is the `ClientLink` of an exchange; the application finds it in
`scope["extensions"]["antiphon"]`. Each uvicorn attribute used here is held by
tests/server/test_edge_contract.py, and pyproject.toml pins the range.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from antiphon.config import Limits
from antiphon.core import own_faults
from antiphon.core.parts import Fault
from antiphon.server.head_first import HeadFirst
from antiphon.server.surface import surface_at

VANISHED_AFTER_MS = 30_000  # of unacknowledged data, then the kernel gives the client up
_FRAMING = (b"content-length", b"transfer-encoding")
_UPGRADE_WITH_BODY = own_faults.invalid_request(
    "a request with a body cannot ask for an upgrade here: send it as plain HTTP/1.1, without `Upgrade`"
)
LINGER = 2.0  # seconds in which a refused client may read why before its connection is reset


class LinkListener(Protocol):
    """What an exchange hears of its client. Called from the transport's callbacks."""

    def on_client_gone(self) -> None: ...
    def on_client_paused(self) -> None: ...
    def on_client_resumed(self) -> None: ...


class EdgeHost(Protocol):
    """The application, as far as its connections need it: it ticks `edges` about once a second."""

    limits: Limits
    edges: set[EdgeProtocol]

    def clock(self) -> float: ...
    def new_request_id(self) -> str: ...


class EdgeProtocol(HttpToolsProtocol):
    """One client connection."""

    _listener: LinkListener | None = None
    _heard_of = False  # if it vanishes: the kernel looks after it
    # What the client owes us: "headers", "body", the "end" of a connection that was refused, or nothing.
    _waiting_for: str | None = "headers"
    _since = 0.0
    _unread = 0  # bytes taken in since the parser last handed something over
    _body_size = 0
    _paused_since: float | None = None
    _out: HeadFirst  # of the running response
    _ignoring = False  # a pipelined request: it is dropped, and the connection closed after the response

    @property
    def host(self) -> EdgeHost:
        return self.config.app  # type: ignore[return-value]  # uvicorn types it as any ASGI application

    # --- the link: what an exchange uses ---

    @property
    def listener(self) -> LinkListener | None:
        """Who is told what the client does, while an exchange runs."""
        return self._listener

    @listener.setter
    def listener(self, listener: LinkListener | None) -> None:
        self._listener = listener
        if listener is not None and not self._heard_of:
            self._heard_of = True
            self._notice_vanishing()

    @property
    def paused(self) -> bool:
        """The client's buffer is full: write no more until `on_client_resumed`."""
        return self.flow.write_paused

    @property
    def gone(self) -> bool:
        """The client left before there was a listener to tell."""
        return self.cycle.disconnected

    def begin(self) -> None:
        """A body of unknown length is about to start; in HTTP/1.0, without chunks, the close ends it."""
        if self.scope["http_version"] == "1.0":
            self.cycle.chunked_encoding = False

    def write(self, frames: bytes) -> None:
        """One piece of the body, between ASGI's `http.response.start` and the end."""
        if self.cycle.chunked_encoding:
            frames = b"%x\r\n%b\r\n" % (len(frames), frames)
        if self._out.held:
            self._out.write(frames)
        else:  # with every token: one call less
            self.transport.write(frames)

    def cut(self) -> None:
        """Close behind what was written, without the end of the body: what came must not look whole."""
        self._disconnect_cycle()
        self._out.close()

    def abort(self) -> None:
        """Drop the client at once, with what it has not read."""
        self._disconnect_cycle()
        self.transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.host.clock()
        self.host.edges.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.host.edges.discard(self)
        listener, self._listener = self._listener, None
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if listener is not None:
            listener.on_client_gone()

    def eof_received(self) -> None:
        # A client that shuts down its sending side counts as gone. Closing in order would wait until it
        # has read what is buffered, which it may never do.
        open_response = self.cycle is not None and not self.cycle.response_complete
        if open_response and self._waiting_for != "end":
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._waiting_for == "end":
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # Reading goes on so that a disconnect is noticed, but nothing is served beside a response.
            cycle.keep_alive = False
            return
        if self._waiting_for is None:
            self._wait_for("headers")  # the keep-alive timer ends with the first byte, whatever it is
        self._unread += len(data)
        super().data_received(data)
        # Headers, trailers and chunk extensions without an end: the parser has no limit for them.
        if self._waiting_for in ("headers", "body") and self._unread > self.host.limits.max_headers:
            self._refuse(own_faults.HEADERS_TOO_LARGE)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused_since = self.host.clock()
        if self._listener is not None:
            self._listener.on_client_paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._paused_since = None
        if self._listener is not None:
            self._listener.on_client_resumed()

    # --- the parser's callbacks ---

    def on_message_begin(self) -> None:
        cycle = self.cycle
        self._ignoring = cycle is not None and not cycle.response_complete
        if self._ignoring:
            cycle.keep_alive = False
            return
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._ignoring:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._ignoring and self._waiting_for == "headers":  # else a trailer: of no use
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._ignoring:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        framing = {name: value for name, value in self.headers if name in _FRAMING}
        length = int(framing.get(b"content-length", b"0"))
        if size > self.host.limits.max_headers:
            self._refuse(own_faults.HEADERS_TOO_LARGE)
        elif length > self.host.limits.max_body:
            self._refuse(own_faults.too_large(self.host.limits.max_body))
        elif self.parser.should_upgrade() and (length or b"transfer-encoding" in framing):
            # The parser takes such a body for the other protocol's first bytes and drops it.
            self._refuse(_UPGRADE_WITH_BODY)
        else:
            self.scope["extensions"] = {"antiphon": self}  # type: ignore[dict-item]
            super().on_headers_complete()
            self._out = HeadFirst(self.cycle)
            self.cycle.transport = self._out  # type: ignore[assignment]  # it has the transport's methods
            self._wait_for("body")
            self._body_size = 0

    def on_body(self, body: bytes) -> None:
        if self._ignoring:
            return
        self._since = self.host.clock()
        self._unread = 0
        self._body_size += len(body)
        if self._body_size > self.host.limits.max_body:
            self._refuse(own_faults.too_large(self.host.limits.max_body))
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ignoring:
            return
        super().on_message_complete()
        # An answer that came before the body's end has started the keep-alive timer, the body stopped it.
        self._wait_for("headers" if self.cycle.response_complete else None)
        # A large last piece paused the reading, and nobody asks for more: a disconnect must be heard.
        self.flow.resume_reading()

    # --- limits and errors ---

    def tick(self, now: float) -> None:
        """About once a second: has the client been sending its request for too long?"""
        limits = self.host.limits
        if self._paused_since is not None and now - self._paused_since > limits.write_stall:
            self.abort()
        elif self._waiting_for is None:
            pass
        elif self._waiting_for == "end":
            if now - self._since > LINGER:
                self.transport.abort()
        elif now - self._since > (
            limits.request_headers if self._waiting_for == "headers" else limits.request_body
        ):
            self._give_up_request()

    def _give_up_request(self) -> None:
        if self._waiting_for == "headers" and not self._unread:
            self.transport.close()  # not one byte of a request came: there is nothing to answer
        else:
            self._refuse(own_faults.REQUEST_TIMEOUT)

    def send_400_response(self, msg: str) -> None:
        self._refuse(own_faults.invalid_request("the request is no valid HTTP/1.1"))

    def _unsupported_upgrade_warning(self) -> None:
        """An offer to upgrade may be ignored (RFC 9110 7.8), and clients make it all day: no log line.

        The parser reads nothing behind such a request: the answer is this connection's last one.
        """
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _wait_for(self, what: str | None) -> None:
        self._waiting_for = what
        self._since = self.host.clock()
        self._unread = 0

    def _notice_vanishing(self) -> None:
        """Have the kernel find out that the client is gone without a FIN, whether it is sent anything or not.

        From the first exchange on: before one, and between two, time limits of our own end what says nothing,
        and most connections that are turned away need not pay for this.
        """
        if self.transport.is_closing():
            return  # it is gone, and uvloop's socket with it
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
        with contextlib.suppress(OSError):  # closed by the other side in this moment
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, option):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_MS)

    def _disconnect_cycle(self) -> None:
        """Whatever the application still says to this request goes nowhere."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _refuse(self, fault: Fault) -> None:
        """Answer outside ASGI and close: there is no request, or its client does not finish it.

        Reading goes on for a moment and what comes is dropped: closing a socket with unread data resets
        it, and the client may lose the answer (RFC 9112 9.6).
        """
        cycle: RequestResponseCycle | None = self.cycle
        answered = self._waiting_for == "body" and cycle is not None and cycle.response_started
        self._disconnect_cycle()
        self._wait_for("end")
        self._ignoring = True
        if self.transport.is_closing():
            return
        if answered:
            self._out.flush()
        else:
            # What is no HTTP from its first byte on has no target, and uvicorn's class no attribute then.
            request_id, surface = self.host.new_request_id(), surface_at(getattr(self, "url", b""))
            body = surface.error_body(fault, request_id)
            ids = [(b"request-id", request_id.encode()), *surface.id_headers(request_id)]
            self.transport.write(
                b"%bcontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
                % (
                    STATUS_LINE[surface.status_of(fault)],
                    len(body),
                    b"".join(b"%b: %b\r\n" % each for each in ids),
                    body,
                )
            )
        self.flow.resume_reading()
        self.transport.write_eof()


def link_of(scope: Any) -> EdgeProtocol | None:
    """The link of a request that came through this server, None under another ASGI server."""
    link = (scope.get("extensions") or {}).get("antiphon")
    return link if isinstance(link, EdgeProtocol) else None
