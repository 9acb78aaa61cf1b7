"""The native upstream's pipeline for tests: its bytes in, the client's bytes out, no socket between.

    heard(message_start(), *text_block(0, "Hi"), *end())     ["text Hi", "end_turn"]

`heard` plays the frames one by one, in one piece, byte by byte, and to a client that does not stream; all must
be legal and tell the same.
"""

import json
from collections import Counter
from dataclasses import dataclass, field

from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.parts import Fault
from antiphon.core.passage import Passage
from pipeline import CUT, counting_entropy, judge, run

OTHER_BLOCKS = ("server_tool_use", "web_search_tool_result", "mcp_tool_use", "compaction", "new_block")


@dataclass
class Told:
    """What a client has: `body` of a stream, or `message`, or `fault` where nothing was committed."""

    body: bytes = b""
    fault: Fault | None = None
    message: dict | None = None
    counts: Counter = field(default_factory=Counter)
    answer: Passage | None = None

    @property
    def events(self) -> list[dict]:
        events, problems = run.decode_sse(self.body)
        assert not problems, problems
        return events


def request(stop_sequences: tuple[str, ...] = (), input_estimate: int = 11) -> ChatRequest:
    return ChatRequest(
        body=b"{}",
        ignored=(),
        degraded=(),
        stop_sequences=stop_sequences,
        input_estimate=input_estimate,
        history_tool_ids=frozenset(),
        tool_names={},
    )


def passage(
    counts: Counter | None = None, *, streaming: bool = True, stop_sequences=(), **options
) -> Passage:
    return Passage(
        request(stop_sequences),
        model="a-model",
        message_id="msg_ours",
        request_id="req_1",
        streaming=streaming,
        entropy=counting_entropy(),
        counts=Counter() if counts is None else counts,
        **options,
    )


def tell(chunks, end: str = "eof", *, streaming: bool = True, reads=None, **options) -> Told:
    """Play reads of an upstream. `end`: eof or reset. `reads` tells after which read the client reads."""
    told = Told()
    told.answer = answer = passage(told.counts, streaming=streaming, **options)
    for number, chunk in enumerate(chunks):
        answer.feed(chunk)
        answer.fold()
        if reads is None or reads(number):
            told.body += answer.frames()
    answer.end(None if end == "eof" else CUT)
    told.body += answer.frames()
    assert answer.frames() == b""
    assert answer.ended
    if not streaming:
        assert told.body == b""
        message = answer.message()
        told.message = json.loads(message) if message is not None else None
        told.fault = answer.fault
        assert (told.message is None) == (told.fault is not None)
    elif not answer.committed:
        told.fault = answer.fault
        assert told.body == b""
    return told


def check(told: Told) -> dict:
    """The strict judge's word on a stream, and its fold. A native upstream's own ids are kept."""
    broken = judge.violations(told.events, envelope=False, extra_blocks=OTHER_BLOCKS)
    assert broken == [], broken[:3]
    return judge.summary(told.events)


def heard(*frames: bytes, end: str = "eof", **options) -> list[str]:
    whole = b"".join(frames)
    first = tell(frames, end, **options)
    lines = lines_of(first)
    for pieces in ([whole], [whole[i : i + 1] for i in range(len(whole))]):
        again = tell(pieces, end, **options)
        assert again.body == first.body
        assert again.counts == first.counts
    folded = tell(frames, end, streaming=False, **options)
    if first.fault is not None:
        assert folded.fault == first.fault
    elif lines[-1].startswith("error "):
        assert folded.fault.kind == lines[-1].split(" ")[1].removesuffix(":")
    elif folded.fault is None:
        assert lines_of_message(folded.message) == lines
    return lines


