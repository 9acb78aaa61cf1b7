"""Any valid Messages request becomes a legal Chat Completions body, and everything in it is accounted for.

Every word that a model could read is in the body, once and on the right side of the conversation, or its path
is named as degraded or ignored, or the whole request was refused with the path of what cannot be carried.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec import structs

from antiphon.core.dialects.chat_request import ChatRequest, encode
from antiphon.core.dialects.quirks import GENERIC, Quirks, by_name, names
from antiphon.core.surfaces.messages.request import RequestError, parse
from core.chat_schema import accepted_by_openai, check_body
from core.valid_requests import WORD, marked, requests

ROWS = [*map(by_name, names()), structs.replace(GENERIC, images="none", system_turns="in_place")]


def strings(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from strings(each, (*path, name))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from strings(each, (*path, i))
    elif isinstance(value, str):
        yield path, value


def beneath(path: str, named: tuple[str, ...]) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in named)


def spelled_anew(path: str) -> str:
    """`output_format` is the older name of `output_config.format`, and is told by the newer."""
    return re.sub(r"^output_format(?=\.|$)", "output_config.format", path)


SIDES = {"user": {"user", "tool"}, "assistant": {"assistant"}, "system": {"user", "system"}}
# Losses that cannot change the answer: reasoning that the server does not want back, and what is sealed.
QUIET = re.compile(r"messages\.\d+\.content\.\d+\.(thinking|data)")


def check_account(words: dict[str, str], whole: dict, body: dict, out: ChatRequest) -> None:
    found: dict[str, list[tuple]] = {word: [] for word in words}
    for where, text in strings(body):
        for word in WORD.findall(text):
            found[word].append(where)
    for word, path in words.items():
        places = found[word]
        parts = path.split(".")
        if not places:
            silent = QUIET.fullmatch(path) and beneath(re.sub(r"\.\d+", ".*", path), out.ignored)
            assert silent or beneath(spelled_anew(path), out.degraded) or is_held_back(parts, whole), (
                path,
                out.degraded,
            )
            continue
        in_reasoning = path.endswith(".thinking")
        assert len(places) == 1 or in_reasoning, (path, places)
        if parts[0] == "messages":
            (role,) = {body["messages"][place[1]]["role"] for place in places if place[0] == "messages"}
            assert role in SIDES[whole["messages"][int(parts[1])]["role"]], (path, places)
        if ".source.data" in path or ".source.url" in path:
            source = owner(whole, parts)
            if source["type"] == "image":
                assert places[0][-2:] == ("image_url", "url")


def check_settings(whole: dict, body: dict, out: ChatRequest) -> None:
    """What is no text: each setting, each tool and each wish for citations is in the body or named."""
    for name in ("temperature", "top_p", "top_k"):
        assert body.get(name) == whole.get(name) or name in out.degraded
    if whole.get("thinking") == {"type": "disabled"} and "thinking" not in out.degraded:
        assert "thinking" in json.dumps(body) or "reasoning" in json.dumps(body)
    offered = [tool["function"]["name"] for tool in body.get("tools", ())]
    offered = [out.tool_names.get(name, name) for name in offered]
    for i, tool in enumerate(whole.get("tools", ())):
        path = f"tools.{i}"
        assert tool["name"] in offered or path in out.degraded or is_held_back(path.split("."), whole)
    for i, turn in enumerate(whole["messages"]):
        for path, cited in citations(turn, f"messages.{i}"):
            assert not cited or path in out.degraded


def check_last_turn(body: dict, out: ChatRequest, quirks: Quirks) -> None:
    """An assistant's turn at the end is continued by the server, or the client is told that it may not be."""
    last = body["messages"][-1]
    continued = quirks.continues or bool(quirks.prefill) or quirks.prefill_mark in last
    told = any(re.fullmatch(r"messages\.\d+", path) for path in out.degraded)
    assert told == (last["role"] == "assistant" and not continued)


def citations(value: Any, path: str) -> Iterator[tuple[str, bool]]:
    if isinstance(value, dict):
        if isinstance(value.get("citations"), dict):
            yield f"{path}.citations", value["citations"]["enabled"]
        for name, each in value.items():
            yield from citations(each, f"{path}.{name}")
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from citations(each, f"{path}.{i}")


def owner(whole: dict, parts: list[str]) -> dict:
    """The block whose source a word is in."""
    value: Any = whole
    for part in parts[: len(parts) - 2]:
        value = value[int(part) if isinstance(value, list) else part]
    return value


