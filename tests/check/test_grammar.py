"""The judge: every rule broken once, and its agreement with the pinned judge of the conformance suite."""

import random
import re

import pytest

from antiphon.check.grammar import judge
from antiphon.check.rules import RULES, Violation
from check import samples as s
from pipeline import judge as pinned


def edited(change, events=None):
    events = s.legal() if events is None else events
    change(events)
    return events


def message(**members):
    return edited(lambda e: e[0]["message"].update(members))


def without(path, events=None):
    def change(events):
        holder = events
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]

    return edited(change, events)


def inserted(at, *events):
    return edited(lambda e: e.__setitem__(slice(at, at), list(events)))


ERROR = {"type": "error", "error": {"type": "api_error", "message": "gone"}}

# What breaks, the rule, the number of the event that is blamed.
BROKEN = [
    (inserted(3, "text"), "event.object", 4),
    (inserted(3, {"type": "new_event"}), "event.unknown", 4),
    (inserted(3, {"type": ["x"]}), "event.unknown", 4),
    ([s.PING, *s.legal()], "order.start", 1),
    ([ERROR], "order.start", 1),
    (inserted(2, s.start()), "order.second_start", 3),
    (inserted(14, s.finish("tool_use")), "order.after_finish", 15),
    (inserted(14, s.block(3, type="text", text="")), "order.after_finish", 15),
    (without([13]), "order.no_message_delta", 14),
    ([*s.legal(), s.PING], "order.after_end", 16),
    ([*s.legal(), s.END], "order.after_end", 16),
    ([*s.failed(), s.END], "order.after_end", 9),
    (s.legal()[:-1], "end.missing", None),
    ([], "end.missing", None),
    (message(role="user"), "start.envelope", 1),
    (message(type="completion"), "start.envelope", 1),
    (message(content=None), "start.envelope", 1),
    (message(stop_reason="end_turn"), "start.envelope", 1),
    (without([0, "message", "stop_sequence"]), "start.envelope", 1),
    (message(id=""), "start.identity", 1),
    (message(model=None), "start.identity", 1),
    (message(id="chatcmpl-1"), "start.id_prefix", 1),
    (message(usage={"input_tokens": 1}), "start.usage", 1),
    (message(usage={"input_tokens": None, "output_tokens": 1}), "start.usage", 1),
    (message(usage={"input_tokens": True, "output_tokens": 1}), "start.usage", 1),
    (inserted(3, {"type": "ping", "n": 1}), "ping.fields", 4),
    (without([5]), "block.overlap", 6),
    (edited(lambda e: e[6].update(index=3)), "block.index", 7),
    (edited(lambda e: e[6].update(index=True)), "block.index", 7),
    (without([6, "index"]), "block.index", 7),
    (edited(lambda e: e[6]["content_block"].update(type="image")), "block.type", 7),
    (without([6, "content_block", "text"]), "block.start", 7),
    (edited(lambda e: e[6]["content_block"].update(text="Hel")), "block.start", 7),
    (without([2, "content_block", "thinking"]), "block.start", 3),
    (edited(lambda e: e[9]["content_block"].update(input={"a": 1})), "block.start", 10),
    (without([2, "content_block", "signature"]), "block.signature", 3),
    (inserted(6, s.stop(0)), "block.stop", 7),
    (edited(lambda e: e[8].update(index=0)), "block.stop", 9),
    (without([7]), "block.empty", 8),
    (edited(lambda e: e[9]["content_block"].update(id="call/1")), "tool.id", 10),
    (edited(lambda e: e[9]["content_block"].update(id=5)), "tool.id", 10),
    (inserted(13, *[{**e, "index": 3} for e in s.TOOL]), "tool.id_twice", 14),
    (edited(lambda e: e[9]["content_block"].update(name="a b")), "tool.name", 10),
    (edited(lambda e: e[9]["content_block"].update(name="n" * 129)), "tool.name", 10),
    (inserted(6, s.delta(0, type="text_delta", text="x")), "delta.block", 7),
    (edited(lambda e: e[7].update(index=0)), "delta.block", 8),
    (inserted(7, s.delta(1, type="thinking_delta", thinking="x")), "delta.kind", 8),
    (inserted(7, s.delta(1, type="input_json_delta", partial_json="{}")), "delta.kind", 8),
    (inserted(7, {"type": "content_block_delta", "index": 1}), "delta.kind", 8),
    (edited(lambda e: e[7]["delta"].update(text=None)), "delta.value", 8),
    (edited(lambda e: e[10]["delta"].update(partial_json={})), "delta.value", 11),
    (inserted(7, s.delta(1, type="text_delta", text="")), "delta.empty", 8),
    (inserted(5, s.delta(0, type="thinking_delta", thinking="x")), "delta.after_signature", 6),
    (without([12]), "finish.open_block", 13),
    (edited(lambda e: e[13]["delta"].update(stop_reason="stop")), "finish.stop_reason", 14),
    (edited(lambda e: e[13]["delta"].update(stop_reason=None)), "finish.stop_reason", 14),
    (without([13, "delta", "stop_sequence"]), "finish.no_stop_sequence", 14),
    (edited(lambda e: e[13]["delta"].update(stop_sequence="x")), "finish.stop_sequence", 14),
    (edited(lambda e: e[13]["delta"].update(stop_reason="stop_sequence")), "finish.stop_sequence", 14),
    (edited(lambda e: e[13]["delta"].update(stop_reason="end_turn")), "finish.tools", 14),
    (s.short(reason="tool_use"), "finish.tools", 5),
    (without([13, "usage"]), "finish.usage", 14),
    (without([13, "usage", "output_tokens"]), "finish.usage", 14),
    (edited(lambda e: e[13]["usage"].update(output_tokens=-1)), "usage.count", 14),
    (edited(lambda e: e[13]["usage"].update(cache_read_input_tokens=1.5)), "usage.count", 14),
    (edited(lambda e: e[-1]["error"].update(type="server_error"), s.failed()), "error.type", 8),
    (edited(lambda e: e[-1]["error"].update(message=""), s.failed()), "error.message", 8),
    (without([-1, "error"], s.failed()), "error.type", 8),
]
STREAM_RULES = {rule for rule in RULES if not rule.startswith("frame.")} - {"message.shape", "tool.input"}


