"""An answer that passes: byte for byte, held for a slow client, and never half of one that looks whole."""

import itertools
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core import own_faults
from antiphon.core.parts import MessageUsage
from antiphon.core.relay import Relay
from antiphon.core.surfaces.openai.request import parse
from pipeline import DATA

SSE = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"}
JSON = {"content-type": "application/json", "content-length": "17"}
DONE = b"data: [DONE]\n\n"
CAPTURES = sorted((DATA / "streams").glob("*.sse"))
FIRST = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
REPORT = b'data: {"choices":[],"usage":{"prompt_tokens":90,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":80}}}\n\n'


def relay(headers=SSE, route="/chat/completions", **members) -> Relay:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 70}], **members}
    answer = Relay(parse(route, json.dumps(body).encode()), counts=Counter())
    if headers is not None:
        answer.on_head(200, headers)
    return answer


def cut(data: bytes, places) -> list[bytes]:
    edges = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def last_error(sent: bytes) -> dict:
    assert sent.endswith(b"}\n\n")
    return json.loads(sent[sent.rindex(b"\ndata: ") + 7 :])["error"]


# --- What passes ---------------------------------------------------------------------------------


def test_a_stream_passes_read_by_read_and_ends_with_its_done():
    answer = relay()
    assert answer.streaming and answer.message() is None
    assert answer.head == (200, [(b"content-type", b"text/event-stream; charset=utf-8")])
    assert not answer.committed
    assert answer.feed(FIRST)
    assert answer.committed and answer.begun and not answer.finished
    assert answer.frames() == FIRST
    assert not answer.feed(FIRST)  # more of the same: nobody has to look
    assert answer.frames() == FIRST
    assert answer.frames() == b""
    assert answer.feed(STOP)
    assert answer.finished and not answer.ended
    assert answer.feed(DONE)
    assert answer.ended and answer.fault is None and not answer.broken
    assert answer.frames() == STOP + DONE
    assert answer.stop_reason == "end_turn"


def test_nothing_passes_after_the_end():
    answer = relay()
    answer.feed(FIRST + DONE + b"\n")
    assert not answer.feed(FIRST)
    answer.end(own_faults.UPSTREAM_CUT)
    answer.refuse(own_faults.UPSTREAM_CUT)
    assert answer.frames() == FIRST + DONE
    assert answer.fault is None


def test_a_whole_answer_passes_in_its_pieces():
    answer = relay(JSON)
    body = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'
    assert answer.feed(body[:9])
    assert answer.committed and answer.begun
    assert answer.frames() == body[:9]
    assert not answer.feed(body[9:])
    answer.end()
    assert answer.frames() == body[9:]
    assert (answer.ended, answer.fault, answer.broken) == (True, None, False)
    assert answer.usage == MessageUsage(3, 4)


def test_a_whole_answer_to_a_client_that_wanted_a_stream_passes_too():
    answer = relay(JSON, stream=True)
    answer.feed(b'{"choices":[]}')
    answer.end()
    assert (answer.frames(), answer.fault) == (b'{"choices":[]}', None)


def test_what_a_client_does_not_take_is_held():
    answer = relay()
    assert answer.pending == 0
    answer.feed(FIRST)
    answer.feed(FIRST)
    assert answer.pending == 2 * len(FIRST)
    assert answer.frames() == FIRST + FIRST
    assert answer.pending == 0


def test_there_is_no_promise_before_the_first_byte():
    answer = relay()
    answer.commit()
    answer.fold()
    assert not answer.committed
    assert answer.frames() == b""


# --- Ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [SSE, JSON, {}])
def test_an_empty_answer_is_a_failure_that_has_a_status(headers):
    answer = relay(headers)
    answer.end()
    assert (answer.committed, answer.fault, answer.frames()) == (False, own_faults.UPSTREAM_EMPTY, b"")


def test_a_failure_before_the_first_byte_has_a_status():
    answer = relay()
    answer.end(own_faults.UPSTREAM_TIMEOUT)
    assert (answer.committed, answer.fault, answer.frames()) == (False, own_faults.UPSTREAM_TIMEOUT, b"")
    assert answer.refusal(answer.fault).status == 504


@pytest.mark.parametrize("place", range(1, len(FIRST) + 1))
def test_a_stream_that_is_cut_ends_with_an_error_and_does_not_look_finished(place):
    answer = relay()
    answer.feed(FIRST)
    answer.feed(FIRST[:place])
    answer.end(own_faults.UPSTREAM_CUT)
    sent = answer.frames()
    assert sent.startswith(FIRST + FIRST[:place])
    assert last_error(sent)["message"] == own_faults.UPSTREAM_CUT.message
    assert b"[DONE]" not in sent
    assert answer.broken
    assert answer.fault == own_faults.UPSTREAM_CUT


def test_a_whole_answer_that_is_cut_is_cut():
    answer = relay(JSON)
    answer.feed(b'{"choices":')
    answer.end(own_faults.UPSTREAM_STALLED)
    assert answer.frames() == b'{"choices":'
    assert answer.broken
    assert answer.fault == own_faults.UPSTREAM_STALLED


def test_a_stream_without_done_ends_as_it_came_and_is_known():
    answer = relay()
    answer.feed(FIRST)
    answer.end()
    assert answer.frames() == FIRST
    assert (answer.fault, answer.broken) == (own_faults.UPSTREAM_CUT, False)
    assert answer._counts == {"done_missing": 1}


@pytest.mark.parametrize("fault", [None, own_faults.UPSTREAM_CUT])
def test_what_breaks_behind_the_reason_to_stop_takes_nothing_away(fault):
    answer = relay()
    answer.feed(FIRST + STOP)
    answer.end(fault)
    assert answer.frames() == FIRST + STOP
    assert (answer.fault, answer.broken, answer.stop_reason) == (None, False, "end_turn")


