"""The laws of the passage, for whatever a native upstream says: split, grammar, end, truth, loss, fold."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from native import (
    MESSAGE_STOP,
    OTHER_BLOCKS,
    PING,
    args,
    check,
    delta,
    end,
    error,
    frame,
    lines_of,
    lines_of_message,
    message_delta,
    message_start,
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
from pipeline import judge, run

LAW = settings(
    derandomize=True, deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow]
)

# --- what such an upstream may say, in any order ---

INDICES = st.sampled_from([0, 0, 0, 1, 1, 2, 7, -1, None, "1", 1.0, "x", 10**30, True])
TEXTS = st.sampled_from(["", "a", "b ", " ", "é", "\ud83d", "\ude00", "\u2028", None, 7])
PIECES = st.sampled_from(["", "{", "}", "{}", '{"x":1}', '{"x":', "1}", " ", "[1]", '"', "\ud83d", None])
TOOLS = {
    "id": st.sampled_from(["a", "b", "", "x/y", None, ...]),
    "name": st.sampled_from(["f", "f", "g:h", "", None]),
    "input": st.sampled_from([{}, {"y": 2}, None, ..., "x"]),
}
REASONS = st.sampled_from(
    [
        "end_turn",
        "tool_use",
        "max_tokens",
        "stop_sequence",
        "refusal",
        "pause_turn",
        "stop",
        "",
        None,
        7,
        "abort",
    ]
)
USAGES = st.sampled_from(
    [
        ...,
        None,
        {},
        {"output_tokens": 0},
        {"output_tokens": None, "input_tokens": -1},
        {"input_tokens": 3, "output_tokens": 2.0},
    ]
)
STARTS = st.one_of(
    st.builds(start, INDICES),
    st.builds(lambda i, text: start(i, text=text), INDICES, TEXTS | st.just(...)),
    st.builds(
        lambda i, text, sig: start(i, "thinking", thinking=text, signature=sig),
        INDICES,
        TEXTS,
        st.sampled_from(["", "s", ..., None]),
    ),
    st.builds(lambda i, fields: start(i, "tool_use", **fields), INDICES, st.fixed_dictionaries(TOOLS)),
    st.builds(start, INDICES, st.sampled_from(["redacted_thinking", *OTHER_BLOCKS])),
)
DELTAS = st.one_of(
    st.builds(said, INDICES, TEXTS),
    st.builds(thought, INDICES, TEXTS),
    st.builds(args, INDICES, PIECES),
    st.builds(signed, INDICES, st.sampled_from(["", "s1", "s2"])),
    st.builds(lambda i: delta(i, "citations_delta", citation={"a": 1}), INDICES),
    st.builds(lambda i: delta(i, "new_delta", new=1), INDICES),
)
ODD = st.sampled_from(
    [
        PING,
        message_start(),
        message_start(id=None, usage=None, content=...),
        frame({"type": "content_block_start", "index": 0}),
        frame({"type": "content_block_start", "index": 0, "content_block": {"text": "t"}}),
        frame({"type": "content_block_delta", "index": 0}),
        frame({"type": "content_block_delta", "index": 0, "delta": {"text": "t"}}),
        frame({"type": "message_delta"}),
        frame({"type": "message_start"}),
        frame({"type": "new_event"}),
        frame({"index": 0, "delta": {"type": "text_delta", "text": "u"}}, "content_block_delta"),
        frame({"no": "type"}, None),
        b": comment\n\n",
        b"\r\n",
        b"data: [1]\n\n",
    ]
)
LAST = st.sampled_from(
    [b"data: {oops\n\n", frame("[DONE]", None), error(), MESSAGE_STOP, b'data: {"type":"message_st']
)
ENDS = st.builds(
    lambda reason, matched, usage: message_delta(reason, matched, usage),
    REASONS,
    st.sampled_from([None, "END", 7]),
    USAGES,
)
FRAMES = st.one_of(STARTS, DELTAS, DELTAS, DELTAS, st.builds(stop, INDICES), ODD)
STREAMS = st.builds(
    lambda head, frames, tail: [*head, *frames, *tail],
    st.sampled_from([[], [message_start()], [message_start()]]),
    st.lists(st.one_of(FRAMES, FRAMES, FRAMES, FRAMES, FRAMES, ENDS, LAST), max_size=12),
    st.one_of(
        st.just([]), st.builds(lambda reason: list(end(reason)), REASONS), st.builds(lambda e: [e], ENDS)
    ),
)
HOWS = st.sampled_from(["eof", "reset"])


@given(STREAMS, HOWS)
@LAW
def test_grammar_and_end(frames, how):
    """Whatever is said: legal at every prefix, one terminal event, nothing behind it."""
    told = tell(frames, how, stop_sequences=("END",))
    lines_of(told)
    events = told.events
    assert all(
        judge.violations(events[:n], envelope=False, extra_blocks=OTHER_BLOCKS, prefix=True) == []
        for n in range(len(events))
    )
    terminal = [event for event in events if event["type"] in ("message_stop", "error")]
    assert len(terminal) == (0 if told.fault is not None else 1)
    assert terminal == events[-1:]


@given(STREAMS, HOWS, st.data())
@LAW
def test_split(frames, how, data):
    """Any cut of the same bytes gives the same events, also to a client that reads late."""
    whole = b"".join(frames)
    first = tell([whole], how)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    reads = data.draw(st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces)))
    for told in (tell(frames, how), tell(pieces, how, reads=reads.__getitem__)):
        assert (told.body, told.fault, told.counts) == (first.body, first.fault, first.counts)


@given(STREAMS, HOWS)
@LAW
def test_truth(frames, how):
    """No success without the upstream saying so."""
    reasons = [
        event.get("delta", {}).get("stop_reason")
        for event in run.decode_sse(b"".join(frames))[0]
        if isinstance(event, dict) and event.get("type") == "message_delta"
    ]
    if MESSAGE_STOP not in frames and not any(isinstance(reason, str) and reason for reason in reasons):
        assert lines_of(tell(frames, how))[-1].startswith(("HTTP 5", "error "))


@given(STREAMS, HOWS)
@LAW
def test_fold(frames, how):
    """A whole answer is what the stream says; a client that streams is told the same reason of a failure."""
    streamed, folded = tell(frames, how), tell(frames, how, streaming=False)
    lines = lines_of(streamed)
    if streamed.fault is not None:
        assert folded.fault == streamed.fault
    elif folded.message is not None:
        cut = streamed.events[-2]["delta"]["stop_reason"] in ("max_tokens", "refusal")
        kept = [
            line
            for line, block in zip(lines, check(streamed)["content"] + [{}], strict=True)
            if not (cut and block.get("type") == "tool_use" and not isinstance(block["input"], dict))
        ]
        assert lines_of_message(folded.message) == kept
    else:
        assert folded.fault.status in (400, 502, 529)


WORDS = st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5)
OBJECTS = st.dictionaries(WORDS, WORDS | st.integers() | st.none(), max_size=3)


@st.composite
def messages(draw):
    """A legal message, and its frames: as they are, or with the blocks' events shuffled into one another."""
    rows, content = [], []
    for index, kind in enumerate(draw(st.lists(st.sampled_from(["text", "thinking", "tool"]), max_size=4))):
        if kind == "tool":
            given_ = json.dumps(draw(OBJECTS), ensure_ascii=False)
            cut = draw(st.integers(0, len(given_)))
            rows.append(tool_block(index, given_[:cut], given_[cut:], id_=f"t{index}"))
            content.append(("tool", f"t{index}", json.loads(given_)))
        else:
            texts = draw(st.lists(WORDS, min_size=1, max_size=3))
            rows.append((text_block if kind == "text" else thinking_block)(index, *texts))
            content.append((kind, "".join(texts)))
    frames = []
    if draw(st.booleans()):
        frames = [data for row in rows for data in row]
    else:
        while rows := [row for row in rows if row]:
            frames.append(draw(st.sampled_from(rows)).pop(0))
    reason = "tool_use" if any(kind == "tool" for kind, *_ in content) else "end_turn"
    return content, [message_start(), *frames, *end(reason)]


@given(messages())
@LAW
def test_loss(message):
    """Text, thinking and each call's arguments come out whole, in whatever order their events came."""
    content, frames = message
    blocks = check(tell(frames))["content"]
    for kind, name in (("text", "text"), ("thinking", "thinking")):
        got = [char for block in blocks if block["type"] == kind for char in block[name]]
        assert sorted(got) == sorted(char for each, *rest in content if each == kind for char in rest[0])
    calls = {block["id"]: block["input"] for block in blocks if block["type"] == "tool_use"}
    assert calls == {rest[0]: rest[1] for kind, *rest in content if kind == "tool"}


@given(messages().filter(lambda message: len(message[0]) < 2))
@LAW
def test_legal_streams_are_not_mended(message):
    assert tell(message[1]).counts == {}
