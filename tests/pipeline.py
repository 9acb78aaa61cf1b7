"""The pure pipeline for tests: upstream bytes in, the client's bytes out, no socket between.

    play(chunks_of(case))                                   a `Result`
    transcript(said("Hi"), finish("stop"), DONE)            ["text Hi", "end_turn"]

A transcript is one line for each block and one for the end. A block that was left open has an ellipsis
behind it. `transcript` plays its chunks as they are, in one piece, byte by byte, and to a client that reads
late; every one of them must be legal and tell the same.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from antiphon.core import tool_ids
from antiphon.core.dialects.chat_stream import ChatStream
from antiphon.core.parts import Error, Event, Fault, Part
from antiphon.core.stream import Stream
from antiphon.core.surfaces.messages.events import EventEncoder
from antiphon.core.surfaces.messages.fold import Fold

HERE = pathlib.Path(__file__).parent
DATA = HERE / "data"


def load_pinned(name: str):
    """A module of the pinned conformance suite (`judge` or `run`)."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, HERE / "conformance" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


judge = load_pinned("judge")
run = load_pinned("run")

CORPUS = [
    json.loads(line)
    for name in ("corpus.jsonl", "own.jsonl")
    for line in (HERE / "conformance" / name).read_text().split("\n")
    if line.strip()
]
CUT = Fault("api_error", "the connection to the upstream was lost", 502)


def counting_entropy():
    """Bytes of 0 to 31 that count up: what `tool_ids` makes of them differs each time."""
    count = itertools.count()

    def entropy(size: int) -> bytes:
        number = next(count)
        return bytes(number >> 5 * digit & 31 for digit in reversed(range(size)))

    return entropy


@dataclass
class Result:
    """What a client would have: `body` of a stream, the events, or `fault` when nothing was committed."""

    body: bytes = b""
    events: list[Event] = field(default_factory=list)
    fault: Fault | None = None
    counts: Counter = field(default_factory=Counter)
    message: dict | None = None
    fold_fault: Fault | None = None

    @property
    def decoded(self) -> list[dict]:
        events, problems = run.decode_sse(self.body)
        assert not problems, problems
        return events


def new_stream(
    counts: Counter | None = None, *, taken: frozenset[str] = frozenset(), input_tokens: int = 11, **options
):
    entropy = counting_entropy()
    seen: set[str] = set(taken)

    def tool_id(original: str | None) -> str:
        made = tool_ids.outgoing(original, taken=seen, entropy=entropy)
        seen.add(made)
        return made

    return Stream(
        tool_id=tool_id, input_tokens=input_tokens, counts=Counter() if counts is None else counts, **options
    )


def play_parts(batches: list[list[Part]], counts: Counter | None = None, **options) -> Result:
    """Feed batches of parts, taking events after each, as a client that always reads would."""
    counts = Counter() if counts is None else counts
    reads = options.pop("reads", None)
    stream = new_stream(counts, **options)
    return _collect(stream, batches, counts, reads)


def _collect(stream: Stream, batches, counts: Counter, reads: Callable[[int], bool] | None = None) -> Result:
    """`reads` tells after which batch the client reads (always, if None); it always does at the end."""
    encoder = EventEncoder(message_id="msg_1", model="a-model", request_id="req_1")
    fold = Fold(message_id="msg_1", model="a-model", counts=counts)
    result = Result(counts=counts)

    def take():
        events = stream.take()
        result.events += events
        result.body += encoder.encode(events)
        fold.add(events)

    for number, parts in enumerate(batches):
        stream.receive(parts)
        if reads is None or reads(number):
            take()
    take()
    assert stream.take() == []
    if not stream.committed:
        result.fault = stream.fault
    elif any(isinstance(event, Error) for event in result.events) or stream.ended:
        message = fold.message()
        result.message = json.loads(message) if message is not None else None
        result.fold_fault = fold.fault
    return result


