"""What a key may use up: charged, corrected, refused with what a client needs to know; never for a bad store."""

from __future__ import annotations

import asyncio
import re
import socket
from datetime import UTC, datetime

import msgspec
import pytest
from structlog.testing import capture_logs

from antiphon.core.parts import MessageUsage
from antiphon.server.key_limits import Admission, KeyLimits, Refusal
from antiphon.server.keys import make
from server.coordination.servers import BINARY, RedisServer
from server.harness import Clock, until
from server.test_key_windows import WallClock, wall

__all__ = ["WallClock", "wall"]

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC).timestamp()


def key(**limits):
    return msgspec.structs.replace(make("alice", now=NOW)[1], **limits)


def used(input_tokens: int, output_tokens: int, **more: int) -> MessageUsage:
    return MessageUsage(input_tokens, output_tokens, **more)


async def admitted(limits: KeyLimits, one, estimate: int = 1) -> Admission:
    said = await limits.check(one, estimate, NOW)
    assert isinstance(said, Admission)
    return said


async def refused(limits: KeyLimits, one, estimate: int = 1) -> Refusal:
    said = await limits.check(one, estimate, NOW)
    assert isinstance(said, Refusal)
    assert (said.fault.kind, said.fault.status) == ("rate_limit_error", 429)
    assert int(said.fault.retry_after) >= 1
    return said


