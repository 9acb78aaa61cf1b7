"""Which call a fragment belongs to, chunk by chunk: (index, id, name) in, key out."""

import pytest

from antiphon.core.dialects.chat_calls import CallKeys, Fragment

# name -> chunks, each a list of ((index, id, name), key)
CASES = {
    "the reference": [[((0, "a", "f"), 0)], [((0, None, ""), 0)], [((1, "b", "g"), 1)], [((1, None, ""), 1)]],
    "interleaved": [[((0, "a", "f"), 0), ((1, "b", "g"), 1)], [((1, None, ""), 1)], [((0, None, ""), 0)]],
    "one-based and sparse": [[((1, "a", "f"), 0)], [((7, "b", "g"), 1)], [((1, None, ""), 0)]],
    "always 0, whole calls": [[((0, "a", "f"), 0)], [((0, "b", "f"), 1)], [((0, "c", "f"), 2)]],
    "always 0, the last one goes on": [[((0, "a", "f"), 0)], [((0, "b", "g"), 1)], [((0, None, ""), 1)]],
    "always 0, the id tells": [[((0, "a", "f"), 0)], [((0, "b", "g"), 1)], [((0, "a", ""), 0)], [((0, None, ""), 0)]],
    "always 0, side by side": [[((0, "a", "f"), 0), ((0, "b", "g"), 1)], [((0, None, ""), 0), ((0, None, ""), 1)], [((0, None, ""), 1)]],
    "always 0, side by side, then another": [
        [((0, "a", "f"), 0), ((0, "b", "g"), 1)],
        [((0, "c", "h"), 2)],
        [((0, None, ""), 2)],
    ],
    "two fragments of one call": [[((0, "a", "f"), 0), ((0, None, ""), 0)], [((0, None, ""), 0)]],
    "no index, the id tells": [[((None, "a", "f"), 0)], [((None, "b", "g"), 1)], [((None, "a", ""), 0)]],
    "no index, the last one goes on": [[((None, "a", "f"), 0)], [((None, None, ""), 0)], [((None, "b", "g"), 1)], [((None, None, ""), 1)]],
    "no index, side by side": [
        [((None, "a", "f"), 0), ((None, "b", "g"), 1)],
        [((None, None, ""), 0), ((None, None, ""), 1)],
        [((None, None, ""), 1)],
    ],
    "no index, no id, side by side": [[((None, None, "f"), 0), ((None, None, "g"), 1)], [((None, None, ""), 0), ((None, None, ""), 1)]],
    "no index, two fragments of one call": [[((None, "a", "f"), 0), ((None, None, ""), 0)]],
    "no index, alone again": [
        [((None, "a", "f"), 0), ((None, "b", "g"), 1)],
        [((None, "c", "h"), 2)],
        [((None, None, ""), 2), ((None, None, ""), 2)],
    ],
    "a new id on every fragment": [[((0, "a", "f"), 0)], [((0, "b", ""), 0)], [((0, "c", ""), 0)]],
    "a new id on every fragment, no index": [[((None, "a", "f"), 0)], [((None, "b", ""), 0)]],
    "a new id on every fragment, side by side": [
        [((None, "a", "f"), 0), ((None, "b", "g"), 1)],
        [((None, "c", ""), 0), ((None, "d", ""), 1)],
    ],
    "an id that comes late": [[((0, None, "f"), 0)], [((0, "a", ""), 0)], [((0, "b", "g"), 1)], [((0, "a", ""), 0)]],
    "one id for two": [[((0, "a", "f"), 0)], [((1, "a", "g"), 1)], [((1, "a", ""), 1)], [((0, None, ""), 0)]],
    "the index drifts": [[((0, "a", "f"), 0)], [((1, "a", ""), 0)], [((1, None, ""), 0)]],
    "an index behind none": [[((None, "a", "f"), 0)], [((0, None, ""), 0)], [((0, None, ""), 0)]],
    "a new index is a new call, though its name comes later": [[((0, "a", "f"), 0)], [((1, None, ""), 1)], [((1, None, "g"), 1)]],
    "arguments first": [[((0, None, ""), 0)], [((0, None, "f"), 0)]],
    "arguments first, no index": [[((None, None, ""), 0)], [((None, "a", ""), 0)]],
}  # fmt: skip


@pytest.mark.parametrize("chunks", CASES.values(), ids=CASES)
def test_keys(chunks):
    calls = CallKeys()
    for chunk in chunks:
        several = len(chunk) > 1
        fragments = [
            Fragment(index, id_, name, position if several else None)
            for position, ((index, id_, name), _) in enumerate(chunk)
        ]
        assert calls.keys(fragments) == [key for _, key in chunk], chunk
