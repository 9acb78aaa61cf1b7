"""Odd types, one by one. That both paths agree is in test_chat_wire."""

import pytest

from antiphon.core.dialects import chat_lenient
from antiphon.core.dialects.chat_lenient import NOT_JSON, chunk, count, index, load
from antiphon.core.dialects.chat_wire import Call, Choice, Function, WireUsage


def delta(**fields):
    return chunk({"choices": [{"delta": fields}]}).choices[0].delta


@pytest.mark.parametrize("value, want", [(7, 7), (7.0, 7), (0, 0), (-1, None), (7.5, None), ("7", None), (True, None), (None, None),
    ([], None), (float("inf"), None), (float("nan"), None), (2**53, 2**53), (2**53 + 1, None), (1e300, None)])  # fmt: skip
def test_count(value, want):
    assert count(value) == want


@pytest.mark.parametrize("value, want", [(0, 0), (1.0, 1), ("0", 0), ("12", 12), ("", None), ("-1", None), ("x", None), ("²", None),
    ("9" * 20, None), (None, None), (False, None), ({}, None)])  # fmt: skip
def test_index(value, want):
    assert index(value) == want


@pytest.mark.parametrize("payload, want", [(b'{"a":1}', {"a": 1}), (b"\xef\xbb\xbf[1]", [1]), (b'"a\xff"', "a\ufffd"), (b'"a\nb"', "a\nb"),
    (b"", NOT_JSON), (b"{", NOT_JSON), (b"[DONE]", NOT_JSON), (b"9" * 5000, NOT_JSON), (b"[" * 100_000, NOT_JSON)])  # fmt: skip
def test_load(payload, want):
    assert load(payload) == want


@pytest.mark.parametrize("choices", [None, {}, "x", [], [None, 7, "x", []]])
def test_no_choices(choices):
    assert chunk({"choices": choices, "usage": []}).choices == []


def test_a_choice_of_odd_members():
    [choice] = chunk(
        {
            "choices": [
                {
                    "index": "1",
                    "delta": [],
                    "finish_reason": 1,
                    "stop_reason": 7,
                    "matched_stop": "END",
                    "usage": 1,
                    "message": 2,
                    "error": "",
                }
            ]
        }
    ).choices
    assert choice == Choice(1, matched_stop="END")
    assert choice.matched == "END"


@pytest.mark.parametrize(
    "value, want",
    [
        ("a", "a"),
        ({"text": "a"}, "a"),
        ({"summary": "a"}, "a"),
        ([{"text": "a"}, {"data": "x"}, "b", None], "ab"),
        ([{"text": ["a", {"text": "b"}]}], "a"),
        ({"text": 1}, None),
        ([[[[[["a"]]]]]], None),
    ],
)
def test_reasoning(value, want):
    assert delta(reasoning=value).reasoning_content == want


def test_the_first_name_with_text_counts():
    assert (
        delta(reasoning_content="", reasoning="b", reasoning_details=[{"text": "c"}]).reasoning_content == "b"
    )


@pytest.mark.parametrize(
    "content, want",
    [
        ([{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}, {"text": "c"}, "d"], "abcd"),
        ({"type": "text", "text": "a"}, "a"),
        ([{"type": "image", "text": "x"}, {"type": "text", "text": None}, 7], ""),
    ],
)
def test_content_as_parts(content, want):
    said = delta(content=content)
    assert said.content is None
    assert "".join(text for is_reasoning, text in said.segments if not is_reasoning) == want


def test_thinking_parts_keep_their_place():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "a"}]},
        {"type": "text", "text": "b"},
        {"type": "reasoning", "text": "c"},
    ]
    assert delta(content=parts).segments == ((True, "a"), (False, "b"), (True, "c"))


@pytest.mark.parametrize(
    "entry, want",
    [
        ({}, Call()),
        ({"index": None, "id": 7, "function": []}, Call()),
        ({"index": "1", "id": "a", "function": {"name": 1, "arguments": 7}}, Call(1, "a", Function())),
        ({"function": {"arguments": {"a": [1, "é"]}}}, Call(None, None, Function(None, '{"a":[1,"é"]}'))),
        ({"function": {"arguments": {}}}, Call(None, None, Function(None, "{}"))),
        ({"function": {"arguments": []}}, Call(None, None, Function())),
        ({"function": {"arguments": [1]}}, Call(None, None, Function(None, "[1]"))),
    ],
)
def test_calls(entry, want):
    assert delta(tool_calls=[None, entry]).tool_calls == [want]


def test_the_call_of_old():
    assert delta(function_call={"name": "f", "arguments": "{}"}).tool_calls == [
        Call(0, None, Function("f", "{}"))
    ]
    assert delta(function_call={"name": "f"}, tool_calls=[{"id": "a"}]).tool_calls == [Call(None, "a")]
    assert delta(function_call="f").tool_calls is None


def test_every_entry_of_a_whole_message_is_a_call():
    entries = [{"id": "a", "index": 0}, {"id": "a", "index": 0}, {}]
    [choice] = chunk({"choices": [{"message": {"tool_calls": entries}}]}).choices
    assert [call.index for call in choice.message.tool_calls] == [0, 1, 2]


def test_usage_of_odd_members():
    report = {
        "prompt_tokens": 7.0,
        "completion_tokens": "3",
        "prompt_tokens_details": [],
        "completion_tokens_details": None,
        "reasoning_tokens": -1,
    }
    assert chunk({"usage": report}).usage == WireUsage(prompt_tokens=7)


def test_the_docstring_s_frame():
    assert chat_lenient.chunk(
        load(b'{"choices":[{"delta":{"content":[{"type":"text","text":"Hi"}]}}]}')
    ).choices[0].delta.segments == ((False, "Hi"),)
