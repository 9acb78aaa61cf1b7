"""Tools, tool_choice and names."""

import json

import pytest
from msgspec.structs import replace

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.chat_typed_tools import DEFINED_TOOLS
from antiphon.core.dialects.quirks import GENERIC, LLAMACPP, OLLAMA, OPENAI
from antiphon.core.surfaces.messages.request import RequestError, parse

OBJECT = {"type": "object", "properties": {}}
F = {"name": "f", "input_schema": OBJECT}
G = {"name": "g", "input_schema": OBJECT}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def outcome(*tools, to=GENERIC, messages=None, **fields):
    whole = {
        "model": "m",
        "max_tokens": 64,
        "messages": messages or [{"role": "user", "content": "hi"}],
        "tools": list(tools),
    }
    return encode(parse(json.dumps(whole | fields, separators=(",", ":")).encode()), to)


def sent(*tools, to=GENERIC, **fields):
    return json.loads(outcome(*tools, to=to, **fields).body)


def functions(*tools, to=GENERIC, **fields):
    return [tool["function"] for tool in sent(*tools, to=to, **fields).get("tools", [])]


def refusal(*tools, to=GENERIC, **fields):
    with pytest.raises(RequestError) as caught:
        outcome(*tools, to=to, **fields)
    return str(caught.value)


# --- schemas ---------------------------------------------------------------------------------------------


def test_a_schema_passes_byte_for_byte():
    schema = '{"$schema":"x", "type":"object","properties":{"n":{"maximum":1.000000000000000000001,"e":"\\u00e9"}},"$defs":{}}'
    whole = '{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":%s}]}'
    assert b'"parameters":' + schema.encode() in encode(parse((whole % schema).encode()), GENERIC).body


@pytest.mark.parametrize(
    ("schema", "repaired"),
    [
        ("{}", '{"type":"object","properties":{}}'),
        ('{"type":"object"}', '{"type":"object","properties":{}}'),
        ('{"properties":{"a":{"x":1.0}},"required":null}', '{"type":"object","properties":{"a":{"x":1.0}}}'),
        ('{"properties":{},"type":null}', '{"type":"object","properties":{}}'),
        (
            '{"type":"object","properties":null,"required":["a"]}',
            '{"type":"object","properties":{},"required":["a"]}',
        ),
        ('{"type":"object","properties":{},"required":null}', '{"type":"object","properties":{}}'),
        ('{"anyOf":[{"type":null}]}', '{"type":"object","anyOf":[{"type":null}],"properties":{}}'),
        ('{"type":["object","null"],"properties":{}}', '{"type":["object","null"],"properties":{}}'),
    ],
)
def test_a_schema_is_repaired_at_its_top_level_only(schema, repaired):
    whole = '{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":%s}]}'
    assert (
        b'"parameters":' + repaired.encode() + b"}}" in encode(parse((whole % schema).encode()), GENERIC).body
    )


def test_a_tool_needs_a_name_and_a_schema():
    assert refusal({"input_schema": OBJECT}) == "tools.0.name: Field required"
    assert refusal({"name": "", "input_schema": OBJECT}).startswith("tools.0.name: ")
    assert refusal(F, {"name": "g"}) == "tools.1.input_schema: Field required"
    assert refusal({"name": "g", "type": "custom"}) == "tools.0.input_schema: Field required"
    assert refusal({"name": "g", "input_schema": []}) == "tools.0.input_schema: Input should be an object"
    assert refusal(F, F).startswith("tools.1: Tool names must be unique")


def test_description_and_examples():
    assert functions(F | {"description": "d"}) == [{"name": "f", "description": "d", "parameters": OBJECT}]
    assert functions(F | {"description": ""}) == [{"name": "f", "parameters": OBJECT}]
    (function,) = functions(F | {"description": "d", "input_examples": [{"a": 1}, {"b": "é"}]})
    assert function["description"] == 'd\n\nExamples of its input:\n{"a":1}\n{"b":"\\u00e9"}'
    (function,) = functions(F | {"input_examples": [{}]})
    assert function["description"] == "Examples of its input:\n{}"


def test_strict_goes_where_it_is_known():
    assert functions(F | {"strict": True}, to=OPENAI)[0]["strict"] is True
    out = outcome(F, G | {"strict": True})
    assert out.degraded == ("tools.1.strict",)
    assert b"strict" not in out.body
    assert outcome(F | {"strict": False}).degraded == ()


def test_a_tool_for_code_execution_only_is_degraded():
    assert outcome(F | {"allowed_callers": ["code_execution_20260120"]}).degraded == (
        "tools.0.allowed_callers",
    )
    assert outcome(F | {"allowed_callers": ["direct", "code_execution_20260120"]}).degraded == ()


