"""Documents that must be opened before a model can read them: each PDF becomes what is on its pages.

Owns where in a request such documents are, and what is said of those that cannot be read. How a PDF is
opened is the caller's: `ReadPdf` is given in, this module sees neither a library nor a decoded byte. An
opened document is an ordinary document with text and images as its content, so everything behind this step
(`chat_messages`, `chat_content`) knows no PDF.

    open_documents(request, read_pdf, images=True)
    -> the request with Source("content", content=(Text('<page number="1">...'), ...)) in place of each PDF
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Raw, Struct, structs

from antiphon.core.surfaces.messages.request import MessagesRequest, RequestError, Turn
from antiphon.core.surfaces.messages.request_blocks import (
    Block,
    Document,
    Image,
    Source,
    Text,
    ToolResult,
)

PDF = "application/pdf"


class OpenedDocument(Struct, frozen=True):
    """What a model is shown of a document. `is_whole`: nothing that is on its pages was left out."""

    content: tuple[Text | Image, ...]
    is_whole: bool


class UnreadableError(Exception):
    """A document that cannot be opened, or not in full; the text says why, in words for its sender."""


ReadPdf: TypeAlias = Callable[[str, Raw, bool], OpenedDocument]
"""Opens the PDF of the block at a path: base64 as a raw JSON string, and whether the model sees images.

Raises UnreadableError. The same bytes must always give the same content: prefix caches depend on it.
"""


def is_pdf(source: Source) -> bool:
    """A PDF whose bytes are in the request."""
    return source.type == "base64" and (source.media_type or "").lower() == PDF


def may_hold_documents(body: bytes) -> bool:
    """False if no block of this request can be a document: its type is not there, in no spelling of JSON."""
    return b'"document"' in body or b"\\u" in body


def open_documents(request: MessagesRequest, read_pdf: ReadPdf, *, images: bool) -> MessagesRequest:
    """The request with its PDFs opened; the same object if it has none.

    `images`: the server takes them. What was left out of a document makes its path degraded. Raises
    RequestError for a document of the user's side that cannot be read; the assistant's own are left as they
    are, because a conversation must stay usable.
    """
    degraded: list[str] = []

    def opened(blocks: tuple[Block, ...], path: str, *, refuses: bool) -> tuple[Block, ...]:
        found = [each(block, f"{path}.{k}", refuses=refuses) for k, block in enumerate(blocks)]
        changed = any(new is not old for new, old in zip(found, blocks, strict=True))
        return tuple(found) if changed else blocks

    def each(block: Block, path: str, *, refuses: bool) -> Block:
        if isinstance(block, ToolResult):
            content = opened(block.content, f"{path}.content", refuses=refuses)
            return block if content is block.content else structs.replace(block, content=content)
        if not isinstance(block, Document):
            return block
        if not is_pdf(block.source):
            content = opened(block.source.content, f"{path}.source.content", refuses=refuses)
            if content is block.source.content:
                return block
            return structs.replace(block, source=structs.replace(block.source, content=content))
        if memoryview(block.source.data)[0] != ord('"'):
            return block  # the dialect says what is wrong with it
        try:
            # Only the user's side of a conversation can show an image.
            document = read_pdf(path, block.source.data, images and refuses)
        except UnreadableError as why:
            if refuses:
                raise RequestError(path, f"document {PDF}: {why}") from None
            return block
        if not document.is_whole:
            degraded.append(path)
        return structs.replace(block, source=Source("content", content=document.content))

    turns = []
    for i, turn in enumerate(request.messages):
        content = opened(turn.content, f"messages.{i}.content", refuses=turn.role != "assistant")
        turns.append(turn if content is turn.content else Turn(turn.role, content))
    if all(new is old for new, old in zip(turns, request.messages, strict=True)):
        return request
    return structs.replace(
        request, messages=tuple(turns), degraded=(*request.degraded, *dict.fromkeys(degraded))
    )
