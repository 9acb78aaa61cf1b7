"""The fold, its agreement with the pinned one, and the remarks."""

import random

import pytest

from antiphon.check.fold import fold, remarks
from check import samples as s
from pipeline import judge as pinned


def test_folds_every_block():
    held = fold(s.legal())
    assert [block["type"] for block in held.content] == ["thinking", "text", "tool_use"]
    assert (held.content[0]["thinking"], held.content[0]["signature"]) == ("hm", "c2ln")
    assert (held.content[1]["text"], held.content[2]["input"]) == ("Hello", {"a": 1})
    assert (held.stop_reason, held.stop_sequence, held.error) == ("tool_use", None, None)
    assert held.usage == {"input_tokens": 5, "output_tokens": 7}
    assert (held.closed, held.closed_tools, held.open_blocks, held.pings, held.events) == (
        3,
        ["f"],
        [],
        1,
        15,
    )


def test_folds_a_failure():
    held = fold(s.failed())
    assert (held.error["type"], held.closed, held.open_blocks) == ("api_error", 1, [1])


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_the_pinned_fold(seed):
    """On streams that are legal but for one fault; what an illegal stream means is nobody's rule."""
    rng = random.Random(seed)
    for events in [s.legal(), s.failed(), *s.CORPUS_STREAMS.values()]:
        want = pinned.summary(events)
        held = fold(events)
        assert {key: getattr(held, key) for key in want} == want
        fold(s.mutate(events, rng))  # never raises


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (s.failed(), "does not repeat such a turn"),
        ([s.start(), {"type": "error", "error": {}}], "repeats the turn by itself"),
        (
            [*s.legal()[:13], {"type": "error", "error": {}}],
            "It runs these tools, which were closed before: f.",
        ),
        ([s.start(usage={"input_tokens": 0}), *s.legal()[1:]], "input_tokens 0"),
        ([s.start(), s.finish(), s.END], "asks again once"),
        ([*s.legal()[:11], *s.legal()[12:]], "not a whole JSON object"),
    ],
)
def test_remarks(events, words):
    assert any(words in remark for remark in remarks(fold(events)))


def test_a_good_stream_needs_no_remark():
    assert remarks(fold(s.legal())) == []
