"""What a model is shown of a PDF, and what its sender is told where that is not all of it."""

import base64
import builtins
import io
import json
import urllib.error
import urllib.request

import pytest
from msgspec import Raw

from antiphon.core.dialects.documents import UnreadableError
from antiphon.core.surfaces.messages.request_blocks import Image, Text
from antiphon.server import pdf as under_test
from antiphon.server.pdf import reader
from live_gateway import gateway
from pdfs import (
    DRAWN,
    FIRST_EXTRA,
    PIXEL,
    circle,
    deep,
    document,
    laughs,
    packed,
    pdf,
    stream,
    words,
    written,
)
from recording_upstream import RecordingUpstream
from turns import text, user

pytest.importorskip("pypdfium2", reason="pdf: pypdfium2 is not installed")
PIL_Image = pytest.importorskip("PIL.Image", reason="pdf: pillow is not installed")


@pytest.fixture(autouse=True)
def _forgetful():
    under_test._memory.clear()
    yield
    under_test._memory.clear()


def raw(data):
    return Raw(json.dumps(document(data)["source"]["data"]).encode())


def opened(data, mode="text", *, images=True):
    return reader(mode)("messages.0.content.0", raw(data), images)


def texts(data):
    return [block.text for block in opened(data).content]


def page(number, *lines):
    return "\n".join([f'<page number="{number}">', *lines, "</page>"])


def refused(data, mode="text"):
    with pytest.raises(UnreadableError) as caught:
        opened(data, mode)
    return str(caught.value)


# --- Text ---------------------------------------------------------------------------------------------------------------


def test_text_page_by_page():
    found = opened(pdf(words("Hello w\xf6rld", "\u201cquoted\u201d"), words("two")))
    assert found.content == (Text(page(1, "Hello w\xf6rld\n\u201cquoted\u201d")), Text(page(2, "two")))
    assert found.is_whole


def test_a_hyphen_at_a_lines_end_stays_with_its_line():
    assert texts(pdf(words("inter-", "national"))) == [page(1, "inter-\nnational")]


def test_an_empty_page_is_a_page():
    found = opened(pdf(words("one"), b"", words("three")))
    assert [block.text for block in found.content] == [page(1, "one"), page(2), page(3, "three")]
    assert found.is_whole


def test_what_lies_outside_a_page_is_not_on_it():
    assert texts(pdf(words("seen") + b" BT /F 12 Tf 700 720 Td (unseen) Tj ET")) == [page(1, "seen")]


def test_a_turned_page_is_read_as_it_is_seen():
    turned = b"BT /F 12 Tf 14 TL 0 1 -1 0 72 72 Tm (first) Tj T* (second) Tj ET"
    assert texts(pdf(turned, page=b"/Rotate 90")) == [page(1, "first\nsecond")]


def test_packed_pages():
    assert texts(pdf(packed(words("tight"), times=2))) == [page(1, "tight")]


def test_filled_fields_and_notes_are_text():
    drawn = stream(
        b"BT /F 12 Tf 2 2 Td (Ada) Tj ET",
        b"/Type/XObject/Subtype/Form/BBox[0 0 100 20]/Resources<</Font<</F 3 0 R>>>>",
    )
    at = b"/Rect[100 600 200 620]/F 4"
    field = b"<</Type/Annot/Subtype/Widget/FT/Tx/T(n)/V(Ada)%s/AP<</N %d 0 R>>>>" % (at, FIRST_EXTRA)
    undrawn = b"<</Type/Annot/Subtype/Widget/FT/Tx/T(n)/V(Ada)/DA(/F 12 Tf)%s>>" % at
    note = b"<</Type/Annot/Subtype/FreeText/Contents(Ada)%s/AP<</N %d 0 R>>>>" % (at, FIRST_EXTRA)
    form = b"/AcroForm<</Fields[%d 0 R]/NeedAppearances true>>" % (FIRST_EXTRA + 1)
    for annotation, catalog in ((field, form), (undrawn, form), (note, b"")):
        made = pdf(
            words("Name:"),
            extra=[drawn, annotation],
            page=b"/Annots[%d 0 R]" % (FIRST_EXTRA + 1),
            catalog=catalog,
        )
        found = opened(made)
        assert [block.text for block in found.content] == [page(1, "Name:\nAda")]
        assert found.is_whole


def test_the_same_bytes_give_the_same_text_and_are_read_once(monkeypatch):
    made = pdf(words("stable"))
    first = opened(made)
    under_test._memory.clear()
    assert opened(made) == first
    monkeypatch.setattr(under_test, "_open", lambda *_: pytest.fail("read again"))
    assert opened(made) == first


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(under_test, "_CACHE_BYTES", 60)
    for name in ("a" * 10, "b" * 10, "c" * 10):
        opened(pdf(words(name)))
        assert [found.content[0].text for found in under_test._memory.values()] == [page(1, name)]
    opened(pdf(words("d" * 50)))  # one that is too large alone is kept, for its next turn
    assert [found.content[0].text for found in under_test._memory.values()] == [page(1, "d" * 50)]


