"""The client side of a connection: the one file that knows uvicorn's insides.

Owns what plain ASGI on uvicorn cannot promise: deadlines and size limits for headers and bodies,
protocol errors in Anthropic's shape, a client that vanished without a FIN, a disconnect that is heard at
once, and a write that costs no task switch. It knows no route and no model.

The protocol object itself is the `ClientLink` of an exchange; the application finds it in
`scope["extensions"]["antiphon"]`. Each uvicorn attribute used here is held by
tests/server/test_edge_contract.py, and pyproject.toml pins the range.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from antiphon.config import Limits
from antiphon.core import own_faults
from antiphon.core.faults import error_body
from antiphon.core.parts import Fault

VANISHED_AFTER_MS = 30_000  # of unacknowledged data, then the kernel gives the client up


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

    listener: LinkListener | None = None
    _waiting_for: str | None = "headers"  # what the client owes us: "headers", "body" or nothing
    _since = 0.0
    _head_size = 0
    _ignoring = False  # a pipelined request: it is dropped, and the connection closed after the response

    @property
    def host(self) -> EdgeHost:
        return self.config.app  # type: ignore[return-value]  # uvicorn types it as any ASGI application

    # --- the link: what an exchange uses ---

    @property
    def paused(self) -> bool:
        """The client's buffer is full: write no more until `on_client_resumed`."""
        return self.flow.write_paused

    def write(self, frames: bytes) -> None:
        """One piece of the body, between ASGI's `http.response.start` and the end."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(frames), frames))

    def abort(self) -> None:
        """Drop the client at once, with what it has not read."""
        self.transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.host.clock()
        self.host.edges.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, option):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_AFTER_MS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.host.edges.discard(self)
        listener, self.listener = self.listener, None
        super().connection_lost(exc)
        if listener is not None:
            listener.on_client_gone()

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # Reading goes on so that a disconnect is noticed, but nothing is served beside a response.
            cycle.keep_alive = False
            return
        super().data_received(data)
        if self._waiting_for == "headers":
            self._head_size += len(data)
            if self._head_size > self.host.limits.max_headers:
                self._refuse(own_faults.HEADERS_TOO_LARGE)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.listener is not None:
            self.listener.on_client_paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.listener is not None:
            self.listener.on_client_resumed()

    # --- the parser's callbacks ---

    def on_message_begin(self) -> None:
        cycle = self.cycle
        self._ignoring = cycle is not None and not cycle.response_complete
        if self._ignoring:
            cycle.keep_alive = False
            return
        super().on_message_begin()
        self._wait_for("headers")

    def on_url(self, url: bytes) -> None:
        if not self._ignoring:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._ignoring:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._ignoring:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.host.limits.max_headers:
            self._refuse(own_faults.HEADERS_TOO_LARGE)
            self._ignoring = True
            return
        self.scope["extensions"] = {"antiphon": self}  # type: ignore[dict-item]
        super().on_headers_complete()
        self._wait_for("body")

    def on_body(self, body: bytes) -> None:
        if not self._ignoring:
            super().on_body(body)
            self._since = self.host.clock()

    def on_message_complete(self) -> None:
        if not self._ignoring:
            super().on_message_complete()
            self._wait_for(None)

    # --- limits and errors ---

    def tick(self, now: float) -> None:
        """About once a second: has the client been sending its request for too long?"""
        limits = self.host.limits
        allowed = {"headers": limits.request_headers, "body": limits.request_body}.get(
            self._waiting_for or ""
        )
        if allowed is not None and now - self._since > allowed:
            self._refuse(own_faults.REQUEST_TIMEOUT)

    def send_400_response(self, msg: str) -> None:
        self._refuse(own_faults.invalid_request("the request is no valid HTTP/1.1"))

    def _wait_for(self, what: str | None) -> None:
        self._waiting_for = what
        self._since = self.host.clock()
        self._head_size = 0

    def _refuse(self, fault: Fault) -> None:
        """Answer outside ASGI and close: there is no request, or its client does not finish it."""
        cycle: RequestResponseCycle | None = self.cycle
        self._waiting_for = None
        if self.transport.is_closing():
            return
        if cycle is None or not cycle.response_started or cycle.response_complete:
            request_id = self.host.new_request_id()
            body = error_body(fault, request_id)
            self.transport.write(
                STATUS_LINE[fault.status]
                + b"content-type: application/json\r\ncontent-length: %d\r\nrequest-id: %b\r\nconnection: close\r\n\r\n%b"
                % (len(body), request_id.encode(), body)
            )
        self.transport.close()


def link_of(scope: Any) -> EdgeProtocol | None:
    """The link of a request that came through this server, None under another ASGI server."""
    link = (scope.get("extensions") or {}).get("antiphon")
    return link if isinstance(link, EdgeProtocol) else None
