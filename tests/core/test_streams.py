"""Streams of real servers: the right content, however the bytes were cut."""

import pytest

from pipeline import DATA, play, told_by

STREAMS = DATA / "streams"

# what a client is told; input, output and cached tokens (where nobody reported any, they are estimated)
WANT = {
    "llamacpp-no-usage-asked": (["text Greetings, welcome to", "max_tokens"], (11, 6)),
    "llamacpp-stop-string": (["text Gr", "end_turn"], (1, 2, 32)),
    "llamacpp-text": (["text Yay! How can I assist you?", "end_turn"], (9, 10, 24)),
    "vllm-0.32-length": (["text la lu lo lela lu lo lela lu lo le", "max_tokens"], (22, 12)),
    "vllm-0.32-stop-string": (["text one two", "stop_sequence ' STOP'"], (26, 3)),
    "vllm-0.32-thinking-only-length": (["thinking Let me think", "max_tokens"], (20, 4)),
    "vllm-0.32-thinking-then-text": (
        ["thinking Let me think about it.", "text \n\nHello from a scripted model!", "end_turn"],
        (20, 15),
    ),
    "vllm-0.32-tool-call": (
        [
            "text I will look that up.\n",
            'tool chatcmpl-tool-b630c0c2b38f2bfc get_weather {"city": "Paris", "days": 3}',
            "tool_use",
        ],
        (229, 16),
    ),
    "vllm-0.32-unicode": (["text Just plain text, na\xefve \U0001f642 d\xe9j\xe0?!", "end_turn"], (23, 9)),
    "vllm-0.32-usage-in-every-chunk": (
        ["thinking Let me think about it.", "text \n\nHello from a scripted model!", "end_turn"],
        (20, 15),
    ),
}


def read(name):
    return (STREAMS / f"{name}.sse").read_bytes()


def answer(chunks):
    return play(chunks, stop_sequences=(" STOP",))


NAMES = sorted(path.stem for path in STREAMS.glob("*.sse"))


@pytest.mark.parametrize("name", NAMES)
def test_content(name):
    result = answer([read(name)])
    usage = result.message["usage"]
    numbers = ("input_tokens", "output_tokens", "cache_read_input_tokens")
    assert told_by(result) == WANT[name][0]
    assert tuple(usage[key] for key in numbers if key in usage) == WANT[name][1]


@pytest.mark.parametrize("name", NAMES)
def test_usage_from_the_first_chunk_on(name):
    """Only a server that reports it in every chunk has the true number in message_start."""
    result = answer(read(name).splitlines(keepends=True))
    start, end = result.decoded[0]["message"]["usage"], result.decoded[-2]["usage"]
    assert start["input_tokens"] == (end["input_tokens"] if "every-chunk" in name else 11)


@pytest.mark.parametrize("name", NAMES)
def test_cut_at_every_byte(name):
    body = read(name)
    want = answer([body]).message
    for at in range(1, len(body)):
        assert answer([body[:at], body[at:]]).message == want, at


@pytest.mark.parametrize("name", NAMES)
def test_byte_by_byte_and_line_by_line(name):
    body = read(name)
    told = told_by(answer([body]))
    assert told_by(answer([body[i : i + 1] for i in range(len(body))])) == told
    assert told_by(answer(body.splitlines(keepends=True))) == told


@pytest.mark.parametrize("name", NAMES)
def test_cut_off_anywhere_it_is_a_failure_until_the_finish_reason(name):
    body = read(name)
    finished = body.index(b"\n\n", max(body.rfind(b'"finish_reason":"'), body.rfind(b'"finish_reason": "')))
    for at in range(0, len(body), 7):
        told = told_by(answer([body[:at]]))[-1]
        assert told.startswith(("HTTP 502", "error ")) == (at < finished), at
