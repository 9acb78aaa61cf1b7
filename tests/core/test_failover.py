"""Where a failed attempt leads: every row of the table, and every fault that this gateway can make."""

import json

import pytest

from antiphon.core import failover, own_faults
from antiphon.core.failover import ROWS, Verdict, judge, row_of, seconds_to_wait
from antiphon.core.faults import FINISH, KINDS, STATUS, fault_of_error, fault_of_response, finish_fault
from antiphon.core.parts import Fault

ANY = Fault("api_error", "the connection was lost", 502)
GONE = Fault("api_error", "the upstream closed the connection without an answer", 502)


def said(status, message="m", headers=None, /, **more):
    """(fault, status) of an upstream's answer."""
    body = json.dumps({"error": {"message": message, **more}}).encode()
    return fault_of_response(status, headers or {}, body), status


# (row, fault, how the call was lost, HTTP status)
LOST = [(kind, ANY, kind, None) for kind in ("connect", "tls", "reset", "eof", "protocol", "encoding")]

OWN = [
    ("connect", own_faults.UPSTREAM_UNREACHABLE),
    ("connect_timeout", own_faults.UPSTREAM_CONNECT_TIMEOUT),
    ("first_token", own_faults.UPSTREAM_TIMEOUT),
    ("stalled", own_faults.UPSTREAM_STALLED),
    ("cut", own_faults.UPSTREAM_CUT),
    ("empty", own_faults.UPSTREAM_EMPTY),
    ("malformed", own_faults.UPSTREAM_MALFORMED),
    ("held_too_much", own_faults.UPSTREAM_TOO_LARGE),
    ("restarting", own_faults.UPSTREAM_RESTARTING),
    ("shutting_down", own_faults.SHUTTING_DOWN),
    ("no_slot", own_faults.no_upstream(1)),
    ("no_slot", own_faults.queue_full(7)),
    ("no_slot", own_faults.COORDINATOR_GONE),
    ("no_slot", own_faults.queue_timeout(90)),
    ("own_door", own_faults.WRONG_KEY),
    ("own_door", own_faults.FOREIGN_PAGE),
    ("own_door", own_faults.FOREIGN_HOST),
    ("invalid", own_faults.NOT_JSON_TYPE),
    ("invalid", own_faults.HEADERS_TOO_LARGE),
    ("invalid", own_faults.REQUEST_TIMEOUT),
    ("invalid", own_faults.invalid_request("messages: none")),
    ("too_large", own_faults.too_large(5)),
]

SAID = [
    ("loading", *said(503, "Loading model", type="unavailable_error")),  # llama.cpp
    ("loading", *said(503, "Model Qwen/Qwen3-8B is currently loading", estimated_time=20.0)),  # Hugging Face
    ("loading", *said(503, "the model is loading, try again later")),
    ("loading", *said(503, "Server is starting")),
    ("loading", fault_of_error({"message": "Loading model", "code": 503}), 200),
    ("loading", finish_fault("load"), 200),  # Ollama
    ("busy", *said(503, "The request queue is full.")),  # SGLang
    ("busy", *said(503, "server busy, please try again. maximum pending requests exceeded")),  # Ollama
    ("busy", *said(503, "Too many queued requests", type="Service Unavailable")),  # vLLM
    ("busy", *said(529, "Overloaded", type="overloaded_error")),
    ("busy", *said(429, "Rate limit reached", {"retry-after": "7"})),
    ("busy", *said(429, "engine overloaded", type="engine_overloaded_error")),  # Kimi
    ("busy", fault_of_response(503, {}, b"<html><h1>503 Service Temporarily Unavailable</h1></html>"), 503),
    ("busy", finish_fault("insufficient_system_resource"), 200),
    ("overflow", *said(400, "request (9000 tokens) exceeds the available context size (4096 tokens)")),
    ("overflow", *said(400, "m", code="context_length_exceeded")),
    ("overflow", *said(500, "Context size has been exceeded.")),
    (
        "overflow",
        *said(
            400,
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens "
            "(3000 in the messages, 2000 in the completion).",
        ),
    ),
    ("invalid", *said(400, "temperature must be at most 2")),
    ("invalid", *said(422, "field required")),
    ("invalid", *said(418)),
    ("invalid", *said(400, "the model is loading its adapters from an unknown place")),  # words, but no 503
    ("too_large", *said(413, "Request Entity Too Large")),
    ("no_model", *said(404, "The model `x` does not exist.", code="model_not_found")),
    ("no_model", *said(404, "model 'x' not found, try pulling it first")),
    ("no_path", *said(404, "Not Found")),
    ("no_path", *said(405, "Method Not Allowed")),
    ("no_path", *said(501, "This server does not support embeddings", type="not_supported_error")),
    ("no_path", fault_of_response(307, {"location": "/x"}, b""), 307),
    ("refused", *said(401, "Invalid API key")),
    ("refused", *said(403, "Forbidden")),
    ("refused", *said(407)),
    ("refused", *said(402, "Insufficient credits")),
    ("refused", *said(429, "You exceeded your current quota", code="insufficient_quota")),  # OpenAI
    ("refused", *said(400, "API key not valid.", status="API_KEY_INVALID")),  # Gemini
    ("refused", fault_of_error({"message": "Invalid API key", "code": 401}), 200),
    ("conflict", *said(409)),
    ("upstream_timeout", *said(408)),
    ("upstream_timeout", *said(504, "Gateway Time-out")),
    ("upstream_timeout", *said(524)),
    ("upstream_timeout", fault_of_error({"message": "deadline exceeded"}), 200),
    ("status", *said(500, "CUDA error: out of memory")),
    ("status", *said(502, "Bad Gateway")),
    ("status", *said(500, "do not ask me again", {"x-should-retry": "false"})),
    ("status", *said(502, "do not ask me again", {"x-should-retry": "false"})),
    ("status", *said(499)),
    ("status", fault_of_error("something broke"), 200),
    ("status", fault_of_response(200, {}, b'{"hello": "world"}'), 200),
    ("status", finish_fault("abort"), 200),
]

