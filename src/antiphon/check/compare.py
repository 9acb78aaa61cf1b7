"""Whether what came is what a corpus case expects. Comparisons by meaning, pure.

Owns the wildcards of the corpus (`<int>`, `<requested model>` ...) and one sentence for each difference.
`None` means that it holds. Streams are compared folded: deltas joined, pings dropped, tool input parsed,
signatures free.

    difference("<int>", -1, "m")   -> "-1, expected <int>"
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from antiphon.check.fold import Folded, fold
from antiphon.check.grammar import is_count, table

_SHOWN = 140  # characters of a value in a sentence
_ID = re.compile(r"[A-Za-z0-9_-]+")


def show(value: object) -> str:
    """A value for a sentence, short."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def difference(want: Any, got: Any, model: str) -> str | None:
    """Members that `want` names must be in `got`; lists are exact; `model` is the name that was asked for."""
    return None if _equal(want, got, model) else f"{show(got)}, expected {show(want)}"


def _equal(want: Any, got: Any, model: str) -> bool:
    if isinstance(want, str) and want.startswith("<") and want.endswith(">"):
        return _wild(want[1:-1], got, model)
    if isinstance(want, dict):
        return isinstance(got, dict) and all(
            key in got and _equal(value, got[key], model) for key, value in want.items()
        )
    if isinstance(want, list):
        return (
            isinstance(got, list)
            and len(want) == len(got)
            and all(_equal(a, b, model) for a, b in zip(want, got, strict=True))
        )
    return type(want) is type(got) and bool(want == got)


def _wild(word: str, got: object, model: str) -> bool:
    if word.startswith("int"):
        return is_count(got) and got >= (">" in word)  # `<int > 0>` is one that was counted
    if word.startswith("msg_"):
        return isinstance(got, str) and got.startswith("msg_")
    if word.startswith("toolu_"):
        return isinstance(got, str) and bool(_ID.fullmatch(got))
    if word == "requested model":
        return got == model
    return isinstance(got, str)


# --- Streams ---------------------------------------------------------------------------------------


def stream_difference(
    want_events: list[dict[str, Any]],
    got_events: list[dict[str, Any]],
    model: str,
    *,
    judge_model: bool = False,
) -> str | None:
    """`judge_model`: whether the model's name in message_start counts."""
    want, got = fold(want_events), fold(got_events)
    return (
        _error_difference(want, got)
        or _content_difference(want, got, model)
        or _finish_difference(want, got, model)
        or _start_difference(want, got, model, judge_model=judge_model)
    )


def _error_difference(want: Folded, got: Folded) -> str | None:
    if want.error is None:
        return None if got.error is None else f"an error event came: {show(got.error)}"
    kind = str(want.error.get("type"))
    if got.error is None:
        return f"the stream ended as a success, expected an error event ({kind})"
    if not kind.startswith("<") and got.error.get("type") != kind:
        return f"the error has type {got.error.get('type')!r}, expected {kind!r}"
    return None


def _content_difference(want: Folded, got: Folded, model: str) -> str | None:
    if len(want.content) != len(got.content):
        shapes = [
            ", ".join(str(block.get("type")) for block in side.content) or "none" for side in (got, want)
        ]
        return f"blocks: {shapes[0]}; expected {shapes[1]}"
    for at, (a, b) in enumerate(zip(want.content, got.content, strict=True)):
        free = {key: value for key, value in a.items() if key != "signature"}
        if found := difference(free, b, model):
            return f"block {at} is {found}"
    if want.error is not None and want.closed != got.closed:
        return (
            f"{got.closed} blocks were stopped before the error, expected {want.closed}:"
            " the interrupted block stays open"
        )
    return None


def _finish_difference(want: Folded, got: Folded, model: str) -> str | None:
    if want.error is not None:
        return None
    for key in ("stop_reason", "stop_sequence"):
        if getattr(want, key) != getattr(got, key):
            return f"{key} is {getattr(got, key)!r}, expected {getattr(want, key)!r}"
    return _usage_difference("usage", want.usage, got.usage, model)


