"""One minute's window: its arithmetic, and the same counters in memory and in a real Valkey or Redis."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits.aio.storage import memory

from antiphon.server.key_windows import MINUTE, Window, Windows
from server.coordination.servers import BINARY, RedisServer


class WallClock:
    """What the library's memory counters take for the time."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0  # a whole minute

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall(monkeypatch) -> WallClock:
    clock = WallClock()
    monkeypatch.setattr(memory, "time", SimpleNamespace(time=clock))
    return clock


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    if BINARY is None:
        pytest.skip("key limits: no valkey-server or redis-server")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.close()


@pytest.fixture(params=["memory", "redis"])
async def windows(request):
    windows = Windows(request.getfixturevalue("redis").url if request.param == "redis" else None)
    yield windows
    await windows.aclose()


# --- arithmetic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "remaining", "reset"),
    [
        (Window(10, 0, 0.0, 0, 0.0), 10, 0),
        (Window(10, 0, 0.0, 4, 90.0), 6, 90),
        (Window(10, 6, 30.0, 4, 90.0), 3, 90),
        (Window(10, 5, 30.5, 0, 90.5), 8, 31),
        (Window(10, 0, 0.0, 25, 100.0), 0, 100),
        (Window(10, 2, 30.0, -9, 90.0), 10, 30),  # given back more than still counts
    ],
)
def test_what_is_left_and_when_it_is_whole(window, remaining, reset) -> None:
    assert (window.remaining, window.reset) == (remaining, reset)


@pytest.mark.parametrize(
    ("window", "cost", "seconds"),
    [
        (Window(10, 0, 0.0, 4, 90.0), 6, 0),
        (Window(10, 10, 60.0, 0, 120.0), 1, 6),  # a tenth of the minute before has to fade
        (Window(10, 10, 60.0, 0, 120.0), 10, 60),
        (Window(10, 0, 0.0, 10, 90.0), 1, 36),  # 30 s until it is the minute before, and a tenth of that
        (Window(10, 0, 0.0, 10, 90.0), 10, 90),
        (Window(10, 0, 0.0, 100, 61.0), 5, 58),  # corrected to ten times the limit: 1 s and 95 % of a minute
        (Window(10, 10, 0.01, 10, 60.01), 10, 61),
    ],
)
def test_how_long_to_wait(window, cost, seconds) -> None:
    assert window.wait(cost) == seconds


def later(window: Window, seconds: float) -> Window:
    """The window after a while in which nothing was taken."""
    left = window.current_left - MINUTE
    if seconds < left:
        return Window(
            window.limit, window.previous, left - seconds, window.current, window.current_left - seconds
        )
    since = seconds - left
    return Window(window.limit, window.current, max(0.0, MINUTE - since), 0, 0.0)


@given(
    limit=st.integers(1, 1000),
    previous=st.integers(0, 3000),
    current=st.integers(-1000, 3000),
    left=st.floats(0.001, 60),
    share=st.floats(0.001, 1),
)
def test_after_that_wait_there_is_room_and_not_long_before(limit, previous, current, left, share) -> None:
    cost = max(1, round(limit * share))
    window = Window(limit, previous, left if previous else 0.0, current, left + MINUTE)
    wait = window.wait(cost)
    assert (wait == 0) is (window.remaining >= cost)
    assert later(window, wait).remaining >= cost
    if wait > 2:
        assert later(window, wait - 2).remaining <= cost


# --- counters -----------------------------------------------------------------------------------------


async def test_what_fits_is_taken_and_what_does_not_takes_nothing(windows) -> None:
    assert (await windows.look("tokens", "who", limit=100)).remaining == 100
    fits, window = await windows.take("tokens", "who", limit=100, cost=60)
    assert (fits, window.remaining) == (True, 40)
    fits, window = await windows.take("tokens", "who", limit=100, cost=41)
    assert (fits, window.remaining) == (False, 40)
    fits, window = await windows.take("tokens", "who", limit=100, cost=40)
    assert (fits, window.remaining) == (True, 0)
    assert 1 <= window.wait(1) <= 120
    assert 1 <= window.reset <= 120


async def test_corrections_go_below_nothing_and_above_the_limit(windows) -> None:
    await windows.take("tokens", "corrected", limit=100, cost=60)
    await windows.add("tokens", "corrected", limit=100, cost=-50)
    assert (await windows.look("tokens", "corrected", limit=100)).remaining == 90
    await windows.add("tokens", "corrected", limit=100, cost=500)
    window = await windows.look("tokens", "corrected", limit=100)
    assert (window.remaining, window.current + window.previous) == (0, 510)
    assert not (await windows.take("tokens", "corrected", limit=100, cost=1))[0]


async def test_counters_are_apart(windows) -> None:
    await windows.take("tokens", "a", limit=7, cost=7)
    for kind, who, limit in (("requests", "a", 7), ("tokens", "b", 7), ("tokens", "a", 8)):
        assert (await windows.look(kind, who, limit=limit)).remaining == limit


async def test_a_minute_passes(wall) -> None:
    windows = Windows(None)
    await windows.take("requests", "who", limit=10, cost=10)
    wall.now += 59
    assert not (await windows.take("requests", "who", limit=10, cost=1))[0]
    wall.now += 31  # half of it is still within the last minute
    fits, window = await windows.take("requests", "who", limit=10, cost=1)
    assert (fits, window.remaining) == (True, 4)
    wall.now += 120
    assert (await windows.look("requests", "who", limit=10)).remaining == 10


async def test_one_store_is_one_count(redis) -> None:
    first, second = Windows(redis.url), Windows(redis.url)
    await first.take("requests", "shared", limit=5, cost=3)
    assert (await second.look("requests", "shared", limit=5)).remaining == 2
    await first.aclose()
    await second.aclose()
