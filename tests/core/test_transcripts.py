"""The rules of a stream, row by row, as transcripts: what an upstream says, what a client hears.

Every transcript is played as it stands, in one piece, byte by byte and to a client that reads late, and
judged each time (see `pipeline.transcript`).
"""

import json

import pytest

from pipeline import (
    CUT,
    DONE,
    call,
    delta,
    finish,
    frame,
    play,
    said,
    thought,
    told_by,
    tool,
    transcript,
    usage,
)

STOP = finish("stop")
CALLS = finish("tool_calls")
CUT_OFF = "error api_error: the upstream's stream ended before its answer was complete"
MALFORMED = "error api_error: the upstream sent malformed data"
LATE = "error api_error: the upstream went on with a tool call that was already complete"
EMPTY = "HTTP 502 api_error: the upstream returned an empty stream"


class TestTextAndThinking:
    def test_thinking_is_stopped_by_text(self):
        assert transcript(thought("Hm"), said("Hi"), STOP, DONE) == ["thinking Hm", "text Hi", "end_turn"]

    def test_text_is_stopped_by_a_tool(self):
        assert transcript(said("Hi"), tool(0, "a", "f", '{"x":1}'), CALLS, DONE) == [
            "text Hi",
            'tool a f {"x": 1}',
            "tool_use",
        ]

    def test_text_after_a_tool_is_a_block_of_its_own(self):
        assert transcript(said("a"), tool(0, "t", "f", '{"x":1}'), said("b"), CALLS, DONE) == [
            "text a",
            'tool t f {"x": 1}',
            "text b",
            "tool_use",
        ]

    def test_text_between_tools(self):
        assert transcript(
            tool(0, "t", "f", '{"x":1}'), said("and"), tool(1, "u", "g", '{"y":2}'), said("done"), CALLS, DONE
        ) == ['tool t f {"x": 1}', "text and", 'tool u g {"y": 2}', "text done", "tool_use"]

    def test_reasoning_after_text_and_after_a_tool_is_a_new_thinking_block(self):
        assert transcript(
            thought("a"), said("b"), thought("c"), tool(0, "t", "f", '{"x":1}'), thought("d"), CALLS, DONE
        ) == ["thinking a", "text b", "thinking c", 'tool t f {"x": 1}', "thinking d", "tool_use"]

    def test_reasoning_alone_is_stopped_before_the_end(self):
        assert transcript(thought("Well"), finish("length"), DONE) == ["thinking Well", "max_tokens"]

    def test_one_delta_with_everything_has_an_order(self):
        chunk = delta(content="b", reasoning_content="a", tool_calls=[call(0, "t", "f", '{"x":1}')])
        assert transcript(chunk, CALLS, DONE) == ["thinking a", "text b", 'tool t f {"x": 1}', "tool_use"]

    def test_text_within_a_tool_waits_behind_it(self):
        assert transcript(tool(0, "t", "f", '{"x":'), said("aside"), tool(0, args="1}"), CALLS, DONE) == [
            'tool t f {"x": 1}',
            "text aside",
            "tool_use",
        ]


class TestReasoningFields:
    @pytest.mark.parametrize(
        "fields",
        [
            {"reasoning_content": "Hm"},
            {"reasoning": "Hm"},
            {"reasoning_details": [{"type": "reasoning.text", "text": "Hm", "signature": None}]},
            {
                "reasoning_details": [
                    {"type": "reasoning.summary", "summary": "Hm"},
                    {"type": "reasoning.encrypted", "data": "x"},
                ]
            },
            {"reasoning": {"text": "Hm"}},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}], "closed": True}]},
            {"content": [{"type": "thinking", "thinking": "Hm"}]},
            {"content": [{"type": "reasoning", "text": "Hm"}]},
            {"reasoning": "Hm", "reasoning_content": "Hm"},
            {"reasoning": "Hm", "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}]},
            {"reasoning": None, "reasoning_content": "Hm"},
            {"reasoning": "Hm", "reasoning_content": ""},
            {"reasoning": "Hm", "reasoning_content": None, "reasoning_details": []},
        ],
    )
    def test_every_name_once(self, fields):
        assert transcript(delta(**fields), said("Hi"), STOP, DONE) == ["thinking Hm", "text Hi", "end_turn"]

    @pytest.mark.parametrize("value", ["", None, [], {}, 7, [None], [{"text": 1}]])
    def test_nothing_of_it_opens_a_block(self, value):
        chunks = [delta(**{name: value}) for name in ("reasoning_content", "reasoning", "reasoning_details")]
        assert transcript(*chunks, said("Hi"), *chunks, STOP, DONE) == ["text Hi", "end_turn"]


class TestThinkTags:
    def test_a_tag_cut_anywhere(self):
        assert transcript(said("<thi"), said("nk>plan</th"), said("ink>\n\nDone"), STOP, DONE) == [
            "thinking plan",
            "text Done",
            "end_turn",
        ]

    def test_white_space_may_stand_before_it(self):
        assert transcript(said("\n "), said("<think>plan</think>Done"), STOP, DONE) == [
            "thinking plan",
            "text Done",
            "end_turn",
        ]

    def test_elsewhere_it_is_text(self):
        assert transcript(said("Use <think>"), said("x</think>"), STOP, DONE) == [
            "text Use <think>x</think>",
            "end_turn",
        ]

    def test_a_closing_tag_alone_is_text(self):
        assert transcript(said("a</think>"), said("b"), STOP, DONE) == ["text a</think>b", "end_turn"]

    def test_the_beginning_of_a_tag_that_does_not_come_is_text(self):
        assert transcript(said("<thi"), STOP, DONE) == ["text <thi", "end_turn"]
        assert transcript(said("<thi"), said("s>"), STOP, DONE) == ["text <this>", "end_turn"]

    def test_off_once_a_reasoning_field_was_seen(self):
        assert transcript(thought("Hm"), said("<think>x</think>"), STOP, DONE) == [
            "thinking Hm",
            "text <think>x</think>",
            "end_turn",
        ]

    def test_an_empty_thought_is_none(self):
        assert transcript(said("<think>\n\n</think>\n\nHi"), STOP, DONE) == ["text Hi", "end_turn"]
        assert transcript(said("<think>"), said("\n"), STOP, DONE) == ["end_turn"]

    def test_a_thought_without_end(self):
        assert transcript(said("<think>plan </thin"), finish("length"), DONE) == [
            "thinking plan </thin",
            "max_tokens",
        ]

    def test_a_tool_after_the_thought(self):
        assert transcript(said("<think>plan</think>\n"), tool(0, "t", "f", '{"x":1}'), CALLS, DONE) == [
            "thinking plan",
            'tool t f {"x": 1}',
            "tool_use",
        ]

    def test_open_thinks_from_the_first_character(self):
        assert transcript(said("plan"), said("</think>Hi"), STOP, DONE, think_tags="open") == [
            "thinking plan",
            "text Hi",
            "end_turn",
        ]

    def test_off(self):
        assert transcript(said("<think>plan</think>"), STOP, DONE, think_tags="off") == [
            "text <think>plan</think>",
            "end_turn",
        ]


