"""How it calls tools: whether a named choice is obeyed, and the shape of a streamed call.

Owns three questions at most: a named choice, `required`, and `auto` with a question that needs the tool.

    await probe_tools(asker, report)
    report.value("tool call shape")   -> "whole, in one fragment"
"""

from __future__ import annotations

import json
from typing import Any, Final

from antiphon.check.upstream.answers import question
from antiphon.check.upstream.asking import Asker, Reply
from antiphon.check.upstream.chat_shapes import CallSeen, read_chat
from antiphon.check.upstream.findings import Report

_NAME: Final = "get_weather"
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
# In this order; each with the `tool_choice` fact that it proves when a call comes.
_TRIES: Final[tuple[tuple[str, Any, str], ...]] = (
    ("named", {"type": "function", "function": {"name": _NAME}}, "Say hello."),
    ("required_only", "required", "Say hello."),
    ("ignored", "auto", f"What is the weather in Oslo? Use the tool {_NAME}."),
)


async def probe_tools(asker: Asker, report: Report) -> None:
    """The `tool_choice` fact is what the first obeyed choice proves."""
    reply = Reply()
    refused: list[str] = []
    for fact, choice, text in _TRIES:
        body = question(report, text, 256, stream=True, tools=[_TOOL], tool_choice=choice)
        reply = await asker.chat(body)
        seen = read_chat(reply.body)
        if seen.calls:
            _choice(fact, refused, report)
            _shape(seen.calls[0], report)
            report.say("tools", "finish_reason with calls", seen.finish_reason or "none")
            if len(seen.calls) > 1:
                report.say("tools", "calls for one question", str(len(seen.calls)))
            return
        refused += [f"{fact}: {reply.said}"] if not reply.ok else []
    report.say("tools", "tool calls", "none came", "; ".join(refused))
    report.hurts(
        "It never called a tool, not even when told to: Claude Code will not work. Look for its switch for"
        " tool calls (vLLM: --enable-auto-tool-choice and --tool-call-parser; llama.cpp: --jinja),"
        " or take another model."
    )


def _choice(fact: str, refused: list[str], report: Report) -> None:
    says = {
        "named": "obeyed",
        "required_only": "a named choice is ignored, `required` is obeyed",
        "ignored": "neither a named choice nor `required` is obeyed",
    }[fact]
    report.say("tools", "tool_choice", says, "; ".join(refused))
    report.measure("tool_choice", fact, says)


def _shape(call: CallSeen, report: Report) -> None:
    whole = call.fragments == 1
    value = "whole, in one fragment" if whole else f"fragmented, {call.pieces} pieces of arguments"
    odd = []
    if call.object_arguments:
        odd.append("the arguments are an object, not a string")
    if call.names > 1:
        odd.append("the name is repeated")
    report.say("tools", "tool call shape", value, "; ".join(odd))
    kinds = {str(index) if isinstance(index, int) else type(index).__name__ for index in call.indices}
    known = all(type(index) is int for index in call.indices)
    shown = (
        ", ".join(sorted(kinds))
        if known
        else "missing"
        if kinds == {"NoneType"}
        else ", ".join(sorted(kinds))
    )
    report.say("tools", "tool call index", shown)
    if call.id is None:
        report.say("tools", "tool call id", "none", "ids must be made for it")
    else:
        every = "in every fragment" if call.ids > 1 else "in the first fragment"
        report.say("tools", "tool call id", call.id, every)
    try:
        good = isinstance(json.loads(call.arguments or "{}"), dict)
    except ValueError:
        good = False
    if not good:
        report.hurts(f"The arguments of its tool call are not a JSON object: {call.arguments[:80]!r}.")
