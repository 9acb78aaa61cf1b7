"""While a request waits for a slot: its client's own deadline, places that lead nowhere, and how long it was."""

from __future__ import annotations

import pytest

from antiphon.core import own_faults
from antiphon.core.parts import Fault
from antiphon.server.admission import Slots
from server.fleet_house import FleetHouse, honest_error, model, whole_answer
from server.harness import Client, House, on_both_loops, on_uvloop, post, turns, until

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])

LATE = {"commit_after": 1000}  # nothing is promised while a test waits


async def ask_for(house: House, seconds: float, tag: str = "waits", **fields: object) -> Client:
    """A client that waits so long."""
    client = await house.client()
    client.send(post(tag, headers=f"X-Stainless-Timeout: {seconds}\r\n", **fields))
    return client


# --- The client's own deadline ------------------------------------------------------------------------


@both_ways
@on_both_loops
async def test_the_wait_ends_with_the_client_s_patience(stream) -> None:
    async with House(slots=1, limits=LATE) as house:
        holder = await house.ask("holder")
        visit = await house.visit()
        client = await ask_for(house, 2, stream=stream)
        await house.waiting(1)
        house.tick(2)
        assert house.stats == (1, 0, 1)
        house.tick(0.1)
        assert house.stats == (1, 0, 0)
        response = await client.response()
        assert response.status == 529
        assert honest_error(response)["type"] == "overloaded_error"
        assert int(response.headers["retry-after"]) >= 1
        assert response.headers["antiphon-queue-ms"] == "2100"
        await until(lambda: len(house.gateway.live) == 1)
        (record,) = house.records_written
        assert (record["cause"], record["phase"], record["status"]) == ("overload", "queued", 529)
        visit.answer()
        assert (await holder.response()).status == 200
        assert len(house.upstream.visits) == 1


@both_ways
@on_uvloop
async def test_without_a_word_it_is_the_time_that_sdks_wait(stream) -> None:
    async with House(slots=1, limits={**LATE, "queue_timeout": 1000}) as house:
        holder = await house.ask("holder", stream=False)
        visit = await house.visit()
        client = await house.ask("waits", stream=stream)
        await house.waiting(1)
        house.tick(600)
        assert house.stats == (1, 0, 1)
        visit.answer()
        await holder.response()
        (await house.visit()).answer()  # its slot came in time
        whole_answer(await client.response(), "ok")


@both_ways
@on_uvloop
async def test_a_slot_that_comes_after_the_deadline_goes_to_who_still_waits(stream) -> None:
    """Between two ticks, when nobody had been told yet."""
    async with House(slots=1, limits=LATE) as house:
        holder = await house.ask("holder", stream=False)
        visit = await house.visit()
        hasty = await ask_for(house, 2, stream=stream)
        await house.waiting(1)
        patient = await house.ask("patient", stream=stream)
        await house.waiting(2)
        house.clock.now += 2.5
        visit.answer()
        visit = await house.visit()
        assert visit.tag == "patient"
        assert (await hasty.response()).status == 529
        visit.answer()
        whole_answer(await patient.response(), "ok")
        await holder.response()


@on_uvloop
async def test_who_has_its_status_waits_as_long_as_anybody() -> None:
    async with House(slots=1, limits={"commit_after": 1, "queue_timeout": 300}) as house:
        holder = await house.ask("holder", stream=False)
        visit = await house.visit()
        client = await ask_for(house, 2)
        await house.waiting(1)
        house.tick(1)
        await client.event("message_start")
        house.tick(200)
        visit.answer()
        (await house.visit()).answer("late")
        whole_answer(await client.response(), "late")
        await holder.response()


@on_uvloop
async def test_at_the_tick_that_would_promise_it_the_deadline_is_first() -> None:
    async with House(slots=1, limits={"commit_after": 12}) as house:
        holder = await house.ask("holder", stream=False)
        visit = await house.visit()
        client = await ask_for(house, 12)
        await house.waiting(1)
        house.tick(12.5)
        response = await client.response()
        assert (response.status, honest_error(response)["type"]) == (529, "overloaded_error")
        visit.answer()
        await holder.response()


@both_ways
@on_uvloop
async def test_no_other_model_is_asked_for_who_has_given_up(stream) -> None:
    models = (model("m", "a", overloaded="spare"), model("spare", "b"), model("only-a", "a"))
    async with FleetHouse(models=models, slots=1, limits=LATE) as house:
        held = await house.hold("a")
        client = await ask_for(house, 5, stream=stream)
        await house.waiting_at("a", 1)
        house.tick(5.1)
        assert (await client.response()).status == 529
        held["a"][0].answer()
        assert house.script("b").visits == []