class TestBlankText:
    def test_alone_it_is_nothing(self):
        assert transcript(said("\n"), said(" \t"), STOP, DONE) == ["end_turn"]

    def test_real_text_brings_it_along(self):
        assert transcript(said("\n"), said(" "), said("Hi"), said("\n"), STOP, DONE) == [
            "text \n Hi\n",
            "end_turn",
        ]

    def test_between_thinking_and_a_tool_it_is_dropped(self):
        assert transcript(thought("a"), said("\n\n"), tool(0, "t", "f", '{"x":1}'), CALLS, DONE) == [
            "thinking a",
            'tool t f {"x": 1}',
            "tool_use",
        ]

    def test_between_two_pieces_of_a_thought_it_is_dropped_for_good(self):
        assert transcript(thought("a"), said("\n"), thought("b"), said("x"), STOP, DONE) == [
            "thinking ab",
            "text x",
            "end_turn",
        ]

    def test_between_two_pieces_of_a_call_it_is_dropped_for_good(self):
        assert transcript(
            tool(0, "t", "f", '{"x":'), said("\n"), tool(0, args="1}"), said("Done"), CALLS, DONE
        ) == ['tool t f {"x": 1}', "text Done", "tool_use"]

    def test_behind_a_tool_it_is_dropped_and_text_keeps_its_own(self):
        assert transcript(tool(0, "t", "f", '{"x":1}'), said("\n"), said("\nDone"), CALLS, DONE) == [
            'tool t f {"x": 1}',
            "text \n\nDone",
            "tool_use",
        ]

    def test_a_blank_refusal_is_none(self):
        assert transcript(said("Hi"), delta(refusal=" "), STOP, DONE) == ["text Hi ", "end_turn"]


