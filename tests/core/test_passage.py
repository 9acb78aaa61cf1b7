"""Answers of native Anthropic upstreams: what is legal passes, what is not is mended or ends honestly."""

import json

import pytest

from native import (
    MESSAGE_STOP,
    PING,
    args,
    delta,
    end,
    error,
    frame,
    heard,
    lines_of,
    message_delta,
    message_start,
    passage,
    said,
    signed,
    start,
    stop,
    tell,
    text_block,
    thinking_block,
    thought,
    tool_block,
)

CUT = "the upstream's stream ended before its answer was complete"
LOST = "the connection to the upstream was lost"


def mended(*frames, end="eof", **options):
    return {kind: n for kind, n in tell(frames, end, **options).counts.items()}


# --- legal streams ---

LEGAL = (
    message_start(usage={"input_tokens": 7, "output_tokens": 1, "service_tier": "standard"}, container=None),
    PING,
    *thinking_block(0, "hm", "m"),
    *text_block(1, "Hel", "lo"),
    *tool_block(2, "", '{"a":', "1}"),
    *end("tool_use"),
)


def test_a_legal_stream_passes_unmended():
    assert heard(*LEGAL) == ["thinking hmm [sig]", "text Hello", 'tool toolu_1 f {"a": 1}', "tool_use"]
    assert mended(*LEGAL) == {}


def test_its_events_are_the_upstreams_own_bytes():
    told = tell(LEGAL)
    given = [
        data
        for data in b"".join(LEGAL).split(b"\n\n")
        if b"delta" in data and b'"partial_json": ""' not in data
    ]
    assert [data for data in told.body.split(b"\n\n") if b"delta" in data] == given


def test_the_client_sees_the_name_that_it_asked_for_and_the_upstreams_id():
    start_event = tell(LEGAL).events[0]["message"]
    assert start_event["model"] == "a-model"
    assert start_event["id"] == "msg_theirs"
    assert start_event["usage"] == {"input_tokens": 7, "output_tokens": 1, "service_tier": "standard"}
    assert start_event["container"] is None


@pytest.mark.parametrize("id_", [..., None, "", 7])
def test_a_message_without_an_id_gets_one(id_):
    told = tell([message_start(id=id_), *text_block(0, "x"), *end()])
    assert told.events[0]["message"]["id"] == "msg_ours"
    assert told.counts["message_id_made"] == 1


def test_unknown_blocks_and_members_pass():
    result = {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [{"url": "u", "n": 12345678901234567890123}],
    }
    frames = [
        message_start(),
        start(0, "server_tool_use", id="s1", name="web_search", input={}),
        args(0, '{"query":"q"}'),
        stop(0),
        frame({"type": "content_block_start", "index": 1, "content_block": result, "note": 1}),
        stop(1),
        start(2, citations=[]),
        said(2, "x"),
        delta(2, "citations_delta", citation={"type": "char_location"}),
        stop(2),
        start(3, "redacted_thinking", data="zz"),
        stop(3),
        start(4, "new_block", a=1),
        delta(4, "new_delta", b=2),
        stop(4),
        message_delta(
            "end_turn",
            stop_details=None,
            usage={"output_tokens": 5, "server_tool_use": {"web_search_requests": 1}},
        ),
        MESSAGE_STOP,
    ]
    told = tell(frames)
    assert lines_of(told) == [
        "(server_tool_use)",
        "(web_search_tool_result)",
        "text x",
        "(redacted_thinking)",
        "(new_block)",
        "end_turn",
    ]
    assert told.counts == {}
    assert told.events[4] == {"type": "content_block_start", "index": 1, "content_block": result, "note": 1}
    message = tell(frames, streaming=False).message
    assert message["content"] == [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        result,
        {"type": "text", "text": "x", "citations": [{"type": "char_location"}]},
        {"type": "redacted_thinking", "data": "zz"},
        {"type": "new_block", "a": 1, "b": 2},
    ]
    assert message["usage"] == {
        "input_tokens": 7,
        "output_tokens": 5,
        "server_tool_use": {"web_search_requests": 1},
    }
    assert message["stop_details"] is None


def test_a_pause_and_a_beta_reason_pass():
    assert heard(message_start(), *text_block(0, "x"), *end("pause_turn"))[-1] == "pause_turn"
    told = tell([message_start(), *text_block(0, "x"), *end("compaction")])
    assert told.events[-2]["delta"]["stop_reason"] == "compaction"
    assert told.counts == {}


