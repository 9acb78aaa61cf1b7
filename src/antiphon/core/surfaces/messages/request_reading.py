"""From a request's bytes to typed structs, with the path of whatever is wrong.

Owns what holds for every object of a Messages request: one strict decode as the fast path, and where that
refuses, a second look that leaves out (and notes) the members which the struct does not know. It knows no
field of the API, and it must never let a decoder's exception out: everything wrong is a `RequestError`.

    shape = Shape(Text, Image)
    shape.read(b'{"type":"text","text":"hi","new":1}', "messages.0.content.0", unknown)  -> Text("hi")
    unknown                                                    -> {"messages.*.content.*.new": None}
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, inspect

from antiphon.core.parts import Fault

S = TypeVar("S", bound=Struct)

DEPTH_LIMIT = 200
"""Objects and lists that may stand inside one another: deeper is an attack, and recursion has an end."""

NULL = Raw(b"null")
"""The default of a member that is kept as raw JSON: absent and null mean the same."""


class RequestError(Exception):
    """A request that cannot be carried out as it is: HTTP 400. The message begins with the path."""

    def __init__(self, path: str, reason: str) -> None:
        message = f"{path}: {reason}" if path else reason
        super().__init__(message)
        self.fault = Fault("invalid_request_error", message, 400)


class Foreign(Struct, frozen=True):
    """A content block of a type that this gateway does not know; `raw` is the block as it came."""

    type: str
    raw: Raw


class Shape(Generic[S]):
    """Reads JSON objects into one struct class, or into several that are told apart by `type`.

    The classes are declared with `forbid_unknown_fields`: the strict decode then doubles as the key walk.
    A class may name in `unused` members that it knows and that nothing uses: they are noted as well.
    """

    def __init__(self, *classes: type[S]) -> None:
        self._tagged = classes[0].__struct_config__.tag is not None
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_union(classes))
        self._classes = {str(each.__struct_config__.tag): each for each in classes}
        self._only = classes[0]
        self._unused: dict[type, tuple[str, ...]] = {each: getattr(each, "unused", ()) for each in classes}
        self._integers: dict[type, list[str]] = {each: _integers_of(each) for each in classes}

    def read(self, raw: bytes | Raw, path: str, unknown: dict[str, None]) -> S:
        """The object as a struct. Raises RequestError, also for a `type` that no class has."""
        found = self.read_or_foreign(raw, path, unknown)
        if isinstance(found, Foreign):
            expected = ", ".join(f"'{tag}'" for tag in self._classes)
            raise RequestError(f"{path}.type", f"Unexpected value '{found.type[:64]}'; expected {expected}")
        return found

    def read_or_foreign(self, raw: bytes | Raw, path: str, unknown: dict[str, None]) -> S | Foreign:
        """As `read`, but an unknown `type` gives a Foreign block."""
        try:
            found: S = self._decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            other = self._look_again(raw, path, unknown)
            if isinstance(other, Foreign):
                return other
            found = other
        for name in self._unused[type(found)]:
            value = getattr(found, name)
            if value is not NULL and value != NULL:
                unknown[starred(f"{path}.{name}".lstrip("."))] = None
        return found

    def _look_again(self, raw: bytes | Raw, path: str, unknown: dict[str, None]) -> S | Foreign:
        members = _members(raw, path)
        chosen = self._only
        if self._tagged:
            tag = _tag(members, path)
            if tag not in self._classes:
                return Foreign(tag, Raw(bytes(raw)))
            chosen = self._classes[tag]
        known = {*chosen.__struct_encode_fields__, *(("type",) if self._tagged else ())}
        for name in members:
            if name not in known:
                unknown[starred(f"{path}.{printable(name)}".lstrip("."))] = None
        for name in self._integers[chosen]:
            if name in members:
                members[name] = _whole(members[name])
        # A dict keeps the last of two equal keys, as every reader of JSON does that accepts them.
        kept = msgspec.json.encode({name: value for name, value in members.items() if name in known})
        try:
            found: S = self._decoder.decode(kept)
        except (msgspec.DecodeError, RecursionError) as refused:
            raise _located(path, str(refused)) from None
        return found


def checked(body: bytes) -> bytes:
    """The body if it can be read further, lone surrogates replaced. Raises RequestError.

    Raw members are passed on without being read again, so what may be in them is settled here: UTF-8, no
    lone surrogate (U+FFFD stands for it), not nested deeper than `DEPTH_LIMIT`.
    """
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as broken:
            where = broken.start
            raise RequestError("", f"The request body is not valid JSON: not UTF-8 at byte {where}") from None
    if _SURROGATE.search(body):
        body = _SURROGATES.sub(_mended, body)
    if len(body) > 2 * DEPTH_LIMIT and _depth(body) > DEPTH_LIMIT:
        raise RequestError("", f"The request body is nested deeper than {DEPTH_LIMIT} levels")
    return body


def members_of(body: bytes) -> None:
    """Raises RequestError unless the body is one JSON object."""
    try:
        _MEMBERS.decode(body)
    except msgspec.ValidationError:
        raise RequestError("", "The request body must be a JSON object") from None
    except (msgspec.DecodeError, RecursionError) as broken:
        raise RequestError("", f"The request body is not valid JSON: {broken}") from None


def starred(path: str) -> str:
    """A path with `*` for each index."""
    return _INDEX.sub(".*", path)


def printable(name: str) -> str:
    """A member's name if it looks like one: a client's text must not end up in labels and log lines."""
    return name if _NAME.fullmatch(name) else "?"


_INDEX = re.compile(r"\.\d+(?=\.|$)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_STRING = msgspec.json.Decoder(str)
_FLOAT = msgspec.json.Decoder(float)
_EXACT = 2**53  # from here on a float does not say which integer was meant
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# An escaped backslash first, so that the `\ud800` of `\\ud800` is not taken for an escape; then a whole
# pair; what is left after both is half of one.
_SURROGATES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_LONE = 6  # bytes in `\ud800`; a pair has twelve, an escaped backslash two
_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_AT = re.compile(r"(?s)(.*?)(?: - at `\$(.*)`)?")
_EXPECTED = re.compile(r"Expected `([^`]+)`((?: >= | <= )-?[\d.]+)?(?:, got .*)?")
_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "array": "list"}


def _union(classes: tuple[type[S], ...]) -> Any:
    union: Any = classes[0]
    for each in classes[1:]:
        union |= each
    return union


def _integers_of(each: type[Struct]) -> list[str]:
    """The members that take an integer and no other number."""
    found = []
    for member in inspect.type_info(each).fields:  # type: ignore[attr-defined]  # a Struct's info has fields
        kinds = member.type.types if isinstance(member.type, inspect.UnionType) else (member.type,)
        names = {type(kind) for kind in kinds}
        if inspect.IntType in names and inspect.FloatType not in names:
            found.append(member.name)
    return found


def _whole(raw: Raw) -> Raw:
    """`1000.0` and `1e3` as `1000`, as every reader has it that knows one kind of number; else unchanged."""
    try:
        value = _FLOAT.decode(raw)
    except msgspec.DecodeError:
        return raw
    return Raw(b"%d" % int(value)) if value.is_integer() and abs(value) < _EXACT else raw


def _members(raw: bytes | Raw, path: str) -> dict[str, Raw]:
    try:
        return _MEMBERS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise RequestError(path, "Input should be an object") from None


def _tag(members: dict[str, Raw], path: str) -> str:
    if "type" not in members:
        raise RequestError(f"{path}.type", "Field required")
    try:
        return _STRING.decode(members["type"])
    except msgspec.DecodeError:
        raise RequestError(f"{path}.type", "Input should be a valid string") from None


def _mended(match: re.Match[bytes]) -> bytes:
    found = match[0]
    return b"\\ufffd" if len(found) == _LONE else found


def _depth(body: bytes) -> int:
    """How deep objects and lists stand inside one another, without a look at what they hold.

    Needs no valid JSON: escaped quotes go, everything but brackets and quotes goes, then every second
    piece between quotes is the inside of a string.
    """
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _ALL_BUT_STRUCTURE)
    brackets = b"".join(bare.split(b'"')[::2]).translate(_STEPS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0)


def _located(path: str, message: str) -> RequestError:
    """A decoder's complaint in the words that Anthropic's clients know, with the whole path."""
    match = _AT.fullmatch(message)
    reason, inner = (match[1], match[2] or "") if match else (message, "")
    where = (path + inner.replace("[...]", ".*").replace("[", ".").replace("]", "")).lstrip(".")
    if reason.startswith("Object missing required field"):
        return RequestError(f"{where}.{reason.split('`')[1]}".lstrip("."), "Field required")
    expected = _EXPECTED.fullmatch(reason)
    if expected:
        kinds = [kind for kind in expected[1].split(" | ") if kind != "null"]
        if "float" in kinds:  # an integer is a number
            kinds = [kind for kind in kinds if kind != "int"]
        words = [_WORDS.get(kind, kind) for kind in kinds]
        return RequestError(where, f"Input should be a valid {' or '.join(words)}{expected[2] or ''}")
    return RequestError(where, reason[:200])