# --- tools of other kinds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_20260318",
        "web_fetch_20250910",
        "code_execution_20260521",
        "tool_search_tool_bm25_20251119",
        "advisor_20260301",
    ],
)
def test_a_server_tool_is_dropped_and_named(kind):
    out = outcome(F, {"type": kind, "name": "s"})
    assert [tool["function"]["name"] for tool in json.loads(out.body)["tools"]] == ["f"]
    assert out.degraded == ("tools.1",)


def test_a_toolset_of_a_server_needs_no_name():
    assert outcome({"type": "mcp_toolset", "mcp_server_name": "x"}).degraded == ("tools.0",)


def test_a_tool_of_an_unknown_type_is_dropped_unless_it_brings_a_schema():
    assert outcome({"type": "teleport_20270101", "name": "t"}, F).degraded == ("tools.0",)
    assert functions({"type": "teleport_20270101", "name": "t", "input_schema": OBJECT}) == [
        {"name": "t", "parameters": OBJECT}
    ]


def test_only_server_tools_means_no_tools():
    body = sent(SEARCH, tool_choice={"type": "auto"})
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


def test_a_server_tool_cannot_be_forced():
    message = refusal(SEARCH, F, tool_choice={"type": "tool", "name": "web_search"})
    assert message == "tool_choice.name: tools.0 ('web_search') cannot be run here"
    assert "tools.0" in refusal(SEARCH, tool_choice={"type": "any"})


@pytest.mark.parametrize("kind", sorted(DEFINED_TOOLS))
def test_anthropics_client_tools_are_written_out(kind):
    (function,) = functions({"type": kind, "name": "t", "max_characters": 10})
    assert function["name"] == "t"
    assert function["description"]
    schema = function["parameters"]
    assert schema["type"] == "object"
    assert set(schema["required"]) <= set(schema["properties"])


def test_what_the_versions_differ_in():
    def words(kind, member):
        return functions({"type": kind, "name": "t"})[0]["parameters"]["properties"][member]["enum"]

    assert "undo_edit" in words("text_editor_20250124", "command")
    assert "undo_edit" not in words("text_editor_20250728", "command")
    assert "zoom" in words("computer_20251124", "action")
    assert "zoom" not in words("computer_20250124", "action")
    assert "scroll" not in words("computer_20241022", "action")


def test_a_screen_has_a_size():
    screen = {
        "type": "computer_20250124",
        "name": "computer",
        "display_width_px": 1024,
        "display_height_px": 768,
    }
    assert "1024 x 768" in functions(screen)[0]["description"]


def test_a_toolset_that_cannot_be_written_out_is_refused():
    assert refusal(F, {"type": "computer_toolset_20260801"}).startswith(
        "tools.1.type: 'computer_toolset_20260801'"
    )


# --- tools that are held back ------------------------------------------------------------------------------------

LATER = {"name": "later", "input_schema": OBJECT, "defer_loading": True}
FINDER = {"name": "ToolSearch", "input_schema": OBJECT}


def names(*tools, **fields):
    return [function["name"] for function in functions(*tools, **fields)]


def found_in(*blocks):
    call = {"type": "tool_use", "id": "a", "name": "ToolSearch", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": list(blocks)}
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


def test_a_deferred_tool_waits_until_it_is_found():
    assert names(FINDER, LATER) == ["ToolSearch"]
    reference = {"type": "tool_reference", "tool_name": "later"}
    assert names(FINDER, LATER, messages=found_in(reference)) == ["ToolSearch", "later"]
    other = LATER | {"name": "other"}
    assert names(F, LATER, other, messages=found_in(reference)) == ["f", "later"]


def test_a_deferred_tool_that_was_used_or_is_forced_is_there():
    used = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "later", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
    ]
    assert names(FINDER, LATER, messages=used) == ["ToolSearch", "later"]
    assert names(FINDER, LATER, tool_choice={"type": "tool", "name": "later"}) == ["ToolSearch", "later"]


def added(*changes):
    return [{"role": "user", "content": "q"}, {"role": "system", "content": list(changes)}]


ADDITION = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "later"}}


def test_a_deferred_tool_that_a_system_turn_adds_is_there():
    assert names(FINDER, LATER, messages=added(ADDITION)) == ["ToolSearch", "later"]
    assert names(F, LATER, LATER | {"name": "other"}, messages=added(ADDITION)) == ["f", "later"]
    for tools in ((FINDER, LATER), (F, {"name": "later", "input_schema": OBJECT})):
        assert outcome(*tools, messages=added(ADDITION)).degraded == ()


@pytest.mark.parametrize(
    "change",
    [
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "unknown"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": F}},
        {
            "type": "tool_addition",
            "tool": {"type": "mcp_tool_reference", "server_name": "s", "name": "later"},
        },
        {"type": "tool_addition"},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "later"}},
    ],
)
def test_other_changes_of_tools_are_degraded(change):
    out = outcome(FINDER, LATER, messages=added({"type": "text", "text": "n"}, change))
    assert out.degraded == ("messages.1.content.1",)
    assert b'"later"' not in out.body


