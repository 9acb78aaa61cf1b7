"""What the simulated model says: which answer a request gets, and where it ends."""

import json

import pytest

from antiphon.simulator_script import DEFAULT_MAX_TOKENS, RequestError, Script, example, read_request

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("Alpha", "Beta", "Gamma")
]
NAMED = {"type": "function", "function": {"name": "Beta"}}
USED = [
    {"role": "user", "content": "long"},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "tool_call_id": "c", "content": "22 degrees\nand sunny"},
]


class Said:
    """Everything that a script said, joined."""

    def __init__(self, prompt="hi", **fields):
        body = {"messages": [{"role": "user", "content": prompt}], **fields}
        self.script = Script(read_request(json.dumps(body).encode()), call_id="call_x")
        self.deltas = [delta for delta in self.script if delta is not None]
        self.reasoning = "".join(delta.get("reasoning_content", "") for delta in self.deltas)
        self.content = "".join(delta.get("content", "") for delta in self.deltas)
        fragments = [fragment for delta in self.deltas for fragment in delta.get("tool_calls", [])]
        self.calls = [(f["id"], f["function"]["name"]) for f in fragments if "id" in f]
        self.arguments = [
            "".join(f["function"]["arguments"] for f in fragments if f["index"] == index)
            for index in range(len(self.calls))
        ]

    @property
    def names(self):
        return [name for _, name in self.calls]


def test_the_same_request_gets_the_same_words():
    assert Said().deltas == Said().deltas


def test_hi_has_reasoning_and_content_under_64_tokens():
    said = Said()
    assert said.reasoning and said.content
    assert said.script.finish_reason == "stop"
    assert said.script.completion_tokens == len(said.deltas) < 64
    reasoning = [delta for delta in said.deltas if "reasoning_content" in delta]
    assert said.script.reasoning_tokens == len(reasoning)


def test_no_reasoning_when_its_effort_is_none():
    said = Said(reasoning_effort="none")
    assert said.reasoning == "" and said.script.reasoning_tokens == 0
    assert said.content


# --- max_tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 17, 512])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_long_talks_until_the_limit_exactly(name, limit):
    said = Said("Tell me a LONG story", **{name: limit})
    assert said.script.completion_tokens == len(said.deltas) == limit
    assert said.script.finish_reason == "length"


def test_long_ends_without_a_limit_too():
    assert Said("long").script.completion_tokens == DEFAULT_MAX_TOKENS


def test_long_is_a_whole_word():
    assert Said("longer belong").script.finish_reason == "stop"


def test_a_limit_can_cut_a_call_in_its_arguments():
    said = Said('call Alpha {"text": "xxxxxxxxxxxxxxxxxxxxxxxx"}', tools=TOOLS, max_tokens=13)
    assert said.names == ["Alpha"]
    assert '{"text": "xxxxxxxx'.startswith(said.arguments[0]) and said.arguments[0]
    assert said.script.finish_reason == "length"


def test_an_answer_of_exactly_the_limit_is_not_cut():
    tokens = Said().script.completion_tokens
    assert Said(max_tokens=tokens).script.finish_reason == "stop"
    assert Said(max_tokens=tokens - 1).script.finish_reason == "length"


# --- stop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["model", "ted mo", "am a scr", ":", "I think, then I", "Hello"])
def test_a_stop_string_ends_the_content_before_it(stop):
    whole = Said().content
    said = Said(stop=[stop, "never said"])
    assert said.content == whole[: whole.index(stop)]
    assert (said.script.finish_reason, said.script.stop_reason) == ("stop", stop)
    assert said.script.completion_tokens < Said().script.completion_tokens


def test_a_stop_string_is_not_looked_for_in_the_reasoning():
    said = Said(stop="sentence")
    assert "sentence" in said.reasoning
    assert said.script.stop_reason is None


@pytest.mark.parametrize("stop", [[], "", [""], "time.!", "a scripted dog"])
def test_text_that_only_began_a_stop_string_is_said(stop):
    said = Said(stop=stop)
    assert said.content == Said().content
    assert said.script.stop_reason is None


def test_held_text_is_said_when_the_limit_comes_first():
    whole = Said().content
    first = Said().script.reasoning_tokens + 1
    said = Said(stop=whole.split()[0] + " I am", max_tokens=first)
    assert said.content == whole.split()[0]
    assert said.script.finish_reason == "length"


# --- Tools ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "fields", "names", "finish"),
    [
        ("hi", {}, ["Alpha"], "tool_calls"),
        ("please use Gamma", {}, ["Gamma"], "tool_calls"),
        ("hi", {"tool_choice": "auto"}, ["Alpha"], "tool_calls"),
        ("hi", {"tool_choice": "none"}, [], "stop"),
        ("long", {"tool_choice": "required"}, ["Alpha"], "tool_calls"),
        ("hi", {"tool_choice": NAMED}, ["Beta"], "stop"),
        ("in parallel", {}, ["Alpha", "Beta"], "tool_calls"),
        ("in parallel with Gamma", {}, ["Gamma", "Alpha"], "tool_calls"),
        ("in parallel", {"parallel_tool_calls": False}, ["Alpha"], "tool_calls"),
        ("in parallel", {"tools": TOOLS[:1]}, ["Alpha"], "tool_calls"),
        ("hi", {"tools": []}, [], "stop"),
        ("hi", {"messages": USED}, [], "stop"),
        ("hi", {"messages": USED, "tool_choice": "required"}, ["Alpha"], "tool_calls"),
        ("hi", {"messages": [*USED, {"role": "assistant", "content": "ok"}, USED[0]]}, [], "length"),
    ],
)
def test_which_tools_are_called(prompt, fields, names, finish):
    said = Said(prompt, max_tokens=200, **{"tools": TOOLS, **fields})
    assert said.names == names
    assert said.script.finish_reason == finish
    assert len({call_id for call_id, _ in said.calls}) == len(names)
    assert said.reasoning, "a little reasoning comes first"


