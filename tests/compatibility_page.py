"""The tables of docs/compatibility.md, and requests built around their examples.

Owns how a row is read and where an example stands in a request. It judges nothing.

    for case in request_cases():                              one row for one profile
        planned(case.place, case.examples, case.profile)      as `antiphon serve --profile` plans it
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.core.dialects import quirks
from antiphon.core.dialects.documents import OpenedDocument
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.request_blocks import Text
from antiphon.server.plan import Plan, Planner
from antiphon.server.routing import ANY, Route, RouteTable, Target

PAGE = Path(__file__).parent.parent / "docs" / "compatibility.md"
PROFILES = tuple(name for name in quirks.names() if quirks.by_name(name).speaks == "chat")

_CODE = re.compile(r"`([^`]*)`")


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


def answer_rows(*head: str) -> list[list[str]]:
    (rows,) = [rows for names, rows in tables() if names == list(head)]
    return [[cell.strip("`") for cell in row] for row in rows]


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
        "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": example}]
    },
}


def planned(place: str, example: list[Any], profile: str) -> Plan | Fault:
    """The plan of a request with these examples in a place, as `serve --profile` makes it."""
    base = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
    body = json.dumps(base | PLACES[place](example)).encode()
    planner = Planner(RouteTable((Route(ANY, (Target("upstream", by_name(profile)),)),)), Sealer(b"k" * 32))
    return planner.plan(body, read_pdf=_read_pdf)


def _read_pdf(path: str, data: Any, images: bool) -> OpenedDocument:
    """The library is not what is tested here: every PDF says the same."""
    return OpenedDocument((Text("what the pages say"),), is_whole=True)


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
