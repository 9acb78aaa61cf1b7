"""Steps that argument text makes. The calls' answers to whole streams are in test_transcripts."""

from collections import Counter

import pytest

from antiphon.core.blocks import tool_name
from antiphon.core.parts import ToolOpen
from antiphon.core.tool_calls import NAME_KEPT, ToolCalls


class Calls(ToolCalls):
    def __init__(self):
        self.counts = Counter()
        super().__init__(self.counts)

    def named(self, key, name="f", id_="a"):
        steps = self.open(ToolOpen(key, id_, name))
        for _, call, _ in steps:
            call.queued = True
        return steps

    def fed(self, key, *texts):
        return [(name, call.key, text) for piece in texts for name, call, text in self.feed(key, piece)]


def test_named_once():
    calls = Calls()
    [(name, call, _)] = calls.named(0, "re")
    assert name == "named"
    assert calls.named(0, "ad") == [] and calls.named(0, "read") == []
    assert call.name == "read" and call.upstream_id == "a"


def test_a_name_has_a_limit():
    calls = Calls()
    [(_, call, _)] = calls.named(0, "n" * NAME_KEPT)
    calls.named(0, "m")
    assert call.name == "n" * NAME_KEPT


def test_arguments_before_the_name():
    calls = Calls()
    assert calls.fed(0, '{"x":1}') == [("delta", 0, '{"x":1}'), ("whole", 0, "")]
    assert [call.name for call in calls.nameless] == [""]
    assert [step[0] for step in calls.named(0)] == ["named"]
    assert calls.nameless == []


def test_white_space_before_and_behind():
    calls = Calls()
    calls.named(0)
    assert calls.fed(0, " ", '\n{"x"', ":1} ", "\t") == [
        ("delta", 0, '{"x"'),
        ("delta", 0, ":1}"),
        ("whole", 0, ""),
    ]
    assert calls.counts == {"white_space_after_arguments": 2}


def test_a_placeholder_is_held_and_replaced():
    calls = Calls()
    calls.named(0)
    assert calls.fed(0, "{}", " ") == []
    assert calls.at(0).placeholder and calls.at(0).nothing_said
    assert calls.fed(0, '{"x":1}') == [("delta", 0, '{"x":1}'), ("whole", 0, "")]
    assert calls.counts["placeholder_arguments"] == 1


def test_a_placeholder_that_was_none():
    calls = Calls()
    calls.named(0)
    assert calls.fed(0, "{}", "x") == [("late", 0, "{}x")]
    assert not calls.at(0).placeholder and calls.unfinished


def test_an_object_in_two_pieces_is_no_placeholder():
    calls = Calls()
    calls.named(0)
    assert calls.fed(0, "{", "}") == [("delta", 0, "{"), ("delta", 0, "}"), ("whole", 0, "")]
    assert calls.at(0).scan.bare and not calls.at(0).certain


def test_a_repeat_says_nothing():
    calls = Calls()
    calls.named(0)
    assert len(calls.fed(0, '{"x":1}')) == 2
    assert calls.fed(0, '{"x', '":1}', '{"x":1}{"x":1}') == []
    assert calls.counts["arguments_repeated"] == 3


def test_another_object_is_another_call():
    calls = Calls()
    calls.named(0)
    first = calls.at(0)
    steps = calls.feed(0, '{"x":1}{"x":12}') + calls.feed(0, "\n{")
    assert [(name, text) for name, _, text in steps] == [
        ("delta", '{"x":1}'),
        ("whole", ""),
        ("named", ""),
        ("delta", '{"x":12}'),
        ("whole", ""),
    ]
    other = calls.at(0)
    assert other is not first and (other.name, other.upstream_id) == ("f", None)
    [(_, third, _), (_, same, text)] = calls.finish()
    assert third is same and text == "{" and calls.unfinished


def test_an_id_for_the_second_call_without_an_index():
    calls = Calls()
    calls.named(0, id_=None)
    calls.fed(0, '{"x":1}')
    calls.at(0).id = "made"  # it has started
    calls.named(0, id_="b")
    calls.feed(0, '{"x":2}')
    assert calls.at(0).upstream_id == "b"
    assert not calls.counts["id_too_late"]


def test_an_id_that_comes_too_late():
    calls = Calls()
    calls.named(0, id_=None)
    calls.fed(0, '{"x":')
    calls.at(0).id = "made"
    calls.named(0, id_="b")
    assert calls.at(0).upstream_id is None and calls.counts["id_too_late"] == 1


def test_beyond_what_is_kept_a_second_object_is_another_call(monkeypatch):
    monkeypatch.setattr("antiphon.core.arguments.KEPT", 4)
    calls = Calls()
    calls.named(0)
    calls.fed(0, '{"x":1}')
    assert [step[0] for step in calls.feed(0, '{"x":1}')] == ["named", "delta", "whole"]
    assert calls.finish() == []


class TestOverlap:
    def test_one_after_the_other(self):
        calls = Calls()
        for key in range(3):
            calls.named(key)
            calls.fed(key, '{"x":', "1}")
        assert not calls.overlap

    def test_one_opens_while_another_is_not_whole(self):
        calls = Calls()
        calls.named(0)
        calls.named(1)
        assert calls.overlap

    def test_real_arguments_begin_while_another_is_not_whole(self):
        calls = Calls()
        calls.named(0)
        calls.fed(0, "{}")
        calls.named(1)
        assert not calls.overlap
        calls.fed(1, '{"y"')
        calls.fed(0, '{"x"')
        assert calls.overlap

    def test_spoilt_is_not_whole(self):
        calls = Calls()
        calls.named(0)
        calls.fed(0, '{"x":1}', "}")
        calls.named(1)
        assert calls.overlap


@pytest.mark.parametrize(
    "name, want", [("read", "read"), ("a.b c", "a_b_c"), ("é", "_"), ("x" * 200, "x" * 128)]
)
def test_tool_name(name, want):
    assert tool_name(name) == want


def test_the_module_s_example():
    calls = Calls()
    calls.named(0, "read")
    assert calls.fed(0, '{"p":', "1}") == [("delta", 0, '{"p":'), ("delta", 0, "1}"), ("whole", 0, "")]
