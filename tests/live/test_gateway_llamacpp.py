"""The gateway with the real llama.cpp behind it: answers, and slots that are free when the server says so."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from antiphon.local import LocalServer, available, slots_busy
from antiphon.local_model import cached_model
from live_gateway import gateway
from pipeline import judge, run

REASON = available() or (None if cached_model() else "the model file is not in the cache (antiphon fetch)")
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(180),
    pytest.mark.skipif(REASON is not None, reason=f"live llama.cpp: {REASON}"),
]

SHORT = "Say hello."
# A prefill of several seconds on two cores.
LONG = "The quick brown fox jumps over the lazy dog. " * 220


class House:
    """A llama.cpp of our own with one slot, and a gateway process in front of it."""

    def __init__(self, tmp_path, monkeypatch):
        self.tmp_path, self.monkeypatch = tmp_path, monkeypatch

    async def __aenter__(self):
        self.server = LocalServer(cached_model(), slots=1, window=4096)
        await self.server.start()
        self.monkeypatch.setenv("LOCAL_KEY", self.server.api_key)
        options = ("--api-key-env", "LOCAL_KEY", "--profile", "llamacpp", "--slots", "1")
        self._gateway = gateway(self.tmp_path, self.server.base_url, *options)
        self.gateway = await asyncio.to_thread(self._gateway.__enter__)
        self.session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exc):
        await self.session.close()
        await asyncio.to_thread(self._gateway.__exit__, *exc)
        await self.server.aclose()

    def ask(self, prompt, *, stream=True, max_tokens=24):
        body = {
            "model": "smollm2",
            "max_tokens": max_tokens,
            "stream": stream,
            "temperature": 0,
            "messages": [{"role": "user", "content": prompt}],
        }
        return self.session.post(f"{self.gateway.base_url}/v1/messages", json=body)

    async def busy(self):
        return await slots_busy(self.server.base_url, self.session, api_key=self.server.api_key)

    async def slots(self):
        async with self.session.get(f"{self.gateway.base_url}/admin/slots") as answer:
            return (await answer.json())["upstream"]

    async def until(self, true, seconds=60.0):
        async with asyncio.timeout(seconds):
            while not await true():
                await asyncio.sleep(0.02)


async def test_a_stream_is_legal_and_counted(tmp_path, monkeypatch):
    async with House(tmp_path, monkeypatch) as house:
        async with house.ask(SHORT) as answer:
            assert answer.status == 200
            events, problems = run.decode_sse(await answer.read())
        assert problems == []
        assert judge.violations(events) == []
        message = judge.summary(events)
        assert message["content"][0]["type"] == "text"
        assert message["content"][0]["text"].strip()
        assert message["usage"]["output_tokens"] > 0
        counted = {"model": "smollm2", "messages": [{"role": "user", "content": SHORT}]}
        async with house.session.post(
            f"{house.gateway.base_url}/v1/messages/count_tokens", json=counted
        ) as answer:
            assert answer.headers["antiphon-token-count"] == "exact"
            tokens = (await answer.json())["input_tokens"]
        start = events[0]["message"]["usage"]["input_tokens"]
        assert start == tokens  # told by the prefill's progress, before the first token
        used = message["usage"]
        assert used["input_tokens"] + used.get("cache_read_input_tokens", 0) == tokens


async def test_a_whole_answer(tmp_path, monkeypatch):
    async with House(tmp_path, monkeypatch) as house:
        async with house.ask(SHORT, stream=False) as answer:
            assert answer.status == 200
            message = json.loads(await answer.read())
        assert message["stop_reason"] in ("end_turn", "max_tokens")
        assert message["content"][0]["text"].strip()


async def test_a_client_that_leaves_mid_stream_leaves_an_idle_slot(tmp_path, monkeypatch):
    async with House(tmp_path, monkeypatch) as house:
        async with house.ask("Count to a thousand.", max_tokens=2000) as answer:
            async for line in answer.content:
                if b"content_block_delta" in line:
                    break
            assert await house.busy() == 1
            answer.close()

            async def idle():
                return await house.busy() == 0

            await house.until(idle)
        async with house.ask(SHORT) as answer:
            assert answer.status == 200


async def test_who_leaves_a_prefill_holds_the_slot_until_the_server_says_idle(tmp_path, monkeypatch):
    async with House(tmp_path, monkeypatch) as house:
        first = asyncio.ensure_future(house.ask(LONG, max_tokens=8).__aenter__())

        async def prefilling():
            return await house.busy() == 1

        await house.until(prefilling)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

        async def draining():
            return (await house.slots())["draining"] == 1

        await house.until(draining)
        assert await house.busy() == 1, "the server still works for nobody, and the lease says so"
        second = asyncio.ensure_future(house.ask(SHORT).__aenter__())
        seen = []
        async with asyncio.timeout(90):
            while not second.done():
                slots, busy = await house.slots(), await house.busy()
                seen.append((slots["held"], slots["draining"], busy))
                await asyncio.sleep(0.05)
        assert (await second).status == 200
        (await second).close()
        # as long as the first one drained, the second one was not let in
        assert any(draining for _, draining, _ in seen)
        assert not any(held and draining for held, draining, _ in seen)
