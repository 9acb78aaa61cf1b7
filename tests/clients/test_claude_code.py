"""The real Claude Code CLI on a live gateway: an answer, a tool loop, and every failure it reacts to.

What it does after a failure was observed with this version (`claude_code.VERSION`) and decides what the
gateway sends: a turn is repeated only while no block was closed, a closed tool block is run whatever comes
after, and a bare close after a closed block looks like success.
"""

from __future__ import annotations

import json
import os

import pytest

from clients import claude_code
from clients.claude_code import ClaudeCode
from live_gateway import gateway, simulator, wait_until
from recording_upstream import Answer, chunk, opens

REASON = claude_code.missing()
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]

NO_TOOLS = ("--tools", "")
TEXT = chunk({"role": "assistant", "content": "One choir sings"})
THINKING = chunk({"role": "assistant", "reasoning_content": "I think"})
ERROR = '{"error":{"message":"The engine died.","type":"server_error","code":500}}'
CUT_CALL = opens("call_cut", "Read", '{"file_path": "no')


# A whole call of a tool that needs no permission. Nothing in it says that it is whole.
READ_SONG = opens("call_song", "Read", '{"file_path": "song.txt"}')


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def cli(home, recorded):
    """Claude Code in front of the recording upstream, with a file to read in its folder."""
    cli = ClaudeCode(home, recorded.base_url)
    (cli.folder / "song.txt").write_text("another choir answers\n")
    return cli


def streaming(recorded, since=0):
    """Whether the requests that the gateway got were streaming, in order."""
    return [record["streaming"] for record in recorded.gateway.records()[since:]]


@pytest.fixture
def since(recorded):
    return len(recorded.gateway.records())


# --- It works ------------------------------------------------------------------------------------


def test_it_is_the_version_that_was_observed(home, scripted):
    with ClaudeCode(home, scripted.base_url).start("--version") as process:
        output, _ = process.communicate(timeout=60)
    assert output.split()[0] == claude_code.VERSION


def test_a_plain_answer(home, scripted):
    with ClaudeCode(home, scripted.base_url).start(*NO_TOOLS) as process:
        output, errors = process.communicate("hi", timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert output == "Hello! I am a scripted model: first I think, then I answer, one token at a time.\n"


def test_thinking_is_shown(home, scripted):
    turn = ClaudeCode(home, scripted.base_url).ask("hi", *NO_TOOLS)
    (thinking,) = turn.blocks("thinking")
    assert thinking["thinking"].startswith("The user wrote something short")
    assert turn.text.startswith("Hello!")
    assert turn.result["usage"]["output_tokens"] == 35


def test_a_tool_loop_writes_and_reads_a_file(home, scripted):
    cli = ClaudeCode(home, scripted.base_url)
    path = cli.folder / "verse.txt"
    write = {"file_path": str(path), "content": "one choir sings\n"}
    wrote, read = cli.converse(
        [f"call Write {json.dumps(write)}", f'call Read {{"file_path": "{path}"}}'],
        "--allowedTools",
        "Write,Read",
    )
    assert path.read_text() == "one choir sings\n"
    assert [block["name"] for block in wrote.blocks("tool_use")] == ["Write"]
    (result,) = read.blocks("tool_result")
    assert "one choir sings" in result["content"]
    assert "one choir sings" in read.text
    ids = {
        message["message"]["id"]
        for turn in (wrote, read)
        for message in turn.messages
        if message["type"] == "assistant"
    }
    assert len(ids) == 4  # two requests a turn: clients merge turns that share an id
    assert all(record["status"] == 200 for record in scripted.gateway.records()[-4:])


def test_its_requests_are_carried_in_full(cli, recorded, since):
    assert cli.ask("hi").text == "ok"
    (record,) = recorded.gateway.records()[since:]
    assert "degraded" not in record
    (request,) = recorded.upstream.requests
    assert len(request.json["tools"]) > 20
    assert "x-anthropic-billing-header" not in request.body.decode()
    assert request.json["max_tokens"] == 32_000


def test_the_next_turn_continues_the_bytes_of_the_last(cli, recorded):
    """Tool ids that no client accepts come back as the upstream gave them, and its prefix cache holds."""
    whole = opens("call/b 2", "Read", '{"file_path": "song.txt"}')
    recorded.upstream.script = [Answer.of(THINKING, whole, chunk({}, "tool_calls"), "[DONE]")]
    assert cli.ask("Read the song.").text == "ok"
    first, second = recorded.upstream.requests
    assert second.body.startswith(first.body.removesuffix(b"]}"))
    assistant, tool = second.json["messages"][-2:]
    assert assistant["reasoning_content"] == "I think"
    assert [made["id"] for made in assistant["tool_calls"]] == ["call/b 2"]
    assert tool["tool_call_id"] == "call/b 2"
    assert "another choir answers" in json.dumps(tool)


# --- The upstream dies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        Answer.of(TEXT, ERROR, "[DONE]"),
        Answer.dying(TEXT),
        Answer.dying(TEXT, end="reset"),
        Answer.dying(THINKING),
        Answer.dying(THINKING, end="reset"),
        Answer.dying(CUT_CALL),
        Answer.dying(READ_SONG),
    ],
    ids=[
        "text-error",
        "text-cut",
        "text-reset",
        "thinking-cut",
        "thinking-reset",
        "half-a-call",
        "a-whole-call",
    ],
)
def test_while_nothing_is_closed_it_asks_again_without_streaming(cli, recorded, since, answer):
    recorded.upstream.script = [answer]
    turn = cli.ask("Sing.")
    assert (turn.status, turn.text) == (0, "ok")
    assert streaming(recorded, since) == [True, False]
    assert turn.blocks("tool_use") == []  # no call that nobody vouched for was run


