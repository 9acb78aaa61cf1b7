"""Drains by name: they outlive what they are of, reach every worker, and touch nothing else."""

from __future__ import annotations

from types import SimpleNamespace

from msgspec import structs

from antiphon.server.drains import Drains
from antiphon.server.health import Health
from server.fleet_house import FleetHouse, whole_answer
from server.harness import on_uvloop


def upstreams(*names: str) -> dict[str, SimpleNamespace]:
    return {name: SimpleNamespace(health=Health()) for name in names}


def drained(there: dict[str, SimpleNamespace]) -> set[str]:
    return {name for name, each in there.items() if each.health.drained}


def test_a_drain_and_its_end() -> None:
    drains, there = Drains(), upstreams("a", "b")
    for _ in range(2):
        drains.drain("a")
        drains.apply(there)
        assert drained(there) == {"a"}
    for _ in range(2):
        drains.undrain("a")
        drains.apply(there)
        assert drained(there) == set()


def test_an_upstream_that_is_made_anew_is_drained_still() -> None:
    drains = Drains()
    drains.drain("a")
    drains.apply(upstreams("a"))
    drains.apply({})
    there = upstreams("a", "b")
    drains.apply(there)
    assert drained(there) == {"a"}


def test_what_others_have_drained_is_left_alone() -> None:
    there = upstreams("a")
    there["a"].health.drain()
    Drains().apply(there)
    assert drained(there) == {"a"}


def test_workers_share_their_drains(tmp_path) -> None:
    one, other = Drains(tmp_path / "drained"), Drains(tmp_path / "drained")
    there, others = upstreams("a", "b"), upstreams("a", "b")
    one.drain("a")
    other.drain("b")
    for drains, each in ((one, there), (other, others)):
        drains.apply(each)
    assert drained(there) == drained(others) == {"a", "b"}
    late, theirs = Drains(tmp_path / "drained"), upstreams("a", "b")  # a worker that was started again
    late.undrain("b")
    late.apply(theirs)
    assert drained(theirs) == {"a"}
    one.apply(there)
    assert drained(there) == {"a"}


def test_without_its_folder_it_keeps_what_it_knew(tmp_path) -> None:
    drains, there = Drains(tmp_path / "drained"), upstreams("a")
    drains.drain("a")
    drains.apply(there)
    (tmp_path / "drained" / "a").unlink()
    (tmp_path / "drained").rmdir()
    drains.apply(there)
    assert drained(there) == {"a"}


@on_uvloop
async def test_a_drained_upstream_gets_nobody_new_also_after_a_reload_that_makes_it_anew(monkeypatch) -> None:
    monkeypatch.setattr("antiphon.server.app.set_level", lambda level: None)  # this process's own
    async with FleetHouse() as house:
        house.sayings = (*house.sayings, "settings_changed")
        gateway = house.gateway
        gateway.drains.drain("a")
        house.tick()
        before = house["a"]
        spare = await house.spare("a")
        house.kinds["a"] = {"base_url": f"http://127.0.0.1:{spare.port}/v1"}
        gateway.apply(structs.replace(house.settings(), port=gateway.settings.port))
        assert house["a"] is not before
        assert house["a"].health.drained  # at once, not at the next tick
        for _ in range(3):
            client = await house.ask(stream=False)
            visit = await house.visit()
            assert visit.at == "b"
            visit.answer("b")
            whole_answer(await client.response(), "b")
        gateway.drains.undrain("a")
        house.tick()
        assert not house["a"].health.drained
