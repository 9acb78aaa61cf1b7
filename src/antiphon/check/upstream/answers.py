"""How it answers: the stream's form, reasoning, usage, stop strings, structured output.

Owns the plain questions. The first one is repeated without what the server refuses, at most three times.

    await probe_answers(asker, report)
    report.value("usage")   -> "in every chunk"
"""

from __future__ import annotations

from typing import Any, Final

from antiphon.check.upstream.asking import Asker, Reply
from antiphon.check.upstream.chat_shapes import ChatSeen, read_chat
from antiphon.check.upstream.findings import Report
from antiphon.core.complaint import read_body

_QUESTION: Final = "What is two plus three? Answer in one short sentence."
_LIMIT: Final = 160  # tokens of an answer: room for a little thinking
_NEWER_LIMIT: Final = "max_completion_tokens"
_OPTIONS: Final[tuple[dict[str, bool] | None, ...]] = (
    {"include_usage": True, "continuous_usage_stats": True},
    {"include_usage": True},
    None,
)


async def probe_answers(asker: Asker, report: Report) -> bool:
    """False if it does not answer at all: the other probes would find nothing."""
    reply, options = await _ask_plainly(asker, report)
    seen = read_chat(reply.body)
    if reply.status != 200 or (seen.form == "neither" and not reply.ok):
        said = read_body(reply.body).text[:160]
        key = " Give its key with --api-key-env." if reply.status in (401, 403) else ""
        report.hurts(f"It does not answer a plain streaming question: {reply.said}. {said}{key}".strip())
        return False
    _stream_form(reply, seen, report)
    _reasoning(seen, report)
    _usage(seen, options, report)
    _pace(reply, seen, report)
    await _stop_strings(asker, report)
    await _structured(asker, report)
    return True


def question(report: Report, text: str, limit: int = _LIMIT, **more: Any) -> dict[str, Any]:
    """A chat request body with one user message and a token limit under the name that the server takes."""
    return {
        "model": report.model,
        "messages": [{"role": "user", "content": text}],
        report.token_limit_field: limit,
        **more,
    }


async def _ask_plainly(asker: Asker, report: Report) -> tuple[Reply, dict[str, bool] | None]:
    reply = Reply()
    options: dict[str, bool] | None = None
    for options in _OPTIONS:
        more: dict[str, Any] = {"stream_options": options} if options else {}
        reply = await asker.chat(question(report, _QUESTION, stream=True, **more))
        if reply.status in (400, 422) and _NEWER_LIMIT.encode() in reply.body:
            report.token_limit_field = _NEWER_LIMIT
            report.measure("token_limit_field", _NEWER_LIMIT, "max_tokens is refused")
            reply = await asker.chat(question(report, _QUESTION, stream=True, **more))
        if reply.status not in (400, 422):
            break
    report.say("requests", "token limit", report.token_limit_field)
    return reply, options


def _stream_form(reply: Reply, seen: ChatSeen, report: Report) -> None:
    content_type = reply.headers.get("content-type", "none")
    report.say("stream", "content type", content_type)
    report.say("stream", "line ends", seen.line_ends)
    report.say("stream", "[DONE]", "comes" if seen.done else "does not come")
    report.say("stream", "finish_reason", seen.finish_reason or "none")
    if seen.comments:
        report.say("stream", "comments", str(seen.comments), "keep-alive lines")
    if seen.form == "json":
        report.hurts("It answers a streaming request with one JSON body: clients wait for the whole answer.")
    elif seen.form == "neither":
        report.hurts("Its stream has no frame that is JSON.")
    elif not content_type.startswith("text/event-stream"):
        report.hurts(f"Its streams have the content type {content_type}: proxies may buffer them.")
    if seen.bad_frames:
        report.hurts(f"{seen.bad_frames} frames of its stream are not JSON.")
    if reply.failure:
        report.hurts(f"Its stream did not end well: {reply.failure}.")
    if seen.error is not None:
        report.hurts(f"Its stream carried an error: {str(seen.error)[:120]}.")
    elif seen.finish_reason is None:
        report.hurts(
            "Its stream has no finish_reason"
            + (
                ": only [DONE] says that an answer is whole."
                if seen.done
                else " and no [DONE]: a cut-off answer cannot be told from a whole one."
            )
        )


