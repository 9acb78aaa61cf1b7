r"""What one content block becomes in a Chat Completions message: text, an image, or a refusal by name.

Owns the single block; the order of messages is `chat_messages`'. Content that the model would answer about
is never left out: what no upstream can take (a PDF that nobody opened, an image for a text server, a block
that nobody knows) is a RequestError with the block's path. In the assistant's own history nothing is refused,
because that would make a conversation unusable: what has text is kept as text, the rest is reported as
degraded. PDFs are opened before (`documents`) and arrive here as documents with content.

    pieces(Document(Source("text", data='"DOC"')), ...) -> ["<document>\nDOC\n</document>"]
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Raw

from antiphon.core.dialects.documents import is_pdf
from antiphon.core.surfaces.messages.request import RequestError
from antiphon.core.surfaces.messages.request_blocks import (
    Block,
    Document,
    Image,
    SearchResult,
    Source,
    Text,
    ToolReference,
    ToolResult,
    ToolUse,
)
from antiphon.core.surfaces.messages.request_reading import NULL, Foreign

if TYPE_CHECKING:
    from antiphon.core.dialects.losses import Losses
    from antiphon.core.dialects.quirks import Quirks


class Picture:
    """An image's URL as raw JSON in two pieces: megabytes of base64 are never unpacked, and copied once."""

    __slots__ = ("head", "tail")

    def __init__(self, head: bytes, tail: memoryview | bytes) -> None:
        self.head = head
        self.tail = tail


class Marked(str):
    """A text with the `cache_control` that the client put on it, for servers that know the mark."""

    __slots__ = ("cache_control",)
    cache_control: Raw


def marked(text: str, block: Text | ToolResult) -> str:
    """A block's text, with the block's mark if it has one."""
    if block.cache_control == NULL:
        return text
    with_mark = Marked(text)
    with_mark.cache_control = block.cache_control
    return with_mark


Piece: TypeAlias = str | Picture

# What Anthropic's own servers put into a conversation: calls and results of tools that they ran.
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use", "mcp_tool_listing"})
_SERVER_RESULT = "_tool_result"
# Says which model answered instead of another; no model reads it.
_FALLBACK = "fallback"
# A summary in place of older turns; its text is all that is left of them.
_COMPACTION = "compaction"
# Members that no model reads: sealed values, file ids, and the block's own bookkeeping.
_SEALED = re.compile(r"encrypted_.*|signature|cache_control|caller|type|id|tool_use_id|file_id|data")
# Texts that some clients send as base64; the API itself takes only PDFs so.
_TEXT_TYPE = re.compile(r"(?i:text/[a-z0-9.+-]+|application/(?:[a-z0-9.-]+\+)?(?:json|xml|yaml))")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+")
_STRING = msgspec.json.Decoder(str)
_IMAGE_MARK = "[image]"
_ERROR_MARK = "Error: "


def pieces(block: Block, path: str, quirks: Quirks, losses: Losses) -> list[Piece]:
    """A block of the user's side. Raises RequestError for what cannot be said to the server."""
    match block:
        case Text():
            return [marked(block.text, block)] if block.text else []
        case Image():
            return [_image(block.source, path, quirks)]
        case Document():
            if block.cited:
                losses.degrade(f"{path}.citations")
            return _document(block, path, quirks, losses)
        case SearchResult():
            if block.cited:
                losses.degrade(f"{path}.citations")
            return [_search_result(block, path)]
        case ToolReference():
            return [f"tool {block.tool_name} is now available"]
        case Foreign():
            if not _is_known(block.type):
                raise RequestError(f"{path}.type", f"'{block.type[:64]}' content blocks are not supported")
            return [*_as_text(block, path, losses)]
        case _:
            raise RequestError(path, "this content block is not allowed here")


def spoken(block: Block, path: str, quirks: Quirks, losses: Losses) -> list[str]:
    """A block of the assistant's history that is neither text, thinking nor a call. Never raises."""
    if isinstance(block, Foreign):
        if not _is_known(block.type):
            losses.degrade(path)
        return _as_text(block, path, losses)
    try:
        found = pieces(block, path, quirks, losses)
    except RequestError:
        losses.degrade(path)
        return []
    texts = [piece for piece in found if isinstance(piece, str)]
    if len(texts) < len(found):  # an image: only the user's side can show one
        losses.degrade(path)
    return texts


def result(block: ToolResult, path: str, quirks: Quirks, losses: Losses) -> tuple[str, list[Piece]]:
    """The content of a `tool` message, which can only be text, and the images to show after it."""
    texts: list[str] = []
    images: list[Piece] = []
    for k, inner in enumerate(block.content):
        for piece in pieces(inner, f"{path}.content.{k}", quirks, losses):
            if isinstance(piece, str):
                texts.append(piece)
            else:
                texts.append(_IMAGE_MARK)
                images.append(piece)
    text = "\n".join(texts)
    return (_ERROR_MARK + text if block.is_error else text), images


