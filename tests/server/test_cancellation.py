"""A client that goes away, in every phase: the upstream sees the close, the slot is free, the next one runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from antiphon.server.exchange import Exchange
from server.harness import (
    SSE_HEAD,
    Client,
    House,
    Visit,
    body_of,
    chunk,
    deaf_listener,
    frame,
    on_both_loops,
    request,
    tool,
    turns,
    until,
)

TEXT = frame({"content": "Hello"})


async def waiting(house: House, client: Client) -> Visit:
    client.ask("first")
    return await house.visit()


async def prefill(house: House, client: Client) -> Visit:
    visit = await waiting(house, client)
    visit.raw(SSE_HEAD)
    await until(lambda: house.exchange_of("first").phase.value == "prefill")
    return visit


async def blank(house: House, client: Client) -> Visit:
    """The role and white space: nothing that commits."""
    visit = await prefill(house, client)
    visit.send(frame({"role": "assistant", "content": ""}), frame({"content": " \n"}))
    exchange = house.exchange_of("first")
    exchange._time.heard = False
    visit.send(frame({"content": "\n"}))
    await until(lambda: exchange._time.heard)
    return visit


async def streaming(house: House, client: Client) -> Visit:
    visit = await waiting(house, client)
    visit.raw(SSE_HEAD + chunk(TEXT))
    await client.event("content_block_delta")
    return visit


async def thinking(house: House, client: Client) -> Visit:
    visit = await waiting(house, client)
    visit.raw(SSE_HEAD + chunk(frame({"reasoning_content": "Hm"})))
    await client.event("content_block_delta")
    return visit


async def mid_tool(house: House, client: Client) -> Visit:
    visit = await waiting(house, client)
    visit.raw(SSE_HEAD + chunk(frame(tool('{"a": "', call_id="c1", name="f"))))
    await client.event("content_block_delta")
    return visit


async def finished(house: House, client: Client) -> Visit:
    """A finish reason came, `[DONE]` did not."""
    visit = await streaming(house, client)
    visit.finish()
    await until(lambda: house.exchange_of("first").answer.finished)
    return visit


async def behind(house: House, client: Client) -> Visit:
    """The client reads nothing, its buffer is full."""
    visit = await streaming(house, client)
    client.stop_reading()
    while not client.edge.paused:
        visit.text("x" * 50_000)
        await turns(3)
    return visit


async def held_back(house: House, client: Client) -> Visit:
    """The upstream is paused too."""
    visit = await behind(house, client)
    while not house.exchange_of("first")._time.held_back:
        visit.text("x" * 50_000)
        await turns(3)
    return visit


async def reused_client(house: House, client: Client) -> Visit:
    client.ask("before")
    (await house.visit()).answer()
    assert (await client.response()).kinds[-1] == "message_stop"
    return await streaming(house, client)


async def reused_upstream(house: House, client: Client) -> Visit:
    other = await house.ask("before")
    (await house.visit()).answer()
    assert (await other.response()).kinds[-1] == "message_stop"
    await until(lambda: house.up.pool.statistics().idle == 1)
    visit = await streaming(house, client)
    assert visit.side is house.upstream.visits[0].side
    return visit


async def early_commit(house: House, client: Client) -> Visit:
    """The stream was started by `commit_after` while the upstream says nothing."""
    visit = await waiting(house, client)
    house.tick(12)
    await client.event("message_start")
    return visit


async def whole_midway(house: House, client: Client) -> Visit:
    client.ask("first", stream=False)
    visit = await house.visit()
    visit.raw(SSE_HEAD + chunk(TEXT))
    await until(lambda: house.exchange_of("first").phase.value == "streaming")
    return visit


async def whole_waiting(house: House, client: Client) -> Visit:
    client.ask("first", stream=False)
    return await house.visit()


async def error_body(house: House, client: Client) -> Visit:
    """An error status whose body does not come."""
    visit = await waiting(house, client)
    visit.raw(b"HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\n")
    await until(lambda: house.exchange_of("first").phase.value == "prefill")
    return visit


PHASES: dict[Callable[[House, Client], Awaitable[Visit]], str] = {
    waiting: "waiting",
    prefill: "prefill",
    blank: "prefill",
    streaming: "streaming",
    thinking: "streaming",
    mid_tool: "streaming",
    finished: "streaming",
    behind: "streaming",
    held_back: "streaming",
    reused_client: "streaming",
    reused_upstream: "streaming",
    early_commit: "waiting",
    whole_midway: "streaming",
    whole_waiting: "waiting",
    error_body: "prefill",
}
LEAVE = {"fin": Client.fin, "rst": Client.rst, "half-close": Client.half_close}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("arrange", PHASES, ids=lambda arrange: arrange.__name__)
@on_both_loops
async def test_a_client_that_leaves_frees_its_slot(arrange, leave) -> None:
    async with House(slots=1, sndbuf=16 * 1024) as house:
        client = await house.client(rcvbuf=4096)
        visit = await arrange(house, client)
        heir = await house.ask("heir")
        await house.waiting(1)
        leave(client)
        await visit.closed.wait()
        heirs = await house.visit()
        assert heirs.tag == "heir"
        assert house.stats == (1, 0, 0)
        record = next(line for line in reversed(house.records_written))
        assert (record["cause"], record["phase"]) == ("client", PHASES[arrange])
        assert record["input_tokens"] > 0
        client.legal()
        heirs.answer()
        answered = await heir.response()
        assert answered.kinds[-1] == "message_stop", (answered.body, house.said.entries)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@on_both_loops
async def test_who_leaves_the_queue_never_reaches_the_upstream(leave, stream) -> None:
    async with House(slots=1) as house:
        holder = await house.ask("holder")
        holding = await house.visit()
        leaver = await house.ask("leaver", stream=stream)
        await house.waiting(1)
        heir = await house.ask("heir")
        await house.waiting(2)
        leave(leaver)
        await until(lambda: house.records_written)
        assert house.records_written[-1]["phase"] == "queued"
        assert house.records_written[-1]["cause"] == "client"
        holding.answer()
        await holder.response()
        visit = await house.visit()
        assert visit.tag == "heir"
        visit.answer()
        await heir.response()
        assert [each.tag for each in house.upstream.visits] == ["holder", "heir"]


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@on_both_loops
async def test_a_client_that_leaves_while_its_upstream_is_being_connected(leave) -> None:
    with deaf_listener() as port:
        async with House(slots=1, upstream_url=f"http://127.0.0.1:{port}/v1") as house:
            client = await house.ask("first")
            await until(lambda: house.up.pool.statistics().connecting == 1)
            assert house.exchange().phase.value == "connecting"
            heir = await house.ask("heir", stream=False)
            await house.waiting(1)
            leave(client)
            await house.waiting(0)
            assert house.stats == (1, 0, 0)
            await until(lambda: house.records_written)
            assert house.records_written[-1]["phase"] == "connecting"
            house.tick(11)
            r = await heir.response()
            assert r.status == 504, r.body


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@on_both_loops
async def test_a_client_that_leaves_in_the_middle_of_its_request(leave) -> None:
    async with House() as house:
        body = body_of("x" * 300_000)
        client = await house.client()
        client.send(request(b"", length=len(body)))
        client.send(body[:200_000])
        await until(lambda: house.server.server_state.tasks)
        leave(client)
        await until(lambda: not house.gateway.edges)
        assert house.upstream.visits == []


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("size", [100, 70_000, 200_000, 1_000_000])
@on_both_loops
async def test_a_disconnect_is_heard_behind_a_body_of_any_size(leave, size) -> None:
    async with House() as house:
        client = await house.ask("x" * size)
        visit = await house.visit()
        leave(client)
        await visit.closed.wait()


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@on_both_loops
async def test_bytes_that_a_client_pipelined_do_not_hide_its_disconnect(leave) -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(body_of("first")) + request(body_of("second")))
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await client.event("content_block_delta")
        client.send(request(body_of("third")) * 50)
        leave(client)
        await visit.closed.wait()
        assert [each.tag for each in house.upstream.visits] == ["first"]


@on_both_loops
async def test_a_client_that_leaves_between_the_commit_and_the_response_start(monkeypatch) -> None:
    async with House(slots=1) as house:
        client = await house.ask("first")
        visit = await house.visit()
        received = Exchange.received

        def receive_and_lose(self):
            received(self)
            if self.answer.committed:
                assert not self._client.started
                self._client.link.transport.abort()

        monkeypatch.setattr(Exchange, "received", receive_and_lose)
        visit.raw(SSE_HEAD + chunk(TEXT))
        await visit.closed.wait()
        await client.gone()
        assert (await house.record())["cause"] == "client"


@on_both_loops
async def test_a_client_that_was_gone_before_its_exchange_began(monkeypatch) -> None:
    async with House(slots=1) as house:
        serve = Exchange.serve

        async def lost_first(self, link, send):
            link.transport.abort()
            await turns()
            await serve(self, link, send)

        monkeypatch.setattr(Exchange, "serve", lost_first)
        client = await house.ask("first")
        await client.gone()
        record = await house.record()
        assert (record["cause"], record["status"]) == ("client", 0)
        assert house.upstream.visits == []


@on_both_loops
async def test_the_answer_that_ended_a_moment_before_its_client_left_is_a_success() -> None:
    async with House(slots=1) as house:
        client = await house.ask("first")
        (await house.visit()).answer()
        await client.event("message_stop")
        client.rst()
        record = await house.record()
        assert (record["cause"], record["stop_reason"]) == ("finished", "end_turn")
        assert (record["input_tokens"], record["output_tokens"]) == (21, 5)


@on_both_loops
async def test_an_operator_ends_a_request_with_an_error() -> None:
    async with House(slots=1) as house:
        client = await house.client()
        visit = await streaming(house, client)
        house.exchange().close("operator")
        assert house.stats == (0, 0, 0)
        await visit.closed.wait()
        response = await client.response()
        assert response.complete
        assert response.error["error"]["type"] == "api_error"
        assert response.error["request_id"] == response.headers["request-id"]


@on_both_loops
async def test_eight_leave_at_once_and_eight_others_get_their_slots() -> None:
    async with House(slots=8) as house:
        leavers = [await house.ask(f"leaver {number}") for number in range(8)]
        visits = [await house.visit() for _ in leavers]
        heirs = [await house.ask(f"heir {number}") for number in range(8)]
        await house.waiting(8)
        for number, leaver in enumerate(leavers):
            (leaver.rst if number % 2 else leaver.fin)()
        for visit in visits:
            await visit.closed.wait()
        for number in range(8):
            visit = await house.visit()
            assert visit.tag.startswith("heir")
            visit.answer()
        for heir in heirs:
            answered = await heir.response()
            assert answered.kinds[-1] == "message_stop", (answered.body, house.said.entries)
