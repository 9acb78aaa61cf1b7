r"""PDF documents: the text of their pages, or pictures of them.

Owns the PDF library, and is the only file that imports it, when the first PDF comes. It runs in the worker
process only (server.planning): PDFs are written by strangers, and what its own limits do not stop is ended
from outside. What cannot be read in full is refused or says so on its page; nothing is left out in silence.

    reader("text")("messages.0.content.1", Raw(b'"JVBERi0x..."'), False)
    -> OpenedDocument((Text('<page number="1">\nHello\n</page>'),), is_whole=True)

Source: FPDF_* in pdfium's public headers (fpdfview.h, fpdf_text.h, fpdf_flatten.h).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from antiphon.config import PdfMode
from antiphon.core.dialects.documents import OpenedDocument, ReadPdf, UnreadableError
from antiphon.core.surfaces.messages.request_blocks import Image, Source, Text
from antiphon.server import heavy

# The API's own limit is 600 pages for text models of this day; a picture costs a model more than a text.
MAX_PAGES = {"text": 600, "images": 100}
MAX_CHARACTERS = 8_000_000
"""Of the text of one document: more than any model's window holds."""
MAX_PICTURE_BYTES = 24 * 1024 * 1024
"""Of the pictures of one document together, before base64."""
LONG_EDGE = 1568
"""Pixels; vision models scale down what is larger."""
_POINTS_TO_PIXELS = 200 / 72  # no more than 200 dots per inch, for pages smaller than a sheet
_JPEG_QUALITY = 85
_CACHE_BYTES = 64 * 1024 * 1024
# So many letters of a page are looked at, and so large a share of them may be unknown.
_SAMPLE, _UNKNOWN = 400, 0.25

_STRING = msgspec.json.Decoder(str)
# pdfium's sign for a hyphen at a line's end, which it gives without the end of the line.
_LINE_HYPHEN = re.compile("[\x02\ufffe]")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\uffff]")

_NO_TEXT = "[this page has no text but pictures or drawings, which are not shown]"
_NO_LETTERS = "[the text of this page cannot be read: its fonts do not say which letters they draw]"
_PICTURES = "[pictures on this page are not shown]"
_NOTES = "[notes and form fields on this page could not be read]"


def reader(mode: PdfMode) -> ReadPdf:
    """Opens PDFs in one of the modes `text` and `images`; without images for a model, always as text."""

    def read(path: str, data: Raw, images: bool) -> OpenedDocument:
        heavy.note(path)
        kind = "images" if images and mode == "images" else "text"
        document = _remembered(kind, _decoded(data))
        heavy.note("")
        return document

    return read


# A conversation brings its documents with every turn.
_memory: OrderedDict[tuple[str, bytes], OpenedDocument] = OrderedDict()


def _remembered(kind: str, data: bytes) -> OpenedDocument:
    key = (kind, hashlib.sha256(data).digest())
    document = _memory.pop(key, None) or _open(kind, data)
    _memory[key] = document
    while len(_memory) > 1 and sum(map(_size, _memory.values())) > _CACHE_BYTES:
        _memory.popitem(last=False)
    return document


def _size(document: OpenedDocument) -> int:
    return sum(
        len(block.text) if isinstance(block, Text) else len(memoryview(block.source.data))
        for block in document.content
    )


def _decoded(data: Raw) -> bytes:
    try:
        return base64.b64decode("".join(_STRING.decode(data).split()), validate=True)
    except (binascii.Error, ValueError):  # not base64, or not even ASCII
        raise UnreadableError("its data is not valid base64") from None


def _open(kind: str, data: bytes) -> OpenedDocument:
    try:
        import pypdfium2
    except ImportError:
        raise UnreadableError("there is no PDF reader installed here (antiphon[pdf])") from None
    if b"endobj" in data[max(0, data.rfind(b"%%EOF")) :]:
        # The library would show the pages that are left.
        raise UnreadableError("it is cut off: its end (%%EOF) is missing")
    try:
        with pypdfium2.PdfDocument(data) as document:
            document.init_forms()  # before its pages are counted; writes filled fields into them
            _check(document, kind)
            return _pictures(document) if kind == "images" else _texts(document)
    except pypdfium2.PdfiumError as broken:
        if broken.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise UnreadableError("it is encrypted: send it without a password") from None
        raise UnreadableError("it is not a PDF that can be read") from None