# --- the commit point ---


@pytest.mark.parametrize(
    "frames",
    [[], [PING], [message_start()], [message_start(), start(0)], [message_start(), start(0), said(0, "")]],
)
def test_nothing_is_committed_before_content(frames):
    answer = passage()
    for data in frames:
        answer.feed(data)
    assert not answer.committed
    assert answer.frames() == b""
    assert tell([*frames, error()]).fault.status == 529


@pytest.mark.parametrize(
    "frames",
    [
        [start(0), said(0, "x")],
        [start(0, "tool_use")],
        [start(0, text="x")],
        [start(0, "new_block")],
        [*end()],
    ],
)
def test_content_or_the_end_commits(frames):
    answer = passage()
    for data in [message_start(), *frames]:
        answer.feed(data)
    assert answer.committed
    assert answer.frames().startswith(b"event: message_start\n")


def test_a_promised_stream_starts_with_a_message_of_ours():
    answer = passage()
    answer.commit()
    answer.commit()
    assert json.loads(answer.frames().split(b"data: ")[1])["message"] | {"content": []} == {
        "id": "msg_ours",
        "type": "message",
        "role": "assistant",
        "model": "a-model",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 0},
    }
    for data in [message_start(), *text_block(0, "x"), *end()]:
        answer.feed(data)
    body = answer.frames()
    assert b"message_start" not in body
    # what the start could not say yet
    assert b'"input_tokens":7' in body


# --- errors and ends ---


@pytest.mark.parametrize(
    ("kind", "status", "told"),
    [
        ("overloaded_error", 529, "overloaded_error"),
        ("rate_limit_error", 429, "rate_limit_error"),
        ("invalid_request_error", 400, "invalid_request_error"),
        ("not_found_error", 404, "not_found_error"),
        ("request_too_large", 413, "request_too_large"),
        ("billing_error", 402, "billing_error"),
        ("conflict_error", 409, "conflict_error"),
        ("timeout_error", 504, "timeout_error"),
        ("api_error", 500, "api_error"),
        ("authentication_error", 502, "api_error"),  # the key is ours
        ("permission_error", 502, "api_error"),
        ("internal_error", 500, "api_error"),  # vLLM's own word
    ],
)
def test_an_error_event_keeps_its_type(kind, status, told):
    fault = tell([message_start(), error(kind, "it broke")]).fault
    assert (fault.kind, fault.status) == (told, status)
    assert "it broke" in fault.message
    assert heard(message_start(), start(0), said(0, "x"), error(kind, "it broke"))[-1].startswith(
        f"error {told}: "
    )


@pytest.mark.parametrize(
    "data",
    [
        frame({"error": {"code": 500, "message": "it broke", "type": "server_error"}}, None),  # llama.cpp
        frame({"code": 500, "message": "it broke"}, "error"),
        frame("it broke", "error"),
        frame('"it broke"', "error"),
    ],
)
def test_errors_of_other_shapes(data):
    assert heard(message_start(), data)[0].startswith("HTTP 50")
    assert "it broke" in heard(message_start(), data)[0]


def test_after_an_error_nothing_is_said():
    """SGLang sends `message_stop` after it."""
    frames = [message_start(), start(0), said(0, "x"), error(), stop(0), *end()]
    assert heard(*frames) == ["text x ...", "error overloaded_error: Overloaded"]


def test_a_long_prompt_is_said_in_the_words_that_clients_compact_on():
    told = heard(error("invalid_request_error", "prompt is too long: 31100 tokens > 4096 maximum"))
    assert told == ["HTTP 400 invalid_request_error: prompt is too long: 31100 tokens > 4096 maximum"]


@pytest.mark.parametrize("how", ["eof", "reset"])
@pytest.mark.parametrize("last", [b"", stop(0), frame("[DONE]", None), b'data: {"type":"message_del'])
def test_a_cut_answer_is_an_error(how, last):
    told = heard(message_start(), start(0), said(0, "x"), last, end=how)
    assert told[-1] in (f"error api_error: {CUT}", f"error api_error: {LOST}")
    assert heard(message_start(), end=how)[0].startswith("HTTP 502 api_error")


def test_an_empty_body_is_an_error():
    assert heard() == ["HTTP 502 api_error: the upstream returned an empty stream"]
    assert heard(PING, MESSAGE_STOP) == heard(frame("[DONE]", None)) == heard()


