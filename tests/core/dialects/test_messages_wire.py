"""What a native upstream's frames say, one at a time."""

import json

import pytest
from msgspec import Raw

from antiphon.core.dialects.messages_wire import Native, Piece, index_of, legible, read_event, read_piece

TEXT = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}'


def delta(index: object, fields: object) -> bytes:
    return json.dumps({"type": "content_block_delta", "index": index, "delta": fields}).encode()


@pytest.mark.parametrize(
    ("fields", "word", "text"),
    [
        ({"type": "text_delta", "text": "é"}, "text_delta", "é"),
        ({"type": "thinking_delta", "thinking": "a"}, "thinking_delta", "a"),
        ({"type": "input_json_delta", "partial_json": "{"}, "input_json_delta", "{"),
    ],
)
def test_both_ways_to_read_a_delta_say_the_same(fields, word, text):
    payload = delta(3, fields)
    assert read_piece(payload) == read_event(payload) == Piece(3, word, text, payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"{oops",
        b"[]",
        delta(0, {"type": "signature_delta", "signature": "s"}),
        delta(0, {"type": "text_delta", "text": "a", "new": 1}),
        delta(0, {"type": "text_delta", "text": "\ud83d"}),
        delta(0, {"type": "text_delta", "text": None}),
        delta(0, {"type": "text_delta", "thinking": "a"}),
        delta("0", {"type": "text_delta", "text": "a"}),
        delta(True, {"type": "text_delta", "text": "a"}),
        TEXT.replace(b'"type":"content_block_delta",', b""),
        TEXT.replace(b"}}", b'},"new":1}'),
        TEXT.replace(b"Hi", b"\xff"),
    ],
)
def test_what_is_more_than_a_text_is_read_with_care(payload):
    assert read_piece(payload) is None


def test_members_that_nobody_knows_stay_in_the_payload():
    payload = TEXT.replace(b"}}", b'},"new":12345678901234567890123}')
    assert read_event(payload) == Piece(0, "text_delta", "Hi", payload)


@pytest.mark.parametrize(
    ("index", "read"),
    [(b"2", 2), (b'"2"', 2), (b"2.0", 2), (b"-1", -1), (b"true", None), (b"null", None), (b'"x"', None), (b"1.5", None), (b"{}", None), (b"1e400", None)],
)  # fmt: skip
def test_indices(index, read):
    assert index_of({"index": Raw(index)}) == read
    piece = read_event(TEXT.replace(b'"index":0', b'"index":' + index))
    assert piece.index == read
    if read is not None:  # a client is sent what every client reads
        assert json.loads(piece.payload)["index"] == read


def test_an_index_that_is_missing():
    assert index_of({}) is None
    assert read_event(TEXT.replace(b'"index":0,', b"")).index is None


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        (b'{"a":"\\ud83d"}', b'{"a":"\\ufffd"}'),
        (b'{"a":"\\ud83d\\ude00"}', b'{"a":"\\ud83d\\ude00"}'),
        (b'{"a":"\\\\ud83d"}', b'{"a":"\\\\ud83d"}'),
        (b'{"a":\n1}', b'{"a": 1}'),
        (b'{"a":"\xff\xc3\xa9"}', b'{"a":"\xef\xbf\xbd\xc3\xa9"}'),
    ],
)
def test_what_may_travel(payload, sent):
    assert legible(payload) == sent


def test_json_that_only_python_reads():
    event = read_event(b'{"type":"message_stop","x":"a\tb"}')
    assert event == Native("message_stop", event.members, b'{"type":"message_stop","x":"a\\tb"}')
    for payload in (b'{"x":NaN}', b"{oops", b"[1]", b"7", b"", b'{"a":' * 3000):
        assert read_event(payload) is None


def test_a_type_that_stands_in_the_event_line_only():
    assert read_event(b'{"x":1}', "message_stop").kind == "message_stop"
    assert json.loads(read_event(b'{"x":1}', "message_stop").payload) == {"type": "message_stop", "x": 1}
    assert read_event(b'{"type":"ping"}', "message_stop").kind == "ping"
    assert read_event(b'{"type":7}').kind == ""


def test_deltas_without_a_type_are_what_they_carry():
    assert read_event(delta(0, {"text": "a"})) == Piece(0, "text_delta", "a")
    assert read_event(delta(0, {"x": 1})).word == ""
    assert read_event(delta(0, "x")).word == ""
    assert read_event(delta(0, {"type": "new_delta"})) == Piece(
        0, "new_delta", "", delta(0, {"type": "new_delta"})
    )


def test_half_a_character_is_left_to_its_block():
    assert read_event(delta(0, {"type": "text_delta", "text": "a\ud83d"})) == Piece(
        0, "text_delta", "a\ud83d"
    )
