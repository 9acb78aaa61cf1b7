r"""Native Anthropic answers: the bytes of a body in, pieces and events out.

Owns how such a body is read: frames, what they lack (an `event:` line, a `type`), errors in whatever shape, a
whole JSON message instead of a stream, and how it ends. It must not know about blocks or their order: mending
that is `messages_blocks`', and what a message says about its end is `messages_end`'s.

    reader = MessagesStream(counts=Counter())
    reader.feed(b'event: content_block_delta\ndata: {...,"delta":{"type":"text_delta","text":"Hi"}}\n\n')
    -> [Piece(0, "text_delta", "Hi", b'{...}')]
    reader.end(fault)     the body ended: EOF, a reset, a time limit

What servers' own `/v1/messages` do differently and is read here: `data: [DONE]` (vLLM), a first error in
OpenAI's shape (llama.cpp), events after an error (SGLang).
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from antiphon.core import faults, own_faults
from antiphon.core.dialects.messages_wire import (
    Native,
    Piece,
    encoded,
    legible,
    members_of,
    read_event,
    read_piece,
    value_of,
    word_of,
)
from antiphon.core.parts import End, Fault, Malformed
from antiphon.core.sse import BOM, MAX_FRAME, Frame, SseDecoder

BODY_LIMIT = 32 * 1024 * 1024

Said: TypeAlias = Piece | Native | Fault | Malformed | End

_DELTA: Final = b"content_block_delta"
_USUAL: Final = b"event: content_block_delta\n"
_ARRAY = msgspec.json.Decoder(list[Raw])
_NO_STREAM = Fault("api_error", "the upstream answered with something else than Messages events", 502)


class MessagesStream:
    """Reads one answer. `counts` takes what was odd, by kind.

    `max_frame` (one event of a stream) and `max_body` (a whole JSON answer) are in bytes.
    """

    __slots__ = ("_body", "_counts", "_done", "_lead", "_max_body", "_seen", "_sse")

    def __init__(
        self, *, counts: Counter[str], max_frame: int = MAX_FRAME, max_body: int = BODY_LIMIT
    ) -> None:
        self._counts = counts
        self._sse = SseDecoder(max_frame)
        self._max_body = max_body
        self._lead: bytes | None = b""  # what may be part of a BOM; None: it is known what this body is
        self._body: bytearray | None = None  # a body that is no event stream: JSON, HTML
        self._seen = False  # an event of a message
        self._done = False

    def feed(self, data: bytes) -> list[Said]:
        """Take the next bytes of the body. Never raises for what they say; nothing follows an end."""
        if data.startswith(_USUAL) and not self._done:
            # Nearly every read is one whole frame of one delta. Behind its `event:` line stands what `lone`
            # knows, and it tells as well whether anything of an earlier frame is waiting.
            alone = self._sse.lone(data[len(_USUAL) :])
            piece = read_piece(alone) if alone is not None else None
            if piece is not None:
                return [piece]
        out: list[Said] = []
        if self._done:
            return out
        if self._lead is not None:
            data = self._sniff(self._lead + data)
        body = self._body
        if body is not None:
            body += data
            if len(body) > self._max_body:
                self._finish(out, own_faults.UPSTREAM_TOO_LARGE)
            return out
        self._take_frames(self._sse.feed(data), out)
        if self._sse.overflow and not self._done:
            self._finish(out, own_faults.UPSTREAM_TOO_LARGE)
        return out

    def end(self, fault: Fault | None = None) -> list[Said]:
        """The body is over: `fault` None for its regular end (EOF), else what cut it."""
        out: list[Said] = []
        if self._done:
            return out
        if self._body is not None:
            self._take_document(bytes(self._body), fault, out)
            return out
        self._take_frames(self._sse.flush(), out, cut=True)
        if not self._done:
            if fault is None and not self._seen:
                fault = own_faults.UPSTREAM_EMPTY
            self._finish(out, End(clean=False, fault=fault))
        return out

    # --- what kind of body is this ---

    def _sniff(self, data: bytes) -> bytes:
        """The first byte that is no white space tells an event stream from a document."""
        if BOM.startswith(data):
            self._lead = data
            return b""
        data = data.removeprefix(BOM).lstrip()
        self._lead = None if data else b""
        if data[:1] in (b"{", b"[", b"<"):
            self._body = bytearray()
        return data

    def _take_document(self, body: bytes, fault: Fault | None, out: list[Said]) -> None:
        """A whole message instead of a stream is one burst; everything else is a failure."""
        members = members_of(legible(body)) or {}
        content = _list_of(members.get("content"))
        if word_of(members.get("type")) == "message" and content is not None:
            self._counts["whole_answer"] += 1
            out += events_of(members, content)
            self._finish(out, End(clean=True))
        elif fault is not None and not members:
            self._finish(out, End(clean=False, fault=fault))
        else:
            self._finish(out, faults.fault_of_response(200, {}, body))

    # --- frames ---

    def _take_frames(self, frames: list[Frame], out: list[Said], *, cut: bool = False) -> None:
        """`cut`: the body ended before the last frame did."""
        for name, data in frames:
            piece = read_piece(data)
            if piece is not None:
                if name != _DELTA:
                    self._note_name(name, "content_block_delta")
                self._seen = True
                out.append(piece)
            else:
                self._take_odd_frame(name, data, out, cut=cut)
                if self._done:
                    return

    def _take_odd_frame(self, name: bytes, data: bytes, out: list[Said], *, cut: bool) -> None:
        """A frame that is anything but the usual delta."""
        data = data.strip()
        if data.startswith(b"[DONE]"):
            if self._seen:
                self._finish(out, End(clean=True))
            else:
                self._finish(out, own_faults.UPSTREAM_EMPTY)
            return
        named = name.decode("ascii", "replace")
        event = read_event(data, named)
        if event is None:
            if named == "error":
                self._finish(out, faults.fault_of_error(_said(data)))
            elif not data or named == "ping":
                return
            elif not cut:
                out.append(Malformed(own_faults.UPSTREAM_MALFORMED.message))
            return
        if isinstance(event, Native):
            self._take_event(event, named, out)
            return
        self._note_name(name, "content_block_delta")
        self._seen = True
        out.append(event)

    def _take_event(self, event: Native, named: str, out: list[Said]) -> None:
        kind = event.kind
        if kind == "error" or named == "error" or value_of(event.members.get("error")):
            # SGLang goes on after an error, with `message_stop`
            self._finish(out, faults.fault_of_error(value_of(Raw(event.payload))))
        elif kind == "ping":
            pass  # clients get this gateway's own
        elif kind in _KNOWN:
            self._note_name(named.encode(), kind)
            self._seen = True
            self._done = kind == "message_stop"
            out.append(event)
        elif "choices" in event.members:
            self._finish(out, _NO_STREAM)
        else:
            self._counts["unknown_event_dropped"] += 1

    def _note_name(self, name: bytes, kind: str) -> None:
        if not name:
            self._counts["event_name_missing"] += 1
        elif name != kind.encode():
            self._counts["event_name_mended"] += 1

    def _finish(self, out: list[Said], last: Fault | End) -> None:
        self._done = True
        out.append(last)


_KNOWN: Final = frozenset(
    {"message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"}
)
_OF_THE_END: Final = ("stop_reason", "stop_sequence", "stop_details", "container")


def events_of(message: dict[str, Raw], content: list[Raw]) -> list[Said]:
    """A whole message as the events that would have streamed it; its blocks are whole in their starts."""
    head = {name: raw for name, raw in message.items() if name not in ("content", *_OF_THE_END)}
    events: list[Said] = [Native("message_start", {"message": encoded(head)}, whole=True)]
    for index, block in enumerate(content):
        at = encoded(index)
        events += [
            Native("content_block_start", {"index": at, "content_block": block}, whole=True),
            Native("content_block_stop", {"index": at}, whole=True),
        ]
    end = {name: message[name] for name in _OF_THE_END if name in message}
    last = {"delta": encoded(end), "usage": message.get("usage", Raw(b"{}"))}
    return [*events, Native("message_delta", last, whole=True), Native("message_stop", {}, whole=True)]


def _list_of(raw: Raw | None) -> list[Raw] | None:
    if raw is None:
        return None
    try:
        return _ARRAY.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _said(data: bytes) -> object:
    """What stands in an error frame that is no JSON object: a bare string, a list, or plain text."""
    value = value_of(Raw(data)) if data else None
    return value if value is not None else data.decode("utf-8", "replace")
