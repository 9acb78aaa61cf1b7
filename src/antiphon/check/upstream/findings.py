"""What a probe of an inference server found, as one value that is printed and written.

Owns the shape of the report, nothing of how it was found.

    report.say("stream", "line ends", "LF")
    report.measure("stream_usage", "continuous", "the first chunk had usage")
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, field

TOPICS: Final = (
    "server",
    "models",
    "requests",
    "stream",
    "reasoning",
    "usage",
    "stop",
    "tools",
    "tokens",
    "errors",
    "leaving",
)
"""The topics in the order in which they are shown."""


class Finding(Struct):
    """One fact. `topic` groups facts, `note` says how it was found out or what it means."""

    topic: str
    label: str
    value: str
    note: str = ""


class Measured(Struct):
    """The value that a field of the facts (`core.dialects.quirks`) has here, and why."""

    value: Any
    why: str


class Report(Struct):
    """Everything about one server. `profile` is the row of facts to use, `version` "" where it says none.

    `window` is the model's context in tokens, None where the server does not tell. `problems` are what will
    hurt a user of this server. `requests` counts what was asked, `seconds` how long it took.
    """

    url: str
    model: str = ""
    server: str = "unknown"
    version: str = ""
    profile: str = "generic"
    window: int | None = None
    token_limit_field: str = "max_tokens"  # noqa: S105 - a name
    tokens_per_second: float | None = None
    findings: list[Finding] = field(default_factory=list)
    measured: dict[str, Measured] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0

    def say(self, topic: str, label: str, value: str, note: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(topic, label, value, note))

    def measure(self, name: str, value: Any, why: str) -> None:
        """Note the value of a field of the facts; a later one replaces it."""
        self.measured[name] = Measured(value, why)

    def hurts(self, text: str) -> None:
        """Add a problem, a whole sentence."""
        self.problems.append(text)

    def in_order(self) -> list[Finding]:
        """The findings by topic, within one as they were found."""
        return sorted(self.findings, key=lambda finding: TOPICS.index(finding.topic))

    def value(self, label: str) -> str | None:
        """The value of the finding with this label, None if there is none."""
        return next((finding.value for finding in self.findings if finding.label == label), None)
