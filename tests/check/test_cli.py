"""The commands: what they print, what they write, how they exit."""

import asyncio
import json
import threading

import pytest
import typer
from typer.testing import CliRunner

from antiphon.check.cli import app
from antiphon.check.upstream import leaving
from antiphon.config_file import load
from check import samples as s
from check.broken_gateway import BrokenGateway
from check.imitations import VLLM, Imitation, Shape
from live_gateway import free_port


def check(*arguments, **options):
    return CliRunner().invoke(app, list(arguments), **options)


class Serving:
    """An asynchronous server in a thread of its own, because the commands bring their own loop."""

    def __init__(self, server):
        self.server, self.loop = server, asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self):
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self.server.__aenter__(), self.loop).result(30)
        return self.server

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self.server.__aexit__(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)
        self.loop.close()


# --- gateway ---


def play(fault, *arguments):
    port = free_port()
    with Serving(BrokenGateway(f"http://127.0.0.1:{port}/v1", fault)) as broken:
        return check("gateway", broken.url, "--listen", str(port), *arguments)


def test_gateway_that_holds():
    result = play("none", "--only", "ENV-04", "--prefix", "/llm")
    assert result.exit_code == 0
    assert "1 of 1 cases hold." in result.output
    assert "\x1b" not in result.output


def test_gateway_that_fails(tmp_path):
    file = tmp_path / "verdicts.json"
    result = play("thinking as text", "--only", "THK-01", "--only", "ENV-04", "--json", str(file))
    assert result.exit_code == 1
    assert "0 of 2 cases hold." in result.output
    assert "event 3: 'thinking_delta' inside a text block" in result.output
    assert "Reasoning-first stream opened as a text block" in result.output
    verdicts = json.loads(file.read_text())
    assert [(v["id"], v["outcome"]) for v in verdicts] == [("THK-01", "fails"), ("ENV-04", "fails")]


def test_gateway_json_alone_on_standard_output():
    result = play("none", "--only", "ENV-04", "--json", "-")
    assert json.loads(result.stdout)[0]["outcome"] == "holds"
    assert "1 of 1 cases hold" in result.stderr


def test_contested_failures_can_be_left_out():
    contested = ("--only", "RQT-04", "--only", "ENV-04")  # RQT-04: server tools
    assert play("none", *contested).exit_code == 1
    result = play("none", *contested, "--skip-contested")
    assert result.exit_code == 0
    assert "1 contested failures are left out" in result.output


