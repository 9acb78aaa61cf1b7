"""The official SDKs, Python 0.x, 1.x and 2.x and TypeScript 0.x and 1.x, against a live gateway.

Every test runs once for each SDK. What an SDK folds from a stream must be what the gateway folds itself,
and every failure must be an exception of the right class: most SDKs take a cut stream for an answer.
"""

from __future__ import annotations

import json

import pytest

from live_gateway import wait_until
from recording_upstream import Answer, chunk, more, opens

pytestmark = pytest.mark.timeout(120)

TOOLS = [
    {
        "name": name,
        "description": f"The {name}.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    for name in ("weather", "time")
]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def ask(content, **fields):
    return {
        "model": "reasoning",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }


def message_of(answer):
    assert "error" not in answer, answer
    return answer["message"]


def without_ids(message):
    """A message as data: no ids, and none of the fields that only an SDK adds (they are null)."""
    if isinstance(message, dict):
        return {
            key: without_ids(value) for key, value in message.items() if key != "id" and value is not None
        }
    return [without_ids(each) for each in message] if isinstance(message, list) else message


# --- Answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_body",
    [
        ask("hi"),
        ask("hi", max_tokens=5),
        ask("hi", max_tokens=25),
        ask("hi", stop_sequences=["scripted model"]),
        ask("hi", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000),
        ask("hi", system="Be short."),
        ask('call weather {"city": "Zürich", "days": [1, {"at": "noon 🌞"}]}', tools=TOOLS),
        ask('call weather {"city": "A"}\ncall time {"city": "B"}\ncall weather {}', tools=TOOLS),
    ],
    ids=[
        "text",
        "cut-in-thinking",
        "cut-in-text",
        "stop-sequence",
        "thinking",
        "system",
        "tool",
        "three-tools",
    ],
)
def test_the_stream_folds_to_the_answer_without_streaming(sdk, scripted, request_body):
    streamed = message_of(sdk.stream(scripted.base_url, request_body))
    whole = message_of(sdk.create(scripted.base_url, request_body))
    assert streamed["id"] != whole["id"]
    assert without_ids(streamed) == without_ids(whole)


def test_thinking_and_text_arrive_as_blocks(sdk, scripted):
    answer = sdk.stream(scripted.base_url, ask("hi"))
    message = message_of(answer)
    thinking, text = message["content"]
    assert thinking["type"] == "thinking"
    assert thinking["thinking"].startswith("The user wrote something short")
    assert text["type"] == "text"
    assert text["text"].startswith("Hello! I am a scripted model")
    assert message["stop_reason"] == "end_turn"
    assert message["model"] == "reasoning"
    assert message["usage"]["output_tokens"] == 35
    assert answer["events"].count("content_block_stop") == 2
    assert answer["events"][-1] == "message_stop"


@pytest.mark.parametrize("how", ["stream", "create"])
def test_a_limit_and_a_stop_sequence_say_why_they_ended(sdk, scripted, how):
    run = getattr(sdk, how)
    assert message_of(run(scripted.base_url, ask("hi", max_tokens=20)))["stop_reason"] == "max_tokens"
    stopped = message_of(run(scripted.base_url, ask("hi", stop_sequences=["never", "scripted"])))
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "scripted")
    assert stopped["content"][-1]["text"] == "Hello! I am a "


@pytest.mark.parametrize("how", ["stream", "create"])
def test_a_tool_loop(sdk, scripted, how):
    run = getattr(sdk, how)
    question = ask('call weather {"city": "Zürich"}\ncall time {"city": "Genève"}', tools=TOOLS)
    called = message_of(run(scripted.base_url, question))
    assert called["stop_reason"] == "tool_use"
    calls = [block for block in called["content"] if block["type"] == "tool_use"]
    assert [(call["name"], call["input"]) for call in calls] == [
        ("weather", {"city": "Zürich"}),
        ("time", {"city": "Genève"}),
    ]
    results = [
        {"type": "tool_result", "tool_use_id": calls[0]["id"], "content": "sunny"},
        {"type": "tool_result", "tool_use_id": calls[1]["id"], "content": [{"type": "text", "text": "noon"}]},
    ]
    turns = [
        *question["messages"],
        {"role": "assistant", "content": called["content"]},
        {"role": "user", "content": results},
    ]
    answer = message_of(run(scripted.base_url, question | {"messages": turns}))
    assert answer["content"][-1]["text"] == 'The tool said "noon", and that is the answer.'
    assert answer["stop_reason"] == "end_turn"