def play(
    chunks: Iterable[bytes],
    end: str = "eof",
    *,
    stop_sequences: tuple[str, ...] = (),
    think_tags: str = "auto",
    reads: Callable[[int], bool] | None = None,
    **options,
) -> Result:
    """Upstream reads in, a `Result` out. `end`: eof, reset or hang (then it is a grace that ran out)."""
    counts: Counter = Counter()
    reader = ChatStream(counts=counts, stop_sequences=stop_sequences, think_tags=think_tags)
    stream = new_stream(counts, **options)

    def batches():
        for chunk in chunks:
            yield reader.feed(chunk)
        yield reader.end(None if end == "eof" else CUT)

    return _collect(stream, batches(), counts, reads)


def chunks_of(case: dict) -> list[bytes]:
    """The reads of a corpus case's upstream."""
    trigger = case["trigger"]
    if trigger["kind"] == "openai_sse":
        return [f"data: {line}\n\n".encode() for line in trigger["data"]]
    if trigger["kind"] == "raw_body":
        return [bytes.fromhex(piece) for piece in trigger["chunks_hex"]]
    return [trigger["body"].encode()]


# --- transcripts: what an upstream says ---

DONE = b"data: [DONE]\n\n"


def frame(payload: object) -> bytes:
    """One SSE frame; anything that is not text is encoded as JSON."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {text}\n\n".encode()


def delta(finish: str | None = None, /, **fields) -> bytes:
    """A chunk with this delta."""
    return frame({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def said(text: str) -> bytes:
    return delta(content=text)


def thought(text: str) -> bytes:
    return delta(reasoning_content=text)


def call(index=0, id_=None, name=None, args=None) -> dict:
    """One entry of `tool_calls`; what is None is left out (an index, id or text of null: give it a dict)."""
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not None}
    entry = {"index": index, "id": id_, "function": function or None}
    return {key: value for key, value in entry.items() if value is not None}


def tool(index=0, id_=None, name=None, args=None) -> bytes:
    return delta(tool_calls=[call(index, id_, name, args)])


def finish(word: str, **fields) -> bytes:
    return delta(word, **fields)


def usage(prompt, completion, **fields) -> bytes:
    return frame(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **fields}}
    )


# --- transcripts: what a client hears ---


def transcript(*chunks: bytes, end: str = "eof", **options) -> list[str]:
    whole = b"".join(chunks)
    told = told_by(play(chunks, end, **options))
    assert told_by(play([whole], end, **options)) == told
    assert told_by(play([whole[i : i + 1] for i in range(len(whole))], end, **options)) == told
    assert told_by(play(chunks, end, reads=lambda number: number % 3 == 2, **options)) == told
    return told


def told_by(result: Result) -> list[str]:
    """One line a block, one for the end."""
    if result.fault is not None:
        assert result.body == b""
        return [f"HTTP {result.fault.status} {result.fault.kind}: {result.fault.message}"]
    events = result.decoded
    assert judge.violations(events)[:3] == []
    summary = judge.summary(events)
    lines = [_block(block) for block in summary["content"]]
    stops = sum(event["type"] == "content_block_stop" for event in events)
    assert stops >= len(lines) - 1
    if stops < len(lines):
        lines[-1] += " ..."
    if summary["error"]:
        return [*lines, f"error {summary['error']['type']}: {summary['error']['message']}"]
    end = summary["stop_reason"]
    return [*lines, f"{end} {summary['stop_sequence']!r}" if end == "stop_sequence" else end]


def _block(block: dict) -> str:
    if block["type"] == "text":
        return f"text {block['text']}"
    if block["type"] == "thinking":
        return f"thinking {block['thinking']}" + (f" [{block['signature']}]" if block["signature"] else "")
    given, id_ = block["input"], block["id"]
    if id_.startswith("toolu_ap"):
        id_ = f"({tool_ids.original(id_)})"  # wrapped
    elif id_.startswith("toolu_"):
        id_ = "made"
    return f"tool {id_} {block['name']} " + (given if isinstance(given, str) else json.dumps(given))