class TestNotDeltas:
    @pytest.mark.parametrize(
        "nothing",
        [
            delta(role="assistant"),
            delta(content=""),
            delta(content=None, tool_calls=None, function_call=None, refusal=None),
            delta(content=[]),
            delta(content=[{"type": "text", "text": ""}]),
            delta(content={}),
            delta(content=7),
            delta(tool_calls=[]),
            delta(tool_calls={}),
            delta(tool_calls=[None]),
            delta(tool_calls=[{}]),
            delta(
                tool_calls=[
                    {"index": 0, "id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                ]
            ),
            delta(tool_calls=[{"index": 0, "id": "null", "function": None}]),
            delta(refusal=""),
            frame({"choices": [{"index": 0, "delta": None, "finish_reason": None}]}),
            frame({"choices": [{"index": 0}]}),
            frame({"choices": [None, 7]}),
            frame({"choices": []}),
            frame({"choices": None}),
            frame({}),
            frame("null"),
            frame("42"),
            frame("[]"),
            frame('"ping"'),
            frame(""),
            b"data\n\n",
            b"event: ping\n\n",
            b": comment\n\n:\n\n",
            b"id: 1\nretry: 3\n\n",
        ],
    )
    def test_it_opens_nothing_and_ends_nothing(self, nothing):
        assert transcript(nothing, said("Hi"), nothing, said("!"), STOP, nothing, DONE) == [
            "text Hi!",
            "end_turn",
        ]

    def test_an_id_alone_is_no_call(self):
        lone = delta(tool_calls=[{"index": 0, "id": "c1", "type": "function"}])
        assert transcript(said("Hi"), lone, STOP, DONE) == ["text Hi", "end_turn"]


class TestToolStartsAndStops:
    def test_whole_and_the_next_has_content(self):
        """What was stopped before a failure is an order to run it; what was not is none."""
        assert transcript(tool(0, "a", "f", '{"x":1}'), tool(1, "b", "g", '{"y":')) == [
            'tool a f {"x": 1}',
            'tool b g {"y": ...',
            CUT_OFF,
        ]

    def test_whole_but_nothing_behind_it_is_not_stopped(self):
        assert transcript(tool(0, "a", "f", '{"x":1}')) == ['tool a f {"x": 1} ...', CUT_OFF]

    def test_named_only_has_not_started(self):
        assert transcript(tool(0, "a", "f", "")) == [CUT_OFF]

    def test_a_bare_object_has_not_started(self):
        assert transcript(said("Hi"), tool(0, "a", "f", "{}"), said("more")) == ["text Hi", CUT_OFF]

    def test_calls_in_flight_at_once_stop_at_the_finish_only(self):
        assert transcript(
            delta(tool_calls=[call(0, "a", "f", ""), call(1, "b", "g", "")]),
            tool(0, args='{"x":1}'),
            tool(1, args='{"y":2}'),
        ) == ['tool a f {"x": 1} ...', CUT_OFF]

    def test_interleaved_calls_come_out_in_order(self):
        assert transcript(
            delta(tool_calls=[call(0, "a", "f", ""), call(1, "b", "g", "")]),
            tool(1, args='{"y"'),
            tool(0, args='{"x"'),
            tool(1, args=":2}"),
            tool(0, args=":1}"),
            CALLS,
            DONE,
        ) == ['tool a f {"x": 1}', 'tool b g {"y": 2}', "tool_use"]

    def test_text_waits_behind_a_call_without_arguments(self):
        assert transcript(tool(0, "a", "f"), said("Hi"), CALLS, DONE) == [
            "tool a f {}",
            "text Hi",
            "tool_use",
        ]

    def test_what_can_never_become_an_object_streams_through(self):
        for text in ("[1]", "null", '"x"', "plain", '{"a":1}}', '{"a":NaN}', "{]", '{"a" 1}'):
            assert transcript(tool(0, "a", "f", text), said("Hi"), CALLS, DONE)[1:] == ["text Hi", "tool_use"]
            assert transcript(tool(0, "a", "f", text[:1]), tool(0, args=text[1:] or " "), said("Hi")) == [
                f"tool a f {_as_shown(text)} ...",
                CUT_OFF,
            ]

    @pytest.mark.parametrize("args", ["", None, " ", "{}", "{ }", "{", " \n{}"])
    def test_no_arguments_at_a_normal_finish(self, args):
        want = "tool a f {}" if args != "{" else "tool a f {"
        assert transcript(tool(0, "a", "f", args), CALLS, DONE) == [want, "tool_use"]

    def test_no_arguments_as_an_empty_list_or_object(self):
        for nothing in ([], {}, None):
            entry = {"index": 0, "id": "a", "function": {"name": "f", "arguments": nothing}}
            assert transcript(delta(tool_calls=[entry]), CALLS, DONE) == ["tool a f {}", "tool_use"]

    def test_arguments_as_an_object(self):
        entry = {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": [1, "é"]}}}
        assert transcript(delta(tool_calls=[entry]), CALLS, DONE) == [
            'tool a f {"x": [1, "\\u00e9"]}',
            "tool_use",
        ]


def _as_shown(text):
    """As the judge's summary has it: JSON where it is JSON."""
    try:
        return json.dumps(json.loads(text)) if not isinstance(json.loads(text), str) else json.loads(text)
    except ValueError:
        return text


class TestCutByTheLimit:
    @pytest.mark.parametrize("word", ["length", "content_filter"])
    @pytest.mark.parametrize("args", ["", " ", "{}"])
    def test_a_call_without_any_byte_is_dropped(self, word, args):
        reason = "max_tokens" if word == "length" else "refusal"
        assert transcript(said("Hi"), tool(0, "a", "f", args), finish(word), DONE) == ["text Hi", reason]

    def test_between_others_it_leaves_no_gap(self):
        assert transcript(
            tool(0, "a", "f", '{"x":1}'), tool(1, "b", "g", ""), said("Hi"), finish("length"), DONE
        ) == ['tool a f {"x": 1}', "text Hi", "max_tokens"]

    def test_an_unfinished_one_keeps_its_bytes(self):
        assert transcript(tool(0, "a", "f", '{"x": "lor'), finish("length"), DONE) == [
            'tool a f {"x": "lor',
            "max_tokens",
        ]

    def test_a_whole_one_stays(self):
        assert transcript(tool(0, "a", "f", '{"x":1}'), finish("length"), DONE) == [
            'tool a f {"x": 1}',
            "max_tokens",
        ]

    def test_an_object_that_was_really_said_stays(self):
        assert transcript(tool(0, "a", "f", "{"), tool(0, args="}"), finish("length"), DONE) == [
            "tool a f {}",
            "max_tokens",
        ]


class TestPlaceholders:
    @pytest.mark.parametrize("placeholder", ["{}", "{ }", " {}", "{}\n"])
    def test_the_real_arguments_take_its_place(self, placeholder):
        assert transcript(
            tool(0, "a", "f", placeholder), tool(0, args='{"x":'), tool(0, args="1}"), CALLS, DONE
        ) == ['tool a f {"x": 1}', "tool_use"]

    def test_with_the_name_and_the_id_once_more(self):
        assert transcript(tool(0, "a", "f", "{}"), tool(0, "a", "f", '{"x":1}'), CALLS, DONE) == [
            'tool a f {"x": 1}',
            "tool_use",
        ]

    def test_in_one_fragment(self):
        assert transcript(tool(0, "a", "f", '{}{"x":1}'), CALLS, DONE) == ['tool a f {"x": 1}', "tool_use"]

    def test_said_twice_it_is_still_one_call(self):
        assert transcript(tool(0, "a", "f", "{}"), tool(0, args="{}"), CALLS, DONE) == [
            "tool a f {}",
            "tool_use",
        ]

    def test_of_parallel_calls(self):
        assert transcript(
            tool(0, "a", "f", "{}"),
            tool(1, "b", "g", "{}"),
            tool(0, args='{"x":1}'),
            tool(1, args='{"y":2}'),
            CALLS,
            DONE,
        ) == ['tool a f {"x": 1}', 'tool b g {"y": 2}', "tool_use"]

    def test_with_something_else_behind_it_is_no_object(self):
        assert transcript(tool(0, "a", "f", "{}"), tool(0, args="x"), CALLS, DONE) == [
            "tool a f {}x",
            "tool_use",
        ]


class TestLateFragments:
    def test_white_space_is_dropped(self):
        assert transcript(
            tool(0, "a", "f", '{"x":1}'), tool(1, "b", "g", '{"y":2}'), tool(0, args=" \n"), CALLS, DONE
        ) == ['tool a f {"x": 1}', 'tool b g {"y": 2}', "tool_use"]

    def test_anything_else_for_a_stopped_block_is_an_error(self):
        assert transcript(
            tool(0, "a", "f", '{"x":1}'), tool(1, "b", "g", '{"y":2}'), tool(0, args="}"), CALLS, DONE
        ) == [
            'tool a f {"x": 1}',
            'tool b g {"y": 2} ...',
            LATE,
        ]

    def test_for_a_live_block_it_spoils_the_object(self):
        assert transcript(tool(0, "a", "f", '{"x":1}'), tool(0, args="}"), CALLS, DONE) == [
            'tool a f {"x":1}}',
            "tool_use",
        ]

    def test_an_exact_repeat_is_dropped(self):
        whole = tool(0, "a", "f", '{"x":1}')
        assert transcript(whole, whole, CALLS, DONE) == ['tool a f {"x": 1}', "tool_use"]
        assert transcript(
            tool(0, "a", "f", '{"x"'), tool(0, args=":1}"), tool(0, args='{"x":1}'), CALLS, DONE
        ) == ['tool a f {"x": 1}', "tool_use"]

    def test_an_exact_repeat_in_pieces_is_dropped(self):
        assert transcript(
            tool(0, "a", "f", '{"x":1}'),
            tool(0, args='{"x"'),
            tool(0, args=":1"),
            tool(0, args="}\n"),
            CALLS,
            DONE,
        ) == ['tool a f {"x": 1}', "tool_use"]

    def test_an_exact_repeat_for_a_stopped_block_is_dropped(self):
        assert transcript(tool(0, "a", "f", '{"x":1}'), said("Hi"), tool(0, args='{"x":1}'), CALLS, DONE) == [
            'tool a f {"x": 1}',
            "text Hi",
            "tool_use",
        ]

    def test_a_second_object_is_a_second_call(self):
        assert transcript(tool(0, "a", "f", '{"x":1}'), tool(0, args='{"x":2}'), CALLS, DONE) == [
            'tool a f {"x": 1}',
            'tool made f {"x": 2}',
            "tool_use",
        ]

    def test_a_second_object_that_begins_like_the_first(self):
        assert transcript(
            tool(0, "a", "f", '{"x":1}'),
            tool(0, args='{"x"'),
            tool(0, args=":"),
            tool(0, args="2}"),
            CALLS,
            DONE,
        ) == ['tool a f {"x": 1}', 'tool made f {"x": 2}', "tool_use"]

    def test_many_objects_in_one_fragment(self):
        text = "".join(f'{{"x":{i}}}\n' for i in range(1000))
        told = told_by(play([tool(0, "a", "f", text), CALLS, DONE]))
        assert told[0] == 'tool a f {"x": 0}' and told[-2:] == ['tool made f {"x": 999}', "tool_use"]
        assert len(told) == 1001

    def test_half_a_second_object_at_the_end(self):
        chunks = tool(0, "a", "f", '{"x":1}'), tool(0, args='{"x"')
        assert transcript(*chunks, finish("length"), DONE) == [
            'tool a f {"x": 1}',
            'tool made f {"x"',
            "max_tokens",
        ]
        assert transcript(*chunks, DONE) == ['tool a f {"x": 1}', 'tool made f {"x" ...', CUT_OFF]


class TestToolNames:
    def test_pieces_are_joined_until_the_first_argument_byte(self):
        assert transcript(
            tool(0, "a", "read"), tool(0, name="_fi"), tool(0, name="le", args='{"x":1}'), CALLS, DONE
        ) == ['tool a read_file {"x": 1}', "tool_use"]

    def test_the_name_so_far_once_more_is_a_repeat(self):
        assert transcript(
            tool(0, "a", "read", ""), tool(0, "a", "read", '{"x"'), tool(0, "a", "read", ":1}"), CALLS, DONE
        ) == ['tool a read {"x": 1}', "tool_use"]

    def test_it_may_come_behind_the_arguments(self):
        assert transcript(tool(0, "a", None, '{"x":'), tool(0, name="f", args="1}"), CALLS, DONE) == [
            'tool a f {"x": 1}',
            "tool_use",
        ]

    def test_another_name_within_the_arguments_is_ignored(self):
        assert transcript(tool(0, "a", "f", '{"x":'), tool(0, name="g", args="1}"), CALLS, DONE) == [
            'tool a f {"x": 1}',
            "tool_use",
        ]

    def test_foreign_characters_and_length(self):
        assert (
            transcript(tool(0, "a", "mcp:read.file é", '{"x":1}'), CALLS, DONE)[0]
            == 'tool a mcp_read_file__ {"x": 1}'
        )
        assert (
            transcript(tool(0, "a", "n" * 300, '{"x":1}'), CALLS, DONE)[0] == f'tool a {"n" * 128} {{"x": 1}}'
        )

    def test_a_call_without_a_name_is_ignored_without_arguments(self):
        assert transcript(said("Hi"), tool(0, "a"), CALLS, DONE) == ["text Hi", "end_turn"]

    def test_a_call_without_a_name_is_an_error_with_arguments(self):
        nameless = "api_error: the upstream sent a tool call without a name"
        assert transcript(said("Hi"), tool(0, "a", args='{"x":1}'), CALLS, DONE) == [
            "text Hi ...",
            f"error {nameless}",
        ]
        assert transcript(tool(0, "a", "", '{"x":1}'), CALLS, DONE) == [f"HTTP 502 {nameless}"]


class TestWhichCall:
    """index, id and position; `chat_calls` has the cases one by one."""

    TWO = ['tool a f {"x": 1}', 'tool b g {"y": 2}', "tool_use"]

    @pytest.mark.parametrize("first", [0, 1, 3, 7.0, "0"])
    def test_any_base(self, first):
        second = first + 1 if first != "0" else "1"
        assert (
            transcript(
                tool(first, "a", "f", ""),
                tool(first, args='{"x":1}'),
                tool(second, "b", "g", ""),
                tool(second, args='{"y":2}'),
                CALLS,
                DONE,
            )
            == self.TWO
        )

    @pytest.mark.parametrize("index", [0, -1, "x", None, 0.5, True, 10**30])
    def test_an_index_that_tells_nothing(self, index):
        def odd(id_=None, name=None, args=None):
            return delta(tool_calls=[call(None, id_, name, args) | {"index": index}])

        assert (
            transcript(
                odd("a", "f", ""),
                odd(args='{"x":'),
                odd(args="1}"),
                odd("b", "g", '{"y"'),
                odd(args=":2}"),
                CALLS,
                DONE,
            )
            == self.TWO
        )
        # the id on every fragment: even interleaved
        assert (
            transcript(
                odd("a", "f", '{"x":'),
                odd("b", "g", '{"y":'),
                odd("a", args="1}"),
                odd("b", args="2}"),
                CALLS,
                DONE,
            )
            == self.TWO
        )

    @pytest.mark.parametrize("index", [0, None])
    def test_position_in_the_chunk(self, index):
        def pair(one, two):
            return delta(tool_calls=[one, two])

        assert (
            transcript(
                pair(call(index, "a", "f", '{"x"'), call(index, "b", "g", '{"y"')),
                pair(call(index, args=":1}"), call(index, args=":2}")),
                CALLS,
                DONE,
            )
            == self.TWO
        )

    def test_two_fragments_of_one_call_in_one_chunk(self):
        assert transcript(
            delta(tool_calls=[call(0, "a", "f", ""), call(0, args='{"x":')]), tool(0, args="1}"), CALLS, DONE
        ) == ['tool a f {"x": 1}', "tool_use"]

    def test_no_id_and_no_index_but_another_name(self):
        assert transcript(
            tool(None, None, "f", '{"x":1}'), tool(None, None, "g", '{"y":2}'), CALLS, DONE
        ) == [
            'tool made f {"x": 1}',
            'tool made g {"y": 2}',
            "tool_use",
        ]

    def test_an_id_that_comes_late(self):
        assert transcript(tool(0, None, "f", ""), tool(0, "a", args='{"x":1}'), CALLS, DONE) == [
            'tool a f {"x": 1}',
            "tool_use",
        ]

    def test_a_new_id_on_every_fragment(self):
        assert transcript(
            tool(0, "a", "f", '{"x"'), tool(0, "b", "", ":1"), tool(0, "c", args="}"), CALLS, DONE
        ) == [
            'tool a f {"x": 1}',
            "tool_use",
        ]

    def test_one_id_for_two_calls(self):
        assert transcript(tool(0, "a", "f", '{"x":1}'), tool(1, "a", "g", '{"y":2}'), CALLS, DONE) == [
            'tool a f {"x": 1}',
            'tool (a) g {"y": 2}',
            "tool_use",
        ]

    def test_an_id_of_the_history(self):
        assert transcript(tool(0, "a", "f", '{"x":1}'), CALLS, DONE, taken=frozenset({"a"})) == [
            'tool (a) f {"x": 1}',
            "tool_use",
        ]

    def test_ids_that_clients_may_not_have(self):
        assert transcript(tool(0, "functions.read:0", "f", '{"x":1}'), CALLS, DONE) == [
            'tool (functions.read:0) f {"x": 1}',
            "tool_use",
        ]

    def test_function_call_of_old(self):
        assert transcript(
            delta(function_call={"name": "f", "arguments": ""}),
            delta(function_call={"arguments": '{"x":'}),
            delta(function_call={"arguments": "1}"}),
            finish("function_call"),
            DONE,
        ) == ['tool made f {"x": 1}', "tool_use"]


class TestOtherChoices:
    def test_they_are_ignored(self):
        other = frame({"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "length"}]})
        both = frame(
            {"choices": [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "a"}}]}
        )
        assert transcript(other, said("A"), both, other, STOP, other, DONE) == ["text Aa", "end_turn"]

    def test_their_finish_is_not_ours(self):
        other = frame({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]})
        assert transcript(said("A"), other) == ["text A ...", CUT_OFF]

    def test_a_message_beside_or_after_deltas_is_ignored(self):
        message = {"role": "assistant", "content": "Hi", "reasoning": "Hm"}
        beside = frame({"choices": [{"index": 0, "delta": {"content": "Hi"}, "message": message}]})
        after = frame({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        assert transcript(beside, after, DONE) == ["text Hi", "end_turn"]
        assert transcript(thought("Hm"), after, DONE) == ["thinking Hm", "end_turn"]


class TestRefusal:
    def test_it_is_text_and_a_reason(self):
        assert transcript(delta(refusal="I can"), delta(refusal="not."), STOP, DONE) == [
            "text I cannot.",
            "refusal",
        ]

    def test_it_beats_every_other_reason(self):
        for word in ("stop", "tool_calls", "length"):
            assert transcript(delta(refusal="No."), finish(word), DONE) == ["text No.", "refusal"]


class TestSurrogates:
    def test_a_pair_over_two_deltas(self):
        for half in (said, thought, lambda s: delta(refusal=s)):
            told = transcript(half("a\ud83d"), half("\ude00b"), STOP, DONE)
            assert told[0].endswith("a\U0001f600b")

    def test_in_arguments(self):
        assert transcript(tool(0, "a", "f", '{"x":"\ud83d'), tool(0, args='\ude00"}'), CALLS, DONE) == [
            'tool a f {"x": "\\ud83d\\ude00"}',
            "tool_use",
        ]

    def test_alone(self):
        assert transcript(said("a\ud83d"), said("b\ude00"), STOP, DONE) == ["text a\ufffdb\ufffd", "end_turn"]
        assert transcript(said("a\ud83d"), STOP, DONE) == ["text a\ufffd", "end_turn"]

    def test_another_kind_between(self):
        assert transcript(thought("a\ud83d"), said("\ude00b"), STOP, DONE) == [
            "thinking a\ufffd",
            "text \ufffdb",
            "end_turn",
        ]
        assert transcript(said("a\ud83d"), tool(0, "t", "f", '{"x":1}'), CALLS, DONE) == [
            "text a\ufffd",
            'tool t f {"x": 1}',
            "tool_use",
        ]

    def test_in_names_ids_and_errors(self):
        assert transcript(tool(0, "a\ud83d", "f\ud83d", '{"x":1}'), CALLS, DONE) == [
            'tool (a\ufffd) f_ {"x": 1}',
            "tool_use",
        ]
        [http] = transcript(frame({"error": {"message": "bad \ud83d"}}))
        assert http.startswith(("HTTP 502", "HTTP 500"))

    def test_in_a_stop_string(self):
        chunk = frame(
            {
                "choices": [
                    {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "stop_reason": "\ud83d"}
                ]
            }
        )
        assert transcript(chunk, DONE) == ["text a", "end_turn"]


class TestFinish:
    @pytest.mark.parametrize(
        "word, reason",
        [
            ("stop", "end_turn"),
            ("eos", "end_turn"),
            ("STOP", "end_turn"),
            ("whatever", "end_turn"),
            ("length", "max_tokens"),
            ("MAX_TOKENS", "max_tokens"),
            ("model_length", "max_tokens"),
            ("tool_calls", "end_turn"),
            ("function_call", "end_turn"),
            ("content_filter", "refusal"),
            ("sensitive", "refusal"),
            ("SAFETY", "refusal"),
        ],
    )
    def test_words(self, word, reason):
        assert transcript(said("Hi"), finish(word), DONE) == ["text Hi", reason]

    @pytest.mark.parametrize(
        "word, reason",
        [
            ("stop", "tool_use"),
            ("whatever", "tool_use"),
            ("length", "max_tokens"),
            ("content_filter", "refusal"),
        ],
    )
    def test_words_with_a_tool(self, word, reason):
        assert transcript(tool(0, "a", "f", '{"x":1}'), finish(word), DONE)[-1] == reason

    @pytest.mark.parametrize("word", ["", "null", "None", None, False, 0, {}, []])
    def test_not_finished(self, word):
        odd = frame({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": word}]})
        assert transcript(odd, said("b")) == ["text ab ...", CUT_OFF]

    @pytest.mark.parametrize("word", ["error", "abort", "insufficient_system_resource", "network_error"])
    def test_words_that_are_failures(self, word):
        told = transcript(said("Hi"), finish(word), DONE)
        assert told[0] == "text Hi ..." and told[1].startswith("error ")
        assert transcript(finish(word), DONE)[0].startswith("HTTP 5")

    def test_the_last_one_wins(self):
        assert transcript(said("Hi"), finish("stop"), finish("length"), DONE) == ["text Hi", "max_tokens"]
        assert transcript(said("Hi"), finish("length"), finish("stop"), DONE) == ["text Hi", "end_turn"]

    def test_reading_goes_on(self):
        assert transcript(said("Hel"), STOP, said("lo"), thought("!"), usage(3, 2), DONE) == [
            "text Hello",
            "thinking !",
            "end_turn",
        ]

    def stop_chunk(self, **fields):
        return frame({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **fields}]})

    @pytest.mark.parametrize(
        "fields", [{"stop_reason": "END"}, {"matched_stop": "END"}, {"stop_reason": 7, "matched_stop": "END"}]
    )
    def test_a_stop_string_of_the_clients(self, fields):
        assert transcript(said("Hi"), self.stop_chunk(**fields), DONE, stop_sequences=("END",)) == [
            "text Hi",
            "stop_sequence 'END'",
        ]

    @pytest.mark.parametrize(
        "fields",
        [{"stop_reason": "</s>"}, {"matched_stop": 128009}, {"stop_reason": None}, {"stop_reason": [1]}],
    )
    def test_a_stop_that_the_client_did_not_ask_for(self, fields):
        assert transcript(said("Hi"), self.stop_chunk(**fields), DONE, stop_sequences=("END",)) == [
            "text Hi",
            "end_turn",
        ]

    def test_a_stop_string_stays_when_the_chunk_is_repeated(self):
        assert transcript(
            said("Hi"), self.stop_chunk(stop_reason="END"), STOP, DONE, stop_sequences=("END",)
        ) == [
            "text Hi",
            "stop_sequence 'END'",
        ]

    def test_a_tool_beats_a_stop_string(self):
        assert (
            transcript(
                tool(0, "a", "f", '{"x":1}'),
                self.stop_chunk(stop_reason="END"),
                DONE,
                stop_sequences=("END",),
            )[-1]
            == "tool_use"
        )


class TestEndings:
    @pytest.mark.parametrize("end", ["eof", "reset", "hang"])
    def test_after_a_finish_reason_nothing_is_taken_away(self, end):
        assert transcript(said("Hi"), STOP, end=end) == ["text Hi", "end_turn"]
        assert transcript(said("Hi"), STOP, b'data: {"choices":[{"ind', end=end) == ["text Hi", "end_turn"]
        assert transcript(said("Hi"), STOP, b"data: {oops}\n\n", end=end) == ["text Hi", "end_turn"]
        assert transcript(tool(0, "a", "f", ""), CALLS, end=end) == ["tool a f {}", "tool_use"]
        assert transcript(delta(role="assistant"), STOP, end=end) == ["end_turn"]

    def test_before_a_finish_reason_it_is_an_error(self):
        assert transcript(said("Hi")) == ["text Hi ...", CUT_OFF]
        assert transcript(said("Hi"), end="reset") == ["text Hi ...", f"error api_error: {CUT.message}"]
        assert transcript(delta(role="assistant")) == [CUT_OFF.replace("error", "HTTP 502", 1)]
        assert transcript(end="reset") == [f"HTTP 502 api_error: {CUT.message}"]

    @pytest.mark.parametrize(
        "nothing", [b"", b"\n\n", b": hi\n\n", b"nonsense", frame({"choices": []}), frame({}), frame("")]
    )
    def test_nothing_is_a_failure(self, nothing):
        assert transcript(nothing) == [EMPTY]
        assert transcript(nothing, DONE) == [EMPTY]

    def test_done_without_a_finish_reason(self):
        assert transcript(said("Hi"), DONE) == ["text Hi", "end_turn"]
        assert transcript(delta(role="assistant"), DONE) == ["end_turn"]
        assert transcript(tool(0, "a", "f", ""), DONE) == ["tool a f {}", "tool_use"]
        assert transcript(tool(0, "a", "f", '{"x":1}'), DONE) == ['tool a f {"x": 1}', "tool_use"]

    def test_done_within_a_call(self):
        assert transcript(tool(0, "a", "f", '{"x":'), DONE) == ['tool a f {"x": ...', CUT_OFF]
        assert transcript(tool(0, "a", "f", "[1]"), DONE) == ["tool a f [1] ...", CUT_OFF]

    @pytest.mark.parametrize(
        "done",
        [
            b"data:[DONE]\n\n",
            b"data:  [DONE] \n\n",
            b"data: [DONE]\r\n\r\n",
            b"data: [DONE]",
            b"data: [DONE]\n",
            b"event: done\ndata: [DONE]\n\n",
        ],
    )
    def test_forms_of_done(self, done):
        assert transcript(said("Hi"), done) == ["text Hi", "end_turn"]

    def test_nothing_counts_after_it(self):
        assert transcript(
            said("Hi"), STOP, DONE, said("!"), frame({"error": {"message": "no"}}), end="reset"
        ) == [
            "text Hi",
            "end_turn",
        ]

    def test_an_empty_completion(self):
        assert transcript(delta(content=""), STOP, usage(5, 0), DONE) == ["end_turn"]


class TestFailures:
    @pytest.mark.parametrize(
        "payload, kind, status",
        [
            ({"error": {"message": "bad", "type": "server_error", "code": 500}}, "api_error", 500),
            (
                {"error": {"message": "bad"}, "choices": [{"index": 0, "delta": {"content": "x"}}]},
                "api_error",
                502,
            ),
            ({"error": {"message": "bad"}, "choices": []}, "api_error", 502),
            ({"error": "bad"}, "api_error", 502),
            (
                {"object": "error", "message": "bad", "type": "BadRequestError", "code": 400},
                "invalid_request_error",
                400,
            ),
            ({"detail": "bad"}, "api_error", 502),
            ([{"error": {"message": "bad", "code": 429}}], "rate_limit_error", 429),
            (
                {"type": "error", "error": {"type": "overloaded_error", "message": "bad"}},
                "overloaded_error",
                529,
            ),
            (
                {"choices": [{"index": 0, "delta": {}, "error": {"message": "bad", "code": 429}}]},
                "rate_limit_error",
                429,
            ),
            (
                {"choices": [], "base_resp": {"status_code": 1002, "status_msg": "bad"}},
                "rate_limit_error",
                429,
            ),
        ],
    )
    def test_forms_of_an_error(self, payload, kind, status):
        assert transcript(said("Hi"), frame(payload), DONE) == ["text Hi ...", f"error {kind}: bad"]
        assert transcript(frame(payload), DONE) == [f"HTTP {status} {kind}: bad"]
        assert transcript(said("Hi"), STOP, frame(payload), DONE) == ["text Hi ...", f"error {kind}: bad"]

    @pytest.mark.parametrize("nothing", [None, False, "", {}, []])
    def test_an_error_member_that_is_none(self, nothing):
        chunk = frame(
            {"choices": [{"index": 0, "delta": {"content": "Hi"}, "error": nothing}], "error": nothing}
        )
        assert transcript(chunk, STOP, DONE) == ["text Hi", "end_turn"]

    def test_an_error_event(self):
        for data in (b'{"message":"bad"}', b'"bad"', b"bad"):
            assert transcript(said("Hi"), b"event: error\ndata: " + data + b"\n\n") == [
                "text Hi ...",
                "error api_error: bad",
            ]
        told = transcript(said("Hi"), b"event: error\ndata:\n\n", STOP, DONE)
        assert told[0] == "text Hi ..." and told[1].startswith("error api_error")

    def test_other_events_count_only_with_choices(self):
        named = b"event: chunk\n" + said("Hi")
        noise = b'event: sglext_ids\ndata: {"ids":[1]}\n\nevent: log\ndata: not JSON\n\nevent: s\ndata: {"code":1,"message":"m"}\n\n'
        assert transcript(noise, named, noise, STOP, DONE) == ["text Hi", "end_turn"]
        told = transcript(said("Hi"), b'event: log\ndata: {"error":{"message":"bad"}}\n\n')
        assert told == ["text Hi ...", "error api_error: bad"]

    def test_data_that_is_no_json(self):
        assert transcript(said("Hi"), b"data: {oops\n\n", said("!"), STOP, DONE) == ["text Hi ...", MALFORMED]
        assert transcript(b"data: {oops\n\n") == [MALFORMED.replace("error", "HTTP 502", 1)]

    def test_half_a_frame_is_a_cut(self):
        assert transcript(said("Hi"), b'data: {"choices":[{"ind') == ["text Hi ...", CUT_OFF]

    def test_a_closed_block_stays_closed_and_the_open_one_open(self):
        assert transcript(thought("a"), said("b"), frame({"error": {"message": "bad"}})) == [
            "thinking a",
            "text b ...",
            "error api_error: bad",
        ]


class TestWholeCompletions:
    MESSAGE = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]}  # fmt: skip
    TOLD = ["thinking Hm", "text Hi", 'tool a f {"x": 1}', "tool b g {}", "tool_use"]

    def body(self, message=None, reason="tool_calls", **fields):
        choice = {"index": 0, "message": message or self.MESSAGE, "finish_reason": reason}
        return json.dumps({"object": "chat.completion", "choices": [choice], **fields}).encode()

    @pytest.mark.parametrize(
        "before", [b"", b"\n\n\n", b" \r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\n" * 5000]
    )
    def test_one_burst(self, before):
        played = [before, self.body(), b"\n"]
        assert transcript(*played) == self.TOLD

    def test_without_a_finish_reason(self):
        assert transcript(self.body({"content": "Hi"}, None)) == ["text Hi", "end_turn"]

    def test_cut_by_a_reset_but_whole(self):
        assert transcript(self.body(), end="reset") == self.TOLD

    def test_half_of_it(self):
        half = self.body()[:60]
        assert transcript(half, end="reset") == [f"HTTP 502 api_error: {CUT.message}"]
        assert transcript(half)[0].startswith("HTTP 502 api_error")

    def test_an_error_body(self):
        assert transcript(b'\n{"error":{"message":"bad","code":429}}') == ["HTTP 429 rate_limit_error: bad"]
        assert transcript(b'[{"error":{"message":"bad","code":429}}]') == ["HTTP 429 rate_limit_error: bad"]

    @pytest.mark.parametrize(
        "body", [b"<html><title>Oops</title>", b"[]", b"{}", b'{"choices":[]}', b"{", b"[DONE]"]
    )
    def test_anything_else(self, body):
        assert transcript(body)[0].startswith("HTTP 502 api_error")


class TestUsageNumbers:
    """What clients read; the arithmetic has its own file."""

    def numbers(self, *chunks, **options):
        events = play(chunks, **options).decoded
        start, end = events[0]["message"]["usage"], events[-2]["usage"]
        return start, end

    def test_a_trailing_chunk(self):
        start, end = self.numbers(said("Hi"), STOP, usage(11, 2), DONE, input_tokens=9)
        assert (start["input_tokens"], start["output_tokens"]) == (9, 1)
        assert end == {"input_tokens": 11, "output_tokens": 2}

    def test_in_the_first_chunk_it_stands_in_message_start(self):
        first = frame(
            {
                "choices": [{"index": 0, "delta": {"content": "Hi"}}],
                "usage": {"prompt_tokens": 79, "completion_tokens": 1},
            }
        )
        start, end = self.numbers(first, STOP, DONE)
        assert start == {"input_tokens": 79, "output_tokens": 1}
        assert end == {"input_tokens": 79, "output_tokens": 1}

    def test_an_empty_answer_has_its_usage_from_the_start(self):
        start, _ = self.numbers(delta(role="assistant"), STOP, usage(5, 0), DONE)
        assert start == {"input_tokens": 5, "output_tokens": 0}

    def test_in_the_choice_only_where_the_chunk_has_none(self):
        inside = {
            "index": 0,
            "delta": {},
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 6, "completion_tokens": 1},
        }
        assert self.numbers(said("Hi"), frame({"choices": [inside]}), DONE)[1] == {
            "input_tokens": 6,
            "output_tokens": 1,
        }
        both = frame({"choices": [inside], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
        assert self.numbers(said("Hi"), both, DONE)[1] == {"input_tokens": 7, "output_tokens": 2}

    def test_cache_and_reasoning(self):
        told = usage(
            100,
            20,
            prompt_tokens_details={"cached_tokens": 80, "cache_write_tokens": 5},
            completion_tokens_details={"reasoning_tokens": 7},
        )
        assert self.numbers(said("Hi"), STOP, told, DONE)[1] == {
            "input_tokens": 15,
            "output_tokens": 20,
            "cache_read_input_tokens": 80,
            "cache_creation_input_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 7},
        }

    @pytest.mark.parametrize("bad", [None, -1, "7", True, {}, [7], 1e400, 7.5, 10**20])
    def test_bad_values_were_not_reported(self, bad):
        start, end = self.numbers(said("Hi there"), STOP, usage(bad, bad), DONE, input_tokens=9)
        assert end["input_tokens"] == 9
        assert end["output_tokens"] == 2

    def test_a_float_that_is_whole(self):
        assert self.numbers(said("Hi"), STOP, usage(7.0, 3.0), DONE)[1] == {
            "input_tokens": 7,
            "output_tokens": 3,
        }

    def test_the_last_report_wins_and_null_takes_nothing_away(self):
        chunks = [
            usage(9, 1),
            said("Hi"),
            usage(9, 5),
            STOP,
            usage(None, None),
            frame({"choices": [], "usage": None}),
            DONE,
        ]
        assert self.numbers(*chunks)[1] == {"input_tokens": 9, "output_tokens": 5}


class TestFraming:
    HI = b'data: {"choices":[{"index":0,"delta":{"content":"H\xc3\xa9"}}]}\n\n'
    END = STOP + DONE
    TOLD = ["text H\xe9", "end_turn"]

    @pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"])
    def test_line_ends(self, eol):
        assert transcript((self.HI + self.END).replace(b"\n", eol)) == self.TOLD

    def test_a_bom(self):
        assert transcript(b"\xef\xbb\xbf" + self.HI + self.END) == self.TOLD

    def test_blank_lines_first(self):
        assert transcript(b"\n\r\n" + self.HI + self.END) == self.TOLD

    def test_json_over_several_data_lines(self):
        pretty = (
            b'data: {"choices":\ndata:  [{"index":0,\n: comment\ndata: "delta":{"content":"H\xc3\xa9"}}]}\n\n'
        )
        assert transcript(pretty + self.END) == self.TOLD

    def test_fields_around_it(self):
        assert transcript(b"id: 1\nretry: 3\nevent: message\nfoo: bar\n" + self.HI + self.END) == self.TOLD

    def test_the_last_blank_line_is_missing(self):
        assert transcript(self.HI + STOP.rstrip()) == self.TOLD

    def test_bad_utf8_is_shown(self):
        assert transcript(self.HI.replace(b"\xc3\xa9", b"\xc3") + self.END) == ["text H\ufffd", "end_turn"]

    def test_separators_of_other_standards_end_no_line(self):
        odd = "a\u2028b\u2029c\x85d\x0be"
        assert transcript(
            frame(json.dumps({"choices": [{"delta": {"content": odd}}]}, ensure_ascii=False)), STOP, DONE
        ) == [
            f"text {odd}",
            "end_turn",
        ]

    def test_deep_nesting_is_no_trap(self):
        deep = (
            b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}],"x":'
            + b"[" * 300
            + b"]" * 300
            + b"}\n\n"
        )
        assert transcript(deep, STOP, DONE) == ["text Hi", "end_turn"]
        hostile = b"data: " + b'{"a":' * 50_000 + b"\n\n"
        assert told_by(play([said("Hi"), hostile])) == ["text Hi ...", MALFORMED]
