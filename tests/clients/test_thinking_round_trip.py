"""What an upstream needs back comes back, over several turns, through the real clients.

The upstream thinks and calls tools in the three ways there are (`states.py`). Each client sends the turn back
by its own means: the SDKs by appending their `message.content`, Claude Code from its session. Whatever a
client or somebody else made of the sealed state is ignored, and never an error.
"""

from __future__ import annotations

import json

import pytest

from antiphon.core.seal import Sealer
from clients import claude_code
from clients.claude_code import ClaudeCode
from clients.posting import post
from clients.states import HIDDEN_PIECES, OPAQUE, STATES, THOUGHT, assistants, google, saying
from live_gateway import gateway
from recording_upstream import Answer, RecordingUpstream, chunk

pytestmark = pytest.mark.timeout(120)

WEATHER = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
REQUEST = {"model": "reasoning", "max_tokens": 200, "tools": [WEATHER]}
CITIES = ("Zug", "Uri")
TURNS = 4


@pytest.fixture
def kept_state(tmp_path, monkeypatch):
    """The folder in which gateways of one installation keep their key."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.delenv("ANTIPHON_SEAL_KEY", raising=False)
    return folder


def loop(state):
    """The upstream's side of a conversation: two calls after each other, their answer, one more answer."""
    calls = [state.calling("weather", {"city": city}, f"call_{city}") for city in CITIES]
    return [*calls, saying("Rain in both."), Answer()]