@pytest.mark.parametrize(("events", "rule", "at"), BROKEN)
def test_a_broken_rule_is_named_at_its_event(events, rule, at):
    found = judge(events)
    assert (found[0].rule, found[0].at) == (rule, at)
    assert found[0].clients == RULES[rule].clients


def test_every_rule_of_a_stream_has_a_row():
    assert {rule for _, rule, _ in BROKEN} == STREAM_RULES


@pytest.mark.parametrize(
    "events",
    [
        s.legal(),
        s.failed(),
        s.short(),
        s.short(s.block(1, type="redacted_thinking", data="ZZ"), s.stop(1)),
        [s.start(), s.finish(), s.PING, s.END],
        [s.start(), ERROR],
        [s.start(), s.finish("stop_sequence", "END"), s.END],
    ],
)
def test_legal_streams(events):
    assert judge(events) == []


def test_one_fault_is_told_once():
    """The judge goes on as if the event had been meant well."""
    assert [v.rule for v in judge(without([8]))] == ["block.overlap"]
    assert [v.at for v in judge(inserted(7, s.delta(1, type="text_delta", text=None)))] == [8]


def test_a_prefix_needs_no_end():
    for cut in range(len(s.legal()) + 1):
        assert judge(s.legal()[:cut], prefix=True) == []
    assert judge(s.legal()[:3])[0] == Violation(
        "end.missing", None, "neither message_stop nor error closed the stream"
    )


def test_what_clients_survive():
    survivable = [v for events, rule, _ in BROKEN for v in judge(events) if v.survivable]
    assert {v.rule for v in survivable} == {"start.id_prefix", "block.signature", "finish.no_stop_sequence"}


# --- the second opinion ---


def positions(violations):
    return [v.at for v in violations]


def pinned_positions(lines):
    return [None if line.startswith("end:") else int(re.match(r"#(\d+)", line)[1]) + 1 for line in lines]


@pytest.mark.parametrize("events", s.CORPUS_STREAMS.values(), ids=s.CORPUS_STREAMS)
def test_both_judges_agree_on_the_corpus(events):
    lenient = [v for v in judge(events) if not v.survivable]
    assert positions(lenient) == pinned_positions(pinned.violations(events, envelope=False)) == []
    assert positions(judge(events)) == pinned_positions(pinned.violations(events))


@pytest.mark.parametrize("seed", range(40))
def test_both_judges_agree_on_mutations(seed):
    """The same events are blamed, each as often, with the envelope and without."""
    rng = random.Random(seed)
    streams = [s.legal(), s.failed(), s.short(), *s.CORPUS_STREAMS.values()]
    for events in rng.sample(streams, 40):
        mutated = events
        for _ in range(rng.randint(1, 3)):
            mutated = s.mutate(mutated, rng)
            if not mutated:
                break
        mine = judge(mutated)
        assert positions(mine) == pinned_positions(pinned.violations(mutated)), mutated
        lenient = [v for v in mine if not v.survivable]
        assert positions(lenient) == pinned_positions(pinned.violations(mutated, envelope=False)), mutated
        assert positions(judge(mutated, prefix=True)) == pinned_positions(
            pinned.violations(mutated, prefix=True)
        )


@pytest.mark.parametrize(
    "events",
    [
        edited(lambda e: e[9]["content_block"].update(id=5)),
        edited(lambda e: e[9]["content_block"].update(name=5)),
        edited(lambda e: e[7].update(index=True)),
        edited(lambda e: e[6].update(index=1.0)),
        edited(lambda e: e[8].update(index=1.0)),
    ],
)
def test_where_this_judge_is_stricter(events):
    """JSON's types: a number is no id, true and 1.0 are no index."""
    assert judge(events)
    assert not pinned.violations(events)
