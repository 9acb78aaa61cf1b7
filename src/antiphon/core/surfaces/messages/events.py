r"""Messages API: events to bytes.

Owns the wire form of each event of a Messages stream. One event is one SSE frame with an `event:` and a
`data:` line, compact JSON and a blank line behind it (protocol: SDKs ignore frames without a name and
drop the last one without a blank line).

    encoder = EventEncoder(message_id="msg_1", model="m", request_id="req_1")
    encoder.encode([TextDelta(0, "Hi")])
    -> b'event: content_block_delta\ndata: {"type":"content_block_delta",...}\n\n'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antiphon.core.faults import error_body
from antiphon.core.parts import (
    BlockStart,
    BlockStop,
    Error,
    Event,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

_json = msgspec.json.encode
_EMPTY_BLOCK = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTA_FIELDS = {
    TextDelta: ("text_delta", "text"),
    ThinkingDelta: ("thinking_delta", "thinking"),
    InputJsonDelta: ("input_json_delta", "partial_json"),
    SignatureDelta: ("signature_delta", "signature"),
}


def usage_fields(usage: MessageUsage, *, final: bool) -> dict[str, Any]:
    """Usage as clients read it; cache counts only where they were reported."""
    fields: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    if usage.cache_creation_input_tokens is not None:
        fields["cache_creation_input_tokens"] = usage.cache_creation_input_tokens
    if usage.cache_read_input_tokens is not None:
        fields["cache_read_input_tokens"] = usage.cache_read_input_tokens
    if final and usage.thinking_tokens is not None:
        fields["output_tokens_details"] = {"thinking_tokens": usage.thinking_tokens}
    return fields


def delta_fields(event: MessageDelta) -> dict[str, Any]:
    """What a message says about its end, in `message_delta.delta` and in a whole message alike."""
    fields: dict[str, Any] = {"stop_reason": event.stop_reason, "stop_sequence": event.stop_sequence}
    if event.stop_reason == "refusal":
        fields["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
    return fields


class EventEncoder:
    """Encodes the events of one message. Its texts must be free of lone surrogates."""

    __slots__ = ("_message_id", "_model", "_prefixes", "_request_id")

    def __init__(self, *, message_id: str, model: str, request_id: str) -> None:
        self._message_id = message_id
        self._model = model
        self._request_id = request_id
        # A message has a handful of blocks and thousands of deltas: what stands before a delta's text
        # is made once for each block.
        self._prefixes: dict[tuple[type, int], bytes] = {}

    def encode(self, events: Sequence[Event]) -> bytes:
        """All frames of these events as one piece of bytes, for one write."""
        if len(events) == 1:  # as nearly always
            return self.encode_one(events[0])
        return b"".join([_ENCODE[type(event)](self, event) for event in events])

    def encode_one(self, event: Event) -> bytes:
        """The frame of one event."""
        return _ENCODE[type(event)](self, event)

    def _delta(self, event: Any) -> bytes:
        key = (type(event), event.index)
        prefix = self._prefixes.get(key)
        if prefix is None:
            name, field = _DELTA_FIELDS[key[0]]
            prefix = (
                f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{event.index},'
                f'"delta":{{"type":"{name}","{field}":'
            ).encode()
            self._prefixes[key] = prefix
        return prefix + _json(event.s) + b"}}\n\n"

    def _message_start(self, event: MessageStart) -> bytes:
        message: dict[str, Any] = {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_fields(event.usage, final=False),
        }
        return _frame("message_start", {"message": message})

    def _block_start(self, event: BlockStart) -> bytes:
        block: dict[str, Any]
        if event.kind == "tool_use":
            block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
        else:
            block = _EMPTY_BLOCK[event.kind]
        return _frame("content_block_start", {"index": event.index, "content_block": block})

    def _block_stop(self, event: BlockStop) -> bytes:
        return _frame("content_block_stop", {"index": event.index})

    def _message_delta(self, event: MessageDelta) -> bytes:
        return _frame(
            "message_delta", {"delta": delta_fields(event), "usage": usage_fields(event.usage, final=True)}
        )

    def _message_stop(self, event: MessageStop) -> bytes:
        return _STOP

    def _ping(self, event: Ping) -> bytes:
        return PING

    def _error(self, event: Error) -> bytes:
        return b"event: error\ndata: " + error_body(event.fault, self._request_id) + b"\n\n"


def _frame(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json({"type": name, **fields}))


_ENCODE: dict[type, Callable[[EventEncoder, Any], bytes]] = {
    TextDelta: EventEncoder._delta,
    ThinkingDelta: EventEncoder._delta,
    InputJsonDelta: EventEncoder._delta,
    SignatureDelta: EventEncoder._delta,
    MessageStart: EventEncoder._message_start,
    BlockStart: EventEncoder._block_start,
    BlockStop: EventEncoder._block_stop,
    MessageDelta: EventEncoder._message_delta,
    MessageStop: EventEncoder._message_stop,
    Ping: EventEncoder._ping,
    Error: EventEncoder._error,
}
