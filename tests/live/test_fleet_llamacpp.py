"""Two real llama.cpp servers behind one gateway: what each answers, whose cache is warm, and when one dies.

The servers are the witnesses: `/slots` says who works, `cache_n` and `cached_tokens` what was in their cache,
their own token counts what a prompt has.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from live.llamacpp_house import REASON, LlamaHouse, Served
from live.prompts import COUNTED, IMAGE, words
from pipeline import judge

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(REASON is not None, reason=f"live llama.cpp: {REASON}"),
    pytest.mark.asyncio(loop_scope="module"),
]

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])

# --- What is asked of either --------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory):
    served = {"one": Served(slots=1), "two": Served(slots=3)}
    async with LlamaHouse(tmp_path_factory.mktemp("fleet"), served) as house:
        yield house


@pytest.fixture(params=["one", "two"])
def at(request):
    return request.param


async def test_both_are_recognised_with_their_slots(house):
    for name, slots in (("one", 1), ("two", 3)):
        assert (await house.slots(name))["slots"] == slots
        (line,) = house.logged("upstream_recognised", upstream=name)
        assert (line["kind"], line["slots"]) == ("llamacpp", slots)


@both_ways
async def test_text(house, at, stream):
    told = await house.told("Say hello.", stream=stream, model=f"only-{at}")
    assert told.upstream == at
    assert told.text.strip()
    assert told.model == f"only-{at}"
    assert told.message["stop_reason"] in ("end_turn", "max_tokens")
    assert 0 < told.message["usage"]["output_tokens"] <= 16


@both_ways
async def test_a_stop_string(house, at, stream):
    whole = (await house.told("Say hello.", model=f"only-{at}")).text
    stop = whole.split()[1]
    told = await house.told("Say hello.", stream=stream, model=f"only-{at}", stop_sequences=[stop])
    assert told.text.rstrip() == whole.partition(stop)[0].rstrip()
    # llama.cpp says that it stopped, and not at what.
    assert told.message["stop_reason"] in ("end_turn", "stop_sequence")
    assert told.message["usage"]["output_tokens"] < 16


@both_ways
@pytest.mark.parametrize("asked", COUNTED)
async def test_the_count_is_the_servers_own(house, at, stream, asked):
    asked = {"model": f"only-{at}", **asked}
    counted = await house.counted(asked)
    fields = {name: value for name, value in asked.items() if name != "messages"}
    told = await house.told(asked["messages"], stream=stream, **fields)
    assert told.prompt_tokens == counted
    if stream:
        assert told.events[0]["message"]["usage"]["input_tokens"] == counted
    if "tools" not in asked:  # which it would write into the prompt in its own way
        async with house.direct(at, "/messages/count_tokens", asked) as answer:
            assert (await answer.json())["input_tokens"] == counted


@both_ways
async def test_a_prompt_that_is_too_long(house, at, stream):
    told = await house.told(words(1, 600), stream=stream, model=f"only-{at}")
    assert told.status == 400
    assert told.error["type"] == "invalid_request_error"
    assert "prompt is too long" in told.error["message"]
    assert "1024 maximum" in told.error["message"]


@both_ways
async def test_an_image_is_refused(house, at, stream):
    told = await house.told([{"role": "user", "content": [IMAGE]}], stream=stream, model=f"only-{at}")
    assert told.status == 400
    assert told.error["type"] == "invalid_request_error"
    assert "image" in told.error["message"]


# --- Cancel -------------------------------------------------------------------------------------------


async def test_who_leaves_while_it_generates(house, at):
    async with house.ask("Count to a thousand.", max_tokens=900, model=f"only-{at}") as answer:
        async for line in answer.content:
            if b"content_block_delta" in line:
                break
        assert await house.busy(at) == 1
        answer.close()
    await house.until_idle()


@both_ways
async def test_who_leaves_in_the_prefill(house, at, stream):
    await house.leaves(at, words(2, 180), stream=stream, model=f"only-{at}", max_tokens=8)
    await house.until_idle()


async def test_who_leaves_a_whole_answer_while_it_generates(house, at):
    await house.leaves(
        at, "Count to a thousand.", stream=False, model=f"only-{at}", max_tokens=900, stop_sequences=["~"]
    )
    await house.until_idle()


async def test_who_leaves_the_queue(house):
    """One slot, and it is taken: the server never hears of the second request."""
    async with house.ask("Count to a thousand.", max_tokens=900, model="only-one") as answer:
        await answer.content.readline()
        asked = asyncio.ensure_future(house.told("Say hello.", model="only-one"))
        await house.until_waiting("one", 1)
        assert await house.busy("one") == 1
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await house.until_waiting("one", 0)
        assert await house.busy("one") == 1  # the first one goes on
        answer.close()
    await house.until_idle()


# --- Whose cache is warm ------------------------------------------------------------------------------

SESSIONS, TURNS = 5, 3  # an odd number: in turn, every session changes its server each time


def first_turn(session: int) -> list[dict]:
    return [{"role": "user", "content": f"Remember this: {words(10 + session, 40)}"}]


def goes_on(messages: list[dict], said: str) -> list[dict]:
    return [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]


@dataclass(frozen=True)
class Turn:
    """What one turn came to, in the servers' own numbers."""

    upstream: str
    prompt: int
    cached: int
    text: str


