"""Every answer of a request that was to be served says where it comes from and how long it waited."""

from __future__ import annotations

import pytest

from antiphon.server.exchange import Exchange
from server.fleet_house import FleetHouse, model
from server.harness import Client, House, Response, on_uvloop, post, until
from server.openai_wire import chat

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
both_surfaces = pytest.mark.parametrize("surface", ["messages", "openai"])

LATE = {"commit_after": 1000}  # nothing is promised while a test waits


async def ask(house: House, surface: str, tag: str, headers: str = "", **fields: object) -> Client:
    client = await house.client()
    client.send((post if surface == "messages" else chat)(tag, headers=headers, **fields))
    return client


def told(response: Response) -> tuple[str | None, str | None]:
    """(antiphon-upstream, antiphon-queue-ms), each at most once."""
    for name in (b"antiphon-upstream", b"antiphon-queue-ms"):
        assert response.head.count(name) <= 1
    return response.headers.get("antiphon-upstream"), response.headers.get("antiphon-queue-ms")


@both_surfaces
@both_ways
@on_uvloop
async def test_an_error_of_the_upstream(surface, stream) -> None:
    async with House(slots=1) as house:
        holder = await ask(house, surface, "holder", stream=False)
        visit = await house.visit()
        client = await ask(house, surface, "waits", stream=stream)
        await house.waiting(1)
        house.tick(1.5)
        visit.answer()
        (await house.visit()).refuse(400)
        response = await client.response()
        assert (response.status, *told(response)) == (400, "up", "1500")
        assert told(await holder.response()) == ("up", "0")


@both_surfaces
@both_ways
@pytest.mark.parametrize("heavy", [False, True], ids=["turnstile", "exchange"])
@on_uvloop
async def test_a_full_queue(surface, stream, heavy) -> None:
    """Told before its body is read, or, where that is too large for a first look, afterwards."""
    limits = {"queue_length": 1, **({"heavy_body": 1} if heavy else {})}
    async with House(slots=1, limits=limits) as house:
        clients = [await ask(house, surface, "holder", stream=False)]
        visit = await house.visit()
        clients.append(await ask(house, surface, "waits", stream=False))
        await house.waiting(1)
        house.clock.now += 3
        response = await (await ask(house, surface, "refused", stream=stream)).response()
        assert told(response) == ("up", "0")
        assert int(response.headers["retry-after"]) >= 1
        visit.answer()
        (await house.visit()).answer()
        assert [told(await client.response())[1] for client in clients] == ["0", "3000"]


@both_surfaces
@both_ways
@pytest.mark.parametrize("why", ["queue_timeout", "patience", "drained", "operator"])
@on_uvloop
async def test_who_leaves_the_queue_without_a_slot(surface, stream, why) -> None:
    """Of two upstreams: the one that would have been asked."""
    async with FleetHouse(slots=1, limits={**LATE, "queue_timeout": 30}) as house:
        held = await house.hold("a", "b")
        client = await ask(
            house,
            surface,
            "waits",
            "X-Stainless-Timeout: 20\r\n" if why == "patience" else "",
            stream=stream,
        )
        await house.waiting_at("a", 1)
        house.clock.now += 31 if why == "queue_timeout" else 21
        if why == "drained":
            for name in "ab":
                house[name].health.drain()
        if why == "operator":
            assert house.gateway.cancel(house.exchange_of("waits").job.request_id)
        house.tick()
        response = await client.response()
        assert response.status >= 500
        assert told(response) == ("a", "31000" if why == "queue_timeout" else "21000")
        # What somebody has cancelled must not come back by itself.
        assert response.headers.get("x-should-retry") == ("false" if why == "operator" else None)
        for visits in held.values():
            visits[0].answer()


@both_ways
@on_uvloop
async def test_nobody_could_be_asked(stream) -> None:
    async with FleetHouse() as house:
        house["a"].health.drain()
        response = await (await house.ask(model="only-a", stream=stream)).response()
        assert (response.status, *told(response)) == (529, "a", "0")


@both_ways
@on_uvloop
async def test_the_last_of_those_that_failed(stream) -> None:
    async with FleetHouse() as house:
        client = await house.ask(stream=stream)
        (await house.visit()).refuse(500)
        last = await house.visit()
        last.refuse(500)
        response = await client.response()
        assert (response.status, *told(response)) == (500, last.at, "0")


@both_ways
@on_uvloop
async def test_a_bug(stream, monkeypatch) -> None:
    async with House() as house:
        house.sayings = (*house.sayings, "internal")

        def broken(self: Exchange) -> None:
            raise LookupError

        monkeypatch.setattr(Exchange, "received", broken)
        client = await house.ask(stream=stream)
        (await house.visit()).answer()
        response = await client.response()
        assert (response.status, *told(response)) == (500, "up", "0")
        house.take_bug()


@on_uvloop
async def test_the_fallback_s_upstream_is_the_one_that_is_named() -> None:
    models = (model("m", "a", failed="spare"), model("spare", "b"))
    async with FleetHouse(models=models) as house:
        client = await house.ask(stream=False)
        (await house.visit()).refuse(500)
        (await house.visit()).refuse(400)
        response = await client.response()
        assert (response.status, *told(response)) == (400, "b", "0")


@on_uvloop
async def test_a_stream_that_is_promised_while_one_of_several_may_serve_it_names_none_of_them() -> None:
    async with FleetHouse(slots=1, limits={"commit_after": 1}) as house:
        held = await house.hold("a", "b")
        client = await house.ask()
        await house.waiting_at("a", 1)
        house.tick(2)
        await client.event("message_start")
        held["a"].pop().answer()
        (await house.visit()).answer()
        response = await client.response()
        assert told(response) == (None, "2000")
        held["b"].pop().answer()


@on_uvloop
async def test_what_was_refused_before_anybody_was_looked_for_has_neither() -> None:
    async with House() as house:
        for fields in ({"max_tokens": "many"}, {"messages": []}):
            response = await (await house.ask(**fields)).response()
            assert (response.status, *told(response)) == (400, None, None)
        empty = await (await house.ask(max_tokens=0, stream=False)).response()
        assert (empty.status, *told(empty)) == (200, None, None)
        await until(lambda: not house.gateway.live)
