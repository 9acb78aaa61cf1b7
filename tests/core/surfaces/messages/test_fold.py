"""The whole message that a non-streaming client gets, or why there is none."""

import json
from collections import Counter

import pytest

from antiphon.core.parts import (
    BlockStart,
    BlockStop,
    Error,
    Fault,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from antiphon.core.surfaces.messages.fold import Fold

USAGE = MessageUsage(9, 4, None, 2)
START = MessageStart(MessageUsage(9, 1))
CALL = BlockStart(0, "tool_use", "a", "f")


def fold(*events, **options):
    counts = Counter()
    it = Fold(message_id="msg_1", model="m", counts=counts, **options)
    for event in events:
        it.add([event])
    return it, counts


def end(reason="end_turn", matched=None):
    return [MessageDelta(reason, matched, USAGE), MessageStop()]


def test_a_message():
    it, counts = fold(
        START,
        BlockStart(0, "thinking"), ThinkingDelta(0, "a"), ThinkingDelta(0, "b"), SignatureDelta(0, "s"), BlockStop(0),
        BlockStart(1, "text"), TextDelta(1, "H\n"), TextDelta(1, "i"), BlockStop(1),
        BlockStart(2, "tool_use", "a", "f"), InputJsonDelta(2, '{"x"'), InputJsonDelta(2, ":1}"), BlockStop(2),
        *end("tool_use"),
    )  # fmt: skip
    assert json.loads(it.message()) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "ab", "signature": "s"},
            {"type": "text", "text": "H\ni"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 2},
    }
    assert it.fault is None and counts == {}


def test_an_empty_message():
    it, _ = fold(START, *end("stop_sequence", "END"))
    message = json.loads(it.message())
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == (
        [],
        "stop_sequence",
        "END",
    )


def test_arguments_pass_as_they_came():
    text = '{"b": 12345678901234567890123, "a":1.0,"a":"\\ud83d"}'
    it, _ = fold(START, CALL, InputJsonDelta(0, f" {text}\n"), BlockStop(0), *end("tool_use"))
    assert f'"input":{text}}}'.encode() in it.message()


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '{"x":NaN}', "{}x"])
@pytest.mark.parametrize("reason", ["tool_use", "end_turn", "max_tokens", "refusal"])
def test_arguments_that_are_no_object_never_reach_a_client(arguments, reason):
    it, counts = fold(START, CALL, InputJsonDelta(0, arguments), BlockStop(0), *end(reason))
    message = it.message()
    if reason in ("max_tokens", "refusal"):
        assert json.loads(message)["content"] == [] and counts == {"cut_call_left_out": 1}
    else:
        assert message is None
        assert it.fault == Fault(
            "api_error", "the model called f with arguments that are no JSON object", 502
        )


def test_a_failure():
    busy = Fault("overloaded_error", "busy", 529, retry_after="3")
    it, _ = fold(START, BlockStart(0, "text"), TextDelta(0, "half"), Error(busy))
    assert it.message() is None and it.fault is busy


def test_no_end():
    it, _ = fold(START, BlockStart(0, "text"), TextDelta(0, "half"))
    assert it.message() is None and it.fault.status == 502


def test_the_limit():
    it, _ = fold(START, BlockStart(0, "text"), TextDelta(0, "12345"), limit=5)
    assert it.fault is None
    it.add([TextDelta(0, "6"), TextDelta(0, "7")])
    assert it.fault.status == 502 and it.message() is None
