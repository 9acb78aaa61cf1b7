"""A raw-socket upstream for tests, a listener that records, and the loops that everything runs on.

The server speaks no HTTP: a test accepts a connection and writes the bytes of its case, so that a test
reads like a transcript of the wire. `on_both_loops` runs a coroutine on asyncio's own loop and on
uvloop, and fails it if anything is left behind: a socket, a task, a log line, an exception.

    @on_both_loops
    async def test_x() -> None:
        async with raw_server() as server, pool_for(server) as pool:
            heard = Recorder()
            pool.post("/chat/completions", b"{}", heard)
            peer = await server.accept()
            await peer.request()
            peer.send(b"HTTP/1.1 204 No Content\r\n\r\n")
            await heard.over()
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from antiphon.server.upstream import Failure, PoolStatistics, UpstreamPool

PATIENCE = 20.0
"""Seconds after which a test is given up. Nothing is measured with it."""

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@dataclass
class Leftovers:
    """What the loop's exception handler was told; a test that expects something takes it out."""

    contexts: list[dict[str, Any]] = field(default_factory=list)

    def take(self) -> list[BaseException]:
        taken = [context["exception"] for context in self.contexts]
        self.contexts.clear()
        return taken


leftovers = Leftovers()


def sockets() -> set[str]:
    """The sockets that this process has open."""
    names = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                names.add(name)
    return names


async def _watched(test: Callable[[], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    leftovers.contexts.clear()
    loop.set_exception_handler(lambda _, context: leftovers.contexts.append(context))
    records, root = Records(), logging.getLogger()
    level, before = root.level, sockets()
    gc.freeze()  # what is there already need not be walked through in the end
    root.addHandler(records)
    root.setLevel(logging.DEBUG)
    try:
        async with asyncio.timeout(PATIENCE):
            await test()
            await until(lambda: not sockets() - before)
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    finally:
        gc.collect()  # "exception was never retrieved" is said by a destructor
        gc.unfreeze()
        root.removeHandler(records)
        root.setLevel(level)
    assert leftovers.contexts == []
    assert records.lines == []


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an `async def` test on both loops, and look at what it leaves behind."""

    @pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
    @functools.wraps(test)
    def run(*, new_loop: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_watched(functools.partial(test, **arguments)))

    own = inspect.signature(test)
    extra = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), extra])  # type: ignore[attr-defined]
    del run.__wrapped__  # pytest-asyncio must not find the coroutine
    return run


async def until(true: Callable[[], bool]) -> None:
    """Wait for what has no event of its own."""
    while not true():
        await asyncio.sleep(0.001)


class Recorder:
    """A listener that writes down what it hears. `do["body"] = f` calls `f()` inside that callback."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.failure: Failure | None = None
        self.do: dict[str, Callable[[], Any]] = {}
        self._news = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def kind(self) -> str | None:
        return self.failure and self.failure.kind

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        self._news.set()
        if what in self.do:
            self.do[what]()

    def on_open(self) -> None:
        self._hear("open")

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        self._hear("head")

    def on_body(self, data: bytes) -> None:
        assert type(data) is bytes and data
        self.pieces.append(data)
        self._hear("body")

    def on_read(self) -> None:
        self._hear("read")

    def on_end(self) -> None:
        self._hear("end")

    def on_lost(self, failure: Failure) -> None:
        self.failure = failure
        self._hear("lost")

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._news.clear()
            await self._news.wait()

    async def hears(self, what: str) -> None:
        await self.until(lambda: what in self.heard)

    async def over(self) -> None:
        """Wait for the last callback: `on_lost`, or the `on_read` behind `on_end`."""
        await self.until(lambda: "lost" in self.heard or self.heard[-2:] == ["end", "read"])


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> Request:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("ascii")
        line, *rest = text.removesuffix("\r\n\r\n").split("\r\n")
        headers = [header.split(": ", 1) for header in rest]
        names = [name.lower() for name, _ in headers]
        assert len(set(names)) == len(names)
        return Request(line, dict(zip(names, (value for _, value in headers), strict=True)), b"")

    async def request(self) -> Request:
        request = await self.head()
        request.body = await self.reader.readexactly(int(request.headers["content-length"]))
        return request

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, data: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") -> Request:
        request = await self.request()
        self.send(data)
        return request

    def finish(self) -> None:
        """Close in order: FIN."""
        self.writer.close()

    def reset(self) -> None:
        """Close with RST."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed the connection, with FIN or with RST."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.writer.close()


class RawServer:
    def __init__(self, port: int, *, tls: bool) -> None:
        self.port = port
        self.accepted = 0
        self.peers: list[Peer] = []
        self._queue: asyncio.Queue[Peer] = asyncio.Queue()
        self.base_url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        peer = Peer(reader, writer)
        self.peers.append(peer)
        self._queue.put_nowait(peer)

    async def accept(self) -> Peer:
        return await self._queue.get()


@contextlib.asynccontextmanager
async def raw_server(ssl: Any = None, limit: int = 65536) -> AsyncIterator[RawServer]:
    """Listen on 127.0.0.1. `limit`: how much a peer reads ahead of its test."""
    sock = socket.create_server(("127.0.0.1", 0))
    server = RawServer(sock.getsockname()[1], tls=ssl is not None)
    listening = await asyncio.start_server(server.connected, sock=sock, ssl=ssl, limit=limit)
    try:
        yield server
    finally:
        listening.close()
        for peer in server.peers:
            peer.writer.transport.abort()
        await listening.wait_closed()


@contextlib.asynccontextmanager
async def pool_for(server: RawServer, **options: Any) -> AsyncIterator[UpstreamPool]:
    """A pool whose base URL is the server; closed at the end, which must leave it empty.

    It keeps idle connections for longer than any test: what closes one was the test's doing.
    """
    pool = UpstreamPool(**{"base_url": server.base_url, "idle_limit": 2 * PATIENCE, **options})
    try:
        yield pool
    finally:
        await pool.aclose()
    assert pool.statistics() == PoolStatistics(idle=0, active=0, connecting=0, settling=0)
