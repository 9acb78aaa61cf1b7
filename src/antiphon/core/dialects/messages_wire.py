r"""What a native Anthropic upstream puts on the wire: one frame's data to a piece or an event.

Owns the shapes of Messages events and what makes a frame's JSON fit to travel on as it is: UTF-8, one line,
no half characters. It knows nothing of order and mends none of it.

    read_piece(b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}')
    -> Piece(0, "text_delta", "Hi", b'{"type":...}')
    read_event(b'{"type":"message_stop"}')   -> Native("message_stop", {...}, b'{"type":"message_stop"}')

Source: Anthropic's `types/raw_*_event.py`. Members are kept as raw JSON, so that key order, big numbers and
what is not known here come through unchanged.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec import Raw, Struct

DELTA_TEXT: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
    "signature_delta": "signature",
}
"""The deltas that carry a text, and the member that it stands in."""


class Piece(Struct, frozen=True, gc=False):
    """One `content_block_delta`. `index` is the upstream's, None where it gave no usable one.

    `text` is what the delta adds ("": nothing, or a kind of delta that carries no text). `payload` is the
    whole event as it may be sent on, b"" where it has to be written anew.
    """

    index: int | None
    word: str
    text: str
    payload: bytes = b""


class Native(Struct, frozen=True):
    """Any other event. `kind` is its type ("": none was given), `members` are those of its JSON object.

    `whole`: it was made from a whole JSON answer, so content in a start is no mistake.
    """

    kind: str
    members: dict[str, Raw]
    payload: bytes = b""
    whole: bool = False


# --- The delta that nearly every delta is ---------------------------------------------------------


class _Text(Struct, tag="text_delta", forbid_unknown_fields=True, gc=False):
    word: ClassVar[str] = "text_delta"
    s: str = msgspec.field(name="text")


class _Thinking(Struct, tag="thinking_delta", forbid_unknown_fields=True, gc=False):
    word: ClassVar[str] = "thinking_delta"
    s: str = msgspec.field(name="thinking")


class _InputJson(Struct, tag="input_json_delta", forbid_unknown_fields=True, gc=False):
    word: ClassVar[str] = "input_json_delta"
    s: str = msgspec.field(name="partial_json")


class _Plain(Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["content_block_delta"]
    index: int
    delta: _Text | _Thinking | _InputJson


_plain = msgspec.json.Decoder(_Plain).decode


def read_piece(payload: bytes) -> Piece | None:
    """A delta that says one text and nothing else. None: it is something else, `read_event` takes it.

    Every member is known here and checked by msgspec, so its bytes are UTF-8 and may travel on.
    """
    try:
        event = _plain(payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    delta = event.delta
    return Piece(event.index, delta.word, delta.s, payload if b"\n" not in payload else b"")


# --- Everything else ------------------------------------------------------------------------------

_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
# An escaped backslash first, so that the `\ud800` of `\\ud800` is not taken for an escape; then a whole pair;
# what is left after both is half of one.
_HALVES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_HALF = 6  # bytes in `\ud800`; a pair has twelve, an escaped backslash two


def read_event(payload: bytes, name: str = "") -> Piece | Native | None:
    """The event in a frame's data; None if it is no JSON object. Never raises.

    `name` is the frame's `event:` line, for data without a `type`.
    """
    sent = legible(payload)
    members = members_of(sent)
    if members is None:
        document = _tolerant(payload)
        if not isinstance(document, dict):
            return None
        sent = legible(json.dumps(document, separators=(",", ":")).encode())
        members = members_of(sent)
        if members is None:
            return None
    kind = word_of(members.get("type"))
    if not kind and name:
        kind = name
        members = {"type": encoded(name), **{key: raw for key, raw in members.items() if key != "type"}}
        sent = msgspec.json.encode(members)
    if kind == "content_block_delta":
        return _piece(members, payload, sent)
    return Native(kind, members, sent)


def legible(payload: bytes) -> bytes:
    """The same JSON in bytes that any client can read: U+FFFD stands for what is no character."""
    if b"\n" in payload:
        payload = payload.replace(b"\n", b" ")  # inside a string it would be no JSON
    if not payload.isascii():
        payload = payload.decode("utf-8", "replace").encode()
    if _ESCAPE.search(payload):
        payload = _HALVES.sub(lambda match: b"\\ufffd" if len(match[0]) == _HALF else match[0], payload)
    return payload


def members_of(raw: bytes | Raw | None) -> dict[str, Raw] | None:
    """The members of a JSON object, each as raw JSON; None if it is none."""
    if raw is None:
        return None
    try:
        return _MEMBERS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def value_of(raw: Raw | None) -> Any:
    """The decoded value of a member; None where there is none or it cannot be read."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def word_of(raw: Raw | None) -> str:
    """A member that is a string; "" for everything else."""
    value = value_of(raw)
    return value if isinstance(value, str) else ""


def encoded(value: Any) -> Raw:
    """Any value as raw JSON."""
    return Raw(msgspec.json.encode(value))


def size_of(value: Any) -> int:
    """Bytes of a value's JSON."""
    return memoryview(value).nbytes if isinstance(value, Raw) else len(msgspec.json.encode(value))


def _piece(members: dict[str, Raw], payload: bytes, sent: bytes) -> Piece:
    index = index_of(members)
    if index is not None and members["index"] != Raw(b"%d" % index):
        members["index"] = Raw(b"%d" % index)
        sent = msgspec.json.encode(members)
    delta = members_of(members.get("delta")) or {}
    word = word_of(delta.get("type"))
    name = DELTA_TEXT.get(word)
    if not word:  # told by what it carries
        word, name = next((row for row in DELTA_TEXT.items() if row[1] in delta), ("", None))
        sent = b""
    if name is None:
        return Piece(index, word, "", sent)
    text = word_of(delta.get(name))
    if _ESCAPE.search(payload):
        # Its first half may have come with the last delta: the text as it is, halves and all.
        document = _tolerant(payload)
        halves = document["delta"].get(name) if isinstance(document, dict) else None
        if isinstance(halves, str) and halves != text:
            return Piece(index, word, halves)
    return Piece(index, word, text, sent)


def index_of(members: dict[str, Raw]) -> int | None:
    """The `index` of an event, None where it is missing or no count."""
    value = value_of(members.get("index"))
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _tolerant(payload: bytes) -> Any:
    """Decoded as liberally as Python does; None if it is no JSON."""
    try:
        return json.loads(payload.decode("utf-8-sig", "replace"), strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