def test_chat_completions_are_no_messages():
    chunk = frame({"choices": [{"delta": {"content": "x"}}]}, None)
    assert heard(chunk, frame("[DONE]", None))[0].startswith(
        "HTTP 502 api_error: the upstream answered with something else"
    )


@pytest.mark.parametrize("how", ["eof", "reset"])
def test_after_the_reason_a_cut_takes_nothing_away(how):
    frames = [message_start(), *text_block(0, "x"), message_delta()]
    assert heard(*frames, end=how) == ["text x", "end_turn"]
    assert mended(*frames, end=how) == {"message_stop_missing": 1}
    assert heard(*frames, b"data: {oops\n\n", end=how) == ["text x", "end_turn"]
    assert heard(*frames, error(), end=how)[-1] == "error overloaded_error: Overloaded"


def test_bad_json_and_long_frames_are_errors():
    frames = [message_start(), start(0), said(0, "x")]
    assert heard(*frames, b"event: content_block_delta\ndata: {oops\n\n", *end()) == [
        "text x ...",
        "error api_error: the upstream sent malformed data",
    ]
    assert heard(*frames, said(0, "y" * 2000), *end(), max_frame=1024) == [
        "text x ...",
        "error api_error: the upstream sent more than this gateway can hold",
    ]


def test_a_refusal_to_read_is_a_status():
    answer = passage()
    answer.refuse(tell([error()]).fault)
    assert answer.ended
    assert not answer.committed
    assert answer.fault.status == 529
    answer.feed(message_start())
    answer.end()
    assert answer.frames() == b""


# --- framing ---


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b"\n", b"\r\n"),
        lambda body: body.replace(b"\n", b"\r"),
        lambda body: b"\xef\xbb\xbf" + body,
        lambda body: body.replace(b"event: ", b": comment\nevent:"),
        lambda body: body.replace(b"data: ", b"data:"),
        lambda body: body.rstrip(b"\n"),
        lambda body: body.replace(
            b'{"type": "content_block_delta"', b'{\ndata: "type": "content_block_delta"'
        ),
    ],
)
def test_framing(change):
    assert heard(change(b"".join(LEGAL))) == heard(*LEGAL)


@pytest.mark.parametrize("name", [b"", b"event: message\n", b"event: data\n"])
def test_event_names_are_mended(name):
    body = b"".join(
        b"" if line.startswith(b"event: ping") else name if line.startswith(b"event: ") else line
        for line in b"".join(LEGAL).splitlines(keepends=True)
    )
    assert heard(body) == heard(*LEGAL)
    assert set(mended(body)) == {"event_name_missing" if not name else "event_name_mended"}


def test_data_without_a_type_is_what_its_event_says():
    body = b"".join(LEGAL)
    for kind in (
        b"message_stop",
        b"content_block_delta",
        b"content_block_start",
        b"message_delta",
        b"message_start",
    ):
        body = body.replace(b'"type": "%b", ' % kind, b"").replace(b'"type": "%b"' % kind, b"")
    assert heard(body) == heard(*LEGAL)


def test_done_after_the_end_and_unknown_events():
    assert heard(*LEGAL, frame("[DONE]", None)) == heard(*LEGAL)
    odd = frame({"type": "message_note", "x": 1})
    assert heard(odd, *LEGAL, odd) == heard(*LEGAL)
    assert mended(odd, *LEGAL, odd) == {"unknown_event_dropped": 1}
    frames = [message_start(), *text_block(0, "x"), message_delta(), frame("[DONE]", None)]
    assert heard(*frames) == ["text x", "end_turn"]


# --- blocks ---


def mends(frames, lines, **counts):
    assert heard(*frames) == lines
    assert mended(*frames) == counts


def test_missing_and_repeated_message_start():
    mends([*text_block(0, "x"), *end()], ["text x", "end_turn"], message_start_missing=1)
    mends(
        [message_start(), message_start(), *text_block(0, "x"), message_start(), *end()],
        ["text x", "end_turn"],
        message_start_repeated=2,
    )


def test_indices_are_made_to_count():
    frames = [
        message_start(),
        *text_block(1, "a"),
        *tool_block(5, "{}"),
        *text_block(7, "b"),
        *end("tool_use"),
    ]
    mends(frames, ["text a", "tool toolu_1 f {}", "text b", "tool_use"], index_mended=3)
    frames = [message_start(), start("0"), said("0", "a"), stop("0"), *end()]
    mends(frames, ["text a", "end_turn"])


