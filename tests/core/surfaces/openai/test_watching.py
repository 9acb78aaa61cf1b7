"""What is learned of an answer that only passes, whatever the network cuts it into."""

import itertools
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.parts import Usage
from antiphon.core.surfaces.openai.watching import StreamWatch, WholeWatch
from pipeline import DATA

DONE = b"data: [DONE]\n\n"
CAPTURES = sorted((DATA / "streams").glob("*.sse"))


def chunk(**members) -> bytes:
    return b"data: " + json.dumps(members, separators=(",", ":")).encode() + b"\n\n"


def content(text: str, **choice) -> bytes:
    return chunk(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}])


def finish(word: str, index: int = 0) -> bytes:
    return chunk(choices=[{"index": index, "delta": {}, "finish_reason": word}])


def report(prompt: int, completion: int) -> bytes:
    return chunk(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion})


def cut(data: bytes, places) -> list[bytes]:
    edges = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def watched(*reads: bytes, ends=True, limit=4096):
    """The watch after these reads, and what it found, as one comparable value."""
    counts: Counter[str] = Counter()
    watch = StreamWatch(counts, limit=limit)
    passed = b"".join(data[: watch.feed(data)] for data in reads)
    if ends:
        watch.end()
    found = watch.findings
    seen = (
        passed,
        watch.done,
        watch.begun,
        found.units,
        found.finished,
        found.stop_reason,
        found.usage,
        found.fault,
        +counts,
    )
    return watch, seen


# --- What is found -------------------------------------------------------------------------------


def test_a_stream_tells_how_far_it_is():
    watch = StreamWatch(Counter())
    assert (watch.begun, watch.midway, watch.done) == (False, False, False)
    watch.feed(b": hello\n\n")
    assert not watch.begun
    watch.feed(content("a"))
    assert watch.begun
    watch.feed(content("b")[:20])
    assert watch.midway
    watch.feed(content("b")[20:])
    assert (watch.midway, watch.findings.units, watch.findings.finished) == (False, 2, set())
    watch.feed(finish("length"))
    assert (watch.findings.finished, watch.findings.stop_reason) == ({0}, "max_tokens")
    assert watch.feed(DONE) == len(DONE)
    assert watch.done
    assert watch.feed(b"more") == 0


def test_every_choice_finishes_by_itself():
    watch, _ = watched(finish("stop", 1), finish("stop", 1))
    assert watch.findings.finished == {1}


@pytest.mark.parametrize("word", [None, "", "null", "None"])
def test_what_is_no_reason_to_stop(word):
    watch, _ = watched(content("a", finish_reason=word))
    assert watch.findings.finished == set()


def test_usage_is_read_wherever_servers_put_it():
    kimi = chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 4}}])
    watch, _ = watched(
        chunk(choices=[{"index": 0, "text": "x"}], usage={"prompt_tokens": 3, "completion_tokens": 1}),
        chunk(choices=[{"index": 0, "text": "x"}], usage=None),
        kimi,
        b'data: {"choices":[],"usage" : {"completion_tokens":7.0,"prompt_tokens":"?"}}\n\n',
    )
    assert watch.findings.usage == [Usage(3, 1), Usage(4), Usage(None, 7)]


def test_text_that_looks_like_a_report_is_text():
    text = '"usage": {"prompt_tokens": 1}, "finish_reason": "stop", "error": {"message": "no"}'
    watch, _ = watched(content(text), content("", delta={"tool_calls": [{"function": {"arguments": text}}]}))
    assert (watch.findings.usage, watch.findings.finished, watch.findings.fault) == ([], set(), None)


@pytest.mark.parametrize(
    "frame",
    [
        b'data: {"error": {"message": "out of memory", "code": 500}}\n\n',
        b'data: {"error": "out of memory"}\n\n',
        b'event: error\ndata: {"object":"error","message":"out of memory","code":500}\n\n',
        b'data: {"choices":[],"error":{"message":"out of memory"}}\n\n',
    ],
)
def test_an_error_in_the_stream_is_a_fault(frame):
    watch, _ = watched(content("a"), frame, DONE)
    assert "out of memory" in watch.findings.fault.message
    assert watch.done


def test_an_end_that_is_a_failure():
    watch, _ = watched(finish("abort"))
    assert watch.findings.fault is not None


def test_no_error_is_none():
    watch, _ = watched(chunk(choices=[{"index": 0, "delta": {"content": "a"}}], error=None))
    assert watch.findings.fault is None


@pytest.mark.parametrize("frame", [b"data: {\n\n", b'data: {"usage":{"a":\n\n', b'data: [{"error":{}}]\n\n'])
def test_what_cannot_be_read_passes(frame):
    watch, seen = watched(frame, DONE)
    assert seen[0] == frame + DONE
    assert watch.findings.fault is None


# --- Where the stream ends -----------------------------------------------------------------------


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data:[DONE]\r\n", b"data: [DONE]\n", b"data: [DONE]\r"])
def test_a_done_without_its_blank_line_counts_at_the_end(last):
    watch, _ = watched(content("a"), last, ends=False)
    assert not watch.done
    watch.end()
    assert watch.done


def test_what_is_behind_done_does_not_belong_to_it():
    _, seen = watched(content("a") + DONE + b"\n: bye\n\n")
    assert seen[0] == content("a") + DONE


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_done_ends_with_its_whole_blank_line(line_end):
    stream = (content("a") + DONE).replace(b"\n", line_end)
    for place in range(len(stream)):
        _, seen = watched(*cut(stream + b"data: x", [place]))
        assert seen[0] == stream


