"""What holds for every request: encoded to a legal body or refused by name, and nothing lost on the way."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.quirks import GENERIC, by_name, names
from antiphon.core.surfaces.messages.request import RequestError, parse

TEXT = st.text(max_size=6)
NAME = st.sampled_from(["f", "g", "a b", "x" * 90])
ID = st.sampled_from(["a", "b", "toolu_apAABh", "c.d"])
TEXT_BLOCK = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
SOURCE = st.fixed_dictionaries(
    {"type": st.sampled_from(["base64", "url", "file", "text", "content"])},
    optional={
        "media_type": TEXT,
        "data": TEXT,
        "url": st.just("https://e.x"),
        "content": st.lists(TEXT_BLOCK, max_size=2),
    },
)
IMAGE = st.fixed_dictionaries({"type": st.just("image"), "source": SOURCE})
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
FOREIGN = st.fixed_dictionaries(
    {"type": st.sampled_from(["server_tool_use", "web_search_tool_result", "compaction", "fallback", "new"])},
    optional={"name": ANY_JSON, "content": ANY_JSON, "text": ANY_JSON},
)
SAID = st.one_of(
    st.fixed_dictionaries({"type": st.just("thinking")}, optional={"thinking": TEXT, "signature": TEXT}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": TEXT}),
    FOREIGN,
    IMAGE,
)
CALL = st.fixed_dictionaries(
    {"type": st.just("tool_use"), "id": ID, "name": NAME},
    optional={"input": st.dictionaries(TEXT, ANY_JSON, max_size=2)},
)
SHOWN = st.one_of(
    IMAGE,
    st.fixed_dictionaries({"type": st.just("document"), "source": SOURCE}, optional={"title": TEXT}),
    st.fixed_dictionaries(
        {
            "type": st.just("search_result"),
            "source": TEXT,
            "title": TEXT,
            "content": st.lists(TEXT_BLOCK, max_size=2),
        }
    ),
    st.fixed_dictionaries({"type": st.just("tool_reference"), "tool_name": NAME}),
)
RESULT = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": ID},
    optional={"content": TEXT | st.lists(TEXT_BLOCK | SHOWN, max_size=2), "is_error": st.booleans()},
)


@st.composite
def conversations(draw):
    """Turns that mostly keep the rules: calls are answered, blocks stand on the right side."""
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        turns.append(
            {
                "role": "user",
                "content": [{"type": "text", "text": "q"}, *draw(st.lists(TEXT_BLOCK | SHOWN, max_size=2))],
            }
        )
        if draw(st.booleans()):
            turns.append(
                {"role": "system", "content": draw(TEXT | st.lists(TEXT_BLOCK | FOREIGN, max_size=2))}
            )
        calls = draw(st.lists(CALL, max_size=2, unique_by=lambda each: each["id"]))
        turns.append(
            {"role": "assistant", "content": [*draw(st.lists(TEXT_BLOCK | SAID, max_size=2)), *calls]}
        )
        results = [draw(RESULT) | {"tool_use_id": each["id"]} for each in calls]
        turns.append(
            {
                "role": "user",
                "content": draw(st.permutations(results)) + draw(st.lists(TEXT_BLOCK, max_size=1)),
            }
        )
    if draw(st.integers(0, 3)) == 0:  # and sometimes not
        block = draw(TEXT_BLOCK | SAID | SHOWN | CALL | RESULT)
        draw(st.sampled_from(turns))["content"] = [block]
    return turns


SCHEMA = st.dictionaries(st.sampled_from(["type", "properties", "required"]), ANY_JSON)
TOOL = st.fixed_dictionaries(
    {"name": NAME, "input_schema": SCHEMA},
    optional={
        "type": st.sampled_from(["custom", "bash_20250124", "web_search_20250305", "x"]),
        "defer_loading": st.booleans(),
        "strict": st.booleans(),
        "input_examples": st.lists(ANY_JSON, max_size=1),
        "allowed_callers": st.lists(TEXT, max_size=1),
    },
)
CHOICE = st.fixed_dictionaries(
    {"type": st.sampled_from(["auto", "any", "tool", "none"])},
    optional={"name": NAME, "disable_parallel_tool_use": st.booleans()},
)
WHOLE = st.fixed_dictionaries(
    {"model": TEXT, "max_tokens": st.integers(0, 100), "messages": conversations()},
    optional={
        "system": TEXT | st.lists(TEXT_BLOCK, max_size=2),
        "tools": st.lists(TOOL, max_size=3, unique_by=lambda each: each["name"]),
        "tool_choice": CHOICE,
        "thinking": st.fixed_dictionaries({"type": TEXT | st.just("disabled")}),
        "stop_sequences": st.lists(TEXT, max_size=6),
    },
)


@settings(max_examples=300, deadline=None)
@given(WHOLE, st.sampled_from(names()))
def test_whatever_parse_accepts_is_encoded_or_refused_by_name(whole, name):
    try:
        out = encode(parse(json.dumps(whole).encode()), by_name(name))
    except RequestError as refused:
        assert refused.fault.status == 400
        return
    body = json.loads(out.body)
    assert body["messages"]
    assert all(path.isascii() for path in out.degraded)
    waiting = []
    for message in body["messages"]:
        assert message["role"] in {"system", "user", "assistant", "tool"}
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
        else:
            assert not waiting
        waiting += [call["id"] for call in message.get("tool_calls", ())]
    assert not waiting
    assert out.input_estimate > 0


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_text_of_an_accepted_request_is_in_the_body(data):
    """With only texts, calls and results: what the client wrote, the server gets."""
    words = iter(f"w{n:03}w" for n in range(100))
    messages = []
    for n in range(data.draw(st.integers(1, 3))):
        blocks = [{"type": "text", "text": next(words)} for _ in range(data.draw(st.integers(1, 2)))]
        messages.append({"role": data.draw(st.sampled_from(["user", "system"])), "content": blocks})
        calls = [
            {"type": "tool_use", "id": f"c{n}{k}", "name": "f", "input": {"x": next(words)}}
            for k in range(data.draw(st.integers(0, 2)))
        ]
        messages.append({"role": "assistant", "content": [{"type": "text", "text": next(words)}, *calls]})
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": next(words)}
            for call in reversed(calls)
        ]
        messages.append({"role": "user", "content": [{"type": "text", "text": next(words)}, *results]})
    whole = {"model": "m", "max_tokens": 64, "messages": messages}
    body = encode(parse(json.dumps(whole).encode()), GENERIC).body.decode()
    used = 100 - len(list(words))
    assert used > 0
    for n in range(used):
        assert f"w{n:03}w" in body