def test_llama_cpp_leaves_every_block_open_until_the_end():
    frames = [
        message_start(),
        start(0, "thinking", signature=...), thought(0, "hm"),
        start(1), said(1, "Hi"),
        start(2, "tool_use", input=..., id="a"), args(2, '{"x":'), args(2, "1}"),
        start(3, "tool_use", input=..., id="b"), args(3, '{"y":2}'),
        signed(0, ""), stop(0), stop(1), stop(2), stop(3),
        *end("tool_use"),
    ]  # fmt: skip
    lines = ["thinking hm", "text Hi", 'tool a f {"x": 1}', 'tool b f {"y": 2}', "tool_use"]
    mends(frames, lines)
    answer = passage()
    for data in frames[:5]:
        answer.feed(data)
    assert b'"Hi"' in answer.frames()  # it streams: nothing is held until the thinking block stops


def test_llama_cpp_gives_one_index_to_two_blocks():
    frames = [
        message_start(),
        start(0, "tool_use"),
        args(0, '{"x":1}'),
        start(0),
        said(0, "after"),
        stop(0),
        stop(0),
        *end(),
    ]
    assert heard(*frames) == ['tool toolu_1 f {"x": 1}', "text after", "tool_use"]


def test_interleaved_calls_are_put_in_order():
    frames = [
        message_start(), start(0, "tool_use", id="a"), start(1, "tool_use", id="b"),
        args(0, '{"x":'), args(1, '{"y":'), args(0, "1}"), args(1, "2}"),
        stop(0), stop(1), *end("tool_use"),
    ]  # fmt: skip
    mends(frames, ['tool a f {"x": 1}', 'tool b f {"y": 2}', "tool_use"])


def test_what_waits_is_bounded():
    frames = [message_start(), start(0, "tool_use"), args(0, "{"), start(1), *[said(1, "x" * 100)] * 30]
    assert (
        heard(*frames, max_held=2000)[-1]
        == "error api_error: the upstream sent more than this gateway can hold"
    )
    assert mended(*frames, max_held=2000)["held_too_much"] == 1
    many = [start(i, "tool_use", id=f"t{i}") for i in range(300)]
    assert heard(message_start(), *many)[-1].startswith("error api_error: the upstream started too many")


def test_more_of_a_text_that_had_to_make_room():
    frames = [
        message_start(),
        start(0, "thinking"),
        thought(0, "a"),
        start(1),
        said(1, "b"),
        thought(0, "c"),
        said(1, "d"),
        stop(0),
        stop(1),
        *end(),
    ]
    mends(
        frames, ["thinking a", "text b", "thinking c", "text d", "end_turn"], block_reopened=2, index_mended=2
    )


def test_a_delta_of_another_kind_starts_its_own_block():
    frames = [message_start(), start(0), thought(0, "hm"), said(0, "Hi"), stop(0), *end()]
    assert heard(*frames) == ["thinking hm", "text Hi", "end_turn"]


def test_blocks_that_were_never_started():
    mends([message_start(), said(0, "x"), stop(0), *end()], ["text x", "end_turn"], block_start_missing=1)
    frames = [message_start(), thought(0, "h"), signed(0, "s"), stop(0), said(1, "x"), *end()]
    mends(frames, ["thinking h [s]", "text x", "end_turn"], block_start_missing=2, block_stop_missing=1)
    assert heard(message_start(), args(0, '{"a":1}'), *end())[0].startswith(
        "HTTP 502 api_error: the upstream sent the arguments"
    )
    assert heard(message_start(), *text_block(0, "x"), args(0, ""), args(0, " "), stop(4), *end()) == [
        "text x",
        "end_turn",
    ]


def test_missing_stops():
    frames = [
        message_start(),
        start(0),
        said(0, "x"),
        start(1, "tool_use"),
        args(1, '{"a":1}'),
        *end("tool_use"),
    ]
    mends(frames, ["text x", 'tool toolu_1 f {"a": 1}', "tool_use"], block_stop_missing=1)


def test_empty_blocks_are_dropped():
    frames = [
        message_start(),
        *text_block(0),
        *text_block(1, ""),
        start(2, "thinking"),
        signed(2, ""),
        stop(2),
        *text_block(3, "x"),
        *end(),
    ]
    mends(frames, ["text x", "end_turn"], empty_block_dropped=3, empty_delta_dropped=1, index_mended=1)
    assert heard(message_start(), start(0), *end()) == ["end_turn"]


