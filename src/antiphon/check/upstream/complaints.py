"""What it says when it refuses: a bad request, an unknown model, a prompt that does not fit. And counting.

Owns the questions that should fail, and the tokenizer routes. The prompt that is too long is only sent where
the window is known and small enough to fill with one request.

    await probe_complaints(asker, report)
    report.value("overflow")   -> "HTTP 400, recognised"
"""

from __future__ import annotations

from typing import Any, Final

from antiphon.check.grammar import is_count
from antiphon.check.upstream.answers import question
from antiphon.check.upstream.asking import Asker, Reply
from antiphon.check.upstream.findings import Report
from antiphon.core.complaint import read_body
from antiphon.core.overflow import overflow

_NO_SUCH_MODEL: Final = "antiphon-check-no-such-model"
_LARGEST_WINDOW: Final = 200_000  # tokens; a larger prompt is no small request any more
_SHOWN: Final = 110


def error_form(reply: Reply) -> str:
    """The form of an error body, in the words of the table."""
    body = reply.json
    if isinstance(body, list):
        return "a list of errors"
    if not isinstance(body, dict):
        return read_body(reply.body).form
    if isinstance(body.get("error"), dict):
        return "nested: error.message"
    if isinstance(body.get("error"), str):
        return "a bare string: error"
    if "detail" in body:
        return "FastAPI: detail"
    if body.get("object") == "error" or isinstance(body.get("message"), str):
        return "flat: message"
    return "another JSON object"


async def probe_complaints(asker: Asker, report: Report, *, fill_window: bool = True) -> None:
    """`fill_window`: whether a prompt longer than the context may be sent."""
    bad = await asker.chat({"model": report.model, "messages": "nonsense", "stream": True})
    _say_error(report, "bad request", bad, "a nonsense request")
    other = question(report, "hi", 1) | {"model": _NO_SUCH_MODEL}
    unknown = await asker.chat(other)
    if unknown.ok:
        report.say("errors", "unknown model", "answered all the same", "the model's name is not read")
    else:
        _say_error(report, "unknown model", unknown)
    if fill_window:
        await _probe_overflow(asker, report)


def _say_error(report: Report, label: str, reply: Reply, accepted: str = "") -> None:
    if reply.status is None:
        report.say("errors", label, "no answer", reply.said)
        report.hurts(f"It does not answer a request that it should refuse ({label}): {reply.said}.")
    elif reply.ok and accepted:
        report.say("errors", label, "answered with HTTP 200")
        report.hurts(f"It answers {accepted} with HTTP 200: faults of clients will not be noticed.")
    else:
        said = read_body(reply.body).text[:_SHOWN]
        report.say("errors", label, f"HTTP {reply.status}, {error_form(reply)}", said)


async def _probe_overflow(asker: Asker, report: Report) -> None:
    window = report.window
    if window is None or window > _LARGEST_WINDOW:
        report.say("errors", "overflow", "not asked", "the window is unknown or too large to fill")
        return
    words = window + window // 8 + 16
    reply = await asker.chat(question(report, " a" * words, 1))
    complaint = read_body(reply.body)
    if reply.ok:
        usage = reply.members.get("usage")
        counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if is_count(counted) and counted <= window:
            report.say(
                "errors", "overflow", "cut in silence", f"{words} words sent, {counted} tokens counted"
            )
            report.hurts(
                f"A prompt over the window of {window} tokens is cut in silence: clients never compact, and"
                " the model forgets the beginning."
            )
        else:
            report.say("errors", "overflow", "accepted", "its window is larger than it says")
    elif reply.status is None:
        report.say("errors", "overflow", "unknown", reply.said)
    elif overflow(complaint.text, complaint.words, prompt=complaint.prompt, window=complaint.window):
        report.say("errors", "overflow", f"HTTP {reply.status}, recognised", complaint.text[:_SHOWN])
    else:
        report.say("errors", "overflow", f"HTTP {reply.status}, not recognised", complaint.text[:_SHOWN])
        report.hurts(
            f"Its words for a prompt that does not fit are unknown ({complaint.text[:80]!r}): clients get the"
            " error but do not compact."
        )


async def probe_tokens(asker: Asker, report: Report) -> None:
    """Whether it counts the tokens of a conversation, and where."""
    messages = [{"role": "user", "content": "hi"}]
    body: dict[str, Any] = {"model": report.model, "messages": messages}
    for path, at_root, member in (
        ("/tokenize", True, "count"),
        ("/chat/completions/input_tokens", False, "input_tokens"),
    ):
        reply = await asker.post(path, body, at_root=at_root)
        if reply.ok and is_count(reply.members.get(member)):
            window = reply.members.get("max_model_len")
            if is_count(window):
                report.window = report.window or window
            shown = path if at_root else f"/v1{path}"
            report.say("tokens", "tokenizer", shown, f"a short message has {reply.members[member]} tokens")
            return
    report.say("tokens", "tokenizer", "none", "count_tokens will be an estimate")
