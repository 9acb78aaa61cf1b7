"""SSE frames, whole, byte by byte and with lines to come (WHATWG HTML 9.2)."""

import pytest

from antiphon.core.sse import SseDecoder

FRAMES = {
    "one": (b"data: a\n\n", [(b"", b"a")]),
    "no space": (b"data:a\n\n", [(b"", b"a")]),
    "one space of two": (b"data:  a\n\n", [(b"", b" a")]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
    "cr": (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
    "mixed ends": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\n\r", [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
    "a cr in the middle": (b"data: a\rdata: b\n\n", [(b"", b"a\nb")]),
    "a line behind it": (b"data: a\nx\n\n", [(b"", b"a")]),
    "two data lines": (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
    "several data lines": (b"data: a\ndata: b\ndata\ndata:\n\n", [(b"", b"a\nb\n\n")]),
    "empty data": (b"data\n\ndata:\n\n", [(b"", b""), (b"", b"")]),
    "an event": (b"event: ping\ndata: a\n\ndata: b\n\n", [(b"ping", b"a"), (b"", b"b")]),
    "an event without space, the last one counts": (b"event:a\nevent: b\ndata: x\n\n", [(b"b", b"x")]),
    "an event taken back": (b"event: a\nevent\ndata: x\n\n", [(b"", b"x")]),
    "an event without data": (b"event: ping\n\ndata: a\n\n", [(b"", b"a")]),
    "comments and other fields": (b": hi\n:\n\nid: 1\nretry: 2\ndataset: 3\ndata : 4\nDATA: 5\ndata: a\n\n", [(b"", b"a")]),
    "a bom": (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
    "one bom of two": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    "half a bom": (b"\xef\xbbdata: a\n\ndata: b\n\n", [(b"", b"b")]),
    "no other line ends": (b"data: a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f\n\n", [(b"", b"a\x0bb\x0cc\x1cd\xc2\x85e\xe2\x80\xa8f")]),
    "blank lines": (b"\n\n\ndata: a\n\n\n\n", [(b"", b"a")]),
    "nothing": (b"", []),
}  # fmt: skip


@pytest.mark.parametrize("body, frames", FRAMES.values(), ids=FRAMES)
def test_frames_however_cut(body, frames):
    def decode(pieces):
        decoder = SseDecoder()
        return [frame for piece in pieces for frame in decoder.feed(piece)], decoder.flush()

    assert decode([body]) == (frames, [])
    assert decode([body[i : i + 1] for i in range(len(body))]) == (frames, [])
    for at in range(len(body)):
        assert decode([body[:at], b"", body[at:]]) == (frames, []), at
    if b"\xef\xbb" not in body:
        for at in range(len(body)):
            behind, _ = decode([b"data: first\n\n", body[:at], body[at:]])
            assert behind == [(b"", b"first"), *frames], at
    more, _ = decode([body + b"\n\ndata: more\n\n"])
    assert more[: len(frames)] == frames


@pytest.mark.parametrize(
    "body, rest",
    [
        (b"data: a", [(b"", b"a")]),
        (b"data: a\n", [(b"", b"a")]),
        (b"data: a\ndata: b", [(b"", b"a\nb")]),
        (b"event: error\ndata: a\r", [(b"error", b"a")]),
        (b": comment", []),
        (b"event: a", []),
        (b"\xef\xbb", []),
    ],
)
def test_what_lacks_its_blank_line(body, rest):
    decoder = SseDecoder()
    assert decoder.feed(body) == []
    assert decoder.flush() == rest
    assert decoder.flush() == []


class TestLimit:
    def test_a_line_without_end(self):
        decoder = SseDecoder(max_frame=100)
        for _ in range(10):
            assert decoder.feed(b"x" * 10) == [] and not decoder.overflow
        decoder.feed(b"x")
        assert decoder.overflow and decoder.flush() == []

    @pytest.mark.parametrize("line", [b"data: 123456789\n", b"data:1234567890\n", b"data\n"])
    def test_data_lines_without_a_blank_one(self, line):
        decoder = SseDecoder(max_frame=100)
        decoder.feed(line * 6)
        assert not decoder.overflow
        decoder.feed(line * 30)
        assert decoder.overflow and decoder.flush() == []

    @pytest.mark.parametrize("size", [80, 90, 91, 92, 100, 101, 102, 120])
    @pytest.mark.parametrize("field", [b": ", b"data: ", b"data:", b"id:", b"event:"])
    def test_however_it_is_cut(self, field, size):
        line = field + b"x" * (size - len(field))
        body = b"data: a\n\ndata: b\n" + line + b"\n\ndata: c\n\n"  # seven bytes and the line

        def decode(pieces):
            decoder = SseDecoder(max_frame=100)
            return (
                [frame for piece in pieces for frame in decoder.feed(piece)],
                decoder.flush(),
                decoder.overflow,
            )

        whole = decode([body])
        assert whole[2] == (size + 7 > 100)
        assert decode([body[i : i + 1] for i in range(len(body))]) == whole
        for at in range(len(body)):
            assert decode([body[:at], body[at:]]) == whole, at

    def test_what_came_before_is_not_lost(self):
        decoder = SseDecoder(max_frame=100)
        body = b"data: a\n\ndata: " + b"x" * 200 + b"\n\ndata: b\n\n"
        assert decoder.feed(body) == [(b"", b"a")]
        assert decoder.overflow and decoder.feed(b"data: c\n\n") == []

    def test_a_frame_in_a_read_of_its_own(self):
        decoder = SseDecoder(max_frame=100)
        assert len(decoder.feed(b"data: a\n\n")) == len(decoder.feed(b"data: " + b"x" * 94 + b"\n\n")) == 1
        assert decoder.feed(b"data: " + b"x" * 95 + b"\n\n") == [] and decoder.overflow
        assert decoder.feed(b"data: c\n\n") == [] and decoder.flush() == []

    def test_many_small_frames_and_comments_are_no_large_one(self):
        decoder = SseDecoder(max_frame=100)
        assert len(decoder.feed(b"data: 0123456789\n\n" * 50)) == 50
        decoder.feed(b": comment\n" * 50)
        assert not decoder.overflow
