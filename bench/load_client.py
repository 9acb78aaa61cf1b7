"""The bench's clients: many streams that are only counted, single ones that are timed, rude ones that leave.

Owns client sockets and their clocks. It decides nothing about rounds or arms; stream_cpu.py does. Events
are counted by their blank lines, which is exact for both protocols: neither has a raw line feed inside
an event.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import time
from typing import Any

import control
import meters
import wire

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close() sends RST


class Tally:
    """Sums over all counted streams since the start."""

    events = 0
    reads = 0
    octets = 0
    begun = 0  # streams that have had their first content
    refused = 0
    lost = 0  # streams that ended although their upstream has no end


tally = Tally()
streams: set[CountedStream] = set()
stalled: list[socket.socket] = []


class CountedStream(asyncio.Protocol):
    """A stream without an end. Costs one `bytes.count` for a read."""

    def __init__(self, request: bytes, mark: bytes) -> None:
        self._request = request
        self._mark: bytes | None = mark
        self._start = b""
        self._line_ended = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        tally.reads += 1
        tally.octets += len(data)
        found = data.count(b"\n\n")
        if self._line_ended and data[0] == 10:
            found += 1
        self._line_ended = data[-1] == 10
        tally.events += found
        if self._mark is not None:
            self._start += data
            if self._mark in self._start:
                self._mark = None
                tally.begun += 1
            elif not self._start.startswith(b"HTTP/1.1 200"):
                tally.refused += 1

    def connection_lost(self, exc: Exception | None) -> None:
        if self in streams:
            streams.discard(self)
            tally.lost += 1


async def open_streams(*, port: int, surface: str, model: str, streams_wanted: int, within: float) -> None:
    """Open streams at an even pace; returns when each has had content. Raises RuntimeError after 30 s."""
    loop = asyncio.get_running_loop()
    wire_request, mark = wire.request(surface, model), wire.FIRST_CONTENT[surface]
    wanted = tally.begun + streams_wanted
    for _ in range(streams_wanted):
        stream = CountedStream(wire_request, mark)
        streams.add(stream)
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", port)
        await asyncio.sleep(within / streams_wanted)
    deadline = loop.time() + 30
    while tally.begun < wanted:
        if loop.time() > deadline or tally.refused:
            raise RuntimeError(f"{wanted - tally.begun} of {streams_wanted} streams have no content")
        await asyncio.sleep(0.02)


def count() -> dict[str, Any]:
    """The sums, and how many streams are open."""
    return {
        "at": time.monotonic(),
        "events": tally.events,
        "reads": tally.reads,
        "octets": tally.octets,
        "lost": tally.lost,
        "open": len(streams),
    }


async def close_streams() -> None:
    """Leave all streams."""
    leaving = list(streams)
    streams.clear()
    for stream in leaving:
        if stream.transport is not None:
            stream.transport.abort()
    await asyncio.sleep(0)


# --- time to first content ---


class TimedStream(asyncio.Protocol):
    """A client connection that sends request after request, each with an end."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._mark = b""
        self._first: float | None = None
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def ask(self, request: bytes, mark: bytes) -> float:
        """Seconds from the request's write to the read that has the first content."""
        assert self._transport is not None
        self._received, self._mark, self._first = b"", mark, None
        self._done = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self._transport.write(request)
        await asyncio.wait_for(self._done, 30)
        if self._first is None:
            raise RuntimeError(f"no content: {self._received[:200]!r}")
        return self._first - start

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._received += data
        if self._first is None and self._mark in self._received:
            self._first = now
        if data.endswith(b"0\r\n\r\n") and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(RuntimeError(f"lost after {self._received[:200]!r}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _connected(port: int) -> TimedStream:
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(TimedStream, "127.0.0.1", port)
    return stream


async def first_content_alone(*, arms: list[list[Any]], trials: int, fresh: bool) -> dict[str, list[float]]:
    """One stream at a time, the arms in random order in each trial. Arms are [name, port, surface].

    `fresh`: a new client connection for each request, its opening included; else one is kept for each arm.
    """
    model = wire.script("paced", count=2, rate=50)
    kept = {name: await _connected(port) for name, port, _ in arms}
    times: dict[str, list[float]] = {name: [] for name in kept}
    for trial in range(-5, trials):  # the first five warm up
        for name, port, surface in random.sample(arms, len(arms)):
            start = time.perf_counter()
            stream = await _connected(port) if fresh else kept[name]
            opening = time.perf_counter() - start if fresh else 0.0
            waited = await stream.ask(wire.request(surface, model), wire.FIRST_CONTENT[surface])
            if fresh:
                stream.close()
            if trial >= 0:
                times[name].append(opening + waited)
    for stream in kept.values():
        stream.close()
    return times


async def first_content_among(*, port: int, surface: str, lanes: int, seconds: float) -> list[float]:
    """`lanes` clients at once, each with one 0.5 s stream of 50 events/s after another, at random moments."""
    request, mark = (
        wire.request(surface, wire.script("paced", count=25, rate=50)),
        wire.FIRST_CONTENT[surface],
    )
    times: list[float] = []
    end = time.monotonic() + seconds

    async def lane() -> None:
        await asyncio.sleep(random.random() * 0.5)
        stream = await _connected(port)
        await stream.ask(request, mark)  # warms up
        while time.monotonic() < end:
            await asyncio.sleep(random.random() * 0.05)
            times.append(await stream.ask(request, mark))
        stream.close()

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return times


async def first_content_at_once(*, port: int, surface: str, lanes: int, trials: int) -> list[float]:
    """`lanes` requests in the same instant, again and again: each waits for those before it."""
    request, mark = wire.request(surface, wire.script("paced", count=2, rate=50)), wire.FIRST_CONTENT[surface]
    kept = [await _connected(port) for _ in range(lanes)]
    times: list[float] = []
    for trial in range(-1, trials):
        found = await asyncio.gather(*(stream.ask(request, mark) for stream in kept))
        if trial >= 0:
            times.extend(found)
        await asyncio.sleep(0.02)
    for stream in kept:
        stream.close()
    return times


# --- clients that do not read, clients that leave ---


def stall(*, port: int, surface: str, clients: int) -> None:
    """Ask for an endless answer at full speed and never read it."""
    for _ in range(clients):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.sendall(wire.request(surface, wire.script("flood")))
        stalled.append(sock)


def unstall() -> None:
    """Let them leave."""
    while stalled:
        stalled.pop().close()


async def leave(
    *, port: int, surface: str, mode: str, how: str, first_number: int, trials: int, lanes: int
) -> dict[int, float]:
    """Ask, wait 40 to 60 ms, close with FIN or RST. Returns the moment of each number's close."""
    closed: dict[int, float] = {}
    numbers = iter(range(first_number, first_number + trials))
    lock = threading.Lock()

    def lane() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            model = wire.script(mode, rate=50, number=number)
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(wire.request(surface, model))
            end = time.monotonic() + 0.04 + random.random() * 0.02
            # Reading goes on meanwhile: what is unread turns a FIN into an RST.
            while (left := end - time.monotonic()) > 0:
                sock.settimeout(left)
                try:
                    if not sock.recv(65536):
                        raise RuntimeError(f"the server ended {model}")
                except TimeoutError:
                    break
            if how == "rst":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            closed[number] = time.monotonic()
            sock.close()

    await asyncio.gather(*(asyncio.to_thread(lane) for _ in range(lanes)))
    return closed


if __name__ == "__main__":
    meters.raise_descriptor_limit()
    control.serve(
        {
            "open_streams": open_streams,
            "count": count,
            "close_streams": close_streams,
            "first_content_alone": first_content_alone,
            "first_content_among": first_content_among,
            "first_content_at_once": first_content_at_once,
            "stall": stall,
            "unstall": unstall,
            "leave": leave,
        }
    )
