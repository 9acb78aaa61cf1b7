"""What is printed: tables for people, one JSON value for machines.

Owns words and layout. Everything that came from outside is shown without control characters, and never as
markup. On a pipe there are no colours and the lines are 120 wide.

    print_verdicts(console(), verdicts, prose=35)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.check.capture import Judged
from antiphon.check.gateway import Verdict
from antiphon.check.rules import RULES, Violation
from antiphon.check.upstream.findings import Report
from antiphon.check.upstream.profile import differences, upstream_lines
from antiphon.core.dialects import quirks

_PIPE_WIDTH = 120
_SHOWN = 70  # characters of a block's text in the fold
_NUMBER = re.compile(r"\d+")


def console(*, stderr: bool = False) -> Console:
    """Standard output, or the error output where standard output belongs to `--json -`."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


def clean(text: str) -> str:
    """`text` without control characters: what a server sends must not reach the terminal as commands."""
    return "".join(c if c.isprintable() else " " for c in text)


def cell(text: object, style: str = "") -> Text:
    """A cell that shows `text` as it is: no markup in it counts."""
    return Text(clean(str(text)), style=style)


def _table(*columns: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, overflow="fold")
    return made


def as_json(value: Any) -> str:
    """The JSON that `--json` writes. Lone surrogates are escaped, so that it can always be encoded."""
    return json.dumps(to_builtins(value), indent=1, ensure_ascii=True)


# --- check gateway ------------------------------------------------------------------------------


def print_verdicts(out: Console, verdicts: Sequence[Verdict], *, prose: int, left_out: int = 0) -> None:
    """The areas, then each failure with its sentence. `prose` cases cannot be played by a machine."""
    failed = [verdict for verdict in verdicts if verdict.outcome == "fails"]
    areas = _table("area", "holds", "of", "failing")
    for area in sorted({verdict.area for verdict in verdicts}):
        of = [verdict for verdict in verdicts if verdict.area == area]
        bad = [verdict.id for verdict in of if verdict.outcome == "fails"]
        style = "red" if bad else "green"
        areas.add_row(cell(area), cell(len(of) - len(bad), style), cell(len(of)), cell(", ".join(bad), "red"))
    out.print(areas)
    if failed:
        faults = _table("case", "what is wrong, and what users saw")
        for verdict in failed:
            text = cell(verdict.title, "bold").append("\n").append(clean(verdict.sentence), style="not bold")
            if verdict.symptom:
                text.append(f"\nSeen elsewhere: {clean(verdict.symptom)}", style="dim")
            if verdict.contested:
                text.append(f"\nContested: {clean(verdict.contested)}", style="yellow")
            faults.add_row(cell(verdict.id, "red"), text)
            faults.add_section()
        out.print(faults)
    held = len(verdicts) - len(failed)
    out.print(
        Text.assemble(
            (f"{held} of {len(verdicts)} cases hold", "bold red" if failed else "bold green"),
            f"; {prose} more are prose, for tests of your own" if prose else "",
            f"; {left_out} contested failures are left out" if left_out else "",
            ".",
        )
    )


# --- check stream -------------------------------------------------------------------------------


