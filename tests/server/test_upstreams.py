"""Draining leases: freed by the server's report, or by the grace where the server has none to give.

And how many slots a server has: what is configured, what it tells, or a guess, which binds nobody else.
"""

import asyncio

import pytest
from msgspec import structs

from antiphon.config import Limits, UpstreamSettings
from antiphon.server.health import Rules
from antiphon.server.upstreams import Sharing, Upstream
from server.coordination.stepped import Hub, SteppedCoordinator

SETTINGS = UpstreamSettings(name="u", base_url="http://127.0.0.1:9/v1", slots=1, kind="llamacpp")


async def until(true):
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.01)


def drained(upstream, at):
    leases = []
    upstream.slots.request("r", leases.append)
    leases[0].drain(until=at)
    assert upstream.slots.statistics().draining == 1


async def test_the_report_frees_and_the_grace_does_not():
    busy = 1

    async def report():
        return busy

    upstream = Upstream(SETTINGS, Limits(), busy=report)
    drained(upstream, at=10.0)
    await asyncio.sleep(0)
    upstream.expire(99.0)
    assert upstream.slots.statistics().draining == 1
    busy = 0
    await until(lambda: upstream.slots.statistics().draining == 0)
    await upstream.aclose()


async def test_a_server_without_the_report_falls_back_to_the_grace():
    asked = 0

    async def silent():
        nonlocal asked
        asked += 1

    upstream = Upstream(SETTINGS, Limits(), busy=silent)
    drained(upstream, at=10.0)
    await until(lambda: asked > 0)
    upstream.expire(9.0)
    assert upstream.slots.statistics().draining == 1
    upstream.expire(10.0)
    assert upstream.slots.statistics().draining == 0
    await upstream.aclose()


async def test_upstreams_without_a_report_have_the_grace():
    upstream = Upstream(SETTINGS, Limits())
    drained(upstream, at=10.0)
    upstream.expire(10.0)
    assert upstream.slots.statistics().draining == 0
    await upstream.aclose()


# --- How many slots ---------------------------------------------------------------------------------------------

AUTO = structs.replace(SETTINGS, slots="auto", kind="auto")


def reconfigured(upstream, **changes):
    settings = structs.replace(AUTO, **changes)
    upstream.reconfigure(settings, Limits(), Rules())


def limit(upstream):
    return upstream.slots.statistics().slots


async def test_alone_it_is_what_is_told_and_a_guess_until_then():
    upstream = Upstream(AUTO, Limits())
    assert limit(upstream) == 8
    upstream.adopt("llamacpp", 2)
    assert limit(upstream) == 2
    upstream.adopt("llamacpp", None)  # slow to answer now
    upstream.adopt("generic", None)
    assert limit(upstream) == 2
    upstream.adopt("vllm", None)  # another server: what the one before had told is not true of it
    assert limit(upstream) == 8
    await upstream.aclose()


async def test_alone_what_was_configured_holds_until_the_server_was_asked():
    upstream = Upstream(structs.replace(AUTO, slots=1), Limits())
    reconfigured(upstream)
    assert limit(upstream) == 1
    upstream.adopt("generic", None)
    assert limit(upstream) == 8
    upstream.adopt("llamacpp", 3)
    reconfigured(upstream, slots=5)
    assert limit(upstream) == 5
    reconfigured(upstream)
    assert limit(upstream) == 3
    await upstream.aclose()


class Shared:
    """An upstream of each of several gateways, which share its slots."""

    def __init__(self):
        self.hub = Hub()
        self.upstreams = []

    def join(self, settings):
        end = SteppedCoordinator(self.hub, f"g{len(self.upstreams)}")
        upstream = Upstream(settings, Limits(), sharing=Sharing(end, lambda request_id: None))
        self.upstreams.append(upstream)
        upstream.start()
        end.connect()
        self.settle()
        return upstream

    def settle(self):
        self.hub.settle()
        for upstream in self.upstreams:
            upstream.slots._look()
        self.hub.settle()

    @property
    def limits(self):
        self.settle()
        assert {limit(upstream) for upstream in self.upstreams} == {self.hub.room._limit}
        return self.hub.room._limit


@pytest.fixture
async def shared():
    shared = Shared()
    yield shared
    for upstream in shared.upstreams:
        await upstream.aclose()


async def test_shared_a_guess_changes_nothing_that_others_know(shared):
    one = shared.join(AUTO)
    assert shared.limits == 8  # nobody knows more
    one.adopt("llamacpp", 2)
    assert shared.limits == 2
    two = shared.join(AUTO)  # a gateway that has just started, and its server is slow to tell
    assert shared.limits == 2
    two.adopt("generic", None)
    assert shared.limits == 2
    two.adopt("llamacpp", None)
    assert shared.limits == 2
    two.adopt("llamacpp", 3)
    assert shared.limits == 3


async def test_shared_a_guess_does_not_touch_what_another_gateway_is_configured_with(shared):
    shared.join(structs.replace(AUTO, slots=4, kind="vllm"))
    two = shared.join(AUTO)
    two.adopt("vllm", None)
    assert shared.limits == 4


async def test_shared_a_reload_to_auto_keeps_what_is_known(shared):
    one, _ = shared.join(structs.replace(AUTO, slots=2)), shared.join(structs.replace(AUTO, slots=2))
    reconfigured(one)
    assert shared.limits == 2
    one.adopt("vllm", None)
    assert shared.limits == 2
    one.adopt("llamacpp", 3)
    assert shared.limits == 3
    reconfigured(one, slots=5)
    assert shared.limits == 5
    reconfigured(one)
    assert shared.limits == 3


async def test_shared_what_another_server_had_told_is_taken_back_by_who_has_said_it(shared):
    one, two = shared.join(AUTO), shared.join(AUTO)
    for upstream in (one, two):
        upstream.adopt("llamacpp", 2)
    assert shared.limits == 2
    one.adopt("vllm", None)
    assert shared.limits == 8
    two.adopt("vllm", None)
    assert shared.limits == 8
    three = shared.join(structs.replace(AUTO, slots=5))
    assert shared.limits == 5
    for upstream in (one, three):
        upstream.adopt("sglang", None)
    assert shared.limits == 5
