"""State that an upstream wants back: what is kept, how fragments join, when it leaves, and the way back."""

import json
from collections import Counter

import pytest

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.chat_state import StateKeeper
from antiphon.core.dialects.chat_stream import ChatStream
from antiphon.core.dialects.quirks import GENERIC
from antiphon.core.parts import End, Finish, Opaque, Reasoning, Text, ToolArgs, ToolOpen
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.request import parse
from antiphon.core.translation import Translation

SEALER = Sealer(b"k" * 32)


def seal(value):
    return "sealed:" + json.dumps(value, sort_keys=True)


def chunk(finish=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def body(*chunks):
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in chunks) + b"data: [DONE]\n\n"


def parts(*chunks):
    return ChatStream(counts=Counter(), seal=seal).feed(body(*chunks))


def detail(**members):
    return {"type": "reasoning.text", "index": 0, **members}


def test_details_with_a_signature_leave_before_the_text():
    told = parts(
        chunk(reasoning="Let ", reasoning_details=[detail(text="Let ", signature=None)]),
        chunk(reasoning="me", reasoning_details=[detail(text="me")]),
        chunk(reasoning_details=[detail(signature="SIG")]),
        chunk(content="Hi"),
        chunk(finish="stop"),
    )
    joined = {"reasoning_details": [detail(text="Let me", signature="SIG")]}
    assert told == [
        Reasoning("Let "),
        Reasoning("me"),
        Opaque(seal(joined)),
        Text("Hi"),
        Finish("end_turn"),
        End(clean=True),
    ]


def test_details_of_plain_text_need_no_seal():
    told = parts(chunk(reasoning_details=[detail(text="Hm")]), chunk(content="Hi"), chunk(finish="stop"))
    assert not any(isinstance(part, Opaque) for part in told)
    assert told[0] == Reasoning("Hm")


def test_entries_stay_apart_and_unmodified():
    encrypted = {"type": "reasoning.encrypted", "data": "AAA", "id": "r1", "format": "x", "index": 1}
    told = parts(
        chunk(reasoning_details=[detail(text="a")]),
        chunk(reasoning_details=[encrypted]),
        chunk(reasoning_details=[{**encrypted, "data": "BBB"}]),
        chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]),
        chunk(finish="tool_calls"),
    )
    joined = {"reasoning_details": [detail(text="a"), {**encrypted, "data": "AAABBB"}]}
    assert told[1] == Opaque(seal(joined))
    assert told[2] == ToolOpen(0, "c", "f")


def test_details_that_come_last_leave_at_the_end():
    told = parts(chunk(content="Hi"), chunk(finish="stop", reasoning_details=[detail(signature="S")]))
    assert told[-2] == Opaque(seal({"reasoning_details": [detail(signature="S")]}))


def test_a_calls_state_stands_between_its_name_and_its_arguments():
    extra = {"google": {"thought_signature": "AAA"}}
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}, "extra_content": extra}
    told = parts(chunk(tool_calls=[call]), chunk(finish="tool_calls"))
    assert told[:3] == [ToolOpen(0, "c", "f"), Opaque(seal({"extra_content": extra}), 0), ToolArgs(0, "{}")]


def test_a_messages_state_leaves_at_the_end_once():
    told = parts(
        chunk(content="a", extra_content={"n": 1}),
        chunk(content="b", extra_content={"n": 2}),
        chunk(finish="stop"),
    )
    assert [part for part in told if isinstance(part, Opaque)] == [
        Opaque(seal({"message_extra_content": {"n": 2}}))
    ]


def test_what_is_too_large_is_left_out_and_counted():
    counts = Counter()
    keeper = StateKeeper(lambda value: None, counts)
    keeper.note_details([detail(signature="S")])
    assert keeper.take() == []
    assert counts == {"state_not_sealed": 1}


@pytest.mark.parametrize("odd", [[], [1, "x", None], {}, "text", [{"type": 7}]])
def test_odd_details_are_no_error(odd):
    told = parts(chunk(reasoning_details=odd), chunk(content="Hi"), chunk(finish="stop"))
    assert told[-3:] == [Text("Hi"), Finish("end_turn"), End(clean=True)]
    assert not any(isinstance(part, Opaque) for part in told)


def turn(upstream_body, messages):
    """One turn through both directions: the request's body and the client's events."""
    request = parse(
        json.dumps({"model": "m", "max_tokens": 9, "stream": True, "messages": messages}).encode()
    )
    chat = encode(request, GENERIC, unseal=lambda text: SEALER.open("generic", "m", text))
    answer = Translation(
        chat,
        model="m",
        message_id="msg_1",
        request_id="req_1",
        streaming=False,
        entropy=lambda size: b"x" * size,
        counts=Counter(),
        seal=lambda value: SEALER.seal("generic", "m", value),
    )
    answer.feed(upstream_body)
    answer.fold()
    return json.loads(chat.body), json.loads(answer.message())


@pytest.mark.parametrize(
    ("first", "where", "state"),
    [
        (
            [
                chunk(reasoning="t", reasoning_details=[detail(text="t", signature="S")]),
                chunk(
                    tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}]
                ),
            ],
            lambda message: message["reasoning_details"],
            [detail(text="t", signature="S")],
        ),
        (
            [
                chunk(reasoning="t"),
                chunk(
                    tool_calls=[
                        {
                            "index": 0,
                            "id": "c",
                            "function": {"name": "f", "arguments": '{"a":1}'},
                            "extra_content": {"google": {"thought_signature": "G"}},
                        }
                    ]
                ),
            ],
            lambda message: message["tool_calls"][0]["extra_content"],
            {"google": {"thought_signature": "G"}},
        ),
    ],
    ids=["reasoning_details", "thought_signature"],
)
def test_over_two_turns_it_comes_back_word_for_word(first, where, state):
    history = [{"role": "user", "content": "q"}]
    _, message = turn(body(*first, chunk(finish="tool_calls")), history)
    history += [
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
    ]
    sent, _ = turn(body(chunk(content="done"), chunk(finish="stop")), history)
    assistant = sent["messages"][1]
    assert where(assistant) == state
    assert assistant["reasoning_content"] == "t"
    for block in history[1]["content"]:
        if block["type"] == "thinking" and block["signature"]:
            block["signature"] = block["signature"][:-3] + "AAA"
    sent, _ = turn(body(chunk(content="done"), chunk(finish="stop")), history)
    assert "reasoning_details" not in sent["messages"][1]
    assert "extra_content" not in sent["messages"][1]["tool_calls"][0]
