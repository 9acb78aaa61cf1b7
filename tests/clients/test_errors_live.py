"""Whatever an upstream says when it fails, a client hears an honest error, and nothing of the inside.

Every status and every shape of a body, before the first byte and after it, through a real gateway. What the
upstream says has an address, a path and keys in it: none may reach the client, the rest of the words must.
"""

from __future__ import annotations

import json

import pytest

from antiphon.core.faults import FINISH, STATUS
from clients.posting import post
from recording_upstream import Answer, chunk, sse

pytestmark = pytest.mark.timeout(120)

# What must not be seen. Each has another form.
PLANTED = (
    "sk-live-9f8e7d6c5b4a39281706",
    "hunter2hunter2",
    "10.77.3.4",
    "gpu-7.cluster.local",
    "9000",
    "/srv/models",
    "internal-route",
    "eyJhbGciOiJIUzI1NiJ9",
)
KEPT = "quixotic"
SAID = (
    f"The model is {KEPT}: http://10.77.3.4:8000/internal-route failed on gpu-7.cluster.local:9000 "
    "for sk-live-9f8e7d6c5b4a39281706 (authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln, "
    "password=hunter2hunter2) in /srv/models/a.gguf"
)
HEADERS = {
    "server": "gpu-7.cluster.local",
    "set-cookie": "route=10.77.3.4",
    "via": "1.1 gpu-7.cluster.local",
    "x-request-id": "internal-route-1",
    "location": "http://10.77.3.4:8000/internal-route",
}

# Upstream's status -> the client's, with the error's type. Other 4xx are like 400, other 5xx like 502.
EXPECTED = {
    401: (502, "api_error"),
    402: (402, "billing_error"),
    403: (502, "api_error"),
    404: (404, "not_found_error"),
    405: (502, "api_error"),
    407: (502, "api_error"),
    408: (504, "timeout_error"),
    409: (409, "conflict_error"),
    410: (404, "not_found_error"),
    413: (413, "request_too_large"),
    429: (429, "rate_limit_error"),
    499: (502, "api_error"),
    500: (500, "api_error"),
    503: (529, "overloaded_error"),
    504: (504, "timeout_error"),
    522: (504, "timeout_error"),
    524: (504, "timeout_error"),
    529: (529, "overloaded_error"),
}
HOPELESS = {401, 403, 405, 407, 501}  # no retry helps: SDKs are told so


def expected(status):
    ordinary = (400, "invalid_request_error") if status < 500 else (502, "api_error")
    return EXPECTED.get(status, ordinary)


def encoded(value):
    return json.dumps(value).encode()


# Shape -> the body for a status. What says nothing of a model is at 404 a wrong path.
SHAPES = {
    "nested": lambda status: encoded({"error": {"message": SAID, "type": "some_error", "code": None}}),
    "nested-code": lambda status: encoded({"error": {"message": SAID, "code": status}}),
    "error-text": lambda status: encoded({"error": SAID}),
    "flat": lambda status: encoded({"object": "error", "message": SAID, "type": "Error", "code": status}),
    "anthropic": lambda status: encoded({"type": "error", "error": {"type": "some_error", "message": SAID}}),
    "detail": lambda status: encoded({"detail": SAID}),
    "detail-list": lambda status: encoded({"detail": [{"loc": ["body", "model"], "msg": SAID, "type": "x"}]}),
    "array": lambda status: encoded([{"error": {"message": SAID, "code": status, "status": "SOME"}}]),
    "base-resp": lambda status: encoded({"base_resp": {"status_code": 1000, "status_msg": SAID}}),
    "json-in-json": lambda status: encoded(
        {
            "error": {
                "message": "Provider returned error",
                "code": status,
                "metadata": {"raw": json.dumps({"error": {"message": SAID}})},
            }
        }
    ),
    "json-text": lambda status: encoded(SAID),
    "cut-json": lambda status: encoded({"error": {"message": SAID, "body": "x" * 50}})[:-30],
    "frame": lambda status: sse(json.dumps({"error": {"message": SAID}})),
    "text": lambda status: SAID.encode(),
    "latin-1": lambda status: (SAID + " \N{LATIN SMALL LETTER E WITH ACUTE}").encode("latin-1"),
    "html": lambda status: f"<html><head><title>{SAID}</title></head><body>{SAID}</body></html>".encode(),
    "empty": lambda status: b"",
    "noise": lambda status: bytes(range(256)),
}
WORDLESS = {"empty", "noise"}


