"""PDFs for tests, written by hand: small, whole, and the same bytes every time.

pdf(words("Hello"), words("second page"))   -> a PDF of two pages
"""

import base64
import zlib


def stream(data, entries=b""):
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (entries, len(data), data)


def packed(data, times=1):
    """A content stream in `times` layers of compression."""
    for _ in range(times):
        data = zlib.compress(data, 9)
    return stream(data, b"/Filter[%s]" % (b"/FlateDecode" * times))


def words(*lines):
    """A page's content: these lines."""
    shown = b" ".join(b"(%s) Tj T*" % line.encode("cp1252") for line in lines)
    return b"BT /F 12 Tf 14 TL 72 720 Td %s ET" % shown


def written(*objects):
    """A file of these objects; the first is the catalog."""
    out, offsets = bytearray(b"%PDF-1.7\n"), []
    for number, each in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for offset in offsets:
        out += b"%010d 00000 n \n" % offset
    out += b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(out)


HELVETICA = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"
FIRST_EXTRA = 4
"""The object number of the first of `extra`: the catalog, the page tree and the font come before."""


def pdf(*contents, extra=(), size=(612, 792), page=b"", catalog=b"", font=b"3 0 R"):
    """One page for each content (what it draws, or a whole stream object). `page` goes into every page."""
    at = FIRST_EXTRA + len(extra)
    kids = b" ".join(b"%d 0 R" % (at + 2 * k) for k in range(len(contents)))
    shown = b"/XObject<</X %d 0 R>>" % FIRST_EXTRA if extra else b""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R%s>>" % catalog,
        b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(contents), kids),
        HELVETICA,
        *extra,
    ]
    for k, content in enumerate(contents):
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d %d]/Resources<</Font<</F %s>>%s>>/Contents %d 0 R%s>>"
            % (*size, font, shown, at + 2 * k + 1, page)
        )
        objects.append(content if content.startswith(b"<<") else stream(content))
    return written(*objects)


PIXEL = stream(
    b"\x80", b"/Type/XObject/Subtype/Image/Width 1/Height 1/BitsPerComponent 8/ColorSpace/DeviceGray"
)
DRAWN = b" q 200 0 0 200 72 72 cm /X Do Q"
"""Draws the first of `extra`."""


def document(data, **more):
    """The block of a Messages request."""
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source, **more}


# --- What nobody should open on a loop that carries streams ------------------------------------------


def bomb():
    """One kilobyte that unpacks to ten million texts."""
    return pdf(packed(b"BT /F 12 Tf " + b"\n(a) Tj" * 10_000_000, times=2))


def laughs():
    """A form that draws ten forms, each of which draws ten forms, and so on."""
    forms = []
    for level in range(12):
        resources = b"/Resources<</XObject<</X %d 0 R>>/Font<</F 3 0 R>>>>" % (FIRST_EXTRA + level + 1)
        drawn = b"/X Do " * 10 if level < 11 else words("lol")
        forms.append(stream(drawn, b"/Type/XObject/Subtype/Form/BBox[0 0 600 700]" + resources))
    return pdf(b"/X Do", extra=forms)


def slow():
    """Some kilobytes that take seconds, and little memory."""
    return pdf(packed(b"BT /F 12 Tf 72 720 Td " + b"(%s) Tj T* " % (b"a" * 40) * 300_000 + b"ET"))


def deep():
    """A page below two thousand page trees."""
    trees = [b"<</Type/Pages/Count 1/Kids[%d 0 R]>>" % (number + 3) for number in range(2000)]
    return written(b"<</Type/Catalog/Pages 2 0 R>>", *trees, b"<</Type/Page/MediaBox[0 0 9 9]>>")


def circle():
    """A page tree that is its own child."""
    return written(b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 3/Kids[2 0 R 2 0 R 2 0 R]>>")
