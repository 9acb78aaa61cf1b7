"""One exchange, one flat line: times in milliseconds, nothing that does not apply, nothing secret."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
from structlog.testing import capture_logs

from antiphon.observe.record import ExchangeRecord


def record(**fields) -> ExchangeRecord:
    least = {"request_id": "req_1", "model": "m", "upstream": "up", "streaming": True, "began": 100.0}
    return ExchangeRecord(**{**least, **fields})


def test_a_whole_line() -> None:
    whole = record(
        surface="openai",
        key="alice",
        fallback="big",
        kind="vllm",
        retries=2,
        further=Counter(elsewhere=1, failed=1),
        granted=100.0125,
        sent=100.5,
        first_token=101.0,
        ended=102.5,
        phase="streaming",
        cause="upstream",
        status=200,
        stop_reason="end_turn",
        error="api_error",
        input_tokens=30,
        output_tokens=5,
        cached_tokens=7,
        written_tokens=4,
        tells_cached=True,
        expected_cached=0.5,
        thinking_tokens=2,
        estimated=("input",),
        degraded=("top_k", "tools.0"),
        ignored=("metadata",),
        counts=Counter(call_split=1),
    )
    assert whole.fields() == {
        "request_id": "req_1",
        "surface": "openai",
        "model": "m",
        "upstream": "up",
        "streaming": True,
        "cause": "upstream",
        "phase": "streaming",
        "status": 200,
        "queue_ms": 12.5,
        "ttft_ms": 1000.0,
        "duration_ms": 2500.0,
        "input_tokens": 30,
        "output_tokens": 5,
        "key": "alice",
        "kind": "vllm",
        "fallback": "big",
        "retries": 2,
        "further": {"elsewhere": 1, "failed": 1},
        "stop_reason": "end_turn",
        "error": "api_error",
        "cached_tokens": 7,
        "written_tokens": 4,
        "thinking_tokens": 2,
        "estimated": "input",
        "degraded": "top_k,tools.0",
        "ignored": "metadata",
        "counts": {"call_split": 1},
    }


def test_what_does_not_apply_is_left_out_and_a_moment_that_never_came_is_null() -> None:
    line = record(cause="client").fields()
    assert line["queue_ms"] is line["ttft_ms"] is line["duration_ms"] is None
    absent = {"stop_reason", "error", "cached_tokens", "thinking_tokens", "estimated", "degraded"}
    absent |= {"key", "kind", "fallback", "retries", "further", "written_tokens", "ignored", "counts"}
    assert not line.keys() & absent


def test_two_records_share_no_counts() -> None:
    record().counts["call_split"] += 1
    record().further["elsewhere"] += 1
    assert record().counts == record().further == {}


def test_it_is_one_log_line() -> None:
    with capture_logs() as lines:
        record(cause="finished").write()
    (line,) = lines
    assert (line["event"], line["log_level"], line["cause"]) == ("exchange", "info", "finished")


def test_the_line_is_json_whatever_a_model_is_called() -> None:
    hostile = 'a"b\n\x00\u2028{"event":"forged"}'
    line = json.dumps(record(model=hostile).fields())
    assert "\n" not in line
    assert json.loads(line)["model"] == hostile


def test_there_is_no_field_for_content_or_keys() -> None:
    names = set(msgspec.structs.asdict(record()))
    assert not names & {
        "prompt",
        "text",
        "content",
        "messages",
        "system",
        "tools",
        "key",
        "api_key",
        "headers",
    }
