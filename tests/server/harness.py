"""A whole gateway in the test's own event loop: its server, a scripted upstream, raw clients, no real time.

The server is the production's protocol and settings on 127.0.0.1 port 0; the clock stands still until a
test moves it. Upstream and clients are bare protocols (no task of theirs can be mistaken for the
gateway's). `House` looks at everything that may be left behind, after every test.

    @on_both_loops
    async def test_x() -> None:
        async with House(slots=1) as house:
            client = await house.ask(stream=True)
            visit = await house.visit()
            visit.head()
            visit.text("Hi")
            await client.event("content_block_delta")
            client.rst()
            await visit.closed.wait()
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
import structlog
import uvicorn
import uvloop
from structlog.testing import LogCapture

from antiphon.config import Limits, Settings, UpstreamSettings
from antiphon.server.app import Gateway
from antiphon.server.fleet import Fleet
from antiphon.server.serve import server_config
from pipeline import judge, run

PATIENCE = 60.0
"""Seconds after which a test is given up. Nothing is measured with it."""

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def on_loops(*names: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an `async def` test on these loops, with a bound on its time."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @pytest.mark.parametrize("new_loop", [LOOPS[name] for name in names], ids=names)
        @functools.wraps(test)
        def run(*, new_loop: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
            async def bounded() -> None:
                async with asyncio.timeout(PATIENCE):
                    await test(**arguments)

            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(bounded())

        own = inspect.signature(test)
        extra = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = own.replace(parameters=[*own.parameters.values(), extra])
        del run.__wrapped__  # pytest-asyncio must not find the coroutine
        return run

    return decorate


on_both_loops = on_loops("asyncio", "uvloop")
on_uvloop = on_loops("uvloop")
on_asyncio = on_loops("asyncio")


async def until(true: Callable[[], bool]) -> None:
    """Wait for what has no event of its own."""
    while not true():
        await asyncio.sleep(0.001)


async def turns(count: int = 5) -> None:
    """Let everything that is already there be seen: a few turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def sockets() -> set[str]:
    names = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                names.add(name)
    return names


def reset(transport: asyncio.Transport) -> None:
    """Close with RST."""
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# --- The upstream -----------------------------------------------------------------------------------


def frame(delta: dict | None = None, *, finish: str | None = None, **more: Any) -> bytes:
    """One SSE frame of a Chat Completions stream."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **more}
    if "choices" not in more:
        chunk["choices"] = [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def tool(arguments: str = "", *, index: int = 0, call_id: str | None = None, name: str | None = None) -> dict:
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if call_id:
        call |= {"id": call_id, "type": "function"}
    if name:
        call["function"]["name"] = name
    return {"tool_calls": [call]}


USAGE = frame(choices=[], usage={"prompt_tokens": 21, "completion_tokens": 5, "total_tokens": 26})
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class UpstreamSide(asyncio.Protocol):
    """The upstream's end of one connection."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self.upstream = upstream
        self._data = b""
        self.closed = asyncio.Event()
        self.transport: asyncio.Transport
        self.bytes_paused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.upstream.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, rest = self._data.split(b"\r\n\r\n", 1)
            line, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
            length = int(headers.get("content-length", 0))
            if len(rest) < length:
                return
            body, self._data = rest[:length], rest[length:]
            if line.startswith("POST /v1/chat/completions "):
                self.upstream.arrived(Visit(self, headers, body))
            else:  # a question about models, tokenizers, slots
                self.transport.write(self.upstream.fact(line.split(" ")[1]))

    def eof_received(self) -> None:
        self.closed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def pause_writing(self) -> None:
        self.bytes_paused = True

    def resume_writing(self) -> None:
        self.bytes_paused = False


