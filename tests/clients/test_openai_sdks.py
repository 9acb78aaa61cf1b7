"""The official OpenAI SDK for Python, 1.x, 2.x and 3.x, against a live gateway.

Every test runs once for each major. What passes through must be what the upstream said, and every failure an
exception of the right class: no half answer may look whole.
"""

from __future__ import annotations

import json

import pytest

from clients import openai_driver
from live_gateway import wait_until
from recording_upstream import Answer, chunk, opens, sse

pytestmark = pytest.mark.timeout(120)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name}.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
WHOLE = {"content-type": "application/json"}


@pytest.fixture(scope="session", params=openai_driver.NAMES)
def openai_sdk(request):
    """One major in a process of its own."""
    if reason := openai_driver.missing(request.param):
        pytest.skip(reason)
    with openai_driver.OpenAISdk(request.param) as driver:
        yield driver


def ask(content, **fields):
    return {
        "model": "reasoning",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }


def answer_of(told):
    assert "error" not in told, told
    return told["answer"]


def folded(told):
    """The message of a stream, the reason to stop and the usage."""
    assert "error" not in told, told
    message, reason, usage, calls = {}, None, None, {}
    for each in told["chunks"]:
        usage = each.get("usage") or usage
        for choice in each["choices"]:
            reason = choice.get("finish_reason") or reason
            for name in ("content", "reasoning_content"):
                if choice["delta"].get(name):
                    message[name] = message.get(name, "") + choice["delta"][name]
            for call in choice["delta"].get("tool_calls") or []:
                name, arguments = calls.get(call["index"], ("", ""))
                function = call["function"]
                calls[call["index"]] = (
                    name + (function.get("name") or ""),
                    arguments + (function.get("arguments") or ""),
                )
    return message, reason, usage, list(calls.values())


def calls_of(message):
    return [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])
    ]


# --- Answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_body",
    [
        ask("hi"),
        ask("hi", max_tokens=5),
        ask("hi", stop=["scripted model"]),
        ask('call weather {"city": "Zürich"}\ncall time {"city": "B 🌞"}', tools=TOOLS),
    ],
    ids=["text", "cut", "stop", "tools"],
)
def test_the_stream_says_what_the_answer_without_streaming_says(openai_sdk, scripted, request_body):
    message, reason, usage, calls = folded(
        openai_sdk.stream(scripted.base_url, request_body | {"stream_options": {"include_usage": True}})
    )
    whole = answer_of(openai_sdk.chat(scripted.base_url, request_body))
    (choice,) = whole["choices"]
    assert message == {
        name: choice["message"][name]
        for name in ("content", "reasoning_content")
        if choice["message"].get(name)
    }
    assert calls == calls_of(choice["message"])
    assert reason == choice["finish_reason"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]  # the prompts differ by a member