def ask(**fields):
    turns = [{"role": "user", "content": "hi"}]
    return {"model": "reasoning", "max_tokens": 20, "messages": turns, **fields}


def assert_nothing_leaks(recorded, answer):
    everything = answer.body.decode() + str(answer.headers)
    own = ("127.0.0.1", f":{recorded.upstream.server_port}", "Traceback", "Errno")
    assert [word for word in (*PLANTED, *own) if word in everything] == []
    assert not {"server", "set-cookie", "via", "location", "x-request-id"} & {
        name.lower() for name in answer.headers
    }


def assert_error(recorded, answer, status, kind):
    """The form that every error has. Returns its message."""
    assert (answer.status, answer.json["error"]["type"]) == (status, kind), answer.body
    assert answer.json.keys() == {"type", "error", "request_id"}
    assert answer.json["type"] == "error"
    assert answer.json["error"].keys() == {"type", "message"}
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["request-id"] == answer.json["request_id"]
    assert answer.json["request_id"].startswith("req_")
    message = answer.json["error"]["message"]
    assert message.strip()
    assert_nothing_leaks(recorded, answer)
    return message


# --- Before the first byte: HTTP -----------------------------------------------------------------


def assert_refusal(recorded, status, shape, *, streaming):
    recorded.upstream.answer = Answer(status, SHAPES[shape](status), HEADERS | {"retry-after": "7"})
    answer = post(recorded.base_url, ask(stream=streaming))
    # A 404 that says nothing of a model is about a path, and that is not the client's mistake.
    wrong_path = status in (404, 410) and shape in WORDLESS | {"html"}
    wanted = (502, "api_error") if wrong_path else expected(status)
    message = assert_error(recorded, answer, *wanted)
    if shape not in WORDLESS:
        assert KEPT in message
    hopeless = wrong_path or status in HOPELESS
    worth_waiting = not hopeless and (wanted[0] == 429 or wanted[0] >= 500)
    assert answer.headers["retry-after"] == ("7" if worth_waiting else None)
    assert answer.headers["x-should-retry"] == ("false" if hopeless else None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("status", sorted({*STATUS, 418, 451, 507, 520, 599}))
def test_a_refusal(recorded, status, shape):
    assert_refusal(recorded, status, shape, streaming=len(shape) % 2 == 0)


@pytest.mark.parametrize("hundred", [400, 500])
def test_every_status_there_is(recorded, hundred):
    for status in range(hundred, hundred + 100):
        assert_refusal(recorded, status, "nested", streaming=status % 2 == 0)


WAITS = {
    "seconds": ({"retry-after": "7"}, "7"),
    "milliseconds-first": ({"retry-after": "7", "retry-after-ms": "1200"}, "2"),
    "date": ({"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}, "Wed, 21 Oct 2099 07:28:00 GMT"),
    "length": ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0"}, "360"),
    "none": ({}, None),
    "nonsense": ({"retry-after": "soon at 10.77.3.4"}, None),
}


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "create"])
@pytest.mark.parametrize(("given", "told"), WAITS.values(), ids=WAITS)
def test_how_long_to_wait_is_kept(recorded, given, told, streaming):
    recorded.upstream.answer = Answer(429, SHAPES["nested"](429), HEADERS | given)
    answer = post(recorded.base_url, ask(stream=streaming))
    assert_error(recorded, answer, 429, "rate_limit_error")
    assert answer.headers["retry-after"] == told


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_nowhere(recorded, status):
    recorded.upstream.answer = Answer(status, b"", HEADERS)
    answer = post(recorded.base_url, ask())
    message = assert_error(recorded, answer, 502, "api_error")
    assert "redirects" in message
    assert len(recorded.upstream.requests) == 1


OVERFLOWS = {
    "vllm": (
        400,
        {
            "error": {
                "message": "This model's maximum context length is 4096 tokens. However, your request has 31100 input tokens.",
                "type": "BadRequestError",
                "code": 400,
            }
        },
    ),
    "llamacpp": (
        400,
        {
            "error": {
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
                "code": 400,
                "n_prompt_tokens": 31100,
                "n_ctx": 4096,
            }
        },
    ),
    "sglang": (
        400,
        {
            "object": "error",
            "message": "The input (31100 tokens) is longer than the model's context length (4096 tokens).",
            "code": 400,
        },
    ),
    "gemini": (
        400,
        [
            {
                "error": {
                    "message": "The input token count (31100) exceeds the maximum number of tokens allowed (4096).",
                    "code": 400,
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    "openai": (
        400,
        {
            "error": {
                "message": "This model's maximum context length is 4096 tokens. However, your messages resulted in 31100 tokens.",
                "code": "context_length_exceeded",
            }
        },
    ),
    "as-a-500": (
        500,
        {"error": "The input (31100 tokens) is longer than the model's context length (4096 tokens)."},
    ),
}


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "create"])
@pytest.mark.parametrize(("status", "said"), OVERFLOWS.values(), ids=OVERFLOWS)
def test_an_overflow_has_the_words_that_clients_act_on(recorded, status, said, streaming):
    recorded.upstream.answer = Answer(status, encoded(said), HEADERS)
    answer = post(recorded.base_url, ask(stream=streaming))
    message = assert_error(recorded, answer, 400, "invalid_request_error")
    assert message == "prompt is too long: 31100 tokens > 4096 maximum"


# --- Inside a 200 --------------------------------------------------------------------------------


def problem(**members):
    return json.dumps({"error": {"message": SAID} | members})


# A frame of a stream -> the status and the type that it stands for.
FRAMES = {
    "object": (sse(problem()), 502, "api_error"),
    "code-400": (sse(problem(code=400)), 400, "invalid_request_error"),
    "code-401": (sse(problem(code=401)), 502, "api_error"),
    "code-402": (sse(problem(code=402)), 402, "billing_error"),
    "code-429": (sse(problem(code=429)), 429, "rate_limit_error"),
    "code-500": (sse(problem(code=500)), 500, "api_error"),
    "code-503": (sse(problem(code="503")), 529, "overloaded_error"),
    "code-504": (sse(problem(code=504)), 504, "timeout_error"),
    "word-quota": (sse(problem(type="insufficient_quota", code=429)), 402, "billing_error"),
    "word-overloaded": (sse(problem(type="overloaded_error")), 529, "overloaded_error"),
    "word-vllm": (sse(problem(type="BadRequestError")), 400, "invalid_request_error"),
    "text": (sse(json.dumps({"error": SAID})), 502, "api_error"),
    "flat": (sse(json.dumps({"object": "error", "message": SAID, "code": 429})), 429, "rate_limit_error"),
    "array": (sse(json.dumps([{"error": {"message": SAID, "code": 503}}])), 529, "overloaded_error"),
    "beside-choices": (
        sse(json.dumps(json.loads(chunk({"content": ""}, "error")) | json.loads(problem(code=429)))),
        429,
        "rate_limit_error",
    ),
    "in-a-choice": (
        sse(json.dumps({"choices": [{"index": 0, "delta": {}, "error": {"message": SAID, "code": 429}}]})),
        429,
        "rate_limit_error",
    ),
    "event": (b"event: error\n" + sse(problem(code=429)), 429, "rate_limit_error"),
    "event-text": (b"event: error\n" + sse(SAID), 502, "api_error"),
    "base-resp": (
        sse(json.dumps({"base_resp": {"status_code": 1002, "status_msg": SAID}})),
        429,
        "rate_limit_error",
    ),
    "bare-json": (problem(code=429).encode() + b"\n", 429, "rate_limit_error"),
}
FRAMES |= {f"finish-{word}": (sse(chunk({}, word)), status, None) for word, (status, _) in FINISH.items()}
ALONE = {FRAMES["bare-json"][0]}  # a whole body: nothing can stand before it
MID_STREAM = {name: row for name, row in FRAMES.items() if row[0] not in ALONE}
# Not errors by what they say, but no answers either.
NO_ANSWERS = {
    "nothing": b"",
    "only-done": sse("[DONE]"),
    "html": SHAPES["html"](200),
    "words": SHAPES["text"](200),
    "another-object": encoded({"id": SAID, "object": "list", "data": []}),
    "comments": b": 10.77.3.4\n\n",
}


def kind_of(status, kind):
    return kind or {502: "api_error", 529: "overloaded_error"}[status]


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "create"])
@pytest.mark.parametrize(("frame", "status", "kind"), FRAMES.values(), ids=FRAMES)
def test_before_the_first_content_it_is_a_status(recorded, frame, status, kind, streaming):
    leads = [b""] if frame in ALONE else [b"", sse(chunk({"role": "assistant", "content": ""}))]
    for lead in leads:
        recorded.upstream.answer = Answer(body=lead + frame, headers=HEADERS | Answer().headers)
        answer = post(recorded.base_url, ask(stream=streaming))
        message = assert_error(recorded, answer, status, kind_of(status, kind))
        assert KEPT in message or KEPT.encode() not in frame


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "create"])
@pytest.mark.parametrize("body", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_is_a_bad_gateway(recorded, body, streaming):
    recorded.upstream.answer = Answer(body=body, headers=HEADERS)
    answer = post(recorded.base_url, ask(stream=streaming))
    assert_error(recorded, answer, 502, "api_error")


# --- After the first byte: an event ----------------------------------------------------------------

BEGUN = {
    "text": sse(chunk({"content": "One choir"})),
    "thinking": sse(chunk({"reasoning_content": "I think"})),
    "tool": sse(
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":'}}]})
    ),
}


def assert_error_event(recorded, answer, kind):
    """Begun as success, ended by one error event; nothing that looks like an end is before it."""
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    kinds = [event["type"] for event in answer.events]
    assert kinds[0] == "message_start"
    assert kinds.count("error") == 1
    assert not {"content_block_stop", "message_delta", "message_stop"} & set(kinds)
    last = answer.events[-1]
    assert last.keys() == {"type", "error", "request_id"}
    assert last["error"]["type"] == kind
    assert last["request_id"] == answer.headers["request-id"]
    assert last["error"]["message"].strip()
    assert_nothing_leaks(recorded, answer)
    return last["error"]["message"]


@pytest.mark.parametrize("begun", BEGUN.values(), ids=BEGUN)
@pytest.mark.parametrize(("frame", "status", "kind"), MID_STREAM.values(), ids=MID_STREAM)
def test_after_it_it_is_an_event(recorded, begun, frame, status, kind):
    recorded.upstream.answer = Answer(body=begun + frame + sse("[DONE]"), headers=HEADERS | Answer().headers)
    message = assert_error_event(recorded, post(recorded.base_url, ask(stream=True)), kind_of(status, kind))
    assert KEPT in message or KEPT.encode() not in frame
    # Without streaming nothing was promised, and the status is as honest as before.
    assert_error(recorded, post(recorded.base_url, ask()), status, kind_of(status, kind))


@pytest.mark.parametrize("begun", BEGUN.values(), ids=BEGUN)
@pytest.mark.parametrize("end", ["cut", "reset", "whole"])
def test_a_stream_that_only_ends(recorded, begun, end):
    recorded.upstream.answer = Answer(body=begun, end=end, headers=HEADERS | Answer().headers)
    assert_error_event(recorded, post(recorded.base_url, ask(stream=True)), "api_error")
    assert_error(recorded, post(recorded.base_url, ask()), 502, "api_error")


def test_data_that_is_no_json(recorded):
    recorded.upstream.answer = Answer(body=BEGUN["text"] + sse(SAID), headers=HEADERS | Answer().headers)
    assert_error_event(recorded, post(recorded.base_url, ask(stream=True)), "api_error")


def test_every_request_has_another_id(recorded):
    recorded.upstream.answer = Answer(500, b"")
    answers = [post(recorded.base_url, ask()) for _ in range(5)]
    assert len({answer.json["request_id"] for answer in answers}) == 5
