"""The lane of core.translation says and counts what the tables do: whatever comes, however it is cut or read."""

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.translation import Translation
from hostile import ENDS, FRAMES, STREAMS
from pipeline import (
    CORPUS,
    CUT,
    DATA,
    DONE,
    call,
    chunks_of,
    counting_entropy,
    delta,
    finish,
    frame,
    said,
    thought,
    tool,
    usage,
)

CHAT = ChatRequest(b"{}", (), (), (" STOP",), 11, frozenset(), {"g": "named"})


class Tables(Translation):
    """The same without the lane."""

    __slots__ = ()

    def _open_lane(self):
        return None


class Counted(Translation):
    """Tells how often the lane was taken."""

    __slots__ = ("taken",)
    taken: int

    def feed(self, data):
        machine = super().feed(data)
        self.taken += not machine
        return machine


def same(reads, end="eof", *, client_reads=lambda number: True, streaming=True, think_tags="auto") -> int:
    """Play these reads both ways and compare after each; how often the lane was taken."""
    pair = []
    for kind in (Counted, Tables):
        counts = Counter()
        answer = kind(
            CHAT,
            model="m",
            message_id="msg_1",
            request_id="req_1",
            streaming=streaming,
            entropy=counting_entropy(),
            counts=counts,
            think_tags=think_tags,
            seal=lambda value: f"sealed{json.dumps(value)}",
            max_frame=4096,
            max_held=64,
        )
        pair.append((answer, counts))
    (quick, _), (slow, _) = pair
    quick.taken = 0

    def take(answer):
        return answer.frames() if streaming else answer.fold()

    for number, data in enumerate(reads):
        quick.feed(data)
        slow.feed(data)
        if client_reads(number):
            assert take(quick) == take(slow)
        assert state(*pair[0]) == state(*pair[1])
    for answer, _ in pair:
        answer.end(None if end == "eof" else CUT)
    assert take(quick) == take(slow)
    assert take(quick) == take(slow)
    assert state(*pair[0]) == state(*pair[1])
    if not streaming:
        assert quick.message() == slow.message()
    return quick.taken


def state(answer, counts):
    """What a shell and a record can see."""
    stream = answer.stream
    return (
        counts,
        stream.phase,
        stream.usage,
        stream.pending,
        stream.blocks.held,
        (stream.begun, stream.committed, stream.ended, stream.finished),
        (answer.fault, answer.stop_reason),
    )


def frames_of(body):
    """One read for each frame, as servers send them."""
    return [piece + b"\n\n" for piece in body.split(b"\n\n") if piece]


def cuts_of(body):
    """Whole, frame by frame, line by line, byte by byte, two frames in a read, and frames cut in the middle."""
    frames = frames_of(body)
    yield [body]
    yield frames
    yield body.splitlines(keepends=True)
    yield [body[i : i + 1] for i in range(len(body))]
    yield [b"".join(frames[i : i + 2]) for i in range(0, len(frames), 2)]
    yield [half for data in frames for half in (data[:9], data[9:])]
    yield [half for data in frames for half in (data[:-1], data[-1:])]


def late(number):
    return number % 3 == 2


RECORDED = {path.stem: path.read_bytes() for path in sorted((DATA / "streams").glob("*.sse"))}
CASES = {case["id"]: case for case in CORPUS if case["trigger"]["kind"] in ("openai_sse", "raw_body")}


@pytest.mark.parametrize("name", CASES)
def test_corpus(name):
    case = CASES[name]
    end = case["trigger"].get("end", "eof")
    chunks = chunks_of(case)
    for reads in (chunks, *cuts_of(b"".join(chunks))):
        same(reads, end)
        same(reads, end, client_reads=late)
        same(reads, end, streaming=False)


@pytest.mark.parametrize("name", RECORDED)
def test_streams_of_real_servers(name):
    body = RECORDED[name]
    for reads in cuts_of(body):
        same(reads)
        same(reads, client_reads=late)
    for at in range(1, len(body), 3):
        same([*frames_of(body[:at])[:-1], body[:at][body[:at].rfind(b"\n\n") + 2 :], *frames_of(body[at:])])


@pytest.mark.parametrize("line", (DATA / "fuzz" / "streams.jsonl").read_text().splitlines())
def test_what_a_fuzzer_found(line):
    for reads in cuts_of(json.loads(line).encode("latin-1")):
        same(reads)


PLAIN = st.sampled_from([said("a"), said(" b"), said(" "), thought("c"), delta(reasoning="d")])