class Visit:
    """One inference request as the upstream saw it, and its answer's other end."""

    def __init__(self, side: UpstreamSide, headers: dict[str, str], body: bytes) -> None:
        self.side = side
        self.headers = headers
        self.body = json.loads(body)
        self.tag = self.body["messages"][-1]["content"]

    @property
    def at(self) -> str:
        """The name of the upstream that it came to."""
        return self.side.upstream.name

    @property
    def closed(self) -> asyncio.Event:
        """The upstream saw its connection end."""
        return self.side.closed

    def raw(self, data: bytes) -> None:
        """Into the wind, if the gateway has gone: uvloop does not take that kindly."""
        if not self.side.transport.is_closing():
            self.side.transport.write(data)

    def head(self) -> None:
        self.raw(SSE_HEAD)

    def send(self, *frames: bytes) -> None:
        self.raw(b"".join(map(chunk, frames)))

    def text(self, text: str) -> None:
        self.send(frame({"content": text}))

    def finish(self, reason: str = "stop") -> None:
        self.send(frame(finish=reason))

    def done(self) -> None:
        self.raw(chunk(DONE) + b"0\r\n\r\n")

    def answer(self, text: str = "ok") -> None:
        """A whole answer in one write."""
        frames = [frame({"content": text}), frame(finish="stop"), USAGE, DONE]
        self.raw(SSE_HEAD + b"".join(map(chunk, frames)) + b"0\r\n\r\n")

    def refuse(self, status: int, body: bytes = b'{"error":{"message":"no"}}', headers: str = "") -> None:
        self.raw(f"HTTP/1.1 {status} No\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body)

    def cut(self) -> None:
        self.side.transport.close()

    def reset(self) -> None:
        if not self.side.transport.is_closing():
            reset(self.side.transport)


@contextlib.contextmanager
def deaf_listener() -> Iterator[int]:
    """A port whose backlog is full: the kernel leaves every further connect without an answer."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        while True:
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.05)
            try:
                filler.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield port


class ScriptedUpstream:
    def __init__(self, name: str = "up", port: int = 0) -> None:
        self.name = name
        self.port = port  # 0: a free one, from `start` on
        self.facts: dict[str, Any] = {}  # what it answers to GETs, by path; 404 to all others
        self.connections: list[UpstreamSide] = []
        self.visits: list[Visit] = []
        self._fresh: asyncio.Queue[Visit] = asyncio.Queue()
        self.answering: Callable[[Visit], None] | None = None  # instead of the queue

    def fact(self, path: str) -> bytes:
        """The answer to a question that is no inference."""
        status = "200 OK" if path in self.facts else "404 Not Found"
        body = json.dumps(self.facts.get(path, {})).encode()
        return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    def arrived(self, visit: Visit) -> None:
        self.visits.append(visit)
        if self.answering is not None:
            self.answering(visit)
        else:
            self._fresh.put_nowait(visit)

    async def next(self) -> Visit:
        return await self._fresh.get()

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: UpstreamSide(self), "127.0.0.1", self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for side in self.connections:
            side.transport.abort()
        await self._server.wait_closed()


# --- The client -------------------------------------------------------------------------------------


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    size: int  # bytes on the wire, if complete
    head: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict]:
        """What a stream said in whole frames so far; every frame must be well-formed."""
        whole = self.body[: self.body.rfind(b"\n\n") + 2] if b"\n\n" in self.body else b""
        events, problems = run.decode_sse(whole)
        assert not problems, problems
        return events

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def text(self) -> str:
        deltas = [event["delta"] for event in self.events if event["type"] == "content_block_delta"]
        return "".join(delta.get("text", "") for delta in deltas)

    @property
    def error(self) -> dict:
        return next(event for event in self.events if event["type"] == "error")


def parse_response(data: bytes, *, ended: bool = False, head_only: bool = False) -> Response | None:
    """The first response in `data`, as far as it has come; `ended`: no more will come."""
    while data.startswith(b"HTTP/1.1 100 "):
        data = data.partition(b"\r\n\r\n")[2]
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return None
    line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
    status, before = int(line.split()[1]), len(head) + 4
    if head_only:
        return Response(status, headers, b"", True, before, head)
    if headers.get("transfer-encoding") == "chunked":
        body, position = [], 0
        while True:
            end = rest.find(b"\r\n", position)
            size = int(rest[position:end], 16) if end >= 0 else -1
            if size < 0 or len(rest) < end + 2 + size + 2:
                partial = rest[end + 2 : end + 2 + size] if size > 0 else b""
                return Response(status, headers, b"".join(body) + partial, False, 0, head)
            body.append(rest[end + 2 : end + 2 + size])
            assert rest[end + 2 + size : end + 4 + size] == b"\r\n"
            position = end + 4 + size
            if size == 0:
                return Response(status, headers, b"".join(body), True, before + position, head)
    if "content-length" in headers:
        size = int(headers["content-length"])
        return Response(status, headers, rest[:size], len(rest) >= size, before + size, head)
    return Response(status, headers, rest, ended, before + len(rest), head)


class Client(asyncio.Protocol):
    """A client's raw connection. `data` is everything that came since the last response was taken."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.data = bytearray()
        self.received = 0
        self.ended = False
        self.transport: asyncio.Transport
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.received += len(data)
        self._news.set()

    def eof_received(self) -> bool:
        self.ended = True
        self._news.set()
        return True  # ours stays open until the test closes it

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._news.set()

    async def until(self, true: Callable[[], Any]) -> Any:
        while not (value := true()):
            self._news.clear()
            await self._news.wait()
        return value

    @property
    def port(self) -> int:
        return self.transport.get_extra_info("sockname")[1]

    @property
    def edge(self) -> Any:
        """The server's protocol object of this connection."""
        return next(edge for edge in self.house.gateway.edges if edge.client[1] == self.port)

    # what it says

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def ask(self, tag: str = "hi", **fields: Any) -> None:
        self.send(post(tag, **fields))

    def fin(self) -> None:
        """Go: with everything, in order."""
        self.transport.close()

    def rst(self) -> None:
        reset(self.transport)

    def half_close(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        self.transport.write_eof()

    def stop_reading(self) -> None:
        self.transport.pause_reading()

    def read_on(self) -> None:
        self.transport.resume_reading()

    # what it hears

    @property
    def so_far(self) -> Response | None:
        return parse_response(bytes(self.data), ended=self.ended)

    async def status(self) -> int:
        return (await self.until(lambda: self.so_far)).status

    async def response(self, *, head_only: bool = False) -> Response:
        """The next whole response; it is taken out of `data`."""

        def whole() -> Response | None:
            if len(self.data) > 100_000 and b"chunked" in self.data[:500] and not self.ended:
                if not self.data.endswith(b"0\r\n\r\n"):
                    return None  # a large one is not parsed at each of its pieces
            response = parse_response(bytes(self.data), ended=self.ended, head_only=head_only)
            assert response is not None or not self.ended, f"closed without a response: {bytes(self.data)!r}"
            return response if response is not None and (response.complete or self.ended) else None

        response: Response = await self.until(whole)
        if response.complete:
            del self.data[: response.size]
        return response

    async def event(self, kind: str, count: int = 1) -> list[dict]:
        """Wait until the running stream has said `kind` so often. Returns all its events so far."""

        def heard() -> list[dict] | None:
            response = self.so_far
            events = response.events if response is not None else []
            if [event["type"] for event in events].count(kind) >= count:
                return events
            assert not self.ended and not (response and response.complete), f"ended without {kind}: {events}"
            return None

        return await self.until(heard)

    async def gone(self) -> None:
        """The server has closed or reset the connection."""
        await self.until(lambda: self.ended)

    def legal(self) -> list[dict]:
        """What came so far is the beginning of a legal stream, if it is a stream. Returns its events."""
        response = self.so_far
        if response is None or response.headers.get("content-type") != "text/event-stream; charset=utf-8":
            return []
        violations = judge.violations(response.events, prefix=True)
        assert not violations, violations
        return response.events


def body_of(tag: str = "hi", **fields: Any) -> bytes:
    message = {"model": "m", "max_tokens": 64, "stream": True, "messages": [{"role": "user", "content": tag}]}
    return json.dumps({**message, **fields}).encode()


def request(
    body: bytes,
    *,
    method: str = "POST",
    path: str = "/v1/messages",
    headers: str = "",
    length: int | None = None,
    version: str = "1.1",
) -> bytes:
    size = len(body) if length is None else length
    return (
        f"{method} {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {size}\r\n\r\n"
    ).encode() + body


def post(tag: str = "hi", *, headers: str = "", version: str = "1.1", **fields: Any) -> bytes:
    return request(body_of(tag, **fields), headers=headers, version=version)


# --- The house --------------------------------------------------------------------------------------


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "uvicorn.error" and record.levelno <= logging.INFO:
            return  # it starts, it stops
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")


@dataclass
class House:
    """A gateway with one upstream. Leaving it checks that nothing at all is left."""

    slots: int = 4
    profile: str = "generic"
    limits: dict[str, Any] = field(default_factory=dict)
    strict: bool = False
    upstream_url: str | None = None
    sndbuf: int | None = None  # of the gateway's client sockets: small ones are full soon
    sayings: tuple[str, ...] = ("exchange", "draining", "refused", "upstream_lost")  # what its log may say

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.upstream = ScriptedUpstream()
        self.clients: list[Client] = []
        self.raised: list[dict] = []  # what the loop's exception handler was told
        self.records = Records()
        self.said = LogCapture()

    async def __aenter__(self) -> Self:
        gc.freeze()  # what is here already need not be looked through at the end
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets()
        self._loop.set_exception_handler(lambda _, context: self.raised.append(context))
        self._old_structlog = structlog.get_config()
        structlog.configure(
            processors=[self.said], wrapper_class=structlog.BoundLogger, cache_logger_on_first_use=False
        )
        self._root = logging.getLogger()
        self._level = self._root.level
        self._root.addHandler(self.records)
        self._root.setLevel(logging.DEBUG)
        for scripted in self.scripted:
            await scripted.start()
        settings = self.settings()
        self.backend = Fleet(settings, clock=self.clock, probes=False)
        self.gateway = Gateway(settings, self.backend, clock=self.clock)
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        if self.sndbuf:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.sndbuf)
        self.port = listener.getsockname()[1]
        config = server_config(self.gateway)
        config.load()
        self.server = uvicorn.Server(config)
        self.server.lifespan = config.lifespan_class(config)
        await self.server.startup(sockets=[listener])
        await self.server.on_tick(0)
        looks = list(self.backend._tasks)  # at the upstream's models: no request's work
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        await until(lambda: len(asyncio.all_tasks()) <= 3)  # the test, the lifespan, the ticker
        self._tasks = asyncio.all_tasks()
        return self

    @property
    def scripted(self) -> list[ScriptedUpstream]:
        """Every upstream that it has, or has had."""
        return [self.upstream]

    def settings(self) -> Settings:
        """What the gateway runs with."""
        one = UpstreamSettings(
            name="up",
            base_url=self.upstream_url or f"http://127.0.0.1:{self.upstream.port}/v1",
            slots=self.slots,
            kind=self.profile,
        )
        return Settings(
            upstreams=(one,), limits=Limits(**{"tick": 3600.0, **self.limits}), port=0, strict=self.strict
        )

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                await self._close_clients()
                await self.check()
        finally:
            for server in self.server.servers:
                server.close()
            for client in self.clients:
                client.transport.abort()
            for edge in list(self.gateway.edges):
                edge.transport.abort()
            await self.server.lifespan.shutdown()
            for scripted in self.scripted:
                await scripted.stop()
            self._root.removeHandler(self.records)
            self._root.setLevel(self._level)
            structlog.configure(**self._old_structlog)
        if kind is None:
            await until(lambda: not self.gateway.edges)
            await until(lambda: not sockets() - self._sockets)
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
            gc.collect()  # "exception was never retrieved" is said by a destructor
            gc.unfreeze()
            self._check_said()

    async def _close_clients(self) -> None:
        for client in self.clients:
            client.transport.abort()
        await until(lambda: not self.gateway.edges)

    async def check(self) -> None:
        """After-check: of all requests so far nothing is left but their records."""
        await until(lambda: not self.gateway.live)
        for upstream in self.backend.upstreams.values():
            stats, pool = upstream.slots.statistics, upstream.pool.statistics
            await until(lambda stats=stats: stats().held == stats().draining == stats().waiting == 0)
            await until(lambda pool=pool: pool().active == pool().connecting == pool().settling == 0)
        await until(lambda: asyncio.all_tasks() == self._tasks)
        await until(lambda: not self.server.server_state.tasks)
        idle = sum(upstream.pool.statistics().idle for upstream in self.backend.upstreams.values())
        await until(lambda: sum(not side.closed.is_set() for side in self._inference_sides()) <= idle)
        self._check_said()

    def _inference_sides(self) -> set[UpstreamSide]:
        return {visit.side for scripted in self.scripted for visit in scripted.visits}

    def _check_said(self) -> None:
        assert self.raised == [], self.raised
        assert self.records.lines == [], self.records.lines
        odd = [entry for entry in self.said.entries if entry["event"] not in self.sayings]
        assert odd == [], odd
        for entry in self.said.entries:
            trouble = entry.get("cause") in ("upstream", "deadline", "shutdown", "lost", "internal")
            loud = trouble or entry["event"] == "upstream_lost"
            assert entry["log_level"] == ("warning" if loud else "info"), entry

    # --- what a test does ---

    @property
    def up(self) -> Any:
        return self.backend.upstreams["up"]

    @property
    def stats(self) -> tuple[int, int, int]:
        """Slots: (held, draining, waiting)."""
        now = self.up.slots.statistics()
        return now.held, now.draining, now.waiting

    async def client(self, *, rcvbuf: int | None = None) -> Client:
        sock = socket.socket()
        sock.setblocking(False)
        if rcvbuf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        await self._loop.sock_connect(sock, ("127.0.0.1", self.port))
        _, client = await self._loop.create_connection(lambda: Client(self), sock=sock)
        self.clients.append(client)
        return client

    async def ask(self, tag: str = "hi", *, rcvbuf: int | None = None, **fields: Any) -> Client:
        client = await self.client(rcvbuf=rcvbuf)
        client.ask(tag, **fields)
        return client

    async def visit(self) -> Visit:
        return await self.upstream.next()

    async def waiting(self, count: int) -> None:
        """Until so many requests wait for a slot."""
        await until(lambda: self.stats[2] == count)

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.now += seconds
        self.gateway.tick(self.clock.now)

    def exchange(self) -> Any:
        (exchange,) = self.gateway.live
        return exchange

    def exchange_of(self, tag: str) -> Any:
        """The running exchange whose request says this."""
        said = json.dumps(tag).encode()
        return next(exchange for exchange in self.gateway.live if said in exchange.job.plan.chat.body)

    @property
    def records_written(self) -> list[dict]:
        return [entry for entry in self.said.entries if entry["event"] == "exchange"]

    async def record(self) -> dict:
        """The log record of the last exchange that ended."""
        count = len(self.records_written)
        await until(lambda: not self.gateway.live and len(self.records_written) >= max(count, 1))
        return self.records_written[-1]

    def take_bug(self) -> dict:
        """The one `internal` log line of a bug that a test made; its fields hold no content."""
        bugs = [entry for entry in self.said.entries if entry["event"] == "internal"]
        assert len(bugs) == 1, self.said.entries
        self.said.entries.remove(bugs[0])
        return bugs[0]
