"""Facts about inference servers, as data: one row for each, and no `if vendor` anywhere else.

Owns the names of the rows. A fact is a field in `quirk_facts`, a value in the rows of `quirk_rows` that have
it, and a test on both sides of it. `GENERIC` is the server that nothing identifies: it gets what every Chat
Completions server takes, and nothing else.

    by_name("vllm").stream_usage      -> "continuous"
    by_name("no-such-server")         -> KeyError
    for_version("vllm", "0.10.2")     -> "vllm-0.11"
"""

from __future__ import annotations

import re

from antiphon.core.dialects.quirk_facts import Fields, Quirks
from antiphon.core.dialects.quirk_rows import (
    AZURE,
    DEEPSEEK,
    GEMINI,
    GENERIC,
    GLM,
    GROQ,
    KIMI,
    LLAMACPP,
    LMSTUDIO,
    MINIMAX,
    MISTRAL,
    OLDER,
    OLLAMA,
    OPENAI,
    OPENROUTER,
    QWEN,
    ROWS,
    SGLANG,
    TOGETHER,
    VLLM,
    VLLM_0_11,
    XAI,
)

__all__ = [
    "AZURE",
    "DEEPSEEK",
    "GEMINI",
    "GENERIC",
    "GLM",
    "GROQ",
    "KIMI",
    "LLAMACPP",
    "LMSTUDIO",
    "MINIMAX",
    "MISTRAL",
    "OLLAMA",
    "OPENAI",
    "OPENROUTER",
    "QWEN",
    "SGLANG",
    "TOGETHER",
    "VLLM",
    "VLLM_0_11",
    "XAI",
    "Fields",
    "Quirks",
    "by_name",
    "for_version",
    "names",
]

_ROWS = {row.name: row for row in ROWS}
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)")


def names() -> tuple[str, ...]:
    """The names of all rows, generic first."""
    return tuple(_ROWS)


def by_name(name: str) -> Quirks:
    """The row of a server. Raises KeyError for a name that no row has."""
    return _ROWS[name]


def for_version(name: str, version: str | None) -> str:
    """The name of the row for this version of a server; the newest where the version tells nothing.

    A build from source is new, whatever number it has: without its tags vLLM calls itself `0.1.dev1+g...`.
    """
    found = _VERSION.match(version or "")
    if found is None or "dev" in (version or ""):
        return name
    parts = tuple(int(part[:9]) for part in found[1].split("."))
    return next((row for until, row in OLDER.get(name, ()) if parts < until), name)
