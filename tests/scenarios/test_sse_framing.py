"""The corpus's `sse-framing` cases about sizes and about what the gateway itself writes."""

from __future__ import annotations

import pytest

from pipeline import judge
from scenarios.served import MIB, served
from server.harness import House, on_uvloop, turns, until

ENDLESS = 256 * MIB


@on_uvloop
async def test_SSE_12_one_data_line_of_a_million_characters() -> None:
    async with House() as house:
        client = await house.ask()
        (await house.visit()).answer("a" * 1_000_000)
        response = await client.response()
        assert response.text == "a" * 1_000_000
        assert judge.violations(response.events) == []
        assert response.kinds[-1] == "message_stop"
        assert response.events[-2]["delta"]["stop_reason"] == "end_turn"


@pytest.mark.parametrize("before", ["", "Hello"], ids=["nothing sent", "after content"])
@on_uvloop
async def test_SSE_13_a_line_without_end_is_cut_off(before, tmp_path) -> None:
    async with served(tmp_path) as gateway:
        client = await gateway.ask()
        visit = await gateway.upstream.next()
        visit.head()
        if before:
            visit.text(before)
        visit.raw(b"%x\r\ndata: " % (ENDLESS + 6))
        piece, sent = b"x" * MIB, 0
        while sent < ENDLESS and not visit.closed.is_set():
            visit.raw(piece)
            sent += MIB
            await until(lambda: not visit.side.bytes_paused or visit.closed.is_set())
        await visit.closed.wait()
        response = await client.response()
        assert response.complete
        if before:
            assert response.text == before
            assert judge.violations(response.events) == []
            assert response.error["error"]["type"] == "api_error"
        else:
            assert response.status == 502
            assert response.json["error"]["type"] == "api_error"
        assert sent < ENDLESS
        assert gateway.grown() < 64 * MIB
        client.transport.abort()


@on_uvloop
async def test_SSE_16_keep_alive_is_a_ping_event() -> None:
    """The answer to silence is an event of the protocol: no comment, and no `id:` anywhere."""
    async with House() as house:
        client = await house.ask()
        visit = await house.visit()
        visit.head()
        for _ in range(12 + 3 * 10 + 1):  # in each second one look at the clock
            house.tick(1)
            await turns()
        await client.event("ping", 3)
        visit.text("late")
        visit.finish()
        visit.done()
        response = await client.response()
        assert judge.violations(response.events) == []
        assert response.text == "late"
        assert b'event: ping\ndata: {"type":"ping"}\n\n' in response.body
        starts = {line.partition(b":")[0] for line in response.body.splitlines() if line}
        assert starts == {b"event", b"data"}