# --- What is left out is said --------------------------------------------------------------------------------------------


def partial(made):
    found = opened(made)
    assert not found.is_whole
    return [block.text for block in found.content]


def test_pictures_beside_the_text():
    assert partial(pdf(words("logo") + DRAWN, extra=[PIXEL])) == [
        page(1, "logo", "[pictures on this page are not shown]")
    ]


def test_a_scanned_page_among_others():
    scanned = "[this page has no text but pictures or drawings, which are not shown]"
    assert partial(pdf(words("one"), DRAWN, extra=[PIXEL])) == [page(1, "one"), page(2, scanned)]
    assert partial(pdf(words("one"), b"0 0 m 9 9 l S")) == [page(1, "one"), page(2, scanned)]


NAMELESS = (
    b"<</Type/Font/Subtype/Type0/BaseFont/ABCDEF+Foo/Encoding/Identity-H/DescendantFonts[5 0 R]>>",
    (
        b"<</Type/Font/Subtype/CIDFontType2/BaseFont/ABCDEF+Foo/FontDescriptor 6 0 R"
        b"/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>>>"
    ),
    (
        b"<</Type/FontDescriptor/FontName/ABCDEF+Foo/Flags 4/FontBBox[0 0 999 999]/Ascent 800/Descent -200"
        b"/ItalicAngle 0/CapHeight 700/StemV 80>>"
    ),
)
SHAPES = b"BT /F 12 Tf 72 720 Td <00240025002600480049> Tj ET"


def test_shapes_are_not_given_out_as_letters():
    assert "no text" in refused(pdf(SHAPES, extra=NAMELESS, font=b"4 0 R"))
    both = pdf(words("one"), SHAPES.replace(b"/F ", b"/G "), extra=NAMELESS, font=b"3 0 R/G 4 0 R")
    unread = "[the text of this page cannot be read: its fonts do not say which letters they draw]"
    assert partial(both) == [page(1, "one"), page(2, unread)]


def test_attached_files():
    names = b"/Names<</EmbeddedFiles<</Names[(a.txt)%d 0 R]>>>>" % FIRST_EXTRA
    file = b"<</Type/Filespec/F(a.txt)/EF<</F %d 0 R>>>>" % (FIRST_EXTRA + 1)
    made = pdf(words("one"), extra=[file, stream(b"A", b"/Type/EmbeddedFile")], catalog=names)
    assert partial(made) == [page(1, "one"), "[1 files attached to this document are not shown]"]


# --- What cannot be read is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is not a PDF that can be read"),
        (b"%PDF-", "it is not a PDF that can be read"),
        (b"PK\x03\x04" * 50, "it is not a PDF that can be read"),
        (pdf(words("one"))[:-200], "it is cut off: its end (%%EOF) is missing"),
        (pdf(words("one")) + b"9 0 obj\nnull\nendobj\n", "it is cut off: its end (%%EOF) is missing"),
        (pdf(), "it is not a PDF that can be read"),
        (pdf(b""), "it has no text that can be extracted (are its pages scanned?)"),
        (pdf(DRAWN, extra=[PIXEL]), "it has no text that can be extracted (are its pages scanned?)"),
        (deep(), "page 1 cannot be read"),
        (circle(), "page 1 cannot be read"),
        (
            pdf(words("wait"), catalog=b"/AcroForm<</XFA(x)/Fields[]>>/NeedsRendering true"),
            "it is an XFA form",
        ),
    ],
)
def test_unreadable(data, reason):
    assert refused(data).startswith(reason)


def test_one_that_is_encrypted():
    keys = b"/Filter/Standard/V 1/R 2/P -4/O<%s>/U<%s>" % (b"11" * 32, b"22" * 32)
    made = pdf(words("secret")).replace(b"/Root 1 0 R", b"/Root 1 0 R/Encrypt<<%s>>/ID[<33><33>]" % keys)
    assert refused(made) == "it is encrypted: send it without a password"


def test_a_page_that_is_missing_is_no_shorter_document():
    made = pdf(words("one"), words("two")).replace(b"/Kids[4 0 R 6 0 R]", b"/Kids[4 0 R 9 0 R]")
    assert refused(made) == "page 2 cannot be read"


@pytest.mark.parametrize("mode", ["text", "images"])
def test_too_many_pages(monkeypatch, mode):
    monkeypatch.setitem(under_test.MAX_PAGES, mode, 2)
    assert len(opened(pdf(words("a"), words("b")), mode).content) >= 2
    assert refused(pdf(words("a"), words("b"), words("c")), mode) == "it has 3 pages, more than 2"


def test_too_much_text(monkeypatch):
    monkeypatch.setattr(under_test, "MAX_CHARACTERS", 5)
    assert refused(pdf(words("abc"), words("def"))) == "its text is longer than 5 characters"