def _start_difference(want: Folded, got: Folded, model: str, *, judge_model: bool) -> str | None:
    if found := _usage_difference("message_start usage", want.start_usage, got.start_usage, model):
        return found
    if judge_model and want.model is not None and not _equal(want.model, got.model, model):
        return f"the model is {got.model!r}, expected {model!r}"
    return None


def _usage_difference(where: str, want: Mapping[str, Any], got: Mapping[str, Any], model: str) -> str | None:
    for key, value in want.items():
        if found := difference(value, got.get(key), model):
            return f"{where}.{key} is {found}"
    return None


# --- Requests as the upstream got them ---------------------------------------------------------------


def request_difference(
    want: Mapping[str, Any], sent: object, model: str, *, absent: list[str] | None = None
) -> str | None:
    """The members of `want` must have arrived, those of `absent` must not; the model's name is free."""
    body = table(sent)
    for key, value in want.items():
        if key == "model":
            continue
        same = _messages_equal if key == "messages" and isinstance(value, list) else _equal
        if not same(value, body.get(key), model):
            return f"the upstream got {key} = {show(body.get(key))}, expected {show(value)}"
    found = [key for key in absent or [] if key in body]
    return f"the upstream got {', '.join(found)}" if found else None


def pieces_missing(messages: list[dict[str, Any]], sent: object) -> str | None:
    """Where several forms are right: every word, image and tool id of `messages` must be somewhere in it."""
    everything = json.dumps(table(sent).get("messages", []), ensure_ascii=False)
    for message in messages:
        pieces: list[str] = [json.dumps(message["tool_call_id"])] if "tool_call_id" in message else []
        content = message.get("content")
        parts: list[dict[str, Any]] = content if isinstance(content, list) else [{"text": content or ""}]
        for part in parts:
            text = part.get("text", "")
            pieces += [] if text.startswith("<") else text.split()
            pieces += [part["image_url"]["url"]] if "image_url" in part else []
        for piece in pieces:
            if piece not in everything:
                return f"the upstream did not get {piece}: {show(everything)}"
    return None


def leaked(expected: Mapping[str, Any], headers: Mapping[str, str], body: object) -> str | None:
    """Headers outside the allowed ones, and strings that may appear nowhere upstream."""
    allowed = expected.get("upstream_headers_only")
    extra = sorted(set(headers) - set(allowed)) if allowed else []
    if extra:
        return f"the upstream got the headers {', '.join(extra)}"
    everything = json.dumps([dict(headers), body])
    found = [piece for piece in expected.get("upstream_never", []) if piece in everything]
    return f"the upstream got {', '.join(found)}" if found else None


def _joined(content: object) -> str | None:
    """The text of content that is only text, else None; no content is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        return "\n".join(str(part.get("text", "")) for part in content)
    return None


def _messages_equal(want: list[dict[str, Any]], got: object, model: str) -> bool:
    if not isinstance(got, list) or len(want) != len(got):
        return False
    return all(_message_equal(a, b, model) for a, b in zip(want, got, strict=True))


def _message_equal(want: dict[str, Any], got: object, model: str) -> bool:
    if not isinstance(got, dict):
        return False
    text, other = _joined(want.get("content")), _joined(got.get("content"))
    if text is None or other is None:
        same = text is None and other is None and _equal(want.get("content"), got.get("content"), model)
    else:
        same = _equal(text, other, model) or text.split() == other.split()
    rest = {key: value for key, value in want.items() if key != "content"}
    return same and _equal(_parsed_calls(rest), _parsed_calls(got), model)


def _parsed_calls(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls parsed, so that spacing and order do not count."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_parsed_call(call) for call in calls]}


def _parsed_call(call: Any) -> Any:
    function = table(table(call).get("function"))
    arguments = function.get("arguments")
    if not isinstance(arguments, str) or arguments.startswith("<"):
        return call
    try:
        return {
            **call,
            "function": {**function, "arguments": json.dumps(json.loads(arguments), sort_keys=True)},
        }
    except ValueError:
        return call
