"""Real llama.cpp with four slots and twenty clients, half of whom leave: nothing ever waits inside it.

Its own `/metrics` is the witness: `requests_deferred` counts requests that came while all of its slots were
busy. It is asked all the time, and must be 0 each time; two seconds after the end all slots are idle.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from pathlib import Path

import aiohttp
import pytest

from antiphon.local import LocalServer, available, slots_busy
from antiphon.local_model import cached_model
from live_gateway import gateway

REASON = available() or (None if cached_model() else "the model file is not in the cache (antiphon fetch)")
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.skipif(REASON is not None, reason=f"live llama.cpp: {REASON}"),
]

CHILD = (sys.executable, "-P", str(Path(__file__).with_name("metered_llamacpp.py")))
SLOTS, CLIENTS, SEED = 4, 20, 20
IDLE_WITHIN = 2.0  # seconds
WORDS = "river stone lantern orbit copper meadow signal harbor velvet thunder".split()


class Witness:
    """What the server says of itself, asked ten times a second. `deferred` is the most that ever waited."""

    def __init__(self, server: LocalServer, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session
        self.deferred = self.processing = self.looks = 0

    async def look(self) -> None:
        url = self._server.base_url.removesuffix("/v1") + "/metrics"
        headers = {"authorization": f"Bearer {self._server.api_key}"}
        async with self._session.get(url, headers=headers) as answer:
            assert answer.status == 200
            page = await answer.text()
        self.deferred = max(self.deferred, self._value(page, "requests_deferred"))
        self.processing = max(self.processing, self._value(page, "requests_processing"))
        self.looks += 1

    def _value(self, page: str, name: str) -> int:
        found = re.search(rf"^llamacpp:{name} (\S+)$", page, re.MULTILINE)
        assert found, f"no {name} in its metrics"
        return int(float(found[1]))

    async def watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(0.1)


async def visit(base_url: str, session: aiohttp.ClientSession, number: int, chance: random.Random) -> str:
    """One client: it reads to the end, or leaves after a random time. Returns how it went."""
    leaves = number % 2 == 1
    prompt = f"Story {number}: " + " ".join(chance.choice(WORDS) for _ in range(chance.randrange(10, 150)))
    body = {
        "model": "smollm2",
        "max_tokens": 24,
        "stream": chance.random() < 0.7,
        "messages": [{"role": "user", "content": prompt}],
    }
    headers = {"x-claude-code-session-id": f"session {number % 5}"}
    patience = chance.uniform(0.1, 12.0) if leaves else None
    try:
        async with asyncio.timeout(patience):
            async with session.post(f"{base_url}/v1/messages", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                said = await answer.read()
    except TimeoutError:
        return "left"
    assert b"error" not in said[:40]
    assert b"end_turn" in said or b"max_tokens" in said
    return "served"


async def test_nothing_waits_inside_the_server_and_its_slots_are_idle_at_the_end(
    tmp_path, monkeypatch
) -> None:
    chance = random.Random(SEED)
    server = LocalServer(cached_model(), slots=SLOTS, window=1024, command=CHILD)
    await server.start()
    try:
        monkeypatch.setenv("LOCAL_KEY", server.api_key)
        options = ("--api-key-env", "LOCAL_KEY", "--profile", "llamacpp", "--slots", str(SLOTS))
        running = gateway(tmp_path, server.base_url, *options)
        antiphon = await asyncio.to_thread(running.__enter__)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            witness = Witness(server, session)
            watching = asyncio.ensure_future(witness.watch())
            visits = [visit(antiphon.base_url, session, number, chance) for number in range(CLIENTS)]
            ends = await asyncio.gather(*visits)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            async with asyncio.timeout(IDLE_WITHIN):
                while await slots_busy(server.base_url, session, api_key=server.api_key):
                    await asyncio.sleep(0.02)
            await witness.look()
        assert ends.count("served") >= CLIENTS // 2
        assert ends.count("left") > 0
        assert witness.looks > 10
        assert witness.processing > 1  # it did work on several at once
        assert witness.deferred == 0
        await asyncio.to_thread(running.__exit__, None, None, None)
    finally:
        await server.aclose()
