"""One conversation with each row's server, both ways: what it is sent, what it answers, what a client hears.

A transcript is a JSON file in `data/transcripts`. `request` is a client's, `body` exactly what goes upstream for
it. Each of `answers` is a stream (`frames`, or a `file` of `data/streams`) with the events that a client hears
and the message that a client without streaming gets; or `told`, where there is no message to get. `next` is
what goes upstream when the client has answered that message's calls. Each of `errors` is a refusal over HTTP,
and what a client is told of it. `source` says where the server's side is from.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from antiphon.core import faults
from antiphon.core.dialects.chat_request import ChatRequest, encode
from antiphon.core.dialects.quirks import by_name, names
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.request import parse
from antiphon.core.translation import Translation
from core.chat_schema import check_messages, check_tools
from pipeline import DATA, counting_entropy, judge, run

FOLDER = DATA / "transcripts"
SEALER = Sealer(b"k" * 32)
TRANSCRIPTS = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
ANSWERS = [(each, answer) for each in TRANSCRIPTS for answer in each["answers"]]
ERRORS = [(each, error) for each in TRANSCRIPTS for error in each["errors"]]


# --- What goes upstream ---------------------------------------------------------------------------


def asked(transcript: dict, **changes: Any) -> ChatRequest:
    """The transcript's request, or one with other members, as its server gets it."""
    row, sends = by_name(transcript["row"]), transcript["sends"]
    return encode(
        parse(msgspec.json.encode(transcript["request"] | changes)),
        row,
        model=sends,
        unseal=partial(SEALER.open, row.name, sends),
        pseudonym=SEALER.pseudonym,
    )


def calls_of(message: dict) -> list[dict]:
    return [block for block in message["content"] if block["type"] == "tool_use"]


def next_messages(transcript: dict, message: dict) -> list[dict]:
    """What goes upstream of the new turns, when a client has answered the calls of a message."""
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": "Sunny."} for call in calls_of(message)
    ]
    turns = [
        *transcript["request"]["messages"],
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": results},
    ]
    sent = json.loads(asked(transcript, messages=turns).body)["messages"]
    check_messages(sent, by_name(transcript["row"]))
    return sent[len(json.loads(asked(transcript).body)["messages"]) :]


# --- What comes back ------------------------------------------------------------------------------


def stream_of(answer: dict) -> bytes:
    if "file" in answer:
        return (DATA / "streams" / answer["file"]).read_bytes()
    return b"".join(frame.encode() + b"\n\n" for frame in answer["frames"])


def translation(transcript: dict, *, streaming: bool) -> Translation:
    row = by_name(transcript["row"])
    return Translation(
        asked(transcript),
        model=transcript["request"]["model"],
        message_id="msg_1",
        request_id="req_1",
        streaming=streaming,
        entropy=counting_entropy(),
        counts=Counter(),
        think_tags=row.think_tags,
        seal=partial(SEALER.seal, row.name, transcript["sends"]),
    )


def told(fault: Fault) -> str:
    wait = f", retry after {fault.retry_after} s" if fault.retry_after else ""
    return f"HTTP {fault.status} {fault.kind}{wait}: {fault.message}"


def answered(transcript: dict, answer: dict, cut: int | None = None) -> dict:
    """`events` and `message` of an answer that comes in pieces of `cut` bytes (None: frame by frame)."""
    data = stream_of(answer)
    pieces = (
        data.splitlines(keepends=True)
        if cut is None
        else [data[i : i + cut] for i in range(0, len(data), cut)]
    )
    streamed = translation(transcript, streaming=True)
    folded = translation(transcript, streaming=False)
    body = b""
    for piece in pieces:
        streamed.feed(piece)
        body += streamed.frames() if streamed.stream.committed else b""
        folded.feed(piece)
        folded.fold()
    streamed.end()
    folded.end()
    folded.fold()
    if streamed.stream.committed:
        body += streamed.frames()
    found: dict[str, Any] = {}
    if body:
        events, problems = run.decode_sse(body)
        assert not problems, problems
        assert judge.violations(events) == []
        found["events"] = events
    message = folded.message()
    if message is not None:
        found["message"] = json.loads(message)
    elif folded.fault is not None:
        found["told"] = told(folded.fault)
    return found


def told_of(error: dict) -> str:
    body = json.dumps(error["body"]).encode()
    return told(faults.fault_of_response(error["status"], error.get("headers", {}), body))


def filled(transcript: dict) -> dict:
    """The transcript with everything that the code says filled in; the given parts stay as they are."""
    out = asked(transcript)
    answers = []
    for answer in transcript["answers"]:
        given = {name: answer[name] for name in ("title", "frames", "file") if name in answer}
        got = answered(transcript, answer)
        if calls_of(got.get("message", {"content": []})):
            got["next"] = next_messages(transcript, got["message"])
        answers.append(given | got)
    return {
        **{name: transcript[name] for name in ("row", "source", "sends", "request")},
        "body": json.loads(out.body),
        "ignored": list(out.ignored),
        "degraded": list(out.degraded),
        "answers": answers,
        "errors": [{**error, "told": told_of(error)} for error in transcript["errors"]],
    }


# --- The tests ------------------------------------------------------------------------------------


def by_row(value: Any) -> str:
    return value.get("row") or value.get("title") or str(value.get("status"))


def test_every_row_has_a_transcript():
    chat = {name for name in names() if by_name(name).speaks == "chat"}
    assert {each["row"] for each in TRANSCRIPTS} == chat
    for each in TRANSCRIPTS:
        assert each["source"]
        assert each["answers"]
        assert each["errors"]


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=by_row)
def test_the_request(transcript):
    out = asked(transcript)
    assert out.body == msgspec.json.encode(transcript["body"])
    assert list(out.ignored) == transcript["ignored"]
    assert list(out.degraded) == transcript["degraded"]
    row = by_name(transcript["row"])
    check_tools(transcript["body"], row)
    check_messages(transcript["body"]["messages"], row)


@pytest.mark.parametrize("transcript, answer", ANSWERS, ids=by_row)
def test_an_answer(transcript, answer):
    expected = {name: answer[name] for name in ("events", "message", "told") if name in answer}
    assert expected
    assert answered(transcript, answer) == expected


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
@pytest.mark.parametrize("transcript, answer", ANSWERS, ids=by_row)
def test_an_answer_however_the_network_cuts_it(transcript, answer, cut):
    got = answered(transcript, answer, cut)
    assert got.get("message") == answer.get("message")
    assert got.get("told") == answer.get("told")
    if "events" in got and "events" in answer:
        assert judge.summary(got["events"]) == judge.summary(answer["events"])


@pytest.mark.parametrize("transcript, answer", [case for case in ANSWERS if "next" in case[1]], ids=by_row)
def test_the_turn_after_its_calls(transcript, answer):
    assert next_messages(transcript, answer["message"]) == answer["next"]


def test_every_answer_with_calls_has_a_next_turn():
    for _, answer in ANSWERS:
        assert ("next" in answer) == bool(calls_of(answer.get("message", {"content": []})))


@pytest.mark.parametrize("transcript, error", ERRORS, ids=by_row)
def test_an_error(transcript, error):
    assert told_of(error) == error["told"]


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.json")):
        whole = filled(json.loads(path.read_text()))
        path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
