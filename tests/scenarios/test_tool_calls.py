"""The corpus's `tool-calls` cases that take more than one request."""

from __future__ import annotations

import pytest

from server.harness import DONE, House, frame, on_uvloop, post, tool


@pytest.mark.parametrize("given", [None, "call_0"], ids=["no id", "the same id in every turn"])
@on_uvloop
async def test_TOOL_25_ids_differ_in_every_turn(given) -> None:
    async with House() as house:
        client = await house.client()
        history = [{"role": "user", "content": "q"}]
        ids, arguments = [], []
        for turn in range(3):
            client.send(post(messages=history))
            visit = await house.visit()
            visit.head()
            visit.send(
                frame(tool(f'{{"turn":{turn}}}', call_id=given, name="f")), frame(finish="tool_calls"), DONE
            )
            events = (await client.response()).events
            (block,) = [each["content_block"] for each in events if each["type"] == "content_block_start"]
            assert (block["type"], block["name"]) == ("tool_use", "f")
            ids.append(block["id"])
            arguments.append({"turn": turn})
            call = {"type": "tool_use", "id": block["id"], "name": "f", "input": {"turn": turn}}
            answer = {"type": "tool_result", "tool_use_id": block["id"], "content": f"result {turn}"}
            history += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]
        assert len(set(ids)) == 3
        # The upstream, too, can tell the calls of its history apart, and each result finds its call.
        client.send(post(messages=history))
        visit = await house.visit()
        calls = [call["id"] for said in visit.body["messages"] for call in said.get("tool_calls", ())]
        results = [said["tool_call_id"] for said in visit.body["messages"] if said["role"] == "tool"]
        assert calls == results
        assert len(set(calls)) == 3
        visit.answer()
        await client.response()