def lines_of(told: Told) -> list[str]:
    """One line a block, one for the end; a block that was left open has an ellipsis behind it."""
    if told.fault is not None:
        return [f"HTTP {told.fault.status} {told.fault.kind}: {told.fault.message}"]
    summary = check(told)
    lines = [_block(block) for block in summary["content"]]
    stops = sum(event["type"] == "content_block_stop" for event in told.events)
    assert stops >= len(lines) - 1
    if stops < len(lines):
        lines[-1] += " ..."
    if summary["error"]:
        return [*lines, f"error {summary['error']['type']}: {summary['error']['message']}"]
    return [*lines, _end(summary)]


def lines_of_message(message: dict) -> list[str]:
    return [*map(_block, message["content"]), _end(message)]


def _end(message: dict) -> str:
    reason = message["stop_reason"]
    return f"{reason} {message['stop_sequence']!r}" if reason == "stop_sequence" else reason


def _block(block: dict) -> str:
    kind = block["type"]
    if kind == "text":
        return f"text {block['text']}"
    if kind == "thinking":
        return f"thinking {block['thinking']}" + (
            f" [{block['signature']}]" if block.get("signature") else ""
        )
    if kind == "tool_use":
        given, id_ = block["input"], block["id"]
        id_ = "made" if id_.startswith("toolu_") and id_.isupper() else id_
        return f"tool {id_} {block['name']} " + (given if isinstance(given, str) else json.dumps(given))
    return f"({kind})"


# --- what an upstream says ---


def frame(payload: dict | str, name: str | None = "") -> bytes:
    """One frame. `name` "" is the payload's type, None no `event:` line."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    if name == "":
        name = payload["type"]
    return (f"event: {name}\n" if name is not None else "").encode() + f"data: {text}\n\n".encode()


def message_start(**fields) -> bytes:
    message = {
        "id": "msg_theirs",
        "type": "message",
        "role": "assistant",
        "model": "their-model",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 1},
    } | fields
    return frame({"type": "message_start", "message": {k: v for k, v in message.items() if v is not ...}})


def start(index, kind="text", **fields) -> bytes:
    empty = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"id": "toolu_1", "name": "f", "input": {}},
    }.get(kind, {})
    block = {key: value for key, value in ({"type": kind} | empty | fields).items() if value is not ...}
    return frame({"type": "content_block_start", "index": index, "content_block": block})


def delta(index, word, **fields) -> bytes:
    return frame({"type": "content_block_delta", "index": index, "delta": {"type": word, **fields}})


def said(index, text) -> bytes:
    return delta(index, "text_delta", text=text)


def thought(index, text) -> bytes:
    return delta(index, "thinking_delta", thinking=text)


def signed(index, signature) -> bytes:
    return delta(index, "signature_delta", signature=signature)


def args(index, text) -> bytes:
    return delta(index, "input_json_delta", partial_json=text)


def stop(index) -> bytes:
    return frame({"type": "content_block_stop", "index": index})


def message_delta(reason="end_turn", matched=None, usage=..., **fields) -> bytes:
    usage = {"output_tokens": 5} if usage is ... else usage
    payload = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": matched, **fields}}
    return frame(payload | ({"usage": usage} if usage is not None else {}))


MESSAGE_STOP = frame({"type": "message_stop"})
PING = frame({"type": "ping"})


def end(reason="end_turn", **fields) -> tuple[bytes, bytes]:
    return message_delta(reason, **fields), MESSAGE_STOP


def text_block(index, *texts) -> list[bytes]:
    return [start(index), *(said(index, text) for text in texts), stop(index)]


def thinking_block(index, *texts, signature="sig") -> list[bytes]:
    pieces = [thought(index, text) for text in texts]
    return [
        start(index, "thinking"),
        *pieces,
        *([signed(index, signature)] if signature else []),
        stop(index),
    ]


def tool_block(index, *texts, id_="toolu_1", name="f") -> list[bytes]:
    return [start(index, "tool_use", id=id_, name=name), *(args(index, text) for text in texts), stop(index)]


def error(kind="overloaded_error", message="Overloaded") -> bytes:
    return frame({"type": "error", "error": {"type": kind, "message": message}})
