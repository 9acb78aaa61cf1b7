"""Law 8 for two upstreams: whatever happens at any point of a failover, nothing is left and nobody is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.config import RetrySettings
from server.fleet_house import FleetHouse, whole_answer
from server.harness import SSE_HEAD, Client, Visit, chunk, frame, on_asyncio, on_both_loops, on_uvloop, until
from server.test_cancel_sweep import (
    LEAVES,
    Points,
    client_gone,
    judge_answer,
    may_have_ended,
    pause_and_resume,
    play,
    reset_client,
    shut_down,
    tick_early,
    tick_late,
)

ROLE = chunk(frame({"role": "assistant", "content": ""}))
LONG = "SECRET " * 2000
"""Over `heavy_body` of these tests: it is planned in the worker process."""


def reset_upstreams(house: FleetHouse, client: Client) -> None:
    """Every connection that a request of the client's is on."""
    for scripted in house.scripted:
        for visit in scripted.visits:
            if visit.tag.startswith("SECRET") and not visit.side.transport.is_closing():
                visit.reset()


def lose_one_upstream(house: FleetHouse, client: Client) -> None:
    """A new configuration, without the first of them."""
    house.backend.apply(house.settings_of("b"))


STAYS = (pause_and_resume, tick_early, tick_late, shut_down, reset_upstreams, lose_one_upstream)


class SweepHouse(FleetHouse):
    """Whoever is asked first for a request that is no heir's fails before any content."""

    def settings_of(self, *names: str) -> Any:
        kinds, self.kinds = self.kinds, {name: self.kinds[name] for name in names}
        try:
            return self.settings()
        finally:
            self.kinds = kinds

    def fail_first(self) -> None:
        self.failed = False
        for scripted in self.scripted:
            scripted.answering = self._answer

    def _answer(self, visit: Visit) -> None:
        if visit.tag.startswith("SECRET") and not self.failed:
            self.failed = True
            play(visit, [SSE_HEAD, ROLE], visit.reset)
        else:
            play(visit)

    async def again(self) -> None:
        """Nothing is left; the next run begins where this one began."""
        for client in self.clients:
            client.transport.abort()
        await until(lambda: not self.gateway.edges)
        self.backend.apply(self.settings())
        # uvicorn's own line; nobody cancels its tasks but a forced exit
        self.records.lines[:] = [line for line in self.records.lines if "ASGI application" not in line]
        await self.check()
        for scripted in self.scripted:
            scripted.visits.clear()
            scripted.connections[:] = [each for each in scripted.connections if not each.closed.is_set()]
        self.clients.clear()
        self.said.entries.clear()
        for upstream in self.backend.upstreams.values():
            upstream.health._circuit._close()
        self.gateway.budget._balance = 100.0


async def sweep(
    house: SweepHouse, event: Callable[..., None], points: Points, prompt: str, *, stream: bool, step: int = 1
) -> int:
    stays = event in STAYS
    for at in range(1, 4000, step):
        house.fail_first()
        client, heir = await house.client(), await house.client()
        points.passed, points.at = 0, at
        points.inject = lambda client=client: event(house, client)
        points.armed = True
        client.ask(prompt, stream=stream)
        heir.ask("heir", stream=stream)
        for each in (client, heir):
            await each.until(lambda each=each: may_have_ended(each))
        points.running = False
        judge_answer(client, stays=stays, late=event is tick_late)
        judge_answer(heir, stays=True, late=event is tick_late)
        await house.again()
        if points.passed < at:
            break
    return at


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("other", ["generic", "openai"], ids=["of one kind", "of two kinds"])
@pytest.mark.parametrize("event", [*LEAVES, *STAYS], ids=lambda event: event.__name__)
@on_asyncio
async def test_an_event_at_every_point_of_a_failover(event, other, stream, monkeypatch) -> None:
    points = Points(monkeypatch)
    kinds = {"a": {}, "b": {"kind": other}}
    retries = RetrySettings(budget=1.0)
    async with SweepHouse(kinds=kinds, slots=1, limits={"settle": 0.001}, retries=retries) as house:
        assert await sweep(house, event, points, "SECRET", stream=stream) > 60


@pytest.mark.parametrize(
    "event", [client_gone, reset_client, shut_down, tick_early], ids=lambda event: event.__name__
)
@on_asyncio
async def test_an_event_at_every_point_while_a_worker_plans(event, monkeypatch) -> None:
    points = Points(monkeypatch)
    limits = {"settle": 0.001, "heavy_body": 4096}
    async with SweepHouse(
        kinds={"a": {}, "b": {"kind": "openai"}}, slots=1, limits=limits, retries=RetrySettings(budget=1.0)
    ) as house:
        assert await sweep(house, event, points, LONG, stream=False, step=3) > 60


# --- One by one ---------------------------------------------------------------------------------------------


