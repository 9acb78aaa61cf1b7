"""The corpus's `lifecycle` cases: who leaves when, who is slow, what breaks, and what must be left of it.

Every `House` also checks, when it is left, that no slot, socket, task or queue place is held and that nothing
was logged above the level of an ordinary exchange.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from antiphon.config import Limits
from pipeline import judge, run
from scenarios.cases import case
from scenarios.served import MIB, served
from server import harness
from server.harness import (
    SSE_HEAD,
    Client,
    House,
    Visit,
    body_of,
    chunk,
    frame,
    on_both_loops,
    on_uvloop,
    request,
    tool,
    turns,
    until,
)

LEAVE = pytest.mark.parametrize("leave", [Client.fin, Client.rst], ids=["fin", "rst"])


async def streaming(house: House, tag: str = "hi", **fields: object) -> tuple[Client, Visit]:
    """A client that has read its first delta."""
    client = await house.ask(tag, **fields)
    visit = await house.visit()
    visit.raw(SSE_HEAD + chunk(frame({"content": "Hello"})))
    await client.event("content_block_delta")
    return client, visit


@LEAVE
@on_both_loops
async def test_LIF_01_a_client_that_leaves_mid_stream_cancels_the_upstream(leave) -> None:
    async with House(slots=1) as house:
        client, visit = await streaming(house)
        assert len(client.legal()) == 3
        assert house.stats == (1, 0, 0)
        leave(client)
        await visit.closed.wait()  # nothing more was sent: this is no write that failed
        assert house.stats == (0, 0, 0)
        assert (await house.record())["cause"] == "client"


SILENT = {
    "no headers": b"",
    "headers only": SSE_HEAD,
    "a role": SSE_HEAD + chunk(frame({"role": "assistant"})),
}


@LEAVE
@pytest.mark.parametrize("sent", SILENT.values(), ids=SILENT)
@on_both_loops
async def test_LIF_02_a_client_that_leaves_before_the_first_token(sent, leave) -> None:
    async with House(slots=1) as house:
        client = await house.ask()
        visit = await house.visit()
        visit.raw(sent)
        await turns(10)
        assert client.received == 0
        leave(client)
        await visit.closed.wait()
        assert house.stats == (0, 0, 0)


@LEAVE
@on_both_loops
async def test_LIF_03_a_client_that_leaves_while_the_upstream_stalls(leave) -> None:
    async with House(slots=1) as house:
        client, visit = await streaming(house)
        visit.text(" there")
        await client.event("content_block_delta", 2)
        house.tick(1)
        house.tick(10)
        await client.event("ping")
        leave(client)
        await visit.closed.wait()
        assert house.stats == (0, 0, 0)


@LEAVE
@pytest.mark.parametrize(
    "sent", [b"", SSE_HEAD + chunk(frame({"content": "Hello"}))], ids=["silent", "midway"]
)
@on_both_loops
async def test_LIF_04_a_client_that_leaves_a_request_without_streaming(sent, leave) -> None:
    async with House(slots=1) as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        visit.raw(sent)
        await turns(10)
        leave(client)
        await visit.closed.wait()
        assert house.stats == (0, 0, 0)


@LEAVE
@pytest.mark.parametrize("server", ["its own", "any ASGI server"])
@on_uvloop
async def test_LIF_05_nothing_in_the_product_hides_a_disconnect(server, leave, monkeypatch) -> None:
    """With all that stands before an exchange: rules for who may ask, logging, records.

    On any other ASGI server there is one reader of `receive()`, and it is the watcher.
    """
    if server != "its own":
        configure = harness.server_config

        def plain(gateway):
            config = configure(gateway)
            config.http = "httptools"
            return config

        monkeypatch.setattr(harness, "server_config", plain)
    async with House(slots=1) as house:
        client, visit = await streaming(house)
        leave(client)
        await visit.closed.wait()
        assert (await house.record())["cause"] == "client"
        assert house.stats == (0, 0, 0)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@on_both_loops
async def test_LIF_06_half_a_close_counts_as_gone(stream) -> None:
    """Documented in docs/behavior.md: prompt cancellation is worth more. The connection never hangs."""
    async with House(slots=1) as house:
        client = await house.ask(stream=stream)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(frame({"content": "Hello"})))
        if stream:
            await client.event("content_block_delta")
        client.half_close()
        await client.gone()
        await visit.closed.wait()
        client.legal()
    documented = Path(__file__).parents[2] / "docs" / "behavior.md"
    assert "Half-close counts as gone" in documented.read_text()


@on_uvloop
async def test_LIF_07_two_hundred_abandoned_streams_leave_nothing() -> None:
    async with House(slots=4) as house:
        descriptors = len(os.listdir("/proc/self/fd"))
        for number in range(200):
            client, visit = await streaming(house, f"stream {number}")
            (client.rst if number % 2 else client.fin)()
            await visit.closed.wait()
        client = await house.ask("normal")
        visit = await house.visit()
        visit.answer()
        assert (await client.response()).kinds[-1] == "message_stop"
        pool = house.up.pool.statistics()
        assert (pool.active, pool.connecting) == (0, 0)
        assert pool.idle + pool.settling <= 1
        await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 6)


@on_uvloop
async def test_LIF_08_a_client_that_never_reads_is_not_buffered_for(tmp_path) -> None:
    async with served(tmp_path) as gateway:
        client = await gateway.ask("deaf")
        visit = await gateway.upstream.next()
        visit.head()
        visit.text("first")
        await client.event("content_block_delta")
        client.stop_reading()
        piece, sent = chunk(frame({"content": "x" * 60_000})), 0

        async def flood() -> None:
            nonlocal sent
            while sent < 200 * MIB:
                visit.raw(piece)
                sent += len(piece)
                await until(lambda: not visit.side.bytes_paused)

        flooding = asyncio.get_running_loop().create_task(flood())
        other = await gateway.client()
        before = -1
        while before != sent:  # it may send on only as long as buffers on the way fill up
            before = sent
            for number in range(20):
                other.ask(f"other {number}")
                (await gateway.upstream.next()).answer()
                assert (await other.response()).kinds[-1] == "message_stop"
            assert sent < 64 * MIB
        assert visit.side.bytes_paused
        assert gateway.grown() < 16 * MIB
        flooding.cancel()
        client.rst()
        other.transport.abort()
        await visit.closed.wait()


@on_uvloop
async def test_LIF_09_a_client_that_never_reads_is_dropped() -> None:
    async with House(slots=1, sndbuf=16 * 1024) as house:
        client = await house.client(rcvbuf=4096)
        client.ask()
        visit = await house.visit()
        visit.head()
        edge = client.edge
        client.stop_reading()
        while not edge.paused:
            visit.text("x" * 50_000)
            await turns(3)
        house.tick(Limits().write_stall - 1)
        assert house.stats == (1, 0, 0)
        house.tick(2)
        await visit.closed.wait()
        assert house.stats == (0, 0, 0)
        assert (await house.record())["cause"] == "stall"
        client.read_on()
        await client.gone()
        client.legal()


@on_uvloop
async def test_LIF_10_an_upstream_that_falls_silent_mid_stream() -> None:
    async with House(slots=1) as house:
        client, visit = await streaming(house)
        visit.text(" there")
        await client.event("content_block_delta", 2)
        house.tick(1)
        for second in range(10, int(Limits().gap), 10):
            house.tick(10)
            assert (await client.event("ping", second // 10))[-1] == {"type": "ping"}
        house.tick(20)
        await visit.closed.wait()
        response = await client.response()
        assert response.complete
        assert judge.violations(response.events) == []
        assert response.kinds[-1] == "error"
        assert response.error["error"]["type"] in ("timeout_error", "api_error")
        assert response.text == "Hello there"


@on_uvloop
async def test_LIF_11_no_limit_ends_a_healthy_answer() -> None:
    async with House(slots=2) as house:
        slow = await house.ask("two minutes to the first token")
        slow_visit = await house.visit()
        slow_visit.head()
        for _ in range(120):
            house.tick(1)
            await turns()
        slow_visit.text("thought about it")
        slow_visit.finish()
        slow_visit.done()
        response = await slow.response()
        assert judge.violations(response.events) == []
        assert response.text == "thought about it"
        long, visit = await streaming(house, "a quarter of an hour")
        steps = 15 * 60 // 5
        for step in range(steps):
            for _ in range(5):
                house.tick(1)
            visit.text(".")
            await client_has(long, step + 2)
        visit.finish()
        visit.done()
        response = await long.response()
        assert judge.violations(response.events) == []
        assert response.text == "Hello" + "." * steps


async def client_has(client: Client, deltas: int) -> None:
    """As `Client.event`, without reading the whole stream again for each."""
    await client.until(lambda: client.data.count(b"event: content_block_delta\n") >= deltas)


@on_uvloop
async def test_LIF_12_nothing_is_repeated_once_there_was_content() -> None:
    async with House(slots=1) as house:
        client = await house.ask()
        visit = await house.visit()
        visit.head()
        visit.text("Hello wor")
        await client.event("content_block_delta")
        visit.reset()
        response = await client.response()
        assert judge.violations(response.events) == []
        context = {"model": "m", "judge_model": True}
        assert run.compare_streams(case("LIF-12")["expected"]["events"], response.events, context) is None
        await house.check()
        assert len(house.upstream.visits) == 1


def role_and_reset(visit: Visit) -> None:
    visit.raw(SSE_HEAD + chunk(frame({"role": "assistant", "content": ""})))
    visit.reset()


def unavailable(visit: Visit) -> None:
    visit.refuse(503)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("fail", "status", "kind"),
    [(role_and_reset, 502, "api_error"), (unavailable, 529, "overloaded_error")],
    ids=["role chunk, reset", "503"],
)
@on_both_loops
async def test_LIF_13_a_failure_before_any_content_is_an_honest_status(fail, status, kind, stream) -> None:
    """There is one target for a model yet, so nothing is tried again on another: what holds without it is that
    no `message_start` leaks, and that the next request is not harmed.
    """
    async with House(slots=1) as house:
        client = await house.ask(stream=stream)
        fail(await house.visit())
        response = await client.response()
        assert response.status == status, response.body
        assert response.headers["content-type"] == "application/json"
        assert response.json["error"]["type"] == kind
        assert b"message_start" not in response.body
        client.ask("again")
        (await house.visit()).answer()
        again = await client.response()
        assert again.kinds.count("message_start") == 1
        assert again.kinds[-1] == "message_stop"


@pytest.mark.parametrize("close", [Visit.cut, Visit.reset], ids=["fin", "rst"])
@on_both_loops
async def test_LIF_14_a_request_that_may_have_started_is_not_repeated(close) -> None:
    async with House(slots=1) as house:
        client = await house.ask()
        close(await house.visit())
        response = await client.response()
        assert response.status == 502
        assert response.json["error"]["type"] == "api_error"
        await house.check()
        assert len(house.upstream.visits) == 1


@pytest.mark.parametrize("outcome", ["finishes", "is cut"])
@on_uvloop
async def test_LIF_15_shutdown_waits_for_streams_but_not_for_ever(outcome, tmp_path) -> None:
    patience = {"drain": 30} if outcome == "finishes" else {"drain": 0.2, "tick": 0.05}
    async with served(tmp_path, **patience) as gateway:
        client = await gateway.ask()
        visit = await gateway.upstream.next()
        visit.head()
        visit.text("Hello")
        await client.event("content_block_delta")
        gateway.terminate()
        await until(lambda: gateway.said("draining"))
        if outcome == "finishes":
            visit.text(" there")
            visit.finish()
            visit.done()
        response = await client.response()
        assert response.complete
        assert judge.violations(response.events) == []
        if outcome == "finishes":
            assert response.text == "Hello there"
            assert response.kinds[-1] == "message_stop"
        else:
            assert response.error["error"]["type"] in ("overloaded_error", "api_error")
        await visit.closed.wait()
        await until(lambda: gateway.ended)  # with status 0, which `served` checks
        client.transport.abort()


@LEAVE
@on_both_loops
async def test_LIF_16_a_client_that_leaves_during_its_upload(leave) -> None:
    async with House(slots=1) as house:
        body = body_of("x" * 10_000)
        client = await house.client()
        client.send(request(b"", length=len(body)) + body[: len(body) // 2])
        await until(lambda: house.server.server_state.tasks)
        leave(client)
        await until(lambda: not house.gateway.edges)
        await house.check()
        assert house.upstream.visits == []


MOMENTS = {
    "before message_start": ([{"role": "assistant", "content": ""}], "", None),
    "between blocks": (
        [{"reasoning_content": "Hm"}, {"content": "Hi"}, tool(call_id="c1", name="f")],
        "Hi",
        None,
    ),
    "inside a tool block": (
        [{"content": "Hi"}, tool('{"a": "', call_id="c1", name="f")],
        "input_json_delta",
        None,
    ),
    "after finish_reason": ([{"content": "Hi"}], "Hi", "stop"),
}


@LEAVE
@pytest.mark.parametrize(("deltas", "seen", "finish"), MOMENTS.values(), ids=MOMENTS)
@on_both_loops
async def test_LIF_17_a_disconnect_is_no_error_at_any_moment(deltas, seen, finish, leave) -> None:
    """That no line above `info` is logged and nothing was raised is what leaving the House checks."""
    async with House(slots=1) as house:
        client = await house.ask()
        visit = await house.visit()
        visit.raw(SSE_HEAD)
        visit.send(*(frame(delta) for delta in deltas))
        if finish:
            visit.finish(finish)
        await client.until(lambda: seen.encode() in client.data) if seen else await turns(10)
        leave(client)
        await visit.closed.wait()
        record = await house.record()
        assert (record["cause"], record.get("error")) == ("client", None)
