"""docs/compatibility.md is held to the code: every row is run, and nothing that the code knows is missing.

A request row is planned for each profile that it names, as a running gateway plans it. What the row says must
then be the whole truth: the outcome, every path that was lost, and JSON that must be found in the body.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.config import Limits, Settings, UpstreamSettings
from antiphon.core.dialects import chat_content, chat_tools
from antiphon.core.dialects.chat_typed_tools import DEFINED_TOOLS
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.core.surfaces.messages import events
from antiphon.core.surfaces.messages import request as surface
from antiphon.core.surfaces.messages import request_blocks as blocks
from antiphon.server import app
from antiphon.server.app import Gateway
from antiphon.server.catalog import Model
from antiphon.server.plan import Plan
from antiphon.server.prefixes import PrefixIndex
from antiphon.server.routing import ANY, Route, RouteTable, Target
from antiphon.server.upstreams import Upstream
from compatibility_page import PAGE, PLACES, answer_rows, holds, planned, request_cases, without
from pipeline import DONE, finish, frame, play, said

OUTCOMES = {"kept", "mapped", "ignored", "degraded", "refused"}


def _generator():
    spec = importlib.util.spec_from_file_location("docs_compatibility", PAGE.with_suffix(".py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = _generator()
CASES = request_cases()


# --- Requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_row_is_true(case):
    assert case.outcome in OUTCOMES
    plan = planned(case.place, case.examples, case.profile)
    if case.outcome == "refused":
        assert isinstance(plan, Fault)
        assert (plan.kind, plan.status) == ("invalid_request_error", 400)
        assert [plan.message.replace("`", "")] == list(case.said)
        return
    assert isinstance(plan, Plan), plan
    chat, body = plan.chat, json.loads(plan.chat.body)
    assert [*chat.degraded, *chat.ignored] == case.paths
    assert bool(chat.degraded) == (case.outcome == "degraded")
    for fragment in case.fragments:
        assert holds(body, fragment), body
    assert not set(case.absent) & set(body)
    if case.outcome == "kept":
        assert all(holds(body, {name: value}) for each in case.examples for name, value in each.items())
    elif case.outcome == "mapped":
        assert case.fragments or case.absent
    elif case.outcome == "ignored":
        assert case.paths
        first, *others = case.examples
        bare = planned(case.place, [*without(case.field, first), *others], case.profile)
        assert isinstance(bare, Plan)
        assert chat.body == bare.chat.body


def _parsed(place: str) -> list[dict]:
    mine = [case for case in CASES if case.place == place and case.profile == "generic"]
    return [example for case in mine for example in case.examples]


def _members(value: Any) -> set[tuple[str, str]]:
    """(type, member) of every object in an example."""
    if isinstance(value, list):
        return {pair for each in value for pair in _members(each)}
    if not isinstance(value, dict):
        return set()
    kind = value.get("type", "")
    own = {(kind, name) for name in value} if isinstance(kind, str) else set()
    return own | {pair for each in value.values() for pair in _members(each)}


def test_every_field_of_a_request_has_a_row():
    for place, shape, top in (
        ("in the request", surface._Body, {"model", "max_tokens", "messages"}),
        ("in a tool", surface.Tool, set()),
    ):
        told = {name for example in _parsed(place) for name in example} | top
        if place == "in the request":
            told |= {"tools", "tool_choice"}
        assert set(shape.__struct_encode_fields__) - told == set()


def test_every_block_and_every_member_of_it_has_a_row():
    told = {pair for place in PLACES for pair in _members(_parsed(place))}
    for shape in (
        blocks.Text,
        blocks.Thinking,
        blocks.RedactedThinking,
        blocks.ToolUse,
        blocks.ToolReference,
        blocks._Image,
        blocks._Document,
        blocks._SearchResult,
        blocks._ToolResult,
    ):
        kind = shape.__struct_config__.tag
        assert {(kind, name) for name in shape.__struct_encode_fields__} - told == set()
    for kind in ("base64", "url", "file", "text", "content"):
        assert any(kind == each for each, _ in told), kind


@pytest.mark.parametrize(
    "place", ["in a user turn", "in an assistant turn", "in a tool result", "in a `system` turn"]
)
def test_every_kind_of_block_has_a_row_in_every_place(place):
    told = {example["type"] for example in _parsed(place)}
    kinds = {
        *("text", "image", "document", "search_result", "thinking", "redacted_thinking"),
        *("tool_use", "tool_result", "tool_reference", "container_upload", "web_search_tool_result"),
        *chat_content._SERVER_CALLS,
        chat_content._FALLBACK,
        chat_content._COMPACTION,
    }
    assert kinds - told == set()


def test_every_kind_of_tool_has_a_row():
    told = {example.get("type", "") for example in _parsed("in a tool")}
    assert set(DEFINED_TOOLS) - told == set()
    for prefix in (*chat_tools._SERVER_TOOLS, *chat_tools._TOOLSETS):
        assert any(kind.startswith(prefix) for kind in told), prefix


# --- Answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", answer_rows("the upstream's delta", "the client's content"), ids="-".join)
def test_a_content_row_is_true(row):
    delta, content = map(json.loads, row)
    end = "tool_calls" if {"tool_calls", "function_call"} & set(delta) else "stop"
    result = play([frame({"choices": [{"index": 0, "delta": delta}]}), finish(end), DONE])
    assert result.message["content"] == content


@pytest.mark.parametrize("row", answer_rows("the upstream's choice", "the client gets"), ids="-".join)
def test_a_stop_reason_row_is_true(row):
    choice, end = map(json.loads, row)
    last = frame({"choices": [{"index": 0, "delta": {}, **choice}]})
    message = play([said("Hi"), last, DONE], stop_sequences=("END",)).message
    assert {name: value for name, value in message.items() if name.startswith("stop")} == end


@pytest.mark.parametrize("row", answer_rows("the upstream's usage", "the client's usage"), ids="-".join)
def test_a_usage_row_is_true(row):
    reported, told = map(json.loads, row)
    chunk = frame({"choices": [], "usage": reported})
    assert play([said("Hi"), finish("stop"), chunk, DONE]).message["usage"] == told


# --- Endpoints and headers ------------------------------------------------------------------------


class Backend:
    """One model of one upstream that is never asked: nothing here needs an answer of it."""

    table = RouteTable((Route(ANY, (Target("upstream", by_name("generic")),)),))

    def __init__(self) -> None:
        settings = UpstreamSettings(name="upstream", base_url="http://127.0.0.1:1/v1")
        self.upstreams = {"upstream": Upstream(settings, Limits())}
        self.prefixes = PrefixIndex()
        self.leaving = ()

    async def models(self):
        return [Model("m")]


async def ask(method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer. The body asks for no token, and for what `generic` cannot carry."""
    body = {"model": "m", "max_tokens": 0, "top_k": 1, "messages": [{"role": "user", "content": "hi"}]}
    sent: list[dict] = []
    fields = {"host": "127.0.0.1", "content-type": "application/json"} | headers
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
    }

    said = False

    async def receive() -> dict:
        nonlocal said
        if said:
            await asyncio.Event().wait()  # the client stays
        said = True
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: dict) -> None:
        sent.append(message)

    await Gateway(Settings(), Backend())(scope, receive, send)
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize("row", answer_rows("endpoint", "status", "what it is"), ids=lambda row: row[0])
async def test_an_endpoint_row_is_true(row):
    method, path = row[0].split()
    status, headers = await ask(method, path)
    assert status == int(row[1])
    assert headers["request-id"].startswith("req_")


