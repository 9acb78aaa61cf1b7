"""A new configuration under running streams: none is lost, slots are right, who has left is closed at last."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from antiphon.config import Coordination, UpstreamSettings
from antiphon.server.fleet import Fleet
from antiphon.server.worker_peers import Peers
from server.fleet_house import FleetHouse, honest_error, model, whole_answer
from server.harness import (
    DONE,
    SSE_HEAD,
    USAGE,
    Client,
    Visit,
    chunk,
    frame,
    on_both_loops,
    on_uvloop,
    turns,
    until,
)


def text(number: int) -> bytes:
    return frame({"content": f"{number} "})


def end(visit: Visit) -> None:
    visit.raw(chunk(frame(finish="stop")) + chunk(USAGE) + chunk(DONE) + b"0\r\n\r\n")


async def begun(house: FleetHouse, **fields: Any) -> tuple[Client, Visit]:
    """A stream with its first words."""
    client = await house.ask(**fields)
    visit = await house.visit()
    visit.raw(SSE_HEAD + chunk(text(0)))
    await client.event("content_block_delta")
    return client, visit


def held_everywhere(house: FleetHouse) -> int:
    members = (*house.backend._members.values(), *house.backend._leaving)
    return sum(member.upstream.slots.statistics().held for member in members)


@on_uvloop
async def test_two_hundred_streams_and_fifty_reloads() -> None:
    chance, names = random.Random(7), "abcde"
    kinds = {name: {"slots": 80} for name in "abc"}
    async with FleetHouse(kinds=kinds) as house:
        streams = []
        for number in range(200):
            client = await house.ask(f"{number}")
            visit = await house.visit()
            visit.raw(SSE_HEAD + chunk(text(0)))
            streams.append((client, visit))
        assert held_everywhere(house) == 200
        said = 1
        for number in range(50):
            chosen = chance.sample(names, chance.randrange(1, 5))
            await house.reload({name: {"slots": chance.randrange(1, 200)} for name in chosen})
            assert held_everywhere(house) == len(streams)
            assert list(house.backend.upstreams) == chosen
            for name in chosen:
                assert house[name].slots.statistics().slots == house.kinds[name]["slots"]
            for _, visit in streams:
                visit.send(text(said))
            said += 1
            if number % 5 == 0:  # one ends, one begins
                client, visit = streams.pop(chance.randrange(len(streams)))
                end(visit)
                response = await client.response()
                assert response.kinds[-1] == "message_stop"
                await until(lambda: held_everywhere(house) == len(streams))
                roomy = [name for name in chosen if house[name].slots.statistics().free > 0]
                if roomy:
                    fresh = await house.ask("fresh", model=f"only-{roomy[0]}")
                    visit = await house.visit()
                    assert visit.at == roomy[0]
                    visit.raw(SSE_HEAD + b"".join(chunk(text(each)) for each in range(said)))
                    streams.append((fresh, visit))
            house.tick(1)
        for _, visit in streams:
            end(visit)
        whole = "".join(f"{number} " for number in range(said))
        for client, _ in streams:
            whole_answer(await client.response(), whole)
        await until(lambda: held_everywhere(house) == 0)
        house.tick(1)
        assert house.backend._leaving == []
        await until(lambda: not house.backend._closing)
        kept = {house.script(name) for name in house.kinds}
        for scripted in house.scripted:
            if scripted not in kept:
                for side in scripted.connections:
                    await side.closed.wait()


@on_both_loops
async def test_who_has_left_is_closed_with_its_last_stream_and_not_before() -> None:
    async with FleetHouse() as house:
        client, visit = await begun(house, model="only-a")
        other = await house.ask(model="only-a", stream=False)
        (await house.visit()).answer()
        await other.response()
        idle = next(side for side in house.script("a").connections if side is not visit.side)
        await house.reload({"b": {}})
        house.tick(1)
        assert not visit.closed.is_set()
        visit.send(text(1))
        await client.event("content_block_delta", 2)
        end(visit)
        whole_answer(await client.response(), "0 1 ")
        house.tick(1)
        await visit.closed.wait()
        await idle.closed.wait()
        assert house.backend._leaving == []


@on_uvloop
async def test_new_requests_do_not_go_to_who_has_left() -> None:
    async with FleetHouse() as house:
        client, visit = await begun(house, model="only-a")
        await house.reload({"b": {}})
        for _ in range(4):
            other = await house.ask(stream=False)
            answering = await house.visit()
            assert answering.at == "b"
            answering.answer()
            await other.response()
        response = await (await house.ask(model="only-a")).response()
        assert (response.status, honest_error(response)["type"]) == (404, "not_found_error")
        end(visit)
        await client.response()


@on_uvloop
async def test_who_comes_back_while_its_streams_run_has_the_same_slots() -> None:
    async with FleetHouse(slots=2) as house:
        one, visit = await begun(house, model="only-a")
        two, other = await begun(house, model="only-a")
        upstream = house["a"]
        a = house.script("a")
        await house.reload({"b": {}})
        house._gone.remove(a)
        house._by_name["a"] = a  # the same server again
        await house.reload({"a": {"slots": 3}, "b": {}})
        assert house["a"] is upstream
        assert house.slots_of("a") == (2, 0, 0)
        third = await house.ask(model="only-a")
        third_visit = await house.visit()
        await house.ask("waits", model="only-a", stream=False)
        await house.waiting_at("a", 1)
        for each in (visit, other):
            end(each)
        for client in (one, two):
            whole_answer(await client.response(), "0 ")
        (await house.visit()).answer()
        third_visit.answer()
        whole_answer(await third.response(), "ok")
        house.tick(1)
        assert house.backend._leaving == []
        assert not any(side.closed.is_set() for side in a.connections)


@on_uvloop
async def test_fewer_slots_let_nobody_in_until_they_fit_and_more_let_in_at_once() -> None:
    async with FleetHouse(kinds={"a": {"slots": 3}}) as house:
        running = [await begun(house) for _ in range(3)]
        await house.reload({"a": {"slots": 1}})
        waits = [await house.ask(f"waits{number}") for number in range(2)]
        await house.waiting_at("a", 2)
        for client, visit in running[:2]:
            end(visit)
            await client.response()
        await until(lambda: house.slots_of("a") == (1, 0, 2))
        await house.reload({"a": {"slots": 3}})
        assert house.slots_of("a") == (3, 0, 0)
        for _ in waits:
            (await house.visit()).answer()
        end(running[2][1])
        for client in (*waits, running[2][0]):
            assert (await client.response()).kinds[-1] == "message_stop"


@on_uvloop
async def test_those_that_wait_for_who_has_left_are_served() -> None:
    """By the other, or by the one that they wait for: it takes them before it goes."""
    async with FleetHouse(slots=1) as house:
        held = await house.hold("a", "b")
        both = await house.ask("both")
        alone = await house.ask("alone", model="only-a")
        await house.waiting_at("a", 2)
        upstream, a = house["a"], house.script("a")
        await house.reload({"b": {"slots": 1}})
        held["b"][0].answer()
        visit = await house.visit()
        assert (visit.at, visit.tag) == ("b", "both")
        visit.answer("both")
        held["a"][0].answer()
        visit = await house.visit()
        assert (visit.side.upstream, visit.tag) == (a, "alone")
        house.tick(1)
        visit.answer("alone")
        whole_answer(await both.response(), "both")
        whole_answer(await alone.response(), "alone")
        await until(lambda: upstream.idle)
        house.tick(1)
        assert house.backend._leaving == []


@on_uvloop
async def test_those_that_wait_are_told_of_a_server_that_is_new() -> None:
    async with FleetHouse(
        kinds={"a": {"slots": 1}}, models=(model("m", "a", "b"), model("only-a", "a"))
    ) as house:
        held = await house.hold("a")
        client = await house.ask()
        await house.waiting_at("a", 1)
        await house.reload({"a": {"slots": 1}, "b": {}})
        house.tick(1)  # their plan names it: it was not there
        response: Any = client.so_far
        assert response is None
        held["a"][0].answer()
        (await house.visit()).answer("from a")
        whole_answer(await client.response(), "from a")
        later = await house.ask()
        (await house.visit()).answer("later")
        whole_answer(await later.response(), "later")


@on_uvloop
async def test_another_address_under_the_same_name() -> None:
    async with FleetHouse(kinds={"a": {"slots": 1}}) as house:
        client, visit = await begun(house)
        new = await house.spare("new")
        await house.reload({"a": {"slots": 1, "base_url": f"http://127.0.0.1:{new.port}/v1"}})
        other = await house.ask(stream=False)
        moved = await house.visit()
        assert moved.at == "new"
        moved.answer("new")
        whole_answer(await other.response(), "new")
        end(visit)
        whole_answer(await client.response(), "0 ")
        house.tick(1)
        await visit.closed.wait()


@on_uvloop
async def test_another_server_under_the_same_name_lists_other_models() -> None:
    def listing(window: int) -> dict[str, Any]:
        return {"/v1/models": {"data": [{"id": "m", "max_model_len": window}]}}

    async with FleetHouse(kinds={"a": {}}, facts={"a": listing(1000)}) as house:
        await house.backend.models()
        assert house.backend.table.find("m").widest == 1000
        new = await house.spare("new")
        new.facts = listing(2000)
        await house.reload({"a": {"base_url": f"http://127.0.0.1:{new.port}/v1"}})
        await house.quiet()  # nobody has asked for the table meanwhile
        assert house.backend.table.find("m").widest == 2000


@on_uvloop
async def test_another_kind_for_the_same_server() -> None:
    async with FleetHouse(kinds={"a": {}}) as house:
        client, visit = await begun(house)
        await house.reload({"a": {"kind": "openai", "slots": 4}})
        other = await house.ask(stream=False)
        fresh = await house.visit()
        assert "max_completion_tokens" in fresh.body
        assert house.slots_of("a") == (2, 0, 0)
        fresh.answer()
        await other.response()
        end(visit)
        whole_answer(await client.response(), "0 ")


@on_uvloop
async def test_a_server_that_does_not_answer_now_is_what_it_was() -> None:
    """Its `kind` is `auto` as before, and another setting of it has changed."""
    facts = {"/props": {"total_slots": 3, "default_generation_settings": {}}}
    kinds = {"a": {"kind": "auto", "slots": "auto"}}
    async with FleetHouse(kinds=kinds, facts={"a": facts}) as house:
        assert house["a"].quirks.name == "llamacpp"
        house.script("a").facts = {}
        await house.reload({"a": {"kind": "auto", "slots": "auto", "think_tags": "off"}})
        await house.quiet()
        assert (house["a"].quirks.name, house["a"].quirks.think_tags) == ("llamacpp", "off")
        assert house["a"].slots.statistics().slots == 3
        house.script("a").facts = facts
        await house.reload({"a": {"kind": "generic", "slots": 5}})
        await house.quiet()
        assert (house["a"].quirks.name, house["a"].slots.statistics().slots) == ("generic", 5)
        await house.reload(kinds)
        await house.quiet()
        assert (house["a"].quirks.name, house["a"].slots.statistics().slots) == ("llamacpp", 3)


@pytest.mark.parametrize("wrong", ["ftp://127.0.0.1/v1", "http://", "http://a b/v1"])
@on_uvloop
async def test_a_configuration_that_cannot_be_used_changes_nothing(wrong) -> None:
    async with FleetHouse() as house:
        client, visit = await begun(house, model="only-a")
        before = dict(house.backend.upstreams), house.backend.table
        one = UpstreamSettings(name="c", base_url=wrong)
        kinds, scripts = house.kinds, dict(house._by_name)
        house.kinds = {"b": {}, "c": {"base_url": one.base_url}}
        house._script("c")
        with pytest.raises(ValueError, match="upstream c"):
            house.backend.apply(house.settings())
        house.kinds, house._by_name = kinds, scripts
        assert (dict(house.backend.upstreams), house.backend.table) == before
        assert house.backend._leaving == []
        end(visit)
        whole_answer(await client.response(), "0 ")


@pytest.mark.parametrize("named", ["redis://h/0", None])
@on_uvloop
async def test_workers_are_told_nothing_new_of_where_they_share(named, tmp_path) -> None:
    """They count themselves, and may share through a folder that no file names."""
    async with FleetHouse() as house:
        gateway, settings = house.gateway, house.settings()
        gateway.peers = Peers(tmp_path, gateway.ordinary.answer)
        own = Coordination(where=named or "local:/f", gateways=2)
        gateway.settings = structs.replace(settings, coordination=own)
        wanted = structs.replace(settings, coordination=named and Coordination(where=named))
        with capture_logs() as told:
            gateway.apply(wanted)
            gateway.apply(structs.replace(wanted, coordination=Coordination(where="redis://other/0")))
        gateway.peers = None
        assert gateway.settings.coordination == own
        (line,) = [line for line in told if line["event"] == "settings_changed"]
        assert line["restart"] == ["coordination: the old one stays until a restart"]


@on_uvloop
async def test_a_reload_while_a_request_is_planned() -> None:
    async with FleetHouse() as house:
        go_on = house.stop_planning()
        client = await house.ask()
        await turns(20)
        await house.reload({"b": {}})
        go_on.set()
        (await house.visit()).answer("b")
        whole_answer(await client.response(), "b")


@on_uvloop
async def test_the_end_of_everything_in_the_middle_of_a_reload() -> None:
    """An upstream that is being closed is closed to its end."""
    async with FleetHouse() as house:
        client = await house.ask(model="only-a", stream=False)
        (await house.visit()).answer()
        await client.response()
        fleet = Fleet(house.settings(), clock=house.clock, probes=False)
        await fleet.start()
        leaving, closed = fleet.upstreams["a"].pool, asyncio.Event()
        close = leaving.aclose

        async def slow() -> None:
            await turns()
            await close()
            closed.set()

        leaving.aclose = slow
        house.kinds = {"b": {}}
        a = house._by_name.pop("a")
        house._gone.append(a)
        fleet.apply(house.settings())
        assert fleet._leaving == []
        await fleet.aclose()
        assert closed.is_set()
        await house.reload()


@on_uvloop
async def test_fifty_reloads_of_an_idle_fleet_leave_nothing() -> None:
    async with FleetHouse() as house:
        for number in range(50):
            kinds = {"b": {}} if number % 2 else {"a": {"slots": 1 + number}, "b": {"slots": 60 - number}}
            await house.reload(kinds)
        await until(lambda: not house.backend._closing)
        assert house.backend._leaving == []
        assert list(house.backend.upstreams) == ["b"]
