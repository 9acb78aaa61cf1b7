"""What is held, what is counted, and opaque state; starts and stops are in test_stream_tables."""

import sys
from collections import Counter

from antiphon.core import own_faults
from antiphon.core.parts import (
    BlockStart,
    BlockStop,
    End,
    Finish,
    MessageStart,
    Opaque,
    Reasoning,
    SignatureDelta,
    Text,
    TextDelta,
    ToolArgs,
    ToolOpen,
)
from pipeline import new_stream, play_parts, told_by

OVER = [Finish("end_turn"), End(clean=True)]


class TestHeld:
    def stream(self, limit=10):
        self.counts = Counter()
        return new_stream(self.counts, held_limit=limit)

    def test_the_head_is_not_held_however_much_it_is(self):
        stream = self.stream()
        for _ in range(5):
            stream.receive([Text("x" * 100)])
        assert not stream.ended and stream.pending == 500
        stream.take()
        assert stream.pending == 0

    def test_a_whole_call_in_one_piece_is_not_held(self):
        stream = self.stream()
        stream.receive([ToolOpen(0, "a", "f"), ToolArgs(0, '{"x":"' + "y" * 100 + '"}')])
        assert not stream.ended

    def test_what_waits_behind_it_is(self):
        stream = self.stream()
        stream.receive([ToolOpen(0, "a", "f"), ToolArgs(0, '{"x":'), Text("x" * 10)])
        assert not stream.ended
        stream.receive([Text("x")])
        assert stream.fault == own_faults.UPSTREAM_TOO_LARGE and self.counts["held_too_much"] == 1

    def test_so_is_white_space_and_a_call_without_a_name(self):
        stream = self.stream()
        stream.receive([Text(" " * 11)])
        assert stream.fault is not None and not stream.committed
        stream = self.stream()
        stream.receive([ToolArgs(0, "x" * 11)])
        assert stream.fault is not None and not stream.committed

    def test_pieces_cost_what_their_characters_do(self):
        stream = new_stream()
        stream.receive([ToolOpen(0, "a", "f"), ToolArgs(0, '{"x":')])
        pieces = [Text(piece) for piece in "a bc déf. 😀"]
        for _ in range(2**15):
            stream.receive(pieces)
        pending = stream.blocks._tail.pending
        text = "".join(pending)
        assert text == "a bc déf. 😀" * 2**15
        assert sys.getsizeof(pending) + sum(map(sys.getsizeof, pending)) <= 2 * sys.getsizeof(text)
        stream.receive([ToolArgs(0, "1}"), *OVER])
        assert [event.s for event in stream.take() if isinstance(event, TextDelta)] == [text]

    def test_a_good_end_comes_first(self):
        stream = self.stream()
        stream.receive([ToolOpen(0, "a", "f"), ToolArgs(0, '{"x":'), Text("x" * 100), *OVER])
        assert stream.ended and stream.fault is None

    def test_nothing_is_held_at_the_end_whatever_it_was(self):
        for parts in (
            [Text(" "), Reasoning("a"), Text("b")],
            [
                ToolOpen(0, "a", "f"),
                ToolArgs(0, "{"),
                ToolArgs(0, "}"),
                ToolOpen(1, "b", "g"),
                ToolArgs(1, '{"x":1}'),
            ],
            [
                ToolOpen(0, "a", "f"),
                ToolArgs(0, "{}"),
                Text("t"),
                ToolOpen(1, "b", "g"),
                ToolArgs(1, "{"),
                ToolArgs(1, "}"),
            ],
            [ToolArgs(0, '{"x":1}'), ToolOpen(0, None, "f"), Text(" ")],
        ):
            for reason in ("end_turn", "max_tokens"):
                stream = new_stream(Counter())
                stream.receive([*parts, Finish(reason), End(clean=True)])
                assert stream.blocks.held == 0
                stream.take()
                assert stream.pending == 0


class TestReadingLate:
    def test_a_backlog_is_one_delta(self):
        stream = new_stream()
        stream.receive([Text("a")])
        stream.receive([Text("b"), Text("c")])
        start, block, text = stream.take()
        assert isinstance(start, MessageStart)
        assert (block, text) == (BlockStart(0, "text"), TextDelta(0, "abc"))
        assert stream.take() == []

    def test_blocks_that_were_stopped_meanwhile(self):
        stream = new_stream()
        stream.receive([Reasoning("a"), Text("b"), Reasoning("c")])
        assert [type(event).__name__ for event in stream.take()[1:]] == [
            "BlockStart", "ThinkingDelta", "BlockStop", "BlockStart", "TextDelta", "BlockStop", "BlockStart", "ThinkingDelta",
        ]  # fmt: skip


class TestOpaque:
    def test_of_the_last_thought(self):
        assert told_by(play_parts([[Reasoning("a"), Opaque("s"), Text("b"), *OVER]])) == [
            "thinking a [s]",
            "text b",
            "end_turn",
        ]

    def test_behind_a_text_it_waits_for_the_next_block(self):
        assert told_by(play_parts([[Text("b"), Opaque("s"), Opaque("t"), Text("c"), *OVER]])) == [
            "text b",
            "thinking  [s]",
            "thinking  [t]",
            "text c",
            "end_turn",
        ]

    def test_behind_the_last_text_it_is_dropped_and_counted(self):
        result = play_parts([[Text("b"), Opaque("s"), Opaque("t"), *OVER]])
        assert told_by(result) == ["text b", "end_turn"]
        assert result.counts["state_behind_text"] == 2

    def test_reasoning_behind_it_is_another_thought(self):
        assert told_by(play_parts([[Reasoning("a"), Opaque("s"), Reasoning("b"), *OVER]])) == [
            "thinking a [s]",
            "thinking b",
            "end_turn",
        ]

    def test_of_a_call_before_its_name_and_behind_it(self):
        opened, args = ToolOpen(0, "a", "f"), ToolArgs(0, '{"x":1}')
        for parts in ([Opaque("s", 0), opened, args], [opened, Opaque("s", 0), args]):
            assert told_by(play_parts([[Text("t"), *parts, *OVER]])) == [
                "text t",
                "thinking  [s]",
                'tool a f {"x": 1}',
                "tool_use",
            ]

    def test_of_a_call_that_is_on_the_wire_already(self):
        result = play_parts([[ToolOpen(0, "a", "f"), ToolArgs(0, '{"x":1}'), Opaque("s", 0), *OVER]])
        assert told_by(result) == ['tool a f {"x": 1}', "tool_use"]
        assert result.counts["opaque_too_late"] == 1

    def test_events(self):
        stream = new_stream()
        stream.receive([Opaque("s"), *OVER])
        assert stream.take()[1:4] == [BlockStart(0, "thinking"), SignatureDelta(0, "s"), BlockStop(0)]


def test_counts_tell_what_was_done():
    parts = [
        Text(" "),
        Reasoning("a"),
        ToolOpen(0, "a", "m:f"),
        ToolArgs(0, '{"x":1}'),
        ToolOpen(1, "b", "g"),
        ToolOpen(2, "c", ""),
    ]
    result = play_parts([[*parts, Finish("max_tokens"), End(clean=False)]])
    assert result.counts == {
        "blank_text_dropped": 1,
        "tool_name_mended": 1,
        "cut_call_dropped": 1,
        "nameless_call_dropped": 1,
        "cut_after_finish": 1,
    }
