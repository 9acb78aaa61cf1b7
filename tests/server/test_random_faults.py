"""Five hundred requests, each with a fault from a fixed seed, many at once; afterwards nothing is left."""

from __future__ import annotations

import pytest

from server.harness import House, on_loops
from server.storm import HOUSE, Storm


@pytest.mark.parametrize("profile", ["generic", "ollama"])
@on_loops("uvloop")
async def test_five_hundred_random_faults(profile) -> None:
    async with House(**HOUSE, profile=profile) as house:
        storm = Storm(house, seed=20)
        await storm.blow(250)
        causes = {record["cause"] for record in house.records_written}
        assert causes - {"stall"} == {"finished", "upstream", "client", "deadline"}
        assert storm.faults > 230
