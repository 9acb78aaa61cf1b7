"""The bytes of a native upstream's body, to pieces, events and how it ends."""

from collections import Counter

import pytest

from antiphon.core.dialects.messages_stream import MessagesStream
from antiphon.core.dialects.messages_wire import Native, Piece
from antiphon.core.parts import End, Fault, Malformed
from native import MESSAGE_STOP, error, frame, said


def read(*chunks: bytes, fault: Fault | None = None, **options):
    reader = MessagesStream(counts=Counter(), **options)
    said_ = [each for chunk in chunks for each in reader.feed(chunk)]
    return said_ + reader.end(fault)


def kinds(*chunks: bytes, **options) -> list:
    return [each.kind if isinstance(each, Native) else type(each) for each in read(*chunks, **options)]


def test_a_delta_of_its_own_read_and_one_among_others_are_the_same():
    one = said(0, "a").replace(b'": ', b'":').replace(b", ", b",")
    start = frame({"type": "message_start", "message": {}})
    apart, together = read(start, one, one), read(start + one + one)
    assert [each for each in apart if isinstance(each, Piece)] == [
        each for each in together if isinstance(each, Piece)
    ]
    # what is left of an earlier frame belongs to it
    assert read(start, b"data: {}", one)[1:] == [
        Malformed("the upstream sent malformed data"),
        *read(start)[1:],
    ]


def test_nothing_follows_the_end():
    for last in (MESSAGE_STOP, error()):
        reader = MessagesStream(counts=Counter())
        assert len(reader.feed(last + said(0, "a"))) == 1
        assert reader.feed(said(0, "a")) == []
        assert reader.end() == []


@pytest.mark.parametrize("size", [100, 3000])
def test_limits(size):
    large = size > 1000
    assert (Fault in kinds(said(0, "x" * size), max_frame=1024)) == large
    assert (Fault in kinds(b"data: " + b"x" * size, max_frame=1024)) == large
    body = b'{"type":"message","content":[],"x":"' + b"y" * size + b'"}'
    assert (kinds(body, max_body=1024) == [Fault]) == large


def test_documents():
    assert kinds(b'{"type":"message","content":[{"type":"text","text":"x"}]}') == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop", End,
    ]  # fmt: skip
    for content in (b"", b',"content":7', b',"content":{}'):
        assert kinds(b'{"type":"message"' + content + b"}") == [Fault]
    cut = Fault("timeout_error", "slow", 504)
    assert read(b'{"type":"mess', fault=cut) == [End(clean=False, fault=cut)]


def test_white_space_and_nothing():
    assert read(b"\n\n", b" ")[0].fault.message == "the upstream returned an empty stream"
    assert kinds(b"\n", MESSAGE_STOP) == ["message_stop"]
    assert kinds(frame("", "ping"), frame("x", "ping"), MESSAGE_STOP) == ["message_stop"]
