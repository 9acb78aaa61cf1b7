"""Strategies: what upstreams and dialects may say, well-formed and hostile, for Hypothesis."""

from hypothesis import strategies as st

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
from pipeline import DONE, delta, finish, frame, usage

# --- what upstreams may say -------------------------------------------------------------------

TEXTS = st.one_of(
    st.sampled_from(
        ["a", "b ", " ", "\n", "", "<", "<think>", "</think>", "\ud83d", "\ude00", "é", "\u2028", "\x00"]
    ),
    st.text(max_size=6),
)
ARGUMENTS = st.one_of(
    st.sampled_from(
        [
            "",
            "{}",
            "{",
            "}",
            '{"x":1}',
            '{"x":',
            "1}",
            '"',
            "\\",
            " ",
            "[",
            "null",
            '{"x":1}{"y":2}',
            '{"',
            '\ud83d"}',
        ]
    ),
    st.text(alphabet='{}[]":\\,1a \n', max_size=8),
)
NAMES = st.sampled_from(["f", "g", "read", "", None, "mcp:x", "\ud83d", 7])
IDS = st.sampled_from(["a", "b", "functions.read:0", "", "null", None, 7])
INDICES = st.sampled_from([0, 0, 0, 1, 1, 2, None, -1, "0", "x", 1.0, 10**30])
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "index": INDICES,
        "id": IDS,
        "function": st.fixed_dictionaries(
            {}, optional={"name": NAMES, "arguments": ARGUMENTS | st.just({"x": 1})}
        ),
    },
)
DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "content": TEXTS
        | st.none()
        | st.just([{"type": "text", "text": "t"}, {"type": "thinking", "thinking": "h"}]),
        "reasoning_content": TEXTS | st.none(),
        "reasoning": TEXTS | st.none(),
        "refusal": st.sampled_from(["", None, "no"]),
        "tool_calls": st.lists(ENTRIES, max_size=3) | st.none(),
        "function_call": st.sampled_from([None, {"name": "old", "arguments": "{"}]),
    },
)
WORDS = st.sampled_from(
    [None, None, None, None, "stop", "length", "tool_calls", "content_filter", "", "eos", "error"]
)
FRAMES = st.one_of(
    st.builds(lambda fields, word: delta(word, **fields), DELTAS, WORDS),
    st.builds(lambda fields: delta(**fields), DELTAS),
    st.sampled_from(
        [
            frame({"choices": []}),
            frame({}),
            frame({"choices": [{"index": 1, "delta": {"content": "other"}}]}),
            usage(3, 2),
            usage(-1, None),
            b": comment\n\n",
            b"event: ping\ndata: {}\n\n",
            b"\r\n",
            b"data: {oops\n\n",
            frame({"error": {"message": "bad"}}),
            b"event: error\ndata: bad\n\n",
            DONE,
        ]
    ),
)
STREAMS = st.lists(FRAMES, max_size=10).flatmap(
    lambda frames: st.sampled_from(
        [[], [finish("stop")], [finish("length"), DONE], [finish("tool_calls"), DONE], [DONE]]
    ).map(lambda end: [*frames, *end])
)
ENDS = st.sampled_from(["eof", "reset"])


# --- what dialects may say --------------------------------------------------------------------

SAFE = st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5)
KEYS = st.integers(0, 2)
PARTS = st.one_of(
    st.builds(Text, SAFE | st.sampled_from([" ", "\n"])),
    st.builds(Reasoning, SAFE),
    st.builds(Refusal, SAFE),
    st.builds(ToolOpen, KEYS, st.sampled_from([None, "a", "b"]), st.sampled_from(["", "f", "g", "fg"])),
    st.builds(ToolArgs, KEYS, ARGUMENTS.filter(bool).filter(str.isprintable)),
    st.builds(Opaque, st.sampled_from(["s1", "s2"]), st.none() | KEYS),
    st.builds(Usage, *[st.none() | st.integers(0, 99)] * 5),
    st.builds(Finish, st.sampled_from(["end_turn", "max_tokens", "tool_use", "refusal"]), st.none()),
    st.builds(Finish, st.just("stop_sequence"), st.just("END")),
    st.sampled_from(
        [Malformed("bad"), End(clean=True), End(clean=False), Fault("overloaded_error", "busy", 529)]
    ),
)
CONTENT = st.lists(PARTS, max_size=14)
LAST = st.sampled_from(
    [End(clean=True), End(clean=False), End(clean=False, fault=Fault("timeout_error", "late", 504))]
)