@given(st.data(), ENDS, st.sampled_from(["auto", "off", "open"]))
@settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_hostile_streams(data, end, think_tags):
    plain = data.draw(st.lists(PLAIN, max_size=4))
    chunks = plain + data.draw(STREAMS | st.lists(FRAMES | PLAIN | PLAIN, max_size=12))
    reads = data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    same(chunks, end, think_tags=think_tags)
    same(chunks, end, think_tags=think_tags, client_reads=reads.__getitem__)
    whole = b"".join(chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    same([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)], end)


# --- each thing that may stand before a piece of text, and each that may stand in its frame ---

STATE = {"type": "reasoning.encrypted", "data": "d"}

BEFORE = {
    "nothing": [],
    "text": [said("x")],
    "thinking": [thought("x")],
    "thinking, then text": [thought("x"), said("y")],
    "white space": [said(" ")],
    "white space behind thinking": [thought("x"), said(" ")],
    "half a tag": [said("<thi")],
    "an open tag": [said("<think>x")],
    "half a character": [said("x"), said("\ud83d")],
    "half a character of a thought": [thought("x"), thought("\ud83d")],
    "a call": [said("x"), tool(0, "a", "f", '{"x":1}')],
    "an open call": [said("x"), tool(0, "a", "f", '{"x":')],
    "text behind an open call": [tool(0, "a", "f", '{"x":'), said("x")],
    "text behind a call": [tool(0, "a", "f", '{"x":1}'), said("x")],
    "state": [thought("x"), delta(reasoning_details=[STATE])],
    "state behind text": [said("x"), delta(reasoning_details=[{"type": "reasoning.text", "text": "t"}])],
    "state in the same read": [said("x") + delta(reasoning_details=[STATE])],
    "a sealed thought": [thought("x") + delta(reasoning_details=[STATE]) + delta(tool_calls=[{}])],
    "state of the message": [said("x"), delta(extra_content={"google": 1})],
    "a finish reason": [said("x"), finish("stop")],
    "usage": [said("x"), usage(3, 2)],
    "the end": [said("x"), finish("stop"), DONE],
    "an error": [said("x"), frame({"error": {"message": "bad"}})],
    "half a frame": [said("x"), b'data: {"choices":'],
    "a line without its blank line": [said("x"), said("y")[:-1]],
    "an event's name": [said("x"), b"event: error\n"],
    "an event's name behind a frame": [said("x") + b"event: foreign\n"],
    "a comment": [said("x"), b": wait\n\n"],
    "a CR": [said("x"), said("y").replace(b"\n", b"\r")],
    "a frame that is too large": [said("x"), said("y" * 5000)],
    "white space that is too much": [said("x"), tool(0, "a", "f", "{"), said(" " * 65)],
    "a document": [b'{"choices":[{"message":{"content":"x"}}]}'],
    "a BOM": [b"\xef\xbb\xbf" + said("x")],
}


def choice(**fields):
    return frame({"choices": [{"index": 0, "delta": {"content": "z"}, **fields}]})


def chunk(**fields):
    return frame({"choices": [{"index": 0, "delta": {"content": "z"}}], **fields})