# --- Requests ------------------------------------------------------------------------------------


def test_the_upstream_gets_every_field_of_a_request(sdk, recorded):
    recorded.upstream.script = [
        Answer.of(
            chunk({"reasoning_content": "I look."}),
            opens("call_1", "weather", '{"city":'),
            more(' "Zug"}'),
            chunk({}, "tool_calls"),
            "[DONE]",
        )
    ]
    image = [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    ]
    first = ask(
        image, system=[{"type": "text", "text": "Be short."}], tools=TOOLS, tool_choice={"type": "any"}
    )
    called = message_of(sdk.stream(recorded.base_url, first))
    thinking, tool_use = called["content"]
    turns = [
        *first["messages"],
        {"role": "assistant", "content": [thinking, tool_use]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": tool_use["id"], "content": "rain", "is_error": False},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    second = first | {"messages": turns, "stop_sequences": ["END"], "tool_choice": {"type": "auto"}}
    message_of(sdk.create(recorded.base_url, second))

    asked, asked_again = (request.json for request in recorded.upstream.requests)
    assert asked["model"] == "reasoning"
    assert asked["max_tokens"] == 200
    assert asked["stream"] is True
    assert asked["stream_options"]["include_usage"] is True
    assert asked["tool_choice"] == "required"
    assert asked["tools"] == [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            },
        }
        for tool in TOOLS
    ]
    user = {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        ],
    }
    assert asked["messages"] == [{"role": "system", "content": "Be short."}, user]
    assert asked_again["stop"] == ["END"]
    assert asked_again["tool_choice"] == "auto"
    system, same_user, assistant, tool, follow_up = asked_again["messages"]
    assert [system, same_user] == asked["messages"]
    (sent,) = assistant["tool_calls"]
    assert (sent["id"], sent["type"], sent["function"]["name"]) == ("call_1", "function", "weather")
    assert json.loads(sent["function"]["arguments"]) == {"city": "Zug"}
    assert assistant["reasoning_content"] == "I look."
    assert tool == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    assert follow_up == {"role": "user", "content": "And now?"}


def test_tokens_are_counted_without_inference(sdk, scripted):
    question = ask("hi", tools=TOOLS)
    del question["max_tokens"]
    longer = question | {"messages": [{"role": "user", "content": "hi " * 100}]}
    before = len(scripted.simulator.lines())
    counted = [sdk.count(scripted.base_url, body)["input_tokens"] for body in (question, longer)]
    assert 0 < counted[0] < counted[1]
    assert len(scripted.simulator.lines()) == before


@pytest.mark.parametrize("page", [{}, {"limit": 1}], ids=["one-page", "a-page-each"])
def test_models_are_listed(sdk, scripted, page):
    models = sdk.models(scripted.base_url, page)["models"]
    assert "reasoning" in models
    assert len(models) == len(set(models))


def test_the_clients_key_and_headers_stay_here(sdk, recorded):
    message_of(sdk.create(recorded.base_url, ask("hi")))
    (request,) = recorded.upstream.requests
    assert "test-key" not in json.dumps(request.headers)
    assert [name for name in request.headers if name.startswith(("anthropic", "x-"))] == []


# --- Failures ------------------------------------------------------------------------------------

