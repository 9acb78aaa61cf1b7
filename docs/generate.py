"""Write the parts of the docs that are the code's own words, so that they cannot drift.

Owns the sections between `<!-- generated: NAME -->` and `<!-- end: NAME -->` in docs/*.md: each is the
text of one function here, made from the tables, settings and docstrings of the package. It must not hold
facts of its own: what is wrong in a generated section is mended in the code.

    docs/generate.py            rewrites the sections
    docs/generate.py --check    changes nothing; fails with a diff if one of them is stale
"""

from __future__ import annotations

import ast
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import typer
from msgspec import Struct, structs

from antiphon import cli, config, config_tables
from antiphon.core import faults, stream
from antiphon.core.dialects import quirks
from antiphon.observe.gauges import Sources
from antiphon.observe.metrics import Metrics
from antiphon.server import exchange_terms

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "antiphon"

# The folders in the order in which a reader should meet them; a folder that is not named comes last.
FOLDERS = (
    "core",
    "core/dialects",
    "core/surfaces",
    "core/surfaces/messages",
    "server",
    "server/coordination",
    "observe",
    "check",
    "check/upstream",
    "",
)

# How a setting's type tells its unit.
(BYTES,), (SECONDS,) = config.Bytes.__metadata__, config.Seconds.__metadata__

_SECTION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end: \2 -->)", re.DOTALL)


# --- The sections ---------------------------------------------------------------------------------


def ownership() -> str:
    """Every module with the first line of its docstring, folder by folder."""
    by_folder: dict[str, list[Path]] = {folder: [] for folder in FOLDERS}
    for path in sorted(SOURCE.rglob("*.py")):
        folder = path.parent.relative_to(SOURCE).as_posix().removeprefix(".")
        if path.read_text().strip():  # an empty __init__ owns nothing
            by_folder.setdefault(folder, []).append(path)
    lines: list[str] = []
    for folder, paths in by_folder.items():
        if not paths:
            continue
        lines += [f"**{f'antiphon/{folder}'.rstrip('/')}/**", ""]
        for path in paths:
            link = f"../src/antiphon/{path.relative_to(SOURCE).as_posix()}"
            lines.append(f"- [{path.name}]({link}): {first_line(path)}")
        lines.append("")
    return "\n".join(lines)


def first_line(path: Path) -> str:
    """What a module says of itself in one line. Raises ValueError if it says nothing."""
    said = ast.get_docstring(ast.parse(path.read_text()))
    if not said:
        raise ValueError(f"{path}: a module without a docstring")
    return said.partition("\n")[0]


def phase_table() -> str:
    """`PHASE`: inputs down, phases across, in each cell what is done and where that leads."""
    rows = []
    for name in _once(name for inputs in stream.PHASE.values() for name in inputs):
        cells = [_cell(inputs.get(name)) for inputs in stream.PHASE.values()]
        rows.append([f"`{_word(name)}`", *cells])
    return _table(["input", *(_word(phase) for phase in stream.PHASE)], rows)


def block_table() -> str:
    """`BLOCK`: states down, what happens to a block across."""
    inputs = _once(name for rows in stream.BLOCK.values() for name in rows)
    return _table(
        ["state", *(f"`{_word(name)}`" for name in inputs)],
        ([_word(state), *(_cell(rows.get(name)) for name in inputs)] for state, rows in stream.BLOCK.items()),
    )


def settings(table: type[Struct], path: str = "") -> Callable[[], str]:
    """What makes the section of one table of settings; `path` is its name in a file, if it has one."""

    def section() -> str:
        rows = []
        for member in config_tables.members(table):
            in_environment = config_tables.IN_ENVIRONMENT.get(path) is table
            variable = f"`{config_tables.environment_name(member.name)}`" if in_environment else ""
            flags = _flags(member.name) if path in {"server", "upstreams"} else ""
            words = [f"`{word}`" for word in member.choices]
            meaning = member.meaning + (f" ({config_tables.either(words)})" if len(words) > 1 else "")
            rows.append([f"`{member.name}`", _setting(member), variable, flags, meaning])
        head = ["setting", "default", "environment", "flag", "meaning"]
        used = [n for n in range(len(head)) if n in {0, 1, 4} or any(row[n] for row in rows)]
        return _table([head[n] for n in used], ([row[n] for n in used] for row in rows))

    return section


