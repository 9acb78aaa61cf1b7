"""A whole gateway with several scripted upstreams: `server.harness.House`, for what goes from one to another.

Owns the upstreams by name and the one queue of their visits: a test sees where a request came to
(`visit.at`) and need not know who is asked first. Nothing here decides an order.

    @on_both_loops
    async def test_x() -> None:
        async with FleetHouse(kinds={"a": {}, "b": {"slots": 1}}) as house:
            client = await house.ask(stream=False)
            visit = await house.visit()
            visit.reset()
            other = await house.visit()
            assert other.at != visit.at
            other.answer("ok")
            assert (await client.response()).status == 200
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from antiphon.config import (
    Fallbacks,
    HealthSettings,
    Limits,
    ModelSettings,
    RetrySettings,
    Settings,
    TargetSettings,
    UpstreamSettings,
)
from server.harness import House, Response, ScriptedUpstream, Visit, judge, until


def model(name: str, *upstreams: str, sends: str | None = None, **more: Any) -> ModelSettings:
    """A model of these upstreams; `overflow`, `overloaded` and `failed` name its fallbacks."""
    fallbacks = {kind: more.pop(kind) for kind in ("overflow", "overloaded", "failed") if kind in more}
    targets = tuple(TargetSettings(upstream=each, model=sends) for each in upstreams)
    return ModelSettings(name=name, targets=targets, fallbacks=Fallbacks(**fallbacks), **more)


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port that nobody listens on, and that nobody else gets."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@dataclass
class FleetHouse(House):
    """`kinds` has what differs from the house's slots and profile, by the upstream's name.

    Without `models` there is `m` at all of them, and `only-NAME` for each alone.
    """

    kinds: dict[str, dict[str, Any]] = field(default_factory=lambda: {"a": {}, "b": {}})
    models: tuple[ModelSettings, ...] = ()
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)  # what they answer to GETs, by name
    by_listing: bool = False  # no models at all: each name where it is listed
    retries: RetrySettings = RetrySettings()
    health: HealthSettings = HealthSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sayings = (*self.sayings, "upstream_recognised", "settings_changed")
        self._visits: asyncio.Queue[Visit] = asyncio.Queue()
        self._by_name: dict[str, ScriptedUpstream] = {}
        self._gone: list[ScriptedUpstream] = []
        for name in self.kinds:
            self._script(name)

    def _script(self, name: str) -> ScriptedUpstream:
        scripted = self._by_name[name] = ScriptedUpstream(name)
        scripted._fresh = self._visits
        scripted.facts |= self.facts.get(name, {})
        return scripted

    # --- what a House asks ---

    @property
    def scripted(self) -> list[ScriptedUpstream]:
        return [*self._by_name.values(), *self._gone]

    def settings(self) -> Settings:
        names = tuple(self.kinds)
        usual = (model("m", *names), *(model(f"only-{name}", name, sends="m") for name in names))
        return Settings(
            upstreams=tuple(self._one(name, **self.kinds[name]) for name in names),
            models=() if self.by_listing else self.models or usual,
            limits=Limits(**{"tick": 3600.0, **self.limits}),
            retries=self.retries,
            health=self.health,
            port=0,
            strict=self.strict,
        )

    def _one(self, name: str, **fields: Any) -> UpstreamSettings:
        usual = {
            "base_url": f"http://127.0.0.1:{self._by_name[name].port}/v1",
            "slots": self.slots,
            "kind": self.profile,
        }
        return UpstreamSettings(name=name, **{**usual, **fields})

    async def visit(self) -> Visit:
        """The next request that came to any of them."""
        return await self._visits.get()

    # --- what a test does ---

    def __getitem__(self, name: str) -> Any:
        """The gateway's side of an upstream."""
        return self.backend.upstreams[name]

    def script(self, name: str) -> ScriptedUpstream:
        """The upstream itself."""
        return self._by_name[name]

    def other(self, name: str) -> str:
        """The other one of two."""
        (other,) = set(self._by_name) - {name}
        return other

    def slots_of(self, name: str) -> tuple[int, int, int]:
        """(held, draining, waiting)."""
        now = self[name].slots.statistics()
        return now.held, now.draining, now.waiting

    async def waiting_at(self, name: str, count: int) -> None:
        """Until so many requests wait in this queue."""
        await until(lambda: self.slots_of(name)[2] == count)

    async def hold(self, *names: str) -> dict[str, list[Visit]]:
        """Take every free slot of these upstreams; the visits by name. Their clients are nobody's business."""
        held: dict[str, list[Visit]] = {name: [] for name in names}
        for name in names:
            for _ in range(self[name].slots.statistics().free):
                await self.ask("holder", model=f"only-{name}", stream=False)
                held[name].append(await self.visit())
        return held

    async def reload(self, kinds: dict[str, dict[str, Any]] | None = None, **changes: Any) -> None:
        """Another configuration; upstreams that are new get a server, those that are gone keep theirs."""
        if kinds is not None:
            for name in set(self._by_name) - set(kinds):
                self._gone.append(self._by_name.pop(name))
            for name in kinds:
                if name not in self._by_name:
                    await self._script(name).start()
            self.kinds = kinds
        for name, value in changes.items():
            setattr(self, name, value)
        self.gateway.apply(self.settings())

    async def spare(self, name: str) -> ScriptedUpstream:
        """One more server, which no configuration has."""
        scripted = ScriptedUpstream(name)
        scripted._fresh = self._visits
        self._gone.append(scripted)
        await scripted.start()
        return scripted

    async def quiet(self) -> None:
        """What the fleet does beside requests has come to its end."""
        await until(lambda: not self.backend._tasks)

    async def check(self) -> None:
        self.backend.sweep()
        await self.quiet()
        await super().check()
        assert not self.backend._leaving

    def stop_planning(self) -> asyncio.Event:
        """From now on nothing is planned before this event is set: a body may take that long to read."""
        go_on, plan = asyncio.Event(), self.gateway.planning.plan

        async def late(*args: Any, **options: Any) -> Any:
            await go_on.wait()
            return await plan(*args, **options)

        self.gateway.planning.plan = late  # type: ignore[method-assign]
        return go_on


def whole_answer(response: Response, text: str) -> None:
    """A clean answer with this text, and with the usage that `Visit.answer` reports."""
    assert response.complete
    assert response.status == 200, response.body
    if response.headers["content-type"].startswith("text/event-stream"):
        assert not judge.violations(response.events), response.events
        assert response.kinds.count("message_start") == 1
        assert response.kinds[-1] == "message_stop"
        assert response.text == text
        usage = response.events[-2]["usage"]
    else:
        message = response.json
        assert [block["text"] for block in message["content"]] == [text]
        assert message["stop_reason"] == "end_turn"
        usage = message["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (21, 5)


def honest_error(response: Response) -> dict[str, Any]:
    """One error, as the last event of a legal stream or as a status. Returns it."""
    assert response.complete
    if response.status == 200:
        assert not judge.violations(response.events), response.events
        assert response.kinds.count("error") == 1
        assert response.kinds[-1] == "error"
        return response.error["error"]
    assert response.json["request_id"] == response.headers["request-id"]
    error: dict[str, Any] = response.json["error"]
    return error
