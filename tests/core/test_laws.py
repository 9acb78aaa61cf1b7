"""The laws of the translation, for whatever input: split, grammar, loss, fold, end, truth, and late reading."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.core.parts import (
    End,
    Error,
    Finish,
    MessageStop,
    Reasoning,
    Text,
    ToolArgs,
    ToolOpen,
)
from hostile import ARGUMENTS, CONTENT, ENDS, LAST, SAFE, STREAMS, TEXTS
from pipeline import DONE, delta, finish, judge, play, play_parts, run, told_by, usage

LAW = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@given(STREAMS, ENDS, st.data())
@LAW
def test_split(chunks, end, data):
    """Any cut of the same bytes gives the same message, and a client that reads late gets it too."""
    whole = b"".join(chunks)
    told = told_by(play([whole], end))
    assert told_by(play(chunks, end)) == told
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    reads = data.draw(st.lists(st.booleans(), min_size=len(pieces) + 1, max_size=len(pieces) + 1))
    result = play(pieces, end, reads=reads.__getitem__)
    assert told_by(result) == told
    assert result.message == play(chunks, end).message


@given(STREAMS, ENDS)
@LAW
def test_truth(chunks, end):
    """No success without the upstream saying so."""
    said_so = DONE in chunks or any(b'"finish_reason": "' in chunk for chunk in chunks)
    told = told_by(play(chunks, end))
    if not said_so:
        assert told[-1].startswith(("HTTP 5", "error "))


@given(CONTENT, LAST, st.data())
@LAW
def test_grammar_and_end(parts, last, data):
    """Whatever is said: legal at every prefix, one terminal event, nothing behind it."""
    batches = [[part] for part in [*parts, last]]
    reads = data.draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))
    for result in (
        play_parts(batches),
        play_parts(batches, reads=reads.__getitem__),
        play_parts([[*parts, last]]),
    ):
        told_by(result)
        events, _ = run.decode_sse(result.body)
        assert all(judge.violations(events[:n], prefix=True) == [] for n in range(len(events)))
        terminal = [event for event in result.events if isinstance(event, (MessageStop, Error))]
        assert len(terminal) == (0 if result.fault is not None else 1)
        assert terminal == result.events[-1:]
    assert told_by(play_parts(batches)) == told_by(play_parts([[*parts, last]]))


OBJECTS = st.dictionaries(
    SAFE, SAFE | st.integers() | st.none() | st.lists(st.booleans(), max_size=2), min_size=1, max_size=3
)


@st.composite
def calls_and_text(draw):
    """Well-formed calls, cut into pieces and interleaved with text and reasoning; the key is the order."""
    calls = [json.dumps(value) for value in draw(st.lists(OBJECTS, max_size=3))]
    rows = []
    for key, text in enumerate(calls):
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        rows.append(
            [ToolOpen(key, f"id{key}", f"f{key}"), *(ToolArgs(key, piece) for piece in pieces if piece)]
        )
    rows += [
        [Text(text) for text in draw(st.lists(SAFE, max_size=4))],
        [Reasoning(text) for text in draw(st.lists(SAFE, max_size=4))],
    ]
    parts = []
    while rows := [row for row in rows if row]:
        parts.append(draw(st.sampled_from(rows)).pop(0))
    return calls, parts


@given(calls_and_text(), st.sampled_from(["end_turn", "tool_use", "max_tokens"]))
@LAW
def test_loss(content, reason):
    """Text, thinking and each call's arguments come out whole if the stream completed."""
    calls, parts = content
    result = play_parts([[part] for part in [*parts, Finish(reason), End(clean=True)]])
    told_by(result)
    blocks = result.message["content"]
    text = "".join(part.s for part in parts if isinstance(part, Text))
    assert "".join("".join(block["text"] for block in blocks if block["type"] == "text").split()) == "".join(
        text.split()
    )
    thoughts = "".join(part.s for part in parts if isinstance(part, Reasoning))
    assert "".join(block["thinking"] for block in blocks if block["type"] == "thinking") == thoughts
    tools = {block["id"]: block["input"] for block in blocks if block["type"] == "tool_use"}
    assert tools == {f"id{key}": json.loads(arguments) for key, arguments in enumerate(calls)}
    assert [block["name"] for block in blocks if block["type"] == "tool_use"] == sorted(
        (f"f{key}" for key in range(len(calls))), key=_order_of_names(parts)
    )


def _order_of_names(parts):
    order = [part.name for part in parts if isinstance(part, ToolOpen)]
    return order.index


@given(
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXTS | st.none()},
        optional={
            "reasoning_content": TEXTS,
            "refusal": st.sampled_from([None, "no"]),
            "tool_calls": st.lists(
                st.builds(lambda i, name, args: {"id": f"id{i}", "function": {"name": name, "arguments": args}},
                          st.integers(0, 9), st.sampled_from(["f", "g"]), ARGUMENTS), max_size=3
            ),
        },
    ),
    st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
)  # fmt: skip
@LAW
def test_fold(message, word):
    """A whole JSON completion gives the same message as the same answer in chunks."""
    numbers = {"prompt_tokens": 9, "completion_tokens": 4}
    body = json.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": word}], "usage": numbers}
    )
    whole = play([body.encode()])
    chunks = [delta(reasoning_content=message.get("reasoning_content")), delta(content=message["content"])]
    chunks.append(delta(refusal=message.get("refusal")))
    calls = message.get("tool_calls") or []
    chunks.append(delta(tool_calls=[{"index": position, **call} for position, call in enumerate(calls)]))
    streamed = play([*chunks, finish(word), usage(9, 4), DONE])
    assert told_by(whole) == told_by(streamed)
    assert whole.message == streamed.message
    assert (whole.fold_fault is None) == (streamed.fold_fault is None)
