"""Real Claude Code turns, posted to a live gateway: legal streams, nothing lost, and stable bytes upstream."""

from __future__ import annotations

import http.client
import json

import pytest

from live_gateway import gateway, simulator
from pipeline import DATA, judge, run
from recording_upstream import RecordingUpstream

TURNS = [json.loads(path.read_text()) for path in sorted((DATA / "requests").glob("*.json"))]


def post(base_url, turn, **headers):
    """Status, headers and body of the answer to a recorded request."""
    connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=60)
    try:
        connection.request(turn["method"], turn["path"], json.dumps(turn["body"]), turn["headers"] | headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    with simulator(folder) as upstream, gateway(folder, upstream.base_url) as antiphon:
        yield antiphon


@pytest.fixture(scope="module")
def bodies(tmp_path_factory):
    """What reached the upstream for each turn, in order."""
    with (
        RecordingUpstream() as upstream,
        gateway(tmp_path_factory.mktemp("bytes"), upstream.base_url) as antiphon,
    ):
        for turn in TURNS:
            status, _, body = post(antiphon.base_url, turn)
            assert status == 200, body
        yield [request.body for request in upstream.requests]


def test_there_are_three_consecutive_turns():
    sizes = [len(turn["body"]["messages"]) for turn in TURNS]
    assert sizes == [2, 4, 6]


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: f"{len(turn['body']['messages'])}-messages")
def test_a_recorded_turn_gives_a_legal_stream_in_strict_mode(scripted, turn):
    status, headers, body = post(scripted.base_url, turn, **{"antiphon-strict": "true"})
    assert status == 200, body
    assert "antiphon-degraded" not in headers
    assert headers["content-type"].startswith("text/event-stream")
    events, problems = run.decode_sse(body)
    assert problems + judge.violations(events) == []
    assert events[-1]["type"] == "message_stop"
    assert events[0]["message"]["usage"]["input_tokens"] > 10_000


def test_the_upstream_gets_each_turn_as_a_byte_prefix_of_the_next(bodies):
    assert len(bodies) == len(TURNS)
    for shorter, longer in zip(bodies, bodies[1:], strict=False):
        assert shorter.endswith(b"]}")  # of the messages, and of the body: they come last
        assert longer.startswith(shorter[:-2] + b",")


def test_tools_and_system_are_the_same_in_every_turn(bodies):
    requests = [json.loads(body) for body in bodies]
    assert [len(request["tools"]) for request in requests] == [24, 24, 24]
    systems = []
    for request in requests:
        assert request["tools"] == requests[0]["tools"]
        assert request["messages"][0]["role"] == "system"
        systems.append(request["messages"][0])
    assert systems.count(systems[0]) == len(TURNS)
    assert "x-anthropic-billing-header" not in json.dumps(systems)


def test_nothing_of_the_account_reaches_the_upstream(bodies):
    for turn, body in zip(TURNS, bodies, strict=True):
        assert turn["body"]["metadata"]["user_id"].encode() not in body
        assert b"device_id" not in body
