"""An OpenAI client that goes away, in every phase: the slot that it shares with the other surface is free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from antiphon.core.relay import Relay
from server.harness import (
    DONE,
    SSE_HEAD,
    Client,
    House,
    Visit,
    chunk,
    deaf_listener,
    on_asyncio,
    on_both_loops,
    turns,
    until,
)
from server.openai_wire import FIRST, JSON_HEAD, STOP, WHOLE, asked, chat, passed
from server.test_cancel_sweep import LEAVES, STAYS, Points, cancel_task, may_have_ended, play, tick_late

PIECES = [
    SSE_HEAD,
    chunk(FIRST),
    chunk(FIRST[:20]),
    chunk(FIRST[20:]),
    chunk(STOP),
    chunk(DONE) + b"0\r\n\r\n",
]


async def waiting(house: House, client: Client) -> Visit:
    client.send(chat("first"))
    return await house.visit()


async def prefill(house: House, client: Client) -> Visit:
    visit = await waiting(house, client)
    visit.raw(SSE_HEAD)
    await until(lambda: house.exchange_of("first").phase.value == "prefill")
    return visit


async def only_comments(house: House, client: Client) -> Visit:
    """The stream has begun, no token has come."""
    visit = await waiting(house, client)
    visit.raw(SSE_HEAD + chunk(b": hello\n\n"))
    await passed(client, b": hello\n\n")
    return visit


async def streaming(house: House, client: Client) -> Visit:
    visit = await waiting(house, client)
    visit.raw(SSE_HEAD + chunk(FIRST))
    await passed(client, FIRST)
    return visit


async def half_a_frame(house: House, client: Client) -> Visit:
    visit = await streaming(house, client)
    visit.send(FIRST[:20])
    await passed(client, FIRST + FIRST[:20])
    return visit


async def finished(house: House, client: Client) -> Visit:
    """A finish reason came, `[DONE]` did not."""
    visit = await streaming(house, client)
    visit.send(STOP)
    await passed(client, FIRST + STOP)
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


async def early(house: House, client: Client) -> Visit:
    """Long after a Messages client would have been promised a stream."""
    visit = await waiting(house, client)
    house.tick(100)
    await turns()
    assert client.data == b""
    return visit


async def whole_waiting(house: House, client: Client) -> Visit:
    client.send(chat("first", stream=False))
    return await house.visit()


async def whole_midway(house: House, client: Client) -> Visit:
    visit = await whole_waiting(house, client)
    visit.raw(JSON_HEAD + chunk(WHOLE[:20]))
    await passed(client, WHOLE[:20])
    return visit


async def error_body(house: House, client: Client) -> Visit:
    """An error status whose body does not come."""
    visit = await waiting(house, client)
    visit.raw(b"HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\n")
    await until(lambda: house.exchange_of("first").phase.value == "prefill")
    return visit


async def reused(house: House, client: Client) -> Visit:
    """Both connections have served the other surface before."""
    client.ask("before")
    (await house.visit()).answer()
    assert (await client.response()).kinds[-1] == "message_stop"
    await until(lambda: house.up.pool.statistics().idle == 1)
    visit = await streaming(house, client)
    assert visit.side is house.upstream.visits[0].side
    return visit


PHASES: dict[Callable[[House, Client], Awaitable[Visit]], str] = {
    waiting: "waiting",
    prefill: "prefill",
    only_comments: "prefill",
    streaming: "streaming",
    half_a_frame: "streaming",
    finished: "streaming",
    behind: "streaming",
    held_back: "streaming",
    early: "waiting",
    whole_waiting: "waiting",
    whole_midway: "streaming",
    error_body: "prefill",
    reused: "streaming",
}
LEAVE = {"fin": Client.fin, "rst": Client.rst, "half-close": Client.half_close}
by_any_way = pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)


async def served(house: House, client: Client, visit: Visit) -> None:
    """The upstream answers, and a client of either surface has all of it."""
    visit.answer("yours")
    response = await client.response()
    assert response.complete
    assert b'"yours"' in response.body
    if not response.body.startswith(b"event: "):
        assert response.body.endswith(DONE)


@by_any_way
@pytest.mark.parametrize("arrange", PHASES, ids=lambda arrange: arrange.__name__)
@on_both_loops
async def test_a_client_that_leaves_frees_its_slot_for_the_other_surface(arrange, leave) -> None:
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
        record = house.records_written[-1]
        assert (record["surface"], record["cause"], record["phase"]) == ("openai", "client", PHASES[arrange])
        assert record["input_tokens"] > 0
        assert not (client.so_far and client.so_far.complete)
        await served(house, heir, heirs)


@by_any_way
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@on_both_loops
async def test_a_messages_client_that_leaves_frees_its_slot_for_an_openai_client(stream, leave) -> None:
    async with House(slots=1) as house:
        client = await house.ask("first", stream=stream)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(FIRST))
        await until(lambda: house.exchange_of("first").phase.value == "streaming")
        heir = await asked(house, "heir")
        await house.waiting(1)
        leave(client)
        await visit.closed.wait()
        heirs = await house.visit()
        assert house.stats == (1, 0, 0)
        await served(house, heir, heirs)


@by_any_way
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@on_both_loops
async def test_who_leaves_the_queue_never_reaches_the_upstream(stream, leave) -> None:
    async with House(slots=1) as house:
        holder = await house.ask("holder")
        holding = await house.visit()
        leaver = await asked(house, "leaver", stream=stream)
        await house.waiting(1)
        heir = await asked(house, "heir")
        await house.waiting(2)
        leave(leaver)
        await until(lambda: house.records_written)
        record = house.records_written[-1]
        assert (record["cause"], record["phase"]) == ("client", "queued")
        await served(house, holder, holding)
        await served(house, heir, await house.visit())
        assert [each.tag for each in house.upstream.visits] == ["holder", "heir"]


@by_any_way
@on_both_loops
async def test_a_client_that_leaves_while_its_upstream_is_being_connected(leave) -> None:
    with deaf_listener() as port:
        async with House(slots=1, upstream_url=f"http://127.0.0.1:{port}/v1") as house:
            client = await asked(house)
            await until(lambda: house.up.pool.statistics().connecting == 1)
            leave(client)
            await until(lambda: house.records_written)
            record = house.records_written[-1]
            assert (record["cause"], record["phase"]) == ("client", "connecting")
            assert house.stats == (0, 0, 0)


@by_any_way
@on_both_loops
async def test_a_client_that_leaves_behind_done_has_had_its_answer(leave) -> None:
    """`[DONE]` frees the slot, whether the upstream's message ends or not, and whether the client reads or not."""
    async with House(slots=1, sndbuf=16 * 1024, limits={"settle": 0.001}) as house:
        client = await house.client(rcvbuf=4096)
        visit = await behind(house, client)
        heir = await house.ask("heir")
        await house.waiting(1)
        visit.send(STOP, DONE)  # the last chunk does not come
        heirs = await house.visit()
        leave(client)
        await visit.closed.wait()
        await served(house, heir, heirs)
        causes = {record["cause"] for record in house.records_written}
        assert causes == {"finished"}


