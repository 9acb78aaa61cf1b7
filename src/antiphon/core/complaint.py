"""What an upstream said when it failed, whatever shape it said it in.

Owns the shapes: `{"error": {...}}`, `{"error": "text"}`, flat `{"object": "error", ...}`, FastAPI's
`{"detail": ...}`, arrays, `base_resp`, JSON inside strings, `data:` lines, HTML, plain text, nothing at
all, bytes that are no text. It judges nothing: `faults` maps the words and numbers found here.
Never raises; looks at no more than the first 64 KiB and at six levels of nesting.

    read_body(b'{"object":"error","message":"bad","type":"BadRequestError","code":400}')
    -> Complaint(text="bad", words=["BadRequestError"], codes=[400], ...)
"""

from __future__ import annotations

import json
import re
from typing import Final

from msgspec import Struct, field

from antiphon.core.retry import read_wait

_LOOKED_AT: Final = 64 * 1024
_DEEPEST: Final = 6
_MOST_ITEMS: Final = 8  # of a list of complaints; a client needs the first ones


class Complaint(Struct):
    """`text` is what the upstream said, not scrubbed ("": nothing). `form` names what the body was.

    `words` are its types and codes as it spelled them, `codes` those that are HTTP statuses (400 to
    599), `subject` the request field that it names. `prompt` and `window` are token counts that came as
    fields of their own (llama.cpp's `n_prompt_tokens` and `n_ctx`).
    """

    text: str = ""
    form: str = "an empty body"
    words: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    subject: str = ""
    prompt: int | None = None
    window: int | None = None
    retry_after: str | None = None
    is_error: bool = False


def is_error(obj: dict[str, object]) -> bool:
    """Whether this decoded JSON object reports a failure.

    A truthy `error` is one whatever else the object holds (the official OpenAI client's rule, and what
    OpenRouter sends beside `choices`); `"error": null` is not. Without `choices`, `detail`, `errors` and
    a message with a code are failures too.
    """
    base = obj.get("base_resp")  # MiniMax: {"status_code": 0} in every good answer
    if obj.get("error") or "error" in (obj.get("object"), obj.get("type")):
        return True
    if isinstance(base, dict) and base.get("status_code"):
        return True
    if obj.get("choices"):
        return False
    if (
        obj.get("error") not in (None, False)
        or obj.get("detail")
        or obj.get("errors")
        or obj.get("error_msg")
    ):
        return True
    code = next((obj[key] for key in _CODE_KEYS if obj.get(key) is not None), None)
    fine = code is None or isinstance(code, dict | list) or str(code).lower() in _FINE
    return not fine and isinstance(obj.get("message") or obj.get("msg"), str)


def read_error(value: object) -> Complaint:
    """The complaint in decoded JSON (or in a bare string)."""
    complaint = Complaint(form="JSON", is_error=not isinstance(value, dict) or is_error(value))
    texts: list[str] = []
    _collect(value, complaint, texts, 0)
    complaint.text = _joined(texts)
    return complaint


def read_body(body: bytes) -> Complaint:
    """The complaint in an HTTP body of any type."""
    text = body[:_LOOKED_AT].decode("utf-8", "replace").lstrip("\ufeff").strip()
    if not text:
        return Complaint()
    if (frame := _DATA_LINE.search(text)) is not None:
        text = frame[1]
    if text[0] in '{["':
        value = _decode(text)
        if value is not _NOT_JSON:
            complaint = read_error(value)
            # A list or a string is an error only if the status says so, or if it holds an error object.
            if not isinstance(value, dict):
                complaint.is_error = isinstance(value, list) and any(
                    isinstance(v, dict) and is_error(v) for v in value
                )
            return complaint
        if text[0] == "{" or text.startswith("[{"):
            return _salvage(text)
    if text[0] == "<":
        title = _TITLE.search(text)
        return Complaint(form=f'an HTML page ("{title[1].strip()}")' if title else "an HTML page")
    if len(_UNREADABLE.findall(text)) * 10 > len(text):
        return Complaint(form="an unreadable body")
    return Complaint(text=text, form="plain text")


# --- Reading ------------------------------------------------------------------------------------

_NOT_JSON: Final = object()
_FINE = frozenset({"", "0", "200", "ok", "success", "succeeded", "true", "none"})
_CODE_KEYS = ("code", "status", "status_code", "statusCode", "error_code", "errorCode", "http_status")
_WORD_KEYS = (*_CODE_KEYS, "type", "error_type", "reason")
_NESTED_KEYS = ("error", "errors", "detail", "base_resp")
_TEXT_KEYS = (
    "message",
    "msg",
    "error_msg",
    "error_message",
    "errorMessage",
    "status_msg",
    "error_description",
)
_WAIT_KEYS = ("retry_after", "retryDelay")  # retryDelay: Gemini's google.rpc.RetryInfo
# Gemini's `details` and Anthropic's have machine words; OpenRouter keeps its provider's own answer in `raw`.
_QUIET_KEYS = ("details",)

