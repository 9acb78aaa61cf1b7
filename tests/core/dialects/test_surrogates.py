"""Halves of characters: joined, waited for, given up."""

from collections import Counter

import pytest

from antiphon.core.dialects.surrogates import SurrogateMender, whole

A, B = ("text", 0), ("args", 1)


def mender():
    counts = Counter()
    return SurrogateMender(counts), counts


@pytest.mark.parametrize(
    "pieces, want, lost",
    [
        (["plain"], ["plain"], 0),
        (["é\u2028"], ["é\u2028"], 0),
        (["\ud83d\ude00"], ["\U0001f600"], 0),
        (["a\ud83d", "\ude00b"], ["a", "\U0001f600b"], 0),
        (["\ud83d", "\ude00"], ["", "\U0001f600"], 0),
        (["a\ud83d", "b"], ["a", "\ufffdb"], 1),
        (["\ude00b"], ["\ufffdb"], 1),
        (["\ud83da\ude00"], ["\ufffda\ufffd"], 1),
        (["\ud83d\ud83d", "\ude00"], ["\ufffd", "\U0001f600"], 1),
        (["\ufffd\ud83d\ude00"], ["\ufffd\U0001f600"], 0),
    ],
)
def test_pieces_of_one_channel(pieces, want, lost):
    mend, counts = mender()
    assert [mend.text(A, piece) for piece in pieces] == want
    assert counts["lone_surrogate"] == lost
    "".join(want).encode()


def test_channels_wait_apart():
    mend, _ = mender()
    assert mend.text(A, "\ud83d") == mend.text(B, "\ud83d") == ""
    assert mend.text(B, "\ude00") == "\U0001f600"
    assert mend.waiting == {A: "\ud83d"}


def test_given_up_when_another_kind_comes():
    mend, counts = mender()
    assert mend.give_up("text") == []
    mend.text(A, "\ud83d")
    mend.text(B, "\ud83d")
    assert mend.give_up("args") == [(A, "\ufffd")]
    assert mend.give_up(None) == [(B, "\ufffd")]
    assert mend.give_up(None) == [] and counts["lone_surrogate"] == 2


@pytest.mark.parametrize(
    "word, want", [("read", "read"), ("é", "é"), ("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "\ufffd\ufffd")]
)
def test_whole_words(word, want):
    assert whole(word) == want