@pytest.mark.parametrize(
    "data", ["A", "JVBE*", "\u00e9\u00e9\u00e9\u00e9", "data:application/pdf;base64,JVBERi0="]
)
def test_what_is_not_base64(data):
    with pytest.raises(UnreadableError, match="^its data is not valid base64$"):
        reader("text")("p", Raw(json.dumps(data).encode()), False)


def test_base64_in_lines_and_with_escaped_slashes():
    data = base64.encodebytes(pdf(words("one", "?" * 90))).decode()
    spelled = json.dumps(data).replace("/", "\\/").encode()
    assert reader("text")("p", Raw(spelled), False).content[0].text.startswith(page(1, "one")[:20])


def test_without_the_library(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("pypdfium2"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert refused(pdf(words("one"))) == "there is no PDF reader installed here (antiphon[pdf])"


# --- Pictures ------------------------------------------------------------------------------------------------------------


def pictures(data):
    found = opened(data, "images")
    images = [block for block in found.content if isinstance(block, Image)]
    assert {(image.source.type, image.source.media_type) for image in images} == {("base64", "image/jpeg")}
    return [
        PIL_Image.open(io.BytesIO(base64.b64decode(json.loads(bytes(image.source.data))))) for image in images
    ]


def test_pages_as_pictures_in_their_places():
    made = pdf(words("one"), DRAWN, extra=[PIXEL])
    found = opened(made, "images")
    assert [block.text if isinstance(block, Text) else "IMAGE" for block in found.content] == [
        '<page number="1">', "IMAGE", "</page>", '<page number="2">', "IMAGE", "</page>",
    ]  # fmt: skip
    assert found.is_whole
    first, second = pictures(made)
    assert first.size == second.size == (1211, 1567)
    assert first.convert("L").getextrema()[0] < 90  # something is written on it
    assert first.getpixel((5, 5)) == (255, 255, 255)
    under_test._memory.clear()
    assert opened(made, "images") == found


def test_pictures_show_what_was_filled_in():
    field = b"<</Type/Annot/Subtype/Widget/FT/Tx/T(n)/V(XXXXXX)/DA(/F 40 Tf)/Rect[100 600 400 700]/F 4>>"
    made = pdf(
        b"",
        extra=[field],
        page=b"/Annots[4 0 R]",
        catalog=b"/AcroForm<</Fields[4 0 R]/NeedAppearances true>>",
    )
    assert pictures(made)[0].convert("L").getextrema()[0] < 90


@pytest.mark.parametrize("size", [(10**9, 10**9), (10**6, 1), (1, 1), (20, 30)])
def test_pictures_are_bounded(size):
    (picture,) = pictures(pdf(b"", size=size))
    assert max(picture.size) <= under_test.LONG_EDGE


def test_pictures_that_are_too_large(monkeypatch):
    monkeypatch.setattr(under_test, "MAX_PICTURE_BYTES", 1000)
    assert refused(pdf(words("one")), "images") == "pictures of its pages take more than 1000 bytes"


def test_a_model_without_eyes_gets_the_text():
    found = opened(pdf(words("one")), "images", images=False)
    assert found.content == (Text(page(1, "one")),)


def test_a_broken_page_is_refused_as_a_picture_too():
    assert refused(circle(), "images") == "page 1 cannot be read"
    assert refused(written(b"<</Type/Catalog>>"), "images").startswith("it ")


# --- Through a gateway in a process of its own -----------------------------------------------------------------------------


def asked(base_url, *blocks):
    """Status and body of one request that brings these blocks."""
    whole = {"model": "m", "max_tokens": 64, "messages": [user(text("sum it up"), *blocks)]}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{base_url}/v1/messages", json.dumps(whole).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, dict(refusal.headers), json.load(refusal)


def test_through_a_gateway(tmp_path):
    with RecordingUpstream() as upstream, gateway(tmp_path, upstream.base_url) as antiphon:
        made = document(pdf(words("Hello") + DRAWN, extra=[PIXEL]), title="T")
        status, headers, _ = asked(antiphon.base_url, made)
        assert status == 200
        assert headers["antiphon-degraded"] == "messages.0.content.1"
        seen = page(1, "Hello", "[pictures on this page are not shown]")
        sent = f"sum it up\n<document>\n<title>T</title>\n{seen}\n</document>"
        assert upstream.requests[-1].json["messages"] == [{"role": "user", "content": sent}]

        for data, reason in ((b"%PDF-", "it is not a PDF"), (laughs(), "it takes too much time or memory")):
            status, _, said = asked(antiphon.base_url, document(data))
            assert status == 400
            assert said["error"]["type"] == "invalid_request_error"
            assert said["error"]["message"].startswith(
                f"messages.0.content.1: document application/pdf: {reason}"
            )

        status, _, _ = asked(antiphon.base_url, made)  # from a new worker
        assert status == 200
        assert upstream.requests[-1].json["messages"] == [{"role": "user", "content": sent}]
        assert len([each for each in upstream.requests if each.path.endswith("/chat/completions")]) == 2
