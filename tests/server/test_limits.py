"""Every limit of `config.Limits`, with the clock in the test's hand."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from antiphon.config import Limits, Settings
from antiphon.server.app import Gateway
from antiphon.server.serve import server_config
from server.harness import (
    SSE_HEAD,
    USAGE,
    Client,
    House,
    Visit,
    body_of,
    chunk,
    deaf_listener,
    frame,
    on_both_loops,
    on_uvloop,
    request,
    tool,
    turns,
    until,
)

TEXT = frame({"content": "Hello"})
COMMENT = b": still there\n\n"


async def streaming(house: House, tag: str = "hi") -> tuple[Client, Visit]:
    client = await house.ask(tag)
    visit = await house.visit()
    visit.raw(SSE_HEAD + chunk(TEXT))
    await client.event("content_block_delta")
    return client, visit


async def read_by_exchange(house: House, visit: Visit, data: bytes) -> None:
    """Send a frame and wait until the exchange has taken it."""
    exchange = house.exchange()
    exchange._time.heard = False
    visit.send(data)
    await until(lambda: exchange._time.heard)


# --- The upstream's time ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@on_both_loops
async def test_connect(stream) -> None:
    with deaf_listener() as port:
        async with House(upstream_url=f"http://127.0.0.1:{port}/v1") as house:
            client = await house.ask(stream=stream)
            await until(lambda: house.up.pool.statistics().connecting)
            house.tick(10)
            assert house.stats == (1, 0, 0)
            house.tick(0.1)
            assert house.stats == (0, 0, 0)
            response = await client.response()
            assert (response.status, response.json["error"]["type"]) == (504, "timeout_error")


@pytest.mark.parametrize("stream", [True, False])
@on_uvloop
async def test_first_token(stream) -> None:
    async with House(limits={"commit_after": 10_000}) as house:
        client = await house.ask(stream=stream)
        visit = await house.visit()
        visit.head()
        await until(lambda: house.exchange().phase.value == "prefill")
        house.tick(600)
        await read_by_exchange(house, visit, COMMENT)  # life, but no token
        house.tick(0.1)
        await visit.closed.wait()
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (504, "timeout_error")


@on_uvloop
async def test_first_token_of_a_stream_that_was_started_early() -> None:
    async with House() as house:
        client = await house.ask()
        visit = await house.visit()
        house.tick(12)
        await client.event("message_start")
        house.tick(588.1)
        await visit.closed.wait()
        response = await client.response()
        assert response.kinds == ["message_start", "error"]
        assert response.error["error"]["type"] == "timeout_error"


@on_uvloop
async def test_gap() -> None:
    async with House() as house:
        client, visit = await streaming(house)
        for _ in range(3):
            house.tick(179)
            await read_by_exchange(house, visit, COMMENT)
            house.tick()
        house.tick(180)
        assert house.stats == (1, 0, 0)
        house.tick(0.1)
        await visit.closed.wait()
        response = await client.response()
        assert response.error["error"]["type"] == "timeout_error"
        assert "content_block_stop" not in response.kinds


@on_uvloop
async def test_gap_of_a_whole_answer_is_a_status() -> None:
    async with House() as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await until(lambda: house.exchange().phase.value == "streaming")
        house.tick()
        house.tick(180.1)
        assert (await client.response()).status == 504


@pytest.mark.parametrize(("usage", "grace"), [(True, 2), (False, 5)])
@on_uvloop
async def test_finish_grace(usage, grace) -> None:
    """No `[DONE]` on an open socket: success, after longer where the usage that was asked for is missing."""
    async with House() as house:
        client, visit = await streaming(house)
        await read_by_exchange(house, visit, frame(finish="stop"))
        if usage:
            await read_by_exchange(house, visit, USAGE)
        house.tick()
        house.tick(grace)
        assert house.stats == (1, 0, 0)
        house.tick(0.1)
        assert house.stats == (0, 0, 0)
        await visit.closed.wait()
        response = await client.response()
        assert response.kinds[-2:] == ["message_delta", "message_stop"]
        record = await house.record()
        assert record["counts"]["cut_after_finish"] == 1
        # An answer like any other, and a server like any other: nobody looks elsewhere because of it.
        assert record["cause"] == "finished"
        assert not house.up.health.statistics(house.clock.now).failures


@on_uvloop
async def test_finish_grace_counts_from_the_last_frame() -> None:
    async with House() as house:
        client, visit = await streaming(house)
        await read_by_exchange(house, visit, frame(finish="stop"))
        for _ in range(4):
            house.tick(1.9)
            await read_by_exchange(house, visit, USAGE)
            house.tick()
        assert house.stats == (1, 0, 0)
        visit.done()
        assert (await client.response()).kinds[-1] == "message_stop"


@on_both_loops
async def test_settle() -> None:
    """`[DONE]` ends the lease; the connection is kept only if its HTTP message ends in time."""
    async with House(limits={"settle": 0.02}) as house:
        client, visit = await streaming(house)
        visit.send(frame(finish="stop"), b"data: [DONE]\n\n")
        assert (await client.response()).kinds[-1] == "message_stop"
        assert house.stats == (0, 0, 0)
        await visit.closed.wait()
        assert house.up.pool.statistics().idle == 0
    async with House(limits={"settle": 10}) as house:
        client, visit = await streaming(house)
        visit.send(frame(finish="stop"), b"data: [DONE]\n\n")
        assert (await client.response()).kinds[-1] == "message_stop"
        assert house.up.pool.statistics().settling == 1
        visit.raw(b"0\r\n\r\n")
        await until(lambda: house.up.pool.statistics().idle == 1)


@on_uvloop
async def test_upstream_idle() -> None:
    async with House(limits={"upstream_idle": 0.01}) as house:
        client = await house.ask()
        visit = await house.visit()
        visit.answer()
        await client.response()
        await visit.closed.wait()
        await until(lambda: house.up.pool.statistics().idle == 0)


@pytest.mark.parametrize("phase", ["waiting", "streaming"])
@on_uvloop
async def test_release_grace(phase) -> None:
    """A server that may go on with a cancelled request keeps its slot for a while."""
    async with House(slots=1, profile="ollama") as house:
        client = await house.ask("first")
        visit = await house.visit()
        if phase == "streaming":
            visit.raw(SSE_HEAD + chunk(TEXT))
            await client.event("content_block_delta")
        heir = await house.ask("heir")
        await house.waiting(1)
        client.fin()
        await visit.closed.wait()
        assert house.stats == (0, 1, 1)
        house.tick(4.9)
        assert house.stats == (0, 1, 1)
        house.tick(0.1)
        assert house.stats == (1, 0, 0)
        (await house.visit()).answer()
        assert (await heir.response()).kinds[-1] == "message_stop"


@on_uvloop
async def test_nothing_drains_where_nothing_was_sent_or_everything_was_said() -> None:
    with deaf_listener() as port:
        async with House(profile="ollama", upstream_url=f"http://127.0.0.1:{port}/v1") as house:
            client = await house.ask()
            await until(lambda: house.up.pool.statistics().connecting)
            client.fin()
            await until(lambda: house.stats == (0, 0, 0))
    async with House(profile="ollama") as house:
        client = await house.ask()
        (await house.visit()).answer()
        await client.response()
        assert house.stats == (0, 0, 0)


# --- The client's time ------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"P", b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX: y"])
@on_both_loops
async def test_request_headers(start) -> None:
    async with House() as house:
        client = await house.client()
        client.send(start)
        await until(lambda: house.gateway.edges and client.edge._unread)
        house.tick(20)
        await turns()
        assert client.so_far is None
        house.tick(0.1)
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (408, "invalid_request_error")
        assert response.headers["connection"] == "close"
        await client.gone()


@on_both_loops
async def test_a_connection_that_says_nothing_is_closed_without_an_answer() -> None:
    async with House() as house:
        client = await house.client()
        await until(lambda: house.gateway.edges)
        house.tick(20.1)
        await client.gone()
        assert client.data == b""


@on_uvloop
async def test_request_headers_of_the_second_request_on_a_connection() -> None:
    async with House() as house:
        client = await house.client()
        client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.response()).status == 200
        house.tick(1000)  # idle is the keep-alive timer's business
        client.send(b"\r\n")  # which ends with the first byte, even this one
        await until(lambda: client.edge._unread)
        house.tick(20.1)
        assert (await client.response()).status == 408


@on_both_loops
async def test_request_body() -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(b"", length=100_000))
        await until(lambda: client.edge._waiting_for == "body")
        for _ in range(3):
            house.tick(59)
            before = client.edge._body_size
            client.send(b"x" * 100)
            await until(lambda: client.edge._body_size > before)
        house.tick(60)
        assert client.so_far is None
        house.tick(0.1)
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (408, "invalid_request_error")
        await client.gone()


@on_uvloop
async def test_a_body_that_was_refused_already_is_not_answered_twice() -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(b"", length=1000, headers="Origin: http://evil.example\r\n"))
        assert (await client.response()).status == 403
        house.tick(60.1)
        await client.gone()
        assert client.data == b""


@on_uvloop
async def test_a_connection_whose_refused_body_ended_is_not_kept_for_ever() -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(b"", length=1000, headers="Origin: http://evil.example\r\n"))
        assert (await client.response()).status == 403
        client.send(b"x" * 1000)
        await until(lambda: client.edge._waiting_for == "headers")
        house.tick(20.1)
        await client.gone()
        assert client.data == b""


def test_keep_alive() -> None:
    assert server_config(Gateway(Settings(), None)).timeout_keep_alive == 75
    short = Settings(limits=Limits(keep_alive=0.5))
    assert server_config(Gateway(short, None)).timeout_keep_alive == 1  # 0 would keep none


@on_uvloop
async def test_an_idle_connection_is_closed_by_the_keep_alive_timer() -> None:
    async with House() as house:
        client = await house.client()
        client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.response()).status == 200
        edge = client.edge
        assert edge.timeout_keep_alive_task is not None
        edge.timeout_keep_alive_handler()
        await client.gone()


async def stalled(house: House) -> tuple[Client, Visit]:
    client = await house.client(rcvbuf=4096)
    client.ask("hi")
    visit = await house.visit()
    visit.raw(SSE_HEAD + chunk(TEXT))
    await client.event("content_block_delta")
    client.stop_reading()
    while not client.edge.paused:
        visit.text("x" * 50_000)
        await turns(3)
    return client, visit


@on_both_loops
async def test_write_stall() -> None:
    async with House(sndbuf=16 * 1024) as house:
        client, visit = await stalled(house)
        house.tick(60)
        assert house.stats == (1, 0, 0)
        house.tick(0.1)
        assert house.stats == (0, 0, 0)
        await visit.closed.wait()
        record = await house.record()
        assert (record["cause"], record["status"]) == ("stall", 200)


@on_both_loops
async def test_a_slow_client_that_reads_on_is_not_dropped() -> None:
    async with House(sndbuf=16 * 1024) as house:
        client, visit = await stalled(house)
        house.tick(59)
        client.read_on()
        await until(lambda: not client.edge.paused)
        client.stop_reading()
        while not client.edge.paused:
            visit.text("x" * 50_000)
            await turns(3)
        house.tick(59)
        assert house.stats == (1, 0, 0)
        client.read_on()
        visit.finish()
        visit.done()
        assert (await client.response()).kinds[-1] == "message_stop"


@on_both_loops
async def test_a_lease_ends_with_the_upstream_and_not_with_a_slow_reader() -> None:
    async with House(sndbuf=16 * 1024) as house:
        client, visit = await stalled(house)
        visit.finish()
        visit.done()
        await until(lambda: house.stats == (0, 0, 0))
        house.tick(59)
        client.read_on()
        response = await client.response()
        assert response.kinds[-1] == "message_stop"
        assert (await house.record())["cause"] == "finished"


@on_both_loops
async def test_write_stall_behind_the_end_of_a_stream() -> None:
    async with House(sndbuf=16 * 1024) as house:
        client, visit = await stalled(house)
        visit.finish()
        visit.done()
        await until(lambda: house.stats == (0, 0, 0))
        assert house.gateway.live
        house.tick(60.1)
        assert (await house.record())["cause"] == "finished"
        await until(lambda: not house.gateway.edges)


@on_both_loops
async def test_write_stall_of_a_whole_answer() -> None:
    async with House(sndbuf=16 * 1024) as house:
        client = await house.client(rcvbuf=4096)
        client.stop_reading()
        client.ask(stream=False)
        visit = await house.visit()
        visit.answer("x" * 1_000_000)
        await until(lambda: not house.gateway.live)
        assert house.gateway.edges
        house.tick(60)
        assert house.gateway.edges
        house.tick(0.1)
        await until(lambda: not house.gateway.edges)


@pytest.mark.parametrize("place", ["queued", "waiting", "prefill"])
@on_both_loops
async def test_commit_after_and_ping_interval(place) -> None:
    async with House(slots=1) as house:
        holder = await house.ask("holder") if place == "queued" else None
        if holder:
            held = await house.visit()
            held.raw(SSE_HEAD + chunk(TEXT))
            await holder.event("content_block_delta")
        client = await house.ask("first")
        if holder:
            await house.waiting(1)
        else:
            visit = await house.visit()
        if place == "prefill":
            visit.head()
            await until(lambda: house.exchange().phase.value == "prefill")
        house.tick(11.9)
        await turns()
        assert client.so_far is None
        house.tick(0.1)
        assert [event["type"] for event in await client.event("message_start")] == ["message_start"]
        house.tick()  # the tick that sees it written
        house.tick(9.9)
        await turns()
        assert "ping" not in client.so_far.kinds
        house.tick(0.1)
        await client.event("ping")
        house.tick(10)
        await client.event("ping", count=2)
        if holder:
            held.finish()
            held.done()
            visit = await house.visit()
        if place != "prefill":
            visit.head()
        visit.send(TEXT, frame(finish="stop"))
        visit.done()
        response = await client.response()
        assert response.kinds[:3] == ["message_start", "ping", "ping"]
        assert response.kinds[-1] == "message_stop"
        assert b": " not in response.body.replace(b"event: ", b"").replace(b"data: ", b"")  # no comments


@on_uvloop
async def test_no_ping_while_something_is_said() -> None:
    async with House() as house:
        client, visit = await streaming(house)
        for number in range(5):
            house.tick(9.9)
            visit.text(f" {number}")
            await client.event("content_block_delta", count=number + 2)
        house.tick()
        house.tick(9.9)
        visit.finish()
        visit.done()
        assert "ping" not in (await client.response()).kinds


@on_uvloop
async def test_pings_stand_between_frames_also_in_an_open_block() -> None:
    async with House() as house:
        client, visit = await streaming(house)
        house.tick()
        visit.raw(b"40\r\ndata: half a chu")  # nothing of it can be said yet
        for count in (1, 2, 3):
            house.tick(10)
            await client.event("ping", count=count)
        client.legal()
        assert client.so_far.kinds[-3:] == ["ping"] * 3
        visit.cut()
        assert (await client.response()).kinds[-1] == "error"


@on_uvloop
async def test_no_ping_into_a_full_buffer() -> None:
    async with House(sndbuf=16 * 1024) as house:
        client, visit = await stalled(house)
        house.tick()
        for _ in range(4):
            house.tick(12)
        client.read_on()
        visit.finish()
        visit.done()
        assert "ping" not in (await client.response()).kinds


@on_uvloop
async def test_a_whole_answer_is_never_begun_early() -> None:
    async with House() as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        for _ in range(20):
            house.tick(20)
        await turns()
        assert client.so_far is None
        visit.refuse(429, headers="retry-after: 7\r\n")
        response = await client.response()
        assert (response.status, response.headers["retry-after"]) == (429, "7")


# --- The queue --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@on_both_loops
async def test_queue_timeout(stream) -> None:
    async with House(slots=1, limits={"commit_after": 1000}) as house:
        holder, visit = await streaming(house, "holder")
        client = await house.ask("waiter", stream=stream)
        await house.waiting(1)
        house.tick()
        house.tick(150)
        await read_by_exchange_of(house, visit)
        house.tick(150)
        await read_by_exchange_of(house, visit)
        assert house.stats == (1, 0, 1)
        house.tick(0.1)
        assert house.stats == (1, 0, 0)
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (529, "overloaded_error")
        assert int(response.headers["retry-after"]) > 0
        visit.finish()
        visit.done()
        await holder.response()


async def read_by_exchange_of(house: House, visit: Visit) -> None:
    exchange = house.exchange_of("holder")
    exchange._time.heard = False
    visit.send(COMMENT)
    await until(lambda: exchange._time.heard)


@on_uvloop
async def test_queue_timeout_of_a_stream_that_was_started_early() -> None:
    async with House(slots=1, limits={"queue_timeout": 20}) as house:
        holder, visit = await streaming(house, "holder")
        client = await house.ask("waiter")
        await house.waiting(1)
        house.tick(12)
        await client.event("message_start")
        house.tick(8.1)
        response = await client.response()
        assert response.kinds == ["message_start", "error"]
        assert response.error["error"]["type"] == "overloaded_error"
        visit.finish()
        visit.done()
        await holder.response()


@pytest.mark.parametrize("stream", [True, False])
@on_uvloop
async def test_queue_length(stream) -> None:
    async with House(slots=1, limits={"queue_length": 2}) as house:
        first = [await house.ask(f"{number}") for number in range(3)]
        visit = await house.visit()
        await house.waiting(2)
        refused = await house.ask("too many", stream=stream)
        response = await refused.response()
        assert (response.status, response.json["error"]["type"]) == (529, "overloaded_error")
        assert int(response.headers["retry-after"]) > 0
        assert house.stats == (1, 0, 2)
        for client in first:
            visit.answer()
            assert (await client.response()).kinds[-1] == "message_stop"
            if client is not first[-1]:
                visit = await house.visit()


# --- Shutdown ---------------------------------------------------------------------------------------


@on_both_loops
async def test_drain() -> None:
    async with House(slots=1) as house:
        idle = await house.client()
        idle.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await idle.response()).status == 200
        running, visit = await streaming(house, "running")
        queued = await house.ask("queued", stream=False)
        await house.waiting(1)
        house.gateway.drain()
        idle.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await idle.response()).status == 503
        idle.ask("late")
        late = await idle.response()
        assert (late.status, late.headers["connection"]) == (529, "close")
        await idle.gone()
        house.tick(29.9)
        visit.text(" still")
        await running.event("content_block_delta", count=2)
        house.tick(0.1)
        response = await running.response()
        assert response.text == "Hello still"
        assert response.error["error"]["type"] == "overloaded_error"
        assert (await queued.response()).status == 529
        await visit.closed.wait()


# --- Sizes ------------------------------------------------------------------------------------------


def padded(size: int) -> bytes:
    return request(body_of(), headers=f"X-Pad: {'x' * size}\r\n")


@on_both_loops
async def test_max_headers() -> None:
    async with House(limits={"max_headers": 4096}) as house:
        client = await house.client()
        client.send(padded(3000))
        (await house.visit()).answer()
        assert (await client.response()).status == 200
        for data in (padded(5000), b"GET /" + b"x" * 5000, b"GET / HTTP/1.1\r\nX: " + b"y" * 5000):
            client = await house.client()
            client.send(data)
            response = await client.response()
            assert (response.status, response.json["error"]["type"]) == (431, "invalid_request_error")
            assert response.headers["request-id"] == response.json["request_id"]
            await client.gone()
        assert len(house.upstream.visits) == 1


@pytest.mark.parametrize(
    "endless", [b"0\r\n" + b"X-T: y\r\n" * 5000, b"0\r\nX-T: " + b"y" * 9000, b"5;" + b"e" * 9000]
)
@on_uvloop
async def test_trailers_and_chunk_extensions_without_an_end(endless) -> None:
    async with House(limits={"max_headers": 4096}) as house:
        client = await house.client()
        client.send(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        await until(lambda: house.server.server_state.tasks)
        for position in range(0, len(endless), 1000):
            client.send(endless[position : position + 1000])
            await turns()
        assert (await client.response()).status == 431
        await client.gone()


@on_uvloop
async def test_a_trailer_is_no_header() -> None:
    async with House() as house:
        client = await house.client()
        body = body_of()
        client.send(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n%b0\r\nantiphon-strict: true\r\nOrigin: x\r\n\r\n"
            % chunk(body)
        )
        (await house.visit()).answer()
        assert (await client.response()).kinds[-1] == "message_stop"


@pytest.mark.parametrize("chunked", [False, True])
@on_both_loops
async def test_max_body(chunked) -> None:
    async with House(limits={"max_body": 100_000}) as house:
        client = await house.client()
        fits = body_of("x" * 90_000)
        big = b"x" * 6_000_000  # more than any socket buffer: the client is still sending when it is refused
        if chunked:
            head = (
                b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            client.send(head + chunk(fits) + b"0\r\n\r\n")
        else:
            client.send(request(fits))
        (await house.visit()).answer()
        assert (await client.response()).status == 200
        client.send(head + chunk(big) if chunked else request(big))
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (413, "request_too_large")
        assert response.headers["connection"] == "close"
        assert response.headers["request-id"] == response.json["request_id"]
        await client.gone()
        house.tick()
        assert len(house.upstream.visits) == 1


@on_both_loops
async def test_a_refused_client_that_sends_on_for_ever_is_reset() -> None:
    async with House(limits={"max_body": 2000}) as house:
        client = await house.client()
        client.send(request(b"x" * 3000))
        assert (await client.response()).status == 413
        house.tick(2)
        client.send(b"x" * 3000)
        await turns()
        assert house.gateway.edges
        house.tick(0.1)
        await until(lambda: not house.gateway.edges)


@on_uvloop
async def test_max_body_is_refused_before_it_is_asked_for() -> None:
    async with House(limits={"max_body": 2000}) as house:
        client = await house.client()
        client.send(request(b"", length=3000, headers="Expect: 100-continue\r\n"))
        assert (await client.response()).status == 413
        assert b"100 Continue" not in client.data
        client = await house.client()
        client.send(request(b"", length=len(body_of()), headers="Expect: 100-continue\r\n"))
        await client.until(lambda: b"100 Continue" in client.data)
        client.send(body_of())
        (await house.visit()).answer()
        assert (await client.response()).status == 200


@on_uvloop
async def test_max_held() -> None:
    """A second call waits behind the first one: what it holds is bounded."""
    async with House(limits={"max_held": 1024}) as house:
        client = await house.ask()
        visit = await house.visit()
        visit.head()
        visit.send(
            frame(tool('{"a": "', call_id="c0", name="f")),
            frame(tool('{"b": "', index=1, call_id="c1", name="g")),
        )
        await client.event("content_block_delta")
        visit.send(frame(tool("x" * 2000, index=1)))
        response = await client.response()
        assert response.error["error"]["type"] == "api_error"
        assert "content_block_stop" not in response.kinds
        await visit.closed.wait()


@pytest.mark.parametrize("stream", [True, False])
@on_uvloop
async def test_max_frame(stream) -> None:
    async with House(limits={"max_frame": 1024}) as house:
        client = await house.ask(stream=stream)
        visit = await house.visit()
        visit.head()
        visit.text("short")
        visit.raw(b"fff\r\ndata: " + b"x" * 4000)
        await visit.closed.wait()
        response = await client.response()
        if stream:
            assert response.error["error"]["type"] == "api_error"
        else:
            assert (response.status, response.json["error"]["type"]) == (502, "api_error")


@on_uvloop
async def test_max_fold_of_a_whole_body() -> None:
    """An upstream that answers with JSON in place of a stream."""
    async with House(limits={"max_fold": 1024}) as house:
        client = await house.ask()
        visit = await house.visit()
        visit.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{" + b" " * 5000)
        await visit.closed.wait()
        assert (await client.response()).status == 502


@on_uvloop
async def test_max_fold() -> None:
    async with House(limits={"max_fold": 1024}) as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        visit.head()
        visit.text("x" * 2000)
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (502, "api_error")
        await visit.closed.wait()


@on_both_loops
async def test_max_behind() -> None:
    """The upstream feels a client that does not read; nothing is lost, and little is kept."""
    limit, piece = 64 * 1024, 50_000
    async with House(sndbuf=16 * 1024, limits={"max_behind": limit}) as house:
        client, visit = await stalled(house)
        exchange = house.exchange()
        upstream_socket = visit.side.transport.get_extra_info("socket")
        upstream_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        sent = 0
        while not visit.side.bytes_paused:
            visit.text("y" * piece)
            sent += piece
            await turns(3)
        assert exchange._time.held_back
        assert exchange.answer.pending <= limit + 256 * 1024 + piece  # the limit, and one read
        house.tick(50)
        client.read_on()
        await until(lambda: not visit.side.bytes_paused)
        visit.finish()
        visit.done()
        response = await client.response()
        assert response.kinds[-1] == "message_stop"
        assert response.text.count("y") == sent


@on_uvloop
async def test_the_silence_of_an_upstream_that_we_paused_is_not_its_fault() -> None:
    async with House(sndbuf=16 * 1024, limits={"gap": 10, "max_behind": 1024}) as house:
        client, visit = await stalled(house)
        while not house.exchange()._time.held_back:
            visit.text("x" * 50_000)
            await turns(3)
        for _ in range(5):
            house.tick(11)
        assert house.stats == (1, 0, 0)
        client.read_on()
        visit.finish()
        visit.done()
        assert (await client.response()).kinds[-1] == "message_stop"


# --- Heavy work -------------------------------------------------------------------------------------


@on_uvloop
async def test_heavy_body() -> None:
    async with House() as house:
        client = await house.ask("x" * 8 * 1024 * 1024)
        visit = await house.visit()
        assert len(visit.tag) == 8 * 1024 * 1024
        (worker,) = [each.pid for each in house.gateway.planning._heavy.processes]
        visit.answer()
        assert (await client.response()).kinds[-1] == "message_stop"
    async with asyncio.timeout(10):
        await until(lambda: not os.path.exists(f"/proc/{worker}"))


@on_uvloop
async def test_heavy_time() -> None:
    async with House(limits={"heavy_body": 1024, "heavy_time": 0.001}) as house:
        client = await house.ask("x" * 2000)
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (400, "invalid_request_error")
        client.ask("small")
        (await house.visit()).answer()
        assert (await client.response()).status == 200


def test_every_limit_has_a_test_here() -> None:
    """By its name in this file; `tick` is every test's own, two stand beside another."""
    text = Path(__file__).read_text()
    missing = [name for name in Limits.__struct_fields__ if f"test_{name}" not in text]
    elsewhere = ["tick", "finish_grace_usage", "ping_interval"]
    assert [name for name in missing if name not in elsewhere] == []