def test_thinking_that_is_not_shown_keeps_its_signature():
    mends(
        [message_start(), *thinking_block(0), *text_block(1, "x"), *end()],
        ["thinking  [sig]", "text x", "end_turn"],
    )


def test_a_signature_is_last_and_once():
    frames = [
        message_start(),
        start(0, "thinking"),
        signed(0, "s1"),
        thought(0, "hm"),
        signed(0, "s2"),
        stop(0),
        *end(),
    ]
    mends(frames, ["thinking hm [s2]", "end_turn"], signature_repeated=1)
    frames = [message_start(), start(0, "thinking", thinking="hm", signature="s"), stop(0), *end()]
    mends(frames, ["thinking hm [s]", "end_turn"], content_in_block_start=1)


def test_content_in_a_start_becomes_a_delta():
    mends(
        [message_start(), start(0, text="Hel"), said(0, "lo"), stop(0), *end()],
        ["text Hello", "end_turn"],
        content_in_block_start=1,
    )


@pytest.mark.parametrize("given", [{"a": 1}, '{"a":1}'])
def test_whole_arguments_in_a_start_become_a_delta(given):
    begin = [message_start(), start(0, "tool_use", input=given)]
    for rest in ([stop(0)], []):
        assert heard(*begin, *rest, *end("tool_use")) == ['tool toolu_1 f {"a": 1}', "tool_use"]
    mends(
        [*begin, stop(0), *end("tool_use")], ['tool toolu_1 f {"a": 1}', "tool_use"], input_in_block_start=1
    )
    frames = [*begin, args(0, '{"a":2}'), stop(0), *end("tool_use")]
    mends(frames, ['tool toolu_1 f {"a": 2}', "tool_use"], input_in_block_start=1)
    assert heard(*begin, stop(0), *end("max_tokens"))[-1] == "max_tokens"


def test_a_block_that_is_started_twice():
    frames = [message_start(), start(0), start(0), said(0, "x"), stop(0), *end()]
    mends(frames, ["text x", "end_turn"], block_start_repeated=1)
    twice = [start(0, "tool_use")] * 2
    frames = [message_start(), *twice, args(0, "{}"), stop(0), *end("tool_use")]
    mends(frames, ["tool toolu_1 f {}", "tool_use"], block_start_repeated=1)


def test_a_start_without_a_block():
    assert heard(
        message_start(), frame({"type": "content_block_start", "index": 0}), said(0, "x"), *end()
    ) == [
        "text x",
        "end_turn",
    ]
    frames = [message_start(), start(0, type=...), said(0, "x"), stop(0), *end()]
    mends(frames, ["text x", "end_turn"], odd_block_start=1)


def test_deltas_that_nobody_knows():
    odd = frame({"type": "content_block_delta", "index": 0, "delta": {"x": 1}})
    frames = [message_start(), start(0), said(0, "x"), delta(0, "new_delta", new=1), odd, stop(0), *end()]
    mends(frames, ["text x", "end_turn"], unknown_delta_dropped=1, odd_delta_dropped=1)


# --- calls ---


def test_a_call_without_arguments():
    for pieces in ([], [""], ["{}"], ["{}", '{"a":1}']):
        given = '{"a": 1}' if len(pieces) == 2 else "{}"
        assert heard(message_start(), *tool_block(0, *pieces), *end("tool_use")) == [
            f"tool toolu_1 f {given}",
            "tool_use",
        ]
        assert heard(message_start(), *tool_block(0, *pieces), *text_block(1, "x"), *end("tool_use")) == [
            f"tool toolu_1 f {given}",
            "text x",
            "tool_use",
        ]
    assert heard(message_start(), *tool_block(0, "{}"), *end("max_tokens")) == ["max_tokens"]
    assert mended(message_start(), *tool_block(0), *end("max_tokens")) == {"cut_call_dropped": 1}


