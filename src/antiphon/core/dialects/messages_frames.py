r"""Native events towards the client: one SSE frame each, in the upstream's own bytes where they are right.

Owns the frames, and in them the index of a block. Order and content are decided before.

    frames = NativeFrames(request_id="req_1")
    frames.delta(0, Piece(0, "text_delta", "Hi", b'{...}'))
    frames.take()   -> b'event: content_block_delta\ndata: {...}\n\n'
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from msgspec import Raw, Struct

from antiphon.core.dialects.messages_wire import DELTA_TEXT, Piece, members_of
from antiphon.core.faults import error_body
from antiphon.core.parts import Fault

_DELTA = b"event: content_block_delta\ndata: "
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

_json = msgspec.json.encode


class MessageEnd(Struct, frozen=True):
    """How a message ended: `payload` is the whole `message_delta`, `delta` and `usage` are members of it.

    `cut_short`: a call may be half of what the model meant.
    """

    payload: bytes
    delta: dict[str, Raw]
    usage: dict[str, Any]
    cut_short: bool


class Writer(Protocol):
    """Where a mended message goes, in order: frames for a stream, a fold for a whole answer."""

    def message_start(self, members: dict[str, Any]) -> None: ...
    def block_start(self, index: int, event: dict[str, Raw], block: dict[str, Any]) -> None: ...
    def delta(self, index: int, piece: Piece) -> None: ...
    def block_stop(self, index: int) -> None: ...
    def message_end(self, end: MessageEnd) -> None: ...
    def error(self, fault: Fault) -> None: ...


class NativeFrames:
    """The frames of one message that were not taken yet."""

    __slots__ = ("_out", "_request_id")

    def __init__(self, *, request_id: str) -> None:
        self._request_id = request_id
        self._out = bytearray()

    @property
    def pending(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._out)

    def take(self) -> bytes:
        """Everything so far, as one piece of bytes for one write."""
        taken = bytes(self._out)
        self._out.clear()
        return taken

    def message_start(self, members: dict[str, Any]) -> None:
        """`members` of the event, its `message` complete. It goes before what its own content has written."""
        self._out[:0] = _frame("message_start", {**members, "type": "message_start"})

    def block_start(self, index: int, event: dict[str, Raw], block: dict[str, Any]) -> None:
        """`event` are the upstream's members of the event, `block` those of the block as it starts."""
        members = {**event, "type": "content_block_start", "index": index, "content_block": block}
        self._out += _frame("content_block_start", members)

    def delta(self, index: int, piece: Piece) -> None:
        """The upstream's bytes, where its index is the client's."""
        payload = piece.payload
        if not payload:
            fields = {"type": piece.word, DELTA_TEXT[piece.word]: piece.text}
            payload = _json({"type": "content_block_delta", "index": index, "delta": fields})
        elif piece.index != index:
            payload = _json({**(members_of(payload) or {}), "index": index})
        self._out += b"%b%b\n\n" % (_DELTA, payload)

    def block_stop(self, index: int) -> None:
        self._out += _frame("content_block_stop", {"type": "content_block_stop", "index": index})

    def message_end(self, end: MessageEnd) -> None:
        self._out += b"event: message_delta\ndata: %b\n\n" % end.payload
        self._out += _STOP

    def error(self, fault: Fault) -> None:
        self._out += b"event: error\ndata: %b\n\n" % error_body(fault, self._request_id)


def _frame(name: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json(members))
