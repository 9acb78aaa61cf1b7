"""Write the parts of docs/compatibility.md that are the code's own tables, so that they cannot drift.

Owns the sections between `<!-- compatibility: NAME -->` and `<!-- end compatibility: NAME -->` of that one
page: profiles from the quirks, errors from the faults, events from the encoder. The page's other tables are
written by hand and run row by row by tests/test_compatibility.py.

    docs/compatibility.py            rewrites the sections
    docs/compatibility.py --check    changes nothing; fails with a diff if one of them is stale
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from antiphon.core import faults, own_faults, parts
from antiphon.core.dialects import chat_stream, quirks
from antiphon.core.surfaces.messages.events import EventEncoder

PAGE = Path(__file__).with_suffix(".md")

_SECTION = re.compile(
    r"(<!-- compatibility: ([a-z-]+) -->\n)(.*?)(<!-- end compatibility: \2 -->)", re.DOTALL
)


# --- The sections ---------------------------------------------------------------------------------


def profiles() -> str:
    """Every fact of the quirks: what it is in `generic`, and which profiles have it otherwise."""
    rows = [structs.asdict(quirks.by_name(name)) for name in quirks.names()]
    lines = []
    for fact in rows[0]:
        if fact == "name":
            continue
        plain, *others = [_value(row[fact]) for row in rows]
        by_value: dict[str, list[str]] = {}
        for name, value in zip(quirks.names()[1:], others, strict=True):
            if value != plain:
                by_value.setdefault(value, []).append(f"`{name}`")
        otherwise = [f"{', '.join(named)}: {value}" for value, named in by_value.items()]
        lines.append([f"`{fact}`", plain, "<br>".join(otherwise)])
    return _table(["fact", "`generic`", "otherwise"], lines)


def facts() -> str:
    """What each fact means, in the words that stand beside it in the code."""
    (tree,) = ast.parse(inspect.getsource(quirks.Quirks)).body
    lines = []
    for line, following in pairwise(getattr(tree, "body", [])):
        match line, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                lines.append(f"- `{name}`: {' '.join(said.split())}")
    return "\n".join(lines)


def finish_words() -> str:
    """The words of `finish_reason` for each `stop_reason`, and those that are failures."""
    ends: dict[str, list[str]] = {}
    for word, reason in chat_stream.FINISH_WORDS.items():
        ends.setdefault(f"`{reason}`", []).append(f"`{word}`")
    for word, (status, said) in faults.FINISH.items():
        verdict = faults.STATUS[status]
        end = f"error `{verdict.kind}`, {verdict.status}: {said}"
        ends.setdefault(end, []).append(f"`{word}`")
    return _table(
        ["`finish_reason`", "the client gets"], ([", ".join(told), end] for end, told in ends.items())
    )


def events() -> str:
    """Every kind of event as it is encoded."""
    encoder = EventEncoder(message_id="msg_1", model="m", request_id="req_1")
    usage = parts.MessageUsage(9, 1)
    said: tuple[parts.Event, ...] = (
        parts.MessageStart(usage),
        parts.Ping(),
        *(parts.BlockStart(0, kind, "toolu_1", "read") for kind in ("thinking", "text", "tool_use")),
        parts.ThinkingDelta(0, "Hm"),
        parts.SignatureDelta(0, "..."),
        parts.TextDelta(0, "Hi"),
        parts.InputJsonDelta(0, '{"p":'),
        parts.BlockStop(0),
        parts.MessageDelta("end_turn", None, usage),
        parts.MessageStop(),
        parts.Error(parts.Fault("api_error", "...", 502)),
    )
    rows = []
    for event in said:
        name, data = encoder.encode([event]).decode().strip().split("\n")
        rows.append([f"`{name.removeprefix('event: ')}`", f"`{data.removeprefix('data: ')}`"])
    return _table(["event", "data"], rows)


def error_types() -> str:
    """Anthropic's error types with their statuses."""
    return _table(["type", "status"], ([f"`{kind}`", str(status)] for kind, status in faults.KINDS.items()))


def upstream_words() -> str:
    """The words of an upstream's error, by what they mean."""
    rows = [
        ["precise: more than the status", *row]
        for row in _by_verdict(faults.PRECISE_WORDS, faults.PRECISE_TEXTS)
    ]
    rows += [
        ["general: where no status says more", *row]
        for row in _by_verdict(faults.GENERAL_WORDS, faults.GENERAL_TEXTS)
    ]
    return _table(["words", "in `type`, `code` or `status`", "in the message", "the client gets"], rows)


def _by_verdict(
    words: Mapping[str, int], texts: Iterable[tuple[re.Pattern[str], int]]
) -> Iterable[list[str]]:
    found: dict[int, tuple[list[str], list[str]]] = {}
    for word, status in words.items():
        found.setdefault(status, ([], []))[0].append(f"`{word}`")
    for pattern, status in texts:
        found.setdefault(status, ([], []))[1].append(f"`{pattern.pattern}`")
    for status, (told, matched) in sorted(found.items()):
        verdict = faults.STATUS[status]
        yield [", ".join(told), ", ".join(matched), f"{verdict.status} `{verdict.kind}`"]


def own_failures() -> str:
    """This gateway's own failures, as far as they are ready made."""
    made = {
        "queue_full": own_faults.queue_full(5),
        "queue_timeout": own_faults.queue_timeout(10),
        "internal": own_faults.internal("req_..."),
        "no_upstream": own_faults.no_upstream(5),
        "not_found": own_faults.not_found("/..."),
        "method_not_allowed": own_faults.method_not_allowed("PUT", "/..."),
        "too_large": own_faults.too_large(32 * 1024 * 1024),
        "invalid_request": own_faults.invalid_request("PATH: what is wrong with it"),
    }
    rows = []
    for name in own_faults.__all__:
        known = getattr(own_faults, name)
        if isinstance(known, parts.Fault):
            fault, wait = known, known.retry_after or ""
        else:
            fault = made[name]
            wait = "computed" if fault.retry_after else ""
        rows.append([str(fault.status), f"`{fault.kind}`", fault.message, wait])
    rows.sort(key=lambda row: row[:2])
    return _table(["status", "type", "message", "`retry-after`"], rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "profiles": profiles,
    "facts": facts,
    "finish-words": finish_words,
    "events": events,
    "error-types": error_types,
    "upstream-words": upstream_words,
    "own-failures": own_failures,
}


# --- Words and tables -----------------------------------------------------------------------------


def _value(value: Any) -> str:
    """A fact as JSON; pairs are an object, and what is empty or false is a dash."""
    if value in (None, False, ()):
        return "-"
    pairs = isinstance(value, tuple) and all(isinstance(item, tuple) for item in value)
    return f"`{msgspec.json.encode(dict(value) if pairs else value).decode()}`"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def renewed(text: str) -> str:
    """The page with its sections as they should be. Raises KeyError for an unknown section."""
    return _SECTION.sub(lambda found: f"{found[1]}{SECTIONS[found[2]]()}\n{found[4]}", text)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    old = PAGE.read_text()
    new = renewed(old)
    if not arguments:
        PAGE.write_text(new)
    elif new != old:
        name = f"docs/{PAGE.name}"
        lines = difflib.unified_diff(
            old.splitlines(), new.splitlines(), name, f"{name} (generated)", lineterm=""
        )
        print("\n".join(lines))
        print(f"{name}: stale, run docs/compatibility.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