@pytest.mark.parametrize("row", answer_rows("a request with", "status", "why"), ids=lambda row: row[0])
async def test_a_request_header_row_is_true(row):
    name, _, value = row[0].partition(": ")
    status, _ = await ask("POST", "/v1/messages", **{name: value})
    assert status == int(row[1])


async def test_every_route_has_a_row():
    told = {row[0].split()[1] for row in answer_rows("endpoint", "status", "what it is")}
    told |= {f"/llm{path}" for path in told}
    assert (app.MESSAGES_PATHS | app.COUNT_TOKENS | set(app.RELAYED)) - told == set()
    routes = Gateway(Settings(), Backend()).ordinary.app.routes
    assert [route.path for route in routes if not any(map(route.path_regex.match, told))] == []


def test_every_header_of_an_answer_has_a_row():
    told = {name for row in answer_rows("header", "when") for name in re.findall(r"[a-z-]+", row[0])}
    texts = [path.read_text() for path in Path(app.__file__).parent.rglob("*.py")]
    senders = [text for text in texts if re.search(r"http\.response\.start|\brespond", text)]
    sent = {name for text in senders for name in re.findall(r'\(b"([a-z-]+)", ', text)}
    assert {"request-id", "antiphon-degraded"} <= sent
    assert sent - told == set()


def test_every_header_of_our_own_or_of_a_client_is_told():
    texts = [path.read_text() for path in Path(app.__file__).parent.rglob("*.py")]
    known = {name for text in texts for name in re.findall(r'b"((?:antiphon|x)-[a-z-]+)"', text)}
    page = PAGE.read_text()
    assert {"antiphon-strict", "x-should-retry"} <= known
    assert {name for name in known if f"`{name}" not in page} == set()


# --- The page itself ------------------------------------------------------------------------------


def test_generated_sections_say_what_the_code_says():
    text = PAGE.read_text()
    assert generate.renewed(text) == text, "run docs/compatibility.py"


def test_every_generated_section_stands_in_the_page():
    assert set(re.findall(r"<!-- compatibility: (\S+) -->", PAGE.read_text())) == set(generate.SECTIONS)


def test_a_stale_section_fails_the_check(tmp_path, monkeypatch, capsys):
    page = tmp_path / "compatibility.md"
    page.write_text("<!-- compatibility: error-types -->\nold\n<!-- end compatibility: error-types -->\n")
    monkeypatch.setattr(generate, "PAGE", page)
    assert generate.main(["--check"]) == 1
    assert "-old" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_every_event_kind_is_shown():
    """`events` writes one of each; a new kind in the encoder must not be forgotten there."""
    shown = generate.events()
    for event in events._ENCODE:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()
        if name.startswith("block"):
            name = f"content_{name}"
        assert f'"{name}"' in shown, name