_DATA_LINE = re.compile(r"\A(?::[^\n]*\n|event:[^\n]*\n|id:[^\n]*\n|\s)*data:[ ]?([{\[][^\n]*)")
_TITLE = re.compile(r"<title[^>]{0,200}>\s{0,200}([^<]{1,200})", re.IGNORECASE)
_UNREADABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufffd]")


def _decode(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # cut at 64 KiB, no JSON at all, or nested to do harm
        return _NOT_JSON


def _collect(value: object, into: Complaint, texts: list[str], depth: int, *, quiet: bool = False) -> None:
    if depth > _DEEPEST:
        return
    if isinstance(value, str):
        inner = _decode(value) if value[:1] in ("{", "[") and len(value) <= _LOOKED_AT else _NOT_JSON
        if isinstance(inner, dict | list):
            _collect(inner, into, texts, depth + 1, quiet=quiet)
        elif value.strip() and not quiet:
            texts.append(value.strip())
    elif isinstance(value, list):
        for item in value[:_MOST_ITEMS]:
            _collect(item, into, texts, depth + 1, quiet=quiet)
    elif isinstance(value, dict):
        _collect_object(value, into, texts, depth, quiet=quiet)


def _collect_object(
    obj: dict[str, object], into: Complaint, texts: list[str], depth: int, *, quiet: bool
) -> None:
    for key in _WORD_KEYS:
        _collect_word(obj.get(key), into)
    for key in _WAIT_KEYS:
        wait = obj.get(key)
        if isinstance(wait, str | int | float) and not isinstance(wait, bool):
            into.retry_after = into.retry_after or read_wait(str(wait))
    into.prompt = into.prompt or _count(obj.get("n_prompt_tokens"))
    into.window = into.window or _count(obj.get("n_ctx"))
    param = obj.get("param")
    into.subject = into.subject or (param if isinstance(param, str) else "")

    for key in _NESTED_KEYS:
        inner = obj.get(key)
        if isinstance(inner, int):  # {"error": 500}
            _collect_word(inner, into)
        _collect(inner, into, texts, depth + 1, quiet=quiet)
    said: list[str] = []
    for key in _TEXT_KEYS:
        _collect(obj.get(key), into, said, depth + 1, quiet=quiet)
    where = _field_path(obj.get("loc"))
    texts.extend([f"{where}: {said[0]}", *said[1:]] if where and said else said)
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        _collect(metadata.get("raw"), into, texts, depth + 1, quiet=quiet)
    for key in _QUIET_KEYS:
        if isinstance(obj.get(key), dict | list):
            _collect(obj[key], into, texts, depth + 1, quiet=True)


def _collect_word(value: object, into: Complaint) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | str)
        or (isinstance(value, str) and len(value) > 100)
    ):
        return
    word = str(value).strip() if not isinstance(value, int) or abs(value) < 10**9 else ""
    if word.isascii() and word.isdigit() and 400 <= int(word) <= 599:
        into.codes.append(int(word))
    elif word:
        into.words.append(word)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**12 else None


def _field_path(loc: object) -> str:
    """FastAPI's `["body", "messages", 1, "role"]` as `messages.1.role`."""
    if not isinstance(loc, list):
        return ""
    steps = [str(step) for step in loc[:20] if isinstance(step, str | int) and not isinstance(step, bool)]
    return ".".join(steps[1:] if steps[:1] == ["body"] else steps)


def _joined(texts: list[str]) -> str:
    """Each text once; `Bad Request` beside `Bad Request: no model` adds nothing."""
    kept: list[str] = []
    for text in texts:
        if not any(text in other for other in kept):
            kept = [other for other in kept if other not in text]
            kept.append(text)
    return ": ".join(kept) if len(kept) == 2 and len(kept[0]) < 100 else "; ".join(kept)


# --- JSON that was cut off ----------------------------------------------------------------------

_STRING = r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)'  # the last one may lack its end
_SALVAGED = re.compile(
    r'"(?P<key>message|msg|detail|error|loc|type|code|status)"\s*:\s*'
    rf"(?P<value>{_STRING}|\d{{1,9}}|\[[^\[\]]{{0,300}}\])"
)
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")


def _salvage(text: str) -> Complaint:
    """The first message, place and code of a JSON text that does not parse.

    FastAPI repeats the whole request in its 422 answers, so they are often longer than what is read.
    """
    found: dict[str, object] = {}
    for match in _SALVAGED.finditer(text):
        value = _decode(match["value"])
        if value is _NOT_JSON:
            value = _decode(_HALF_ESCAPE.sub("", match["value"]) + '"')
        if value is not _NOT_JSON:
            found.setdefault(match["key"], value)
        if match["key"] in {"message", "msg"}:
            break
    complaint = read_error(found)
    complaint.form = "broken JSON"
    complaint.is_error = False
    return complaint
