"""Every mapping, one row each: what the upstream did, and what the client hears."""

import json
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core import faults, own_faults
from antiphon.core.faults import (
    FINISH,
    GENERAL_TEXTS,
    GENERAL_WORDS,
    KINDS,
    PRECISE_TEXTS,
    PRECISE_WORDS,
    STATUS,
    error_body,
    fault_of_error,
    fault_of_response,
    finish_fault,
)
from antiphon.core.parts import Fault

# The list in tests/conformance/judge.py, written out again: neither may change alone.
ERROR_TYPES = {
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
}


def body(value):
    return json.dumps(value).encode()


def err(message="m", **more):
    return body({"error": {"message": message, **more}})


def test_kinds():
    assert set(KINDS) == ERROR_TYPES
    assert {verdict.kind for verdict in STATUS.values()} <= ERROR_TYPES


OUR_KEY = "the upstream did not accept this gateway's key: "
NO_PATH = "the upstream has no such path, its base URL looks wrong: "

RESPONSES = [
    # (status, body, kind, status, message, should_retry)
    (400, err("bad"), "invalid_request_error", 400, "bad", None),
    (400, b"", "invalid_request_error", 400, "the upstream answered 400 (Bad Request) with an empty body", None),
    (400, err("image_url is not an image"), "invalid_request_error", 400, "image_url is not an image", None),
    (500, err("image input is not supported - hint: x", code=500, type="server_error"), "invalid_request_error", 400, "image input is not supported - hint: x", None),
    (500, body({"error": "this model is missing data required for image input"}), "invalid_request_error", 400, "this model is missing data required for image input", None),
    (401, err("bad key", type="invalid_request_error", code="invalid_api_key"), "api_error", 502, OUR_KEY + "bad key", False),
    (401, body({"error": "Unauthorized"}), "api_error", 502, OUR_KEY + "Unauthorized", False),
    (401, err("Incorrect API key provided: sk-abcdefgh1234"), "api_error", 502, OUR_KEY + "Incorrect API key provided: [key]", False),
    (401, b"", "api_error", 502, OUR_KEY + "it answered 401 (Unauthorized) with an empty body", False),
    (403, err("flagged"), "api_error", 502, "the upstream refused this gateway: flagged", False),
    (403, b"<html><title>Attention Required!</title>", "api_error", 502, 'the upstream refused this gateway: it answered 403 (Forbidden) with an HTML page ("Attention Required!")', False),
    (400, err("API key not valid. Please pass a valid API key."), "api_error", 502, OUR_KEY + "API key not valid. Please pass a valid API key.", False),
    (400, body([{"error": {"code": 400, "message": "m", "details": [{"reason": "API_KEY_INVALID"}]}}]), "api_error", 502, OUR_KEY + "m", False),
    (402, err("no credits"), "billing_error", 402, "no credits", None),
    (429, err("You exceeded your current quota", type="insufficient_quota", code="insufficient_quota"), "billing_error", 402, "You exceeded your current quota", None),
    (429, err("Insufficient Balance"), "billing_error", 402, "Insufficient Balance", None),
    (400, err("Your credit balance is too low", type="invalid_request_error"), "billing_error", 402, "Your credit balance is too low", None),
    (404, err("The model `x` does not exist.", type="NotFoundError", code=404), "not_found_error", 404, "The model `x` does not exist.", None),
    (404, err('model "x" not found, try pulling it first', type="api_error"), "not_found_error", 404, 'model "x" not found, try pulling it first', None),
    (404, err("x", code="model_not_found"), "not_found_error", 404, "x", None),
    (404, err("no such thing", param="model"), "not_found_error", 404, "no such thing", None),
    (404, err("No endpoints found for x/y."), "not_found_error", 404, "No endpoints found for x/y.", None),
    (403, err("no access", code="model_not_found"), "not_found_error", 404, "no access", None),
    (410, err("this model was retired"), "not_found_error", 404, "this model was retired", None),
    (404, body({"detail": "Not Found"}), "api_error", 502, NO_PATH + "Not Found", False),
    (404, err("File Not Found", type="not_found_error", code=404), "api_error", 502, NO_PATH + "File Not Found", False),
    (404, err("Invalid URL (POST /v1/models/x)"), "api_error", 502, NO_PATH + "Invalid URL (POST /v1/models/x)", False),
    (404, b"404 page not found", "api_error", 502, NO_PATH + "404 page not found", False),
    (404, b"", "api_error", 502, NO_PATH + "it answered 404 (Not Found) with an empty body", False),
    (405, body({"detail": "Method Not Allowed"}), "api_error", 502, NO_PATH + "Method Not Allowed", False),
    (407, b"", "api_error", 502, None, False),
    (408, err(), "timeout_error", 504, "m", None),
    (409, err(), "conflict_error", 409, "m", None),
    (413, b"Request Entity Too Large", "request_too_large", 413, "Request Entity Too Large", None),
    (413, err("Request too large for model `x` on tokens per minute (TPM): Limit 6000", code="rate_limit_exceeded"), "rate_limit_error", 429, "Request too large for model `x` on tokens per minute (TPM): Limit 6000", None),
    (418, err(), "invalid_request_error", 400, "m", None),
    (422, body({"detail": [{"loc": ["body", "messages", 1, "role"], "msg": "Input should be 'user' or 'assistant'"}]}), "invalid_request_error", 400, "messages.1.role: Input should be 'user' or 'assistant'", None),
    (429, err("Rate limit reached", type="tokens", code="rate_limit_exceeded"), "rate_limit_error", 429, "Rate limit reached", None),
    (429, err("busy", type="engine_overloaded_error"), "overloaded_error", 529, "busy", None),
    (499, b"", "api_error", 502, "the upstream answered 499 with an empty body", None),
    (500, err("boom", type="server_error"), "api_error", 500, "boom", None),
    (500, b"Internal Server Error", "api_error", 500, "Internal Server Error", None),
    (500, err("m", type="rate_limit_exceeded"), "rate_limit_error", 429, "m", None),
    (501, err("no tools here", type="not_supported_error"), "api_error", 502, "no tools here", False),
    (502, b"<html><title>502 Bad Gateway</title>", "api_error", 502, 'the upstream answered 502 (Bad Gateway) with an HTML page ("502 Bad Gateway")', None),
    (503, err("Server overloaded", type="server_error"), "overloaded_error", 529, "Server overloaded", None),
    (503, err("Loading model", type="unavailable_error", code=503), "overloaded_error", 529, "Loading model", None),
    (504, b"", "timeout_error", 504, "the upstream answered 504 (Gateway Timeout) with an empty body", None),
    (520, b"", "api_error", 502, "the upstream answered 520 with an empty body", None),
    (522, b"", "timeout_error", 504, None, None),
    (524, b"", "timeout_error", 504, None, None),
    (529, err("Overloaded", type="overloaded_error"), "overloaded_error", 529, "Overloaded", None),
    (599, err(), "api_error", 502, "m", None),
    (302, b"", "api_error", 502, "the upstream redirects, its base URL looks wrong: it answered 302 (Found) with an empty body", False),
    (101, b"", "api_error", 502, None, None),
    (0, b"", "api_error", 502, None, None),
    # a wording of context overflow, by status
    (400, err("Prompt exceeds max length"), "invalid_request_error", 400, "prompt is too long: Prompt exceeds max length", None),
    (413, err("Please reduce the length of the messages"), "invalid_request_error", 400, "prompt is too long: Please reduce the length of the messages", None),
    (422, err("input (9 tokens) is longer than the model's context length (4 tokens)"), "invalid_request_error", 400, "prompt is too long: 9 tokens > 4 maximum", None),
    (500, err("Context size has been exceeded."), "invalid_request_error", 400, "prompt is too long: Context size has been exceeded.", None),
    (429, err("Prompt exceeds max length"), "rate_limit_error", 429, "Prompt exceeds max length", None),
    (429, err("too big", code="context_length_exceeded"), "invalid_request_error", 400, "prompt is too long: too big", None),
    (400, b"This model's maximum prompt length is 4 but the request contains 9 tokens.", "invalid_request_error", 400, "prompt is too long: 9 tokens > 4 maximum", None),
    # 2xx with something else than a completion
    (200, body({"error": {"message": "quota exceeded", "code": 429}}), "rate_limit_error", 429, "quota exceeded", None),
    (200, body({"error": {"message": "m", "code": 404}}), "not_found_error", 404, "m", None),
    (200, body({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}), "billing_error", 402, "insufficient balance", None),
    (200, b"<html><title>Log in</title>", "api_error", 502, 'the upstream answered 200 (OK) with an HTML page ("Log in") instead of a completion', None),
    (200, b"hello", "api_error", 502, "the upstream answered 200 (OK) with plain text instead of a completion: hello", None),
    (200, b"", "api_error", 502, "the upstream answered 200 (OK) with an empty body instead of a completion", None),
    (200, b'{"object":"list","data":[]}', "api_error", 502, "the upstream answered 200 (OK) with JSON instead of a completion", None),
    (204, b"", "api_error", 502, "the upstream answered 204 (No Content) with an empty body instead of a completion", None),
]  # fmt: skip


