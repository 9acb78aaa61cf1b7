"""Shapes of answers: real captures, odd ones, and noise."""

import json
import random

import pytest

from antiphon.check.upstream.chat_shapes import read_chat
from pipeline import CORPUS, DATA

STREAMS = DATA / "streams"


def read(name):
    return read_chat((STREAMS / name).read_bytes())


def chunk(delta, **choice):
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, **choice}]})}\n\n"


def chunks(*deltas):
    return read_chat("".join(chunk(delta) for delta in deltas).encode())


def test_vllm_tool_call():
    seen = read("vllm-0.32-tool-call.sse")
    call = seen.calls[0]
    assert (seen.form, seen.line_ends, seen.done, seen.finish_reason) == ("events", "LF", True, "tool_calls")
    assert (call.name, call.ids, call.names, call.pieces > 1, set(call.indices)) == (
        "get_weather",
        1,
        1,
        True,
        {0},
    )
    assert isinstance(json.loads(call.arguments), dict)


def test_vllm_stop_and_thinking():
    assert read("vllm-0.32-stop-string.sse").matched == {"stop_reason": " STOP"}
    thinking = read("vllm-0.32-thinking-then-text.sse")
    assert thinking.reasoning_fields == ["reasoning"]
    assert thinking.reasoning


def test_where_usage_stands():
    assert read("vllm-0.32-usage-in-every-chunk.sse").usage_places[:2] == ["first chunk", "every chunk"]
    assert read("llamacpp-text.sse").usage_places == ["a chunk of its own"]
    assert read("llamacpp-no-usage-asked.sse").usage is None


def test_a_whole_body():
    body = {
        "choices": [{"message": {"content": "Hi", "reasoning_content": "r"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1},
    }
    seen = read_chat(b"\n\n" + json.dumps(body).encode())
    assert (seen.form, seen.text, seen.reasoning, seen.finish_reason) == ("json", "Hi", "r", "stop")
    assert (seen.usage, seen.usage_places) == ({"prompt_tokens": 1}, ["body"])


def test_odd_calls():
    def call(**members):
        return {"tool_calls": [members]}

    seen = chunks(
        call(id="a", function={"name": "f", "arguments": {}}),
        call(id="b", function={"name": "g", "arguments": "{"}),
        call(function={"arguments": "}"}),
        call(id="b", function={"name": "g"}),
    )
    assert [(c.name, c.id, c.arguments, c.names) for c in seen.calls] == [
        ("f", "a", "{}", 1),
        ("g", "b", "{}", 2),
    ]
    assert seen.calls[0].object_arguments
    by_index = chunks(
        call(index=0, function={"name": "f", "arguments": "{}"}),
        call(index=1, function={"name": "f", "arguments": "{}"}),
    )
    assert len(by_index.calls) == 2


@pytest.mark.parametrize(
    ("body", "ends"), [(b"a\r\nb\n", "CRLF and LF"), (b"a\rb", "CR"), (b"a\r\n\r\n", "CRLF"), (b"", "none")]
)
def test_line_ends(body, ends):
    assert read_chat(body).line_ends == ends


def test_errors():
    assert read_chat(b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n').error == {"message": "no"}
    assert read_chat(b'{"object":"error","message":"no"}').error["message"] == "no"
    assert read_chat(b"data: {\n\n").bad_frames == 1


def test_noise_never_raises():
    rng = random.Random(0)
    bodies = [path.read_bytes() for path in STREAMS.glob("*.sse")]
    bodies += ["".join(f"data: {line}\n\n" for line in case["trigger"]["data"]).encode("utf-8", "replace")
               for case in CORPUS if case["trigger"]["kind"] == "openai_sse"]  # fmt: skip
    for body in bodies:
        for _ in range(5):
            read_chat(body[: rng.randrange(len(body))])
            at = rng.randrange(len(body))
            read_chat(body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :])
    for value in (
        None,
        5,
        "x",
        [],
        {},
        [{}],
        [None],
        {"choices": {}},
        {"choices": [{"delta": {"content": [None, 5]}}]},
    ):
        read_chat(b"data: " + json.dumps(value).encode() + b"\n\n")
        read_chat(json.dumps(value).encode())
