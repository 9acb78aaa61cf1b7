#!/usr/bin/env python3
"""What each layer of the hot path costs for one event, in this process, without sockets.

    .venv/bin/python bench/layers.py

Owns nothing but the loops. Figures are the best of several, with everything in the processor's caches; in
a running gateway the kernel's work in between turns most of that out, and the same code takes about
twice as long. So they say where time goes, and stream_cpu.py says how much it is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import httptools

import wire
from antiphon.core.dialects.chat_stream import ChatStream
from antiphon.core.dialects.chat_wire import decode_chunk
from antiphon.core.sse import SseDecoder
from antiphon.core.stream import Stream
from antiphon.core.surfaces.messages.events import EventEncoder

ROUNDS = 7
EVENTS = 40_000

FRAMES = [event.split(b"\r\n", 1)[1][:-2] for event in wire.EVENTS]  # without HTTP's chunks
PAYLOADS = [frame.removeprefix(b"data: ").removesuffix(b"\n\n") for frame in FRAMES]


class _Body:
    """Somebody must listen, or the parser does less."""

    def on_body(self, data: bytes) -> None:
        pass


def _stream() -> Stream:
    return Stream(tool_id=str, input_tokens=9, counts=Counter())


def http() -> Callable[[int], object]:
    """HTTP: the chunk's frame."""
    parser = httptools.HttpResponseParser(_Body())
    parser.feed_data(wire.HEAD)
    return lambda turn: parser.feed_data(wire.EVENTS[turn])


def sse() -> Callable[[int], object]:
    """SSE: bytes to frames."""
    decoder = SseDecoder()
    return lambda turn: decoder.feed(FRAMES[turn])


def json() -> Callable[[int], object]:
    """JSON: a frame's data to structs."""
    return lambda turn: decode_chunk(PAYLOADS[turn])


def dialect() -> Callable[[int], object]:
    """Dialect: bytes to parts, SSE and JSON included."""
    reader = ChatStream(counts=Counter())
    return lambda turn: reader.feed(FRAMES[turn])


def machine() -> Callable[[int], object]:
    """Machine: parts to events."""
    reader, stream = ChatStream(counts=Counter()), _stream()
    parts = [reader.feed(frame) for frame in FRAMES]

    def step(turn: int) -> object:
        stream.receive(parts[turn])
        return stream.take()

    return step


def encoder() -> Callable[[int], object]:
    """Encoder: events to bytes."""
    reader, stream = ChatStream(counts=Counter()), _stream()
    stream.receive(reader.feed(FRAMES[0]))
    stream.take()
    events = []
    for frame in FRAMES:
        stream.receive(reader.feed(frame))
        events.append(stream.take())
    encode = EventEncoder(message_id="msg_1", model="bench", request_id="req_1").encode
    return lambda turn: encode(events[turn])


def translation() -> Callable[[int], object]:
    """Dialect, machine and encoder together: the translation."""
    reader, stream = ChatStream(counts=Counter()), _stream()
    encode = EventEncoder(message_id="msg_1", model="bench", request_id="req_1").encode

    def step(turn: int) -> object:
        stream.receive(reader.feed(FRAMES[turn]))
        return encode(stream.take())

    return step


def main() -> None:
    """One line for each layer: microseconds for one event."""
    turns = [number % len(FRAMES) for number in range(EVENTS)]
    for layer in (http, sse, json, dialect, machine, encoder, translation):
        best = float("inf")
        for _ in range(ROUNDS):
            step = layer()
            start = time.process_time()
            for turn in turns:
                step(turn)
            best = min(best, time.process_time() - start)
        print(f"{best / EVENTS * 1e6:5.2f} µs  {layer.__doc__}")


if __name__ == "__main__":
    main()
