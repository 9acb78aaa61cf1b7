"""Which upstreams share their slots: those at the same URL, whatever each gateway calls them."""

from __future__ import annotations

import asyncio
import time

import pytest
import structlog

from antiphon.config import Coordination, HealthSettings, Settings, UpstreamSettings
from antiphon.server.backends import nobody, shared_name, sharing
from antiphon.server.fleet import Fleet

URL = "http://127.0.0.1:9/v1"


async def until(true) -> None:
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    "same",
    ["http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1/", "HTTP://127.0.0.1:9/v1"],
)
def test_one_url_written_in_several_ways_is_one_upstream(same) -> None:
    assert shared_name(same) == shared_name(URL)


@pytest.mark.parametrize(
    "other",
    [
        "https://127.0.0.1:9/v1",
        "http://127.0.0.1:90/v1",
        "http://127.0.0.2:9/v1",
        "http://127.0.0.1:9/v2",
        "http://127.0.0.1:9/v1?api-version=2",
    ],
)
def test_another_url_is_another_upstream(other) -> None:
    assert shared_name(other) != shared_name(URL)


def test_default_ports_and_names_in_capitals_are_the_same() -> None:
    assert shared_name("https://GPU.internal/v1") == shared_name("https://gpu.internal:443/v1/")


def test_where_they_meet_there_is_no_address() -> None:
    name = shared_name("http://gpu-7.internal:8000/v1")
    assert len(name) == 16
    assert set(name) <= set("0123456789abcdef")


def test_a_redis_url_that_cannot_be_used_is_refused_without_its_password() -> None:
    pytest.importorskip("redis")
    one = UpstreamSettings(name="a", base_url=URL)
    where = "redis://:s3cret@127.0.0.1:6399/0?max_connections=5"
    with pytest.raises(ValueError, match="max_connections") as refused:
        sharing(Coordination(where=where), one, nobody)
    assert "s3cret" not in str(refused.value)
    settings = Settings(upstreams=(one,), coordination=Coordination(where=where))
    with pytest.raises(ValueError, match="max_connections"):
        Fleet(settings)


def settings(tmp_path, *upstreams: UpstreamSettings, gateways: int = 1) -> Settings:
    return Settings(
        upstreams=upstreams,
        health=HealthSettings(probes=False),
        coordination=Coordination(where=f"local:{tmp_path / 'slots'}", gateways=gateways),
    )


def upstream(name: str, url: str = URL, slots: int = 3) -> UpstreamSettings:
    return UpstreamSettings(name=name, base_url=url, slots=slots, kind="generic")


async def test_upstreams_of_one_gateway_at_one_url_share_too_and_do_not_break_each_other(tmp_path) -> None:
    fleet = Fleet(settings(tmp_path, upstream("a"), upstream("b", URL + "/")))
    await fleet.start()
    try:
        one, two = fleet.upstreams["a"].slots, fleet.upstreams["b"].slots
        await until(lambda: one.view.born and two.view.gateways == 2)
        granted: list = []
        for _ in range(5):
            one.request("r", granted.append)
            two.request("r", granted.append)
        await until(lambda: len(granted) == 3 and one.view.waiting and two.view.waiting)
        for served in range(3, 10):
            granted[served - 3].release()
            await until(lambda served=served: len(granted) == served + 1)
            assert len(one.leases()) + len(two.leases()) == 3
        for lease in granted:
            lease.release()
        assert not one.alone
        assert not two.alone
    finally:
        await fleet.aclose()


async def test_upstreams_at_one_url_have_one_part_together_where_nobody_can_be_asked(tmp_path) -> None:
    """Two workers, each with two upstreams at one URL: that is four to share its eight slots."""
    fleet = Fleet(
        settings(
            tmp_path, upstream("a", slots=8), upstream("b", slots=8), upstream("c", URL + "/x"), gateways=2
        )
    )
    assert [fleet._sharings[name].gateways for name in "abc"] == [4, 4, 2]


async def test_an_upstream_that_gets_another_name_shares_with_its_last_streams(tmp_path) -> None:
    fleet = Fleet(settings(tmp_path, upstream("a", slots=1)))
    await fleet.start()
    try:
        leaving = fleet.upstreams["a"].slots
        granted: list = []
        leaving.request("r", granted.append)
        await until(lambda: granted)
        fleet.apply(settings(tmp_path, upstream("b", slots=1)))
        slots = fleet.upstreams["b"].slots
        slots.request("r", granted.append)
        await until(lambda: slots.view.waiting == 1)
        assert len(granted) == 1
        granted[0].release()
        await until(lambda: len(granted) == 2)
        granted[1].release()
    finally:
        await fleet.aclose()


async def test_the_log_calls_an_upstream_by_its_own_name(tmp_path) -> None:
    one = sharing(settings(tmp_path).coordination, upstream("gpu-1"), nobody)
    assert one is not None
    (tmp_path / "slots").rmdir()  # what cannot be used is told under that name
    with structlog.testing.capture_logs() as logs:
        one.coordinator.start(object())
        await until(lambda: logs)
        await one.coordinator.aclose()
    assert (logs[0]["event"], logs[0]["upstream"]) == ("coordination_socket", "gpu-1")
