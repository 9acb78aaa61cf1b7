"""Draining leases: freed by the server's report, or by the grace where the server has none to give."""

import asyncio

from antiphon.config import Limits, UpstreamSettings
from antiphon.server.upstreams import Upstream

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
