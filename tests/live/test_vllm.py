"""The gateway with the real vLLM behind it, on both of its surfaces: its answers, its counts, its own queue."""

from __future__ import annotations

import asyncio
import random
import re

import pytest
import pytest_asyncio

from live.prompts import IMAGE, TOOL, TOOL_TURNS
from live.vllm_house import REASON, SLOTS, WINDOW, VllmHouse

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(400),
    pytest.mark.skipif(REASON is not None, reason=f"live vLLM: {REASON}"),
    pytest.mark.asyncio(loop_scope="module"),
]

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
CLIENTS, SEED = 20, 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory):
    async with VllmHouse(tmp_path_factory.mktemp("vllm")) as house:
        yield house


@pytest.fixture(params=["chat", "native"])
def model(request):
    return request.param


def upstream_of(model: str) -> str:
    return {"chat": "chat", "native": "messages"}[model]


async def test_it_is_recognised(house):
    (line,) = house.logged("upstream_recognised", upstream="chat")
    assert line["kind"] == "vllm"
    assert line["version"]


@both_ways
async def test_thinking_then_text(house, model, stream):
    told = await house.told("Hi.", model=model, stream=stream, max_tokens=64)
    thinking, text = told.message["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Let me think about it!")
    assert (text["type"], text["text"].strip()) == ("text", "Hello from a scripted model~")
    assert told.message["stop_reason"] == "end_turn"
    assert told.model == model


@both_ways
async def test_text(house, model, stream):
    told = await house.told("PLAIN", model=f"{model}-quiet", stream=stream, max_tokens=64)
    assert [block["type"] for block in told.message["content"]] == ["text"]
    assert told.text == "Just plain text, naïve 🙂 déjà?!"
    assert told.message["usage"]["output_tokens"] in (8, 9)  # with or without the token that ends it


@both_ways
async def test_the_end_of_the_tokens(house, model, stream):
    told = await house.told("PLAIN", model=f"{model}-quiet", stream=stream, max_tokens=3)
    assert (told.text, told.message["stop_reason"]) == ("Just plain text", "max_tokens")
    assert told.message["usage"]["output_tokens"] == 3


@both_ways
async def test_a_tool_call(house, model, stream):
    told = await house.told(
        "The weather?", model=f"{model}-quiet", stream=stream, max_tokens=64, tools=[TOOL]
    )
    text, call = told.message["content"]
    assert text["text"].strip() == "I will look that up."
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_weather", {"city": "Paris"})
    assert told.message["stop_reason"] == "tool_use"


@both_ways
async def test_a_tool_result(house, model, stream):
    fields = {"max_tokens": 64, "tools": [TOOL]}
    told = await house.told(TOOL_TURNS, model=f"{model}-quiet", stream=stream, **fields)
    assert (told.text, told.message["stop_reason"]) == ("It is sunny in Paris.", "end_turn")


@both_ways
async def test_a_stop_string(house, model, stream):
    told = await house.told("STOP", model=f"{model}-quiet", stream=stream, stop_sequences=["nine", " three"])
    assert told.text == "one two"
    assert (told.message["stop_reason"], told.message["stop_sequence"]) == ("stop_sequence", " three")


@both_ways
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"messages": [{"role": "user", "content": "PLAIN naïve 🙂"}]}, id="text"),
        pytest.param({"system": "Be brief.", "messages": [{"role": "user", "content": "Hi."}]}, id="system"),
        pytest.param({"messages": TOOL_TURNS, "tools": [TOOL]}, id="tool result"),
    ],
)
async def test_the_count_is_the_servers_own(house, model, stream, asked):
    asked = {"model": model, **asked}
    counted = await house.counted(asked)
    fields = {name: value for name, value in asked.items() if name != "messages"}
    told = await house.told(asked["messages"], stream=stream, **fields)
    assert told.prompt_tokens == counted
    if model == "native":
        async with house.direct("/messages/count_tokens", asked | {"model": "reasoning"}) as answer:
            assert (await answer.json())["input_tokens"] == counted


