"""Every flag of a row on both sides: what the generic server is sent, and one that differs in this flag alone.

A flag that no case here names must be one that other code reads; those are listed, with their tests.
"""

import json
import pathlib

import pytest
from msgspec.structs import replace

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.quirk_facts import Quirks
from antiphon.core.dialects.quirks import GENERIC
from antiphon.core.surfaces.messages.request import RequestError, parse
from turns import assistant, call, picture, result, system, text, user

ROOT = pathlib.Path(__file__).parents[3]
ABSENT = "(absent)"
MARK = {"cache_control": {"type": "ephemeral"}}
TOOLS = {"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}, "strict": True}]}
FORCED = {**TOOLS, "tool_choice": {"type": "tool", "name": "f"}}
SCHEMA = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
LINK = {"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}}
CALLED = (user("q"), assistant(call("c/1")), user(result("c/1", "r")))
THOUGHT = {"type": "thinking", "thinking": "t", "signature": ""}
THOUGHT_CALLED = (user("q"), assistant(THOUGHT, call("c/1")), user(result("c/1", "r")))
THOUGHT_SAID = (user("q"), assistant(THOUGHT, text("x")), user("so?"))
PREFILLED = (user("q"), assistant("It is"))
ENABLED = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
DISABLED = {"thinking": {"type": "disabled"}}
EFFORT = {"output_config": {"effort": "high"}}
BOTH_EFFORTS = (("high", "high"),)
PERSON = {"metadata": {"user_id": "u"}}
SYSTEM = {"system": [text("S") | MARK]}


def at(path):
    """What is in the body there."""
    names = [int(name) if name.lstrip("-").isdigit() else name for name in path.split(".")]

    def look(out):
        value = json.loads(out.body)
        for name in names:
            try:
                value = value[name]
            except (KeyError, IndexError):
                return ABSENT
        return value

    return look


def degraded(out):
    return out.degraded


def ignored(out):
    return out.ignored


# (flag, its other value), turns, fields, what is looked at, there for the generic server, there for the other
CASES = [
    ({"token_limit_field": "max_completion_tokens"}, (user("q"),), {}, at("max_tokens"), 64, ABSENT),
    ({"token_limit_field": "max_completion_tokens"}, (user("q"),), {}, at("max_completion_tokens"), ABSENT, 64),
    ({"sampling": False}, (user("q"),), {"temperature": 0.5}, at("temperature"), 0.5, ABSENT),
    ({"sampling": False}, (user("q"),), {"top_p": 0.5, "temperature": 0}, degraded, (), ("temperature", "top_p")),
    ({"sampling": False}, (user("q"),), {"top_p": 1, "temperature": 1}, degraded, (), ()),
    ({"sampling": False}, (user("q"),), {"temperature": 1}, ignored, (), ("temperature",)),
    ({"least_temperature": 0.01}, (user("q"),), {"temperature": 0}, at("temperature"), 0, 0.01),
    ({"least_temperature": 0.01}, (user("q"),), {"temperature": 0}, degraded, (), ("temperature",)),
    ({"least_temperature": 0.01}, (user("q"),), {"temperature": 0.01}, degraded, (), ()),
    ({"send_top_k": True}, (user("q"),), {"top_k": 5}, at("top_k"), ABSENT, 5),
    ({"send_top_k": True}, (user("q"),), {"top_k": 5}, degraded, ("top_k",), ()),
    ({"max_stop": 1}, (user("q"),), {"stop_sequences": ["a"]}, at("stop"), ["a"], ["a"]),
    (
        {"max_stop": 1},
        (user("q"),),
        {"stop_sequences": ["a", "b"]},
        at("stop"),
        ["a", "b"],
        "stop_sequences: at most 1 are supported by this model's server",
    ),
    ({"stream_usage": "none"}, (user("q"),), {}, at("stream_options"), {"include_usage": True}, ABSENT),
    (
        {"stream_usage": "continuous"},
        (user("q"),),
        {},
        at("stream_options.continuous_usage_stats"),
        ABSENT,
        True,
    ),
    ({"members": (("x", 1),)}, (user("q"),), {}, at("x"), ABSENT, 1),
    ({"user_field": "user"}, (user("q"),), PERSON, at("user"), ABSENT, "<u>"),
    ({"user_field": "user"}, (user("q"),), PERSON, ignored, ("metadata",), ()),
    ({"cache_key_field": "prompt_cache_key"}, (user("q"),), PERSON, at("prompt_cache_key"), ABSENT, "<u>"),
    ({"cache_key_field": "prompt_cache_key"}, (user("q"),), PERSON, ignored, ("metadata",), ()),
    ({"cache_key_field": "prompt_cache_key"}, (user("q"),), {}, at("prompt_cache_key"), ABSENT, ABSENT),
    ({"cache_control": True}, (user("q"),), SYSTEM, ignored, ("system.*.cache_control",), ()),
    (
        {"cache_control": True},
        (user("q"),),
        SYSTEM,
        at("messages.0.content"),
        "S",
        [{"type": "text", "text": "S", **MARK}],
    ),
    (
        {"cache_control": True},
        (user(text("q"), text("r") | MARK),),
        {},
        at("messages.0.content"),
        "q\nr",
        [{"type": "text", "text": "q"}, {"type": "text", "text": "r", **MARK}],
    ),
    (
        {"cache_control": True},
        (user(text("r") | MARK),),
        {},
        ignored,
        ("messages.*.content.*.cache_control",),
        (),
    ),
    (
        {"cache_control": True},
        (user(picture() | MARK, text("q")),),
        {},
        ignored,
        ("messages.*.content.*.cache_control",),
        ("messages.*.content.*.cache_control",),
    ),
    (
        {"cache_control": True},
        (user("q"), assistant(call("c1")), user(result("c1") | {"content": "out"} | MARK)),
        {},
        ignored,
        ("messages.*.content.*.cache_control",),
        (),
    ),
    (
        {"response_format": False},
        (user("q"),),
        SCHEMA,
        degraded,
        (),
        ("output_config.format",),
    ),
    ({"response_format": False}, (user("q"),), SCHEMA, at("response_format.type"), "json_schema", ABSENT),
    (
        {"images": "base64"},
        (user(LINK),),
        {},
        at("messages.0.content.0.image_url.url"),
        LINK["source"]["url"],
        "messages.0.content.0.source: image: this model's server takes base64 images, not URLs",
    ),
    (
        {"images": "none"},
        (user(picture()),),
        {},
        at("messages.0.content.0.type"),
        "image_url",
        "messages.0.content.0: image: this model's server takes text only",
    ),
    ({"system_turns": "in_place"}, (user("q"), system("n")), {}, at("messages.1.content"), ABSENT, "n"),
    ({"null_content": "empty"}, CALLED, {}, at("messages.1.content"), None, ""),
    ({"continues": True}, PREFILLED, {}, degraded, ("messages.1",), ()),
    ({"prefill": (("go", True),)}, PREFILLED, {}, at("go"), ABSENT, True),
    ({"prefill": (("go", True),)}, (user("q"),), {}, at("go"), ABSENT, ABSENT),
    ({"prefill_mark": "partial"}, PREFILLED, {}, at("messages.-1.partial"), ABSENT, True),
    ({"prefill_mark": "partial"}, CALLED, {}, at("messages.1.partial"), ABSENT, ABSENT),
    ({"reasoning_fields_out": ("reasoning",)}, THOUGHT_CALLED, {}, at("messages.1.reasoning"), ABSENT, "t"),
    ({"reasoning_fields_out": ()}, THOUGHT_CALLED, {}, at("messages.1.reasoning_content"), "t", ABSENT),
    ({"reasoning_tags_out": True}, THOUGHT_CALLED, {}, at("messages.1.reasoning_content"), "t", ABSENT),
    (
        {"reasoning_tags_out": True},
        THOUGHT_CALLED,
        {},
        at("messages.1.content"),
        None,
        "<think>t</think>\n\n",
    ),
    (
        {"reasoning_tags_out": True, "reasoning_when": "always"},
        THOUGHT_SAID,
        {},
        at("messages.1.content"),
        "x",
        "<think>t</think>\n\nx",
    ),
    ({"reasoning_when": "always"}, THOUGHT_SAID, {}, at("messages.1.reasoning_content"), ABSENT, "t"),
    ({"reasoning_when": "never"}, THOUGHT_CALLED, {}, at("messages.1.reasoning_content"), "t", ABSENT),
    ({"reasoning_missing": " "}, CALLED, {}, at("messages.1.reasoning_content"), ABSENT, " "),
    ({"reasoning_missing": " "}, THOUGHT_CALLED, {}, at("messages.1.reasoning_content"), "t", "t"),
    ({"reasoning_missing": " "}, THOUGHT_SAID, {}, at("messages.1.reasoning_content"), ABSENT, ABSENT),
    ({"tools_members": (("tool_stream", True),)}, (user("q"),), TOOLS, at("tool_stream"), ABSENT, True),
    ({"tools_members": (("tool_stream", True),)}, (user("q"),), {}, at("tool_stream"), ABSENT, ABSENT),
    (
        {"tool_choice": "required_only"},
        (user("q"),),
        FORCED,
        at("tool_choice"),
        {"type": "function", "function": {"name": "f"}},
        "required",
    ),
    ({"tool_choice": "ignored"}, (user("q"),), FORCED, degraded, ("tools.0.strict",), ("tools.0.strict", "tool_choice")),
    (
        {"thinks_when_forced": False, "thinking_off": (("think", False),)},
        (user("q"),),
        FORCED,
        at("think"),
        ABSENT,
        False,
    ),
    (
        {"thinks_when_forced": False, "thinking_off": (("think", False),)},
        (user("q"),),
        TOOLS | {"tool_choice": {"type": "auto"}},
        at("think"),
        ABSENT,
        ABSENT,
    ),
    (
        {"thinks_when_forced": False},
        (user("q"),),
        FORCED | ENABLED,
        degraded,
        ("tools.0.strict",),
        ("tools.0.strict", "thinking"),
    ),
    (
        {"thinks_when_forced": False},
        (user("q"),),
        FORCED | {"thinking": {"type": "adaptive"}} | EFFORT,
        ignored,
        ("output_config.effort", "thinking"),
        ("thinking", "output_config.effort"),
    ),
    (
        {"parallel_tool_calls": False},
        (user("q"),),
        TOOLS | {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        at("parallel_tool_calls"),
        False,
        ABSENT,
    ),
    ({"strict_tools": True}, (user("q"),), TOOLS, at("tools.0.function.strict"), ABSENT, True),
    ({"tool_id_form": "alnum9"}, CALLED, {}, at("messages.1.tool_calls.0.id"), "c/1", "ujbgUaBTh"),
    ({"tool_id_form": "functions"}, CALLED, {}, at("messages.1.tool_calls.0.id"), "c/1", "functions.f:0"),
    ({"tool_id_form": "functions"}, CALLED, {}, at("messages.2.tool_call_id"), "c/1", "functions.f:0"),
    ({"call_extra": {"x": 1}}, CALLED, {}, at("messages.1.tool_calls.0.extra_content"), ABSENT, {"x": 1}),
    ({"thinking_on": (("think", True),)}, (user("q"),), ENABLED, at("think"), ABSENT, True),
    ({"thinking_on": (("think", True),)}, (user("q"),), {"thinking": {"type": "adaptive"}}, at("think"), ABSENT, ABSENT),
    ({"thinking_on": (("think", True),)}, (user("q"),), {"thinking": {"type": "enabled"}}, ignored, ("thinking",), ()),
    ({"thinking_off": (("think", False),)}, (user("q"),), DISABLED, at("think"), ABSENT, False),
    ({"thinking_off": (("think", False),)}, (user("q"),), DISABLED, degraded, ("thinking",), ()),
    ({"effort_field": "effort", "effort_words": BOTH_EFFORTS}, (user("q"),), EFFORT, at("effort"), ABSENT, "high"),
    ({"effort_field": "a.b", "effort_words": BOTH_EFFORTS}, (user("q"),), EFFORT, at("a"), ABSENT, {"b": "high"}),
    ({"effort_field": "effort", "effort_words": (("low", "l"),)}, (user("q"),), EFFORT, at("effort"), ABSENT, ABSENT),
    ({"thinking_budget_field": "budget"}, (user("q"),), ENABLED, at("budget"), ABSENT, 2048),
    ({"thinking_budget_field": "a.b"}, (user("q"),), ENABLED, at("a"), ABSENT, {"b": 2048}),
    (
        {"thinking_budget_field": "a.b", "effort_field": "a.e", "effort_words": BOTH_EFFORTS},
        (user("q"),),
        ENABLED | EFFORT,
        at("a"),
        ABSENT,
        {"e": "high"},
    ),
    (
        {"thinking_budget_field": "b", "effort_field": "e", "effort_words": BOTH_EFFORTS},
        (user("q"),),
        ENABLED | EFFORT,
        at("b"),
        ABSENT,
        2048,
    ),
    ({"tool_name_limit": 64}, (user("q"),), {"tools": [{"name": "n" * 65, "input_schema": {}}]}, lambda out: bool(out.tool_names), False, True),
]  # fmt: skip

ELSEWHERE = {
    "name": "tests/core/dialects/test_quirks.py",
    "speaks": "tests/core/dialects/test_quirks.py",
    "unsigned_thinking": "tests/server/test_plan.py",
    "billing_header": "tests/server/test_plan.py",
    "probe": "tests/server/test_probes.py",
    "path": "tests/core/dialects/test_address.py",
    "auth": "tests/core/dialects/test_address.py",
    "native_messages": "tests/core/dialects/test_quirks.py",
    "think_tags": "tests/core/dialects/test_think_tags.py",
    "tokenizer": "tests/server/test_counting.py",
    "slots_report": "tests/core/test_recognise.py",
    "cancels_everywhere": "tests/core/dialects/test_quirks.py",
    "drain_report": "tests/server/test_upstreams.py",
}
"""Read by other code than the writing of requests: the file that tests it."""


def looked_at(row, turns, fields, look):
    whole = {"model": "m", "max_tokens": 64, "messages": list(turns), **fields}
    try:
        return look(encode(parse(json.dumps(whole).encode()), row, pseudonym=lambda text: f"<{text}>"))
    except RequestError as refused:
        return refused.fault.message


@pytest.mark.parametrize(
    "flag, turns, fields, look, plain, other",
    CASES,
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_both_sides(flag, turns, fields, look, plain, other):
    assert looked_at(GENERIC, turns, fields, look) == plain
    assert looked_at(replace(GENERIC, **flag), turns, fields, look) == other


def test_every_flag_has_both_sides():
    differing = [name for case in CASES if case[4] != case[5] for name in case[0]]
    assert set(differing) | set(ELSEWHERE) == set(Quirks.__struct_fields__)
    assert not set(differing) & set(ELSEWHERE)
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())


# --- Ids as Kimi's models write them --------------------------------------------------------------


def ids(*turns):
    row = replace(GENERIC, tool_id_form="functions")
    whole = {"model": "m", "max_tokens": 64, "messages": list(turns)}
    messages = json.loads(encode(parse(json.dumps(whole).encode()), row).body)["messages"]
    return [each["id"] for message in messages for each in message.get("tool_calls", ())]


def test_ids_of_its_own_stay_and_others_count_on_past_them():
    first = (
        user("q"),
        assistant(call("functions.f:1"), call("x")),
        user(result("functions.f:1"), result("x")),
    )
    assert ids(*first) == ["functions.f:1", "functions.f:2"]
    second = (*first, assistant(call("y", "g")), user(result("y")))
    assert ids(*second) == ["functions.f:1", "functions.f:2", "functions.g:2"]


def test_the_first_call_alone_gets_the_state_that_is_demanded():
    row = replace(GENERIC, call_extra={"x": 1})
    turns = (user("q"), assistant(call("a"), call("b")), user(result("a"), result("b")))
    whole = {"model": "m", "max_tokens": 64, "messages": list(turns)}
    calls = json.loads(encode(parse(json.dumps(whole).encode()), row).body)["messages"][1]["tool_calls"]
    assert [each.get("extra_content") for each in calls] == [{"x": 1}, None]


def test_a_call_with_a_state_of_its_own_keeps_it():
    row = replace(GENERIC, call_extra={"x": 1})
    thought = {"type": "thinking", "thinking": "", "signature": "sealed"}
    turns = (user("q"), assistant(thought, call("a"), call("b")), user(result("a"), result("b")))
    whole = {"model": "m", "max_tokens": 64, "messages": list(turns)}
    out = encode(parse(json.dumps(whole).encode()), row, unseal=lambda text: {"extra_content": {"own": text}})
    calls = json.loads(out.body)["messages"][1]["tool_calls"]
    assert [each.get("extra_content") for each in calls] == [{"own": "sealed"}, None]
