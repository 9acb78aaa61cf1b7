"""Slots, health and the budget as they are at the moment of a scrape: of those that stay and of those that go."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.observe.gauges import STATES, Sources
from antiphon.observe.metrics import Metrics
from antiphon.server.admission import Slots
from antiphon.server.health import Health, Rules
from antiphon.server.retry_budget import RetryBudget
from server.fleet_house import FleetHouse
from server.harness import Clock, on_uvloop


class Upstream:
    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.slots = Slots(name, slots)
        self.health = Health(Rules(consecutive=2, backoff=10.0, backoff_limit=10.0), random=lambda: 1.0)


class Scrape:
    """One upstream, `up`, and what is said of it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.up = Upstream("up", 3)
        self.there = {"up": self.up}
        self.leaving: list[Upstream] = []
        self.budget = RetryBudget(now=self.clock.now)
        self.metrics = Metrics(
            Sources(
                upstreams=lambda: self.there,
                leaving=lambda: self.leaving,
                budget=self.budget.statistics,
                clock=self.clock,
            )
        )

    def __call__(self, name: str) -> dict[tuple[str, ...], float]:
        return shown(self.metrics, name)


def shown(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The samples of this name by the values of their labels; every series is there once."""
    found = [
        (tuple(sample.labels.values()), sample.value)
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
        if sample.name == name
    ]
    assert len(dict(found)) == len(found), found
    return dict(found)


@pytest.fixture
def scrape() -> Scrape:
    return Scrape()


def state(scrape: Scrape) -> str:
    states = scrape("antiphon_upstream_state")
    assert {each for each, _ in states} == set(STATES)
    (found,) = [each for (each, _), value in states.items() if value == 1]
    return found


def test_the_state_of_a_circuit(scrape) -> None:
    assert state(scrape) == "closed"
    for _ in range(2):
        scrape.up.health.failed("reset", scrape.clock.now)
    assert state(scrape) == "open"
    scrape.clock.now += 10
    assert state(scrape) == "half_open"
    scrape.up.health.succeeded(scrape.clock.now, 0.1)
    assert state(scrape) == "closed"
    assert scrape("antiphon_upstream_circuit_opened_total") == {("up",): 1}
    assert scrape("antiphon_upstream_failures_total") == {("reset", "up"): 2}


@pytest.mark.parametrize(
    ("flag", "kind"), [("waiting", "loading"), ("busy", "busy"), ("gone", "connect"), ("drained", None)]
)
def test_what_else_keeps_requests_away(scrape, flag, kind) -> None:
    name = f"antiphon_upstream_{flag}"
    assert scrape(name) == {("up",): 0}
    if kind is None:
        scrape.up.health.drain()
    else:
        scrape.up.health.failed(kind, scrape.clock.now)
    assert scrape(name) == {("up",): 1}
    scrape.clock.now += 61
    scrape.up.health.undrain()
    scrape.up.health.answered(scrape.clock.now)
    assert scrape(name) == {("up",): 0}


def test_a_server_that_is_slower_than_usual(scrape) -> None:
    for _ in range(20):
        scrape.up.health.succeeded(scrape.clock.now, 0.1)
    assert scrape("antiphon_upstream_slow_ratio") == {("up",): 0}
    for _ in range(3):
        scrape.up.health.succeeded(scrape.clock.now, 60.0)
    assert 0 < scrape("antiphon_upstream_slow_ratio")["up",] <= 1


def test_the_budget(scrape) -> None:
    assert scrape("antiphon_retry_budget_balance") == {(): 100}
    while scrape.budget.spend(scrape.clock.now):
        pass
    assert scrape("antiphon_retry_budget_balance") == {(): 0}
    assert scrape("antiphon_retries_refused_total") == {(): 1}
    scrape.clock.now += 7
    assert scrape("antiphon_retry_budget_balance") == {(): 7}


def test_looking_changes_nothing(scrape) -> None:
    for _ in range(2):
        scrape.up.health.failed("reset", scrape.clock.now)
    scrape.clock.now += 10
    before = scrape.metrics.exposition()
    assert scrape.metrics.exposition() == before
    assert scrape.up.health.admits(scrape.clock.now)  # its one trial is still to be had


def test_one_that_leaves_shows_its_slots_while_it_drains_beside_its_successor(scrape) -> None:
    leases = []
    for number in range(4):
        scrape.up.slots.request(f"req_{number}", leases.append)
    leases[0].drain(None)
    scrape.leaving.append(scrape.there.pop("up"))
    assert scrape("antiphon_slots") == {("held", "up"): 2, ("draining", "up"): 1}
    assert scrape("antiphon_queue_length") == {("up",): 1}
    for name in ("antiphon_slots_limit", "antiphon_upstream_state", "antiphon_upstream_failures_total"):
        assert scrape(name) == {}
    scrape.there["up"] = Upstream("up", 5)  # the same name at another address
    scrape.there["up"].slots.request("req_new", leases.append)
    assert scrape("antiphon_slots") == {("free", "up"): 4, ("held", "up"): 3, ("draining", "up"): 1}
    assert scrape("antiphon_slots_limit") == {("up",): 5}
    scrape.leaving.clear()
    assert scrape("antiphon_slots") == {("free", "up"): 4, ("held", "up"): 1, ("draining", "up"): 0}


@on_uvloop
async def test_a_reload_in_a_whole_gateway() -> None:
    async with FleetHouse() as house:
        metrics = house.gateway.metrics
        client = await house.ask(model="only-a", stream=False)
        visit = await house.visit()
        await house.reload({"b": {}})
        assert shown(metrics, "antiphon_slots")["held", "a"] == 1
        assert {name for (name,) in shown(metrics, "antiphon_slots_limit")} == {"b"}
        visit.answer()
        await client.response()
        await house.record()
        house.tick(1)
        assert {name for _, name in shown(metrics, "antiphon_slots")} == {"b"}