REFUSALS = {
    "[[status=429,retry_after=3]]": ("RateLimitError", 429, "rate_limit_error", "3"),
    "[[status=503,retry_after=7]]": ("OverloadedError", 529, "overloaded_error", "7"),
    "[[status=529]]": ("OverloadedError", 529, "overloaded_error", None),
    "[[status=400]]": ("BadRequestError", 400, "invalid_request_error", None),
    # The upstream refused the gateway's own key: not the client's mistake.
    "[[status=401]]": ("InternalServerError", 502, "api_error", None),
    "[[status=500]]": ("InternalServerError", 500, "api_error", None),
}


@pytest.mark.parametrize("how", ["stream", "create"])
@pytest.mark.parametrize("marker", REFUSALS)
def test_an_upstreams_refusal_is_the_right_exception(sdk, scripted, marker, how):
    error = getattr(sdk, how)(scripted.base_url, ask(marker))["error"]
    name, *expected = REFUSALS[marker]
    if name == "OverloadedError" and sdk.name == "typescript-0":
        name = "InternalServerError"  # the one SDK without a class for 529
    assert error["class"] == name
    assert [error["status"], error["type"], error["retry_after"]] == expected
    assert error["request_id"].startswith("req_")


def test_a_prompt_that_is_too_long_is_said_in_the_words_that_clients_know(sdk, recorded):
    said = "This model's maximum context length is 4096 tokens. However, you requested 31100 tokens in the messages."
    recorded.upstream.answer = Answer.error(400, {"message": said, "type": "BadRequestError", "code": 400})
    error = sdk.stream(recorded.base_url, ask("hi"))["error"]
    assert (error["class"], error["status"], error["type"]) == (
        "BadRequestError",
        400,
        "invalid_request_error",
    )
    assert error["message"] == "prompt is too long: 31100 tokens > 4096 maximum"


@pytest.mark.parametrize("how", ["stream", "create"])
def test_a_model_that_the_upstream_does_not_have(sdk, recorded, how):
    said = {"message": "The model `reasoning` does not exist.", "type": "NotFoundError", "code": 404}
    recorded.upstream.answer = Answer.error(404, said)
    error = getattr(sdk, how)(recorded.base_url, ask("hi"))["error"]
    assert (error["class"], error["status"], error["type"]) == ("NotFoundError", 404, "not_found_error")
    assert error["message"] == said["message"]


def test_a_bad_request_names_the_field(sdk, recorded):
    turns = [{"role": "user", "content": "hi"}, {"role": "wizard", "content": "hi"}]
    error = sdk.create(recorded.base_url, ask("hi") | {"messages": turns})["error"]
    assert (error["class"], error["status"]) == ("BadRequestError", 400)
    assert error["message"].startswith("messages.1.role: ")
    assert recorded.upstream.requests == []


@pytest.mark.parametrize("fault", ["error_after", "cut_after", "reset_after"])
@pytest.mark.parametrize("frames", [6, 25], ids=["in-thinking", "in-text"])
def test_an_upstream_that_dies_in_the_middle_is_an_exception(sdk, scripted, fault, frames):
    error = sdk.stream(scripted.base_url, ask(f"[[{fault}={frames}]]"))["error"]
    expected = ("APIStatusError", 200) if sdk.language == "python" else ("APIError", None)
    assert (error["class"], error["status"], error["type"]) == (*expected, "api_error")


@pytest.mark.parametrize("fault", ["error_after", "cut_after", "reset_after"])
def test_without_streaming_it_is_an_honest_status(sdk, scripted, fault):
    error = sdk.create(scripted.base_url, ask(f"[[{fault}=6]]"))["error"]
    assert (error["class"], error["type"]) == ("InternalServerError", "api_error")
    assert error["status"] in (500, 502)


def test_a_client_that_leaves_the_stream_ends_the_work(sdk, scripted):
    before = len(scripted.simulator.lines())
    assert sdk.stream(scripted.base_url, ask("long", max_tokens=30_000), leave_after=8) == {"left": True}
    wait_until(lambda: len(scripted.simulator.lines()) > before, "end of the upstream's work")
    (line,) = scripted.simulator.lines()[before:]
    assert line.endswith("outcome=cancelled")
