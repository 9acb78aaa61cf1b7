"""Hostile and broken bytes: requests, event streams, error bodies. Nothing raises, and what comes out is legal.

Inputs are mutations of real ones (the public corpus, captured requests and streams, tests/data/fuzz) from a
fixed seed; one that leads somewhere new joins the pool. The time is boxed: a second for each target in the
ordinary suite, `ANTIPHON_FUZZ_SECONDS` (a minute) where `-m live` was asked for. An input that breaks
something is appended to tests/data/fuzz/TARGET.jsonl, and is played first from then on.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import time
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.quirks import by_name, names
from antiphon.core.faults import fault_of_response
from antiphon.core.sse import SseDecoder
from antiphon.core.surfaces.messages.request import RequestError, parse
from pipeline import CORPUS, DATA, Result, chunks_of, judge, play

pytestmark = [pytest.mark.live, pytest.mark.timeout(0)]

FUZZ = DATA / "fuzz"
LONGEST = 64 * 1024
LONGEST_FRAME = 4096
POOL = 4000

# --- Mutations ------------------------------------------------------------------------------------

ODD_VALUES = [
    *[None, True, False, 0, -1, 7.0, 1e308, 2**70, "", " ", "\ud800", "\udc00", "\u2028", "é😀", "x" * 300],
    *[[], {}, [[]], {"type": "text"}, {"type": "text", "text": None}, [{"type": "tool_result"}], {"": ""}],
]
TOKENS = [
    *[
        b"\n\n",
        b"\r",
        b"\r\n",
        b"\n",
        b":",
        b"data:",
        b"data: ",
        b"event: error\n",
        b"id: 1\n",
        b"\xef\xbb\xbf",
    ],
    *[
        b"[DONE]",
        b"data: [DONE]\n\n",
        b"null",
        b"{}",
        b"[]",
        b'""',
        b"\\ud83d",
        b"\\ude00",
        b"\\u0000",
        b"\xff",
    ],
    *[b"<think>", b"</think>", b"<thi", b'"finish_reason":"stop"', b'"error":{"message":"x"}', b'"index":-1'],
    *[
        b'"tool_calls":[{}]',
        b"[" * 300,
        b'{"a":' * 300,
        b"1e999",
        b"-0",
        b'{"choices":[]}',
        b"\x00",
        b"\x1f\x8b",
    ],
]


def bytes_mutated(random: random.Random, data: bytes, other: bytes) -> bytes:
    position = random.randrange(len(data) + 1)
    end = min(len(data), position + random.choice([1, 2, 8, 64, 1024]))
    match random.randrange(6):
        case 0:
            return data[:position] + bytes([random.randrange(256)]) + data[position + 1 :]
        case 1:
            return data[:position] + data[end:]
        case 2:
            return data[:position] + random.choice(TOKENS) + data[position:]
        case 3:
            return data[:position] + data[position:end] * random.choice([2, 3, 40]) + data[end:]
        case 4:
            return data[:position] + other[random.randrange(len(other) + 1) :]
        case _:
            return data[:position]


def value_mutated(random: random.Random, value: Any) -> Any:
    """A JSON value with one place changed: replaced, doubled, gone, or wrapped."""
    children = (
        list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    )
    if children and random.random() < 0.85:
        chosen = random.choice(list(children))
        match random.randrange(8) if isinstance(value, dict | list) else 0:
            case 0 if isinstance(value, dict):
                return {name: each for name, each in value.items() if name != chosen}
            case 0:
                return value[:chosen] + value[chosen + 1 :]
            case 1 if isinstance(value, list):
                return value[:chosen] + [value[chosen]] * 2 + value[chosen + 1 :]
            case 1:
                return {
                    **value,
                    random.choice(["type", "text", "content", "id", "name", "new"]): value[chosen],
                }
            case _:
                copy = dict(value) if isinstance(value, dict) else list(value)
                copy[chosen] = value_mutated(random, value[chosen])
                return copy
    return random.choice([*ODD_VALUES, [value], {"type": "text", "text": value}])


def json_mutated(random: random.Random, data: bytes) -> bytes:
    try:
        return json.dumps(value_mutated(random, json.loads(data))).encode()
    except (ValueError, RecursionError):
        return data


def frame_mutated(random: random.Random, data: bytes) -> bytes:
    """An event stream with one frame changed, doubled, moved or dropped."""
    frames = data.split(b"\n\n")
    chosen = random.randrange(len(frames))
    frame = frames.pop(chosen)
    match random.randrange(4):
        case 0:
            frames.insert(random.randrange(len(frames) + 1), frame)
        case 1:
            frames[chosen:chosen] = [frame, frame]
        case 2:
            frames.insert(chosen, b"data: " + json_mutated(random, frame.removeprefix(b"data: ")))
        case _:
            pass
    return b"\n\n".join(frames)


def mutated(
    random: random.Random, pool: list[bytes], structure: Callable[[random.Random, bytes], bytes]
) -> bytes:
    data = random.choice(pool)
    for _ in range(random.choice([1, 1, 2, 4])):
        if random.random() < 0.6:
            data = structure(random, data)
        else:
            data = bytes_mutated(random, data, random.choice(pool))
    return data[:LONGEST]


def cut(random: random.Random, data: bytes) -> list[bytes]:
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.choice([1, 3, 20])))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


# --- The loop -------------------------------------------------------------------------------------


@pytest.fixture
def seconds(request) -> float:
    asked = "live" in request.config.getoption("markexpr", "")
    return float(os.environ.get("ANTIPHON_FUZZ_SECONDS", "60" if asked else "1"))


def kept(target: str) -> list[bytes]:
    """One input a line: a JSON string with a character for each byte."""
    lines = (FUZZ / f"{target}.jsonl").read_text().splitlines()
    return [json.loads(line).encode("latin-1") for line in lines]


def keep(target: str, data: bytes) -> None:
    if data not in kept(target):
        with (FUZZ / f"{target}.jsonl").open("a") as file:
            file.write(json.dumps(data.decode("latin-1")) + "\n")


def fuzz(
    target: str,
    seeds: list[bytes],
    check: Callable[[bytes, random.Random], Hashable],
    structure: Callable[[random.Random, bytes], bytes],
    seconds: float,
) -> None:
    """`check` raises for a broken promise, and says where an input led."""
    random_ = random.Random(20261021)
    pool = [*kept(target), *seeds]
    seen = {tried(target, check, data) for data in pool}
    count = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutated(random_, pool, structure)
        count += 1
        led = tried(target, check, data)
        if led not in seen and len(pool) < POOL:
            seen.add(led)
            pool.append(data)
    print(f"{target}: {count} inputs, {len(seen)} different outcomes")
    assert count > 0


def tried(target: str, check: Callable[[bytes, random.Random], Hashable], data: bytes) -> Hashable:
    """The input decides everything, the cuts too: what is kept can be played again."""
    digest = hashlib.sha256(data).hexdigest()[:12]
    try:
        return check(data, random.Random(digest))
    except Exception as broken:
        keep(target, data)
        raise AssertionError(f"the last line of tests/data/fuzz/{target}.jsonl: {data[:200]!r}") from broken


def pattern(text: str) -> str:
    """A message without what differs from input to input."""
    return re.sub(r"'.*'|`.*`|\d+|: .{80,}", "_", text, flags=re.DOTALL)[:120]


# --- Targets --------------------------------------------------------------------------------------

REQUESTS = [
    json.dumps(case["trigger"]["body"]).encode()
    for case in CORPUS
    if isinstance(case["trigger"].get("body"), dict)
] + [file.read_bytes() for file in sorted((DATA / "requests").glob("*.json"))]
STREAMS = [
    b"".join(chunks_of(case)) for case in CORPUS if case["trigger"]["kind"] in ("openai_sse", "raw_body")
] + [file.read_bytes() for file in sorted((DATA / "streams").glob("*.sse"))]
ERRORS = [case["trigger"]["body"].encode() for case in CORPUS if case["trigger"]["kind"] == "upstream_http"]


def check_request(data: bytes, random_: random.Random) -> Hashable:
    try:
        out = encode(parse(data, counting=random_.random() < 0.1), by_name(random_.choice(names())))
    except RequestError as refused:
        assert refused.fault.status == 400
        assert refused.fault.kind == "invalid_request_error"
        return pattern(refused.fault.message)
    body = json.loads(out.body)
    assert body["messages"]
    assert all(path.isascii() for path in (*out.degraded, *out.ignored))
    assert out.input_estimate >= 0
    return (*map(pattern, out.degraded), *sorted(body), *(message["role"] for message in body["messages"]))


def check_frames(data: bytes, random_: random.Random) -> Hashable:
    def decoded(pieces: list[bytes]) -> tuple[list, bool]:
        decoder = SseDecoder(max_frame=LONGEST_FRAME)
        frames = [frame for piece in pieces for frame in decoder.feed(piece)]
        return frames + decoder.flush(), not decoder.overflow

    whole, fits = decoded([data])
    assert all(len(frame) <= LONGEST_FRAME for _, frame in whole)
    for pieces in (cut(random_, data), [data[i : i + 1] for i in range(len(data[:512]))] + [data[512:]]):
        assert decoded(pieces)[1] == fits
        assert not fits or decoded(pieces)[0] == whole
    return len(whole), fits, {name for name, _ in whole} == {b""}


def check_stream(data: bytes, random_: random.Random) -> Hashable:
    end = random_.choice(["eof", "reset"])
    stops = ("END",) if random_.random() < 0.3 else ()
    whole = play([data], end, stop_sequences=stops)
    judged(whole)
    pieces = play(cut(random_, data), end, stop_sequences=stops)
    judged(pieces)
    for result in (whole, pieces):
        if result.fault is None:
            assert judge.violations(result.decoded, prefix=False) == []
    assert outcome(pieces) == outcome(whole)
    return (
        *dict.fromkeys(event["type"] for event in whole.decoded),
        *sorted(whole.counts),
        outcome(whole)[0],
    )


def judged(result: Result) -> None:
    """There is exactly one of: an error status, an error at the stream's end, a message."""
    if result.fault is not None:
        assert result.body == b""
        assert result.fault.status >= 400
        assert result.fault.message
        return
    assert judge.violations(result.decoded) == []
    kinds = [event["type"] for event in result.decoded]
    assert kinds.count("error") + kinds.count("message_stop") == 1
    assert (result.message is None) == (result.fold_fault is not None)


def outcome(result: Result) -> tuple:
    """What must not depend on how the network cut the bytes."""
    if result.fault is not None:
        return (result.fault.kind, result.fault.status, None)
    return (result.fold_fault.kind if result.fold_fault else "message", None, json.dumps(result.message))


def check_error(data: bytes, random_: random.Random) -> Hashable:
    status = random_.choice([400, 401, 403, 404, 413, 422, 429, 500, 502, 503, 529, 302, 599])
    fault = fault_of_response(status, {"retry-after": data[:20].decode("latin-1")}, data)
    assert 400 <= fault.status <= 599
    assert fault.kind in judge.ERROR_TYPES
    assert fault.message.strip()
    assert len(fault.message) < 10_000
    return fault.kind, fault.status, pattern(fault.message)


def test_request_parser(seconds) -> None:
    fuzz("requests", REQUESTS, check_request, json_mutated, seconds)


def test_sse_decoder(seconds) -> None:
    fuzz("frames", STREAMS, check_frames, frame_mutated, seconds)


def test_stream(seconds) -> None:
    fuzz("streams", STREAMS, check_stream, frame_mutated, seconds)


def test_error_bodies(seconds) -> None:
    fuzz("errors", ERRORS, check_error, json_mutated, seconds)
