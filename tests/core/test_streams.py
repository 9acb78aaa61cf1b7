"""Streams of real servers: the right content, however the bytes were cut."""

import json

import pytest
from pipeline import DATA, play, told_by

STREAMS = DATA / "streams"
CACHED = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 32}

# what a client is told, and the usage at the end (None: nobody reported any)
WANT = {
    "llamacpp-text": (["text Yay! How are you doing today, my", "max_tokens"], {"input_tokens": 9, "output_tokens": 10, "cache_read_input_tokens": 24}),
    "llamacpp-stop-string": (["text Gr", "end_turn"], CACHED),
    "llamacpp-no-usage-asked": (["text Greetings, I'm excited to", "max_tokens"], None),
    "vllm-0.32-length": (["text la lu lo le la lu lo le la lu lo le", "max_tokens"], {"input_tokens": 22, "output_tokens": 12}),
    "vllm-0.32-stop-string": (["text one two", "stop_sequence ' STOP'"], {"input_tokens": 26, "output_tokens": 3}),
    "vllm-0.32-thinking-only-length": (["thinking Let me think", "max_tokens"], {"input_tokens": 20, "output_tokens": 4}),
}  # fmt: skip


def read(name):
    return (STREAMS / f"{name}.sse").read_bytes()


def outcome(chunks):
    result = play(chunks, stop_sequences=(" STOP",))
    usage = {key: value for key, value in result.message["usage"].items() if key != "output_tokens_details"}
    return told_by(result), usage, result.message["content"]


NAMES = sorted(path.stem for path in STREAMS.glob("*.sse"))


@pytest.mark.parametrize("name", NAMES)
def test_content(name):
    told, usage, _ = outcome([read(name)])
    print(json.dumps([told, usage]))
    want_told, want_usage = WANT[name]
    assert told == want_told
    if want_usage is None:
        assert usage["input_tokens"] > 0 and usage["output_tokens"] > 0
    else:
        assert usage == want_usage


@pytest.mark.parametrize("name", NAMES)
def test_cut_at_every_byte(name):
    body = read(name)
    whole = outcome([body])
    for at in range(1, len(body)):
        assert outcome([body[:at], body[at:]]) == whole, at


@pytest.mark.parametrize("name", NAMES)
def test_byte_by_byte_and_line_by_line(name):
    body = read(name)
    whole = outcome([body])
    assert outcome([body[i : i + 1] for i in range(len(body))]) == whole
    assert outcome(body.splitlines(keepends=True)) == whole
