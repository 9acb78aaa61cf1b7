"""Both generations of the API and every SDK of them: the same request upstream, whatever stands around it.

`anthropic-version` and `anthropic-beta` choose nothing here, and a key is whatever the client has: the raw
requests show that. The SDKs show which fields arrive, each compared with the whole body that the upstream got.
"""

from __future__ import annotations

import http.client
import json

import pytest

from clients.posting import post

pytestmark = pytest.mark.timeout(120)

VERSIONS = {
    "2023-06-01": [("anthropic-version", "2023-06-01")],
    "2026-10-21": [("anthropic-version", "2026-10-21")],
    "missing": [],
    "unknown": [("anthropic-version", "2031-02-29")],
}
KEY = "sk-ant-api03-the-clients-own-key"
KEYS = {
    "x-api-key": [("x-api-key", KEY)],
    "bearer": [("authorization", f"Bearer {KEY}")],
    "both": [("x-api-key", KEY), ("authorization", f"Bearer {KEY}")],
    "none": [],
}
BETAS = {
    "unknown": [("anthropic-beta", "never-heard-of-2099-01-01")],
    "one-line": [("anthropic-beta", "oauth-2025-04-20,interleaved-thinking-2025-05-14, x-2099-01-01")],
    "lines": [("anthropic-beta", "oauth-2025-04-20"), ("anthropic-beta", "x-1"), ("Anthropic-Beta", "x-2")],
    "empty": [("anthropic-beta", "")],
}
PATHS = ["/v1/messages", "/v1/messages?beta=true", "/llm/v1/messages?beta=true&x=1"]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ACCOUNT = "user_5f1c_account_aa-bb_session_cc-dd"


def ask(content="hi", **fields):
    turns = [{"role": "user", "content": content}]
    return {"model": "reasoning", "max_tokens": 200, "messages": turns, **fields}


# --- Raw requests --------------------------------------------------------------------------------


def assert_the_same(recorded, headers, path="/v1/messages"):
    """200, streaming and not, and the upstream gets the bytes that it gets without any of these headers."""
    bare = post(recorded.base_url, ask())
    whole = post(recorded.base_url, ask(), headers, path=path)
    stream = post(recorded.base_url, ask(stream=True), headers, path=path)
    assert [answer.status for answer in (bare, whole, stream)] == [200, 200, 200]
    assert whole.json["content"] == bare.json["content"] == [{"type": "text", "text": "ok"}]
    assert stream.events[0]["type"] == "message_start"
    assert stream.events[-1]["type"] == "message_stop"
    requests = recorded.upstream.requests
    assert len({request.body for request in requests}) == 1
    assert {request.path for request in requests} == {"/v1/chat/completions"}
    for request in requests:
        assert request.headers == requests[0].headers
        assert not {"authorization", "x-api-key"} & request.headers.keys()
        assert not any(name.startswith("anthropic") for name in request.headers)
        assert KEY not in json.dumps(request.headers)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_any_version_with_any_key(recorded, version, key):
    assert_the_same(recorded, [*version, *key])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("betas", BETAS.values(), ids=BETAS)