@both_ways
async def test_a_prompt_that_is_too_long(house, model, stream):
    told = await house.told("word " * WINDOW, model=model, stream=stream)
    assert told.status == 400
    assert told.error["type"] == "invalid_request_error"
    assert "prompt is too long" in told.error["message"]
    assert f"{WINDOW} maximum" in told.error["message"]


@both_ways
async def test_an_image_is_refused(house, model, stream):
    told = await house.told([{"role": "user", "content": [IMAGE]}], model=model, stream=stream)
    assert told.status == 400
    assert told.error["type"] == "invalid_request_error"
    assert "not a multimodal model" in told.error["message"]


@both_ways
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        pytest.param("/chat/completions", {"messages": [{"role": "user", "content": "Hi."}]}, id="chat"),
        pytest.param("/completions", {"prompt": "one"}, id="completions"),
    ],
)
async def test_an_openai_client_gets_the_servers_own_bytes(house, path, asked, stream):
    body = {"model": "reasoning", "max_tokens": 32, "temperature": 0, "stream": stream, **asked}
    async with house.direct(path, body) as answer:
        direct = await answer.read()
    async with house.post(path, body | {"model": "chat"}) as answer:
        assert answer.status == 200
        through = await answer.read()
    assert frames(through) == frames(direct)


def frames(body: bytes) -> list[bytes]:
    """Without what differs each time."""
    body = re.sub(rb'"id":"[^"]*"', b'"id":""', body)
    return re.sub(rb'"created":\d+', b'"created":0', body).split(b"\n\n")


# --- Cancel -------------------------------------------------------------------------------------------

LONG = {"asked": "LONG", "max_tokens": 1900}


async def test_who_leaves_while_it_generates(house, model):
    async with house.ask(**LONG, model=model) as answer:
        async for line in answer.content:
            if b"content_block_delta" in line:
                break
        assert await house.metrics() == (1, 0)
        answer.close()
    await house.until_idle()


async def test_who_leaves_a_whole_answer(house, model):
    name = upstream_of(model)
    await house.leaves(name, **LONG, model=model, stream=False)
    await house.until_idle()


async def test_who_leaves_the_queue(house, model):
    """It never hears of him: with all of its places taken nothing waits inside it."""
    name = upstream_of(model)
    held = [await house.ask(**LONG, model=model).__aenter__() for _ in range(SLOTS)]
    asked = asyncio.ensure_future(house.told("PLAIN", model=model))
    await house.until_waiting(name, 1)
    assert await house.metrics() == (SLOTS, 0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await house.until_waiting(name, 0)
    assert await house.metrics() == (SLOTS, 0)
    for answer in held:
        answer.close()
    await house.until_idle()


async def test_its_own_queue_stays_empty(house, model):
    """Eight places and twenty clients, half of whom leave. Its metrics are looked at all the time."""
    chance = random.Random(SEED)
    looks = []

    async def watch() -> None:
        while True:
            looks.append(await house.metrics())
            await asyncio.sleep(0.02)

    async def visit(number: int) -> str:
        patience = chance.uniform(0.05, 4.0) if number % 2 else None
        fields = {**LONG, "max_tokens": chance.randrange(100, 900), "stream": chance.random() < 0.7}
        try:
            async with asyncio.timeout(patience):
                told = await house.told(**fields, model=model)
        except TimeoutError:
            return "left"
        assert told.message["stop_reason"] == "max_tokens"
        return "served"

    watching = asyncio.ensure_future(watch())
    try:
        ends = await asyncio.gather(*(visit(number) for number in range(CLIENTS)))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await house.until_idle(seconds=30)
    running, waiting = (max(column) for column in zip(*looks, strict=True))
    print(f"vLLM, {model}: at most {running} ran and {waiting} waited in {len(looks)} looks; {sorted(ends)}")
    assert ends.count("served") >= CLIENTS // 2
    assert "left" in ends
    assert 1 < running <= SLOTS
    assert waiting == 0
