"""Real servers' Messages streams, and streams written from their sources, through the passage."""

import json

import pytest

from native import heard, tell
from pipeline import DATA

NATIVE = DATA / "native"
CALLS = ['{id_a} weather {{"city": "Paris"}}', '{id_b} weather {{"city": "Rome"}}']


def calls(id_a: str, id_b: str) -> list[str]:
    return ["tool " + line.format(id_a=id_a, id_b=id_b) for line in CALLS]


STREAMS = {
    "llamacpp-text.sse": (["text Hi, welcome to my chat!", "end_turn"], {}),
    "llamacpp-length.sse": (["text I'm sorry for any confusion, but as a weather-", "max_tokens"], {}),
    "llamacpp-whole.json": (["text Hi, welcome to my chat!", "end_turn"], {"whole_answer": 1}),
    "llamacpp-open-blocks.sse": (
        ["thinking Two cities.", "text Let me look.", *calls("a1", "b2"), "tool_use"],
        {},
    ),
    "vllm-tools.sse": (
        [
            "thinking Two cities. [5a0f3c1e9a7d4f0d8f6e]",
            "text Let me look.",
            *calls("chatcmpl-tool-a1", "chatcmpl-tool-b2"),
            "tool_use",
        ],
        {},
    ),
    "vllm-aborted.sse": (
        ["text Let me", "error api_error: the upstream ended its answer without a reason to stop"],
        {},
    ),
    "ollama-tools.sse": (["thinking Two cities.", *calls("call_a1", "call_b2"), "tool_use"], {}),
    "ollama-unloaded.sse": (["text Hi", "end_turn"], {"stop_reason_mended": 1}),
    "sglang-error.sse": (["text Let me ...", "error api_error: scheduler died"], {}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name):
    lines, counts = STREAMS[name]
    body = (NATIVE / name).read_bytes()
    assert heard(body) == lines
    ours = {} if b'"id":"msg_' in body else {"message_id_made": 1}  # clients know ids of that form
    assert tell([body]).counts == counts | ours


def test_every_file_has_its_expectation():
    assert {path.name for path in NATIVE.iterdir()} == {*STREAMS, "README.md", "llamacpp-long.sse"}


def test_a_legal_streams_deltas_leave_as_they_came():
    body = (NATIVE / "llamacpp-long.sse").read_bytes()
    given = [part for part in body.split(b"\n\n") if b"content_block_delta" in part]
    told = [part for part in tell([body]).body.split(b"\n\n") if b"content_block_delta" in part]
    assert len(given) == 40
    assert told == given


def test_usage_of_a_warm_prompt():
    told = tell([(NATIVE / "llamacpp-length.sse").read_bytes()])
    assert (told.answer.usage.input_tokens, told.answer.usage.cache_read_input_tokens) == (1, 36)
    assert told.answer.usage.output_tokens == 12
    assert told.answer.usage.estimated == ()
    # Ollama's start has an estimate, its end the truth
    ollama = tell([(NATIVE / "ollama-tools.sse").read_bytes()])
    assert ollama.events[-2]["usage"] == {"input_tokens": 96, "output_tokens": 51}
    assert ollama.answer.usage.input_tokens == 96


def test_a_whole_answer_keeps_its_members():
    given = json.loads((NATIVE / "llamacpp-whole.json").read_bytes())
    told = tell([(NATIVE / "llamacpp-whole.json").read_bytes()], streaming=False)
    assert told.message == given | {"model": "a-model", "id": "msg_ours"}