def test_an_answer_comes_with_this_gateways_id_and_is_recorded(openai_sdk, scripted):
    told = openai_sdk.chat(scripted.base_url, ask("hi"))
    usage = answer_of(told)["usage"]
    assert told["request_id"].startswith("req_")

    def records():
        return [each for each in scripted.gateway.records() if each["request_id"] == told["request_id"]]

    (record,) = wait_until(records, "record of the exchange")
    assert (record["cause"], record["status"], record["model"]) == ("finished", 200, "reasoning")
    assert (record["input_tokens"], record["output_tokens"]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def test_a_tool_loop(openai_sdk, scripted):
    question = ask('call weather {"city": "Zürich"}', tools=TOOLS)
    (choice,) = answer_of(openai_sdk.chat(scripted.base_url, question))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    turns = [
        *question["messages"],
        choice["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
    ]
    message, reason, _, _ = folded(openai_sdk.stream(scripted.base_url, question | {"messages": turns}))
    assert message["content"] == 'The tool said "sunny", and that is the answer.'
    assert reason == "stop"


def test_models_are_listed(openai_sdk, scripted):
    assert "reasoning" in openai_sdk.models(scripted.base_url)["models"]


# --- What the upstream gets ----------------------------------------------------------------------


def test_members_that_nobody_knows_reach_the_upstream(openai_sdk, recorded):
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "model_": "x", "metadata": {"model": "y"}}
    openai_sdk.stream(recorded.base_url, ask("hi", extra_body=extra, seed=7))
    (request,) = recorded.upstream.requests
    assert request.path == "/v1/chat/completions"
    assert request.json == ask("hi", stream=True, seed=7, **extra)


def test_the_clients_key_and_headers_stay_here(openai_sdk, recorded):
    openai_sdk.stream(recorded.base_url, ask("hi", extra_headers={"x-secret": "test-key"}))
    (request,) = recorded.upstream.requests
    assert "test-key" not in json.dumps(request.headers)
    assert [name for name in request.headers if name.startswith(("openai", "x-"))] == []


def test_text_completions_pass(openai_sdk, recorded):
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "text": " there", "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    recorded.upstream.answer = Answer(body=json.dumps(body).encode(), headers=WHOLE)
    answer = answer_of(openai_sdk.complete(recorded.base_url, {"model": "reasoning", "prompt": "hi"}))
    assert answer["choices"][0]["text"] == " there"
    assert recorded.upstream.requests[0].path == "/v1/completions"


def test_embeddings_pass(openai_sdk, recorded):
    body = {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    recorded.upstream.answer = Answer(body=json.dumps(body).encode(), headers=WHOLE)
    request = {"model": "reasoning", "input": ["hi"], "encoding_format": "float"}
    answer = answer_of(openai_sdk.embed(recorded.base_url, request))
    assert answer["data"][0]["embedding"] == [0.5, -0.25]
    (recorded_request,) = recorded.upstream.requests
    assert (recorded_request.path, recorded_request.json) == ("/v1/embeddings", request)


# --- Failures ------------------------------------------------------------------------------------

REFUSALS = {
    "[[status=429,retry_after=3]]": ("RateLimitError", 429, "3"),
    "[[status=503,retry_after=7]]": ("InternalServerError", 503, "7"),
    "[[status=400]]": ("BadRequestError", 400, None),
    "[[status=404]]": ("NotFoundError", 404, None),
    # The upstream refused the gateway's own key: not the client's mistake.
    "[[status=401]]": ("InternalServerError", 502, None),
    "[[status=500]]": ("InternalServerError", 500, None),
}


@pytest.mark.parametrize("how", ["stream", "chat"])
@pytest.mark.parametrize("marker", REFUSALS)
def test_an_upstreams_refusal_is_the_right_exception(openai_sdk, scripted, marker, how):
    error = getattr(openai_sdk, how)(scripted.base_url, ask(marker))["error"]
    assert (error["class"], error["status"], error["retry_after"]) == REFUSALS[marker]
    assert "The simulator was told to fail." in error["message"]
    assert error["request_id"].startswith("req_")


def test_a_route_that_the_upstream_does_not_have(openai_sdk, scripted):
    error = openai_sdk.embed(scripted.base_url, {"model": "reasoning", "input": "hi"})["error"]
    assert (error["class"], error["status"]) == ("NotFoundError", 404)


def test_the_upstreams_words_pass(openai_sdk, recorded):
    said = {
        "message": "This model's maximum context length is 4096 tokens.",
        "type": "x",
        "code": "y",
        "param": "z",
    }
    recorded.upstream.answer = Answer.error(400, said)
    error = openai_sdk.chat(recorded.base_url, ask("hi"))["error"]
    assert {name: error[name] for name in said} == said
    assert error["class"] == "BadRequestError"


def test_a_bad_request_names_the_member(openai_sdk, recorded):
    error = openai_sdk.chat(recorded.base_url, ask("hi", model=7))["error"]
    assert (error["class"], error["status"], error["param"]) == ("BadRequestError", 400, "model")
    assert error["type"] == "invalid_request_error"
    assert recorded.upstream.requests == []


@pytest.mark.parametrize("fault", ["error_after", "cut_after", "reset_after"])
@pytest.mark.parametrize("frames", [6, 25], ids=["in-thinking", "in-text"])
def test_an_upstream_that_dies_in_the_middle_is_an_exception(openai_sdk, scripted, fault, frames):
    error = openai_sdk.stream(scripted.base_url, ask(f"[[{fault}={frames}]]"))["error"]
    assert error["class"] == "APIError"
    assert error["type"] == "server_error"


@pytest.mark.parametrize("fault", ["error_after", "cut_after", "reset_after"])
def test_without_streaming_it_is_an_honest_status(openai_sdk, scripted, fault):
    error = openai_sdk.chat(scripted.base_url, ask(f"[[{fault}=6]]"))["error"]
    assert error["class"] == "InternalServerError"
    assert error["status"] in (500, 502)


def test_half_a_whole_answer_is_no_answer(openai_sdk, recorded):
    recorded.upstream.answer = Answer(body=b'{"id":"chatcmpl-1","choices":[', headers=WHOLE, end="cut")
    error = openai_sdk.chat(recorded.base_url, ask("hi"))["error"]
    assert error["class"] == "APIConnectionError"


def test_half_a_frame_is_no_answer(openai_sdk, recorded):
    recorded.upstream.answer = Answer(body=sse(chunk({"content": "ok"})) + b'data: {"choices":[', end="cut")
    assert "error" in openai_sdk.stream(recorded.base_url, ask("hi"))


def test_half_a_tool_call_is_no_answer(openai_sdk, recorded):
    recorded.upstream.answer = Answer.dying(opens("call_1", "weather", '{"city":'))
    error = openai_sdk.stream(recorded.base_url, ask("hi"))["error"]
    assert error["class"] == "APIError"


def test_what_is_complete_is_no_failure_whatever_breaks_behind_it(openai_sdk, recorded):
    recorded.upstream.answer = Answer.dying(chunk({"content": "ok"}), chunk({}, "stop"), end="reset")
    message, reason, _, _ = folded(openai_sdk.stream(recorded.base_url, ask("hi")))
    assert (message, reason) == ({"content": "ok"}, "stop")


def test_done_ends_the_stream_while_the_upstreams_socket_stays_open(openai_sdk, recorded):
    body = sse(chunk({"content": "ok"}), chunk({}, "stop"), "[DONE]")
    recorded.upstream.answer = Answer(body=body, pause=5.0)
    message, _, _, _ = folded(openai_sdk.stream(recorded.base_url, ask("hi")))
    assert message == {"content": "ok"}


def test_a_client_that_leaves_the_stream_ends_the_work(openai_sdk, scripted):
    before = len(scripted.simulator.lines())
    assert openai_sdk.stream(scripted.base_url, ask("long", max_tokens=30_000), leave_after=8) == {
        "left": True
    }
    wait_until(lambda: len(scripted.simulator.lines()) > before, "end of the upstream's work")
    (line,) = scripted.simulator.lines()[before:]
    assert line.endswith("outcome=cancelled")