@both_ways
@on_uvloop
async def test_what_is_left_of_the_patience_counts_after_a_failure(stream) -> None:
    async with FleetHouse(slots=1, limits=LATE) as house:
        held = await house.hold("b")
        house["b"].slots._hold = 20.0  # as if each had held its slot for so long
        for spent, status in ((9, 529), (1, 200)):
            client = await ask_for(house, 25, stream=stream)
            visit = await house.visit()
            assert visit.at == "a"
            house.tick(spent)
            visit.reset()
            if status == 529:  # 16 s are left, a slot is 20 s away
                response = await client.response()
                assert (response.status, response.headers["retry-after"]) == (529, "20")
                assert house.slots_of("b") == (1, 0, 0)
        await house.waiting_at("b", 1)
        held["b"][0].answer()
        (await house.visit()).answer()
        whole_answer(await client.response(), "ok")


@both_ways
@on_uvloop
async def test_a_slot_that_is_free_is_taken_whatever_is_left_of_the_patience(stream) -> None:
    """A client may wait longer than it said, and there is nothing to wait for."""
    async with FleetHouse(slots=1, limits=LATE) as house:
        client = await ask_for(house, 5, stream=stream)
        visit = await house.visit()
        house.tick(50)
        visit.reset()
        other = await house.visit()
        assert other.at != visit.at
        other.answer()
        whole_answer(await client.response(), "ok")


# --- Places that lead nowhere -------------------------------------------------------------------------


@both_ways
@on_both_loops
async def test_a_drain_is_told_to_those_who_wait_at_the_next_tick(stream) -> None:
    async with FleetHouse(slots=1) as house:
        held = await house.hold("a")
        client = await house.ask(model="only-a", stream=stream)
        await house.waiting_at("a", 1)
        house.tick(1)
        assert house.slots_of("a") == (1, 0, 1)
        house.gateway.drains.drain("a")
        house.tick(1)
        assert house.slots_of("a") == (1, 0, 0)
        response = await client.response()
        assert (response.status, honest_error(response)["type"]) == (529, "overloaded_error")
        assert response.headers["antiphon-queue-ms"] == "2000"
        held["a"][0].answer()


@on_uvloop
async def test_a_drain_is_told_in_a_stream_that_was_promised() -> None:
    async with FleetHouse(slots=1, limits={"commit_after": 1}) as house:
        held = await house.hold("a")
        client = await house.ask(model="only-a")
        await house.waiting_at("a", 1)
        house.tick(1)
        await client.event("message_start")
        house["a"].health.drain()
        house.tick(1)
        response = await client.response()
        assert response.kinds == ["message_start", "error"]
        assert honest_error(response)["type"] == "overloaded_error"
        held["a"][0].answer()


@both_ways
@on_uvloop
async def test_who_waits_at_a_drained_place_alone_waits_at_the_others_from_the_next_tick_on(stream) -> None:
    async with FleetHouse(slots=1) as house:
        held = await house.hold("b")
        client = await house.ask(stream=stream)  # it has a slot at a
        visit = await house.visit()
        assert visit.at == "a"
        waits = await house.ask(stream=stream)  # where its prompt is warm
        await house.waiting_at("a", 1)
        assert house.slots_of("b")[2] == 0
        house["a"].health.drain()
        house.tick(1)
        assert (house.slots_of("a")[2], house.slots_of("b")[2]) == (0, 1)
        visit.answer()
        whole_answer(await client.response(), "ok")
        held["b"][0].answer()
        (await house.visit()).answer("b")
        whole_answer(await waits.response(), "b")


@on_uvloop
async def test_who_waits_at_one_that_is_ill_waits_on() -> None:
    """A circuit closes again, and what a server answers is truer than what is remembered of it."""
    async with FleetHouse(slots=1) as house:
        house.sayings = (*house.sayings, "upstream_lost")
        held = await house.hold("b")
        client = await house.ask()
        first = await house.visit()
        assert first.at == "a"
        first.reset()
        await house.waiting_at("b", 1)
        for _ in range(3):
            house["b"].health.failed("reset", house.clock.now)
        assert house["b"].health.state(house.clock.now) == "open"
        house.tick(0.1)
        assert house.slots_of("b") == (1, 0, 1)
        held["b"][0].answer()
        (await house.visit()).answer()
        whole_answer(await client.response(), "ok")


