"""The two tables: total, real, and every pair of them driven."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import stream as machine
from antiphon.core.block_queue import BLOCK, BlockQueue
from antiphon.core.blocks import Block, State, ToolBlock
from antiphon.core.parts import (
    End,
    Fault,
    Finish,
    Malformed,
    Opaque,
    Reasoning,
    Refusal,
    Text,
    ToolArgs,
    ToolOpen,
    Usage,
)
from antiphon.core.stream import PHASE, Phase, Stream
from antiphon.core.usage import Tally
from pipeline import EventEncoder, judge, new_stream, run

# A part for every input; "commit" is the shell's own.
PARTS = {
    "text": Text("a"),
    "blank": Text(" "),
    "reasoning": Reasoning("b"),
    "tool": ToolOpen(0, "id", "f"),
    "nameless": ToolOpen(1, "id2", ""),
    "args": ToolArgs(0, '{"x":1}'),
    "opaque": Opaque("sig"),
    "usage": Usage(prompt=3, completion=2),
    "finish": Finish("end_turn"),
    "fault": Fault("api_error", "no", 502),
    "malformed": Malformed("bad"),
    "done": End(clean=True),
    "cut": End(clean=False),
    "commit": None,
}
BLOCK_INPUTS = ("delta", "whole", "next", "finish", "late")


def reach(phase: Phase, counts=None) -> Stream:
    stream = new_stream(counts)
    for name in {
        Phase.NEW: (),
        Phase.STREAMING: ("text",),
        Phase.FINISHING: ("text", "finish"),
        Phase.ENDED: ("text", "finish", "done"),
    }[phase]:
        stream.receive([PARTS[name]])
    assert stream.phase is phase
    return stream


def drive(stream: Stream, name: str) -> None:
    if name == "commit":
        stream.commit()
    else:
        stream.receive([PARTS[name]])


def test_every_pair_has_a_row():
    assert list(PHASE) == list(Phase)
    assert all(set(rows) == set(PARTS) for rows in PHASE.values())
    assert list(BLOCK) == list(State)
    assert all(tuple(rows) == BLOCK_INPUTS for rows in BLOCK.values())


def test_every_action_exists_and_every_row_is_what_dispatches():
    for phase, rows in PHASE.items():
        for name, (act, after) in rows.items():
            assert machine._PHASE[phase][name] == (getattr(Stream, f"_{act}"), after)
    from antiphon.core import block_queue

    for state, rows in BLOCK.items():
        for name, act in rows.items():
            assert block_queue._BLOCK[state][name] is getattr(BlockQueue, f"_{act}")


def test_every_part_has_an_input():
    assert {machine._INPUT[type(part)](part) for part in PARTS.values() if part is not None} | {
        "commit"
    } == set(PARTS)
    assert machine._INPUT[Refusal](Refusal("no")) == "text"
    assert machine._INPUT[Refusal](Refusal("\n")) == "blank"


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("phase", Phase)
def test_every_pair_of_phase(phase, name):
    stream = reach(phase)
    drive(stream, name)
    assert stream.phase is PHASE[phase][name][1]
    assert stream.ended == (stream.phase is Phase.ENDED)


@pytest.mark.parametrize("name", PARTS)
def test_nothing_counts_after_the_end(name):
    counts = Counter()
    stream = reach(Phase.ENDED, counts)
    stream.take()
    before = counts.copy()
    drive(stream, name)
    assert stream.take() == [] and counts == before and stream.fault is None


@pytest.mark.parametrize("phase", [Phase.NEW, Phase.STREAMING, Phase.FINISHING])
@pytest.mark.parametrize("name", ["fault", "malformed", "cut"])
def test_a_failure_is_told_once_and_only_before_a_finish_reason(phase, name):
    stream = reach(phase)
    drive(stream, name)
    excused = phase is Phase.FINISHING and name != "fault"
    assert (stream.fault is None) == excused
    assert stream.committed == (phase is not Phase.NEW)


@given(
    st.sampled_from(Phase),
    st.lists(st.sampled_from(sorted(PARTS)), max_size=12),
    st.lists(st.booleans(), min_size=12),
)
def test_any_inputs_from_any_phase(phase, names, reads):
    """A known phase, or an end; and what was said so far is legal, at every moment."""
    stream, events = reach(phase), []
    for name, read in zip(names, reads, strict=False):
        drive(stream, name)
        assert stream.phase in Phase
        assert stream.begun <= stream.committed
        if read:
            events += stream.take()
        said, problems = run.decode_sse(
            EventEncoder(message_id="msg_1", model="m", request_id="r").encode(events)
        )
        assert problems == [] and judge.violations(said, prefix=True) == []
    events += stream.take()
    said, _ = run.decode_sse(EventEncoder(message_id="msg_1", model="m", request_id="r").encode(events))
    assert judge.violations(said, prefix=not (stream.ended and stream.committed)) == []
    assert stream.committed or not said


class TestBlocks:
    def queue(self):
        self.counts = Counter()
        return BlockQueue(tool_id=lambda id_: id_ or "made", tally=Tally(input_tokens=1), counts=self.counts)

    def block(self, kind, state):
        block = ToolBlock(0) if kind == "tool_use" else Block(kind)
        if kind == "tool_use":
            block.scan.feed('{"x":1}')
        block.state = state
        return block

    @pytest.mark.parametrize("kind", ["text", "thinking", "tool_use"])
    @pytest.mark.parametrize("name", BLOCK_INPUTS)
    @pytest.mark.parametrize("state", State)
    def test_every_pair(self, state, name, kind):
        queue, block = self.queue(), self.block(kind, state)
        queue._queue.append(Block("text"))  # somebody waits
        queue._apply(name, block, "t")
        kept, stopped = block.pending == ["t"], block.state is State.STOPPED
        want = {
            "nothing": (False, state is State.STOPPED, False),
            "keep": (True, False, False),
            "late": (False, True, True),
            "yield": (False, True, False),
            "stop": (False, True, False),
            "conclude": (False, True, False),
        }[BLOCK[state][name]]
        assert (kept, stopped, queue.broken) == want
        assert self.counts == ({"late_fragment": 1} if want[2] else {})

    def test_the_head_yields_to_somebody_only(self):
        queue, block = self.queue(), self.block("text", State.LIVE)
        queue._apply("next", block)
        assert block.state is State.LIVE

    @pytest.mark.parametrize("name", ["next", "whole"])
    def test_a_tool_yields_only_when_nothing_can_change_it(self, name):
        for text, overlap, yields in [
            ('{"x":1}', False, True),
            ('{"x":1}', True, False),
            ("{}", False, False),
            ('{"x"', False, False),
        ]:
            queue, call = self.queue(), ToolBlock(0)
            call.scan.feed(text)
            call.state = State.LIVE
            queue.overlap = overlap
            queue._queue.append(Block("text"))
            queue._apply(name, call)
            assert (call.state is State.STOPPED) == yields