WITHIN = {
    "text": said("z"),
    "a thought": thought("z"),
    "a thought by its other name": delta(reasoning="z"),
    "both": delta(content="z", reasoning_content="w"),
    "an empty one": said(""),
    "white space": said(" \n"),
    "a tag": said("<think>"),
    "a stop string": said(" STOP"),
    "not ASCII": said("é"),
    "raw UTF-8": 'data: {"choices":[{"delta":{"content":"é"}}]}\n\n'.encode(),
    "bytes that are no UTF-8": b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n',
    "the second half of a character": said("\ude00"),
    "a refusal": delta(content="z", refusal="no"),
    "an empty refusal": delta(content="z", refusal=""),
    "a call beside it": delta(content="z", tool_calls=[call(0, "b", "g", "{}")]),
    "no calls": delta(content="z", tool_calls=[]),
    "an old call": delta(content="z", function_call={"name": "f", "arguments": "{}"}),
    "state": delta(content="z", reasoning_details=[{"type": "reasoning.encrypted", "data": "e"}]),
    "extra content": delta(content="z", extra_content={"google": 2}),
    "a list": delta(content=[{"type": "text", "text": "z"}]),
    "a finish reason": finish("length", content="z"),
    "a finish reason that is none": choice(finish_reason="null"),
    "an empty finish reason": choice(finish_reason=""),
    "a stop string that was hit": choice(finish_reason="stop", stop_reason=" STOP"),
    "a stop reason alone": choice(stop_reason=" STOP"),
    "an odd stop reason": choice(stop_reason={"x": 1}),
    "usage in the chunk": chunk(usage={"prompt_tokens": 5, "completion_tokens": 7}),
    "usage in the choice": choice(usage={"prompt_tokens": 5, "completion_tokens": 7}),
    "odd usage": chunk(usage=[]),
    "progress": chunk(prompt_progress={"total": 12}),
    "an error in the chunk": chunk(error={"message": "bad"}),
    "an error in the choice": choice(error={"message": "bad"}),
    "another kind of failure": chunk(type="error", message="bad"),
    "an object that is an error": chunk(object="error", message="bad"),
    "another object": chunk(object="text_completion"),
    "MiniMax's failure": chunk(base_resp={"status_code": 1004, "status_msg": "bad"}),
    "a message": choice(message={"content": "m"}),
    "no delta": frame({"choices": [{"index": 0, "message": {"content": "z"}}]}),
    "another choice": choice(index=1),
    "an index of null": choice(index=None),
    "an odd index": choice(index="0"),
    "two choices": frame({"choices": [{"delta": {"content": "z"}}, {"delta": {"content": "w"}}]}),
    "two choices' indices": frame(
        {"choices": [{"delta": {"content": "z"}}, {"index": 1, "delta": {"content": "w"}}]}
    ),
    "a member twice": b'data: {"choices":[{"delta":{"content":"z","content":"w"}}]}\n\n',
    "an odd member twice": b'data: {"choices":[{"delta":{"content":7,"content":"w"}}]}\n\n',
    "unknown members": chunk(id="x", created=1, system_fingerprint=None, timings={"x": [1, {}]}),
    "deep nesting": chunk(deep=json.loads("[" * 300 + "]" * 300)),
    "two frames": said("z") + said("w"),
    "two data lines": said("z")[:-1] + b"data: \n\n",
    "no space": said("z").replace(b"data: ", b"data:"),
    "two spaces": said("z").replace(b"data: ", b"data:  "),
    "CRLF": said("z").replace(b"\n", b"\r\n"),
    "CRLF, LF": said("z")[:-2] + b"\r\n\n",
    "LF, CR": said("z")[:-1] + b"\r",
    "a CR in it": b'data: {"choices":[{"delta":{"content":"z"}}],\r"x":1}\n\n',
    "an LF in it": b'data: {"choices":[{"delta":{"content":"z"}}],\n"x":1}\n\n',
    "no blank line": said("z")[:-1],
    "a blank line more": said("z") + b"\n",
    "the next one's beginning": said("z") + b"data: ",
    "an event's name": b"event: message\n" + said("z"),
    "another event's name": b"event: foreign\n" + said("z"),
    "an empty frame": b"data: \n\n",
    "nothing": b"",
    "the end": DONE,
    "no JSON": b"data: {oops\n\n",
}


@pytest.mark.parametrize("before", BEFORE)
def test_each_frame_behind_each_other(before):
    for within in WITHIN.values():
        for behind in ([], [said("q"), thought("r"), said("s")]):
            for end in (finish("stop") + DONE, b""):
                reads = [*BEFORE[before], within, *behind, end]
                same(reads)
                same(reads, client_reads=lambda number: number != 1)
                same(reads, streaming=False)


# --- where it is taken ---


@pytest.mark.parametrize(
    ("reads", "taken"),
    [
        ([said("a"), said("b"), said(" c"), finish("stop"), said("d"), DONE], 2),
        ([thought("a"), thought("b"), delta(reasoning="c"), said("d"), said("e")], 3),
        ([said("a"), delta(content="b", tool_calls=[], refusal=None), thought("c")], 1),
        ([said("a"), said("é\U0001f600"), WITHIN["raw UTF-8"]], 2),
        ([said("a"), said("\ud83d"), said("\ude00"), said("b")], 0),
        ([said("a"), said("b") + said("c"), said("d")], 1),
        ([said("<think>a"), said("b"), said("</think>c"), said("d")], 1),
        ([tool(0, "a", "f", "{"), said("b"), said("c")], 0),
    ],
)
def test_where_it_is_taken(reads, taken):
    assert same(reads) == taken


def test_a_server_that_says_more_in_each_chunk_is_not_tried_again():
    more = [chunk(usage={"prompt_tokens": 1, "completion_tokens": 1})] * 3
    assert same([said("a"), said("b"), *more, said("c")]) == 1


def test_while_the_client_does_not_read_pieces_merge():
    assert same([said("a"), said("b"), said("c"), said("d")], client_reads=lambda number: number == 0) == 3
    answer = Translation(
        CHAT,
        model="m",
        message_id="i",
        request_id="r",
        streaming=True,
        entropy=counting_entropy(),
        counts=Counter(),
    )
    answer.feed(said("a"))
    answer.frames()
    for text in ("b", "c", "d"):
        assert answer.feed(said(text)) is False
    assert answer.stream.pending == 3
    assert answer.frames().count(b"event: ") == 1
    assert answer.stream.pending == 0 and answer.frames() == b""
