"""What upstreams want back with the next request: one answer for each way they say it, and where it belongs.

Owns the wire forms of plain reasoning (DeepSeek, Kimi, GLM), OpenRouter's `reasoning_details` and Gemini's
thought signatures. It asserts nothing.

    state = STATES["gemini"]
    upstream.script = [state.calling("weather", {"city": "Zug"}), saying("It rains.")]
    ...
    state.kept(assistant_message)   -> what came back of it, to compare with `state.expected`
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from recording_upstream import Answer, chunk, more, opens

THOUGHT = "I must look it up."


@dataclass(frozen=True)
class State:
    """`lead` are the chunks before a tool call, `trail` those behind it, `on_call` members of the call itself.

    `kept` reads a message of the next request, and `expected` is what must be there. `opaque`: it travels
    sealed, not as thinking.
    """

    kept: Callable[[dict], Any]
    expected: Any
    lead: tuple[str, ...] = ()
    trail: tuple[str, ...] = ()
    on_call: dict[str, Any] = field(default_factory=dict)
    opaque: bool = True

    def calling(self, name: str, arguments: dict, call_id: str = "call_1") -> Answer:
        """A streamed tool call, in two pieces, after whatever stands before it."""
        text = json.dumps(arguments)
        call = json.loads(opens(call_id, name, text[:2]))
        call["choices"][0]["delta"]["tool_calls"][0] |= self.on_call
        called = (json.dumps(call), more(text[2:]))
        return Answer.of(*self.lead, *called, *self.trail, chunk({}, "tool_calls"), "[DONE]")


def saying(text: str, *trail: str) -> Answer:
    """A streamed text, and what comes behind it."""
    return Answer.of(chunk({"content": text}), *trail, chunk({}, "stop"), "[DONE]")


def _plain(name: str) -> State:
    pieces = (THOUGHT[:7], THOUGHT[7:])
    return State(
        lead=(chunk({"role": "assistant", "content": ""}), *(chunk({name: each}) for each in pieces)),
        kept=lambda message: message.get("reasoning_content"),
        expected=THOUGHT,
        opaque=False,
    )


def _detail(**entry: Any) -> str:
    """OpenRouter says the text of an entry twice: in the entry, and as `reasoning`."""
    text = {"reasoning": entry["text"]} if "text" in entry else {}
    return chunk({"role": "assistant", "content": "", **text, "reasoning_details": [entry]})


_TEXT = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
_HIDDEN = {"type": "reasoning.encrypted", "format": "openai-responses-v1", "index": 1}
_SIGNATURE = "EqoBCkgIARABGAIiQL+/sig=="
_CIPHER = "gAAAAABo" + "Zm9v+/" * 700 + "=="  # large enough to travel compressed

HIDDEN_PIECES = (
    _detail(**_HIDDEN, id="rs_1", data=_CIPHER[:9]),
    _detail(**_HIDDEN, data=_CIPHER[9:2000]),
    _detail(**_HIDDEN, data=_CIPHER[2000:]),
)
_HIDDEN_WHOLE = {**_HIDDEN, "id": "rs_1", "data": _CIPHER}


def _details(message: dict) -> Any:
    return message.get("reasoning_details")


_OPENROUTER = State(
    lead=(
        _detail(**_TEXT, text=THOUGHT[:7]),
        _detail(**_TEXT, text=THOUGHT[7:]),
        _detail(**_TEXT, signature=_SIGNATURE),
        *HIDDEN_PIECES,
    ),
    kept=_details,
    expected=[{**_TEXT, "text": THOUGHT, "signature": _SIGNATURE}, _HIDDEN_WHOLE],
)
_OPENROUTER_LATE = State(trail=HIDDEN_PIECES, kept=_details, expected=[_HIDDEN_WHOLE])


def google(signature: str) -> dict:
    """Gemini's thought signature, as a member of a call or of a delta."""
    return {"extra_content": {"google": {"thought_signature": signature}}}


_GEMINI = State(
    on_call=google("CvcBAVSoXO+/call=="),
    kept=lambda message: [call.get("extra_content") for call in message.get("tool_calls", [])],
    expected=[google("CvcBAVSoXO+/call==")["extra_content"]],
)

STATES = {
    "reasoning_content": _plain("reasoning_content"),
    "reasoning": _plain("reasoning"),
    "openrouter": _OPENROUTER,
    "openrouter-behind-the-call": _OPENROUTER_LATE,
    "gemini": _GEMINI,
}
OPAQUE = {name: state for name, state in STATES.items() if state.opaque}


def assistants(body: dict) -> list[dict]:
    """The assistant's messages of a request to the upstream."""
    return [message for message in body["messages"] if message["role"] == "assistant"]
