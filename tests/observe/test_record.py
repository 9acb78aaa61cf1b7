"""One exchange, one flat line: times in milliseconds, nothing that does not apply, nothing secret."""

from __future__ import annotations

import json
import time
from collections import Counter

import msgspec
from structlog.testing import capture_logs

from antiphon.observe.record import ExchangeRecord
from antiphon.server.entry import Entry
from antiphon.server.keys import Key, Keyring, make
from antiphon.server.keys_file import edit_rows
from server.fleet_house import FleetHouse, model
from server.harness import frame, on_uvloop, post


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
        queued=0.0125,
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
    assert not {"queue_ms", "ttft_ms", "duration_ms"} & set(line)
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
    names = set(msgspec.structs.asdict(record()))  # `key` is a name
    assert not names & {"prompt", "text", "content", "messages", "system", "tools", "api_key", "headers"}


@on_uvloop
async def test_the_line_of_a_request_that_went_a_long_way(tmp_path) -> None:
    """Over a failed target to a fallback model, with a key: all of that is told, and no secret."""
    secret, key = make("alice", now=time.time())
    with edit_rows(tmp_path / "keys.json", Key) as rows:
        rows.append(key)
    hidden = ("PROMPT-9f3", "ANSWER-9f3", "SESSION-9f3", "FAULT-9f3", "UPSTREAM-KEY-9f3", secret)
    prompt, answer, session, fault, upstream_key, _ = hidden
    kinds = {"a": {"kind": "vllm", "api_key": upstream_key}, "b": {"kind": "sglang", "api_key": upstream_key}}
    models = (model("m", "a", failed="spare"), model("spare", "b"))
    usage = {"prompt_tokens": 40, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 30}}
    async with FleetHouse(kinds=kinds, models=models) as house:
        house.gateway.entry = Entry(Keyring(tmp_path / "keys.json"))
        client = await house.client()
        client.send(post(prompt, headers=f"x-api-key: {secret}\r\nx-claude-code-session-id: {session}\r\n"))
        visit = await house.visit()
        visit.refuse(500, b'{"error":{"message":"%b"}}' % fault.encode())
        visit = await house.visit()
        visit.head()
        visit.send(frame({"content": answer}), frame(finish="stop"), frame(choices=[], usage=usage))
        visit.done()
        assert answer in (await client.response()).text
        line = await house.record()
        told = {
            "surface": "messages",
            "key": "alice",
            "model": "m",
            "fallback": "spare",
            "upstream": "b",
            "kind": "sglang",
            "retries": 1,
            "further": {"failed": 1},
            "input_tokens": 10,
            "cached_tokens": 30,
            "cause": "finished",
        }
        assert {name: line[name] for name in told} == told
        said = json.dumps(house.said.entries, default=str)
        assert [word for word in hidden if word in said] == []
        assert "127.0.0.1" not in said
