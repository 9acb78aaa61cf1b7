"""The corpus's `request-tools` table, through a running gateway."""

from __future__ import annotations

import pytest

from scenarios.cases import case
from server.harness import House, on_uvloop

F = {"name": "f", "input_schema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("choice", "expected"), case("RQT-01")["trigger"]["cases"], ids=lambda each: str(each)
)
@on_uvloop
async def test_RQT_01_tool_choice(choice, expected) -> None:
    async with House() as house:
        client = await house.ask(tools=[F], tool_choice=choice)
        visit = await house.visit()
        assert visit.body["tool_choice"] == expected
        assert [each["function"]["name"] for each in visit.body["tools"]] == ["f"]
        visit.answer()
        assert (await client.response()).status == 200
