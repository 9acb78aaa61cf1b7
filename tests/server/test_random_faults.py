"""Five hundred requests, each with a fault from a fixed seed, many at once; afterwards nothing is left."""

from __future__ import annotations

import asyncio
import random

import pytest

from server.harness import (
    DONE,
    USAGE,
    Client,
    House,
    Visit,
    frame,
    judge,
    on_loops,
    tool,
    turns,
    until,
)

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


async def upstream_side(visit: Visit, chance: random.Random) -> None:
    fault = chance.choice(UPSTREAM_FAULTS)
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


async def client_side(house: House, tag: str, chance: random.Random) -> None:
    fault = chance.choice(CLIENT_FAULTS)
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
        await until(lambda: house.clock.now > 3000)
    else:
        await client.until(lambda: ended(client))
    response = client.so_far
    if response is not None and response.headers["content-type"].startswith("text/event-stream"):
        whole = response.complete
        assert not judge.violations(response.events, prefix=not whole), response.events
    elif response is not None and response.complete and response.status != 200:
        assert response.json["request_id"] == response.headers["request-id"]
    client.transport.abort()


def ended(client: Client) -> bool:
    if client.ended:
        return True
    if len(client.data) > 2000 and not client.data.endswith(b"0\r\n\r\n") and b"chunked" in client.data[:500]:
        return False  # a long one is not parsed at each of its pieces
    response = client.so_far
    return bool(response and response.complete)


@pytest.mark.parametrize("profile", ["generic", "ollama"])
@on_loops("uvloop")
async def test_five_hundred_random_faults(profile) -> None:
    chance = random.Random(20)
    limits = {"settle": 0.001, "max_behind": 65536, "first_token": 60, "gap": 40}
    async with House(slots=6, profile=profile, sndbuf=16 * 1024, limits=limits) as house:
        sides: set[asyncio.Task] = set()

        def answer(visit: Visit) -> None:
            task = asyncio.ensure_future(upstream_side(visit, random.Random(visit.tag)))
            sides.add(task)
            task.add_done_callback(sides.discard)

        house.upstream.answering = answer
        running = [
            asyncio.ensure_future(client_side(house, f"{number}", random.Random(f"c{number}")))
            for number in range(250)
        ]
        while not all(task.done() for task in running):
            await turns(chance.randrange(1, 200))
            house.tick(chance.choice((0.5, 1, 5, 30)))
        for task in running:
            task.result()
        while sides:
            await asyncio.wait(sides)
        for _ in range(3):
            house.tick(200)
        await house._close_clients()
        records = house.records_written
        assert {record["cause"] for record in records} == {"finished", "upstream", "client", "deadline"} | (
            {"stall"} if any(record["cause"] == "stall" for record in records) else set()
        )
        assert not any(visit.tag == "never" for visit in house.upstream.visits)
