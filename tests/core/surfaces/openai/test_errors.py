"""Errors in OpenAI's shape, and what of an upstream's own error answers passes."""

import json

import pytest

from antiphon.core import own_faults
from antiphon.core.faults import KINDS as FAULT_KINDS
from antiphon.core.parts import Fault
from antiphon.core.surfaces.openai.errors import (
    KINDS,
    error_body,
    error_frame,
    passing_headers,
    refusal,
    status_of,
    upstream_refusal,
)


def error_of(body: bytes) -> dict:
    return json.loads(body)["error"]


def test_every_kind_of_fault_has_its_words():
    assert set(KINDS) == set(FAULT_KINDS)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_the_body_has_the_four_members_that_clients_read(kind):
    error = error_of(error_body(Fault(kind, "it failed", 500)))
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["message"], error["type"], error["code"]) == ("it failed", *KINDS[kind])


@pytest.mark.parametrize(
    ("fault", "param"),
    [
        (own_faults.invalid_request("messages.3.content: Field required"), "messages.3.content"),
        (Fault("not_found_error", "model: x is not served here", 404), "model"),
        (own_faults.invalid_request("The body is not valid: really"), None),
        (Fault("api_error", "model: it failed", 500), None),
    ],
)
def test_the_member_that_is_wrong_is_the_param(fault, param):
    assert error_of(error_body(fault))["param"] == param


def test_what_cannot_be_utf8_does_not_break_the_body():
    assert error_of(error_body(Fault("api_error", "a\ud800b", 500)))["message"] == "a?b"


def test_only_the_status_that_is_no_http_status_changes():
    assert {status_of(Fault("api_error", "", status)) for status in (400, 404, 429, 502, 504)} == {
        400, 404, 429, 502, 504,
    }  # fmt: skip
    assert status_of(own_faults.queue_full(3)) == 503


def test_a_refusal_says_when_to_come_back():
    told = refusal(own_faults.queue_full(3))
    assert (b"retry-after", b"3") in told.headers
    assert (told.status, error_of(told.body)["code"]) == (503, "overloaded")
    assert (b"x-should-retry", b"false") in refusal(Fault("api_error", "no", 502, None, False)).headers


def test_the_last_frame_of_a_stream_is_an_error():
    frame = error_frame(own_faults.UPSTREAM_CUT)
    assert frame.startswith(b'data: {"error":{') and frame.endswith(b"}\n\n")
    assert b"\n" not in frame[:-2]


# --- What an upstream's error answer becomes -----------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b'{"error": {"message": "bad\\nvery bad",  "type": "BadRequestError", "code": 400}}'),
        (404, b'{"error":{"message":"The model `x` does not exist.","code":404}}'),
        (404, b'{"detail":"Not Found"}'),
        (422, b'{"detail":[{"loc":["body","messages",1,"role"],"msg":"Field required","type":"missing"}]}'),
        (429, b'{"error":{"message":"Rate limit reached","type":"requests"}}'),
        (500, b'{"object":"error","message":"boom","code":500}'),
        (503, b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'),
    ],
)
def test_an_error_passes_byte_for_byte(status, body):
    headers = {"content-type": "application/json; charset=utf-8", "retry-after": "2", "server": "uvicorn"}
    fault, told = upstream_refusal(status, headers, body)
    assert (told.status, told.body) == (status, body)
    assert told.headers == [(b"content-type", b"application/json; charset=utf-8"), (b"retry-after", b"2")]
    assert fault.message


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, b'{"error":{"message":"Incorrect API key provided: sk-abcdefghijklmnop"}}'),
        (403, b'{"error":{"message":"no access"}}'),
        (407, b"proxy"),
        (302, b""),
        (400, b'{"error":{"message":"API key not valid","status":"INVALID_ARGUMENT"}}'),
    ],
)
def test_what_is_about_this_gateway_is_a_502(status, body):
    _, told = upstream_refusal(status, {"content-type": "text/html", "location": "http://10.0.0.1/"}, body)
    assert (told.status, error_of(told.body)["type"]) == (502, "server_error")
    assert b"sk-" not in told.body
    assert dict(told.headers)[b"content-type"] == b"application/json"
    assert dict(told.headers)[b"x-should-retry"] == b"false"


def test_a_secret_does_not_pass_and_the_rest_does():
    body = b'{"error":{"message":"cannot reach http://10.0.0.3:8000/v1","type":"x","code":7},"n":[1.5,null]}'
    _, told = upstream_refusal(500, {}, body)
    assert told.status == 500
    assert json.loads(told.body) == {
        "error": {"message": "cannot reach [url]", "type": "x", "code": 7},
        "n": [1.5, None],
    }


def test_escapes_hide_nothing():
    _, told = upstream_refusal(500, {}, b'{"error":{"message":"see http:\\/\\/10.0.0.3:8000"}}')
    assert b"10.0" not in told.body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"Internal Server Error",
        b"<html><title>502 Bad Gateway</title></html>",
        b'["it failed"]',
        b'{"error":{"message":"cut of',
        b'{"error":' * 2000,
        b'{"http://10.0.0.1:80/":1}',
        json.dumps({"error": {"message": "many"}, "input": ["x"] * 300}).encode(),
    ],
    ids=["empty", "text", "html", "list", "cut", "deep", "name", "many"],
)
def test_what_no_openai_client_could_read_is_said_in_its_shape(body):
    _, told = upstream_refusal(500, {"content-type": "text/html", "retry-after": "4"}, body)
    assert told.status == 500
    assert error_of(told.body)["type"] == "server_error"
    assert error_of(told.body)["message"]
    assert b"10.0" not in told.body
    assert dict(told.headers) == {b"content-type": b"application/json", b"retry-after": b"4"}


def test_the_headers_that_pass():
    upstream = {
        "content-type": "text/event-stream",
        "content-length": "3",
        "transfer-encoding": "chunked",
        "connection": "keep-alive",
        "set-cookie": "a=b",
        "server": "uvicorn",
        "x-request-id": "theirs",
        "openai-organization": "ours",
        "openai-processing-ms": "12",
        "x-ratelimit-remaining-tokens": "7",
        "retry-after-ms": "5",
    }
    assert [name.decode() for name, _ in passing_headers(upstream)] == [
        "content-type",
        "openai-processing-ms",
        "x-ratelimit-remaining-tokens",
        "retry-after-ms",
    ]