def test_a_call_that_is_not_whole_is_not_stopped():
    """Its stop would make the client run it."""
    frames = [message_start(), *tool_block(0, '{"a":'), *text_block(1, "x")]
    assert heard(*frames) == ['tool toolu_1 f {"a": ...', f"error api_error: {CUT}"]
    cut = "error api_error: the upstream ended in the middle of a tool call's arguments"
    assert heard(*frames, *end("tool_use")) == ['tool toolu_1 f {"a": ...', cut]
    assert tell([*frames, *end("max_tokens")]).events[-3]["type"] == "content_block_stop"
    message = tell([*frames, *end("max_tokens")], streaming=False).message
    assert message["content"] == [{"type": "text", "text": "x"}]
    assert message["stop_reason"] == "max_tokens"


def test_no_call_is_stopped_when_another_one_is_cut():
    frames = [
        message_start(),
        start(0, "tool_use", id="a"),
        args(0, '{"a":1}'),
        start(1, "tool_use", id="b"),
        args(1, "{"),
        *end("tool_use"),
    ]
    events = tell(frames).events
    assert [event["type"] for event in events[-2:]] == ["content_block_delta", "error"] or events[-1][
        "type"
    ] == "error"
    assert events[-1]["type"] == "error"


def test_more_of_a_call_that_was_complete_is_an_error():
    frames = [message_start(), *tool_block(0, '{"a":1}'), args(0, "2"), *end("tool_use")]
    assert heard(*frames)[-1].startswith("error api_error: ")
    assert heard(message_start(), *tool_block(0, '{"a":1}'), args(0, " "), *end("tool_use"))[-1] == "tool_use"


def test_more_of_a_call_that_had_to_make_room():
    frames = [message_start(), start(0, "tool_use"), args(0, '{"a":1}'), start(1), said(1, "x")]
    late = "error api_error: the upstream went on with a content block that was already complete"
    assert heard(*frames, args(0, " "), stop(0), stop(1), *end("tool_use")) == [
        'tool toolu_1 f {"a": 1}',
        "text x",
        "tool_use",
    ]
    assert heard(*frames, args(0, "x"), *end("tool_use"))[-1] == late


@pytest.mark.parametrize(
    "pieces", [["[1]"], ['{"a":1}', "x"], ['{"a":1}x'], ['{"a":1}', '{"b":2}'], ["{oops}"]]
)
def test_arguments_that_are_no_object(pieces):
    """They are never repaired: a client tells the model."""
    frames = [message_start(), *tool_block(0, *pieces), *end("tool_use")]
    assert lines_of(tell(frames)) == [f"tool toolu_1 f {''.join(pieces)}", "tool_use"]
    folded = tell(frames, streaming=False)
    assert (folded.fault.status, folded.fault.message) == (
        502,
        "the model called f with arguments that are no JSON object",
    )


def test_arguments_of_a_servers_own_tool_are_its_own_business():
    frames = [
        message_start(),
        start(0, "mcp_tool_use", id="m", name="f", input={}),
        args(0, "[1"),
        stop(0),
        *end(),
    ]
    assert tell(frames, streaming=False).message["content"] == [
        {"type": "mcp_tool_use", "id": "m", "name": "f", "input": {}}
    ]


def test_ids_and_names_that_nobody_takes():
    frames = [message_start()]
    for index, id_ in enumerate(["a", "a", "", "x/y", ...]):
        frames += [start(index, "tool_use", id=id_, name="mcp:f"), args(index, "{}"), stop(index)]
    told = tell([*frames, *end("tool_use")])
    lines_of(told)
    assert told.counts == {"tool_id_mended": 4, "tool_name_mended": 5}
    assert heard(message_start(), start(0, "tool_use", name=""))[0].startswith(
        "HTTP 502 api_error: the upstream sent a tool call without a name"
    )


def test_ids_of_a_gateway_behind_this_one_stay():
    assert (
        heard(message_start(), *tool_block(0, "{}", id_="toolu_apAAAA"), *end("tool_use"))[0]
        == "tool toolu_apAAAA f {}"
    )


# --- the reason to stop ---


@pytest.mark.parametrize(
    ("reason", "matched", "tool", "told"),
    [
        ("end_turn", None, True, "tool_use"),
        ("tool_use", None, False, "end_turn"),
        ("max_tokens", None, True, "max_tokens"),
        ("stop", None, False, "end_turn"),
        ("length", None, False, "max_tokens"),
        ("tool_calls", None, True, "tool_use"),
        ("content_filter", None, False, "refusal"),
        ("whatever", None, False, "end_turn"),
        ("", None, False, "end_turn"),  # Ollama
        ("stop_sequence", None, False, "end_turn"),  # Ollama
        ("stop_sequence", "END", False, "stop_sequence 'END'"),
        ("end_turn", "END", False, "stop_sequence 'END'"),  # llama.cpp
        ("end_turn", "other", False, "end_turn"),
        ("end_turn", "END", True, "stop_sequence 'END'"),
    ],
)
def test_reasons(reason, matched, tool, told):
    block = tool_block(0, '{"a":1}') if tool else text_block(0, "x")
    frames = [message_start(), *block, *end(reason, matched=matched)]
    assert heard(*frames, stop_sequences=("END",))[-1] == told