async def messages_turn(house: LlamaHouse, messages: list[dict]) -> Turn:
    """By the usage that a Messages client sees."""
    told = await house.told(messages, max_tokens=4)
    return Turn(told.upstream, told.prompt_tokens, told.cached_tokens, told.text)


async def chat_turn(messages: list[dict], asking) -> Turn:
    """By llama.cpp's own timings, which an OpenAI client gets as they are."""
    async with asking(
        "/chat/completions", {"max_tokens": 4, "temperature": 0, "messages": messages}
    ) as answer:
        told = await answer.json()
        upstream = answer.headers.get("antiphon-upstream", "")
    text = told["choices"][0]["message"]["content"]
    return Turn(upstream, told["usage"]["prompt_tokens"], told["timings"]["cache_n"], text)


async def conversations(ask: Callable[[int, list[dict]], Awaitable[Turn]]) -> list[list[Turn]]:
    """All turns of all sessions, one at a time: the sessions take turns."""
    messages = [first_turn(session) for session in range(SESSIONS)]
    told: list[list[Turn]] = [[] for _ in range(SESSIONS)]
    for _ in range(TURNS):
        for session in range(SESSIONS):
            turn = await ask(session, messages[session])
            told[session].append(turn)
            messages[session] = goes_on(messages[session], turn.text)
    return told


def cached_share(told: list[list[Turn]]) -> float:
    turns = [turn for session in told for turn in session]
    return sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)


async def test_turns_go_where_their_prefix_is_warm(tmp_path):
    served = {"one": Served(slots=3), "two": Served(slots=3)}

    async def through(session: int, messages: list[dict]) -> Turn:
        if session % 2:
            return await chat_turn(messages, lambda path, body: house.post(path, {"model": "smollm2"} | body))
        return await messages_turn(house, messages)

    async with LlamaHouse(tmp_path, served) as house:
        told = await conversations(through)
    for first, *later in told:
        assert {turn.upstream for turn in later} == {first.upstream}
        for before, turn in zip([first, *later], later, strict=False):
            # All of the last turn's prompt; at its very end the template goes on otherwise.
            assert turn.cached > before.prompt - 8
    assert {turn.upstream for session in told for turn in session} == {"one", "two"}

    number = itertools.count()

    async def by_turns(_session: int, messages: list[dict]) -> Turn:
        name = ("one", "two")[next(number) % 2]
        return await chat_turn(messages, lambda path, body: house.direct(name, path, body))

    async with LlamaHouse(tmp_path, served) as house:  # new servers, which have nothing cached
        in_turn = await conversations(by_turns)
    share, baseline = cached_share(told), cached_share(in_turn)
    homes = [turns[0].upstream for turns in told]
    print(f"prompt tokens found cached: {share:.0%} by affinity, {baseline:.0%} round robin; {homes}")
    assert share > 1.5 * baseline


# --- More clients than slots --------------------------------------------------------------------------

CLIENTS, SEED, IDLE_WITHIN = 16, 16, 2.0