def _pace(reply: Reply, seen: ChatSeen, report: Report) -> None:
    if reply.first_byte is None:
        return
    rest = reply.seconds - reply.first_byte
    note = "the whole answer came at once"
    if reply.reads > 2 and rest > 0:  # else the pace is the network's
        report.tokens_per_second = seen.chunks / rest
        note = f"{report.tokens_per_second:.0f} chunks/s"
    report.say("stream", "first byte", f"{reply.first_byte * 1000:.0f} ms", note)


def _reasoning(seen: ChatSeen, report: Report) -> None:
    names = ", ".join(seen.reasoning_fields)
    opened, closed = "<think>" in seen.text, "</think>" in seen.text
    if names:
        report.say("reasoning", "reasoning field", names)
        if "reasoning" in seen.reasoning_fields and "reasoning_content" not in seen.reasoning_fields:
            report.measure(
                "reasoning_fields_out",
                ["reasoning"],
                "it says `reasoning`, so it most likely reads that name",
            )
    elif closed and not opened:
        report.say("reasoning", "reasoning field", "none", "text until </think>: the template opened the tag")
        report.measure("think_tags", "open", "</think> came without <think>")
    elif opened:
        report.say("reasoning", "reasoning field", "none", "<think> in the text")
    else:
        report.say("reasoning", "reasoning field", "not seen", "this model may not reason")


def _usage(seen: ChatSeen, options: dict[str, bool] | None, report: Report) -> None:
    continuous = bool(options and options.get("continuous_usage_stats"))
    accepted = "accepted" if continuous else "refused"
    if seen.usage is None:
        report.say("usage", "usage", "none", f"continuous_usage_stats: {accepted}")
        report.measure("stream_usage", "none" if options is None else "end", "no usage came")
        report.hurts("It reports no usage in streams: token counts will be estimates.")
        return
    first = "first chunk" in seen.usage_places and seen.chunks > 2
    value = "in every chunk" if "every chunk" in seen.usage_places else ", ".join(seen.usage_places)
    note = "accepted" if first else "accepted, without effect" if continuous else "refused"
    report.say("usage", "usage", value, f"continuous_usage_stats: {note}")
    mode = "continuous" if first and continuous else "end" if options else "none"
    report.measure("stream_usage", mode, f"usage: {value}; continuous_usage_stats {note}")


async def _stop_strings(asker: Asker, report: Report) -> None:
    # Nearly every English text has this letter, so the answer is short.
    body = question(report, "Write one sentence about the sea.", stream=True, stop=["e"])
    reply = await asker.chat(body)
    seen = read_chat(reply.body)
    if not reply.ok or seen.form == "neither":
        report.say("stop", "stop strings", "unknown", reply.said)
        return
    if "e" in seen.text:
        report.say("stop", "stop strings", "ignored", "the text has the string that should have ended it")
        report.hurts("It ignores stop strings: stop_sequences of clients have no effect.")
        return
    names = [name for name, value in seen.matched.items() if value == "e"]
    named = [name for name in seen.matched if name not in names]
    value = names[0] if names else "not reported"
    note = f"{named[0]} is there and is {seen.matched[named[0]]!r}" if named and not names else ""
    report.say("stop", "stop strings", "obeyed", f"finish_reason {seen.finish_reason}")
    report.say("stop", "matched stop", value, note or ("" if names else "stop_sequence can only be guessed"))


async def _structured(asker: Asker, report: Report) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    reply = await asker.chat(question(report, "Give n = 5 as JSON.", 64, response_format=wanted))
    value = "accepted" if reply.ok else f"refused ({reply.said})"
    report.say("requests", "response_format json_schema", value)
    if reply.status in (400, 422):
        report.measure("response_format", False, reply.said)