def test_a_carriage_return_alone_ends_lines_too():
    stream = (content("a") + DONE).replace(b"\n", b"\r")
    watch, seen = watched(stream)
    assert watch.done and seen[0] == stream


def test_a_done_inside_text_is_text():
    watch, _ = watched(content("[DONE]"), content("data: [DONE]\n\n"))
    assert not watch.done


# --- Too long to be looked at --------------------------------------------------------------------


def test_a_frame_that_is_too_long_passes_unseen_and_the_next_is_seen():
    long = content("x" * 10_000)
    watch, seen = watched(content("a"), long, finish("stop"), DONE)
    assert seen[0] == content("a") + long + finish("stop") + DONE
    assert (watch.findings.units, watch.findings.finished, watch.done) == (2, {0}, True)
    assert seen[-1] == {"frame_unseen": 1}


def test_a_line_as_long_as_the_limit_is_seen_wherever_it_is_cut():
    stop = finish("stop").replace(b"\n", b"\r\n")
    limit = len(stop) - 4  # the line without its end
    for place in range(len(stop)):
        watch, _ = watched(*cut(stop, [place]), limit=limit)
        assert watch.findings.finished == {0}
        assert watched(*cut(stop, [place]), limit=limit - 1)[0].findings.finished == set()


@pytest.mark.parametrize("places", [[], [201], [202], [203]])
def test_a_line_that_is_too_long_does_not_end_its_frame(places):
    stream = b"data: " + b"x" * 195 + b"\r\n" + finish("stop")
    watch, seen = watched(*cut(stream, places), limit=100)
    assert (watch.findings.units, watch.findings.finished) == (0, set())
    assert seen[-1] == {"frame_unseen": 1}


def test_a_byte_order_mark_counts_at_the_beginning_alone():
    mark = b"\xef\xbb\xbf"
    assert watched(mark + DONE)[0].done
    assert not watched(content("a"), mark + DONE)[0].done
    assert not watched(content("a") + mark + DONE)[0].done


def test_a_line_without_an_end_is_not_kept():
    watch = StreamWatch(Counter(), limit=1000)
    for _ in range(500):
        watch.feed(b"x" * 100)
    assert len(watch._held) <= 1001


# --- Law: split ----------------------------------------------------------------------------------


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_real_streams_byte_by_byte(capture):
    stream = capture.read_bytes()
    _, whole = watched(stream)
    assert whole[0] == stream and whole[1]
    assert whole[5] is not None
    assert watched(*cut(stream, range(len(stream))))[1] == whole
    frames = [frame + b"\n\n" for frame in stream.split(b"\n\n") if frame]
    assert watched(*frames)[1] == whole


FRAMES = st.sampled_from(
    [
        content("a"),
        content("é\u2028[DONE]"),
        content("x" * 80),
        finish("stop"),
        finish("tool_calls", 1),
        report(3, 4),
        DONE,
        b": ping\n\n",
        b": ping\n",
        b"event: error\n",
        b"data:\n\n",
        b"data\n\n",
        b"\xef\xbb\xbf",
        b"\n",
        b"data: [DONE]",
        b"data: " + b"y" * 120,
        b'data: {"error":{"message":"no"}}\n\n',
        b'data: {"choices":[]\ndata: ,"usage":{"prompt_tokens":1}}\n\n',
    ]
)


@given(
    frames=st.lists(FRAMES, max_size=8),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    places=st.lists(st.integers(0, 1500), max_size=12),
    limit=st.sampled_from([60, 90, 100, 120, 4096]),
)
def test_any_cut_gives_the_same_bytes_and_findings(frames, line_end, places, limit):
    stream = b"".join(frames).replace(b"\n", line_end)
    _, whole = watched(stream, limit=limit)
    assert watched(*cut(stream, places), limit=limit)[1] == whole
    assert watched(*cut(stream, range(len(stream))), limit=limit)[1] == whole


# --- Answers in one piece ------------------------------------------------------------------------

COMPLETION = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}},
}


def test_a_whole_answer_tells_its_usage_and_why_it_stopped():
    watch = WholeWatch()
    for data in cut(json.dumps(COMPLETION).encode(), [3, 50, 90]):
        assert watch.feed(data) == len(data)
        assert watch.begun and watch.midway and not watch.done
    assert watch.findings.usage == []
    watch.end()
    assert watch.findings.usage == [Usage(5, 6, 4)]
    assert watch.findings.stop_reason == "max_tokens"


@given(places=st.lists(st.integers(0, 9000), max_size=20), size=st.integers(0, 8000))
def test_a_long_answer_is_known_by_its_tail(places, size):
    body = json.dumps({"data": "x" * size, "usage": {"prompt_tokens": 5}, "id": "e"}).encode()
    watch = WholeWatch(limit=1000)
    for data in cut(body, places):
        watch.feed(data)
        assert len(watch._tail) <= 2000
    watch.end()
    assert (watch.findings.usage, watch.size) == ([Usage(5)], len(body))


@pytest.mark.parametrize(
    "tail", [b'"usage":{"prompt_tokens":', b'"usage":{}}', b"\xff", b'"usage":{"a":' * 60]
)
def test_a_tail_that_cannot_be_read_reports_nothing(tail):
    watch = WholeWatch(limit=1000)
    watch.feed(b"x" * 3000 + tail)
    watch.end()
    assert watch.findings.usage == []


def test_an_error_in_a_whole_answer_is_a_fault():
    watch = WholeWatch()
    watch.feed(b'{"error":{"message":"out of memory"}}')
    watch.end()
    assert watch.findings.fault.message == "out of memory"