async def remaining(limits: KeyLimits, one, kind: str = "tokens") -> int:
    await limits.settled()
    headers = dict(await limits._headers(one, NOW))
    return int(headers[f"anthropic-ratelimit-{kind}-remaining".encode()])


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    if BINARY is None:
        pytest.skip("key limits: no valkey-server or redis-server")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A slow machine is no store that does not answer; whoever tests the latter sets another."""

    def patience(seconds: float) -> None:
        monkeypatch.setattr("antiphon.server.key_limits.PATIENCE", seconds)

    patience(20.0)
    return patience


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
async def limits(request, clock):
    if request.param == "memory":
        request.getfixturevalue("wall")  # stands still
    where = request.getfixturevalue("redis").url if request.param == "redis" else None
    limits = KeyLimits(where, clock=clock)
    yield limits
    await limits.aclose()


# --- who is not limited -------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [None, key(), key(weight=3.0, models=("x",))])
async def test_who_has_no_limits_is_not_counted(limits, one) -> None:
    said = await admitted(limits, one, 10**9)
    assert said.headers == ()
    said.finish(used(5, 5))
    said.finish(None)
    assert not limits._running


# --- requests at once ---------------------------------------------------------------------------------


async def test_requests_at_once(limits) -> None:
    one, other = key(concurrent=2), key(concurrent=1)
    first, second = await admitted(limits, one), await admitted(limits, one)
    assert limits.running(one) == 2
    assert "2 requests at once" in (await refused(limits, one)).fault.message
    await admitted(limits, other)  # another key's place
    first.finish(None)
    first.finish(None)  # once is enough
    assert limits.running(one) == 1
    third = await admitted(limits, one)
    await refused(limits, one)
    second.finish(None)
    third.finish(None)
    assert limits.running(one) == 0
    assert one.sha256 not in limits._running  # a key that does nothing costs nothing


async def test_two_cannot_take_one_place(limits) -> None:
    one = key(concurrent=1, requests_per_minute=100, tokens_per_minute=100)
    said = await asyncio.gather(*(limits.check(one, 1, NOW) for _ in range(5)))
    assert [type(each) for each in said].count(Admission) == 1


async def test_a_refusal_takes_no_place(limits) -> None:
    one = key(concurrent=5, requests_per_minute=1)
    (await admitted(limits, one)).finish(None)
    await refused(limits, one)
    assert limits.running(one) == 0


async def test_who_is_cancelled_while_asking_takes_no_place(redis) -> None:
    limits = KeyLimits(redis.url)
    one = key(concurrent=1, tokens_per_minute=100)
    (await admitted(limits, one)).finish(None)  # connected
    await limits.settled()
    task = asyncio.ensure_future(limits.check(one, 1, NOW))
    await asyncio.sleep(0)  # it has asked
    assert limits.running(one) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert limits.running(one) == 0
    await admitted(limits, one)
    await limits.aclose()


# --- minutes ------------------------------------------------------------------------------------------


async def test_requests_in_a_minute(limits) -> None:
    one = key(requests_per_minute=2)
    for left in (1, 0):
        said = await admitted(limits, one)
        assert dict(said.headers)[b"anthropic-ratelimit-requests-remaining"] == b"%d" % left
        said.finish(used(1, 1))
    said = await refused(limits, one)
    assert "2 requests in a minute" in said.fault.message
    assert int(said.fault.retry_after) <= 120
    assert dict(said.headers)[b"anthropic-ratelimit-requests-remaining"] == b"0"


async def test_headers_have_anthropics_names_and_forms(limits) -> None:
    said = await admitted(limits, key(requests_per_minute=10, tokens_per_minute=1000), 100)
    headers = dict(said.headers)
    assert sorted(headers) == [
        b"anthropic-ratelimit-requests-limit",
        b"anthropic-ratelimit-requests-remaining",
        b"anthropic-ratelimit-requests-reset",
        b"anthropic-ratelimit-tokens-limit",
        b"anthropic-ratelimit-tokens-remaining",
        b"anthropic-ratelimit-tokens-reset",
    ]
    assert headers[b"anthropic-ratelimit-tokens-limit"] == b"1000"
    assert headers[b"anthropic-ratelimit-tokens-remaining"] == b"900"
    for kind in (b"requests", b"tokens"):
        reset = headers[b"anthropic-ratelimit-%b-reset" % kind].decode()
        assert re.fullmatch(r"2026-11-29T12:0[0-2]:\d\dZ", reset)
        assert datetime.fromisoformat(reset).timestamp() > NOW


async def test_tokens_are_charged_as_estimated_and_corrected_at_the_end(limits) -> None:
    one = key(tokens_per_minute=1000)
    said = await admitted(limits, one, 300)
    assert await remaining(limits, one) == 700
    said.finish(used(200, 150))
    assert await remaining(limits, one) == 650
    said.finish(used(9000, 9000))
    assert await remaining(limits, one) == 650


async def test_what_came_from_a_cache_does_not_count(limits) -> None:
    one = key(tokens_per_minute=1000)
    said = await admitted(limits, one, 900)
    said.finish(used(10, 20, cache_read_input_tokens=870, cache_creation_input_tokens=30))
    assert await remaining(limits, one) == 940


async def test_what_used_nothing_is_given_back(limits) -> None:
    one = key(tokens_per_minute=1000)
    (await admitted(limits, one, 900)).finish(None)
    assert await remaining(limits, one) == 1000


async def test_the_older_the_less_is_given_back(limits, clock) -> None:
    one = key(tokens_per_minute=1000)
    first, second = await admitted(limits, one, 400), await admitted(limits, one, 400)
    clock.now += 45
    first.finish(None)
    assert await remaining(limits, one) == 300
    clock.now += 500
    second.finish(None)
    assert await remaining(limits, one) == 300


async def test_a_long_answer_is_paid_for_by_the_next_request(limits) -> None:
    one = key(tokens_per_minute=1000)
    (await admitted(limits, one, 100)).finish(used(100, 5000))
    await limits.settled()
    said = await refused(limits, one, 100)
    assert "1000 tokens in a minute" in said.fault.message
    assert 49 <= int(said.fault.retry_after) <= 120  # nine tenths of what is too much have to fade


async def test_a_request_over_the_limit_takes_a_whole_minute(limits) -> None:
    one = key(tokens_per_minute=1000)
    said = await admitted(limits, one, 50_000)
    assert await remaining(limits, one) == 0
    await refused(limits, one, 1)
    said.finish(None)
    assert await remaining(limits, one) == 1000


async def test_a_request_too_many_costs_no_tokens(limits) -> None:
    one = key(requests_per_minute=1, tokens_per_minute=1000)
    (await admitted(limits, one, 100)).finish(used(100, 0))
    await refused(limits, one, 500)
    assert await remaining(limits, one) == 900


async def test_tokens_too_many_cost_no_request(limits) -> None:
    one = key(requests_per_minute=5, tokens_per_minute=1000)
    await admitted(limits, one, 900)
    await refused(limits, one, 500)
    assert await remaining(limits, one, "requests") == 4


async def test_one_at_once_too_many_says_what_is_left(limits) -> None:
    one = key(concurrent=1, tokens_per_minute=1000)
    await admitted(limits, one, 100)
    said = await refused(limits, one, 100)
    assert dict(said.headers)[b"anthropic-ratelimit-tokens-remaining"] == b"900"
    assert "alice" not in said.fault.message


# --- a store that is not there ------------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_without_its_store_nobody_is_limited_but_for_requests_at_once() -> None:
    limits = KeyLimits(f"redis://:password@127.0.0.1:{closed_port()}/0")
    one = key(concurrent=2, requests_per_minute=1, tokens_per_minute=1)
    with capture_logs() as said:
        held = [await admitted(limits, one, 1000) for _ in range(2)]
        assert [each.headers for each in held] == [(), ()]
        await refused(limits, one)
        for each in held:
            each.finish(used(5, 5))
        await limits.settled()
    assert [line["event"] for line in said] == ["key_limits_unreachable"]
    assert "password" not in str(said)
    assert limits.running(one) == 0
    await limits.aclose()


async def test_a_store_that_stands_still_is_not_waited_for_and_found_again(
    redis, monkeypatch, patience
) -> None:
    monkeypatch.setattr("antiphon.server.key_limits._PROBE_PAUSE", 0.01)
    monkeypatch.setattr("antiphon.server.key_limits._PROBE_PATIENCE", 0.2)
    limits = KeyLimits(redis.url)
    one = key(tokens_per_minute=1000)
    await admitted(limits, one, 100)
    redis.stop()
    patience(0.05)
    try:
        with capture_logs() as said:
            async with asyncio.timeout(20):
                for _ in range(100):  # a request each: one of them waits, the others do not
                    assert (await admitted(limits, one, 100)).headers == ()
    finally:
        redis.go_on()
    patience(20.0)
    await until(lambda: limits._probe is None)
    assert [line["event"] for line in said] == ["key_limits_unreachable"]
    assert (await admitted(limits, one, 100)).headers
    await limits.aclose()


async def test_closing_leaves_nothing_behind(redis) -> None:
    limits = KeyLimits(redis.url)
    (await admitted(limits, key(tokens_per_minute=10), 5)).finish(used(1, 1))
    down = KeyLimits(f"redis://127.0.0.1:{closed_port()}/0")
    await admitted(down, key(tokens_per_minute=10), 5)
    await limits.aclose()
    await down.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("where", [None, "local:/tmp/slots"])
async def test_what_is_no_store_counts_here(where) -> None:
    limits, one = KeyLimits(where), key(requests_per_minute=1)
    assert (await admitted(limits, one)).headers
    await refused(limits, one)
