"""Requests with a fault each from a seed, many at once: a client's, an upstream's, or both.

Owns the faults and the crowd; tests say how many and what must be left afterwards: nothing.

    async with House(**HOUSE) as house:
        storm = Storm(house, seed=20)
        await storm.blow(250)      # requests, all at once
        storm.faults               # how many of them had one
"""

from __future__ import annotations

import asyncio
import random

from server.harness import (
    DONE,
    USAGE,
    Client,
    House,
    Visit,
    frame,
    judge,
    tool,
    turns,
    until,
)

HOUSE = {
    "slots": 6,
    "sndbuf": 16 * 1024,
    "limits": {"settle": 0.001, "max_behind": 65536, "first_token": 60, "gap": 40},
}

CLIENT_FAULTS = ("none", "none", "fin", "rst", "half_close", "slow", "stall", "pipelines")
UPSTREAM_FAULTS = (
    "none",
    "none",
    "cut",
    "reset",
    "stall",
    "500",
    "503",
    "error",
    "garbage",
    "silent",
    "floods",
)
FRAMES = [
    frame({"reasoning_content": "Hm"}),
    frame({"content": "Hello "}),
    frame({"content": "x" * 20_000}),
    frame(tool('{"a": ', call_id="c1", name="f")),
    frame(tool("1}")),
    frame(finish="tool_calls"),
    USAGE,
    DONE,
]


async def upstream_side(visit: Visit, fault: str, chance: random.Random) -> None:
    at = chance.randrange(len(FRAMES) + 1)
    await turns(chance.randrange(4))
    if fault in ("500", "503"):
        visit.refuse(int(fault))
        return
    if fault == "silent":
        return
    visit.head()
    for number, data in enumerate(FRAMES):
        if visit.closed.is_set():
            return
        if number == at:
            if fault in ("cut", "reset"):
                getattr(visit, fault)()
                return
            if fault == "stall":
                return
            if fault == "error":
                visit.send(b'data: {"error":{"message":"broken","code":500}}\n\n')
            elif fault == "garbage":
                visit.send(b"data: {nonsense\n\n")
            elif fault == "floods":
                for _ in range(40):
                    visit.send(frame({"content": "y" * 20_000}))
        visit.send(data)
        await turns(chance.randrange(5))
    visit.raw(b"0\r\n\r\n")


async def client_side(house: House, tag: str, fault: str, chance: random.Random) -> None:
    client = await house.client(rcvbuf=4096 if fault in ("stall", "slow") else None)
    if fault == "stall":
        client.stop_reading()
    client.ask(tag, stream=chance.random() < 0.7)
    if fault in ("fin", "rst", "half_close"):
        await turns(chance.randrange(60))
        if not client.transport.is_closing():
            getattr(client, fault)()
    elif fault == "slow":
        for _ in range(4):
            client.stop_reading()
            await turns(10)
            client.read_on()
            await turns(3)
    elif fault == "pipelines":
        client.ask("never")
    if fault == "stall":  # it hears nothing, not even that it was dropped
        began = house.clock.now
        await until(lambda: house.clock.now > began + 2000)
    else:
        await client.until(lambda: ended(client))
    response = client.so_far
    if response is not None and response.headers["content-type"].startswith("text/event-stream"):
        whole = response.complete
        assert not judge.violations(response.events, prefix=not whole), response.events
    elif response is not None and response.complete and response.status != 200:
        assert response.json["request_id"] == response.headers["request-id"]
    client.transport.abort()
    client.data.clear()  # there are thousands of them


def ended(client: Client) -> bool:
    if client.ended:
        return True
    if len(client.data) > 2000 and not client.data.endswith(b"0\r\n\r\n") and b"chunked" in client.data[:500]:
        return False  # a long one is not parsed at each of its pieces
    response = client.so_far
    return bool(response and response.complete)


class Storm:
    """See the module. The same seed makes the same requests; how they meet is up to the machine."""

    def __init__(self, house: House, seed: int) -> None:
        self._house = house
        self._seed = seed
        self._chance = random.Random(seed)
        self._number = 0
        self._sides: set[asyncio.Task[None]] = set()
        self._planned: dict[str, str] = {}
        self.faults = 0
        house.upstream.answering = self._answer

    def _answer(self, visit: Visit) -> None:
        fault = self._planned.get(visit.tag, "none")
        task = asyncio.ensure_future(upstream_side(visit, fault, self._random(visit.tag)))
        self._sides.add(task)
        task.add_done_callback(self._sides.discard)

    def _random(self, tag: str) -> random.Random:
        return random.Random(f"{self._seed}:{tag}")

    async def blow(self, requests: int) -> None:
        """So many requests at once, from their beginning to their last trace."""
        house, chance = self._house, self._chance
        running = []
        for _ in range(requests):
            self._number += 1
            tag = f"{self._number}"
            client_fault, self._planned[tag] = chance.choice(CLIENT_FAULTS), chance.choice(UPSTREAM_FAULTS)
            self.faults += (client_fault, self._planned[tag]) != ("none", "none")
            side = client_side(house, tag, client_fault, self._random(f"c{tag}"))
            running.append(asyncio.ensure_future(side))
        while not all(task.done() for task in running):
            await turns(chance.randrange(1, 200))
            house.tick(chance.choice((0.5, 1, 5, 30)))
        for task in running:
            task.result()
        while self._sides:
            await asyncio.wait(self._sides)
        for _ in range(3):
            house.tick(200)
        await house._close_clients()
        house.clients.clear()
        self._planned.clear()
        # Nobody looks at them again, and each has its request's body.
        assert not any(visit.tag == "never" for visit in house.upstream.visits)