def example() -> str:
    """The example file, whole."""
    return f"```toml\n{(DOCS.parent / 'examples' / 'antiphon.toml').read_text()}```"


def cli_reference() -> str:
    """Every command with its options, as the parser knows them."""
    lines: list[str] = []
    for name, command in sorted(commands().items()):
        lines += [f"### `antiphon {name}`", "", (command.help or "").strip(), ""]
        rows = [
            [
                ", ".join(f"`{spelling}`" for spelling in (*option.opts, *option.secondary_opts)),
                _default(option),
                (option.help or "").strip(),
            ]
            for option in command.params
        ]
        lines += [_table(["option", "default", "meaning"], rows), ""] if rows else []
    return "\n".join(lines)


def commands() -> dict[str, Any]:
    """The command line's commands by their full names (`check gateway`), each with `help` and `params`."""
    return dict(_leaves("", typer.main.get_command(cli.app)))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, each in below.items():
        yield from _leaves(f"{name} {word}".strip(), each)


def profiles() -> str:
    """What each server's profile does otherwise than the generic one."""
    plain = structs.asdict(quirks.by_name("generic"))
    rows = []
    for name in quirks.names():
        told = structs.asdict(quirks.by_name(name))
        others = [field for field in told if field != "name" and told[field] != plain[field]]
        facts = [f"`{field}`: `{_json(told[field])}`" for field in others]
        rows.append([f"`{name}`", "<br>".join(facts) or "(the defaults)"])
    return _table(["profile", "what differs from `generic`"], rows)


def kinds_in_requests() -> str:
    """What of a Messages request each kind of server understands."""
    rows = []
    for row in map(quirks.by_name, quirks.names()):
        if row.speaks != "chat":
            continue  # the request is passed on as it is
        rows.append(
            [
                f"`{row.name}`",
                {"named": "yes", "required_only": "as the only tool", "ignored": "no"}[row.tool_choice],
                "yes" if row.effort_field else "",
                "yes" if row.thinking_budget_field else "",
                "yes" if row.thinking_off else "",
                "yes" if row.prefill or row.prefill_mark or row.continues else "",
                "yes" if row.response_format else "",
                "yes" if row.send_top_k else "",
                "any" if row.max_stop is None else str(row.max_stop),
                {"any": "URL, base64", "base64": "base64", "none": ""}[row.images],
            ]
        )
    head = ["kind", "a tool is forced", "effort", "budget", "thinking off", "prefill", "schema", "`top_k`"]
    return _table([*head, "stop strings", "images"], rows)


def kinds_as_servers() -> str:
    """What each kind of server does beside answering."""
    rows = []
    for row in map(quirks.by_name, quirks.names()):
        cache = [f"`{word}`" for word in (row.cache_key_field, row.cache_control and "cache_control") if word]
        freed = "its report says so" if row.drain_report != "none" else "after `release_grace`"
        rows.append(
            [
                f"`{row.name}`",
                {"chat": "Chat Completions", "messages": "Messages"}[row.speaks],
                "yes" if row.native_messages or row.speaks == "messages" else "",
                "exact" if row.tokenizer != "none" else "estimate",
                "yes" if row.slots_report != "none" else "",
                "at once" if row.cancels_everywhere else freed,
                ", ".join(cache),
            ]
        )
    head = ["kind", "is asked in", "has `/v1/messages`", "`count_tokens`", "can tell its slots"]
    return _table([*head, "slot free after a cancel", "told of the cache"], rows)


def causes() -> str:
    """Every way in which an exchange ends."""
    rows = []
    for name, cause in exchange_terms.CAUSES.items():
        does = f"says `{cause.fault.kind}`: {cause.fault.message}" if cause.fault else ""
        rows.append([f"`{name}`", cause.meaning, does or ("drops the client" if cause.drops_client else "")])
    return _table(["cause", "when", "then"], rows)


def upstream_statuses() -> str:
    """What a client is told for each HTTP status of an upstream."""
    rows = []
    for status, verdict in faults.STATUS.items():
        retry = "" if verdict.should_retry is None else "yes" if verdict.should_retry else "no"
        rows.append([str(status), str(verdict.status), f"`{verdict.kind}`", retry, verdict.note])
    return _table(
        ["upstream", "client", "type", "`x-should-retry`", "said before the upstream's words"], rows
    )


