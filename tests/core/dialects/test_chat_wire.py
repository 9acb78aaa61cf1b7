"""The fast path and the tolerant path say the same; what the fast path leaves to the other."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings

from antiphon.core.dialects import chat_stream
from antiphon.core.dialects.chat_stream import ChatStream
from antiphon.core.dialects.chat_wire import LARGEST_COUNT, Chunk, WireUsage, decode_chunk, usage_part
from antiphon.core.parts import Usage
from hostile import STREAMS
from pipeline import CORPUS, DATA, chunks_of

BODIES = [chunks_of(case) for case in CORPUS if case["trigger"]["kind"] in ("openai_sse", "raw_body")]
BODIES += [[path.read_bytes()] for path in sorted((DATA / "streams").glob("*.sse"))]


def parts(chunks, monkeypatch=None):
    counts = Counter()
    with pytest.MonkeyPatch.context() as patch:
        if monkeypatch:
            patch.setattr(chat_stream, "decode_chunk", lambda payload: None)
        reader = ChatStream(counts=counts, stop_sequences=("END", " STOP"))
        return [part for chunk in chunks for part in reader.feed(chunk)] + reader.end(), counts


@pytest.mark.parametrize("chunks", BODIES, ids=range(len(BODIES)))
def test_every_known_frame_both_ways(chunks):
    assert parts(chunks) == parts(chunks, True)


@given(STREAMS)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_hostile_frames_both_ways(chunks):
    assert parts(chunks) == parts(chunks, True)


def chunk(fields=None, /, **top):
    return json.dumps(
        {"choices": [{"index": 0, "delta": {"content": "Hi"}, **(fields or {})}], **top}
    ).encode()


def test_most_frames_are_the_fast_path_s():
    fast = slow = 0
    for path in (DATA / "streams").glob("*.sse"):
        for line in path.read_bytes().splitlines():
            if line.startswith(b"data: {"):
                if decode_chunk(line[6:]) is None:
                    slow += 1
                    assert b'"choices":[]' in line  # once for each message
                else:
                    fast += 1
    assert fast > 10 * slow > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": None, "token_ids": [1], "finish_reason": None, "stop_reason": None, "matched_stop": 7},
        {"delta": {"content": None, "tool_calls": None, "function_call": None, "reasoning_details": None}},
        {"delta": None, "message": None, "usage": None, "error": None},
        {
            "delta": {
                "tool_calls": [
                    {"index": 0, "id": None, "type": None, "function": {"name": None}, "extra": {}}
                ]
            }
        },
    ],
)
def test_taken(fields):
    assert isinstance(decode_chunk(chunk(fields)), Chunk)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[DONE]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":null}',
        chunk({"message": {}}),
        chunk({"usage": {}}),
        chunk({"error": {}}),
        chunk({"index": -1}),
        chunk({"delta": {"content": []}}),
        chunk({"delta": {"content": "\ud83d"}}),
        chunk({"delta": {"reasoning_details": []}}),
        chunk({"delta": {"function_call": {}}}),
        chunk({"delta": {"tool_calls": [{"index": -1}]}}),
        chunk({"delta": {"tool_calls": [{"index": "0"}]}}),
        chunk({"delta": {"tool_calls": [{"function": {"arguments": {}}}]}}),
        chunk(error="x"),
        chunk(object="error"),
        chunk(type="error"),
        chunk(base_resp={"status_code": 1}),
        chunk(usage={"prompt_tokens": -1}),
        chunk(usage={"prompt_tokens": LARGEST_COUNT + 1}),
        b'{"choices":[' + b"[" * 5000,
    ],
)
def test_left_to_the_other(payload):
    assert decode_chunk(payload) is None


@pytest.mark.parametrize(
    "report, want",
    [
        ({}, None),
        ({"total_tokens": 7, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": 0}, Usage(prompt=0)),
        ({"prompt_tokens": 7, "completion_tokens": 2}, Usage(7, 2)),
        ({"prompt_tokens_details": {"cached_tokens": 3}, "prompt_cache_hit_tokens": 9}, Usage(cache_read=3)),
        ({"prompt_tokens_details": {}, "prompt_cache_hit_tokens": 9}, Usage(cache_read=9)),
        ({"prompt_tokens_details": {"created_cache_tokens": 3}}, Usage(cache_write=3)),
        (
            {"prompt_tokens_details": {"cache_write_tokens": 4, "created_cache_tokens": 3}},
            Usage(cache_write=4),
        ),
        ({"completion_tokens_details": {"reasoning_tokens": 3}, "reasoning_tokens": 9}, Usage(reasoning=3)),
        ({"reasoning_tokens": 9}, Usage(reasoning=9)),
    ],
)
def test_usage(report, want):
    taken = decode_chunk(chunk(usage=report))
    assert usage_part(taken.usage) == want


def test_usage_that_says_nothing():
    assert usage_part(WireUsage()) is None
