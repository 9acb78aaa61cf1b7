"""The judge of whole messages."""

import pytest

from antiphon.check.message import judge_message


def message(**members):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 2},
        **members,
    }


TOOL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    "body",
    [
        message(),
        message(content=[]),
        message(content=[TOOL], stop_reason="tool_use"),
        message(content=[{"type": "thinking", "thinking": "x", "signature": ""}]),
        {"type": "error", "error": {"type": "api_error", "message": "no"}},
    ],
)
def test_legal(body):
    assert judge_message(body) == []


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (None, "message.shape"),
        ([], "message.shape"),
        ({}, "message.shape"),
        (message(role="user"), "message.shape"),
        (message(content="Hi"), "message.shape"),
        (message(id="chatcmpl-1"), "start.id_prefix"),
        (message(model=""), "start.identity"),
        (message(content=["x"]), "block.type"),
        (message(content=[{"type": "text", "text": None}]), "block.start"),
        (message(content=[{"type": "text", "text": ""}]), "block.empty"),
        (message(content=[{"type": "thinking", "thinking": "x"}]), "block.signature"),
        (message(content=[{**TOOL, "input": "{}"}], stop_reason="tool_use"), "tool.input"),
        (message(content=[TOOL, TOOL], stop_reason="tool_use"), "tool.id_twice"),
        (message(content=[TOOL]), "finish.tools"),
        (message(stop_reason=None), "finish.stop_reason"),
        (message(stop_sequence="x"), "finish.stop_sequence"),
        (message(usage=None), "finish.usage"),
        (message(usage={"input_tokens": -1, "output_tokens": 1}), "usage.count"),
        ({"type": "error", "error": {"type": "x", "message": "m"}}, "error.type"),
        ({"type": "error", "error": {"type": "api_error"}}, "error.message"),
    ],
)
def test_broken(body, rule):
    assert judge_message(body)[0].rule == rule
