"""A server that speaks Messages itself, in a whole gateway: promises, failures and laggards are those of all others."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from server.fleet_house import FleetHouse, honest_error, model, whole_answer
from server.harness import SSE_HEAD, Visit, chunk, judge, on_uvloop, turns, until

# At the path where the scripted upstreams listen.
NATIVE: Final[dict[str, Any]] = {
    "kind": "anthropic",
    "quirks": {"path": "/chat/completions", "tokenizer": "none"},
}
both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def message(**members: Any) -> dict[str, Any]:
    usual = {"id": "msg_up", "type": "message", "role": "assistant", "model": "x", "content": []}
    return {**usual, "stop_reason": None, "stop_sequence": None, **members}


def delta(text: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


START = event("message_start", message=message(usage={"input_tokens": 21, "output_tokens": 1}))
BEGIN = START + event("content_block_start", index=0, content_block={"type": "text", "text": ""})
REASON = event("content_block_stop", index=0) + event(
    "message_delta",
    delta={"stop_reason": "end_turn", "stop_sequence": None},
    usage={"input_tokens": 21, "output_tokens": 5},
)
END = REASON + event("message_stop")
ERROR = event("error", error={"type": "overloaded_error", "message": "Overloaded"})


def answer(visit: Visit, text: str = "ok") -> None:
    """A whole answer of either kind of server."""
    if visit.at == "chat":
        visit.answer(text)
    else:
        visit.raw(SSE_HEAD + chunk(BEGIN + delta(text) + END) + b"0\r\n\r\n")


@both_ways
@pytest.mark.parametrize("served", ["chat", "native"])
@on_uvloop
async def test_a_promise_holds_for_whatever_kind_has_a_slot(served, stream) -> None:
    """`message_start` is said once, by whom it was promised, and usage is true in the end."""
    async with FleetHouse(kinds={"chat": {}, "native": NATIVE}, slots=1) as house:
        held = await house.hold("chat", "native")
        client = await house.ask(stream=stream)
        await house.waiting_at(served, 1)
        house.tick(13)
        promised = (await client.event("message_start"))[0]["message"]["id"] if stream else None
        answer(held[served].pop())
        visit = await house.visit()
        assert visit.at == served
        answer(visit)
        response = await client.response()
        whole_answer(response, "ok")
        if stream:
            assert response.events[0]["message"]["id"] == promised
            assert {each["index"] for each in response.events if "index" in each} == {0}
        answer(held[house.other(served)].pop())


@both_ways
@pytest.mark.parametrize("said", [b"", START, BEGIN, ERROR, START + ERROR], ids=str)
@on_uvloop
async def test_what_fails_before_content_goes_elsewhere(said, stream) -> None:
    models = (model("m", "native", failed="n", overloaded="n"), model("n", "chat"))
    async with FleetHouse(kinds={"chat": {}, "native": NATIVE}, models=models) as house:
        client = await house.ask(stream=stream)
        (await house.visit()).raw(SSE_HEAD + (chunk(said) if said else b"") + b"0\r\n\r\n")
        visit = await house.visit()
        assert visit.at == "chat"
        visit.answer("ok")
        whole_answer(await client.response(), "ok")
        assert (await house.record())["retries"] == 1


@on_uvloop
async def test_half_of_a_whole_answer_is_forgotten() -> None:
    models = (model("m", "native", failed="n"), model("n", "chat"))
    async with FleetHouse(kinds={"chat": {}, "native": NATIVE}, models=models) as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(BEGIN + delta("half")))
        visit.cut()
        (await house.visit()).answer("ok")
        whole_answer(await client.response(), "ok")


@on_uvloop
async def test_a_refusal_after_the_promise_is_one_error() -> None:
    async with FleetHouse(kinds={"native": NATIVE}) as house:
        client = await house.ask()
        visit = await house.visit()
        house.tick(13)
        await client.event("message_start")
        visit.refuse(400, b'{"type":"error","error":{"type":"invalid_request_error","message":"bad"}}')
        assert honest_error(await client.response())["message"] == "bad"


@on_uvloop
async def test_one_message_in_place_of_a_stream_after_the_promise() -> None:
    async with FleetHouse(kinds={"native": NATIVE}) as house:
        client = await house.ask()
        visit = await house.visit()
        house.tick(13)
        await client.event("message_start")
        content = [{"type": "text", "text": "ok"}]
        usage = {"input_tokens": 21, "output_tokens": 5}
        body = json.dumps(message(content=content, stop_reason="end_turn", usage=usage)).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        visit.raw(head % len(body) + body)
        whole_answer(await client.response(), "ok")


@on_uvloop
async def test_a_missing_end_is_waited_for_and_blames_nobody() -> None:
    async with FleetHouse(kinds={"native": NATIVE}) as house:
        client = await house.ask()
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(BEGIN + delta("ok") + REASON))
        await until(lambda: house.exchange().answer.finished)
        house.tick()
        house.tick(5.1)
        whole_answer(await client.response(), "ok")
        assert (await house.record())["cause"] == "finished"
        assert not house["native"].health.statistics(house.clock.now).failures


@on_uvloop
async def test_a_client_that_does_not_read_pauses_its_upstream_and_loses_nothing() -> None:
    async with FleetHouse(kinds={"native": NATIVE}, slots=1, sndbuf=16 * 1024) as house:
        client = await house.ask(rcvbuf=4096)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(BEGIN + delta("a")))
        await client.event("content_block_delta")
        client.stop_reading()
        exchange, said = house.exchange(), 1
        while not exchange._time.held_back:
            visit.send(delta("x" * 1000))
            said += 1000
            await asyncio.sleep(0)
        visit.raw(chunk(END) + b"0\r\n\r\n")
        await turns()
        client.read_on()
        response = await client.response()
        assert len(response.text) == said
        assert not judge.violations(response.events)