def test_any_betas_at_any_path(recorded, betas, path):
    assert_the_same(recorded, [*VERSIONS["2026-10-21"], *KEYS["bearer"], *betas], path)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_sampling_fields_of_the_older_version_pass_in_both(recorded, version):
    answer = post(recorded.base_url, ask(temperature=0.25, top_p=0.5), version)
    assert answer.status == 200
    sent = recorded.upstream.requests[-1].json
    assert (sent["temperature"], sent["top_p"]) == (0.25, 0.5)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_the_other_routes_take_them_too(recorded, version, key):
    headers = [*version, *key, *BETAS["lines"]]
    question = ask()
    del question["max_tokens"]
    counted = post(recorded.base_url, question, headers, path="/v1/messages/count_tokens?beta=true")
    assert counted.status == 200
    assert counted.json["input_tokens"] > 0
    connection = http.client.HTTPConnection(recorded.base_url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", "/v1/models?beta=true", headers=dict(headers))
        listed = connection.getresponse()
        body = json.loads(listed.read())
    finally:
        connection.close()
    assert (listed.status, type(body["data"])) == (200, list)
    assert recorded.upstream.requests == []


# --- The SDKs, field by field --------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/place"}]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1}},
    },
    "required": ["city"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}}},
}
WEATHER = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
TIME = {
    "name": "time",
    "input_schema": {"type": "object", "properties": {}},
    "cache_control": {"type": "ephemeral"},
}
FUNCTIONS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA},
    },
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
LINKED = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
SENT_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
SENT_LINK = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
BODY = {
    "model": "reasoning",
    "max_tokens": 200,
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "hi"}],
}
FIELDS = {
    "nothing": ({}, {}),
    "system-text": (
        {"system": "Be short."},
        {"messages": [{"role": "system", "content": "Be short."}, *BODY["messages"]]},
    ),
    "system-blocks": (
        {
            "system": [
                {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."},
            ]
        },
        {"messages": [{"role": "system", "content": "Be short.\n\nBe kind."}, *BODY["messages"]]},
    ),
    "images": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look:"}, IMAGE, LINKED]}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Look:"}, SENT_IMAGE, SENT_LINK]}
            ]
        },
    ),
    "tools": ({"tools": [WEATHER, TIME]}, {"tools": FUNCTIONS}),
    "choice-auto": (
        {"tools": [WEATHER, TIME], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tools": FUNCTIONS, "tool_choice": "auto", "parallel_tool_calls": False},
    ),
    "choice-any": (
        {"tools": [WEATHER, TIME], "tool_choice": {"type": "any"}},
        {"tools": FUNCTIONS, "tool_choice": "required"},
    ),
    "choice-tool": (
        {"tools": [WEATHER, TIME], "tool_choice": {"type": "tool", "name": "time"}},
        {"tools": FUNCTIONS, "tool_choice": {"type": "function", "function": {"name": "time"}}},
    ),
    "choice-none": (
        {"tools": [WEATHER, TIME], "tool_choice": {"type": "none"}},
        {"tools": FUNCTIONS, "tool_choice": "none"},
    ),
    "stop-sequences": ({"stop_sequences": ["END", "\n\nHuman:"]}, {"stop": ["END", "\n\nHuman:"]}),
    # This upstream has no dial for it: nothing is sent.
    "thinking": (
        {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"max_tokens": 2000},
    ),
    "metadata": ({"metadata": {"user_id": ACCOUNT}}, {}),
    "tool-loop": (
        {
            "tools": [WEATHER],
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Zug"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "call_1",
                            "content": [{"type": "text", "text": "rain"}],
                        },
                        {"type": "text", "text": "And now?"},
                    ],
                },
            ],
        },
        {
            "tools": FUNCTIONS[:1],
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city":"Zug"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
                {"role": "user", "content": "And now?"},
            ],
        },
    ),
}


def compact(body):
    """Arguments are JSON in a string, and an SDK may put spaces into it: compare what they say."""
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(
                json.loads(call["function"]["arguments"]), separators=(",", ":")
            )
    return body


def assert_sent(sdk, recorded, how, fields, expected):
    answer = getattr(sdk, how)(recorded.base_url, ask() | fields)
    assert "error" not in answer, answer
    (request,) = recorded.upstream.requests
    assert compact(request.json) == BODY | expected
    everything = json.dumps([request.headers, request.json])
    assert not [
        word for word in ("test-key", ACCOUNT, "anthropic", "stainless") if word in everything.lower()
    ]


@pytest.mark.parametrize(("fields", "expected"), FIELDS.values(), ids=FIELDS)
def test_each_field_alone(sdk, recorded, fields, expected):
    assert_sent(sdk, recorded, "create", fields, expected)


@pytest.mark.parametrize("how", ["stream", "create"])
def test_all_fields_together(sdk, recorded, how):
    names = ("images", "choice-auto", "stop-sequences", "thinking", "metadata")
    fields, expected = {}, {}
    for name in names:
        given, sent = FIELDS[name]
        fields |= given
        expected |= sent
    fields["system"] = FIELDS["system-blocks"][0]["system"]
    expected["messages"] = [{"role": "system", "content": "Be short.\n\nBe kind."}, *expected["messages"]]
    assert_sent(sdk, recorded, how, fields, expected)


@pytest.mark.parametrize("how", ["stream", "create"])
def test_sampling_of_the_sdks_that_have_it(sdk, recorded, how):
    sampling = {"temperature": 0.0, "top_p": 0.5}
    if sdk.language == "python" and sdk.major != "0":
        # Gone from their signatures; their users pass it on by hand.
        assert_sent(sdk, recorded, how, {"extra_body": sampling}, sampling)
    else:
        assert_sent(sdk, recorded, how, sampling, sampling)
