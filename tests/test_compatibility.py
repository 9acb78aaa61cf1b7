"""docs/compatibility.md is held to the code: every row of its tables is run, and nothing that the code knows is missing.

A request row is planned for each profile that it names, as a running gateway plans it. What the row says must
then be the whole truth: the outcome, every path that was lost, and JSON that must be found in the body.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.config import Settings
from antiphon.core.dialects import chat_content, chat_tools, quirks
from antiphon.core.dialects.chat_typed_tools import DEFINED_TOOLS
from antiphon.core.dialects.documents import OpenedDocument
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages import events
from antiphon.core.surfaces.messages import request as surface
from antiphon.core.surfaces.messages import request_blocks as blocks
from antiphon.server import app, exchange
from antiphon.server.app import Gateway
from antiphon.server.catalog import Model
from antiphon.server.counting import TokenCounter
from antiphon.server.plan import Plan, Planner
from antiphon.server.routing import Route, RouteTable
from pipeline import DONE, finish, frame, play, said

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
PROFILES = quirks.names()
OUTCOMES = {"kept", "mapped", "ignored", "degraded", "refused"}

_CODE = re.compile(r"`([^`]*)`")


def _generator():
    spec = importlib.util.spec_from_file_location("docs_compatibility", PAGE.with_suffix(".py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = _generator()


# --- The page's tables ----------------------------------------------------------------------------


def tables() -> list[tuple[list[str], list[list[str]]]]:
    """Head and rows of each table of the page; an empty cell of the first two is the one above."""
    found: list[tuple[list[str], list[list[str]]]] = []
    previous = ""
    for line in PAGE.read_text().split("\n"):
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not previous.startswith("|"):
                found.append((cells, []))
            elif not set(line) <= set("|- "):
                found[-1][1].append(cells)
        previous = line
    return found


@dataclass(frozen=True)
class Case:
    """One row for one profile. `said` is what stands in its last cell as code."""

    place: str
    field: str
    example: str
    profile: str
    outcome: str
    said: tuple[str, ...]

    @property
    def examples(self) -> list[dict]:
        """Almost always one."""
        found = json.loads(self.example)
        return found if isinstance(found, list) else [found]

    @property
    def fragments(self) -> list[Any]:
        return [json.loads(each) for each in self.said if each[0] in "{["]

    @property
    def absent(self) -> list[str]:
        return [each.removeprefix("no ") for each in self.said if each.startswith("no ")]

    @property
    def paths(self) -> list[str]:
        return [each for each in self.said if each[0] not in "{[" and not each.startswith("no ")]

    def __str__(self) -> str:
        return f"{self.field}-{self.profile}-{self.outcome}"


def request_cases() -> list[Case]:
    """Every row of the request tables, once for each profile that it speaks of. Checks their form."""
    cases: list[Case] = []
    for head, rows in tables():
        if head[1:] != ["example", "profiles", "outcome", "what becomes of it"]:
            continue
        field = example = ""
        missing: list[str] = []
        for cells in rows:
            if cells[0]:
                assert not missing, f"{field}: nothing is said of {missing}"
                field, example = cells[0].strip("`"), cells[1].strip("`")
                missing = list(PROFILES)
            named = {"all": PROFILES, "others": tuple(missing)}.get(cells[2]) or cells[2].split(", ")
            said = tuple(_CODE.findall(cells[4]))
            for profile in named:
                missing.remove(profile)
                cases.append(Case(head[0], field, example, profile, cells[3], said))
        assert not missing, f"{field}: nothing is said of {missing}"
    return cases


CASES = request_cases()


# --- A request around an example ------------------------------------------------------------------

TEXT = {"type": "text", "text": "hi"}
PARAMETERS = {"type": "object", "properties": {}}


def _calls(content: list[Any]) -> list[str]:
    return [block["id"] for block in content if block.get("type") == "tool_use"]


def _user(example: list[dict]) -> dict:
    """A user's turn; before it the calls that its results answer."""
    answered = [block["tool_use_id"] for block in example if block.get("type") == "tool_result"]
    calls = [{"type": "tool_use", "id": known, "name": "read", "input": {}} for known in answered]
    before = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": calls}] if calls else []
    return {"messages": [*before, {"role": "user", "content": [*example, TEXT]}]}


