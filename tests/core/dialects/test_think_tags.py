"""Tags cut anywhere: the same thoughts and the same answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.dialects.think_tags import ThinkTags


def split(mode, pieces):
    """What came out, neighbours of one kind joined, and white space at the very start left out."""
    tags, out = ThinkTags(mode), []
    for is_reasoning, text in [pair for piece in pieces for pair in tags.split(piece)] + tags.stop():
        assert text
        if out and out[-1][0] is is_reasoning:
            out[-1] = (is_reasoning, out[-1][1] + text)
        else:
            out.append((is_reasoning, text))
    assert tags.off and tags.stop() == []
    return [pair for pair in out if pair[0] or pair[1].strip()]


CASES = [
    ("auto", "Hi", [(False, "Hi")]),
    ("auto", "<think>a</think>b", [(True, "a"), (False, "b")]),
    ("auto", "\n <think>a</think>\n\n b", [(True, "a"), (False, "b")]),
    ("auto", "<think>\na\n</think>", [(True, "\na\n")]),
    ("auto", "<think>a</thinkb</think>c", [(True, "a</thinkb"), (False, "c")]),
    ("auto", "<think></think>b", [(False, "b")]),
    ("auto", "<think> \n</think>b", [(False, "b")]),
    ("auto", "<think> \n", []),
    ("auto", "<think>a", [(True, "a")]),
    ("auto", "<think>a</thi", [(True, "a</thi")]),
    ("auto", "<think>a</think>b<think>c</think>", [(True, "a"), (False, "b<think>c</think>")]),
    ("auto", "<thin", [(False, "<thin")]),
    ("auto", "<thinking>", [(False, "<thinking>")]),
    ("auto", "a<think>b", [(False, "a<think>b")]),
    ("auto", "a</think>b", [(False, "a</think>b")]),
    ("auto", " \n", []),
    ("auto", "", []),
    ("open", "a</think>\nb", [(True, "a"), (False, "b")]),
    ("open", "</think>b", [(False, "b")]),
    ("open", "<think>a</think>", [(True, "<think>a")]),
    ("off", "<think>a</think>", [(False, "<think>a</think>")]),
]


@pytest.mark.parametrize("mode, text, want", CASES)
def test_however_cut(mode, text, want):
    if mode == "off":
        assert ThinkTags("off").off
    assert split(mode, [text]) == want
    assert split(mode, list(text)) == want
    for at in range(len(text)):
        assert split(mode, [text[:at], text[at:]]) == want


def test_only_the_shortest_ambiguous_suffix_is_held():
    tags = ThinkTags("auto")
    assert tags.split(" \n") == [(False, " \n")]
    assert tags.split("<think") == []
    assert tags.split(">plan <") == [(True, "plan ")]
    assert tags.split("/b") == [(True, "</b")]
    assert tags.split("</th") == []
    assert tags.split("ink>") == []
    assert not tags.off
    assert tags.split(" x") == [(False, "x")]
    assert tags.off
    assert tags.split("<") == [(False, "<")]


@pytest.mark.parametrize(
    "before, want",
    [
        ("<thi", [(False, "<thi")]),
        ("<think>a</th", [(True, "</th")]),
        ("<think> ", []),
        ("<think>a</think> ", []),
        ("x", []),
    ],
)
def test_stop_gives_back_what_was_held(before, want):
    tags = ThinkTags("auto")
    tags.split(before)
    assert tags.stop() == want
    assert tags.split("<think>") == [(False, "<think>")]


@given(
    st.lists(st.sampled_from(["<", "think", ">", "</think>", "<think>", " ", "\n", "a"]), max_size=8),
    st.sampled_from(["auto", "open"]),
)
@settings(derandomize=True, deadline=None)
def test_cuts_do_not_matter(pieces, mode):
    whole = "".join(pieces)
    out = split(mode, pieces)
    assert out == split(mode, [whole]) == split(mode, list(whole))