CASES = [
    *LOST,
    *((row, fault, None, None) for row, fault in OWN),
    *((row, fault, None, status) for row, fault, status in SAID),
]

# What each row means, written out again: neither table may change alone.
# (may go elsewhere, what it says of the server, fallback)
MEANINGS = {
    "connect": (True, "connect", "failed"),
    "tls": (True, "tls", "failed"),
    "reset": (True, "reset", "failed"),
    "eof": (True, "eof", "failed"),
    "protocol": (True, "protocol", "failed"),
    "encoding": (True, "protocol", "failed"),
    "connect_timeout": (True, "connect", "failed"),
    "first_token": (False, "timeout", None),
    "stalled": (False, "timeout", None),
    "cut": (True, "eof", "failed"),
    "empty": (True, "eof", "failed"),
    "malformed": (True, "protocol", "failed"),
    "held_too_much": (False, None, None),
    "restarting": (True, "loading", "overloaded"),
    "no_slot": (False, None, "overloaded"),
    "shutting_down": (False, None, None),
    "loading": (True, "loading", "overloaded"),
    "busy": (True, "busy", "overloaded"),
    "overflow": (False, "well", "overflow"),
    "invalid": (False, "well", None),
    "too_large": (True, "well", None),
    "no_model": (True, "well", "failed"),
    "no_path": (True, "well", "failed"),
    "refused": (True, "refused", "failed"),
    "conflict": (True, "well", None),
    "upstream_timeout": (True, "timeout", "failed"),
    "status": (True, "status", "failed"),
    "own_door": (False, None, None),
}


@pytest.mark.parametrize(("row", "fault", "lost", "status"), CASES)
def test_each_failure_has_its_row(row, fault, lost, status):
    assert row_of(fault, lost=lost, status=status) == row
    assert judge(fault, lost=lost, status=status) == Verdict(*MEANINGS[row])


def test_every_row_has_a_meaning_and_a_case():
    assert {row: (v.elsewhere, v.finding, v.fallback) for row, v in ROWS.items()} == MEANINGS
    assert {row for row, *_ in CASES} == set(ROWS)


@pytest.mark.parametrize(("row", "fault", "lost", "status"), CASES)
def test_after_the_commit_point_nobody_else_is_asked_and_the_server_is_judged_all_the_same(
    row, fault, lost, status
):
    verdict = judge(fault, lost=lost, status=status, committed=True)
    assert (verdict.elsewhere, verdict.fallback) == (False, None)
    assert verdict.finding == MEANINGS[row][1]


def test_no_failure_of_an_upstream_is_without_a_row():
    for status in range(300, 600):
        fault, status = said(status)
        assert row_of(fault, status=status) in ROWS
    for word in FINISH:
        assert row_of(finish_fault(word)) in ROWS
    for kind in KINDS:
        for should_retry in (None, True, False):
            assert row_of(Fault(kind, "m", 502, None, should_retry)) in ROWS
    assert row_of(Fault("a kind of tomorrow", "m", 500)) == "status"


def test_the_table_knows_every_status_that_faults_knows():
    for status in STATUS:
        fault, _ = said(status)
        assert row_of(fault, status=status) in ROWS


def test_every_ready_made_fault_of_an_upstream_is_told_apart_from_what_servers_say():
    for name in own_faults.__all__:
        if name.startswith("UPSTREAM_") or name == "SHUTTING_DOWN":
            fault = getattr(own_faults, name)
            assert row_of(fault) == failover._OWN[Fault(fault.kind, fault.message, fault.status)], name


def test_what_a_server_says_is_not_taken_for_a_lost_call_and_the_other_way_round():
    assert row_of(GONE) == "status"
    assert row_of(GONE, lost="reset") == "reset"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("0", 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 60.0),
        ("Wed, 21 Oct 2026 07:20:00 GMT", 0.0),
        ("soon", None),
        ("", None),
        ("-5", None),
        ("٧", None),
    ],
)
def test_how_long_to_wait(value, seconds):
    assert seconds_to_wait(value, wall=1792567620.0) == seconds
