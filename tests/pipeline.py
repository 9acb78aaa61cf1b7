"""The pure pipeline for tests: upstream bytes in, the client's bytes out, no socket between."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
from collections import Counter
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
    count = iter(range(1 << 30))
    return lambda size: next(count).to_bytes(size, "big")


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


def new_stream(counts: Counter | None = None, *, taken: frozenset[str] = frozenset(), input_tokens: int = 11, **options):
    entropy = counting_entropy()
    seen: set[str] = set(taken)

    def tool_id(original: str | None) -> str:
        made = tool_ids.outgoing(original, taken=seen, entropy=entropy)
        seen.add(made)
        return made

    return Stream(tool_id=tool_id, input_tokens=input_tokens, counts=Counter() if counts is None else counts, **options)


def play_parts(batches: list[list[Part]], counts: Counter | None = None, **options) -> Result:
    """Feed batches of parts, taking events after each, as a client that always reads would."""
    counts = Counter() if counts is None else counts
    stream = new_stream(counts, **options)
    return _collect(stream, batches, counts)


def _collect(stream: Stream, batches, counts: Counter) -> Result:
    encoder = EventEncoder(message_id="msg_1", model="a-model", request_id="req_1")
    fold = Fold(message_id="msg_1", model="a-model", counts=counts)
    result = Result(counts=counts)
    for parts in batches:
        stream.receive(parts)
        events = stream.take()
        result.events += events
        result.body += encoder.encode(events)
        fold.add(events)
    if not stream.committed:
        result.fault = stream.fault
    elif any(isinstance(event, Error) for event in result.events) or stream.ended:
        message = fold.message()
        result.message = json.loads(message) if message is not None else None
        result.fold_fault = fold.fault
    return result


def play(chunks: list[bytes], end: str = "eof", *, stop_sequences: tuple[str, ...] = (), **options) -> Result:
    """Upstream reads in, a `Result` out. `end`: eof, reset or hang (then it is a grace that ran out)."""
    counts: Counter = Counter()
    reader = ChatStream(counts=counts, stop_sequences=stop_sequences)
    stream = new_stream(counts, **options)

    def batches():
        for chunk in chunks:
            yield reader.feed(chunk)
        yield reader.end(None if end == "eof" else CUT)

    return _collect(stream, batches(), counts)


def chunks_of(case: dict) -> list[bytes]:
    """The reads of a corpus case's upstream."""
    trigger = case["trigger"]
    if trigger["kind"] == "openai_sse":
        return [f"data: {line}\n\n".encode() for line in trigger["data"]]
    if trigger["kind"] == "raw_body":
        return [bytes.fromhex(piece) for piece in trigger["chunks_hex"]]
    return [trigger["body"].encode()]