def print_judged(out: Console, judged: Judged) -> None:
    """The violations with what clients do, the fold, the remarks. What comes again is said once."""
    if judged.violations:
        broken = _table("where", "what is wrong", "the rule", "what clients do")
        for violation, times in _once(judged.violations):
            where = cell(_where(judged, violation))
            if times > 1:
                where.append(f"\nand {times - 1} more")
            rule = RULES[violation.rule]
            style = "yellow" if violation.survivable else "red"
            broken.add_row(where, cell(violation.text, style), cell(rule.says), cell(rule.clients))
        out.print(broken)
    held = _table("what a client holds", "")
    folded = judged.folded
    held.add_row("message", cell(f"{folded.id} from {folded.model}"))
    for at, block in enumerate(folded.content):
        state = ", never stopped" if at in folded.open_blocks else ""
        held.add_row(cell(f"block {at}"), cell(f"{block.get('type')}{state}: {_gist(block)}"))
    if folded.error is not None:
        held.add_row("error", cell(f"{folded.error.get('type')}: {folded.error.get('message')}", "red"))
    else:
        matched = f" ({folded.stop_sequence!r})" if folded.stop_sequence is not None else ""
        held.add_row("stop_reason", cell(f"{folded.stop_reason}{matched}"))
    usage = ", ".join(f"{name} {value}" for name, value in folded.usage.items() if value is not None)
    held.add_row("usage", cell(usage or "none"))
    if judged.form == "stream":
        held.add_row("events", cell(f"{folded.events}, {folded.pings} of them pings"))
    out.print(held)
    for remark in judged.remarks:
        out.print(cell(f"Note: {remark}", "yellow"))
    count, kinds = len(judged.violations), len(_once(judged.violations))
    if count:
        of = f" of {kinds} kind{'s' * (kinds != 1)}" if kinds != count else ""
        out.print(cell(f"{count} violation{'s' * (count != 1)}{of}.", "bold red"))
    else:
        what = "The stream is legal" if judged.form == "stream" else "The message is legal"
        out.print(
            cell(f"{what}{', and says that the request failed' * (folded.error is not None)}.", "bold green")
        )


def _once(violations: Sequence[Violation]) -> list[tuple[Violation, int]]:
    """The first of each kind and how many there are: the same rule and words, with whatever numbers."""
    found: dict[tuple[str, str], tuple[Violation, int]] = {}
    for violation in violations:
        kind = (violation.rule, _NUMBER.sub("0", violation.text))
        first, times = found.get(kind, (violation, 0))
        found[kind] = (first, times + 1)
    return list(found.values())


def _where(judged: Judged, violation: Violation) -> str:
    if violation.at is None:
        return "the end" if judged.form == "stream" else "the body"
    line = judged.lines.get(violation.at)
    return f"event {violation.at}" + (f", line {line}" if line else "")


def _gist(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "tool_use":
        text = f"{block.get('name')} {json.dumps(block.get('input'), ensure_ascii=False)}"
    else:
        text = str(block.get(kind) if isinstance(kind, str) and kind in block else "")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


# --- check upstream -----------------------------------------------------------------------------


def print_report(out: Console, report: Report, key_variable: str | None = None) -> None:
    """The findings by topic, what differs from the row of facts, the problems, the command to use.

    Where something differs, the lines for a file of settings too: no flag says it.
    """
    found = _table("topic", "finding", "value", "")
    topic = None
    for finding in report.in_order():
        found.add_row(
            cell(finding.topic if finding.topic != topic else "", "bold"),
            cell(finding.label),
            cell(finding.value, "cyan"),
            cell(finding.note, "dim"),
        )
        topic = finding.topic
    out.print(found)
    changed = differences(report)
    if changed:
        row = to_builtins(quirks.by_name(report.profile))
        facts = _table(f"different from kind {report.profile}", "there", "here", "why")
        for name, one in changed.items():
            facts.add_row(cell(name), cell(json.dumps(row[name])), cell(json.dumps(one.value)), cell(one.why))
        out.print(facts)
    for problem in report.problems:
        out.print(cell(f"Problem: {problem}", "red"))
    out.print(cell(f"{report.requests} requests in {report.seconds:.1f} s. Use it with:", "bold"))
    key = "" if key_variable is None else f" --api-key-env {key_variable}"
    out.print(cell(f"  antiphon serve --upstream {report.url} --kind {report.profile}{key}"), soft_wrap=True)
    if changed:
        out.print(cell("Or with what is different here, in antiphon.toml:", "bold"))
        for line in upstream_lines(report, key_variable):
            out.print(cell(f"  {line}"), soft_wrap=True)
