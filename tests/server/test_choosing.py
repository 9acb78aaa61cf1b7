"""Which of a route's targets may be asked, by what is known of their servers now."""

from __future__ import annotations

import pytest

from antiphon.config import Limits, UpstreamSettings
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.server.choosing import Chooser
from antiphon.server.health import Health, Rules
from antiphon.server.plan import Plan
from antiphon.server.routing import Route, Target
from antiphon.server.seats import Place
from antiphon.server.upstreams import Upstream

NOW = 1000.0
RULES = Rules(consecutive=1, backoff=10.0)


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


class Choice:
    """Some upstreams, a plan for all of them, and who chooses."""

    def __init__(self, *names: str, unavailable: Fault | None = None) -> None:
        self.clock = Clock()
        self.upstreams = {
            name: Upstream(
                UpstreamSettings(name=name, base_url="http://127.0.0.1:9/v1", slots=2, kind="generic"),
                Limits(),
                health=Health(RULES, random=lambda: 1.0),
                unavailable=lambda: unavailable,
            )
            for name in names
        }
        targets = tuple(Target(name, by_name("generic"), "m") for name in names)
        chat = ChatRequest(b"{}", (), (), (), 1, frozenset(), {})
        self.plan = Plan("m", "m", True, Route("m", targets), targets[0], chat)
        self.chooser = Chooser(self.upstreams, clock=self.clock)

    def names(self, without: set[str] | None = None) -> set[str]:
        return {place.upstream.name for place in self.chooser.places(self.plan, without or set())}

    def admits(self, name: str, without: set[str] | None = None) -> bool:
        everywhere = {place.upstream.name: place for place in self.everywhere}
        return self.chooser.admits(self.plan, everywhere[name], without or set())

    @property
    def everywhere(self) -> list[Place]:
        return [Place(target, self.upstreams[target.upstream]) for target in self.plan.route.targets]

    def fall_ill(self, *names: str) -> None:
        for name in names:
            health = self.upstreams[name].health
            health.failed("reset", self.clock.now, health.began(self.clock.now))

    def load(self, name: str) -> None:
        health = self.upstreams[name].health
        health.failed("loading", self.clock.now, health.began(self.clock.now))


async def test_all_that_are_well():
    assert Choice("a", "b", "c").names() == {"a", "b", "c"}


async def test_who_is_ill_is_not_asked_while_another_is_well():
    choice = Choice("a", "b")
    choice.fall_ill("a")
    assert choice.names() == {"b"}
    assert not choice.admits("a")
    assert choice.admits("b")


async def test_who_loads_a_model_is_not_asked_while_another_is_well():
    choice = Choice("a", "b")
    choice.load("a")
    assert choice.names() == {"b"}


async def test_one_alone_is_asked_whatever_is_remembered_of_it():
    choice = Choice("a")
    choice.fall_ill("a")
    assert choice.names() == {"a"}
    assert choice.admits("a")


async def test_if_all_are_ill_each_may_be_asked_and_may_keep_the_slot_that_it_gave():
    """To give back what nobody else gives would go round for ever."""
    choice = Choice("a", "b")
    choice.fall_ill("a", "b")
    assert choice.names() == {"a", "b"}
    assert choice.admits("a")
    assert choice.admits("b")


async def test_a_failed_attempt_goes_to_a_well_one_or_nowhere():
    choice = Choice("a", "b", "c")
    choice.fall_ill("b")
    assert choice.names({"a"}) == {"c"}
    choice.fall_ill("c")
    assert choice.names({"a"}) == set()


async def test_after_the_back_off_there_is_one_trial():
    choice = Choice("a", "b")
    choice.fall_ill("a")
    choice.clock.now += 9.9
    assert choice.names() == {"b"}
    choice.clock.now += 0.2
    assert choice.names() == {"a", "b"}
    trial = choice.upstreams["a"].health.began(choice.clock.now)
    assert choice.names() == {"b"}
    assert not choice.admits("a")
    choice.upstreams["a"].health.succeeded(choice.clock.now, 0.1, trial)
    assert choice.names() == {"a", "b"}


async def test_who_is_drained_by_the_operator_is_never_asked():
    choice = Choice("a", "b")
    choice.upstreams["a"].health.drain()
    assert choice.names() == {"b"}
    choice.fall_ill("b")
    assert choice.names() == {"b"}
    assert not choice.admits("a")
    choice.upstreams["b"].health.drain()
    assert choice.names() == set()
    assert not choice.admits("a")
    assert choice.chooser.refusal(choice.plan).status == 529


async def test_one_alone_that_is_drained_takes_nobody_who_waits_for_it_either():
    choice = Choice("a")
    choice.upstreams["a"].health.drain()
    assert choice.names() == set()
    assert not choice.admits("a")


async def test_a_server_that_is_not_there_says_why():
    fault = Fault("overloaded_error", "the server is starting", 529, "3")
    choice = Choice("a", unavailable=fault)
    assert choice.names() == set()
    assert choice.chooser.refusal(choice.plan) is fault


async def test_who_has_left_the_configuration_is_not_asked():
    choice = Choice("a", "b")
    del choice.upstreams["a"]
    assert choice.names() == {"b"}
    del choice.upstreams["b"]
    assert choice.names() == set()
    assert choice.chooser.refusal(choice.plan).retry_after == "1"


@pytest.mark.parametrize("drained", [True, False])
async def test_how_long_a_refusal_asks_to_wait(drained):
    choice = Choice("a", "b")
    choice.fall_ill("a", "b")
    if drained:
        choice.upstreams["a"].health.drain()
    assert choice.chooser.refusal(choice.plan).retry_after == "10"
    choice.clock.now += 7.5
    assert choice.chooser.refusal(choice.plan).retry_after == "3"
