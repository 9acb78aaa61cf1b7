"""Parts of single frames, limits, and what the reader counts. Whole streams are in test_transcripts."""

from collections import Counter

import pytest

from antiphon.core import own_faults
from antiphon.core.dialects.chat_stream import FINISH_WORDS, ChatStream
from antiphon.core.parts import (
    End,
    Fault,
    Finish,
    Malformed,
    Reasoning,
    Refusal,
    Text,
    ToolArgs,
    ToolOpen,
    Usage,
)
from pipeline import CUT, DONE, call, delta, finish, frame, said, thought, tool, usage


class Reader(ChatStream):
    def __init__(self, **options):
        self.counts = Counter()
        super().__init__(counts=self.counts, **options)


def parts(*chunks, **options):
    reader = Reader(**options)
    return [part for chunk in chunks for part in reader.feed(chunk)]


def test_one_frame_with_everything_in_its_order():
    chunk = frame(
        {
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
            "choices": [
                {
                    "finish_reason": "length",
                    "delta": {
                        "tool_calls": [call(0, "a", "f", "{"), call(1, None, "g")],
                        "refusal": "no",
                        "content": "b",
                        "reasoning": "a",
                    },
                }
            ],
        }
    )
    assert parts(chunk, DONE) == [
        Usage(3, 1),
        Reasoning("a"),
        Text("b"),
        Refusal("no"),
        ToolOpen(0, "a", "f"),
        ToolArgs(0, "{"),
        ToolOpen(1, None, "g"),
        Finish("max_tokens"),
        End(clean=True),
    ]


def test_prompt_progress_tells_the_prompts_tokens_before_the_answer():
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}
    told = parts(frame({**chunk, "prompt_progress": {"total": 1255, "cache": 0, "processed": 128}}))
    assert told == [Usage(prompt=1255)]


def test_nothing_follows_an_end():
    reader = Reader()
    assert reader.feed(said("a") + finish("stop") + DONE + said("b"))[-1] == End(clean=True)
    assert reader.feed(said("c")) == reader.end() == reader.end(CUT) == []


def test_frames_of_one_read_come_out_together():
    assert parts(said("a") + said("b") + thought("c")) == [Text("a"), Text("b"), Reasoning("c")]


def test_what_is_held_comes_out_at_the_end():
    for ending, last in ((DONE, End(clean=True)), (None, End(clean=False))):
        reader = Reader()
        reader.feed(said("<thi"))
        assert (reader.feed(ending) if ending else reader.end()) == [Text("<thi"), last]
        reader = Reader()
        reader.feed(said("a\ud83d"))
        assert (reader.feed(ending) if ending else reader.end()) == [Text("\ufffd"), last]


def test_a_half_comes_out_before_a_call_opens():
    assert parts(thought("a\ud83d"), tool(0, "a", "f", '{"\ud83d'), said("b")) == [
        Reasoning("a"),
        Reasoning("\ufffd"),
        ToolOpen(0, "a", "f"),
        ToolArgs(0, '{"'),
        ToolArgs(0, "\ufffd"),
        Text("b"),
    ]


class TestEnds:
    @pytest.mark.parametrize("fault", [None, CUT])
    def test_nothing_came(self, fault):
        assert Reader().end(fault) == [End(clean=False, fault=fault or own_faults.UPSTREAM_EMPTY)]

    def test_something_came(self):
        for chunk in (delta(role="assistant"), usage(3, 1)):
            reader = Reader()
            reader.feed(chunk)
            assert reader.end()[-1] == End(clean=False)

    def test_half_a_frame(self):
        reader = Reader()
        reader.feed(said("a") + b'data: {"choi')
        assert reader.end(CUT) == [End(clean=False, fault=CUT)]

    def test_done_at_once(self):
        assert parts(DONE) == [own_faults.UPSTREAM_EMPTY]


class TestLimits:
    def test_of_a_frame(self):
        assert parts(said("a") + b"data: " + b"x" * 300, max_frame=200) == [
            Text("a"),
            own_faults.UPSTREAM_TOO_LARGE,
        ]
        assert parts(b"data: " + b"x" * 300, said("a"), max_frame=200) == [own_faults.UPSTREAM_TOO_LARGE]

    def test_of_a_frame_behind_the_end(self):
        assert parts(said("a") + DONE + b"x" * 300, max_frame=200) == [Text("a"), End(clean=True)]

    def test_of_a_document(self):
        reader = Reader(max_body=10)
        assert reader.feed(b'{"a":') == []
        assert reader.feed(b"123456") == [own_faults.UPSTREAM_TOO_LARGE]
        assert reader.end() == []

    def test_a_frame_of_a_megabyte_is_none(self):
        text = "x" * (1 << 20)
        assert parts(said(text)) == [Text(text)]


class TestFinish:
    @pytest.mark.parametrize("word", FINISH_WORDS)
    def test_words(self, word):
        assert parts(finish(word)) == parts(finish(f" {word.upper()} ")) == [Finish(FINISH_WORDS[word])]

    def test_a_word_that_is_a_failure_ends_it(self):
        [fault] = parts(finish("abort"), said("a"))
        assert isinstance(fault, Fault)

    def test_the_text_of_a_failing_chunk_comes_first(self):
        assert parts(finish("error", content="a"))[0] == Text("a")

    def test_a_matched_string_is_only_for_a_normal_end(self):
        chunk = frame({"choices": [{"delta": {}, "finish_reason": "length", "stop_reason": "END"}]})
        assert parts(chunk, stop_sequences=("END",)) == [Finish("max_tokens")]


class TestCounts:
    @pytest.mark.parametrize(
        "chunk, name",
        [
            (frame({"choices": [{"index": 1, "delta": {"content": "b"}}]}), "other_choice"),
            (finish("whatever"), "unknown_finish_reason"),
            (frame("42"), "foreign_data"),
            (frame(""), "foreign_data"),
            (b'event: x\ndata: {"a":1}\n\n', "foreign_event"),
            (b"event: x\ndata: oops\n\n", "foreign_event"),
            (said("a\ude00"), "lone_surrogate"),
        ],
    )
    def test_what_is_odd(self, chunk, name):
        reader = Reader()
        reader.feed(chunk)
        assert reader.counts == {name: 1}

    def test_nothing_odd(self):
        reader = Reader()
        reader.feed(
            thought("é")
            + said("a\ud83d\ude00")
            + tool(0, "a", "f", "{}")
            + finish("tool_calls")
            + usage(1, 2)
            + DONE
        )
        assert reader.counts == {}


def test_malformed_data_does_not_end_the_reading():
    assert parts(b"data: {oops\n\n", said("a")) == [Malformed("the upstream sent malformed data"), Text("a")]


def test_a_frame_named_message_is_ordinary():
    assert parts(b"event: message\n" + said("a")) == [Text("a")]


def test_white_space_before_a_document_is_not_kept():
    reader = Reader(max_body=100)
    for _ in range(1000):
        assert reader.feed(b"\n" * 1000) == []
    reader.feed(b'{"choices":[{"message":{"content":"Hi"}}]}')
    assert reader.end() == [Text("Hi"), End(clean=True)]
