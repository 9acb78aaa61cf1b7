"""Ten thousand requests with a fault each, over real sockets: afterwards not a lease, a task or a descriptor.

The seed is fixed; `ANTIPHON_FAULT_SEED` sets another, `ANTIPHON_FAULTS` another number of faults. A failure
shows both.
"""

from __future__ import annotations

import asyncio
import os

import pytest
import uvloop

from server.harness import House, until
from server.storm import HOUSE, Storm

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(900)]

SEED = int(os.environ.get("ANTIPHON_FAULT_SEED", "20"))
FAULTS = int(os.environ.get("ANTIPHON_FAULTS", "10000"))
AT_ONCE = 250


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def storms(profile: str) -> None:
    settings = {**HOUSE, "limits": {**HOUSE["limits"], "upstream_idle": 0.05}}
    async with asyncio.timeout(600), House(**settings, profile=profile) as house:
        storm = Storm(house, SEED)
        await storm.blow(1)  # what is opened once, is open
        await until(lambda: house.up.pool.statistics().idle == 0)
        before, tasks = descriptors(), asyncio.all_tasks()
        while storm.faults < FAULTS // 2:
            await storm.blow(AT_ONCE)
            await house.check()
            house.said.entries.clear()
            house.upstream.visits.clear()
            await until(lambda: all(side.closed.is_set() for side in house.upstream.connections))
            house.upstream.connections.clear()
        statistics = house.up.slots.statistics()
        assert (statistics.held, statistics.draining, statistics.waiting) == (0, 0, 0)
        assert statistics.free == statistics.slots
        assert house.up.slots.leases() == []
        pool = house.up.pool.statistics()
        assert (pool.idle, pool.active, pool.connecting, pool.settling) == (0, 0, 0, 0)
        assert asyncio.all_tasks() == tasks
        await until(lambda: descriptors() == before)


@pytest.mark.parametrize("profile", ["generic", "ollama"])
def test_ten_thousand_random_faults(profile) -> None:
    """Half of them with each kind of upstream: one that stops when its client leaves, one that may not."""
    print(f"ANTIPHON_FAULT_SEED={SEED} ANTIPHON_FAULTS={FAULTS}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(storms(profile))