def test_with_nothing_to_find_it_a_deferred_tool_is_sent_at_once():
    assert names(F, LATER) == ["f", "later"]
    out = outcome({"type": "tool_search_tool_regex_20251119", "name": "tool_search"}, LATER)
    assert [tool["function"]["name"] for tool in json.loads(out.body)["tools"]] == ["later"]
    assert out.degraded == ("tools.0",)


# --- tool_choice -----------------------------------------------------------------------------------------------------

NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f"}, NAMED),
        ({"type": "none"}, "none"),
    ],
)
def test_tool_choice(choice, expected):
    body = sent(F, G, tool_choice=choice)
    assert body["tool_choice"] == expected
    assert len(body["tools"]) == 2


def test_without_tool_choice_there_is_none():
    assert "tool_choice" not in sent(F)


def test_a_named_choice_where_only_words_are_read():
    body = sent(F, G, to=LLAMACPP, tool_choice={"type": "tool", "name": "g"})
    assert body["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["g"]
    for kind, word in (("auto", "auto"), ("any", "required"), ("none", "none")):
        body = sent(F, G, to=LLAMACPP, tool_choice={"type": kind})
        assert body["tool_choice"] == word
        assert len(body["tools"]) == 2


def test_choices_where_none_is_read():
    cases = [
        ("auto", None, 2, ()),
        ("none", None, 0, ()),
        ("any", None, 2, ("tool_choice",)),
        ("tool", "g", 1, ("tool_choice",)),
    ]
    for kind, name, count, degraded in cases:
        out = outcome(F, G, to=OLLAMA, tool_choice={"type": kind} | ({"name": name} if name else {}))
        body = json.loads(out.body)
        assert "tool_choice" not in body
        assert len(body.get("tools", [])) == count
        assert out.degraded == degraded


def test_a_choice_that_cannot_be_kept_is_refused():
    assert (
        refusal(F, tool_choice={"type": "tool", "name": "h"})
        == "tool_choice.name: Tool 'h' not found in provided tools"
    )
    assert refusal(F, tool_choice={"type": "tool"}) == "tool_choice.name: Field required"
    assert refusal(tool_choice={"type": "tool", "name": "h"}).startswith("tool_choice.name: ")
    assert refusal(tool_choice={"type": "any"}).startswith("tool_choice: ")


def test_one_call_at_a_time():
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert sent(F, tool_choice=choice)["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in sent(
        F, tool_choice={"type": "auto", "disable_parallel_tool_use": False}
    )
    assert "parallel_tool_calls" not in sent(
        F, tool_choice={"type": "none", "disable_parallel_tool_use": True}
    )
    assert "parallel_tool_calls" not in sent(tool_choice=choice)
    out = outcome(F, to=OLLAMA, tool_choice=choice)
    assert b"parallel_tool_calls" not in out.body
    assert out.degraded == ("tool_choice.disable_parallel_tool_use",)
    assert outcome(to=OLLAMA, tool_choice=choice).degraded == ()
    assert outcome(F, to=OLLAMA, tool_choice=choice | {"type": "none"}).degraded == ()


# --- names ---------------------------------------------------------------------------------------------------------------

LONG = "mcp__plugin_warehouse-inventory-suite_stock__list_low_stock_articles"


def test_a_long_name_is_shortened_the_same_way_everywhere():
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": LONG, "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r"}]},
    ]
    tools = ({"name": LONG, "input_schema": OBJECT}, {"name": LONG + "2", "input_schema": OBJECT})
    out = outcome(*tools, to=OPENAI, messages=messages, tool_choice={"type": "tool", "name": LONG})
    body = json.loads(out.body)
    first, second = (tool["function"]["name"] for tool in body["tools"])
    assert len(first) == len(second) == 64
    assert first != second
    assert body["tool_choice"]["function"]["name"] == first
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == first
    assert out.tool_names == {first: LONG, second: LONG + "2"}


def test_without_a_limit_names_pass():
    out = outcome({"name": LONG, "input_schema": OBJECT})
    assert json.loads(out.body)["tools"][0]["function"]["name"] == LONG
    assert out.tool_names == {}


def test_a_name_that_could_not_come_back_is_mapped():
    out = outcome(
        {"name": "a.b", "input_schema": OBJECT},
        {"name": "a_b", "input_schema": OBJECT},
        {"name": "x" * 129, "input_schema": OBJECT},
    )
    dotted, plain, long = (tool["function"]["name"] for tool in json.loads(out.body)["tools"])
    assert plain == "a_b"
    assert dotted.startswith("a_b_")
    assert len(long) == 128
    assert out.tool_names == {dotted: "a.b", long: "x" * 129}


def test_the_limit_is_a_quirk():
    row = replace(GENERIC, tool_name_limit=20)
    (name,) = (
        tool["function"]["name"] for tool in sent({"name": "n" * 30, "input_schema": OBJECT}, to=row)["tools"]
    )
    assert len(name) == 20