def is_held_back(parts: list[str], whole: dict) -> bool:
    """A tool that is not offered because the client says so: deferred, or another one is demanded."""
    if parts[0] in {"output_config", "output_format"}:
        # Both at once: the newer one counts.
        return parts[0] == "output_format" and "format" in whole.get("output_config", {})
    if parts[0] != "tools":
        return False
    tool = whole["tools"][int(parts[1])]
    forced = whole.get("tool_choice", {})
    return (
        bool(tool.get("defer_loading"))
        or forced.get("type") == "none"
        or forced.get("name", tool["name"]) != tool["name"]
    )


def check_calls(whole: dict, body: dict, out: ChatRequest) -> None:
    """Each call and its result arrive once, in order, with the right name, arguments and one another."""
    blocks = [
        each for turn in whole["messages"] if isinstance(turn["content"], list) for each in turn["content"]
    ]
    wanted = [each for each in blocks if each["type"] == "tool_use"]
    sent = [call for message in body["messages"] for call in message.get("tool_calls", ())]
    names_back = [out.tool_names.get(call["function"]["name"], call["function"]["name"]) for call in sent]
    assert names_back == [each["name"] for each in wanted]
    assert [json.loads(call["function"]["arguments"]) for call in sent] == [each["input"] for each in wanted]
    upstream_id = {each["id"]: call["id"] for each, call in zip(wanted, sent, strict=True)}
    tool_messages = {
        each["tool_call_id"]: each["content"] for each in body["messages"] if each["role"] == "tool"
    }
    for each in blocks:
        if each["type"] == "tool_result":
            text = tool_messages.pop(upstream_id[each["tool_use_id"]])
            if isinstance(text, list):  # where texts are parts, so that they can carry marks
                text = text[0]["text"]
            assert text.startswith("Error: ") == bool(each.get("is_error"))
            said = {
                word
                for where, said in strings(each.get("content", ""))
                if "url" not in where and "data" not in where
                for word in WORD.findall(said)
            }
            assert all(word in text for word in said)
    assert not tool_messages
    assert out.history_tool_ids == frozenset(upstream_id)


def resolves(path: str, whole: Any) -> bool:
    """The path is one of the request: of something in it, or of a member that it lacks."""
    value = whole
    if "output_format" in whole:
        path = re.sub(r"^output_config\.format", "output_format", path)
    parts = path.split(".")
    for i, part in enumerate(parts):
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return i == len(parts) - 1 and isinstance(value, dict)
    return True


def deserves(path: str, whole: dict, quirks: Quirks) -> bool:
    """There is a reason to refuse the request at this path."""
    if path == "max_tokens":
        return whole["max_tokens"] == 0
    if path == "stop_sequences":
        return quirks.max_stop is not None and len(whole["stop_sequences"]) > quirks.max_stop
    if path.startswith("tool_choice"):
        return whole["tool_choice"]["type"] in {"any", "tool"}
    value: Any = whole
    refusable = False
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value.get(part)
        if isinstance(value, dict):
            refusable |= value.get("type") == "container_upload"
            refusable |= value.get("type") == "image" and (
                quirks.images != "any" or value["source"]["type"] == "file"
            )
            refusable |= value.get("type") == "document" and (
                value["source"]["type"] in {"url", "file"}
                or value["source"].get("media_type") == "application/pdf"
            )
    return refusable


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(requests(), st.sampled_from(ROWS))
def test_every_valid_request_is_carried_and_accounted_for(drawn: dict, quirks: Quirks) -> None:
    words: dict[str, str] = {}
    whole = marked(drawn, words)
    try:
        out = encode(parse(json.dumps(whole).encode()), quirks)
    except RequestError as refused:
        event("refused")
        assert refused.fault.status == 400
        path = refused.fault.message.partition(":")[0]
        assert resolves(path, whole), refused.fault.message
        assert deserves(path, whole, quirks), refused.fault.message
        return
    event("carried")
    body = json.loads(out.body)
    accepted_by_openai(json.loads(out.body))
    check_account(words, whole, body, out)
    check_calls(whole, body, out)
    check_settings(whole, body, out)
    check_last_turn(body, out, quirks)
    check_body(body, quirks)
    assert all(resolves(path, whole) for path in out.degraded), out.degraded
