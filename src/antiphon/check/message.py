"""The judge of a whole Message JSON: the answer of a request without `stream`.

Owns the shape of a non-streaming body, a message or an error; the values that streams have too are
judged by `grammar`. Never raises.

    judge_message({"type": "error", "error": {}})[0].rule   -> "error.type"
"""

from __future__ import annotations

from typing import Any

from antiphon.check.grammar import (
    COUNTS,
    DELTAS,
    is_count,
    judge_counts,
    judge_error,
    judge_finish,
    judge_identity,
    judge_tool,
    table,
)
from antiphon.check.rules import Violation


def judge_message(body: object) -> list[Violation]:
    """What a decoded body breaks. `at` of a violation is None, its text names the member."""
    out: list[Violation] = []

    def blame(rule: str, text: str) -> None:
        out.append(Violation(rule, None, text))

    message = table(body)
    if message.get("type") == "error":
        judge_error(message.get("error"), blame)
        return out
    for key, want in (("type", "message"), ("role", "assistant")):
        if message.get(key) != want:
            blame("message.shape", f"{key} is {message.get(key)!r}, not {want!r}")
    judge_identity(message, blame)
    content = message.get("content")
    if not isinstance(content, list):
        blame("message.shape", f"content is {type(content).__name__}, not a list")
        content = []
    tools: set[str] = set()
    for at, block in enumerate(content):
        _judge_block(at, table(block), tools, blame)
    judge_finish(message, len(tools), blame)
    usage = table(message.get("usage"))
    for key in COUNTS[:2]:
        if not is_count(usage.get(key)) and key not in usage:
            blame("finish.usage", f"usage.{key} is missing")
    judge_counts(usage, blame)
    return out


def _judge_block(at: int, block: dict[str, Any], tools: set[str], blame: Any) -> None:
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in DELTAS:
        blame("block.type", f"content.{at} has the unknown type {kind!r}")
    elif kind in ("text", "thinking"):
        if not isinstance(block.get(kind), str):
            blame("block.start", f"content.{at}.{kind} is {block.get(kind)!r}, not a string")
        elif not block[kind]:
            blame("block.empty", f"content.{at} is an empty {kind} block")
        if kind == "thinking" and "signature" not in block:
            blame("block.signature", f"content.{at} has no signature")
    elif kind == "tool_use":
        judge_tool(block, tools, blame)
        if not isinstance(block.get("input"), dict):
            blame("tool.input", f"content.{at}.input is {type(block.get('input')).__name__}, not an object")