# --- At every point ---------------------------------------------------------------------------------


def judge_answer(client: Client, *, stays: bool, late: bool) -> None:
    response = client.so_far
    said = FIRST + FIRST + STOP + DONE
    if response is None or response.status == 408:  # a tick may come before the request is there
        assert late or not stays
    elif response.status != 200:
        assert set(response.json["error"]) == {"message", "type", "param", "code"}
        assert response.status in (502, 503, 504), response
    elif response.complete:
        # Its own end, or one that lacks nothing but the `[DONE]`.
        assert response.body in (said, said.removesuffix(DONE))
    elif stays:
        passing, found, words = response.body.partition(b'data: {"error":')
        assert found, response.body
        assert words.endswith(b"}\n\n")
        assert said.startswith((passing, passing.removesuffix(b"\n\n")))
    else:
        assert said.startswith(response.body.partition(b'data: {"error":')[0].removesuffix(b"\n\n"))


@pytest.mark.parametrize("event", [*LEAVES, *STAYS], ids=lambda event: event.__name__)
@on_asyncio
async def test_an_event_at_every_point(event, monkeypatch) -> None:
    points = Points(monkeypatch)
    async with House(slots=1, limits={"settle": 0.001}) as house:
        house.upstream.answering = lambda visit: play(visit, PIECES)
        for at in range(1, 2000):
            client, heir = await house.client(), await house.client()
            points.passed, points.at = 0, at
            points.inject = lambda client=client: event(house, client)
            points.armed = True
            client.send(chat("SECRET"))
            heir.send(chat("heir"))
            for each in (client, heir):
                await each.until(lambda each=each: may_have_ended(each))
            points.running = False
            judge_answer(client, stays=event in STAYS, late=event is tick_late)
            judge_answer(heir, stays=True, late=event is tick_late)
            for each in (client, heir):
                each.transport.abort()
            await until(lambda: not house.gateway.edges)
            if event is cancel_task:  # uvicorn's own line; nobody cancels its tasks but a forced exit
                house.records.lines[:] = [
                    line for line in house.records.lines if "ASGI application" not in line
                ]
            await house.check()
            house.upstream.visits.clear()
            house.clients.clear()
            house.said.entries.clear()
            if points.passed < at:
                break
        assert at > 30


@pytest.mark.parametrize("name", ["on_head", "feed", "end", "frames"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@on_both_loops
async def test_a_bug_in_the_answer_ends_nothing_else_and_looks_like_no_answer(
    name, stream, monkeypatch
) -> None:
    async with House(slots=1) as house:
        client = await asked(house, "SECRET", stream=stream)
        visit = await house.visit()
        head, data = (SSE_HEAD, FIRST) if stream else (JSON_HEAD, WHOLE)
        if name != "on_head":
            visit.raw(head + chunk(data[:20]))
            await passed(client, data[:20])

        def wrong(*args: object, **kwargs: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr(Relay, name, wrong)
            visit.raw(head if name == "on_head" else chunk(data[20:]))
            visit.cut()
            response = await client.response()
        assert house.take_bug()["error"] == "ZeroDivisionError"
        if name == "on_head":
            assert (response.status, response.json["error"]["type"]) == (500, "server_error")
        elif stream:
            assert not response.complete
            # Apart from what the client may have half of.
            assert b'\n\ndata: {"error":{"message":"internal error' in response.body
        else:
            assert not response.complete
            assert response.body in (WHOLE[:20], WHOLE)
        heir = await house.ask("heir")
        await served(house, heir, await house.visit())


@on_both_loops
async def test_eight_of_both_surfaces_leave_at_once_and_eight_others_get_their_slots() -> None:
    async with House(slots=8) as house:

        async def ask(tag: str, number: int) -> Client:
            return await (asked(house, tag) if number % 2 else house.ask(tag))

        leavers = [await ask(f"leaver {number}", number) for number in range(8)]
        visits = [await house.visit() for _ in leavers]
        heirs = {f"heir {number}": await ask(f"heir {number}", number // 2) for number in range(8)}
        await house.waiting(8)
        for number, leaver in enumerate(leavers):
            (leaver.rst if number % 3 else leaver.fin)()
        await asyncio.gather(*(visit.closed.wait() for visit in visits))
        while heirs:
            visit = await house.visit()
            await served(house, heirs.pop(visit.tag), visit)