class Conversation:
    """The client's side of it, a turn at a time."""

    def __init__(self, sdk, *, streaming=True):
        self._sdk = sdk
        self._streaming = streaming
        self._say = "Where does it rain?"
        self._begun = False

    def turn(self, base_url):
        answer = self._sdk.turn(
            base_url, REQUEST, self._say, first=not self._begun, streaming=self._streaming
        )
        assert "error" not in answer, answer
        self._begun = True
        calls = [block["id"] for block in answer["message"]["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call, "content": "rain"} for call in calls]
        self._say = results or "Thank you."


def assert_kept(state, requests):
    """Every later request has each call's state on its own message, and nothing on that of a mere text."""
    bodies = [request.json for request in requests]
    assert [len(assistants(body)) for body in bodies] == list(range(TURNS))
    for body in bodies:
        for message, city in zip(assistants(body), CITIES, strict=False):
            assert state.kept(message) == state.expected
            (call,) = message["tool_calls"]
            assert call["id"] == f"call_{city}"
            assert json.loads(call["function"]["arguments"]) == {"city": city}
    answer = assistants(bodies[-1])[-1]
    assert answer == {"role": "assistant", "content": "Rain in both."}
    assert not any(b"ap1." in request.body for request in requests)


# --- SDKs ----------------------------------------------------------------------------------------


WAYS = [(name, True) for name in STATES] + [
    ("reasoning_content", False),
    ("openrouter", False),
    ("gemini", False),
]


@pytest.mark.parametrize(
    ("state", "streaming"),
    [(STATES[name], streaming) for name, streaming in WAYS],
    ids=[f"{name}-{'stream' if streaming else 'create'}" for name, streaming in WAYS],
)
def test_the_upstream_gets_back_what_it_said(sdk, recorded, state, streaming):
    recorded.upstream.script = loop(state)
    conversation = Conversation(sdk, streaming=streaming)
    for _ in range(TURNS):
        conversation.turn(recorded.base_url)
    assert_kept(state, recorded.upstream.requests)


# The restart is the gateway's: the newest of each language will do.
@pytest.mark.parametrize("sdk", ["python-2", "typescript-1"], indirect=True, scope="session")
def test_hidden_state_survives_a_restart(sdk, recorded, kept_state, tmp_path):
    state = STATES["openrouter"]
    recorded.upstream.script = loop(state)
    conversation = Conversation(sdk)
    with gateway(tmp_path, recorded.upstream.base_url) as before:
        conversation.turn(before.base_url)
    with gateway(tmp_path, recorded.upstream.base_url) as after:
        for _ in range(1, TURNS):
            conversation.turn(after.base_url)
    assert_kept(state, recorded.upstream.requests)


# --- What is not ours ----------------------------------------------------------------------------

FOREIGN = "EqoBCkgIARABGAIiQL8KZl9rc2lnbmF0dXJlLW9mLWFub3RoZXItZ2F0ZXdheQ=="


def _flipped(sealed, place):
    return sealed[:place] + ("A" if sealed[place] != "A" else "B") + sealed[place + 1 :]


def _of_another_key(sealed):
    return Sealer(b"another installation's key, 32 b").seal("generic", "reasoning", {"extra_content": "zz"})


def _for_another_kind_of_server(sealed):
    return Sealer(KEY).seal("vllm", "reasoning", {"extra_content": "zz"})


NOT_OURS = {
    "edited-head": lambda sealed: _flipped(sealed, len("ap1.")),
    "edited-middle": lambda sealed: _flipped(sealed, len(sealed) // 2),
    "edited-end": lambda sealed: _flipped(sealed, -2),
    "cut": lambda sealed: sealed[:-7],
    "longer": lambda sealed: sealed + "AAAA",
    "only-our-prefix": lambda sealed: "ap1.",
    "no-base64": lambda sealed: "ap1.%%%\N{SNOWMAN}",
    "huge": lambda sealed: sealed + "A" * 100_000,
    "another-key": _of_another_key,
    "another-kind-of-server": _for_another_kind_of_server,
    "foreign": lambda sealed: FOREIGN,
    "empty": lambda sealed: "",
}
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A gateway whose key is known, in front of an upstream that records."""
    with (
        pytest.MonkeyPatch.context() as patch,
        RecordingUpstream() as upstream,
    ):
        patch.setenv("ANTIPHON_SEAL_KEY", KEY.hex())
        with gateway(tmp_path_factory.mktemp("keyed"), upstream.base_url) as antiphon:
            yield antiphon, upstream


def first_turn(keyed, state, model="reasoning"):
    """What the assistant said, as the client has it."""
    antiphon, upstream = keyed
    upstream.reset()
    upstream.script = [state.calling("weather", {"city": "Zug"})]
    answer = post(antiphon.base_url, asking(model))
    assert answer.status == 200, answer.body
    return answer.json["content"]


def second_turn(keyed, content, model="reasoning"):
    """The message that the upstream gets for it. The client gets 200 whatever is in it."""
    antiphon, upstream = keyed
    (call,) = (block["id"] for block in content if block["type"] == "tool_use")
    results = [{"type": "tool_result", "tool_use_id": call, "content": "rain"}]
    turns = [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    answer = post(antiphon.base_url, asking(model, *turns) | {"stream": True})
    assert answer.status == 200, answer.body
    assert "antiphon-degraded" not in answer.headers
    assert answer.events[-1]["type"] == "message_stop"
    (message,) = assistants(upstream.requests[-1].json)
    return message


def asking(model, *turns):
    question = {"role": "user", "content": "Where does it rain?"}
    return REQUEST | {"model": model, "messages": [question, *turns]}


def with_signatures(content, made):
    return [
        block | {"signature": made(block["signature"])} if block.get("signature") else block
        for block in content
    ]


def assert_forgotten(message):
    """Nothing is left but what any upstream may hear."""
    text = json.dumps(message)
    assert not {"reasoning_details", "extra_content"} & message.keys()
    assert not any("extra_content" in call for call in message["tool_calls"])
    assert "ap1." not in text
    assert FOREIGN not in text
    assert message["tool_calls"][0]["id"] == "call_1"


@pytest.mark.parametrize("made", NOT_OURS.values(), ids=NOT_OURS)
@pytest.mark.parametrize("state", OPAQUE.values(), ids=OPAQUE)
def test_a_signature_that_is_not_ours_is_ignored(keyed, state, made):
    content = first_turn(keyed, state)
    assert state.kept(second_turn(keyed, content)) == state.expected  # as it came, it is ours
    message = second_turn(keyed, with_signatures(content, made))
    assert_forgotten(message)
    # The thinking itself was never sealed, so it is still there.
    thought = "".join(block["thinking"] for block in content if block["type"] == "thinking")
    assert message.get("reasoning_content", "") == thought


@pytest.mark.parametrize("state", OPAQUE.values(), ids=OPAQUE)
def test_another_models_signature_is_ignored(keyed, state):
    content = first_turn(keyed, state, model="a-model")
    assert_forgotten(second_turn(keyed, content, model="another-model"))
    assert state.kept(second_turn(keyed, content, model="a-model")) == state.expected


def test_thinking_that_anthropic_hid_is_ignored(keyed):
    content = first_turn(keyed, STATES["reasoning_content"])
    hidden = {"type": "redacted_thinking", "data": FOREIGN}
    message = second_turn(keyed, [hidden, *content])
    assert_forgotten(message)
    assert message["reasoning_content"] == THOUGHT


def test_each_of_two_calls_keeps_its_own_signature(keyed):
    """The state of a call stands right before it, and one without any gets none."""
    antiphon, upstream = keyed
    calls = [
        {
            "index": i,
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": "weather", "arguments": "{}"},
        }
        for i in range(3)
    ]
    for i in (0, 2):
        calls[i]["extra_content"] = {"google": {"thought_signature": f"sig {i}"}}
    upstream.reset()
    upstream.script = [
        Answer.of(*(chunk({"tool_calls": [call]}) for call in calls), chunk({}, "tool_calls"), "[DONE]")
    ]
    content = post(antiphon.base_url, asking("reasoning")).json["content"]
    uses = [block["id"] for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use, "content": "rain"} for use in uses]
    turns = [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    assert post(antiphon.base_url, asking("reasoning", *turns)).status == 200
    (message,) = assistants(upstream.requests[-1].json)
    assert [call.get("extra_content") for call in message["tool_calls"]] == [
        {"google": {"thought_signature": "sig 0"}},
        None,
        {"google": {"thought_signature": "sig 2"}},
    ]


# --- State behind a text ---------------------------------------------------------------------------

BEHIND_A_TEXT = {
    "gemini": (chunk({"content": "", **google("of the text")}),),
    "openrouter": HIDDEN_PIECES,
}


@pytest.mark.parametrize("trail", BEHIND_A_TEXT.values(), ids=BEHIND_A_TEXT)
def test_the_last_block_of_an_answer_is_its_text(keyed, trail):
    """Claude Code's `-p` prints the last block: a thought there, however empty, and it prints nothing."""
    antiphon, upstream = keyed
    upstream.reset()
    upstream.script = [saying("Sung.", *trail)]
    content = post(antiphon.base_url, asking("reasoning")).json["content"]
    assert content[-1] == {"type": "text", "text": "Sung."}


# --- Claude Code ---------------------------------------------------------------------------------


@pytest.mark.live
@pytest.mark.skipif(claude_code.missing() is not None, reason=str(claude_code.missing()))
def test_claude_code_sends_it_back_over_a_restart(recorded, kept_state, tmp_path):
    """A loop of tools in one process, one kind of state each; a restart; the session gone on with."""
    upstream = recorded.upstream
    states = list(STATES.items())
    with gateway(tmp_path, upstream.base_url) as before:
        cli = ClaudeCode(tmp_path / "home", before.base_url)
        path = str(cli.folder / "verse.txt")
        calls = [("Write", {"file_path": path, "content": "one choir sings\n"})]
        calls += [("Read", {"file_path": path})] * (len(states) - 1)
        upstream.script = [
            *(state.calling(*call, name) for call, (name, state) in zip(calls, states, strict=True)),
            saying("Sung."),
        ]
        turn = cli.ask("Write a verse and read it.", "--allowedTools", "Write,Read")
    assert (turn.status, turn.text) == (0, "Sung.")
    assert [block["name"] for block in turn.blocks("tool_use")] == [name for name, _ in calls]
    with gateway(tmp_path, upstream.base_url) as after:
        cli.move(after.base_url)
        turn = cli.ask("Thank you.", "--continue")
    assert (turn.status, turn.text) == (0, "ok")

    bodies = [request.json for request in upstream.requests]
    assert [len(assistants(body)) for body in bodies] == list(range(len(states) + 2))
    for body in bodies:
        for message, (name, state) in zip(assistants(body), states, strict=False):
            assert [call["id"] for call in message["tool_calls"]] == [name]
            assert state.kept(message) == state.expected
    assert "one choir sings" in json.dumps(bodies[2]["messages"])
    assert not any(b"ap1." in request.body for request in upstream.requests)