@pytest.mark.parametrize(("status", "said", "kind", "becomes", "message", "should_retry"), RESPONSES)
def test_response(status, said, kind, becomes, message, should_retry):
    fault = fault_of_response(status, {}, said)
    assert (fault.kind, fault.status, fault.should_retry) == (kind, becomes, should_retry)
    assert fault.message == (message if message is not None else fault.message)
    assert fault.message


@pytest.mark.parametrize("status", STATUS)
def test_every_status_has_a_row(status):
    assert any(status == row[0] for row in RESPONSES)


ERRORS = [
    # (error object, kind, status before the commit point)
    ({"error": {"message": "engine died", "type": "server_error", "code": 500}}, "api_error", 500),
    ({"error": {"message": "rate limit", "type": "rate_limit_exceeded", "code": 429}}, "rate_limit_error", 429),
    ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, "invalid_request_error", 400),
    ({"error": {"message": "bad", "code": "400"}}, "invalid_request_error", 400),
    ({"error": "bad"}, "api_error", 502),
    ({"message": "bad"}, "api_error", 502),
    ({"detail": "bad"}, "api_error", 502),
    ("bad", "api_error", 502),
    ("", "api_error", 502),
    (None, "api_error", 502),
    (17, "api_error", 502),
    ([{"error": {"code": 503, "message": "m", "status": "UNAVAILABLE"}}], "overloaded_error", 529),
    ({"error": {"message": "m", "type": "NotFoundError"}}, "not_found_error", 404),
    ({"error": {"message": "m", "code": 404}}, "not_found_error", 404),
    ({"error": {"message": "m", "type": "ServiceUnavailableError"}}, "overloaded_error", 529),
    ({"error": {"message": "m", "type": "Service Unavailable"}}, "overloaded_error", 529),
    ({"error": {"message": "m", "type": "InternalServerError"}}, "api_error", 500),
    ({"error": {"message": "m", "type": "insufficient_quota"}}, "billing_error", 402),
    ({"error": {"message": "m", "code": 401}}, "api_error", 502),
    ({"error": {"message": "m", "code": 403}}, "api_error", 502),
    ({"error": {"message": "m", "code": 502}}, "api_error", 502),
    ({"error": {"message": "m", "code": 408}}, "timeout_error", 504),
    ({"error": {"message": "m", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 4}}, "invalid_request_error", 400),
    ({"error": {"message": "Context size has been exceeded.", "code": 500}}, "invalid_request_error", 400),
    ({"error": "Rate limit exceeded, retry later"}, "rate_limit_error", 429),
    ({"error": "The request queue is full."}, "overloaded_error", 529),
    ({"error": "server busy, please try again. maximum pending requests exceeded"}, "overloaded_error", 529),
    ({"error": "Loading model"}, "overloaded_error", 529),
    ({"error": "Request timed out"}, "timeout_error", 504),
    ({"error": "unauthorized"}, "api_error", 502),
    ({"error": "model 'x' not found"}, "not_found_error", 404),
    # Anthropic's own
    ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded_error", 529),
    ({"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}, "invalid_request_error", 400),
    ({"type": "error", "error": {"type": "authentication_error", "message": "m"}}, "api_error", 502),
    ({"type": "error", "error": {"type": "permission_error", "message": "m"}}, "api_error", 502),
    ({"type": "error", "error": {"type": "billing_error", "message": "m"}}, "billing_error", 402),
    ({"type": "error", "error": {"type": "not_found_error", "message": "m"}}, "not_found_error", 404),
    ({"type": "error", "error": {"type": "conflict_error", "message": "m"}}, "conflict_error", 409),
    ({"type": "error", "error": {"type": "request_too_large", "message": "m"}}, "request_too_large", 413),
    ({"type": "error", "error": {"type": "rate_limit_error", "message": "m"}}, "rate_limit_error", 429),
    ({"type": "error", "error": {"type": "api_error", "message": "m"}}, "api_error", 500),
    ({"type": "error", "error": {"type": "timeout_error", "message": "m"}}, "timeout_error", 504),
]  # fmt: skip


@pytest.mark.parametrize(("error", "kind", "status"), ERRORS)
def test_error(error, kind, status):
    fault = fault_of_error(error)
    assert (fault.kind, fault.status) == (kind, status)
    assert fault.message


@pytest.mark.parametrize(("word", "status"), [*PRECISE_WORDS.items(), *GENERAL_WORDS.items()])
def test_every_word_means_its_status(word, status):
    fault = fault_of_error({"error": {"message": "m", "type": word}})
    assert (fault.kind, fault.status) == STATUS[status][:2]
    # A precise word weighs more than the status that it came with, a general one does not.
    outer = fault_of_response(418, {}, err("m", type=word))
    assert (outer.kind, outer.status) == STATUS[status if word in PRECISE_WORDS else 400][:2]


@pytest.mark.parametrize(("pattern", "status"), [*PRECISE_TEXTS, *GENERAL_TEXTS])
def test_every_text_has_a_row(pattern, status):
    texts = [json.loads(row[1])["error"]["message"] for row in RESPONSES if row[1].startswith(b'{"error": {')]
    texts += [
        row[0]["error"] for row in ERRORS if isinstance(row[0], dict) and isinstance(row[0].get("error"), str)
    ]
    assert any(pattern.search(text) and STATUS[status].kind for text in texts)


def test_the_recorded_llama_cpp_overflow():
    recorded = Path(__file__).parents[1] / "data/streams/llamacpp-context-overflow.http.json"
    fault = fault_of_response(400, {"content-type": "application/json"}, recorded.read_bytes())
    assert fault == Fault("invalid_request_error", "prompt is too long: 6031 tokens > 4096 maximum", 400)


def test_the_body_that_was_asked_for_with_less_output():
    said = err("'max_tokens' or 'max_completion_tokens' is too large: 3000. This model's maximum context length is 4096 tokens and your request has 2000 input tokens (3000 > 4096 - 2000).")  # fmt: skip
    message = "input length and `max_tokens` exceed context limit: 2000 + 3000 > 4096, decrease input length or `max_tokens` and try again"
    assert fault_of_response(400, {}, said) == Fault("invalid_request_error", message, 400)


@pytest.mark.parametrize("word", [*FINISH, "ERROR", " Abort "])
def test_finish_words_that_are_failures(word):
    fault = finish_fault(word)
    assert fault is not None
    assert fault.kind in {"api_error", "overloaded_error"}
    assert fault.status in {502, 529}


@pytest.mark.parametrize(
    "word", ["stop", "length", "tool_calls", "content_filter", "eos", "", "null", "errors"]
)
def test_finish_words_that_are_none(word):
    assert finish_fault(word) is None


WAITS = [
    (429, {"retry-after": "7"}, b"", "7"),
    (429, {"Retry-After-Ms": "1500"}, b"", "2"),
    (429, {"x-ratelimit-reset-tokens": "6m0s"}, b"", "360"),
    (503, {"retry-after": "7", "x-ratelimit-reset-tokens": "6m0s"}, b"", "7"),
    (503, {"x-ratelimit-reset-tokens": "6m0s"}, b"", None),
    (500, {"retry-after": "7"}, b"", "7"),
    (429, {}, body({"error": {"message": "m", "details": [{"retryDelay": "34s"}]}}), "34"),
    (200, {"retry-after": "7"}, body({"error": {"message": "m", "code": 429}}), "7"),
    # waiting helps none of these
    (400, {"retry-after": "7"}, b"", None),
    (401, {"retry-after": "7"}, b"", None),
    (402, {"retry-after": "7"}, b"", None),
    (429, {"retry-after": "7"}, err("m", code="insufficient_quota"), None),
    (400, {"retry-after": "7"}, err("prompt is too long"), None),
]


@pytest.mark.parametrize(("status", "headers", "said", "wait"), WAITS)
def test_retry_after(status, headers, said, wait):
    assert fault_of_response(status, headers, said).retry_after == wait


def test_x_should_retry_passes_where_a_retry_may_help():
    assert fault_of_response(429, {"X-Should-Retry": "false"}, b"").should_retry is False
    assert fault_of_response(503, {"x-should-retry": "true"}, b"").should_retry is True
    assert fault_of_response(503, {"x-should-retry": "maybe"}, b"").should_retry is None
    assert fault_of_response(401, {"x-should-retry": "true"}, b"").should_retry is False


def test_an_error_without_words_names_its_code():
    assert (
        fault_of_error({"error": {"type": "x_y"}}).message
        == "the upstream reported an error and gave no reason (x_y)"
    )
    assert fault_of_response(500, {}, b'{"code":"x_y"}').message == (
        "the upstream answered 500 (Internal Server Error) with JSON (x_y)"
    )


def test_long_messages_are_cut():
    fault = fault_of_response(400, {}, err("word " * 100_000))
    assert 1000 < len(fault.message) <= 2000


def test_error_body_is_compact_and_always_json():
    fault = Fault("api_error", 'a "quoted"\nline \ud83d', 502)
    assert error_body(fault, "req_1") == (
        b'{"type":"error","error":{"type":"api_error","message":"a \\"quoted\\"\\nline ?"},"request_id":"req_1"}'
    )


# --- This gateway's own -------------------------------------------------------------------------

OWN = [
    value for value in (getattr(faults, name) for name in own_faults.__all__) if isinstance(value, Fault)
] + [
    faults.internal("req_1"),
    faults.invalid_request("messages.3.content: Field required"),
    faults.invalid_request("\x00", status=431),
    faults.method_not_allowed("PUT", "/v1/messages"),
    faults.not_found("/v1/nothing"),
    faults.queue_full(0),
    faults.queue_timeout(12),
    faults.too_large(32 << 20),
]


def test_own_faults_are_legal():
    for fault in OWN:
        assert fault.kind in KINDS, fault
        assert fault.message and 400 <= fault.status <= 529, fault
        if fault.status == KINDS[fault.kind] or fault.kind == "invalid_request_error":
            continue
        assert (fault.kind, fault.status) == ("api_error", 502), fault


def test_own_faults_as_promised():
    assert (faults.UPSTREAM_UNREACHABLE.status, faults.UPSTREAM_TIMEOUT.status) == (502, 504)
    assert faults.UPSTREAM_EMPTY == Fault("api_error", "the upstream returned an empty stream", 502)
    assert "malformed" in faults.UPSTREAM_MALFORMED.message
    assert faults.queue_full(0) == Fault(
        "overloaded_error", "all slots are taken and the queue is full", 529, "1"
    )
    assert faults.queue_timeout(12).retry_after == "12"
    assert (faults.SHUTTING_DOWN.kind, faults.SHUTTING_DOWN.status) == ("overloaded_error", 529)
    assert faults.internal("req_1").message.endswith("req_1")
    assert faults.not_found("/a\r\nb\x00").message == "nothing is served at /a b"
    assert (faults.method_not_allowed("PUT", "/x").kind, faults.method_not_allowed("PUT", "/x").status) == (
        "invalid_request_error",
        405,
    )
    assert faults.too_large(5) == Fault("request_too_large", "the request's body is larger than 5 bytes", 413)


# --- Laws ---------------------------------------------------------------------------------------

SECRET = "sk-plantedplantedplanted0123456789"
PLANTED = st.sampled_from(
    [f"my key {SECRET}", f"http://10.9.8.7:8000/{SECRET}", f"Bearer {SECRET}", f"'10.9.8.7' and {SECRET}"]
)
TEXT = st.one_of(
    st.text(max_size=40),
    PLANTED,
    st.sampled_from([*PRECISE_WORDS, *GENERAL_WORDS, "prompt is too long", "{", "<title>"]),
)
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.integers(300, 600)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from(["error", "message", "msg", "detail", "code", "type", "status", "loc", "metadata", "raw", "details", "errors", "base_resp", "choices", "n_prompt_tokens", "n_ctx", "retry_after"]), st.text(max_size=5)),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=20,
)  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from(["retry-after", "Retry-After-Ms", "x-ratelimit-reset", "X-Should-Retry", "content-type"]),
    st.text(max_size=20),
)


