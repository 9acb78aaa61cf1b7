"""llama.cpp's own `/v1/messages` behind the gateway (`kind = "anthropic"`): passed through, and as well kept.

The server is the witness for its slots and its token counts; the strict judge reads what a client gets.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
import pytest_asyncio

from live.llamacpp_house import REASON, LlamaHouse, Served
from live.prompts import COUNTED, IMAGE, words
from pipeline import judge, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.skipif(REASON is not None, reason=f"live llama.cpp: {REASON}"),
    pytest.mark.asyncio(loop_scope="module"),
]

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory):
    served = {"native": Served(slots=1, kind="anthropic")}
    async with LlamaHouse(tmp_path_factory.mktemp("native"), served) as house:
        yield house


async def test_it_tells_its_slots(house):
    assert (await house.slots("native"))["slots"] == 1


@both_ways
async def test_text(house, stream):
    told = await house.told("Say hello.", stream=stream)
    assert told.text.strip()
    assert told.model == "smollm2"
    assert told.message["stop_reason"] in ("end_turn", "max_tokens")
    assert told.headers["antiphon-upstream"] == "native"


@both_ways
async def test_it_says_what_the_server_says(house, stream):
    """Nothing of its content is lost or added on the way."""
    body = {"model": "smollm2", "max_tokens": 12, "temperature": 0, "stream": stream}
    body["messages"] = [{"role": "user", "content": "Say hello."}]
    body["cache_prompt"] = False
    async with house.direct("native", "/messages", body) as answer:
        direct = await answer.read()
    told = await house.told("Say hello.", stream=stream, max_tokens=12)
    if not stream:
        assert told.message["content"] == json.loads(direct)["content"]
        return
    events, problems = run.decode_sse(direct)
    assert problems == []
    kinds = [event["type"] for event in told.events if event["type"] != "ping"]
    assert kinds == [event["type"] for event in events]
    assert told.message["content"] == judge.summary(events)["content"]


@both_ways
async def test_a_stop_string(house, stream):
    whole = (await house.told("Say hello.")).text
    stop = whole.split()[1]
    told = await house.told("Say hello.", stream=stream, stop_sequences=[stop])
    assert told.text.rstrip() == whole.partition(stop)[0].rstrip()
    assert (told.message["stop_reason"], told.message["stop_sequence"]) == ("stop_sequence", stop)


@both_ways
@pytest.mark.parametrize("asked", COUNTED)
async def test_the_count_is_the_servers_own(house, stream, asked):
    asked = {"model": "smollm2", **asked}
    async with house.direct("native", "/messages/count_tokens", asked) as answer:
        counted = (await answer.json())["input_tokens"]
    assert await house.counted(asked) == counted
    fields = {name: value for name, value in asked.items() if name not in ("messages", "model")}
    told = await house.told(asked["messages"], stream=stream, **fields)
    assert told.prompt_tokens == counted


@both_ways
async def test_a_prompt_that_is_too_long(house, stream):
    told = await house.told(words(1, 600), stream=stream)
    assert told.status == 400
    assert told.error["type"] == "invalid_request_error"
    assert "prompt is too long" in told.error["message"]


@both_ways
async def test_an_image_is_refused(house, stream):
    told = await house.told([{"role": "user", "content": [IMAGE]}], stream=stream)
    assert told.status == 400
    assert told.error["type"] == "invalid_request_error"
    assert "image" in told.error["message"]


async def test_who_leaves_while_it_generates(house):
    async with house.ask("Count to a thousand.", max_tokens=900) as answer:
        async for line in answer.content:
            if b"content_block_delta" in line:
                break
        assert await house.busy("native") == 1
        answer.close()
    await house.until_idle()


@both_ways
async def test_who_leaves_in_the_prefill_holds_the_slot_until_the_server_is_idle(house, stream):
    await house.leaves("native", words(2, 180), stream=stream, max_tokens=8)
    # Its slot is not given to others before the server says so.
    told = await house.told("Say hello.")
    assert told.status == 200
    await house.until_idle()


async def test_who_leaves_the_queue(house):
    async with house.ask("Count to a thousand.", max_tokens=900) as answer:
        await answer.content.readline()
        asked = asyncio.ensure_future(house.told("Say hello."))
        await house.until_waiting("native", 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert await house.busy("native") == 1
        answer.close()
    await house.until_idle()


async def test_it_dies_while_it_generates(tmp_path):
    served = {"native": Served(slots=1, kind="anthropic")}
    expected = ("upstream_lost", "upstream_failed")
    async with LlamaHouse(tmp_path, served, expected=expected) as house:
        async with house.ask("Count to a thousand.", max_tokens=900) as answer:
            said = b""
            while b"content_block_delta" not in said:
                said += await answer.content.readline()
            os.kill(served["native"].pid, signal.SIGKILL)
            said += await answer.read()
        events, problems = run.decode_sse(said)
        assert problems == []
        assert judge.violations(events, envelope=False) == []
        assert events[-1]["type"] == "error"

        async def back() -> bool:
            return await house.busy("native") == 0 and (await house.told("Say hello.")).status == 200

        await house.until(back)
        await house.until_idle()