def metrics() -> str:
    """Every metric of the registry with its labels; counters under the names that are scraped."""
    registry = Metrics(Sources()).registry
    rows = []
    for collector in registry._collector_to_names:
        wrapped = getattr(collector, "_labelnames", None)
        for family in collector.collect() if wrapped is None else collector.describe():
            labels = family._labelnames if wrapped is None else wrapped
            name = f"{family.name}_total" if family.type == "counter" else family.name
            told = ", ".join(f"`{label}`" for label in labels)
            rows.append([f"`{name}`", family.type, told, family.documentation])
    return _table(["metric", "type", "labels", "meaning"], rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "ownership": ownership,
    "phase-table": phase_table,
    "block-table": block_table,
    "server": settings(config_tables.ServerTable, "server"),
    "upstreams": settings(config_tables.UpstreamTable, "upstreams"),
    "models": settings(config_tables.ModelTable),
    "targets": settings(config.TargetSettings),
    "overrides": settings(config.Overrides),
    "fallbacks": settings(config.Fallbacks),
    "limits": settings(config.Limits, "limits"),
    "health": settings(config.HealthSettings),
    "retries": settings(config.RetrySettings),
    "example": example,
    "cli": cli_reference,
    "profiles": profiles,
    "kinds-in-requests": kinds_in_requests,
    "kinds-as-servers": kinds_as_servers,
    "causes": causes,
    "metrics": metrics,
    "upstream-statuses": upstream_statuses,
}


# --- Words and tables -----------------------------------------------------------------------------


def _once(names: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(names))


def _word(thing: Any) -> str:
    return str(thing.value if isinstance(thing, Enum) else getattr(thing, "__name__", thing))


def _cell(row: Any) -> str:
    """A table's row as text: an action, or an action and the phase that it leads to."""
    if isinstance(row, tuple):
        act, phase = row
        return f"{_word(act)} → {_word(phase)}"
    return _word(row)


def _setting(member: config_tables.Member) -> str:
    """A setting's default with its unit, which its type tells; a limit without one is a number."""
    if member.required:
        return "(needed)"
    if member.table is not None or member.default in (None, "", {}, ()):
        return ""
    if isinstance(member.default, bool | str):
        return f"`{_json(member.default)}`"
    metas = getattr(member.hint, "__metadata__", ())
    if BYTES in metas:
        mib, kib = member.default / config.MIB, member.default / 1024
        return f"{mib:g} MiB" if mib >= 1 else f"{kib:g} KiB"
    return f"{member.default:g} s" if SECONDS in metas else f"{member.default:g}"


def _flags(name: str) -> str:
    """How `antiphon serve` spells a setting on the command line."""
    options = {option.name: option for option in commands()["serve"].params}
    renamed = {"base_url": "upstream", "api_key": "api_key_env"}
    option = options.get(renamed.get(name, name))
    return "" if option is None else f"`{option.opts[0]}`"


def _json(value: Any) -> str:
    """A fact as JSON; a tuple of pairs is an object."""
    pairs = isinstance(value, tuple) and all(isinstance(item, tuple) and len(item) == 2 for item in value)
    return msgspec.json.encode(dict(value) if pairs else value).decode()


def _default(option: Any) -> str:
    # What is not given on the command line is taken from elsewhere: the flag tells the default of the tree.
    shown = option.show_default
    value = shown if isinstance(shown, str) else option.default
    if value is None or value is False or value == "":
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# --- Writing and checking -------------------------------------------------------------------------


def renewed(text: str) -> str:
    """A page with its generated sections as they should be. Raises KeyError for an unknown section."""
    return _SECTION.sub(
        lambda section: f"{section[1]}{SECTIONS[section[2]]().strip()}\n{section[4]}",
        text,
    )


def stale(docs: Path = DOCS) -> dict[Path, str]:
    """The pages whose generated sections are not what the code says now, with what they should be."""
    pages = {page: page.read_text() for page in sorted(docs.rglob("*.md"))}
    fresh = {page: renewed(text) for page, text in pages.items()}
    return {page: fresh[page] for page in pages if fresh[page] != pages[page]}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    pages = stale()
    for page, text in pages.items():
        if not arguments:
            page.write_text(text)
            continue
        name = page.relative_to(DOCS.parent).as_posix()
        old, new = page.read_text().splitlines(), text.splitlines()
        print("\n".join(difflib.unified_diff(old, new, name, f"{name} (generated)", lineterm="")))
    if arguments and pages:
        print("docs: stale, run docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