async def with_a_seat(house: FleetHouse, **fields: Any) -> tuple[Client, asyncio.Event]:
    """A client whose request has a slot of another kind of server, and is being planned for it."""
    held = await house.hold("a", "b")
    client = await house.ask("first", **fields)
    await house.waiting_at("b", 1)
    go_on = house.stop_planning()
    held["b"][0].answer()
    await until(lambda: house.slots_of("b") == (1, 0, 0) and not house["b"].pool.statistics().active)
    assert house.slots_of("a") == (1, 0, 0)
    exchange = house.exchange_of("first")
    assert exchange._seeking._seat is not None
    held["a"][0].answer()
    await until(lambda: house.slots_of("a") == (0, 0, 0))
    return client, go_on


TWO_KINDS: dict[str, dict[str, Any]] = {"a": {}, "b": {"kind": "openai"}}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", ["fin", "rst", "half_close"])
@on_both_loops
async def test_a_client_that_leaves_with_a_seat_that_is_not_used_yet(leave, stream) -> None:
    async with FleetHouse(kinds=TWO_KINDS, slots=1) as house:
        client, go_on = await with_a_seat(house, stream=stream)
        getattr(client, leave)()
        await until(lambda: house.slots_of("b") == (0, 0, 0))  # at once, not when it is planned
        assert not any(visit.tag == "first" for scripted in house.scripted for visit in scripted.visits)
        go_on.set()
        await until(lambda: not house.gateway.live)
        assert not any(visit.tag == "first" for scripted in house.scripted for visit in scripted.visits)
        assert house["b"].health.statistics(house.clock.now).failures == {}


@on_uvloop
async def test_a_seat_that_is_not_used_yet_is_used_in_the_end() -> None:
    async with FleetHouse(kinds=TWO_KINDS, slots=1) as house:
        client, go_on = await with_a_seat(house)
        for _ in range(400):  # ticks go on: no limit of a queue runs out any more
            house.tick(1)
        go_on.set()
        visit = await house.visit()
        assert (visit.at, visit.tag) == ("b", "first")
        visit.answer("late")
        response = await client.response()
        whole_answer(response, "late")
        assert response.headers.get("antiphon-upstream") in ("b", None)


@on_uvloop
async def test_the_gateway_stops_while_a_seat_is_not_used_yet() -> None:
    async with FleetHouse(kinds=TWO_KINDS, slots=1) as house:
        client, go_on = await with_a_seat(house, stream=False)
        for exchange in list(house.gateway.live):
            exchange.close("shutdown")
        assert house.slots_of("b") == (0, 0, 0)
        go_on.set()
        assert (await client.response()).status == 529


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@on_both_loops
async def test_a_client_that_leaves_while_it_waits_in_two_queues(stream) -> None:
    async with FleetHouse(slots=1) as house:
        held = await house.hold("a", "b")
        client = await house.ask("first", stream=stream)
        heir = await house.ask("heir", stream=stream)
        await house.waiting_at("a", 2)
        await house.waiting_at("b", 2)
        client.rst()
        await house.waiting_at("a", 1)
        assert house.slots_of("b") == (1, 0, 1)
        held["b"][0].answer()
        visit = await house.visit()
        assert (visit.at, visit.tag) == ("b", "heir")
        assert house.slots_of("a") == (1, 0, 0)
        visit.answer("heir's")
        whole_answer(await heir.response(), "heir's")
        held["a"][0].answer()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@on_both_loops
async def test_a_client_that_leaves_the_second_attempt(stream) -> None:
    async with FleetHouse(slots=1) as house:
        client = await house.ask(stream=stream)
        first = await house.visit()
        first.reset()
        second = await house.visit()
        second.head()
        client.rst()
        await second.closed.wait()
        await until(lambda: house.slots_of("a") == house.slots_of("b") == (0, 0, 0))
        stats = house[second.at].health.statistics(house.clock.now)
        assert stats.failures == {}  # that is not the server's fault
        assert house[first.at].health.statistics(house.clock.now).failures == {"reset": 1}


@on_uvloop
async def test_a_client_that_leaves_while_its_request_is_on_trial_gives_the_trial_back() -> None:
    async with FleetHouse(slots=1) as house:
        for name in ("a", "b"):
            for _ in range(3):
                client = await house.ask(model=f"only-{name}", stream=False)
                (await house.visit()).refuse(500)
                await client.response()
        house.tick(2)
        client = await house.ask("trial", model="only-a")
        visit = await house.visit()
        assert not house["a"].health._circuit.admits(house.clock.now)
        client.rst()
        await visit.closed.wait()
        await until(lambda: house["a"].health._circuit.admits(house.clock.now))
        client = await house.ask(model="only-a")
        (await house.visit()).answer("well")
        whole_answer(await client.response(), "well")
        assert house["a"].health.state(house.clock.now) == "closed"