@pytest.mark.parametrize("reason", [None, "abort", "error"])
def test_reasons_that_are_failures(reason):
    assert heard(message_start(), *text_block(0, "x"), *end(reason))[-1].startswith(
        "error api_error: the upstream"
    )
    assert heard(message_start(), *end(reason))[-1].startswith("HTTP 502 api_error: the upstream")


def test_no_message_delta():
    mends(
        [message_start(), *text_block(0, "x"), MESSAGE_STOP],
        ["text x", "end_turn"],
        message_delta_missing=1,
        stop_reason_inferred=1,
    )
    assert heard(message_start(), *tool_block(0, "{}"), MESSAGE_STOP)[-1] == "tool_use"


def test_several_message_deltas_are_one():
    last = message_delta(None, usage={"output_tokens": 9})
    told = tell(
        [message_start(), *text_block(0, "x"), message_delta("max_tokens", usage=None), last, MESSAGE_STOP]
    )
    assert lines_of(told) == ["text x", "max_tokens"]
    assert told.events[-2]["usage"]["output_tokens"] == 9
    assert told.counts == {"message_delta_joined": 1}


# --- usage ---


def usage_of(first, last, *blocks, **options):
    told = tell(
        [
            message_start(usage=first),
            *(blocks or text_block(0, "x" * 40)),
            message_delta(usage=last),
            MESSAGE_STOP,
        ],
        **options,
    )
    lines_of(told)
    return told.events[0]["message"]["usage"], told.events[-2]["usage"], told.answer.usage


