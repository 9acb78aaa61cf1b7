"""What a report means for a file of settings: the server's lines, with what is different from its kind.

Owns that text, and what counts as different. Only what differs from the row of facts is written, each with
the reason. Nothing that a server says stands outside of a comment, and no key is in it, only its variable.

    settings_toml(report)   -> a text that begins "# What `antiphon check upstream` found"
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


def upstream_lines(report: Report, key_variable: str | None = None) -> list[str]:
    """The server as one of `[[upstreams]]`. `key_variable` names the environment variable with its key."""
    is_generic = report.profile == quirks.GENERIC.name
    slots = report.value("slots") or ""
    lines = [
        "[[upstreams]]",
        f"name = {_text('upstream' if is_generic else report.profile)}",
        f"base_url = {_text(report.url)}",
        f"kind = {_text(report.profile)}",
        f"slots = {slots}"
        if slots.isdecimal()
        else 'slots = "auto"  # it does not tell: set how many requests it takes',
    ]
    if key_variable is not None:
        lines.append(f'api_key = "${{{key_variable}}}"')
    if changed := differences(report):
        lines += ["", "[upstreams.quirks]  # measured here, and different from its kind"]
        lines += [f"{name} = {_value(one.value)}  # {_comment(one.why)}" for name, one in changed.items()]
    return lines


def settings_toml(report: Report, key_variable: str | None = None) -> str:
    """A whole file: `antiphon serve --config` reads it as it is, once the variable is set."""
    name = f"{report.server} {report.version}".strip()
    lines = [
        _comment(f"# What `antiphon check upstream {report.url}` found: {name}, model {report.model}."),
        "# Every other setting: docs/configuration.md.",
        "",
        *upstream_lines(report, key_variable),
    ]
    if report.window:
        lines += [
            "",
            f"# The model's window is {report.window} tokens: window in [[models]], if there are any.",
        ]
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


def _text(text: str) -> str:
    return _value(text.replace("$", "$$"))  # a dollar sign in a text of the file may begin a variable


def _value(value: Any) -> str:
    # JSON's strings, numbers, booleans and lists are TOML's too, but for DEL and surrogates.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return text.encode("utf-8", "replace").decode()


def _comment(text: str) -> str:
    """One line of printable text: nothing that a server says may break out of a comment."""
    return "".join(c if c.isprintable() else " " for c in text)