async def test_nothing_waits_inside_either_of_them(tmp_path):
    """Three slots on two servers, and clients of both kinds, half of whom leave."""
    chance = random.Random(SEED)
    most = {"one": 0, "two": 0}

    async def visit(house: LlamaHouse, number: int) -> str:
        asked = [{"role": "user", "content": words(number, chance.randrange(5, 40))}]
        path = ("/messages", "/chat/completions")[number % 4 // 2]
        body = {"model": "smollm2", "max_tokens": 16, "stream": chance.random() < 0.7, "messages": asked}
        try:
            async with asyncio.timeout(chance.uniform(0.1, 6.0) if number % 2 else None):
                async with house.post(path, body) as answer:
                    assert answer.status == 200, await answer.text()
                    assert b"error" not in (await answer.read())[:40]
                    return "served"
        except TimeoutError:
            return "left"

    async def watch(house: LlamaHouse) -> None:
        while True:
            for name in most:
                most[name] = max(most[name], await house.deferred(name))
            await asyncio.sleep(0.05)

    async with LlamaHouse(tmp_path, {"one": Served(slots=1), "two": Served(slots=2)}) as house:
        watching = asyncio.ensure_future(watch(house))
        try:
            ends = await asyncio.gather(*(visit(house, number) for number in range(CLIENTS)))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await house.until_idle(IDLE_WITHIN)
        upstreams = {record["upstream"] for record in house.logged("exchange", cause="finished")}
    assert most == {"one": 0, "two": 0}
    assert ends.count("served") >= CLIENTS // 2
    assert "left" in ends
    assert upstreams == {"one", "two"}


# --- One of them dies ---------------------------------------------------------------------------------

DEATHS = ("upstream_lost", "upstream_failed")


@both_ways
async def test_one_dies_in_the_prefill_and_the_other_answers(tmp_path, stream):
    served = {name: Served(slots=1, back_after=3.0) for name in ("one", "two")}
    async with LlamaHouse(tmp_path, served, expected=DEATHS) as house:
        asked = asyncio.ensure_future(house.told(words(3, 180), stream=stream))
        victim = await house.until_busy("one", "two", of=asked)
        os.kill(served[victim].pid, signal.SIGKILL)
        told = await asked
        other = "two" if victim == "one" else "one"
        assert told.upstream == other
        assert told.message["stop_reason"] in ("end_turn", "max_tokens")
        assert told.text.strip() or told.message["content"] == []
        assert told.prompt_tokens > 500

        async def written() -> bool:  # the line comes behind the answer
            return bool(house.gateway.records())

        await house.until(written)
        (record,) = house.gateway.records()
        assert (record["retries"], record["upstream"], record["cause"]) == (1, other, "finished")

        # It comes back, is recognised, and gets what the other one has no slot for.
        async def returned() -> bool:
            return len(house.logged("upstream_recognised", upstream=victim)) > 1

        await house.until(returned)
        assert (await house.slots(victim))["slots"] == 1
        async with house.ask("Count.", max_tokens=900, model=f"only-{other}") as holds:
            await holds.content.readline()
            told = await house.told("Say hello.", stream=stream)
            assert told.upstream == victim
            assert told.text.strip()
            holds.close()
        await house.until_idle()


async def test_one_dies_in_the_prefill_of_an_openai_client(tmp_path):
    served = {name: Served(slots=1) for name in ("one", "two")}
    async with LlamaHouse(tmp_path, served, expected=DEATHS) as house:
        asked = {
            "model": "smollm2",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": words(4, 150)}],
        }

        async def whole() -> tuple[int, str, dict]:
            async with house.post("/chat/completions", asked) as answer:
                return answer.status, answer.headers["antiphon-upstream"], await answer.json()

        answer = asyncio.ensure_future(whole())
        victim = await house.until_busy("one", "two", of=answer)
        os.kill(served[victim].pid, signal.SIGKILL)
        status, upstream, told = await answer
        assert status == 200
        assert upstream != victim
        assert told["usage"]["prompt_tokens"] > 400
        assert told["choices"][0]["finish_reason"] in ("stop", "length")


async def test_one_dies_while_it_generates(tmp_path):
    served = {name: Served(slots=1) for name in ("one", "two")}
    async with LlamaHouse(tmp_path, served, expected=DEATHS) as house:
        async with house.ask("Count to a thousand.", max_tokens=900) as answer:
            assert answer.status == 200, await answer.text()
            victim = answer.headers["antiphon-upstream"]
            said = b""
            while b"content_block_delta" not in said:
                said += await answer.content.readline()
            os.kill(served[victim].pid, signal.SIGKILL)
            said += await answer.read()
        lines = [line for line in said.split(b"\n") if line.startswith(b"data: ")]
        events = [json.loads(line.removeprefix(b"data: ")) for line in lines]
        assert judge.violations(events) == []
        assert [event["type"] for event in events][-1] == "error"
        assert "message_stop" not in {event["type"] for event in events}
        assert events[-1]["error"]["type"] == "api_error"
        told = await house.told("Say hello.")  # at once, from the one that lives
        assert told.text.strip()
        (broken, whole) = house.gateway.records()
        assert (broken["cause"], broken.get("retries", 0), broken["upstream"]) == ("upstream", 0, victim)
        assert whole["upstream"] != victim

        async def back() -> bool:
            return await house.busy(victim) == 0

        await house.until(back)
        await house.until_idle()