def arguments(call: ToolUse) -> str:
    """`input` as the JSON text that a function call carries: the same tokens, no white space between."""
    if call.input == NULL:
        return "{}"
    return msgspec.json.format(bytes(call.input), indent=-1).decode()


# --- Images, documents, search results ------------------------------------------------------------


def _image(source: Source, path: str, quirks: Quirks) -> Picture:
    """The image by its URL. Only the two kinds of URL that a server may fetch or unpack."""
    if quirks.images == "none":
        raise RequestError(path, "image: this model's server takes text only")
    if source.type == "base64":
        if source.media_type is None or not _MEDIA_TYPE.fullmatch(source.media_type):
            raise RequestError(f"{path}.source.media_type", "Input should be a media type such as image/png")
        data = _json_string(source.data, f"{path}.source.data")
        return Picture(b'"data:%b;base64,' % source.media_type.encode(), data[1:])
    if source.type == "url":
        url = source.url or ""
        scheme = url.partition(":")[0].lower()
        if scheme not in {"http", "https", "data"}:
            raise RequestError(f"{path}.source.url", "Input should be an http, https or data URL")
        if quirks.images == "base64" and scheme != "data":
            raise RequestError(f"{path}.source", "image: this model's server takes base64 images, not URLs")
        return Picture(msgspec.json.encode(url), b"")
    raise RequestError(f"{path}.source.type", f"image sources of type '{source.type[:64]}' are not supported")


def _document(block: Document, path: str, quirks: Quirks, losses: Losses) -> list[Piece]:
    source = block.source
    inner: list[Piece] = []
    if source.type == "text":
        inner.append(_STRING.decode(_json_string(source.data, f"{path}.source.data")))
    elif source.type == "content":
        for k, each in enumerate(source.content):
            inner += pieces(each, f"{path}.source.content.{k}", quirks, losses)
    else:
        inner.append(_encoded_text(source, path))
    head = ["<document>"]
    if block.title:
        head.append(f"<title>{block.title}</title>")
    if block.context:
        head.append(f"<context>{block.context}</context>")
    if all(isinstance(piece, str) for piece in inner):
        return ["\n".join([*head, *(piece for piece in inner if isinstance(piece, str)), "</document>"])]
    return ["\n".join(head), *inner, "</document>"]


def _encoded_text(source: Source, path: str) -> str:
    """The text of a base64 source, if it is one. Raises RequestError that names the document's kind."""
    kind = f"document {(source.media_type or f'of source type {source.type!r}')[:64]}"
    if source.type in {"url", "file"}:
        raise RequestError(
            path, f"{kind}: a {source.type} source is not fetched here: send the document itself"
        )
    if source.type != "base64":
        raise RequestError(path, f"{kind} is not supported")
    data = _STRING.decode(_json_string(source.data, f"{path}.source.data"))
    if is_pdf(source):
        raise RequestError(path, f"{kind}: PDFs are not read here: send its text instead")
    if source.media_type is None or not _TEXT_TYPE.fullmatch(source.media_type):
        raise RequestError(path, f"{kind} is not supported: send its text instead")
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):  # not ASCII, not base64, not UTF-8
        raise RequestError(path, f"{kind}: its data is not the base64 of a UTF-8 text") from None


def _search_result(block: SearchResult, path: str) -> str:
    lines = ["<search_result>", f"<source>{block.source}</source>", f"<title>{block.title}</title>"]
    for k, each in enumerate(block.content):
        if not isinstance(each, Text):
            raise RequestError(f"{path}.content.{k}.type", "Unexpected value; expected 'text'")
        lines.append(each.text)
    return "\n".join([*lines, "</search_result>"])


def _json_string(raw: Raw, path: str) -> memoryview:
    view = memoryview(raw)
    if view[0] != ord('"'):
        raise RequestError(path, "Field required" if raw == NULL else "Input should be a valid string")
    return view


# --- Blocks of other servers and of other times ---------------------------------------------------


def _is_known(kind: str) -> bool:
    return kind in _SERVER_CALLS or kind.endswith(_SERVER_RESULT) or kind in {_FALLBACK, _COMPACTION}


def _as_text(block: Foreign, path: str, losses: Losses) -> list[str]:
    """What a model can read of it: a text of its own, or its members as JSON."""
    try:
        members = msgspec.json.decode(block.raw)
    except (msgspec.DecodeError, RecursionError):  # a number beyond all bounds
        losses.degrade(path)
        return []
    if block.type == _FALLBACK:
        losses.ignore(path)
        return []
    if _is_known(block.type) and block.type != _COMPACTION:
        name = members.pop("name", None)
        label = f"{block.type} {name}" if isinstance(name, str) else block.type
        return [f"[{label}] {msgspec.json.encode(_unsealed(members)).decode()}"]
    for name in ("text", "content"):
        if isinstance(members.get(name), str) and members[name]:
            return [members[name]]
    return []


def _unsealed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unsealed(each) for name, each in value.items() if not _SEALED.fullmatch(name)}
    if isinstance(value, list):
        return [_unsealed(each) for each in value]
    return value