def check(fault):
    assert fault.kind in ERROR_TYPES
    assert 400 <= fault.status <= 529
    assert fault.message.strip() and len(fault.message) <= 2500
    assert SECRET not in fault.message and "10.9.8.7" not in fault.message
    told = json.loads(error_body(fault, "req_1"))
    assert told["error"] == {"type": fault.kind, "message": fault.message}
    assert fault.retry_after is None or not set(fault.retry_after) - set(string.printable[:95])


@settings(deadline=None)
@given(VALUE)
def test_any_error_object_gives_a_legal_fault(value):
    check(fault_of_error(value))


BODIES = st.one_of(
    st.binary(max_size=200),
    VALUE.map(lambda value: json.dumps(value).encode()),
    VALUE.map(lambda value: json.dumps(value).encode()[:-1]),
    TEXT.map(lambda text: text.encode("utf-8", "replace")),
    TEXT.map(lambda text: b"<html><title>" + text.encode("utf-8", "replace") + b"</title>"),
    TEXT.map(lambda text: b"data: " + json.dumps({"error": text}).encode() + b"\n\n"),
)


@settings(deadline=None)
@given(st.integers(-1, 1000), HEADERS, BODIES)
def test_any_response_gives_a_legal_fault(status, headers, said):
    check(fault_of_response(status, headers, said))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "said",
    [
        b'{"error":' * 200_000,
        b"[" * 1_000_000,
        b'{"error":{"message":"' + b"x" * 5_000_000,
        b'{"detail":[' + b'{"msg":"m","loc":["a"]},' * 100_000 + b"]}",
        b'{"a":' + b"9" * 60_000 + b"}",
        b"<title" * 100_000,
        b'"message":' * 100_000,
        b'{"message"' + b" " * 60_000,
        b'{"message":"' + b"\\" * 60_000,
        b"event: x\n" * 100_000,
        b"\xff" * 1_000_000,
        b": \n" * 100_000,
    ],
    ids=lambda said: said[:12].decode("latin-1"),
)
def test_hostile_bodies(said):
    for status in (200, 400, 500):
        check(fault_of_response(status, {}, said))
