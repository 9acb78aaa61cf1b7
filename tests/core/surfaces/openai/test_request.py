"""What is read of an OpenAI request, and that nothing but the model's name is ever changed in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.surfaces.openai.request import ROUTES, RequestError, parse

CHAT, TEXT, EMBEDDINGS = ROUTES
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "stream", "a", 'q"', "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)
SPACE = st.text(alphabet=" \t\r\n", max_size=3).map(str.encode)


def refusal(body: bytes, route: str = CHAT) -> str:
    with pytest.raises(RequestError) as refused:
        parse(route, body)
    assert refused.value.fault.status == 400
    return refused.value.fault.message


# --- What is read --------------------------------------------------------------------------------


def test_what_is_known_of_a_chat_request():
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x" * 700}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
        "max_completion_tokens": 7,
        "n": 3,
    }
    request = parse(CHAT, json.dumps(body).encode())
    assert (request.route, request.model, request.streaming, request.asks_usage) == (CHAT, "m", True, True)
    assert (request.most_tokens, request.choices) == (7, 3)
    assert 200 < request.input_estimate < 250
    assert request.accept == "text/event-stream"
    assert (request.side_request, request.degraded, request.ignored) == (False, (), ())


def test_what_is_absent_or_null_has_the_protocols_default():
    for body in (
        b'{"model":"m"}',
        b'{"model":"m","stream":null,"n":null,"max_tokens":null,"stream_options":null}',
    ):
        request = parse(CHAT, body)
        assert (request.streaming, request.most_tokens, request.choices) == (False, None, 1)
        assert request.asks_usage  # a whole answer always reports it
        assert request.accept == "application/json"
    assert not parse(CHAT, b'{"model":"m","stream":true}').asks_usage


@pytest.mark.parametrize(
    "members",
    ['"max_tokens":"9"', '"max_tokens":-1', '"n":true', '"n":[1]', '"stream_options":7', '"max_tokens":1e99'],
)
def test_what_only_the_upstream_uses_is_for_it_to_refuse(members):
    request = parse(CHAT, f'{{"model":"m","stream":true,{members}}}'.encode())
    assert (request.most_tokens, request.choices, request.asks_usage) == (None, 1, False)


@pytest.mark.parametrize(
    ("prompt", "choices"), [('"a"', 2), ('["a","b","c"]', 6), ("[[1,2],[3]]", 4), ("[1,2,3]", 2), ("[]", 2)]
)
def test_every_prompt_has_its_choices(prompt, choices):
    assert parse(TEXT, f'{{"model":"m","n":2,"prompt":{prompt}}}'.encode()).choices == choices


def test_embeddings_are_never_a_stream():
    request = parse(EMBEDDINGS, b'{"model":"m","input":["a"],"stream":true}')
    assert (request.streaming, request.generates) == (False, False)
    assert parse(CHAT, b'{"model":"m"}').generates


def test_an_image_costs_no_tokens_for_each_of_its_bytes():
    url = "data:image/png;base64," + "A" * 700_000
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    assert 1000 < parse(CHAT, body).input_estimate < 3000


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{}", "model: Field required"),
        (b'{"model":null}', "model: Input should be a valid string"),
        (b'{"model":["m"]}', "model: Input should be a valid string"),
        (b'{"model":"m","stream":"yes"}', "stream: Input should be a valid boolean"),
        (b"[]", "The request body must be a JSON object"),
        (b'"model"', "The request body must be a JSON object"),
    ],
)
def test_a_refusal_names_the_member(body, message):
    assert refusal(body) == message


@pytest.mark.parametrize("body", [b"", b"{", b'{"model":"m"', b'{"model":"m"}x', b"model=m", b"\xff{}"])
def test_what_is_no_json_is_refused(body):
    assert refusal(body).startswith("The request body is not valid JSON")


@pytest.mark.parametrize("nested", [b"[" * 5000 + b"]" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_depth_has_an_end(nested):
    assert "nested deeper" in refusal(b'{"model":"m","messages":%b}' % nested)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model":"a","model":"b"}', "model"),
        (b'{"model":"a","model":"a"}', "model"),
        (b'{"model":"a","mod\\u0065l":"b"}', "model"),
        (b'{"stream":12,"model":"m","stream":1}', "stream"),
        (b'{"n":1,"model":"m","n":12}', "n"),
        (b'{"x":{"a":1,"b":2},"model":"m","x":{"a":1}}', "x"),
        (b'{"x":{"a":1},"model":"m","x":{"a":1,"model":"b"}}', "x"),
        (b'{"x":[1,"model"],"model":"m","x":2}', "x"),
        # the last `x` is as long as the first one's beginning, behind which a nested `model` follows
        (b'{"x":{"aaaa":1,"model":"z"},"model":"m","x":"1234567"}', "x"),
    ],
)
def test_a_member_that_is_given_twice_is_refused(body, name):
    assert refusal(body) == f"{name}: Given more than once"


# --- The body ------------------------------------------------------------------------------------


def test_the_body_passes_as_it_came():
    body = b' {"x": 1.0,\r\n "model" : "m\\u006f", "s":"\\ud800", "x2":1e400,"messages":[{"model":"m"}]} '
    request = parse(CHAT, body)
    assert request.model == "mo"
    assert request.body is body
    assert request.sent_as("mo") is request


def test_half_a_surrogate_moves_nothing():
    body = b'{"a":"\\ud83d","model":"m","b":"\\ud83d\\ude00 \\\\ud83d"}'
    assert parse(CHAT, body).sent_as("x").body == body.replace(b'"m"', b'"x"')


def test_only_the_name_of_the_model_is_replaced():
    body = b'{"messages":[{"model":"m"}], "model" : "m" , "metadata":{"model":"m"}}'
    request = parse(CHAT, body).sent_as('a"é')
    assert request.model == 'a"é'
    assert request.sent_as("m").body == body
    assert request.body == (
        b'{"messages":[{"model":"m"}], "model" : "a\\"\xc3\xa9" , "metadata":{"model":"m"}}'
    )


@given(
    before=st.dictionaries(st.sampled_from(["messages", "a", "models", "Model"]), JSON, max_size=3),
    after=st.dictionaries(st.sampled_from(["tools", "b", "mode", "x\\"]), JSON, max_size=3),
    spaces=st.lists(SPACE, min_size=4, max_size=4),
    names=st.tuples(st.text(max_size=6), st.text(max_size=6)),
    ascii_only=st.booleans(),
)
def test_whatever_stands_around_the_model_stays(before, after, spaces, names, ascii_only):
    def members(of):
        return json.dumps(of, ensure_ascii=ascii_only)[1:-1].encode()

    def body(name):
        model = json.dumps(name, ensure_ascii=False).encode()
        middle = b'"model"%b:%b%b%b' % (spaces[0], spaces[1], model, spaces[2])
        pieces = [piece for piece in (members(before), middle, members(after)) if piece]
        return spaces[3] + b"{" + b",".join(pieces) + b"}"

    ours, theirs = names
    changed = parse(CHAT, body(ours)).sent_as(theirs).body
    assert json.loads(changed) == {**before, "model": theirs, **after}
    if theirs.isprintable():  # two encoders agree about those
        assert changed == body(theirs)
