"""The bench's upstream: an OpenAI-style server that costs as little CPU as Python can.

Owns one listening socket. All bytes are made before (wire.py); each event is one write; streams of one
rate share one timer, which spreads them evenly over their period, as sequences of several servers would
come. It checks nothing of what it is asked. The mode stands in the model's name:

    paced     head, role and the first event at once, then events at RATE per second, COUNT in all (0: no end)
    flood     as fast as the reader takes it: 2 MiB in large events, then small ones without end
    prefill   a head, then silence
    silent    nothing at all

Requests with an ID other than 0 have the moments of their arrival and of their socket's end recorded on
CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import control
import meters
import wire

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SCRIPT = re.compile(rb'"model": ?"([a-z]+)\.(\d+)\.(\d+)\.(\d+)"')

SPREAD = 20  # moments in a period at which a share of the streams is written


class Totals:
    """What was done since the start. Read by the `count` command."""

    events = 0  # of paced streams
    held_back = 0  # events that were due while their reader was behind; they are not sent later
    flooded = 0  # bytes
    requests = 0
    latest = 0.0  # seconds that a timer came late, the worst since the last `count`
    arrived: dict[int, float] = {}
    gone: dict[int, float] = {}


totals = Totals()
connections: set[Upstream] = set()
pacers: dict[int, Pacer] = {}


class Pacer:
    """One timer for all streams of one rate. It stands still while there are none."""

    def __init__(self, rate: int) -> None:
        self._step = 1 / rate / SPREAD
        self._shares: list[set[Upstream]] = [set() for _ in range(SPREAD)]
        self._share_of: dict[Upstream, set[Upstream]] = {}
        self._turn = 0
        self._due = 0.0

    def add(self, stream: Upstream) -> None:
        if not self._share_of:
            self._due = time.monotonic() + self._step
            asyncio.get_running_loop().call_later(self._step, self._run)
        share = min(self._shares, key=len)
        share.add(stream)
        self._share_of[stream] = share

    def discard(self, stream: Upstream) -> None:
        share = self._share_of.pop(stream, None)
        if share is not None:
            share.discard(stream)

    def __len__(self) -> int:
        return len(self._share_of)

    def _run(self) -> None:
        if not self._share_of:
            return
        now = time.monotonic()
        totals.latest = max(totals.latest, now - self._due)
        while self._due <= now:
            share = self._shares[self._turn]
            for stream in tuple(share):
                stream.send_next()
            self._turn = (self._turn + 1) % SPREAD
            self._due += self._step
        # uvloop counts whole milliseconds, and less than one would spin
        asyncio.get_running_loop().call_later(max(0.001, self._due - now), self._run)


class Upstream(asyncio.Protocol):
    """One connection of a proxy, or of the client directly."""

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport
        self._pacer: Pacer | None = None
        self._left = 0  # events to send; 0: without end
        self._position = 0
        self._number = 0
        self._flooding = False
        self._paused = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not separator or (length is not None and len(body) < int(length[1])):
            return
        self._received = b""
        told = _SCRIPT.search(body)
        if told is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")
            return
        totals.requests += 1
        self._begin(told[1].decode(), int(told[2]), int(told[3]), int(told[4]))

    def _begin(self, mode: str, count: int, rate: int, number: int) -> None:
        self._number = number
        if number:
            totals.arrived[number] = time.monotonic()
        if mode == "silent":
            return
        if mode == "prefill":
            self._transport.write(wire.HEAD)
            return
        self._transport.write(wire.HEAD + wire.OPENING + (wire.EVENTS[0] if mode == "paced" else b""))
        if mode == "flood":
            self._flooding = True
            self._flood()
            return
        totals.events += 1
        self._left, self._position = count, 1
        self._pacer = pacers.setdefault(rate, Pacer(rate))
        self._pacer.add(self)

    def send_next(self) -> None:
        """One event, in one write."""
        if self._paused:
            totals.held_back += 1
            return
        position = self._position
        if position == self._left and position:
            self._transport.write(wire.ENDING)
            self._stop()
            return
        self._transport.write(wire.EVENTS[position % len(wire.EVENTS)])
        totals.events += 1
        self._position = position + 1

    def _flood(self) -> None:
        while self._flooding and not self._paused:
            piece = wire.FLOOD_FILLING if self._position < wire.FLOOD_FILLINGS else wire.FLOOD
            self._transport.write(piece)
            self._position += 1
            totals.flooded += len(piece)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flood()

    def eof_received(self) -> None:
        self._note_end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._note_end()
        self._stop()
        connections.discard(self)

    def _note_end(self) -> None:
        if self._number:
            totals.gone.setdefault(self._number, time.monotonic())

    def _stop(self) -> None:
        self._flooding = False
        if self._pacer is not None:
            self._pacer.discard(self)
            self._pacer = None


async def listen() -> int:
    """Start; returns the port."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0, backlog=4096)
    return server.sockets[0].getsockname()[1]


def count() -> dict[str, Any]:
    """The totals, and how things stand."""
    latest, totals.latest = totals.latest, 0.0
    return {
        "at": time.monotonic(),
        "events": totals.events,
        "held_back": totals.held_back,
        "flooded": totals.flooded,
        "requests": totals.requests,
        "latest_timer_ms": latest * 1000,
        "streaming": sum(map(len, pacers.values())),
        "paused": sum(stream._paused for stream in connections),
    }


def moments() -> dict[str, dict[int, float]]:
    """Arrivals and ends of the numbered requests since the last call."""
    arrived, gone = totals.arrived, totals.gone
    totals.arrived, totals.gone = {}, {}
    return {"arrived": arrived, "gone": gone}


if __name__ == "__main__":
    meters.raise_descriptor_limit()
    control.serve({"listen": listen, "count": count, "moments": moments})