def test_half_a_frame_behind_the_reason_to_stop_is_not_made_whole():
    answer = relay()
    answer.feed(FIRST + STOP + REPORT[:30])
    answer.end(own_faults.UPSTREAM_CUT)
    assert answer.frames() == FIRST + STOP + REPORT[:30]
    assert (answer.fault, answer.broken) == (None, True)


def test_it_is_finished_when_every_choice_is():
    answer = relay(n=2)
    answer.feed(STOP)
    assert not answer.finished
    answer.feed(STOP.replace(b'"index":0', b'"index":1'))
    assert answer.finished


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n"])
@pytest.mark.parametrize("fault", [None, own_faults.UPSTREAM_CUT])
def test_a_done_without_its_blank_line_is_an_end(last, fault):
    answer = relay()
    answer.feed(FIRST + last)
    answer.end(fault)
    assert (answer.frames(), answer.fault, answer.broken) == (FIRST + last, None, False)


@pytest.mark.parametrize("end", [DONE, b"", None])
def test_an_error_in_the_stream_passes_and_is_the_records(end):
    frame = b'data: {"error":{"message":"out of memory","code":500}}\n\n'
    answer = relay()
    answer.feed(FIRST)
    assert answer.feed(frame)  # a grace from here on, as after a reason to stop
    assert answer.finished
    if end:
        answer.feed(end)
    else:
        answer.end(None if end is not None else own_faults.UPSTREAM_CUT)
    assert answer.frames() == FIRST + frame + (end or b"")
    assert answer.fault.message == "out of memory"
    assert answer._counts["error_in_stream"] == 1


def test_the_last_words_of_a_stream_that_a_bug_ended():
    fault = own_faults.internal("req_1")
    answer = relay()
    assert last_error(b"\n" + answer.last_words(fault))["type"] == "server_error"
    answer.feed(FIRST[:9])
    assert answer.last_words(fault).startswith(b"\n\ndata: ")
    assert relay(JSON).last_words(fault) == b""


# --- Refusals ------------------------------------------------------------------------------------


def test_the_upstreams_own_words_pass():
    answer = relay(None)
    body = b'{"error": {"message": "no such thing", "type": "x"}}'
    answer.refuse_response(404, {"content-type": "application/json", "retry-after": "1"}, body)
    assert answer.ended and not answer.committed
    told = answer.refusal(answer.fault)
    assert (told.status, told.body) == (404, body)


def test_a_fault_of_our_own_is_said_in_openais_shape():
    answer = relay(None)
    answer.refuse(own_faults.queue_full(2))
    told = answer.refusal(answer.fault)
    assert told.status == 503
    assert json.loads(told.body)["error"]["type"] == "server_error"
    other = answer.refusal(own_faults.internal("req_1"))
    assert other.status == 500


def test_a_fault_that_came_later_is_not_said_in_the_upstreams_words():
    answer = relay(None)
    answer.refuse_response(400, {}, b'{"error":"theirs"}')
    assert answer.refusal(own_faults.internal("req_1")).status == 500


# --- Usage ---------------------------------------------------------------------------------------


def test_reported_usage_is_in_the_records_terms():
    answer = relay()
    answer.feed(FIRST + STOP + REPORT)
    assert answer.usage_reported
    assert answer.usage == MessageUsage(10, 2, None, 80)


def test_what_nobody_reported_is_estimated_and_never_zero():
    answer = relay()
    assert answer.usage.output_tokens == 1
    answer.feed(FIRST + FIRST + FIRST)
    assert not answer.usage_reported
    assert (answer.usage.output_tokens, answer.usage.estimated) == (3, ("input", "output"))
    assert answer.usage.input_tokens > 20
    answer.guess_input(17)
    assert answer.usage.input_tokens == 17
    answer.count_input(18)
    assert (answer.usage.input_tokens, answer.usage.estimated) == (18, ("output",))
    whole = relay(JSON)
    whole.feed(b"x" * 400)
    assert whole.usage.output_tokens == 100


def test_embeddings_generate_nothing():
    answer = relay(JSON, "/embeddings")
    answer.feed(b'{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}')
    answer.end()
    assert answer.usage == MessageUsage(8, 0)
    assert relay(JSON, "/embeddings").usage.estimated == ("input",)


# --- Law: split ----------------------------------------------------------------------------------


def told(answer: Relay, reads, fault) -> tuple:
    sent = b""
    for data in reads:
        answer.feed(data)
        sent += answer.frames()
    answer.end(fault)
    return (
        sent + answer.frames(),
        answer.fault,
        answer.broken,
        answer.usage,
        answer.stop_reason,
        answer._counts,
    )


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_real_streams_pass_byte_for_byte(capture):
    stream = capture.read_bytes()
    whole = told(relay(), [stream], None)
    assert whole[0] == stream
    assert whole[1:3] == (None, False)
    assert told(relay(), cut(stream, range(len(stream))), None) == whole


@given(
    capture=st.sampled_from(CAPTURES).map(lambda path: path.read_bytes()[-2500:]),
    length=st.integers(0, 2500),
    places=st.lists(st.integers(0, 2500), max_size=9),
    fault=st.sampled_from([None, own_faults.UPSTREAM_CUT]),
)
def test_any_cut_of_a_stream_that_breaks_anywhere_tells_the_same(capture, length, places, fault):
    stream = capture[:length]
    whole = told(relay(), [stream] if stream else [], fault)
    assert told(relay(), cut(stream, places) if stream else [], fault) == whole
    sent, reason, broken, *_ = whole
    assert sent.startswith(stream)
    if reason is None:
        assert b"finish_reason" in stream
    if fault is not None and reason is not None and stream:
        assert broken and b"[DONE]" not in sent