@pytest.mark.parametrize(
    "answer",
    [Answer.dying(THINKING, TEXT), Answer.dying(THINKING, CUT_CALL), Answer.dying(TEXT, CUT_CALL)],
    ids=["thinking-then-text", "thinking-then-call", "text-then-call"],
)
def test_after_a_closed_block_it_reports_the_error(cli, recorded, since, answer):
    """Never success: a cut answer that ends in a bare close would be printed with exit status 0."""
    recorded.upstream.script = [answer]
    turn = cli.ask("Sing.")
    assert (turn.status, turn.result["is_error"]) == (1, True)
    assert turn.text == "API Error: the upstream's stream ended before its answer was complete"
    assert streaming(recorded, since) == [True]
    assert turn.blocks("tool_use") == []


@pytest.mark.parametrize(
    "after",
    [TEXT, opens("call_cut", "Read", '{"file_path": "no', index=1)],
    ids=["text", "half-a-call"],
)
def test_a_closed_call_is_run_whatever_came_after(cli, recorded, since, after):
    recorded.upstream.script = [Answer.dying(READ_SONG, after)]
    turn = cli.ask("Read the song.")
    assert (turn.status, turn.text) == (0, "ok")
    assert [block["input"] for block in turn.blocks("tool_use")] == [{"file_path": "song.txt"}]
    (result,) = turn.blocks("tool_result")
    assert "another choir answers" in result["content"]
    assert streaming(recorded, since) == [True, True]


def test_before_the_first_content_it_asks_again_without_streaming(home, recorded, tmp_path, monkeypatch):
    """`message_start` was sent to a client that waited long, and then nothing came."""
    monkeypatch.setenv("ANTIPHON_COMMIT_AFTER", "0.2")
    monkeypatch.setenv("ANTIPHON_TICK", "0.05")
    recorded.upstream.script = [Answer.dying(chunk({"role": "assistant"}), pause=1.5)]
    with gateway(tmp_path, recorded.upstream.base_url) as antiphon:
        turn = ClaudeCode(home, antiphon.base_url).ask("Sing.")
        assert [record["streaming"] for record in antiphon.records()] == [True, False]
        assert [record["status"] for record in antiphon.records()] == [200, 200]
    assert (turn.status, turn.text) == (0, "ok")


# --- The model stops short -----------------------------------------------------------------------


def test_a_call_without_arguments_that_was_cut_off_is_not_run(cli, recorded, since):
    recorded.upstream.script = [Answer.of(opens("c", "Read"), chunk({}, "length"), "[DONE]")]
    turn = cli.ask("Read the song.")
    assert (turn.status, turn.text) == (0, "ok")
    assert turn.blocks("tool_use") == []
    assert streaming(recorded, since) == [True, True]


def test_a_call_that_was_cut_off_is_an_input_error_for_the_model(cli, recorded):
    recorded.upstream.script = [Answer.of(CUT_CALL, chunk({}, "length"), "[DONE]")]
    turn = cli.ask("Read the song.")
    (result,) = turn.blocks("tool_result")
    assert "InputValidationError" in result["content"]
    assert (turn.status, turn.text) == (0, "ok")


def test_an_empty_answer_is_asked_for_once_more(cli, recorded, since):
    recorded.upstream.script = [Answer.of(chunk({}, "stop"), "[DONE]")]
    assert cli.ask("Sing.").text == "ok"
    assert streaming(recorded, since) == [True, True]


# --- The upstream refuses ------------------------------------------------------------------------


def test_an_overloaded_upstream_is_asked_again_the_same_way(cli, recorded, since):
    recorded.upstream.script = [Answer.error(503, {"message": "busy"}, retry_after="1")]
    turn = cli.ask("Sing.")
    assert (turn.status, turn.text) == (0, "ok")
    assert [record["status"] for record in recorded.gateway.records()[since:]] == [529, 200]
    first, second = recorded.upstream.requests
    assert first.body == second.body


def test_an_overflow_is_understood(cli, recorded):
    said = "This model's maximum context length is 4096 tokens. However, you requested 31100 tokens in the messages."
    recorded.upstream.answer = Answer.error(400, {"message": said, "type": "BadRequestError", "code": 400})
    turn = cli.ask("Sing.")
    assert (turn.status, turn.result["is_error"]) == (1, True)
    assert turn.text.startswith("Prompt is too long")
    assert "31100" in turn.text
    assert "4096" in turn.text


# --- It goes away --------------------------------------------------------------------------------


def test_killing_it_frees_the_slot(home, tmp_path):
    with simulator(tmp_path) as upstream, gateway(tmp_path, upstream.base_url, "--slots", "1") as antiphon:
        cli = ClaudeCode(home, antiphon.base_url)
        options = ("--output-format", "stream-json", "--verbose", "--include-partial-messages")
        with cli.start(*options) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("Sing a long song.")
            process.stdin.close()
            assert any('"text_delta"' in line for line in process.stdout)
            os.kill(process.pid, 9)
            process.wait()
        wait_until(upstream.lines, "end of the upstream's work")
        assert [line.rsplit(" ", 1)[1] for line in upstream.lines()] == ["outcome=cancelled"]
        (record,) = wait_until(antiphon.records, "record of the exchange")
        assert record["cause"] == "client"
        # The one slot is free again.
        assert (
            ClaudeCode(tmp_path / "another", antiphon.base_url).ask("hi", *NO_TOOLS).text.startswith("Hello!")
        )
