"""Connections for inference requests: open, send, stream, abort.

Owns the calls to one upstream and its idle connections. There is no limit and no waiting here:
whoever calls holds a slot, and a slot owns its connection. Nothing is timed but how long an idle or a
released connection is kept; every other time limit is the exchange's, which aborts. No redirect is
followed, no status is judged, no request is repeated, but for one case: a *reused* connection that
died before any byte of a response had closed while it was idle, and the request goes out once more on
a fresh one.

    pool = UpstreamPool("http://127.0.0.1:8000/v1", api_key=key)
    call = pool.post("/chat/completions", body, listener)   # at once; callbacks follow from the loop
    call.abort()                                            # at any moment; no callback afterwards
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from antiphon import __version__
from antiphon.core.dialects.address import key_header
from antiphon.core.dialects.quirk_facts import Auth
from antiphon.server.upstream_dial import DialError, dial, header_value, parse_base_url, tls_context
from antiphon.server.upstream_http import Connection, State
from antiphon.server.upstream_listener import Failure, FailureKind, Listener, report

if TYPE_CHECKING:
    import ssl

__all__ = ["Call", "Failure", "FailureKind", "Listener", "PoolStatistics", "UpstreamPool"]


class PoolStatistics(msgspec.Struct, frozen=True):
    """A moment's numbers, counted from what exists.

    `idle`: connections that wait for a request; `active`: calls on a connection; `connecting`: calls
    that have none yet; `settling`: released connections whose message may still end.
    """

    idle: int
    active: int
    connecting: int
    settling: int


class UpstreamPool:
    """One upstream's connections. Belongs to the loop that runs when `post` is called."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        auth: Auth = "bearer",
        idle_limit: float = 3.0,
        ca_file: str | None = None,
        verify: bool = True,
        max_header_bytes: int = 65536,
        settle: float = 0.1,
        user_agent: str = f"antiphon/{__version__}",
    ) -> None:
        """Raises ValueError, in words for the person who wrote the configuration.

        `idle_limit`, `settle`: seconds. Servers close idle connections after 5 s or later: 3 s stays
        clear of the moment when a request and their FIN pass each other. `ca_file`: PEM, replaces the
        system's authorities. `max_header_bytes` counts the response's headers and trailers.
        """
        self._origin = parse_base_url(base_url)
        self._tls: ssl.SSLContext | None = None
        if self._origin.scheme == "https":
            self._tls = tls_context(ca_file=ca_file, verify=verify)
        self._agent = header_value("user_agent", user_agent)
        self.configure(api_key, auth, idle_limit=idle_limit, settle=settle, max_header_bytes=max_header_bytes)
        self._calls: set[Call] = set()
        # From the end of its dial until its transport is closed. Not from `connection_made`: after a
        # cancelled `create_connection` uvloop calls that one without `connection_lost`.
        self._connections: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # in order, the latest last
        self._closings: dict[Connection, Callable[[], None]] = {}  # who wants to know that it is closed
        self._tasks: set[asyncio.Task[None]] = set()
        self._emptied: asyncio.Future[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<UpstreamPool {self._origin} {self.statistics()}>"

    def configure(
        self, api_key: str | None, auth: Auth, *, idle_limit: float, settle: float, max_header_bytes: int
    ) -> None:
        """What holds for requests from now on; see `__init__`. Raises ValueError for a key of no use."""
        lines = [
            f"Host: {self._origin.authority}",
            f"User-Agent: {self._agent}",
            "Accept-Encoding: identity",
            "Content-Type: application/json",
        ]
        if api_key is not None:
            name, value = key_header(auth, header_value("api_key", api_key))
            lines.append(f"{name}: {value}")
        self._fixed_headers = "\r\n".join(lines)
        self._idle_limit = idle_limit
        self._settle = settle
        self._max_header_bytes = max_header_bytes

    def post(
        self,
        path: str,
        body: bytes,
        listener: Listener,
        *,
        accept: str = "text/event-stream",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Call:
        """Send `body` to the base URL plus `path`. Returns at once; `listener` is never called from here.

        Raises ValueError for a path or a header's value that a request cannot carry, RuntimeError after
        `aclose`.
        """
        if self._closed:
            raise RuntimeError("this pool is closed")
        more = "".join(f"{name}: {header_value(name, value)}\r\n" for name, value in headers)
        head = (
            f"POST {self._origin.target(path)} HTTP/1.1\r\n{self._fixed_headers}\r\n{more}"
            f"Accept: {header_value('accept', accept)}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode("ascii")
        call = Call(self, asyncio.get_running_loop(), listener, head, body)
        self._calls.add(call)
        return call

    def statistics(self) -> PoolStatistics:
        """How many connections and calls there are, by what they do."""
        active = sum(call.connected for call in self._calls)
        return PoolStatistics(
            idle=len(self._idle),
            active=active,
            connecting=len(self._calls) - active,
            settling=sum(connection.state is State.SETTLING for connection in self._connections),
        )

    async def aclose(self) -> None:
        """Abort every call (their listeners hear nothing), close everything, wait until it is gone."""
        self._closed = True
        for call in tuple(self._calls):
            call.abort()
        for connection in tuple(self._connections):
            connection.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)
        while self._connections:
            if self._emptied is None:
                self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)

    # --- For its calls ----------------------------------------------------------------------------

    def _take_idle(self) -> Connection | None:
        # The one used last: the least likely to have been closed meanwhile.
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.take():
                return connection
        return None

    def _spawn(self, call: Call, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        task = loop.create_task(call._connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- `upstream_http.Owner` --------------------------------------------------------------------

    def free(self, connection: Connection) -> None:
        self._idle[connection] = None
        connection.expire_after(self._idle_limit)

    def dead(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        told = self._closings.pop(connection, None)
        if told is not None:
            told()
        if not self._connections and self._emptied is not None:
            self._emptied.set_result(None)
            self._emptied = None


class Call:
    """One request and its response. `connected` and `closed` are for reading.

    `connected`: the request has a connection. `closed`: no callback will come any more.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_head",
        "_listener",
        "_loop",
        "_paused",
        "_pool",
        "_start",
        "_task",
        "closed",
        "connected",
    )

    def __init__(
        self,
        pool: UpstreamPool,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
        head: bytes,
        body: bytes,
    ) -> None:
        self._pool = pool
        self._loop = loop
        self._listener: Listener | None = listener
        self._head = head
        self._body = body
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._paused = False
        self.connected = False
        self.closed = False
        # Not now: the caller has not got this object yet. And what the loop has already read from the
        # idle connections (a FIN, above all) is seen before one of them is chosen.
        self._start: asyncio.Handle | None = loop.call_soon(self._begin)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "connected" if self.connected else "connecting"
        return f"<Call {state}>"

    def abort(self, closed: Callable[[], None] | None = None) -> None:
        """Give it up, whatever it is doing; the socket is closed at once. Idempotent.

        No callback of the listener's comes afterwards, not even in the middle of a read. `closed` is called
        once when the connection is gone; never where there was none yet.
        """
        if self.closed:
            return
        connection, connected = self._connection, self.connected
        self._close()
        if connection is not None:
            if closed is not None and connected:
                self._pool._closings[connection] = closed
            connection.abort()

    def release(self) -> None:
        """Everything that matters was heard (`[DONE]`). Idempotent, no callback afterwards.

        The connection is kept if its HTTP message ends within the pool's `settle` seconds.
        """
        if self.closed:
            return
        connection = self._connection if self.connected else None
        if connection is None:
            self.abort()
            return
        self._connection = None
        self._close()
        connection.release(self._pool._settle)

    def pause_reading(self) -> None:
        """Take no more from the upstream. The rest of the read at hand is still delivered. Idempotent."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume_reading(self) -> None:
        """Undo `pause_reading`. Idempotent."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def _close(self) -> None:
        self.closed = True
        self.connected = False
        self._connection = self._listener = None
        self._body = b""
        self._pool._calls.discard(self)
        if self._start is not None:
            self._start.cancel()
            self._start = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # --- Getting a connection ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._start = None
        connection = self._pool._take_idle()
        if connection is None:
            self._task = self._pool._spawn(self, self._loop)
        else:
            self._connection = connection
            self._use(connection, reused=True)

    async def _connect(self) -> None:
        try:
            connection = await dial(self._pool._origin, self._pool._tls, self._make_connection)
        except DialError as error:
            failure = Failure("tls" if error.kind == "tls" else "connect", str(error), before_response=True)
        except Exception as error:  # noqa: BLE001  a call must end even where this module is wrong
            report(self._loop, error)
            failure = Failure("connect", "the connection could not be opened", before_response=True)
        else:
            self._task = None
            if connection.state is not State.DEAD:
                self._pool._connections.add(connection)
            self._use(connection, reused=False)
            return
        self._task = None
        self.lost(failure, stale=False)

    def _make_connection(self) -> Connection:
        # Kept from here on: an abort during the TLS handshake must reach it.
        pool = self._pool
        self._connection = Connection(self._loop, pool, max_header_bytes=pool._max_header_bytes)
        return self._connection

    def _use(self, connection: Connection, *, reused: bool) -> None:
        listener = self._listener
        if listener is None:
            return
        if connection.state is State.DEAD:
            self.lost(
                Failure("reset", "the upstream closed the connection before the request was sent", True),
                stale=False,
            )
            return
        self.connected = True
        try:
            listener.on_open()
        except Exception as error:  # noqa: BLE001  handed to the loop's exception handler
            self.abort()
            report(self._loop, error)
        if not self.closed:
            body = self._body
            if not reused:
                self._body = b""  # a fresh connection's request is never repeated: the memory can go
            connection.start(self, listener, self._head, body, reused=reused, paused=self._paused)

    # --- `upstream_http.Caller` -------------------------------------------------------------------

    def answered(self) -> None:
        self._body = b""

    def ended(self) -> None:
        self._close()

    def blamed(self) -> None:
        self._close()

    def lost(self, failure: Failure, *, stale: bool) -> None:
        self._connection = None
        self.connected = False
        if stale:
            self._task = self._pool._spawn(self, self._loop)
            return
        listener = self._listener
        self._close()
        if listener is not None:
            try:
                listener.on_lost(failure)
            except Exception as error:  # noqa: BLE001  handed to the loop's exception handler
                report(self._loop, error)