@both_ways
@on_uvloop
async def test_a_server_that_does_not_run_any_more_is_told_to_those_who_wait(stream) -> None:
    gone = Fault("overloaded_error", "the embedded model's server does not run", 529, "30")
    async with House(slots=1) as house:
        holder = await house.ask("holder", stream=False)
        visit = await house.visit()
        client = await house.ask("waits", stream=stream)
        await house.waiting(1)
        house.up._unavailable = lambda: gone
        house.tick(1)
        response = await client.response()
        assert (response.status, honest_error(response)["message"]) == (529, gone.message)
        assert response.headers["retry-after"] == "30"
        again = await house.ask("between two ticks", stream=stream)
        assert (await again.response()).status == 529
        house.up._unavailable = lambda: None
        late = await house.ask("late", stream=stream)
        await house.waiting(1)
        house.up._unavailable = lambda: gone
        visit.answer()  # the slot leads nowhere: nothing is sent there
        assert (await late.response()).status == 529
        await holder.response()
        assert len(house.upstream.visits) == 1


@pytest.mark.parametrize("way", ["newcomer", "heavy newcomer", "displaced"])
@on_uvloop
async def test_slots_that_let_nobody_in_are_not_called_a_full_queue(way, monkeypatch) -> None:
    async with House(
        slots=1, limits={"queue_length": 1, "heavy_body": 1 if "heavy" in way else 10**6}
    ) as house:
        holder = await house.ask("holder", stream=False)
        visit = await house.visit()
        client = await house.ask("waits", stream=False)
        await house.waiting(1)
        monkeypatch.setattr(Slots, "closed", True)
        if way == "displaced":
            (ticket,) = house.up.slots.waiting()
            house.up.slots._left(ticket)
            ticket._displace()
            refused = client
        else:
            refused = await house.ask("refused", stream=False)
        response = await refused.response()
        assert response.status == 529
        assert honest_error(response)["message"] == own_faults.COORDINATOR_GONE.message
        assert response.headers["retry-after"] == own_faults.COORDINATOR_GONE.retry_after
        monkeypatch.undo()
        visit.answer()
        await holder.response()
        if refused is not client:
            (await house.visit()).answer()
            await client.response()


# --- How long it waited -------------------------------------------------------------------------------


@both_ways
@on_uvloop
async def test_an_attempt_that_failed_is_no_waiting(stream) -> None:
    async with FleetHouse(slots=1, limits=LATE) as house:
        held = await house.hold("a", "b")
        client = await house.ask(stream=stream)
        await house.waiting_at("a", 1)
        house.tick(3)
        held["a"][0].answer()
        visit = await house.visit()
        assert visit.at == "a"
        house.tick(50)
        visit.refuse(500)
        await house.waiting_at("b", 1)
        house.tick(4)
        held["b"][0].answer()
        (await house.visit()).answer()
        response = await client.response()
        whole_answer(response, "ok")
        assert response.headers["antiphon-queue-ms"] == "7000"
        record = await house.record()
        assert (record["queue_ms"], record["duration_ms"]) == (7000.0, 57000.0)


@on_uvloop
async def test_a_client_that_leaves_in_its_second_queue_has_waited_in_both() -> None:
    async with FleetHouse(slots=1, limits=LATE) as house:
        held = await house.hold("a", "b")
        client = await house.ask(stream=False)
        await house.waiting_at("a", 1)
        house.tick(3)
        held["a"][0].answer()
        visit = await house.visit()
        house.tick(50)
        visit.refuse(500)
        await house.waiting_at("b", 1)
        house.clock.now += 4
        client.rst()
        await until(lambda: any(line["cause"] == "client" for line in house.records_written))
        (line,) = (line for line in house.records_written if line["cause"] == "client")
        assert line["queue_ms"] == 7000.0
        held["b"][0].answer()


@on_uvloop
async def test_a_promised_stream_says_how_long_it_has_waited_so_far() -> None:
    async with House(slots=1) as house:
        holder = await house.ask("holder", stream=False)
        visit = await house.visit()
        client = await house.ask("waits")
        await house.waiting(1)
        house.tick(12)
        await client.event("message_start")
        visit.answer()
        (await house.visit()).answer()
        assert (await client.response()).headers["antiphon-queue-ms"] == "12000"
        await holder.response()
        await turns()