def _check(document: Any, kind: str) -> None:
    import pypdfium2

    pages = len(document)  # never 0: that is no document to the library
    if pages > MAX_PAGES[kind]:
        raise UnreadableError(f"it has {pages} pages, more than {MAX_PAGES[kind]}")
    if document.get_formtype() == pypdfium2.raw.FORMTYPE_XFA_FULL:
        # Its pages only say that the reader's program is too old.
        raise UnreadableError("it is an XFA form, whose fields are not on its pages")


def _each_page(document: Any, show: Callable[[Any, int], None]) -> None:
    import pypdfium2

    for k in range(len(document)):
        try:
            show(document[k], k + 1)
        except pypdfium2.PdfiumError:
            raise UnreadableError(f"page {k + 1} cannot be read") from None


def _attachments(document: Any) -> list[Text]:
    count = document.count_attachments()
    return [Text(f"[{count} files attached to this document are not shown]")] if count > 0 else []


# --- Text -----------------------------------------------------------------------------------------


def _texts(document: Any) -> OpenedDocument:
    content: list[Text] = []
    lost = has_text = False
    characters = 0

    def show(page: Any, number: int) -> None:
        nonlocal lost, has_text, characters
        text, remarks = _text(document, page, number - 1)
        lost = lost or bool(remarks)
        has_text = has_text or bool(text)
        characters += len(text)
        if characters > MAX_CHARACTERS:
            raise UnreadableError(f"its text is longer than {MAX_CHARACTERS} characters")
        lines = [f'<page number="{number}">', *([text] if text else []), *remarks, "</page>"]
        content.append(Text("\n".join(lines)))

    _each_page(document, show)
    if not has_text:
        raise UnreadableError("it has no text that can be extracted (are its pages scanned?)")
    attached = _attachments(document)
    return OpenedDocument((*content, *attached), is_whole=not lost and not attached)


def _text(document: Any, page: Any, index: int) -> tuple[str, list[str]]:
    """The text on a page (what lies outside it is not), and what is to be said of the rest."""
    from pypdfium2 import raw

    remarks = []
    # Filled fields and notes are no part of a page's text before they are written into the page.
    flattened = raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
    if flattened == raw.FLATTEN_FAIL:
        remarks.append(_NOTES)
    elif flattened == raw.FLATTEN_SUCCESS:
        page.close()
        page = document[index]
    letters = page.get_textpage()
    text = _LINE_HYPHEN.sub("-\n", letters.get_text_bounded().replace("\r\n", "\n"))
    text = _CONTROLS.sub("", text).strip()
    if text and not _has_letters(letters):
        text = ""
        remarks.append(_NO_LETTERS)
    elif text and any(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE])):
        remarks.append(_PICTURES)
    elif not text and any(page.get_objects()):
        remarks.append(_NO_TEXT)
    letters.close()
    page.close()
    return text, remarks


def _has_letters(letters: Any) -> bool:
    """Whether the library knows what is written. If it only knows shapes, it gives their numbers as text."""
    from pypdfium2 import raw

    count = letters.count_chars()
    sample = range(0, count, count // _SAMPLE + 1)
    unknown = sum(raw.FPDFText_HasUnicodeMapError(letters, k) == 1 for k in sample)
    return bool(unknown <= _UNKNOWN * len(sample))


# --- Pictures -------------------------------------------------------------------------------------


def _pictures(document: Any) -> OpenedDocument:
    content: list[Text | Image] = []
    size = 0

    def show(page: Any, number: int) -> None:
        nonlocal size
        jpeg = _picture(page)
        size += len(jpeg)
        if size > MAX_PICTURE_BYTES:
            raise UnreadableError(f"pictures of its pages take more than {MAX_PICTURE_BYTES} bytes")
        data = Raw(b'"%s"' % base64.b64encode(jpeg))
        content.extend(
            (Text(f'<page number="{number}">'), Image(Source("base64", "image/jpeg", data)), Text("</page>"))
        )

    _each_page(document, show)
    attached = _attachments(document)
    return OpenedDocument((*content, *attached), is_whole=not attached)


def _picture(page: Any) -> bytes:
    """The page as JPEG, at most `LONG_EDGE` pixels wide and high."""
    long_edge = max(page.get_size())
    # The library rounds up; a page of no size has nothing on it.
    scale = min(_POINTS_TO_PIXELS, (LONG_EDGE - 1) / long_edge) if long_edge > 0 else 1.0
    bitmap = page.render(scale=scale)
    kept = io.BytesIO()
    bitmap.to_pil().convert("RGB").save(kept, "JPEG", quality=_JPEG_QUALITY)
    bitmap.close()
    page.close()
    return kept.getvalue()
