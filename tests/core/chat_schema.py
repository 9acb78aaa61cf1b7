"""Is this a legal body for `POST /v1/chat/completions`? Members, types and the order of messages.

Written from OpenAI's API reference. Beside its members a body has only what a server's row in
`core.dialects.quirks` says. Where the `openai` package is installed, `accepted_by_openai` asks its types too.

    check_body(json.loads(body), GENERIC)   # raises AssertionError
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from typing import Any

from antiphon.core.dialects.quirks import Quirks

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
TOOL_ID = {
    "any": re.compile(r".+", re.DOTALL),
    "alnum9": re.compile(r"[a-zA-Z0-9]{9}"),
    "functions": re.compile(r"functions\.[a-zA-Z0-9_-]+:\d+"),
}
ROLES = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "tool_call_id", "content"},
}
Check = Callable[[Any], bool]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_strings(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(each, str) and each for each in value)


BODY: dict[str, Check] = {
    "model": lambda value: value == "a-model",
    "messages": lambda value: isinstance(value, list) and value != [],
    "max_tokens": is_count,
    "max_completion_tokens": is_count,
    "temperature": is_number,
    "top_p": is_number,
    "stop": is_strings,
    "stream": lambda value: value is True,
    "stream_options": lambda value: (
        value.pop("include_usage") is True and set(value) <= {"continuous_usage_stats"}
    ),
    "tools": lambda value: isinstance(value, list) and value != [],
    "tool_choice": lambda value: True,
    "parallel_tool_calls": lambda value: value is False,
    "response_format": lambda value: (
        value["type"] == "json_schema" and isinstance(value["json_schema"]["schema"], dict)
    ),
    "reasoning_effort": lambda value: isinstance(value, str),
}
"""Source: OpenAI's API reference for `POST /v1/chat/completions`."""


def check_body(body: dict, quirks: Quirks) -> None:
    """It has the members and types of the API, and beside them only what this server's row says."""
    switches = (*quirks.prefill, *quirks.thinking_on, *quirks.thinking_off)
    own = {name for name, _ in (*quirks.members, *quirks.tools_members, *switches)}
    fields = (quirks.thinking_budget_field, quirks.effort_field, quirks.user_field, quirks.cache_key_field)
    own |= {field.partition(".")[0] for field in fields if field}
    own |= {"top_k"} if quirks.send_top_k else set()
    assert set(body) <= set(BODY) | own, set(body) - set(BODY) - own
    assert {"model", "messages", "stream", quirks.token_limit_field} <= set(body)
    for name in set(body) & set(BODY):
        assert BODY[name](body[name]), (name, body[name])
    assert quirks.sampling or not {"temperature", "top_p"} & set(body)
    assert body.get("temperature", 1) >= quirks.least_temperature
    assert quirks.response_format or "response_format" not in body
    if quirks.max_stop is not None:
        assert len(body.get("stop", ())) <= quirks.max_stop
    check_tools(body, quirks)
    check_messages(body["messages"], quirks)


def check_tools(body: dict, quirks: Quirks) -> None:
    functions = {}
    for tool in body.get("tools", ()):
        assert set(tool) == {"type", "function"}
        assert tool["type"] == "function"
        function = tool["function"]
        assert {"name", "parameters"} <= set(function) <= {"name", "parameters", "description", "strict"}
        assert FUNCTION_NAME.fullmatch(function["name"])
        assert len(function["name"]) <= (quirks.tool_name_limit or 128)
        assert function["parameters"]["type"] == "object"
        assert isinstance(function["parameters"]["properties"], dict)
        assert isinstance(function.get("description", ""), str)
        assert function["name"] not in functions
        functions[function["name"]] = function
    choice = body.get("tool_choice", "auto")
    with_tools = {name for name, _ in quirks.tools_members}
    if not functions:
        assert not {"tools", "tool_choice", "parallel_tool_calls", *with_tools} & set(body)
        return
    assert with_tools <= set(body)
    if choice not in ("auto", "none") and not quirks.thinks_when_forced:
        assert dict(quirks.thinking_off).items() <= body.items()
    if quirks.tool_choice != "named":
        assert isinstance(choice, str)
    if quirks.tool_choice == "ignored":
        assert "tool_choice" not in body
    if isinstance(choice, dict):
        assert choice == {"type": "function", "function": {"name": choice["function"]["name"]}}
        assert choice["function"]["name"] in functions
    else:
        assert choice in {"auto", "none", "required"}


def check_messages(messages: list[dict], quirks: Quirks) -> None:
    reasoning = {*quirks.reasoning_fields_out, "reasoning_details", "extra_content"}
    waiting: list[str] = []
    used: set[str] = set()
    before = None
    for message in messages:
        role = message["role"]
        assert role != before or role in {"tool", "system"}, f"two messages of the {role} in a row"
        before = role
        allowed = ROLES[role] | (reasoning if role == "assistant" else set())
        if quirks.prefill_mark is not None and message is messages[-1] and role == "assistant":
            assert message[quirks.prefill_mark] is True
            allowed |= {quirks.prefill_mark}
        assert set(message) <= allowed, set(message) - allowed
        if role == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            assert isinstance(message["content"], str) or quirks.cache_control
            if message["content"] != "":
                check_content(message["content"], quirks)
            continue
        assert not waiting, "a call without its result"
        if role == "assistant":
            for call in message.get("tool_calls", ()):
                assert set(call) - {"extra_content"} == {"id", "type", "function"}
                assert call["type"] == "function"
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                assert FUNCTION_NAME.fullmatch(call["function"]["name"])
                assert call["id"] not in used
                assert TOOL_ID[quirks.tool_id_form].fullmatch(call["id"])
                used.add(call["id"])
                waiting.append(call["id"])
            if quirks.reasoning_missing is not None and waiting:
                assert all(isinstance(message[name], str) for name in quirks.reasoning_fields_out)
            assert "tool_calls" not in message or message["tool_calls"]
            assert isinstance(message["content"], str) or (message["content"] is None and waiting)
        elif role == "system":
            assert isinstance(message["content"], str) or (quirks.cache_control and message is messages[0])
            check_content(message["content"], quirks)
        else:
            check_content(message["content"], quirks)


def check_content(content: Any, quirks: Quirks) -> None:
    assert content
    if isinstance(content, str):
        return
    for part in content:
        if part["type"] == "text":
            assert set(part) - ({"cache_control"} if quirks.cache_control else set()) == {"type", "text"}
            assert isinstance(part["text"], str)
        else:
            assert part == {"type": "image_url", "image_url": {"url": part["image_url"]["url"]}}
            assert part["image_url"]["url"].startswith(("data:image/", "https://", "http://"))


def openai_types() -> Callable[[dict], None]:
    """The judgement of OpenAI's own types, or none where the package is not installed."""
    if importlib.util.find_spec("openai") is None:
        return lambda body: None
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from pydantic import TypeAdapter

    adapter = TypeAdapter(CompletionCreateParamsStreaming)

    def exhaust(value: Any) -> None:
        """Lists are read lazily there: what nobody takes out is not judged."""
        for each in value.values() if isinstance(value, dict) else value:
            if not isinstance(each, str | bytes) and hasattr(each, "__iter__"):
                exhaust(each)

    return lambda body: exhaust(adapter.validate_python(body))


accepted_by_openai = openai_types()
