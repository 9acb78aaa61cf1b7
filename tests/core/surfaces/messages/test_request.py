"""Reading a Messages request: what is accepted, what is refused and with which path, what is noted."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.surfaces.messages.request import RequestError, parse
from antiphon.core.surfaces.messages.request_blocks import Image, Text, ToolResult, ToolUse
from antiphon.core.surfaces.messages.request_reading import DEPTH_LIMIT, Foreign

USER = {"role": "user", "content": "hi"}


def body(*messages, **fields):
    return json.dumps(
        {"model": "m", "max_tokens": 64, "messages": list(messages) or [USER], **fields}
    ).encode()


def blocks(*content):
    return body({"role": "user", "content": list(content)})


def refusal(data):
    with pytest.raises(RequestError) as caught:
        parse(data)
    fault = caught.value.fault
    assert (fault.kind, fault.status) == ("invalid_request_error", 400)
    assert fault.message == str(caught.value)
    return fault.message


# --- accepted --------------------------------------------------------------------------------------


def test_the_smallest_request():
    request = parse(body())
    assert (request.model, request.max_tokens, request.stream) == ("m", 64, False)
    assert request.messages[0].role == "user"
    assert request.messages[0].content == (Text("hi"),)
    assert (request.ignored, request.degraded) == ((), ())


def test_numbers_stay_what_they_were():
    request = parse(body(temperature=1, top_p=0.1, top_k=5))
    assert (repr(request.temperature), repr(request.top_p), request.top_k) == ("1", "0.1", 5)


def test_an_integer_may_be_spelled_as_a_float():
    spelled = parse(
        b'{"model":"m","max_tokens":1000.0,"top_k":4e1,"thinking":{"type":"enabled","budget_tokens":1024.0},'
        b'"messages":[{"role":"user","content":"hi"}]}'
    )
    plain = parse(body(max_tokens=1000, top_k=40, thinking={"type": "enabled", "budget_tokens": 1024}))
    assert spelled == plain
    assert type(spelled.max_tokens) is int


def test_null_is_absent():
    names = ("system", "stream", "tools", "tool_choice", "stop_sequences", "temperature", "top_k", "thinking")
    names += ("output_config", "metadata", "mcp_servers", "container", "context_management")
    request = parse(body(**dict.fromkeys(names)))
    assert request == parse(body())


def test_raw_members_are_untouched():
    text = b'{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"n","input":{"z":1.00000000000000000001, "a":123456789012345678901234567890,"e":"\\u00e9\\/"}}]}]}'
    call = parse(text).messages[0].content[0]
    assert isinstance(call, ToolUse)
    assert (
        bytes(call.input)
        == b'{"z":1.00000000000000000001, "a":123456789012345678901234567890,"e":"\\u00e9\\/"}'
    )


def test_of_equal_keys_the_last_wins():
    text = b'{"model":1,"max_tokens":1,"model":"m","messages":[{"role":"user","content":[{"type":"image","type":"text","text":3,"text":"b"}]}]}'
    request = parse(text)
    assert request.model == "m"
    assert request.messages[0].content == (Text("b"),)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"\ud83d", "\ufffd"),
        (rb"\uDE00x", "\ufffdx"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\\ud83d", "\\ud83d"),
        (rb"\\\ud83d", "\\\ufffd"),
    ],
)
def test_half_a_surrogate_pair_becomes_a_replacement_character(escaped, text):
    data = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"%s"},{"type":"new","x":"%s"}]}]}'
    content = parse(data % (escaped, escaped)).messages[0].content
    assert content[0] == Text(text)
    assert json.loads(bytes(content[1].raw))["x"] == text


def test_nested_content_is_read():
    request = parse(
        blocks(
            {
                "type": "tool_result",
                "tool_use_id": "a",
                "content": [{"type": "text", "text": "x"}],
                "is_error": True,
            },
            {"type": "tool_result", "tool_use_id": "b"},
            {"type": "image", "source": {"type": "url", "url": "https://e.x/a.png"}},
        )
    )
    first, second, image = request.messages[0].content
    assert first == ToolResult("a", (Text("x"),), True)
    assert (second.content, second.is_error) == ((Text(""),), False)
    assert isinstance(image, Image)
    assert image.source.url == "https://e.x/a.png"


def test_a_block_of_an_unknown_type_is_kept_whole():
    block = parse(blocks({"type": "hologram", "x": [1]})).messages[0].content[0]
    assert isinstance(block, Foreign)
    assert json.loads(bytes(block.raw)) == {"type": "hologram", "x": [1]}


def test_max_tokens_zero_warms_the_cache():
    assert parse(body(max_tokens=0)).warms_cache_only
    assert not parse(body(max_tokens=1)).warms_cache_only


def test_the_older_output_format_is_the_same_wish():
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    old, new = (
        parse(body(output_format=wanted)),
        parse(body(output_config={"format": wanted, "effort": "low"})),
    )
    assert (
        bytes(old.output_config.format.schema)
        == bytes(new.output_config.format.schema)
        == b'{"type": "object"}'
    )
    assert (old.output_config.effort, new.output_config.effort) == (None, "low")


# --- refused, with the path first ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "The request body is not valid JSON"),
        (b'{"model":"m","messages":[{"role":"user","content":"hi"}]', "The request body is not valid JSON"),
        (b'{"model":"m"} x', "The request body is not valid JSON"),
        (b'{"model":NaN}', "The request body is not valid JSON"),
        (b'{"model":"\xff"}', "The request body is not valid JSON: not UTF-8 at byte 10"),
        (b"[]", "The request body must be a JSON object"),
        (b"null", "The request body must be a JSON object"),
        (b"{}", "model: Field required"),
        (b'{"model":"m"}', "max_tokens: Field required"),
        (b'{"model":"m","max_tokens":1}', "messages: Field required"),
        (b'{"model":"m","max_tokens":1,"messages":[]}', "messages: at least one message is required"),
        (body(model=3), "model: Input should be a valid string"),
        (body(max_tokens="64"), "max_tokens: Input should be a valid integer"),
        (body(max_tokens=-1), "max_tokens: Input should be a valid integer >= 0"),
        (body(max_tokens=1000.5), "max_tokens: Input should be a valid integer"),
        (body(max_tokens=-1.0), "max_tokens: Input should be a valid integer >= 0"),
        (body(max_tokens=1e16), "max_tokens: Input should be a valid integer"),
        (body(max_tokens=True), "max_tokens: Input should be a valid integer"),
        (body(top_k=0.5), "top_k: Input should be a valid integer"),
        (body(stream="yes"), "stream: Input should be a valid boolean"),
        (body(temperature="hot"), "temperature: Input should be a valid number"),
        (body(stop_sequences="x"), "stop_sequences: Input should be a valid list"),
        (body(stop_sequences=["x", 1]), "stop_sequences.1: Input should be a valid string"),
        (body(system=3), "system: Input should be a valid string or list"),
        (body(system=[{"type": "text"}]), "system.0.text: Field required"),
        (body(system=[{"type": "image", "source": {"type": "url", "url": "x"}}]), "system.0.type: "),
        (body(messages="x"), "messages: Input should be a valid list"),
        (body(USER, 3), "messages.1: Input should be an object"),
        (body({"content": "x"}), "messages.0.role: Field required"),
        (body({"role": "tool", "content": "x"}), "messages.0.role: "),
        (body({"role": "user"}), "messages.0.content: Field required"),
        (
            body({"role": "user", "content": None}),
            "messages.0.content: Input should be a valid string or list",
        ),
        (blocks("x"), "messages.0.content.0: Input should be an object"),
        (blocks({"text": "x"}), "messages.0.content.0.type: Field required"),
        (blocks({"type": 3}), "messages.0.content.0.type: Input should be a valid string"),
        (blocks({"type": "text"}), "messages.0.content.0.text: Field required"),
        (blocks({"type": "text", "text": None}), "messages.0.content.0.text: Input should be a valid string"),
        (blocks({"type": "image"}), "messages.0.content.0.source: Field required"),
        (blocks({"type": "image", "source": "x"}), "messages.0.content.0.source: Input should be an object"),
        (blocks({"type": "image", "source": {}}), "messages.0.content.0.source.type: Field required"),
        (blocks({"type": "tool_result"}), "messages.0.content.0.tool_use_id: Field required"),
        (
            blocks(
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "text", "text": "x"}, {"type": "text", "text": 1}],
                }
            ),
            "messages.0.content.0.content.1.text: Input should be a valid string",
        ),
        (
            blocks({"type": "document", "source": {"type": "content", "content": [{"type": "text"}]}}),
            "messages.0.content.0.source.content.0.text: Field required",
        ),
        (blocks({"type": "tool_use", "name": "f", "input": {}}), "messages.0.content.0.id: Field required"),
        (
            blocks({"type": "tool_use", "id": "a", "name": "f", "input": "{}"}),
            "messages.0.content.0.input: Input should be an object",
        ),
        (body(tools={}), "tools: Input should be a valid list"),
        (body(tools=[{"name": 3}]), "tools.0.name: Input should be a valid string"),
        (body(tool_choice="auto"), "tool_choice: Input should be an object"),
        (body(tool_choice={"type": "some"}), "tool_choice.type: "),
        (body(thinking=True), "thinking: Input should be an object"),
        (body(thinking={}), "thinking.type: Field required"),
        (body(output_config={"format": {"type": "yaml"}}), "output_config.format.type: "),
        (
            body(output_config={"format": {"type": "json_schema"}}),
            "output_config.format.schema: Field required",
        ),
        (body(output_format={"type": "json_schema"}), "output_format.schema: Field required"),
        (body(mcp_servers=[{"name": "x"}]), "mcp_servers: "),
        (body(thread={"type": "create"}), "thread: "),
        (body(compaction={"type": "summarize"}), "compaction: "),
        (body(max_tokens=0, stream=True), "max_tokens: 0 cannot be combined with `stream`"),
        (body(max_tokens=0, thinking={"type": "enabled", "budget_tokens": 1024}), "max_tokens: "),
        (body(max_tokens=0, output_format={"type": "json_schema", "schema": {}}), "max_tokens: "),
        (body(max_tokens=0, tool_choice={"type": "any"}), "max_tokens: "),
        (body(max_tokens=0, tool_choice={"type": "tool", "name": "f"}), "max_tokens: "),
    ],
)
def test_what_is_refused(data, message):
    assert refusal(data).startswith(message)


def test_warming_goes_with_what_the_api_allows():
    allowed = parse(body(max_tokens=0, thinking={"type": "adaptive"}, tool_choice={"type": "auto"}))
    assert allowed.warms_cache_only


def nested(depth):
    """A request whose deepest list stands `depth` levels deep."""
    return b'{"model":"m","max_tokens":1,"metadata":%s,"messages":[{"role":"user","content":"[[[["}]}' % (
        b"[" * (depth - 1) + b"]" * (depth - 1)
    )


def test_depth_is_limited():
    assert parse(nested(DEPTH_LIMIT)).model == "m"
    assert "nested deeper than 200 levels" in refusal(nested(DEPTH_LIMIT + 1))
    assert "nested deeper" in refusal(nested(100_000))


def test_brackets_in_strings_are_not_depth():
    text = '\\" [ \\\\' + "[{" * 5000
    assert parse(body({"role": "user", "content": text})).messages[0].content == (Text(text),)


def test_a_closing_bracket_in_a_string_hides_no_depth():
    hidden = b'{"model":"m","max_tokens":1,"metadata":%s,"messages":[]}' % (
        b'["\\\\","]]]]",' * 300 + b"1" + b"]" * 300
    )
    assert "nested deeper" in refusal(hidden)


# --- noted ------------------------------------------------------------------------------------------------


def test_members_without_effect_are_ignored():
    request = parse(
        body(
            {
                "role": "user",
                "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "sparkle": 1}
                ],
            },
            metadata={"other": "u"},
            service_tier="auto",
            context_management={"edits": []},
            cache_control={"type": "ephemeral"},
            output_config={"task_budget": {"type": "tokens", "total": 5}},
            system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            tools=[
                {
                    "name": "f",
                    "input_schema": {},
                    "eager_input_streaming": True,
                    "cache_control": {},
                    "glow": 1,
                }
            ],
            thinking={"type": "adaptive", "display": "omitted"},
            brand_new=1,
        )
    )
    assert set(request.ignored) == {
        "metadata",
        "service_tier",
        "context_management",
        "cache_control",
        "output_config.task_budget",
        "messages.*.content.*.cache_control",
        "messages.*.content.*.sparkle",
        "system.*.cache_control",
        "tools.*.eager_input_streaming",
        "tools.*.cache_control",
        "tools.*.glow",
        "thinking.display",
        "brand_new",
    }
    assert request.degraded == ()


def test_unknown_members_change_nothing_else():
    plain = parse(body({"role": "user", "content": [{"type": "text", "text": "hi"}]}))
    odd = parse(
        body({"role": "user", "content": [{"type": "text", "text": "hi", "x": [1, {"y": "é"}]}], "z": 1})
    )
    assert odd.messages == plain.messages
    assert odd.ignored == ("messages.*.z", "messages.*.content.*.x")


def test_a_strange_name_does_not_reach_a_label():
    assert parse(body(**{"a b\n": 1, "x" * 65: 2})).ignored == ("?",)


def test_edits_of_the_context_are_degraded_unless_they_only_clear_thinking():
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_tool_uses_20250919"}]
    request = parse(body(context_management={"edits": edits}))
    assert request.ignored == ("context_management",)
    assert request.degraded == ("context_management.edits.1",)


def test_a_container_is_degraded():
    assert parse(body(container={"id": "c", "skills": []})).degraded == ("container",)


def test_empty_lists_of_servers_are_nothing():
    assert parse(body(mcp_servers=[])) == parse(body())


# --- nothing but RequestError, ever --------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def try_parse(data):
    try:
        return parse(data)
    except RequestError as refused:
        assert refused.fault.status == 400
        return None


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data):
    try_parse(data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_valid_request_with_one_value_replaced(data):
    whole = json.loads(
        blocks(
            {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]},
            {
                "type": "document",
                "source": {"type": "content", "content": "x"},
                "citations": {"enabled": True},
            },
        )
    )
    whole |= {
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
        "system": [{"type": "text", "text": "s"}],
    }
    whole |= {
        "thinking": {"type": "enabled"},
        "context_management": {"edits": [{"type": "x"}]},
        "output_config": {"effort": "low"},
    }
    spot, key = whole, data.draw(st.sampled_from(sorted(whole)))
    while data.draw(st.booleans()) and isinstance(spot[key], dict | list) and spot[key]:
        spot = spot[key]
        key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
    spot[key] = data.draw(JSON)
    try_parse(json.dumps(whole).encode())


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=400), st.binary(max_size=3))
def test_a_valid_request_with_some_bytes_replaced(position, junk):
    data = blocks(
        {"type": "text", "text": "\\u00e9"}, {"type": "tool_use", "id": "a", "name": "f", "input": {"a": [1]}}
    )
    try_parse(data[:position] + junk + data[position + len(junk) :])