def _assistant(example: list[dict]) -> dict:
    results = [{"type": "tool_result", "tool_use_id": known, "content": "out"} for known in _calls(example)]
    said = [{"type": "text", "text": "yes"}, *example]
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": said}]
    return {"messages": [*turns, {"role": "user", "content": [*results, TEXT]}]}


def _tool_result(example: list[dict]) -> dict:
    return _user([{"type": "tool_result", "tool_use_id": "call_1", "content": example}])


def _tool(example: list[dict]) -> dict:
    defaults = {"name": "read", "input_schema": PARAMETERS}
    return {"tools": [each if "type" in each else defaults | each for each in example]}


def _beside_tools(example: list[dict]) -> dict:
    request = {"tools": [{"name": name, "input_schema": PARAMETERS} for name in ("read", "write")]}
    for each in example:
        request |= each
    return request


PLACES = {
    "in the request": lambda example: {key: value for each in example for key, value in each.items()},
    "beside the tools `read` and `write`": _beside_tools,
    "in a tool": _tool,
    "in `system`": lambda example: {"system": [{"type": "text", "text": "Be brief."}, *example]},
    "in a user turn": _user,
    "in an assistant turn": _assistant,
    "in a tool result": _tool_result,
    "in a `system` turn": lambda example: {
        "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": example or [TEXT]}]
    },
}


def planned(place: str, example: list[Any], profile: str) -> Plan | Fault:
    """The plan of a request with these examples in a place, as `serve --profile` makes it."""
    base = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
    body = json.dumps(base | PLACES[place](example)).encode()
    planner = Planner(RouteTable((Route("upstream", profile),)), Sealer(b"k" * 32))
    return planner.plan(body, read_pdf=_read_pdf)


def _read_pdf(path: str, data: Any, images: bool) -> OpenedDocument:
    """The library is not what is tested here: every PDF says the same."""
    return OpenedDocument((blocks.Text("what the pages say"),), is_whole=True)


def without(field: str, example: dict) -> list[dict]:
    """The example with the named field taken out: nothing is left where the field is the block itself."""
    rest = copy.deepcopy(example)
    names = field.split(".")
    if rest.get("type") == names[0]:
        names = names[1:]
    if not names:
        return []
    inner: Any = rest
    for name in names[:-1]:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    del inner[names[-1]]
    return [rest]


def holds(whole: Any, part: Any) -> bool:
    """`part` is somewhere in `whole`: an object by some of its members, anything else as it is."""
    if _matches(whole, part):
        return True
    inner = whole.values() if isinstance(whole, dict) else whole if isinstance(whole, list) else ()
    return any(holds(each, part) for each in inner)


def _matches(whole: Any, part: Any) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and _matches(whole[name], value) for name, value in part.items())
    return whole == part and type(whole) is type(part)


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


def answer_rows(*head: str) -> list[list[str]]:
    (rows,) = [rows for names, rows in tables() if names == list(head)]
    return [[cell.strip("`") for cell in row] for row in rows]


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
    """One model, no inference server: everything that is asked here needs none."""

    table = RouteTable((Route("upstream", "generic"),))
    upstreams = {"upstream": SimpleNamespace(counter=TokenCounter("none", "http://127.0.0.1:1/v1", None))}

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

    async def receive() -> dict:
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


def test_every_route_has_a_row():
    told = {row[0].split()[1] for row in answer_rows("endpoint", "status", "what it is")}
    routes = {
        route.path.replace("{id:path}", "m") for route in Gateway(Settings(), Backend())._ordinary.routes
    }
    served = {path.removeprefix("/llm") or "/" for path in routes | app.MESSAGES | app.COUNT_TOKENS}
    assert served - told == set()


def test_every_header_of_an_answer_has_a_row():
    told = {name for row in answer_rows("header", "when") for name in re.findall(r"[a-z-]+", row[0])}
    code = "".join(inspect.getsource(module) for module in (app, exchange))
    sent = set(re.findall(r'\(b"([a-z-]+)", ', code))
    assert {"request-id", "antiphon-degraded"} <= sent
    assert sent - told == set()


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