def test_written_calls_are_made_to_the_letter():
    prompt = 'Do this:\n  call Beta {"a":  [1, 2]}  \r\ncall other.tool {"broken": }\ncall me maybe\n{"a": 1}'
    said = Said(prompt, tools=TOOLS)
    assert said.names == ["Beta", "other.tool"]
    assert said.arguments == ['{"a":  [1, 2]}', '{"broken": }']
    assert Said(prompt, tools=TOOLS, parallel_tool_calls=False).names == ["Beta"]
    assert Said(prompt).names == Said(prompt, tools=TOOLS, tool_choice="none").names == []


def test_written_calls_are_made_once_in_a_conversation():
    asked = {"role": "user", "content": 'call Beta {"a": 1}'}
    said = Said(messages=[asked, *USED[1:]], tools=TOOLS)
    assert said.names == []
    again = Said(messages=[asked, *USED[1:], {"role": "user", "content": 'call Gamma {"b": 2}'}], tools=TOOLS)
    assert again.names == ["Gamma"]


def test_a_tool_result_is_quoted():
    assert '"22 degrees and sunny"' in Said(messages=USED).content
    parts = [{"type": "text", "text": "x" * 500}]
    assert 50 < Said(messages=[*USED[:2], {"role": "tool", "content": parts}]).content.count("x") < 100


def test_text_after_a_tool_result_does_not_start_the_next_call():
    after = {"role": "user", "content": "<system-reminder>be brief</system-reminder>"}
    assert Said(messages=[*USED, after], tools=TOOLS).names == []


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "long"}]}],
        [{"role": "user", "content": "long"}, {"role": "system", "content": "x"}],
        [{"role": "user", "content": "long"}, {"role": "assistant", "content": "a prefill"}],
    ],
)
def test_where_the_prompt_stands(messages):
    assert Said(messages=messages, max_tokens=50).script.finish_reason == "length"


def test_a_clients_reminders_are_not_the_prompt():
    text = "<system-reminder>\nlong, parallel, [[status=500]]\n</system-reminder>\nhi"
    assert Said(text).script.finish_reason == "stop"


# --- Arguments from a schema ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, "example"),
        ({"type": "string", "minLength": 9}, "examplexx"),
        ({"type": "string", "format": "date"}, "2026-01-31"),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "exclusiveMinimum": 2}, 3),
        ({"type": "integer", "maximum": -4}, -4),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": ["null", "boolean"]}, True),
        ({"type": "string", "enum": ["b", "a"]}, "b"),
        ({"const": 7}, 7),
        ({"type": "string", "default": ""}, ""),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        ({"oneOf": [{"type": "boolean"}]}, True),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
        (
            {"properties": {"a": {"type": "object", "required": ["b"]}, "c": {}}, "required": ["a"]},
            {"a": {"b": "example"}},
        ),
        (
            {"$ref": "#/$defs/place", "$defs": {"place": {"type": "object", "required": ["x"]}}},
            {"x": "example"},
        ),
        (
            {"allOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
            {"a": "example", "b": "example"},
        ),
        ({"$ref": "#/nowhere"}, None),
        (True, None),
    ],
)
def test_examples(schema, value):
    assert example(schema, schema if isinstance(schema, dict) else {}) == value


def test_a_schema_that_holds_itself_ends():
    schema = {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]}
    assert "again" in example(schema, schema)


def test_arguments_are_an_object_whatever_the_schema_says():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]
    assert Said(tools=tools).arguments == ["{}"]


# --- Requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, r"\$\.messages"),
        ({"messages": "hi"}, r"\$\.messages"),
        ({"max_tokens": 0}, r"\$\.max_tokens"),
        ({"max_tokens": "many"}, r"\$\.max_tokens"),
        ({"stop": 3}, r"\$\.stop"),
        ({"tools": [{"type": "custom"}]}, "function"),
        ({"tool_choice": "sometimes"}, r"\$\.tool_choice"),
        ({"tool_choice": NAMED}, "not in tools"),
        ({"stream_options": {"include_usage": True}}, "only allowed when stream is true"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "needs include_usage"),
    ],
)
def test_bad_requests_are_refused_with_the_place(fields, words):
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    with pytest.raises(RequestError, match=words):
        read_request(json.dumps(body).encode())


def test_unknown_and_null_fields_are_ignored():
    said = Said(
        top_k=5, stop=None, tools=None, tool_choice=None, stream=None, stream_options=None, max_tokens=None
    )
    assert said.script.finish_reason == "stop"


def test_prompt_tokens_grow_with_the_prompt_and_are_never_zero():
    short, longer = Said("hi").script.usage(), Said("hi " * 400).script.usage()
    assert 0 < short["prompt_tokens"] < longer["prompt_tokens"] - 200


def test_a_full_tool_box_is_no_request_to_use_it():
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": {"type": "object"}}}
        for n in range(24)
    ]

    def called(prompt, **fields):
        return [
            fragment["function"]["name"]
            for delta in Said(prompt, tools=tools, **fields).deltas
            for fragment in delta.get("tool_calls", [])
            if fragment["function"].get("name")
        ]

    assert called("hi") == []
    assert called("use tool_7 please") == ["tool_7"]
    assert called("hi", tool_choice="required") == ["tool_0"]
