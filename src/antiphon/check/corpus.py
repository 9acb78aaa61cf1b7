"""The corpus of public faults as cases: what an upstream or a client sends, and the right answer.

Owns reading the file that is shipped with the package. Each case says where the fault was seen.

    load()[0].id   -> "ENV-01"
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct, field

FAMILIES = ("openai_sse", "raw_body", "upstream_http", "anthropic_request", "http_request")
"""The kinds of trigger that can be played; the others are prose for a project's own tests."""


class Case(Struct, frozen=True):
    """`contested` says how projects disagree; `forms: any` means that several forms are right."""

    id: str
    area: str
    title: str
    trigger: dict[str, Any]
    expected: dict[str, Any]
    symptom: str = ""
    why: str = ""
    source: list[str] = field(default_factory=list)
    contested: Any = None
    forms: str | None = None

    @property
    def kind(self) -> str:
        """What sort of trigger it is."""
        return str(self.trigger["kind"])

    @property
    def playable(self) -> bool:
        """Whether a machine can play and judge it."""
        if self.kind in ("openai_sse", "raw_body", "upstream_http"):
            return "events" in self.expected or "http_status" in self.expected
        return self.kind in FAMILIES


def load() -> list[Case]:
    """All cases, in the file's order."""
    text = resources.files(__package__).joinpath("corpus.jsonl").read_text(encoding="utf-8")
    # The standard decoder: only it keeps lone surrogates, which some cases are about.
    return [msgspec.convert(json.loads(line), Case) for line in text.split("\n") if line.strip()]
