"""Comparisons by meaning, and their agreement with the pinned runner's."""

import itertools

import pytest

from antiphon.check import compare
from check import samples as s
from pipeline import CORPUS
from pipeline import run as pinned

VALUES = [None, "", "a", "msg_1", "chatcmpl-1", "m", "call/1", 0, 3, -1, True, 1.0, [], {}, ["a"], {"a": 1}]
WANTED = ["<int>", "<int > 0>", "<msg_*>", "<toolu_* unique>", "<requested model>", "<str>", "a", 3, None, True, [],
          ["<str>"], {}, {"a": "<int>"}, {"a": 1, "b": 2}]  # fmt: skip


@pytest.mark.parametrize(("want", "got"), list(itertools.product(WANTED, VALUES)))
def test_wildcards_agree_with_the_pinned_ones(want, got):
    assert (compare.difference(want, got, "m") is None) == bool(pinned.matches(want, got, {"model": "m"}))


STREAMS = [case for case in CORPUS if "events" in case["expected"]]


@pytest.mark.parametrize("case", STREAMS[::4], ids=lambda case: case["id"])
def test_streams_agree_with_the_pinned_comparison(case):
    want = case["expected"]["events"]
    for other, events in s.CORPUS_STREAMS.items():
        for named in (False, True):
            theirs = pinned.compare_streams(want, events, {"model": "id_2", "judge_model": named})
            mine = compare.stream_difference(want, events, "id_2", judge_model=named)
            assert (mine is None) == (theirs is None), (other, mine, theirs)


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [
        (
            [{"role": "user", "content": "a b"}],
            [{"role": "user", "content": [{"type": "text", "text": "a b"}]}],
            True,
        ),
        ([{"role": "user", "content": "a\nb"}], [{"role": "user", "content": "a b "}], True),
        ([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}], False),
        ([{"role": "user", "content": "a"}], [{"role": "system", "content": "a"}], False),
        ([{"role": "assistant", "content": None}], [{"role": "assistant"}], True),
        ([{"role": "assistant", "content": None}], [{"role": "assistant", "content": ""}], True),
        ([{"role": "tool", "content": "<anything>"}], [{"role": "tool", "content": "x"}], True),
        ([{"role": "user", "content": "a"}], [], False),
        ([{"role": "user", "content": "a"}], "a", False),
        ([{"content": [{"type": "image_url", "image_url": {"url": "u"}}]}], [{"content": "u"}], False),
        (
            [{"content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
            [{"content": [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}]}],
            True,
        ),
        (
            [{"tool_calls": [CALL]}],
            [{"tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{ "a": 2, "b": 1 }'}}]}],
            True,
        ),
        (
            [{"tool_calls": [CALL]}],
            [{"tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{}"}}]}],
            False,
        ),
        ([{"tool_calls": [CALL]}], [{"tool_calls": [CALL, CALL]}], False),
        ([{"tool_calls": [CALL]}], [{}], False),
    ],
)
def test_messages(want, got, same):
    found = compare.request_difference({"messages": want}, {"messages": got}, "m")
    assert (found is None) == same
    if isinstance(got, list) and got and all(isinstance(m, dict) for m in got):
        assert pinned.matches_messages(want, got, {"model": "m"}) == same


def test_requests():
    assert (
        compare.request_difference({"model": "x", "stop": ["A"]}, {"model": "y", "stop": ["A"]}, "m") is None
    )
    assert "stop = null" in compare.request_difference({"stop": ["A"]}, {}, "m")
    assert (
        compare.request_difference({}, {"thinking": 1}, "m", absent=["thinking"])
        == "the upstream got thinking"
    )
    assert compare.request_difference({}, "no object", "m", absent=["thinking"]) is None


def test_pieces():
    want = [
        {"role": "tool", "tool_call_id": "a", "content": "x y"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:1"}}, {"text": "<free>"}],
        },
    ]
    sent = {"messages": [{"tool_call_id": "a", "content": [{"text": "y x"}]}, {"url": "data:1"}]}
    assert compare.pieces_missing(want, sent) is None
    assert compare.pieces_missing(want, {"messages": [{"content": "x y data:1"}]}).startswith(
        'the upstream did not get "a"'
    )
    assert "data:1" in compare.pieces_missing(want, {"messages": [{"tool_call_id": "a", "content": "x y"}]})


def test_leaks():
    rules = {"upstream_headers_only": ["host"], "upstream_never": ["secret"]}
    assert compare.leaked(rules, {"host": "x"}, {}) is None
    assert compare.leaked(rules, {"host": "x", "cookie": "a"}, {}) == "the upstream got the headers cookie"
    assert compare.leaked(rules, {"host": "x"}, {"k": ["secret"]}) == "the upstream got secret"
    assert compare.leaked({"upstream_never": ["secret"]}, {"a": "secret"}, None) == "the upstream got secret"
