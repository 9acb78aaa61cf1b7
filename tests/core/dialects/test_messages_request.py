"""The body for an upstream that speaks Messages: the client's own, with a few members changed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.dialects.messages_request import count_body, encode
from antiphon.core.dialects.overrides import Overrides
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.request import RequestError, parse
from pipeline import DATA

USER = b'{"role":"user","content":"hi"}'
SEALED = Sealer(b"k" * 32).seal("generic", "m", {"x": 1})


def body(rest: bytes = b"", messages: bytes = b"[" + USER + b"]") -> bytes:
    return b'{"model":"m","max_tokens":64%b,"messages":%b}' % (rest, messages)


def sent(given_: bytes, **options) -> dict:
    return json.loads(encode(given_, model="theirs", **options).body)


def test_everything_else_is_byte_for_byte():
    rest = b', "new" : {"n":12345678901234567890123, "e": 1.0e2}, "tools":[{"name":"f","input_schema":{ "b":1,"a":2 }}],"stream":false'
    got = encode(body(rest), model="theirs").body
    assert got == (
        b'{"model":"theirs","max_tokens":64,"new":{"n":12345678901234567890123, "e": 1.0e2},'
        b'"tools":[{"name":"f","input_schema":{ "b":1,"a":2 }}],"stream":true,"messages":[' + USER + b"]}"
    )


def test_stream_is_asked_for_where_the_client_did_not():
    assert sent(body())["stream"] is True
    assert list(sent(body()))[-1] == "stream"


@pytest.mark.parametrize(
    "rest",
    [
        b',"mcp_servers":[{"type":"url","url":"u","name":"n"}]',
        b',"thread":{"type":"create"}',
        b',"container":"c1"',
        b',"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}',
        b',"service_tier":"auto","metadata":{"user_id":"u"},"cache_control":{"type":"ephemeral"}',
    ],
)
def test_what_only_a_messages_upstream_understands_passes(rest):
    chat = encode(body(rest), model="theirs")
    assert rest[1:] in chat.body
    assert chat.ignored == chat.degraded == ()


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"mcp_servers":', "not valid JSON"),
        (b'{"model":"m"}', "max_tokens: Field required"),
        (body(messages=b"[]"), "messages: at least one"),
        (
            body(messages=b'[{"role":"user","content":[{"type":"text"}]}]'),
            "messages.0.content.0.text: Field required",
        ),
    ],
)
def test_what_is_wrong_has_a_path(given_, said):
    with pytest.raises(RequestError, match=said):
        encode(given_, model="theirs")


def test_half_characters_do_not_travel():
    assert (
        sent(body(messages=b'[{"role":"user","content":"a\\ud83d"}]'))["messages"][0]["content"] == "a\ufffd"
    )


# --- thinking in the history ---


def history(*blocks: dict, role: str = "assistant") -> bytes:
    turns = [
        {"role": "user", "content": "q"},
        {"role": role, "content": list(blocks)},
        {"role": "user", "content": "r"},
    ]
    return body(messages=json.dumps(turns).encode())


THEIRS = {"type": "thinking", "thinking": "a", "signature": "EqoB"}
OURS = {"type": "thinking", "thinking": "b", "signature": SEALED}
STATE = {"type": "thinking", "thinking": "", "signature": SEALED}
UNSIGNED = {"type": "thinking", "thinking": "c", "signature": ""}
LOST = {"type": "thinking", "thinking": "d"}
TEXT = {"type": "text", "text": '"thinking"'}
REDACTED = {"type": "redacted_thinking", "data": "zz"}


def test_thinking_that_the_upstream_did_not_sign_is_removed():
    chat = encode(history(THEIRS, OURS, STATE, UNSIGNED, LOST, REDACTED, TEXT), model="theirs")
    assert json.loads(chat.body)["messages"][1]["content"] == [THEIRS, REDACTED, TEXT]
    assert chat.ignored == ("messages.*.content.*.thinking",)
    assert chat.degraded == ()


def test_servers_of_open_models_get_unsigned_thinking_back():
    chat = encode(
        history(THEIRS, OURS, STATE, UNSIGNED, LOST, TEXT), model="theirs", keeps_unsigned_thinking=True
    )
    assert json.loads(chat.body)["messages"][1]["content"] == [
        THEIRS,
        OURS | {"signature": ""},
        UNSIGNED,
        LOST,
        TEXT,
    ]
    assert chat.ignored == ("messages.*.content.*.signature", "messages.*.content.*.thinking")


def test_a_history_without_such_thinking_is_not_touched():
    given_ = history(THEIRS, REDACTED, TEXT)
    assert json.loads(given_)["messages"] == sent(given_)["messages"]
    raw = given_[given_.index(b'"messages":') :].removesuffix(b"}")
    assert raw in encode(given_, model="theirs").body


def test_a_turn_of_nothing_else_goes():
    assert [turn["role"] for turn in sent(history(OURS))["messages"]] == ["user", "user"]
    only = json.dumps([{"role": "assistant", "content": [OURS]}]).encode()
    with pytest.raises(RequestError, match="messages: nothing is left"):
        encode(body(messages=only), model="theirs")


def test_somebody_else_may_say_whose_a_signature_is():
    chat = encode(history(THEIRS, OURS), model="theirs", is_ours=lambda signature: signature == "EqoB")
    assert json.loads(chat.body)["messages"][1]["content"] == [OURS]


# --- what the operator sets ---


def test_overrides():
    wanted = Overrides(temperature=0.2, top_p=0.9, max_tokens=32, thinking=False, system_prefix="Be brief.")
    got = encode(body(b',"temperature":1,"system":"You"'), model="theirs", overrides=wanted)
    members = json.loads(got.body)
    assert (members["temperature"], members["top_p"], members["max_tokens"]) == (0.2, 0.9, 32)
    assert members["thinking"] == {"type": "disabled"}
    assert members["system"] == "Be brief.\n\nYou"
    assert got.ignored == ("temperature", "max_tokens")
    assert sent(body(), overrides=Overrides(max_tokens=100))["max_tokens"] == 64
    assert sent(body(), overrides=Overrides(max_tokens=100), max_tokens=10)["max_tokens"] == 10


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (b"", {"type": "adaptive"}),
        (b',"thinking":null', {"type": "adaptive"}),
        (b',"thinking":{"type":"disabled"}', {"type": "adaptive"}),
        (b',"thinking":{"type":"enabled","budget_tokens":2048}', {"type": "enabled", "budget_tokens": 2048}),
    ],
)
def test_thinking_on(asked, told):
    assert sent(body(asked), overrides=Overrides(thinking=True))["thinking"] == told


def test_effort_and_template_kwargs_join_the_clients():
    wanted = Overrides(effort="high", chat_template_kwargs={"enable_thinking": False})
    got = sent(body(b',"output_config":{"effort":"low","new":1}'), overrides=wanted)
    assert got["output_config"] == {"effort": "high", "new": 1}
    assert got["chat_template_kwargs"] == {"enable_thinking": False}
    off = sent(
        body(b',"output_config":{"effort":"low","new":1}'), overrides=Overrides(effort="high", thinking=False)
    )
    assert off["output_config"] == {"new": 1}


def test_the_prefix_goes_before_system_blocks():
    got = sent(
        body(b',"system":[{"type":"text","text":"You","cache_control":{"type":"ephemeral"}}]'),
        overrides=Overrides(system_prefix="P"),
    )
    assert got["system"] == [
        {"type": "text", "text": "P\n\n"},
        {"type": "text", "text": "You", "cache_control": {"type": "ephemeral"}},
    ]
    for rest in (b"", b',"system":null', b',"system":""', b',"system":[]'):
        assert sent(body(rest), overrides=Overrides(system_prefix="P"))["system"] == "P"


def test_the_billing_header_goes_only_where_that_is_asked():
    header = {"type": "text", "text": "x-anthropic-billing-header: v=1"}
    rest = b',"system":' + json.dumps([header, {"type": "text", "text": "You"}]).encode()
    assert len(sent(body(rest))["system"]) == 2
    chat = encode(body(rest), model="theirs", drops_billing_header=True)
    assert json.loads(chat.body)["system"] == [{"type": "text", "text": "You"}]
    assert chat.ignored == ("system.*",)
    assert "system" not in sent(
        body(b',"system":' + json.dumps([header]).encode()), drops_billing_header=True
    )


# --- counting, estimates ---


def test_counting():
    rest = b',"stream":true,"stop_sequences":["x"],"temperature":1,"metadata":{},"tools":[{"name":"f","input_schema":{}}],"thinking":{"type":"adaptive"}'
    count = encode(body(rest), model="theirs", counting=True).body
    assert list(json.loads(count)) == ["model", "tools", "thinking", "messages"]
    assert count == count_body(encode(body(rest), model="theirs").body)
    no_limit = b'{"model":"m","messages":[' + USER + b"]}"
    assert sent(no_limit, counting=True) == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_the_answers_reader_learns_what_it_needs():
    chat = encode(
        body(b',"stop_sequences":["END"],"output_config":{"format":{"type":"json_schema","schema":{}}}'),
        model="theirs",
    )
    assert chat.stop_sequences == ("END",)
    assert chat.side_request
    assert chat.history_tool_ids == frozenset()
    assert chat.tool_names == {}


def test_images_are_no_text():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 70_000}}
    document = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "A" * 70_000},
    }
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    for block, most in ((image, 1700), (result, 1700), (document, 3100)):
        turns = json.dumps([{"role": "user", "content": [block]}]).encode()
        assert 1600 <= encode(body(messages=turns), model="theirs").input_estimate < most
    text = json.dumps([{"role": "user", "content": "a" * 7000}]).encode()
    assert 2000 <= encode(body(messages=text), model="theirs").input_estimate < 2050


def test_a_parsed_request_is_not_parsed_again():
    given_ = body(b',"stop_sequences":["END"]')
    assert encode(given_, model="theirs", request=parse(given_)) == encode(given_, model="theirs")


RECORDED = sorted((DATA / "requests").glob("claude-code-*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_claude_codes_requests_pass(path):
    asked = json.loads(path.read_text())["body"]

    def compact(body_: dict) -> bytes:
        return json.dumps(body_, ensure_ascii=False, separators=(",", ":")).encode()

    chat = encode(compact(asked), model="theirs", keeps_unsigned_thinking=True)
    assert chat.body == compact(asked | {"model": "theirs", "stream": True})
    assert chat.ignored == chat.degraded == ()
    assert parse(chat.body).model == "theirs"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcdefgh_", min_size=3, max_size=8), VALUES, max_size=5), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=100)
def test_unknown_members_come_through(unknown, ascii_only):
    given_ = {"model": "m", **unknown, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
    got = sent(json.dumps(given_, ensure_ascii=ascii_only).encode())
    assert got == given_ | {"model": "theirs", "stream": True}
