"""The head of a response and what is right behind it are one write; nothing is lost or out of order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from antiphon.server.head_first import _LARGE, HeadFirst


class Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def made() -> tuple[SimpleNamespace, Transport, HeadFirst]:
    transport = Transport()
    cycle = SimpleNamespace(response_started=False, transport=transport)
    return cycle, transport, HeadFirst(cycle)


async def test_head_and_body_are_one_write() -> None:
    cycle, transport, out = made()
    cycle.response_started = True
    out.write(b"head ")
    assert transport.writes == []
    out.write(b"body ")
    out.write(b"more")
    assert transport.writes == [b"head body ", b"more"]
    await asyncio.sleep(0)
    assert transport.writes == [b"head body ", b"more"]


async def test_a_head_alone_goes_out_with_the_next_turn() -> None:
    cycle, transport, out = made()
    cycle.response_started = True
    out.write(b"head")
    await asyncio.sleep(0)
    assert transport.writes == [b"head"]


async def test_what_comes_before_the_head_does_not_wait() -> None:
    cycle, transport, out = made()
    out.write(b"100 Continue")
    assert transport.writes == [b"100 Continue"]
    cycle.response_started = True
    out.write(b"head")
    out.close()
    assert transport.writes == [b"100 Continue", b"head"]
    assert transport.closed


async def test_a_large_body_is_not_copied() -> None:
    cycle, transport, out = made()
    cycle.response_started = True
    out.write(b"head")
    body = bytes(_LARGE + 1)
    out.write(body)
    assert transport.writes[0] == b"head"
    assert transport.writes[1] is body


async def test_a_head_for_a_client_that_has_gone_is_dropped() -> None:
    cycle, transport, out = made()
    cycle.response_started = True
    out.write(b"head")
    transport.closed = True
    await asyncio.sleep(0)
    assert transport.writes == []


async def test_a_head_that_is_flushed_goes_out_once() -> None:
    cycle, transport, out = made()
    cycle.response_started = True
    out.write(b"head")
    out.flush()
    assert transport.writes == [b"head"]
    await asyncio.sleep(0)
    assert transport.writes == [b"head"]
