"""Several upstreams behind one gateway: fallback models, servers that fall ill, and servers that say what they are."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.config import HealthSettings, RetrySettings
from antiphon.server import choosing
from antiphon.server.fleet import Fleet
from antiphon.server.plan import Aim
from server.fleet_house import FleetHouse, honest_error, model, whole_answer
from server.harness import Client, Clock, on_both_loops, on_uvloop, until

TOO_LONG = (
    b'{"object":"error","message":"This model\'s maximum context length is 8192 tokens. However, you '
    b'requested 9000 tokens (8000 in the messages, 1000 in the completion).","type":"BadRequestError",'
    b'"code":400}'
)
both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


async def answered(house: FleetHouse, client: Client, at: str, sends: str, *, name: str = "m") -> None:
    """The next visit is there, by that name; the client gets its answer, under its own name."""
    visit = await house.visit()
    assert (visit.at, visit.body["model"]) == (at, sends)
    visit.answer("from there")
    response = await client.response()
    whole_answer(response, "from there")
    stream = response.headers["content-type"].startswith("text/event-stream")
    shown = response.events[0]["message"] if stream else response.json
    assert shown["model"] == name
    assert response.headers["antiphon-upstream"] == at


# --- Fallback models ----------------------------------------------------------------------------------


@both_ways
@on_uvloop
async def test_what_does_not_fit_goes_to_the_longer_model_before_anybody_is_asked(stream) -> None:
    models = (model("m", "a", window=300, overflow="long"), model("long", "b", sends="long-8k"))
    async with FleetHouse(models=models) as house:
        await answered(house, await house.ask("x " * 2000, stream=stream), "b", "long-8k")
        await answered(house, await house.ask("short", stream=stream), "a", "m")
        assert house.gateway.budget.statistics(house.clock.now).spent == 0  # it was the first attempt


@both_ways
@on_uvloop
async def test_what_the_server_finds_too_long_goes_to_the_longer_model(stream) -> None:
    models = (model("m", "a", overflow="long"), model("long", "b"))
    async with FleetHouse(models=models) as house:
        client = await house.ask(stream=stream)
        (await house.visit()).refuse(400, TOO_LONG)
        await answered(house, client, "b", "long")
        assert house["a"].health.statistics(house.clock.now).failures == {}  # it did its work


@on_uvloop
async def test_what_is_too_long_even_there_is_said_in_the_words_that_clients_compact_on() -> None:
    models = (model("m", "a", overflow="long"), model("long", "b"))
    async with FleetHouse(models=models) as house:
        client = await house.ask()
        (await house.visit()).refuse(400, TOO_LONG)
        (await house.visit()).refuse(400, TOO_LONG)
        response = await client.response()
        assert response.status == 400
        assert "exceed context limit" in honest_error(response)["message"]


SPARE = (model("m", "a", overloaded="spare"), model("spare", "b"), model("only-a", "a"))


@both_ways
@on_uvloop
async def test_a_full_queue(stream) -> None:
    async with FleetHouse(models=SPARE, slots=1, limits={"queue_length": 1}) as house:
        held = await house.hold("a")
        waits = await house.ask("waits", stream=stream)
        await house.waiting_at("a", 1)
        await answered(house, await house.ask(stream=stream), "b", "spare")
        held["a"][0].answer()
        await answered(house, waits, "a", "m")


@both_ways
@on_uvloop
async def test_a_wait_that_would_outlast_the_client(stream) -> None:
    async with FleetHouse(models=SPARE, slots=1) as house:
        held = await house.hold("a")
        house["a"].slots._hold = 100.0  # as if each had held its slot for so long
        client = await house.ask(stream=stream, headers="X-Stainless-Timeout: 60\r\n")
        await answered(house, client, "b", "spare")
        waits = await house.ask("waits", stream=stream, headers="X-Stainless-Timeout: 120\r\n")
        await house.waiting_at("a", 1)
        held["a"][0].answer()
        await answered(house, waits, "a", "m")


@both_ways
@pytest.mark.parametrize("status", [429, 503, 529])
@on_uvloop
async def test_a_server_that_is_busy(status, stream) -> None:
    async with FleetHouse(models=SPARE) as house:
        client = await house.ask(stream=stream)
        (await house.visit()).refuse(status)
        await answered(house, client, "b", "spare")
        assert (await house.record())["retries"] == 1


@on_uvloop
async def test_no_slot_in_time() -> None:
    """The place in the first queue is given up for it, and nothing of it comes back."""
    async with FleetHouse(models=SPARE, slots=1) as house:
        held = await house.hold("a")
        client = await house.ask(stream=False)
        await house.waiting_at("a", 1)
        house.tick(301)
        visit = await house.visit()
        assert (visit.at, visit.body["model"]) == ("b", "spare")
        assert house.slots_of("a") == (1, 0, 0)
        held["a"][0].answer()
        await until(lambda: house.slots_of("a") == (0, 0, 0))
        visit.answer("spare")
        whole_answer(await client.response(), "spare")
        assert len(house.script("a").visits) == 1


@on_uvloop
async def test_the_time_in_each_queue_is_its_own() -> None:
    """After a long first attempt, and for the model that is tried instead."""
    models = (model("m", "a", "b", overloaded="spare"), model("spare", "c"))
    models += tuple(model(f"only-{name}", name) for name in "abc")
    kinds: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {}}
    limits = {"first_token": 10_000, "queue_timeout": 300}
    async with FleetHouse(kinds=kinds, models=models, slots=1, limits=limits) as house:
        held = await house.hold("b", "c")
        client = await house.ask(stream=False, headers="X-Stainless-Timeout: 2000\r\n")
        visit = await house.visit()
        house.tick(400)
        visit.reset()
        await house.waiting_at("b", 1)
        house.tick(299)
        assert house.slots_of("b") == (1, 0, 1)
        house.tick(2)
        await house.waiting_at("c", 1)
        assert house.slots_of("b") == (1, 0, 0)
        house.tick(299)
        held["c"][0].answer()
        await answered(house, client, "c", "spare")
        held["b"][0].answer()


@on_uvloop
async def test_a_slot_that_comes_while_the_request_is_planned_for_another_model() -> None:
    """Planning takes its time; meanwhile the first queue has a slot, and the ticks go on."""
    async with FleetHouse(models=SPARE, slots=1) as house:
        held = await house.hold("a")
        client = await house.ask(stream=False)
        await house.waiting_at("a", 1)
        go_on = house.stop_planning()
        house.tick(301)
        held["a"][0].answer()
        for _ in range(3):
            await until(lambda: house.slots_of("a") == (0, 0, 0))
            house.tick(1)
        go_on.set()
        await answered(house, client, "b", "spare")
        assert len(house.script("a").visits) == 1
        assert house.gateway.budget.statistics(house.clock.now).spent == 1


@both_ways
@on_uvloop
async def test_a_stream_is_promised_while_the_request_is_planned_for_another_model(stream) -> None:
    async with FleetHouse(models=SPARE) as house:
        client = await house.ask(stream=stream)
        visit = await house.visit()
        go_on = house.stop_planning()
        visit.refuse(429)
        await until(lambda: house.slots_of("a") == (0, 0, 0))
        house.tick(13)
        house.tick(1)
        go_on.set()
        await answered(house, client, "b", "spare")


@on_uvloop
async def test_planning_for_another_model_ends_with_an_overload_where_nobody_has_a_slot() -> None:
    async with FleetHouse(models=SPARE, slots=1, limits={"queue_length": 1}) as house:
        held = {**await house.hold("a"), "b": []}
        spare = await house.ask("holds b", model="spare", stream=False)
        held["b"].append(await house.visit())
        waiting = [await house.ask("waits", model=name, stream=False) for name in ("m", "spare")]
        await house.waiting_at("a", 1)
        await house.waiting_at("b", 1)
        response = await (await house.ask()).response()
        assert (response.status, honest_error(response)["type"]) == (529, "overloaded_error")
        for visit in (*held["a"], *held["b"]):
            visit.answer()
        for _ in waiting:
            (await house.visit()).answer()
        for client in (spare, *waiting):
            assert (await client.response()).status == 200


@both_ways
@on_both_loops
async def test_every_target_failed(stream) -> None:
    models = (model("m", "a", "b", failed="last"), model("last", "c"))
    async with FleetHouse(kinds={"a": {}, "b": {}, "c": {}}, models=models) as house:
        client = await house.ask(stream=stream)
        for _ in range(2):
            (await house.visit()).reset()
        await answered(house, client, "c", "last")
        assert (await house.record())["retries"] == 2


@both_ways
@on_uvloop
async def test_models_that_fall_back_on_one_another_end(stream) -> None:
    models = (model("m", "a", failed="n"), model("n", "b", failed="m"))
    async with FleetHouse(models=models) as house:
        client = await house.ask(stream=stream)
        names = []
        for _ in range(2):
            visit = await house.visit()
            names.append(visit.body["model"])
            visit.refuse(500, b'{"error":{"message":"%s"}}' % visit.body["model"].encode())
        response = await client.response()
        assert names == ["m", "n"]
        assert (response.status, honest_error(response)["message"]) == (500, "n")


@on_uvloop
async def test_a_circle_that_planning_goes_through_ends_too() -> None:
    """`n` is too small for this prompt, so who is sent to `n` comes to `long`, again and again."""
    models = (
        model("m", "a", failed="n"),
        model("n", "b", window=300, overflow="long"),
        model("long", "b", failed="n"),
    )
    async with FleetHouse(models=models) as house:
        client = await house.ask("x " * 2000)
        for _ in range(2):
            (await house.visit()).refuse(500)
        assert (await client.response()).status == 500
        assert [visit.body["model"] for visit in house.script("b").visits] == ["long"]


@on_uvloop
async def test_a_fallback_that_is_not_there_leaves_the_failure_as_it_is() -> None:
    models = (model("m", "a", failed="gone", overloaded="gone", overflow="gone"),)
    async with FleetHouse(models=models) as house:
        for status in (500, 429):
            client = await house.ask()
            (await house.visit()).refuse(status)
            assert (await client.response()).status == status
        client = await house.ask()
        (await house.visit()).refuse(400, TOO_LONG)
        assert "exceed context limit" in honest_error(await client.response())["message"]
        assert len(house.script("a").visits) == 3


@on_uvloop
async def test_a_fallback_that_cannot_take_the_request_leaves_the_failure_as_it_is() -> None:
    models = (model("m", "a", failed="blind"), model("blind", "b"))
    async with FleetHouse(kinds={"a": {}, "b": {"quirks": {"images": "none"}}}, models=models) as house:
        client = await house.ask(messages=PICTURE)
        (await house.visit()).refuse(500)
        assert (await client.response()).status == 500
        assert house.script("b").visits == []


# --- Targets of different kinds ----------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {"a": {}, "b": {"kind": "openai"}, "c": {"kind": "mistral"}}
TURNS = [
    {"role": "user", "content": "add"},
    {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "toolu_0123456789abcdefghijklmn", "name": "add", "input": {"x": 1}}
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_0123456789abcdefghijklmn", "content": "2"},
            {"type": "text", "text": "and?"},
        ],
    },
]
TOOLS = [{"name": "add", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}]


@both_ways
@on_uvloop
async def test_each_target_gets_the_body_of_its_own_kind(stream) -> None:
    async with FleetHouse(kinds=KINDS, retries=RetrySettings(attempts=3)) as house:
        alone = {}
        for name in KINDS:
            client = await house.ask(model=f"only-{name}", stream=stream, messages=TURNS, tools=TOOLS)
            visit = await house.visit()
            alone[name] = visit.body
            visit.answer()
            await client.response()
        assert len({repr(body) for body in alone.values()}) == 3
        client = await house.ask(stream=stream, messages=TURNS, tools=TOOLS)
        seen = []
        for number in range(3):
            visit = await house.visit()
            seen.append(visit.at)
            assert visit.body == alone[visit.at]
            if number < 2:
                visit.refuse(500)
        visit.answer("at last")
        whole_answer(await client.response(), "at last")
        assert sorted(seen) == ["a", "b", "c"]


@both_ways
@on_uvloop
async def test_a_slot_of_another_kind_comes_after_the_stream_was_promised(stream) -> None:
    async with FleetHouse(kinds={"a": {}, "b": {"kind": "openai"}}, slots=1) as house:
        for name in ("a", "b"):
            held = await house.hold("a", "b")
            client = await house.ask(f"for {name}", stream=stream)
            await house.waiting_at(name, 1)
            house.tick(13)
            if stream:
                await client.event("message_start")
            held[name].pop().answer()
            visit = await house.visit()
            assert visit.at == name
            assert ("max_completion_tokens" in visit.body) == (name == "b")
            visit.answer("late")
            whole_answer(await client.response(), "late")
            held[house.other(name)].pop().answer()
            await until(lambda: house.slots_of("a") == house.slots_of("b") == (0, 0, 0))


@on_uvloop
async def test_a_slot_of_another_kind_is_used_while_the_gateway_drains() -> None:
    """A request that waits runs already: it is planned for the slot that it gets, whenever that is."""
    async with FleetHouse(kinds={"a": {}, "b": {"kind": "openai"}}, slots=1) as house:
        held = await house.hold("a", "b")
        client = await house.ask(stream=False)
        await house.waiting_at("b", 1)
        house.gateway.drain()
        held["b"].pop().answer()
        await answered(house, client, "b", "m")
        held["a"].pop().answer()


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = [
    {
        "role": "user",
        "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            {"type": "text", "text": "what is it"},
        ],
    }
]


@on_uvloop
async def test_a_picture_goes_to_who_reads_pictures_whoever_has_a_slot() -> None:
    kinds = {"a": {"slots": 1}, "b": {"quirks": {"images": "none"}}}
    async with FleetHouse(kinds=kinds) as house:
        held = await house.hold("a")
        client = await house.ask(stream=False, messages=PICTURE)
        await until(lambda: client.so_far is not None or house.slots_of("a")[2] == 1)
        assert house.slots_of("b") == (0, 0, 0)
        held["a"][0].answer()
        visit = await house.visit()
        assert visit.at == "a"
        visit.answer("a dot")
        whole_answer(await client.response(), "a dot")


@on_uvloop
async def test_what_does_not_fit_as_it_is_written_for_this_slot_gives_the_slot_back() -> None:
    """Another kind of server, another body, another estimate: the plan comes back for the longer model."""
    kinds: dict[str, dict[str, Any]] = {"a": {}, "b": {"kind": "openai"}, "c": {}}
    models = (
        model("m", "a", "b", overflow="long"),
        model("long", "c"),
        model("only-a", "a"),
        model("only-b", "b"),
    )
    async with FleetHouse(kinds=kinds, models=models, slots=1) as house:
        held = await house.hold("a", "b")
        client = await house.ask()
        await house.waiting_at("b", 1)
        plan = house.gateway.planning.plan

        async def too_long(*args: Any, aim: Any, **options: Any) -> Any:
            assert aim.target.upstream == "b"
            return await plan(*args, aim=Aim(model="long"), **options)

        house.gateway.planning.plan = too_long
        held["b"][0].answer()
        visit = await house.visit()
        assert (visit.at, visit.body["model"]) == ("c", "long")
        assert house.slots_of("b") == (0, 0, 0)
        visit.answer("long")
        whole_answer(await client.response(), "long")
        held["a"][0].answer()


# --- A server that falls ill ----------------------------------------------------------------------------------

ILL = HealthSettings(open_after=1, backoff_first=10.0)


@on_uvloop
async def test_a_hundred_that_wait_for_a_server_that_falls_ill_go_to_the_other() -> None:
    async with FleetHouse(slots=5, health=ILL) as house:
        await house.hold("a", "b")
        clients = {f"{number}": await house.ask(f"{number}", stream=number % 2 == 0) for number in range(100)}
        await house.waiting_at("a", 100)
        await house.waiting_at("b", 100)
        for visit in house.script("a").visits:
            visit.reset()
        await until(lambda: house.slots_of("a") == (0, 0, 0))
        assert house.slots_of("b") == (5, 0, 100)
        assert len(house.script("a").visits) == 5  # none of the hundred was sent there
        assert house.gateway.budget.statistics(house.clock.now).spent == 0
        house.script("b").answering = lambda visit: visit.answer(visit.tag)
        for visit in house.script("b").visits:
            visit.answer()
        for tag, client in clients.items():
            whole_answer(await client.response(), tag)
        assert house["a"].health.statistics(house.clock.now).opened == 1


@on_uvloop
async def test_those_that_were_sent_there_move_and_pay_for_it_once_each() -> None:
    async with FleetHouse(slots=5, health=ILL) as house:
        held = await house.hold("b")
        clients = {f"{number}": await house.ask(f"{number}") for number in range(20)}
        await house.waiting_at("b", 15)
        house.script("a").answering = lambda visit: visit.reset()
        for visit in house.script("a").visits:
            visit.reset()
        await house.waiting_at("b", 20)
        assert house.gateway.budget.statistics(house.clock.now).spent == 5
        house.script("b").answering = lambda visit: visit.answer(visit.tag)
        for visit in held["b"]:
            visit.answer()
        for tag, client in clients.items():
            whole_answer(await client.response(), tag)


@on_uvloop
async def test_one_request_at_a_time_tries_a_server_that_was_ill() -> None:
    async with FleetHouse(slots=2, health=ILL) as house:
        held = await house.hold("a", "b")
        for visit in held["a"]:
            visit.reset()
        await until(lambda: house.slots_of("a") == (0, 0, 0))
        house.tick(11)
        clients = {f"{number}": await house.ask(f"{number}", stream=False) for number in range(5)}
        trial = await house.visit()
        assert trial.at == "a"
        await house.waiting_at("b", 4)
        house.tick(1)
        assert house.slots_of("a") == (1, 0, 0)
        trial.refuse(500)
        await house.waiting_at("b", 5)  # it has failed: nobody else is sent there
        assert house.slots_of("a") == (0, 0, 0)
        house.tick(25)
        trial = await house.visit()
        assert (trial.at, house.slots_of("a"), house.slots_of("b")) == ("a", (1, 0, 0), (2, 0, 4))
        trial.answer(trial.tag)
        await until(lambda: house["a"].health.state(house.clock.now) == "closed")
        await until(lambda: house.slots_of("a") == (0, 0, 0))
        house.tick(1)
        for _ in range(2):
            visit = await house.visit()
            assert (
                visit.at == "a"
            )  # it is well: who waits for the other is sent here, as far as there is room
            visit.answer(visit.tag)
        house.script("b").answering = house.script("a").answering = lambda visit: visit.answer(visit.tag)
        for visit in held["b"]:
            visit.answer()
        for tag, client in clients.items():
            whole_answer(await client.response(), tag)


@on_uvloop
async def test_all_are_ill_and_one_is_asked_all_the_same() -> None:
    async with FleetHouse(slots=2, health=ILL) as house:
        for name in ("a", "b"):
            client = await house.ask(model=f"only-{name}")
            (await house.visit()).refuse(500)
            assert (await client.response()).status == 500
        client = await house.ask()
        (await house.visit()).answer("well again")
        whole_answer(await client.response(), "well again")


@on_uvloop
async def test_all_fall_ill_while_requests_wait() -> None:
    async with FleetHouse(slots=1, health=ILL) as house:
        held = await house.hold("a", "b")
        clients = {f"{number}": await house.ask(f"{number}") for number in range(10)}
        await house.waiting_at("a", 10)
        for name in ("a", "b"):
            house.script(name).answering = lambda visit: visit.answer(visit.tag)
            held[name][0].reset()
        for tag, client in clients.items():
            whole_answer(await client.response(), tag)


@on_uvloop
async def test_a_server_that_loads_a_model_is_left_alone_for_a_moment() -> None:
    async with FleetHouse(slots=4) as house:
        loading = b'{"error":{"message":"Loading model","code":503,"type":"unavailable_error"}}'
        client = await house.ask()
        first = await house.visit()
        first.refuse(503, loading)
        second = await house.visit()
        second.answer()
        await client.response()
        for _ in range(5):
            client = await house.ask()
            visit = await house.visit()
            assert visit.at == second.at
            visit.answer()
            await client.response()
        assert house[first.at].health.state(house.clock.now) == "closed"


@on_uvloop
async def test_the_operator_drains_a_server_that_requests_wait_for() -> None:
    async with FleetHouse(slots=1) as house:
        held = await house.hold("a", "b")
        client = await house.ask()
        alone = await house.ask(model="only-a")
        await house.waiting_at("a", 2)
        house["a"].health.drain()
        held["a"][0].answer()
        response = await alone.response()
        assert (response.status, honest_error(response)["type"]) == (529, "overloaded_error")
        await until(lambda: house.slots_of("a") == (0, 0, 0))
        held["b"][0].answer()
        await answered(house, client, "b", "m")


# --- Servers that say what they are -----------------------------------------------------------------------------

LLAMACPP: dict[str, Any] = {
    "/props": {"total_slots": 3, "default_generation_settings": {}, "build_info": "b7500"},
    "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 4096}}]},
}
VLLM: dict[str, Any] = {
    "/version": {"version": "0.33.0"},
    "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 32768}]},
}
AUTO: dict[str, dict[str, Any]] = {"a": {"kind": "auto", "slots": "auto"}}


@on_uvloop
async def test_a_server_is_recognised_at_the_start() -> None:
    kinds = {**AUTO, "b": {"kind": "auto", "slots": 2}, "c": {"kind": "auto", "slots": "auto"}}
    async with FleetHouse(kinds=kinds, facts={"a": LLAMACPP, "b": LLAMACPP, "c": VLLM}) as house:
        assert [house[name].quirks.name for name in "abc"] == ["llamacpp", "llamacpp", "vllm"]
        assert [house[name].slots.statistics().slots for name in "abc"] == [3, 2, 8]


@on_uvloop
async def test_a_server_that_comes_back_as_another_kind_is_recognised_anew() -> None:
    async with FleetHouse(kinds=AUTO, facts={"a": LLAMACPP}) as house:
        house.sayings += ("upstream_returned",)
        scripted, fleet = house.script("a"), house.backend
        await fleet.models()
        assert fleet.table.find("m").targets[0].window == 4096
        client = await house.ask(stream=False)
        (await house.visit()).reset()
        assert (await client.response()).status == 502
        house["a"].health.gone = True  # nobody was there when it was asked
        scripted.facts = VLLM
        await fleet._prober.round()  # seen for the first time
        house.clock.now += 10
        await fleet._prober.round()
        await house.quiet()
        assert house["a"].quirks.name == "vllm"
        assert house["a"].slots.statistics().slots == 8
        assert fleet.table.find("m").targets[0].window == 32768
        client = await house.ask()
        visit = await house.visit()
        assert visit.body["stream_options"]["continuous_usage_stats"] is True
        visit.answer("hi")
        whole_answer(await client.response(), "hi")


@on_uvloop
async def test_a_server_that_was_not_there_at_the_start_is_recognised_when_it_is() -> None:
    """It takes some seconds to start, and is there at the first probe."""
    async with FleetHouse(kinds=AUTO) as house:
        house.sayings += ("upstream_returned",)
        scripted, clock = house.script("a"), Clock()
        await scripted.stop()
        fleet = Fleet(house.settings(), clock=clock, probes=False)
        await fleet.start()
        try:
            assert fleet.upstreams["a"].quirks.name == "generic"
            await until(lambda: not fleet._tasks)
            scripted.facts = LLAMACPP
            await scripted.start()
            await fleet._prober.round()
            clock.now += 13
            await fleet._prober.round()
            await until(lambda: not fleet._tasks)
            assert fleet.upstreams["a"].quirks.name == "llamacpp"
            assert fleet.upstreams["a"].slots.statistics().slots == 3
            assert fleet.table.find("m").targets[0].window == 4096
        finally:
            await fleet.aclose()


@both_ways
@on_uvloop
async def test_windows_that_servers_tell_may_differ(stream) -> None:
    """The same kind, the same name, another window: that is another body, for a long answer."""
    facts = {
        name: {"/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": window}]}}
        for name, window in (("a", 2048), ("b", 32768))
    }
    async with FleetHouse(facts=facts, slots=1) as house:
        await house.backend.models()
        for name in ("a", "b"):
            held = await house.hold(house.other(name))
            client = await house.ask(stream=stream, max_tokens=4000)
            visit = await house.visit()
            assert visit.at == name
            assert (visit.body["max_tokens"] == 4000) == (name == "b")
            visit.answer("hi")
            whole_answer(await client.response(), "hi")
            for each in held[house.other(name)]:
                each.answer()
            await until(lambda: house.slots_of("a") == house.slots_of("b") == (0, 0, 0))


@on_uvloop
async def test_without_models_each_name_goes_where_it_is_listed() -> None:
    def listing(name: str) -> dict[str, Any]:
        return {"/v1/models": {"data": [{"id": name}, {"id": "both"}]}}

    async with FleetHouse(facts={"a": listing("x"), "b": listing("y")}) as house:
        await house.reload(models=(), by_listing=True)
        await house.backend.models()
        for name, at in (("x", "a"), ("y", "b"), ("claude-y", "b")):
            client = await house.ask(model=name)
            await answered(house, client, at, name.removeprefix("claude-"), name=name)
        client = await house.ask(model="both")
        first = await house.visit()
        first.refuse(500)
        await answered(house, client, house.other(first.at), "both", name="both")
        response = await (await house.ask(model="nowhere")).response()
        assert response.status == 404


# --- Those that wait ----------------------------------------------------------------------------------


@on_uvloop
async def test_who_waits_everywhere_is_not_placed_anew_with_every_tick(monkeypatch) -> None:
    """Hundreds may wait, and all are ticked in one turn of the loop that carries streams."""
    placed: list[int] = []
    async with FleetHouse(slots=1) as house:
        held = await house.hold("a", "b")
        clients = [await house.ask(f"{n}", stream=False) for n in range(3)]
        await house.waiting_at("a", 3)
        await house.waiting_at("b", 3)
        monkeypatch.setattr(choosing, "order", lambda places, key=b"": placed.append(1) or list(places))
        for _ in range(60):
            house.tick(1)
        assert not placed
        for name in "ab":
            held[name].pop().answer()
        for _ in clients:
            (await house.visit()).answer("ok")
        for client in clients:
            whole_answer(await client.response(), "ok")


# --- Who is said to answer ----------------------------------------------------------------------------


@on_uvloop
async def test_a_stream_that_is_promised_before_the_second_attempt_names_no_first_one() -> None:
    async with FleetHouse(kinds={"a": {}, "b": {}}, slots=1) as house:
        client = await house.ask()
        visit = await house.visit()
        other = house.other(visit.at)
        held = await house.hold(other)
        visit.reset()
        await house.waiting_at(other, 1)
        house.tick(13)
        await client.event("message_start")
        held[other].pop().answer()
        (await house.visit()).answer("late")
        response = await client.response()
        whole_answer(response, "late")
        assert response.headers.get("antiphon-upstream", other) == other


@on_uvloop
async def test_a_stream_that_is_promised_while_a_fallback_is_waited_for_names_its_upstream() -> None:
    models = (*SPARE, model("only-b", "b"))
    async with FleetHouse(models=models, slots=1, limits={"queue_timeout": 8}) as house:
        held = await house.hold("a", "b")
        client = await house.ask()
        await house.waiting_at("a", 1)
        house.tick(8.1)
        await house.waiting_at("b", 1)
        house.tick(4)
        await client.event("message_start")
        held["b"].pop().answer()
        await answered(house, client, "b", "spare")
        held["a"].pop().answer()
