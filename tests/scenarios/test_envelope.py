"""The corpus's `envelope` cases about time: what is sent while there is nothing to say, and how."""

from __future__ import annotations

import pytest

from pipeline import judge
from server.harness import House, on_uvloop, post, turns

LONGEST_SILENCE = 15


@on_uvloop
async def test_ENV_07_a_client_hears_something_during_a_long_prefill() -> None:
    async with House() as house:
        client = await house.ask()
        visit = await house.visit()
        visit.head()
        heard = 0
        for second in range(LONGEST_SILENCE, 46, LONGEST_SILENCE):  # 45 s, and something in each 15 of them
            for _ in range(LONGEST_SILENCE):
                house.tick(1)
                await turns()
            await client.until(lambda heard=heard: client.received > heard)
            heard = client.received
            assert client.legal()[0]["type"] == "message_start", second
        visit.text("at last")
        visit.finish()
        visit.done()
        response = await client.response()
        assert judge.violations(response.events) == []
        assert response.text == "at last"
        assert "ping" in response.kinds
        assert response.kinds[-1] == "message_stop"


@pytest.mark.parametrize("size", [40_000, 1_000_000], ids=["in the buffer", "more than the buffer holds"])
@on_uvloop
async def test_ENV_08_a_ping_never_lands_in_another_event(size) -> None:
    """The tick comes while a delta has left the gateway in part: its client reads slowly."""
    async with House(sndbuf=16 * 1024) as house:
        client = await house.client(rcvbuf=4096)
        client.ask()
        visit = await house.visit()
        visit.head()
        visit.text("first")
        await client.event("content_block_delta")
        house.tick(1)
        client.stop_reading()
        visit.text("x" * size)
        edge = client.edge
        while not edge.transport.get_write_buffer_size():
            await turns()
        for _ in range(3):
            house.tick(11)
        visit.text("last")
        client.read_on()
        await client.until(lambda: client.legal()[-1].get("delta", {}).get("text", "").endswith("last"))
        house.tick(1)
        house.tick(11)
        await client.event("ping")
        visit.finish()
        visit.done()
        response = await client.response()
        assert judge.violations(response.events) == []
        assert response.text == "first" + "x" * size + "last"
        others = [kind for kind in response.kinds if kind not in ("ping", "content_block_delta")]
        assert others == [
            "message_start",
            "content_block_start",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]


@on_uvloop
async def test_ENV_09_nothing_on_the_way_holds_the_stream_back() -> None:
    async with House() as house:
        client = await house.client()
        client.send(post(headers="Accept-Encoding: gzip, deflate, br, zstd\r\n"))
        visit = await house.visit()
        visit.head()
        # Each chunk must arrive before the next is sent: there is no other chunk to flush it.
        for number in range(20):
            visit.text(f"{number} ")
            await client.event("content_block_delta", number + 1)
        visit.finish()
        visit.done()
        response = await client.response()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        assert "content-encoding" not in response.headers
