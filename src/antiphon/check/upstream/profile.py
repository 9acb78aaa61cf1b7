"""The report as a profile in TOML: the row of facts to start from, and what is different here.

Owns the text of that file. Only what differs from the row is written, each with the reason.

    profile_toml(report)   -> '# What `antiphon check upstream` found ...'
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import to_builtins

from antiphon.check.upstream.findings import Measured, Report
from antiphon.core.dialects import quirks


def differences(report: Report) -> dict[str, Measured]:
    """The measured facts that the row does not have. A row that knows better is left alone.

    The names under which reasoning goes back are a guess from the name that comes out: a row that names a
    server was made from that server's code and stands.
    """
    row = to_builtins(quirks.by_name(report.profile))
    found = {name: measured for name, measured in report.measured.items() if measured.value != row[name]}
    if report.profile != quirks.GENERIC.name:
        found.pop("reasoning_fields_out", None)
    return found


def profile_toml(report: Report) -> str:
    """The file's text, valid TOML."""
    lines = [
        _comment(f"# What `antiphon check upstream {report.url}` found, asking model {report.model}."),
        "#",
        _comment(f"#     antiphon serve --upstream {report.url} --profile {report.profile}"),
        "",
        "[profile]",
        f"base = {_value(report.profile)}  # the row of facts to start from",
    ]
    changed = differences(report)
    lines += ["# Measured here and different from that row:"] if changed else []
    lines += [f"{name} = {_value(one.value)}  # {_comment(one.why)}" for name, one in changed.items()]
    lines += ["", "[server]", f"name = {_value(report.server)}"]
    lines += [f"version = {_value(report.version)}"] if report.version else []
    lines += [f"model = {_value(report.model)}"]
    lines += [f"context_window = {report.window}  # tokens"] if report.window else []
    lines += ["", "# What was seen, in the words of the table."]
    topic = None
    for finding in report.in_order():
        if finding.topic != topic:
            topic = finding.topic
            lines += [f"# --- {topic}"]
        note = f" ({finding.note})" if finding.note else ""
        lines.append(_comment(f"# {finding.label}: {finding.value}{note}"))
    if report.problems:
        lines += ["", "# What will hurt:", *(f"# - {_comment(problem)}" for problem in report.problems)]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    # JSON's strings, numbers, booleans and lists are TOML's too, but for DEL and surrogates.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return text.encode("utf-8", "replace").decode()


def _comment(text: str) -> str:
    """One line of printable text: nothing that a server says may break out of a comment."""
    return "".join(c if c.isprintable() else " " for c in text)
