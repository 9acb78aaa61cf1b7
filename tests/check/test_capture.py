"""Captures: what the bytes are, and where their violations stand."""

import json

import pytest

from antiphon.check.capture import NotAnAnswer, judge_capture
from check import samples as s


def test_a_good_stream():
    judged = judge_capture(s.sse(s.legal()))
    assert (judged.form, judged.violations, judged.remarks) == ("stream", [], [])


def test_violations_are_numbered_as_the_frames_are():
    events = s.legal()
    del events[8]
    body = b": comment\n\n" + s.sse(events[:3]) + b"event: x\ndata: {\n\n" + s.sse(events[3:])
    judged = judge_capture(body)
    assert [(v.rule, v.at) for v in judged.violations] == [("frame.json", 4), ("block.overlap", 10)]
    assert judged.lines[10] == 30


def test_what_has_no_number_comes_last():
    judged = judge_capture(s.sse(s.legal()[:-1]) + b"event: x\ndata: {\n\n")
    assert [v.rule for v in judged.violations] == ["frame.json", "end.missing"]


def test_heads_of_curl_are_skipped():
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    assert judge_capture(head + s.sse(s.legal())).violations == []


def test_a_whole_message():
    body = {"type": "error", "error": {"type": "api_error", "message": "no"}, "request_id": "r"}
    judged = judge_capture(json.dumps(body).encode())
    assert (judged.form, judged.violations, judged.folded.error["message"]) == ("message", [], "no")
    assert judge_capture(b'{"type":"message"}').violations


@pytest.mark.parametrize(
    "body", [b"", b"\n\n", b"<html>", b"{", b"\x00\xff", b"data: [DONE]\n\n", b"[" * 9999]
)
def test_what_is_no_answer(body):
    with pytest.raises(NotAnAnswer):
        judge_capture(body)