def test_reported_usage_stays():
    first, last, usage = usage_of(
        {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": None}, {"output_tokens": 5}
    )
    assert first == {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": None}
    assert last == {"output_tokens": 5}
    assert (usage.input_tokens, usage.output_tokens, usage.estimated) == (7, 5, ())


@pytest.mark.parametrize(
    "nothing",
    [
        None,
        {},
        {"input_tokens": None, "output_tokens": None},
        {"input_tokens": 0, "output_tokens": 0},
        {"input_tokens": -1, "output_tokens": "x"},
    ],
)
def test_what_nobody_reported_is_estimated(nothing):
    first, last, usage = usage_of(nothing, nothing)
    assert first["input_tokens"] == 11
    assert last["output_tokens"] == 10
    assert usage.estimated == ("input", "output")


def test_the_truth_comes_at_the_end():
    """Ollama estimates the prompt in its start; vLLM's start may know nothing of the cache."""
    first, last, usage = usage_of(
        {"input_tokens": 50, "output_tokens": 0},
        {
            "input_tokens": 20.0,
            "output_tokens": 5,
            "cache_read_input_tokens": 30,
            "output_tokens_details": {"thinking_tokens": 2},
        },
    )
    assert first["input_tokens"] == 50
    assert last == {
        "input_tokens": 20,
        "output_tokens": 5,
        "cache_read_input_tokens": 30,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.thinking_tokens, usage.estimated) == (
        20,
        30,
        2,
        (),
    )


def test_a_prompt_that_was_wholly_cached_may_be_zero():
    first, _, usage = usage_of(
        {"input_tokens": 0, "output_tokens": 1, "cache_read_input_tokens": 30}, {"output_tokens": 5}
    )
    assert usage.input_tokens == 0
    assert usage.cache_read_input_tokens == 30
    assert first["input_tokens"] == 0


def test_a_count_of_our_own_goes_out_at_the_end():
    answer = passage()
    answer.guess_input(20)
    for data in [message_start(usage={}), *text_block(0, "x")]:
        answer.feed(data)
    assert b'"input_tokens":20' in answer.frames()
    answer.count_input(23)
    for data in end():
        answer.feed(data)
    assert b'"input_tokens":23' in answer.frames()
    assert answer.usage.estimated == ()


# --- halves of characters ---


def test_half_characters():
    frames = [
        message_start(),
        start(0),
        said(0, "a\ud83d"),
        said(0, "\ude00b"),
        said(0, "\ud83d"),
        stop(0),
        *end(),
    ]
    assert heard(*frames) == ["text a\U0001f600b\ufffd", "end_turn"]
    frames = [message_start(), start(0, note="\ud83d \\ud83d \ud83d\ude00"), said(0, "x"), stop(0), *end()]
    assert tell(frames).events[1]["content_block"]["note"] == "\ufffd \\ud83d \U0001f600"
    assert heard(*frames) == ["text x", "end_turn"]


def test_half_characters_that_wait_in_vain():
    frames = [message_start(), start(0, "tool_use"), args(0, '{"a":"\ud83d'), args(0, '\ude00"}')]
    assert heard(*frames, stop(0), *end("tool_use"))[0] == f"tool toolu_1 f {json.dumps({'a': chr(0x1F600)})}"
    frames = [
        message_start(),
        start(0),
        said(0, "a\ud83d"),
        start(1, "thinking"),
        thought(1, "b\ud83d"),
        *end(),
    ]
    assert heard(*frames) == ["text a\ufffd", "thinking b\ufffd", "end_turn"]
    assert mended(*frames)["lone_surrogate"] == 2


def test_bytes_that_are_no_utf8():
    frames = [message_start(), start(0), said(0, "é").replace(b"\\u00e9", b"\xe9\xff"), stop(0), *end()]
    assert heard(*frames) == ["text \ufffd\ufffd", "end_turn"]


# --- whole answers ---

MESSAGE = {
    "id": "msg_theirs",
    "type": "message",
    "role": "assistant",
    "model": "their-model",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Hi", "citations": None},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 7, "output_tokens": 5, "service_tier": "standard"},
    "context_management": {"applied_edits": []},
}


@pytest.mark.parametrize("lead", [b"", b"\n\n ", b"\xef\xbb\xbf"])
def test_a_whole_message_is_one_burst(lead):
    body = lead + json.dumps(MESSAGE).encode()
    assert heard(body) == ["thinking hm [s]", "text Hi", 'tool a f {"n": 1}', "(server_tool_use)", "tool_use"]
    assert mended(body) == {"whole_answer": 1}
    assert tell([body], streaming=False).message == MESSAGE | {"model": "a-model"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}', 529),
        (b'{"error":{"message":"bad","code":400}}', 400),
        (b"<html><title>oops</title></html>", 502),
        (b'{"type":"message","content":[{"type":"te', 502),
        (b'{"type":"message","content":[],"stop_reason":null}', 502),
        (b'{"choices":[]}', 502),
        (b"[]", 502),
    ],
)
def test_documents_that_are_no_message(body, status):
    assert tell([body]).fault.status == status
    assert tell([body], streaming=False).fault.status == status
    assert tell([body], "reset").fault.status in (status, 502)


def test_a_whole_answer_may_be_too_large():
    frames = [message_start(), start(0), *[said(0, "x" * 100)] * 20, stop(0), *end()]
    assert tell(frames, streaming=False, max_fold=1000).fault.status == 502
    assert tell([json.dumps(MESSAGE | {"x": "y" * 2000}).encode()], max_body=1000).fault.status == 502


# --- the hot path ---


def test_the_gauges_of_a_shell():
    answer = passage()
    assert (answer.head, answer.broken, answer.finished, answer.usage_reported) == (None, False, False, False)
    answer.on_head(200, {"content-type": "text/event-stream"})
    for data in [message_start(), start(0), said(0, "x"), message_delta("max_tokens")]:
        answer.feed(data)
    assert (answer.begun, answer.finished, answer.usage_reported, answer.ended) == (True, True, True, False)
    assert answer.message() is None
    answer.feed(MESSAGE_STOP)
    assert (answer.ended, answer.stop_reason, answer.fault) == (True, "max_tokens", None)
    answer.commit()
    answer.refuse(tell([error()]).fault)
    assert answer.fault is None


def test_feed_tells_when_there_is_nothing_but_more_of_the_message():
    answer = passage()
    assert answer.feed(message_start())
    assert answer.feed(start(0))
    assert answer.feed(said(0, "a"))
    assert not answer.feed(said(0, "b"))
    assert answer.feed(stop(0))
    assert answer.pending > 0
    answer.frames()
    assert answer.pending == 0
