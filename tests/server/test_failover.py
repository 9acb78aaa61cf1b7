"""A replica that fails, in every phase: the client sees one clean answer of the other, or one honest error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from antiphon.config import RetrySettings
from antiphon.core.parts import Fault
from server.fleet_house import FleetHouse, honest_error, model, refusing_port, whole_answer
from server.harness import Client, Visit, chunk, deaf_listener, frame, on_both_loops, on_uvloop, until
from server.storm import HOUSE, Storm

ROLE = frame({"role": "assistant", "content": ""})
ERROR = b'data: {"error":{"message":"the engine is dead","code":500}}\n\n'
LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
TEXT = frame({"content": "SECRET half"})

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


# --- Before any content -----------------------------------------------------------------------------

Fail = Callable[[FleetHouse, Visit], Awaitable[None]]


async def reset(house: FleetHouse, visit: Visit) -> None:
    visit.reset()


async def eof(house: FleetHouse, visit: Visit) -> None:
    visit.cut()


async def half_a_head(house: FleetHouse, visit: Visit) -> None:
    visit.raw(b"HTTP/1.1 200 OK\r\ncontent-ty")
    visit.cut()


async def no_http(house: FleetHouse, visit: Visit) -> None:
    visit.raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


async def status_500(house: FleetHouse, visit: Visit) -> None:
    visit.refuse(500)


async def status_502_html(house: FleetHouse, visit: Visit) -> None:
    visit.refuse(502, b"<html><body>Bad Gateway</body></html>")


async def half_a_500(house: FleetHouse, visit: Visit) -> None:
    visit.raw(b'HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\n{"error":')
    visit.reset()


async def loading(house: FleetHouse, visit: Visit) -> None:
    visit.refuse(503, LOADING)


async def too_many(house: FleetHouse, visit: Visit) -> None:
    visit.refuse(429, headers="retry-after: 7\r\n")


async def our_key(house: FleetHouse, visit: Visit) -> None:
    visit.refuse(401)


async def head_then_eof(house: FleetHouse, visit: Visit) -> None:
    visit.head()
    visit.cut()


async def empty_stream(house: FleetHouse, visit: Visit) -> None:
    visit.head()
    visit.raw(b"0\r\n\r\n")


async def role_then_reset(house: FleetHouse, visit: Visit) -> None:
    visit.head()
    visit.send(ROLE)
    await in_prefill(house)
    visit.reset()


async def blank_then_eof(house: FleetHouse, visit: Visit) -> None:
    visit.head()
    visit.send(ROLE, frame({"content": " \n"}))
    await in_prefill(house)
    visit.cut()


async def error_frame(house: FleetHouse, visit: Visit) -> None:
    visit.head()
    visit.send(ERROR)


async def role_then_error_frame(house: FleetHouse, visit: Visit) -> None:
    visit.head()
    visit.send(ROLE, ERROR)


async def garbage(house: FleetHouse, visit: Visit) -> None:
    visit.head()
    visit.send(b"data: {nonsense\n\n")


async def comments_then_eof(house: FleetHouse, visit: Visit) -> None:
    visit.head()
    visit.send(b": keep-alive\n\n", b": keep-alive\n\n")
    await in_prefill(house)
    visit.cut()


async def in_prefill(house: FleetHouse) -> None:
    exchange = house.exchange()
    await until(lambda: exchange.phase.value == "prefill" and exchange._time.heard)


BEFORE: list[Fail] = [
    reset,
    eof,
    half_a_head,
    no_http,
    status_500,
    status_502_html,
    half_a_500,
    loading,
    too_many,
    our_key,
    head_then_eof,
    empty_stream,
    role_then_reset,
    blank_then_eof,
    error_frame,
    role_then_error_frame,
    garbage,
    comments_then_eof,
]


@both_ways
@pytest.mark.parametrize("fail", BEFORE, ids=lambda fail: fail.__name__)
@on_both_loops
async def test_a_failure_before_content_is_answered_by_the_other(fail, stream) -> None:
    async with FleetHouse(slots=1) as house:
        client = await house.ask(stream=stream)
        first = await house.visit()
        await fail(house, first)
        second = await house.visit()
        assert second.at == house.other(first.at)
        assert house.slots_of(first.at) == (0, 0, 0)  # given back before the other was asked
        assert house.slots_of(second.at) == (1, 0, 0)
        assert second.body == first.body
        second.answer("from the other")
        response = await client.response()
        whole_answer(response, "from the other")
        assert response.headers["antiphon-upstream"] == second.at
        record = await house.record()
        assert (record["cause"], record["upstream"]) == ("finished", second.at)
        assert record["retries"] == 1
        assert len(house.script("a").visits) == len(house.script("b").visits) == 1


@both_ways
@on_both_loops
async def test_a_refused_connection(stream) -> None:
    with refusing_port() as port:
        kinds = {"a": {"base_url": f"http://127.0.0.1:{port}/v1"}, "b": {"slots": 1}}
        async with FleetHouse(kinds=kinds) as house:
            held = await house.hold("b")  # so that `a` is asked first, whoever is preferred
            client = await house.ask(stream=stream)
            await house.waiting_at("b", 1)
            assert house["a"].health.statistics(house.clock.now).failures["connect"] == 1
            held["b"][0].answer()
            (await house.visit()).answer("from the other")
            response = await client.response()
            whole_answer(response, "from the other")
            assert response.headers["antiphon-upstream"] == "b"


@both_ways
@on_both_loops
async def test_a_connection_that_is_not_accepted_in_time(stream) -> None:
    with deaf_listener() as port:
        kinds = {"a": {"base_url": f"http://127.0.0.1:{port}/v1"}, "b": {"slots": 1}}
        async with FleetHouse(kinds=kinds) as house:
            held = await house.hold("b")
            client = await house.ask(stream=stream)
            await until(lambda: house.slots_of("a") == (1, 0, 0))
            house.tick(10)
            assert house.slots_of("a") == (1, 0, 0)  # not a moment too early
            house.tick(1)
            assert house.slots_of("a") == (0, 0, 0)
            assert house.slots_of("b")[2] == 1
            held["b"][0].answer()
            (await house.visit()).answer("from the other")
            whole_answer(await client.response(), "from the other")


@both_ways
@on_both_loops
async def test_a_server_that_is_gone_from_its_port(stream) -> None:
    """A kept connection that died, and nobody who would accept the next."""
    async with FleetHouse(slots=1) as house:
        await house.ask("before", model="only-a")
        (await house.visit()).answer()
        await until(lambda: house["a"].pool.statistics().idle == 1)
        held = await house.hold("b")
        client = await house.ask(stream=stream)
        visit = await house.visit()
        assert visit.at == "a"
        house.script("a")._server.close()
        visit.reset()  # a reused connection, no byte: tried there once more, refused, then elsewhere
        await house.waiting_at("b", 1)
        held["b"][0].answer()
        (await house.visit()).answer("from the other")
        whole_answer(await client.response(), "from the other")
        assert (await house.record())["retries"] == 1


# --- After content ------------------------------------------------------------------------------------


async def after_reset(house: FleetHouse, visit: Visit) -> None:
    visit.reset()


async def after_eof(house: FleetHouse, visit: Visit) -> None:
    visit.cut()


async def after_error(house: FleetHouse, visit: Visit) -> None:
    visit.send(ERROR)


async def after_garbage(house: FleetHouse, visit: Visit) -> None:
    visit.send(b"data: {nonsense\n\n")


AFTER: list[Fail] = [after_reset, after_eof, after_error, after_garbage]
CONTENT = {
    "text": TEXT,
    "thinking": frame({"reasoning_content": "Hm"}),
    "tool": frame(
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        }
    ),
}


@pytest.mark.parametrize("content", CONTENT)
@pytest.mark.parametrize("fail", AFTER, ids=lambda fail: fail.__name__)
@on_both_loops
async def test_a_stream_that_had_content_ends_with_one_error(fail, content) -> None:
    async with FleetHouse() as house:
        client = await house.ask()
        visit = await house.visit()
        visit.head()
        visit.send(CONTENT[content])
        await client.event("message_start")
        await fail(house, visit)
        response = await client.response()
        assert honest_error(response)["type"] == "api_error"
        assert response.headers["antiphon-upstream"] == visit.at
        assert "retries" not in await house.record()
        assert house.script(house.other(visit.at)).visits == []


@pytest.mark.parametrize("content", CONTENT)
@pytest.mark.parametrize("fail", AFTER, ids=lambda fail: fail.__name__)
@on_both_loops
async def test_a_whole_answer_is_asked_for_again_although_half_of_it_was_there(fail, content) -> None:
    async with FleetHouse() as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        visit.head()
        visit.send(CONTENT[content])
        exchange = house.exchange()
        await until(lambda: exchange.answer.begun)
        await fail(house, visit)
        other = await house.visit()
        assert other.at != visit.at
        assert exchange.output_tokens == 0  # nothing of the first one is left
        other.answer("whole")
        whole_answer(await client.response(), "whole")


@on_both_loops
async def test_nobody_else_is_asked_once_a_stream_was_promised() -> None:
    async with FleetHouse() as house:
        client = await house.ask()
        visit = await house.visit()
        house.tick(12)
        await client.event("message_start")
        visit.reset()
        response = await client.response()
        honest_error(response)
        assert response.headers["antiphon-upstream"] == visit.at
        assert house.script(house.other(visit.at)).visits == []


@on_uvloop
async def test_a_promise_that_is_not_written_yet_is_one() -> None:
    """The failure comes between the tick that promises and the task that writes."""
    async with FleetHouse() as house:
        client = await house.ask()
        visit = await house.visit()
        (attempt,) = {each._attempt for each in house.gateway.live}
        house.tick(12)
        attempt._call.abort()
        attempt.answer.refuse(Fault("api_error", "the upstream broke", 502))
        attempt._owner.received()
        honest_error(await client.response())
        assert house.script(house.other(visit.at)).visits == []


@on_both_loops
async def test_a_whole_answer_promises_nothing_however_long_it_takes() -> None:
    async with FleetHouse() as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        house.tick(12)
        house.tick(100)
        visit.reset()
        (await house.visit()).answer("late")
        whole_answer(await client.response(), "late")


# --- How often -----------------------------------------------------------------------------------------

THREE: dict[str, dict] = {"a": {}, "b": {}, "c": {}}


@both_ways
@pytest.mark.parametrize("attempts", [1, 2, 3])
@on_uvloop
async def test_attempts_are_counted(attempts, stream) -> None:
    async with FleetHouse(kinds=THREE, retries=RetrySettings(attempts=attempts)) as house:
        client = await house.ask(stream=stream)
        seen = set()
        for _ in range(attempts):
            visit = await house.visit()
            seen.add(visit.at)
            visit.refuse(500, b'{"error":{"message":"number %d"}}' % len(seen))
        response = await client.response()
        assert (response.status, honest_error(response)["message"]) == (500, f"number {attempts}")
        assert len(seen) == attempts
        assert sum(len(each.visits) for each in house.scripted) == attempts
        assert (await house.record()).get("retries", 0) == attempts - 1


@both_ways
@on_uvloop
async def test_one_target_is_asked_once(stream) -> None:
    async with FleetHouse(retries=RetrySettings(attempts=5)) as house:
        client = await house.ask(stream=stream, model="only-a")
        (await house.visit()).refuse(500)
        assert (await client.response()).status == 500
        assert len(house.script("a").visits) == 1
        assert house.script("b").visits == []


@both_ways
@on_uvloop
async def test_no_more_attempts_than_targets(stream) -> None:
    async with FleetHouse(retries=RetrySettings(attempts=5)) as house:
        client = await house.ask(stream=stream)
        for _ in range(2):
            (await house.visit()).refuse(500)
        assert (await client.response()).status == 500
        assert len(house.script("a").visits) == len(house.script("b").visits) == 1


@on_uvloop
async def test_all_requests_together_have_one_budget() -> None:
    async with FleetHouse(retries=RetrySettings(budget=0.0), slots=300) as house:
        budget = house.gateway.budget
        allowed = int(budget.statistics(house.clock.now).balance)
        for _ in range(allowed):
            assert budget.spend(house.clock.now)
        client = await house.ask(stream=False)
        (await house.visit()).refuse(500)
        assert (await client.response()).status == 500
        assert budget.statistics(house.clock.now).refused == 1
        house.clock.now += 1  # one a second
        client = await house.ask(stream=False)
        (await house.visit()).refuse(500)
        (await house.visit()).answer()
        assert (await client.response()).status == 200


@both_ways
@on_uvloop
async def test_a_first_token_that_does_not_come_is_not_asked_for_again(stream) -> None:
    async with FleetHouse() as house:
        client = await house.ask(stream=stream)
        visit = await house.visit()
        visit.head()
        await in_prefill(house)
        house.clock.now += 599
        house.gateway.tick(house.clock.now)
        house.tick(2)
        response = await client.response()
        assert honest_error(response)["type"] == "timeout_error"
        assert response.status == (200 if stream else 504)
        await visit.closed.wait()
        assert house.script(house.other(visit.at)).visits == []


@pytest.mark.parametrize("status", [400, 413, 422])
@on_uvloop
async def test_a_request_that_is_wrong_is_wrong_everywhere(status) -> None:
    async with FleetHouse() as house:
        client = await house.ask()
        first = await house.visit()
        first.refuse(status)
        if status == 413:  # a limit on bodies is one server's
            (await house.visit()).refuse(status)
        assert (await client.response()).status == (413 if status == 413 else 400)
        other = house.script(house.other(first.at))
        assert len(other.visits) == (status == 413)


# --- What becomes of the slot --------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("fail", [error_frame, garbage, reset, status_500], ids=lambda fail: fail.__name__)
@on_uvloop
async def test_a_server_that_may_work_on_keeps_its_slot_until_the_grace_is_over(fail, stream) -> None:
    """Ours is the end of it in the first two: the server may not have noticed."""
    async with FleetHouse(profile="ollama", slots=1) as house:
        client = await house.ask(stream=stream)
        first = await house.visit()
        await fail(house, first)
        second = await house.visit()
        drains = fail in (error_frame, garbage)
        assert house.slots_of(first.at) == (0, int(drains), 0)
        second.answer("from the other")
        whole_answer(await client.response(), "from the other")
        house.tick(4)
        assert house.slots_of(first.at) == (0, int(drains), 0)
        house.tick(2)
        assert house.slots_of(first.at) == (0, 0, 0)


@on_uvloop
async def test_the_failed_one_s_slot_goes_to_who_waits_there() -> None:
    async with FleetHouse(slots=1) as house:
        held = await house.hold("b")
        client = await house.ask("first", stream=False)
        visit = await house.visit()
        assert visit.at == "a"
        heir = await house.ask("heir", model="only-a", stream=False)
        await house.waiting_at("a", 1)
        visit.reset()
        next_one = await house.visit()
        assert (next_one.at, next_one.tag) == ("a", "heir")
        next_one.answer("heir's")
        held["b"][0].answer()
        other = await house.visit()
        assert (other.at, other.tag) == ("b", "first")
        other.answer("first's")
        whole_answer(await client.response(), "first's")
        whole_answer(await heir.response(), "heir's")


# --- Ids, headers, records --------------------------------------------------------------------------------


@on_both_loops
async def test_what_the_first_one_said_of_usage_and_ids_is_forgotten() -> None:
    async with FleetHouse() as house:
        client = await house.ask()
        first = await house.visit()
        first.head()
        usage = {"prompt_tokens": 777, "completion_tokens": 88}
        first.send(frame({"role": "assistant", "content": ""}, usage=usage))
        await in_prefill(house)
        first.reset()
        (await house.visit()).answer("clean")
        response = await client.response()
        whole_answer(response, "clean")
        assert response.events[0]["message"]["usage"]["input_tokens"] != 777
        assert (await house.record())["input_tokens"] == 21


@on_both_loops
async def test_the_last_fault_is_what_the_client_hears() -> None:
    async with FleetHouse() as house:
        client = await house.ask(stream=False)
        (await house.visit()).refuse(503, LOADING)
        (await house.visit()).refuse(429, headers="retry-after: 7\r\n")
        response = await client.response()
        assert (response.status, response.headers["retry-after"]) == (429, "7")
        assert honest_error(response)["type"] == "rate_limit_error"


@on_uvloop
async def test_a_client_that_asked_to_close_still_gets_one_answer() -> None:
    async with FleetHouse() as house:
        client = await house.client()
        client.ask(headers="Connection: close\r\n")
        (await house.visit()).reset()
        (await house.visit()).answer("bye")
        whole_answer(await client.response(), "bye")
        await client.gone()


# --- Many at once ---------------------------------------------------------------------------------------


@on_uvloop
async def test_a_replica_that_dies_under_forty_requests() -> None:
    """Those with content end with an error; all others are answered by the other, each once."""
    async with FleetHouse(slots=40, retries=RetrySettings(budget=1.0)) as house:
        held = await house.hold("b")
        clients: dict[str, Client] = {}
        visits = []
        for number in range(40):
            clients[str(number)] = await house.ask(str(number))
            visits.append(await house.visit())
        assert {visit.at for visit in visits} == {"a"}
        for visit in visits[:10]:
            visit.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(TEXT))
            await clients[visit.tag].event("content_block_delta")
        house.script("a")._server.close()
        for visit in visits:
            visit.reset()
        for visit in held["b"]:
            visit.answer()
        for _ in range(30):
            again = await house.visit()
            assert again.at == "b"
            again.answer(again.tag)
        for tag, client in clients.items():
            response = await client.response()
            if int(tag) < 10:
                honest_error(response)
            else:
                whole_answer(response, tag)
        assert house["a"].health.state(house.clock.now) == "open"
        assert house["a"].health.statistics(house.clock.now).opened == 1  # not once for each of them


@pytest.mark.parametrize("profile", ["generic", "ollama"])
@on_uvloop
async def test_random_faults_at_two_upstreams(profile) -> None:
    """Clients and servers that fail in every way at once, with failovers in between; nothing is left."""
    retries = RetrySettings(attempts=3, budget=1.0)
    kinds: dict[str, dict] = {"a": {}, "b": {}, "c": {"kind": "openai"}}
    async with FleetHouse(**{**HOUSE, "slots": 3}, profile=profile, kinds=kinds, retries=retries) as house:
        storm = Storm(house, seed=21)
        for scripted in house.scripted:
            scripted.answering = storm._answer
        await storm.blow(250)
        records = house.records_written
        assert {record["cause"] for record in records} >= {"finished", "upstream", "client", "deadline"}
        assert sum(record.get("retries", 0) for record in records) > 10
        assert {record["upstream"] for record in records} == {"a", "b", "c"}
        assert not any(visit.tag == "never" for scripted in house.scripted for visit in scripted.visits)


@on_uvloop
async def test_a_body_is_kept_only_while_it_may_be_sent_elsewhere() -> None:
    async with FleetHouse(models=(model("m", "a", failed="n"), model("n", "b"))) as house:
        client = await house.ask(model="m")
        visit = await house.visit()
        (exchange,) = house.gateway.live
        assert exchange.job.replan._body
        visit.head()
        visit.text("Hi")
        await client.event("content_block_delta")
        assert not exchange.job.replan._body
        visit.finish()
        visit.done()
        await client.response()


@on_uvloop
async def test_a_request_that_could_not_be_sent_gives_its_trial_and_its_slot_back(monkeypatch) -> None:
    async with FleetHouse(slots=1) as house:
        for _ in range(3):
            client = await house.ask(model="only-a", stream=False)
            (await house.visit()).refuse(500)
            await client.response()
        house.tick(2)

        def broken(*args, **kwargs):
            raise RuntimeError("no")

        with monkeypatch.context() as patch:
            patch.setattr(house["a"].pool, "post", broken)
            client = await house.ask(model="only-a", stream=False)
            assert (await client.response()).status == 500
        assert house.take_bug()["error"] == "RuntimeError"
        assert house["a"].health._circuit.admits(house.clock.now)
        assert house["a"].slots.statistics().held == 0
