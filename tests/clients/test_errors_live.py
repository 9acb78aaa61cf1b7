"""Whatever an upstream says when it fails, a client hears an honest error, and nothing of the inside.

Every status and every shape of a body, before the first byte and after it, through a real gateway. What the
upstream says has an address, a path and keys in it: none may reach the client, the rest of the words must.
"""

from __future__ import annotations

import json

import pytest

from antiphon.core.faults import STATUS
from clients.posting import post
from recording_upstream import Answer, sse

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


def assert_refusal(recorded, status, shape, streaming):
    recorded.upstream.answer = Answer(status, SHAPES[shape](status), HEADERS | {"retry-after": "7"})
    answer = post(recorded.base_url, ask(stream=streaming))
    wanted = expected(status)
    if status in (404, 410) and shape in WORDLESS | {"html"}:
        wanted = (502, "api_error")
    message = assert_error(recorded, answer, *wanted)
    if shape not in WORDLESS:
        assert KEPT in message
    waits = (wanted[0] == 429 or wanted[0] >= 500) and status not in HOPELESS and wanted != (502, "api_error")
    if waits or status in (499, 502):
        assert answer.headers["retry-after"] == "7"
    if wanted[0] < 429 or status in HOPELESS:
        assert "retry-after" not in answer.headers
    assert answer.headers["x-should-retry"] == ("false" if status in HOPELESS else None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("status", sorted({*STATUS, 418, 451, 507, 520, 599}))
def test_a_refusal(recorded, status, shape):
    assert_refusal(recorded, status, shape, streaming=True)


@pytest.mark.parametrize("hundred", [400, 500])
def test_every_status_there_is(recorded, hundred):
    for status in range(hundred, hundred + 100):
        assert_refusal(recorded, status, "nested", streaming=status % 2 == 0)