def test_gateway_that_cannot_be_judged():
    result = check("gateway", f"http://127.0.0.1:{free_port()}", "--listen", "0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no gateway answers" in result.stderr
    assert "did not ask" in play("goes nowhere").stderr
    assert check("gateway", "http://127.0.0.1:1", "--only", "NO-1").exit_code == 2
    assert "there is no such case" in check("gateway", "http://127.0.0.1:1", "--only", "NO-1").stderr
    assert check("gateway", "127.0.0.1:1").exit_code == 2


def test_a_taken_port():
    with Serving(BrokenGateway("http://127.0.0.1:1/v1")) as broken:
        result = check("gateway", broken.url, "--listen", str(broken.server.port))
    assert result.exit_code == 2
    assert "choose one with --listen" in result.stderr


# --- upstream ---


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(leaving, "_INTERVAL", 0.01)


def test_upstream_that_is_good(tmp_path, impatient):
    written, found = tmp_path / "p.toml", tmp_path / "p.json"
    with Serving(Imitation(VLLM)) as server:
        result = check("upstream", server.url, "--write", str(written), "--json", str(found))
    assert result.exit_code == 0
    assert f"antiphon serve --upstream {server.url} --kind vllm" in result.output
    (one,) = load(written, {}).settings.upstreams
    assert (one.base_url, one.kind) == (server.url, "vllm")
    assert json.loads(found.read_text())["profile"] == "vllm"


def test_upstream_does_not_write_over_a_file(tmp_path):
    (tmp_path / "antiphon.toml").write_text("mine")
    result = check("upstream", "http://127.0.0.1:1/v1", "--write", str(tmp_path / "antiphon.toml"))
    assert result.exit_code == 2
    assert "is there already" in result.stderr
    assert (tmp_path / "antiphon.toml").read_text() == "mine"


def test_upstream_that_will_hurt(impatient):
    with Serving(Imitation(Shape(choice="never", key="k"))) as server:
        result = check(
            "upstream", server.url, "--api-key-env", "A_KEY", "--skip-overflow", env={"A_KEY": "k"}
        )
    assert result.exit_code == 1
    assert "Problem: It never called a tool" in result.output


def test_upstream_that_is_not_there(monkeypatch):
    result = check("upstream", f"http://127.0.0.1:{free_port()}/v1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nobody answers" in result.stderr
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert "is not set" in check("upstream", "http://127.0.0.1:1/v1", "--api-key-env", "NO_SUCH_KEY").stderr


# --- stream ---


def test_stream_that_is_legal(tmp_path):
    file = tmp_path / "a.sse"
    file.write_bytes(s.sse(s.legal()))
    result = check("stream", str(file))
    assert result.exit_code == 0
    assert "The stream is legal." in result.output
    assert 'tool_use: f {"a": 1}' in result.output


def test_stream_that_says_that_it_failed():
    result = check("stream", "-", input=s.sse(s.failed()))
    assert result.exit_code == 0
    assert "legal, and says that the request failed" in result.output
    assert "text, never stopped: Hello" in result.output


def test_stream_that_breaks_rules(tmp_path):
    events = s.legal()
    del events[8]
    events[7]["delta"]["text"] = "[red]\x1b[2J[/]"
    result = check("stream", "-", input=s.sse(events))
    assert result.exit_code == 1
    assert "event 9, line 25" in result.output
    assert "block.overlap" not in result.output  # people get the sentence
    assert "1 violation." in result.output
    assert "\x1b" not in result.output
    assert "[red]" in result.output
    machine = check("stream", "-", "--json", "-", input=s.sse(events))
    assert json.loads(machine.stdout)["violations"][0]["rule"] == "block.overlap"


def test_stream_that_breaks_one_rule_again_and_again():
    events = s.legal()
    for event in events:
        if event["type"] == "content_block_delta":
            event["index"] += 7
    deltas = sum(event["type"] == "content_block_delta" for event in events)
    result = check("stream", "-", input=s.sse(events), env={"COLUMNS": "300"})
    assert result.exit_code == 1
    assert result.output.count("a delta for block") == 1
    first = next(n for n, event in enumerate(events, 1) if event["type"] == "content_block_delta")
    assert f"event {first}, line " in result.output
    assert f"and {deltas - 1} more" in result.output
    assert f"{deltas} violations of 1 kind." in result.output
    machine = check("stream", "-", "--json", "-", input=s.sse(events))
    assert len(json.loads(machine.stdout)["violations"]) == deltas  # a machine gets each of them


def test_stream_that_breaks_rules_in_different_words():
    events = s.legal()
    del events[-1]["type"]
    events[0]["message"]["role"] = "user"
    result = check("stream", "-", input=s.sse(events))
    assert " of " not in result.output.splitlines()[-1]
    assert "more" not in result.output


def test_stream_that_is_none(tmp_path):
    assert check("stream", "-", input=b"<html>").exit_code == 2
    assert check("stream", str(tmp_path / "missing")).exit_code == 2
    file = tmp_path / "a.sse"
    file.write_bytes(s.sse(s.legal()))
    assert check("stream", str(file), "--json", str(tmp_path / "no" / "x.json")).exit_code == 2


@pytest.mark.parametrize("command", [[], ["gateway"], ["upstream"], ["stream"]])
def test_help_teaches(command):
    result = check(*command, "--help", env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "xit status" in result.output


def test_is_mounted_as_one_command():
    root = typer.Typer()
    root.add_typer(app, name="check")
    result = CliRunner().invoke(root, ["check", "stream", "-"], input=s.sse(s.legal()))
    assert result.exit_code == 0
