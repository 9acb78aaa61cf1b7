"""One gateway process, started with a configuration file, in front of real servers.

Owns its start and end, and what a test asks of it. Which servers are behind it is its heirs'. It asserts
nothing but that the gateway had no trouble of its own.

    class Mine(House):
        async def serve(self): ...            # start the servers; returns the rest of the configuration
        async def busy(self, name): ...       # what a server says of itself

    async with Mine(tmp_path) as house:
        told = await house.told("Say hello.")
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

from live_gateway import GatewayProcess, configured_gateway
from pipeline import judge, run

PATIENCE = 120.0  # seconds; a bound for a loaded machine, never a measurement
_SERVER = '[server]\nport = 0\nlog_level = "debug"\nlog_json = true\n\n'


class House:
    """See the module. `model` is what clients ask for; `expected`: events that the gateway may warn of."""

    names: Collection[str] = ()  # of its upstreams

    def __init__(self, folder: Path, *, model: str, expected: Collection[str] = ()) -> None:
        self.folder = folder
        self.model = model
        self.opening = contextlib.AsyncExitStack()
        self._expected = expected
        self.gateway: GatewayProcess
        self.session: aiohttp.ClientSession

    async def serve(self) -> str:
        raise NotImplementedError

    async def busy(self, name: str) -> int | None:
        """How many requests a server works on, by its own report; None while it cannot be asked."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as self.opening:
            # llama.cpp closes a connection right behind a stream although it announces keep-alive.
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            self.session = await self.opening.enter_async_context(aiohttp.ClientSession(connector=connector))
            configuration = _SERVER + await self.serve()
            running = configured_gateway(self.folder, configuration, expected=self._expected)
            self.gateway = await asyncio.to_thread(running.__enter__)
            self.opening.push_async_exit(lambda *exc: asyncio.to_thread(running.__exit__, *exc))
            self.opening = self.opening.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.opening.__aexit__(*exc)

    # --- what clients ask ---

    def post(self, path: str, body: dict, **headers: str):
        """A request to the gateway; the context of its answer."""
        return self.session.post(f"{self.gateway.base_url}/v1{path}", json=body, headers=headers)

    def ask(self, asked: str | list[dict], *, stream: bool = True, **fields: Any):
        """A request for a message, which is short and always the same unless `fields` say otherwise."""
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        body = {"model": self.model, "max_tokens": 16, "stream": stream, "temperature": 0}
        return self.post("/messages", body | {"messages": messages} | fields)

    async def told(self, asked: str | list[dict], *, stream: bool = True, **fields: Any) -> Told:
        """A Messages client's whole answer."""
        async with self.ask(asked, stream=stream, **fields) as answer:
            return Told(answer.status, dict(answer.headers), await answer.read(), stream)

    async def counted(self, asked: dict) -> int:
        """`count_tokens`; fails if it is an estimate."""
        async with self.post("/messages/count_tokens", asked) as answer:
            assert answer.headers["antiphon-token-count"] == "exact"
            return (await answer.json())["input_tokens"]

    async def leaves(self, name: str, asked: str, **fields: Any) -> None:
        """A client that leaves while it has no answer yet and the server works for it."""
        task = asyncio.ensure_future(self.told(asked, **fields))
        await self.until_busy(name, of=task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # --- what servers and gateway say of themselves ---

    async def slots(self, name: str) -> dict:
        """What the gateway says of an upstream's."""
        async with self.session.get(f"{self.gateway.base_url}/admin/slots") as answer:
            return (await answer.json())[name]

    async def until(self, true: Callable[[], Awaitable[object]], seconds: float = PATIENCE) -> None:
        async with asyncio.timeout(seconds):
            while not await true():
                await asyncio.sleep(0.02)

    async def until_busy(self, *names: str, of: asyncio.Future[Any]) -> str:
        """Wait until one of these works; its name. Fails if the request `of` which it should has ended."""
        found: list[str] = []

        async def works() -> bool:
            found[:] = [name for name in names if await self.busy(name)]
            assert not of.done(), of.result()
            return bool(found)

        await self.until(works)
        return found[0]

    async def until_waiting(self, name: str, requests: int) -> None:
        """Wait until so many stand in an upstream's queue."""

        async def waits() -> bool:
            return (await self.slots(name))["waiting"] == requests

        await self.until(waits)

    async def until_idle(self, seconds: float = PATIENCE) -> None:
        """Every server says that it is idle, and the gateway that every slot is free."""

        async def idle() -> bool:
            for name in self.names:
                numbers = await self.slots(name)
                if await self.busy(name) != 0 or numbers["free"] != numbers["slots"]:
                    return False
            return True

        await self.until(idle, seconds)

    def logged(self, event: str, **fields: Any) -> list[dict]:
        """The gateway's log lines of an event."""
        return [
            line
            for line in self.gateway.lines()
            if line.get("event") == event and all(line.get(name) == each for name, each in fields.items())
        ]


@dataclass(frozen=True)
class Told:
    """What a Messages client has. A stream has been judged when it is looked into."""

    status: int
    headers: dict[str, str]
    body: bytes
    stream: bool

    @property
    def upstream(self) -> str:
        return self.headers["antiphon-upstream"]

    @property
    def events(self) -> list[dict]:
        events, problems = run.decode_sse(self.body)
        assert problems == [], problems
        return events

    @property
    def message(self) -> dict:
        """The message, folded by the strict judge if it is a stream."""
        assert self.status == 200, self.body
        if not self.stream:
            return json.loads(self.body)
        # The ids of a native upstream are its own.
        assert judge.violations(self.events, envelope=False) == []
        return judge.summary(self.events)

    @property
    def model(self) -> str:
        """As the client is told."""
        return self.events[0]["message"]["model"] if self.stream else self.message["model"]

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self.message["content"] if block["type"] == "text")

    @property
    def error(self) -> dict:
        """What an answer that was refused says."""
        assert self.status >= 400, self.body
        return json.loads(self.body)["error"]

    @property
    def prompt_tokens(self) -> int:
        used = self.message["usage"]
        return used["input_tokens"] + (used.get("cache_read_input_tokens") or 0)

    @property
    def cached_tokens(self) -> int:
        return self.message["usage"].get("cache_read_input_tokens") or 0
