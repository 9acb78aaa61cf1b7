"""Where PDFs are in a request, and what becomes of them, whoever opens them."""

import json

import pytest
from msgspec import Raw

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.documents import (
    OpenedDocument,
    UnreadableError,
    may_hold_documents,
    open_documents,
)
from antiphon.core.dialects.quirks import GENERIC
from antiphon.core.surfaces.messages.request import RequestError, parse
from antiphon.core.surfaces.messages.request_blocks import Image, Source, Text
from pdfs import document
from turns import assistant, call, picture, result, text, user

PDF = document(b"%PDF-")


def parsed(*turns, **fields):
    return parse(json.dumps({"model": "m", "max_tokens": 64, "messages": list(turns), **fields}).encode())


class Reader:
    """Opens everything as one page; keeps what it was asked."""

    def __init__(self, *, is_whole=True, page=None):
        self.asked = []
        self.opened = OpenedDocument((page or Text("PAGE"),), is_whole)

    def __call__(self, path, data, images):
        self.asked.append((path, bytes(data), images))
        return self.opened


def unreadable(path, data, images):
    raise UnreadableError("it is torn")


def messages(request):
    return json.loads(encode(request, GENERIC).body)["messages"]


def test_a_request_without_one_stays_the_same_object():
    plain = parsed(
        user(
            text("q"), picture(), {"type": "document", "source": {"type": "content", "content": [text("D")]}}
        ),
        assistant(call()),
        user(result("a", [text("r")])),
    )
    read = Reader()
    assert open_documents(plain, read, images=True) is plain
    assert read.asked == []


def test_everywhere_in_a_request():
    read = Reader()
    nested = {"type": "document", "source": {"type": "content", "content": [text("D"), PDF]}}
    request = open_documents(
        parsed(
            user(PDF | {"title": "T", "context": "C"}, text("q")),
            assistant(PDF, call()),
            user(result("a", [text("r"), PDF]), nested),
        ),
        read,
        images=True,
    )
    data = b'"JVBERi0="'
    assert read.asked == [
        ("messages.0.content.0", data, True),
        ("messages.1.content.0", data, False),
        ("messages.2.content.0.content.1", data, True),
        ("messages.2.content.1.source.content.1", data, True),
    ]
    page = "<document>\nPAGE\n</document>"
    assert messages(request) == [
        {
            "role": "user",
            "content": "<document>\n<title>T</title>\n<context>C</context>\nPAGE\n</document>\nq",
        },
        {
            "role": "assistant",
            "content": page,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": f"r\n{page}"},
        {"role": "user", "content": f"<document>\nD\n{page}\n</document>"},
    ]
    assert request.degraded == ()


def test_pages_as_images_are_shown_like_any_image():
    image = Image(Source("base64", "image/jpeg", Raw(b'"/9j/"')))
    request = parsed(user(PDF, text("q")), assistant(call()), user(result("a", [PDF])))
    parts = messages(open_documents(request, Reader(page=image), images=True))
    shown = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/"}}
    assert parts[0]["content"] == [text("<document>"), shown, text("</document>"), text("q")]
    assert parts[2]["content"] == "<document>\n[image]\n</document>"
    assert parts[3]["content"] == [shown]


@pytest.mark.parametrize("images", [True, False])
def test_whether_there_may_be_images_is_told(images):
    read = Reader()
    open_documents(parsed(user(PDF)), read, images=images)
    assert [asked[2] for asked in read.asked] == [images]


def test_what_was_left_out_is_degraded_once_for_each_document():
    request = open_documents(
        parsed(user(PDF, text("q"), PDF), container="c"), Reader(is_whole=False), images=False
    )
    assert request.degraded == ("container", "messages.0.content.0", "messages.0.content.2")


@pytest.mark.parametrize(
    ("turns", "path"),
    [
        ((user(text("q"), PDF),), "messages.0.content.1"),
        ((user("q"), assistant(call()), user(result("a", [PDF]))), "messages.2.content.0.content.0"),
    ],
)
def test_one_that_cannot_be_read_is_refused_by_name(turns, path):
    with pytest.raises(RequestError) as caught:
        open_documents(parsed(*turns), unreadable, images=True)
    assert caught.value.fault.message == f"{path}: document application/pdf: it is torn"
    assert caught.value.fault.status == 400


def test_one_of_the_assistants_is_never_refused():
    request = open_documents(parsed(user("q"), assistant(PDF, text("a")), user("b")), unreadable, images=True)
    out = encode(request, GENERIC)
    assert out.degraded == ("messages.1.content.0",)
    assert json.loads(out.body)["messages"][1]["content"] == "a"


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "application/pdf"},
        {"type": "base64", "media_type": "application/pdf", "data": 3},
        {"type": "base64", "media_type": "image/png", "data": "AA=="},
        {"type": "url", "media_type": "application/pdf", "url": "https://e.x/a.pdf"},
        {"type": "file", "file_id": "f"},
    ],
)
def test_what_is_no_pdf_is_never_opened(source):
    request = parsed(user({"type": "document", "source": source}))
    read = Reader()
    assert open_documents(request, read, images=True) is request
    assert read.asked == []
    with pytest.raises(RequestError, match=r"^messages\.0\.content\.0"):
        encode(request, GENERIC)


@pytest.mark.parametrize("kind", [b'"document"', b'"\\u0064ocument"', b'"docum\\u0065nt"'])
def test_no_spelling_of_a_document_is_missed(kind):
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": [user(PDF)]}).encode()
    assert may_hold_documents(body.replace(b'"document"', kind))
    plain = {"model": "m", "max_tokens": 1, "messages": [user("read the document")]}
    assert not may_hold_documents(json.dumps(plain).encode())


def test_the_media_type_in_any_case():
    read = Reader()
    source = PDF["source"] | {"media_type": "Application/PDF"}
    open_documents(parsed(user({"type": "document", "source": source})), read, images=True)
    assert len(read.asked) == 1
