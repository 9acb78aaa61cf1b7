"""The content blocks of a native upstream's message, mended into the order that clients can follow.

Owns when a block starts and stops for the client, and its index there. It must not know how a message begins
or ends; which block a delta belongs to is `messages_open`'s.

One block is on the wire, the head; the others wait behind it with what they have. What a stop means to
clients makes the rules: a `tool_use` that was stopped is run, whatever comes after.

    situation                     rule
    the upstream stops the head   so does this, unless it is a call whose arguments are not whole
    another block has content     an open head stops, a call only if it is whole and no two calls were open at
                                  once
    text and thinking             start with their first content; without any they never were
    a call                        starts with its first argument byte; without any (or with `{}`) when it was
                                  stopped and another block has content, or at a normal finish; a cut finish
                                  drops it
    the finish                    stops what is open; a call that is not whole is a failure, and keeps its
                                  bytes as they came after `max_tokens` and its like

    blocks = NativeBlocks(writer, tally=tally, counts=Counter(), entropy=os.urandom)
    blocks.start(Native("content_block_start", ...))
    blocks.add(Piece(0, "text_delta", "Hi", b"..."))   -> the writer gets the start and the delta
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from antiphon.core import tool_ids
from antiphon.core.arguments import ArgumentScanner, is_object
from antiphon.core.blocks import State, tool_name
from antiphon.core.dialects.messages_block import EMPTY_BLOCK, TEXTUAL, Block
from antiphon.core.dialects.messages_frames import Writer
from antiphon.core.dialects.messages_open import OpenBlocks
from antiphon.core.dialects.messages_wire import (
    DELTA_TEXT,
    Native,
    Piece,
    encoded,
    index_of,
    members_of,
    size_of,
    word_of,
)
from antiphon.core.dialects.surrogates import SurrogateMender
from antiphon.core.parts import Fault
from antiphon.core.usage import Tally

_HELD, _LIVE, _STOPPED = State

_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")
_PIECE = 64  # bytes that a piece takes beside its JSON

_NAMELESS = Fault("api_error", "the upstream sent a tool call without a name", 502)
_ARGUMENTS_CUT = Fault("api_error", "the upstream ended in the middle of a tool call's arguments", 502)


class NativeBlocks:
    """The blocks of one message. `entropy` is for the ids of calls that have no usable one."""

    __slots__ = (
        "_counts",
        "_entropy",
        "_head",
        "_mender",
        "_next_index",
        "_open",
        "_queue",
        "_taken",
        "_tally",
        "_writer",
        "begun",
        "fault",
        "held",
        "tools",
    )

    def __init__(
        self, writer: Writer, *, tally: Tally, counts: Counter[str], entropy: Callable[[int], bytes]
    ) -> None:
        self._writer = writer
        self._tally = tally
        self._counts = counts
        self._entropy = entropy
        self._mender = SurrogateMender(counts)
        self._open = OpenBlocks(counts)
        self._queue: deque[Block] = deque()  # behind the head
        self._head: Block | None = None
        self._next_index = 0
        self._taken: set[str] = set()  # ids of calls
        self.begun = False  # some content is there
        self.tools = 0  # calls that the client got
        self.held = 0  # bytes behind the head
        self.fault: Fault | None = None

    # --- what the upstream says ---

    def start(self, event: Native) -> None:
        """A `content_block_start`."""
        members = members_of(event.members.get("content_block"))
        if members is None:
            self._counts["odd_block_start"] += 1
            return
        kind = word_of(members.get("type"))
        if not kind:
            self._counts["odd_block_start"] += 1
            kind = next((name for name, (text, _) in TEXTUAL.items() if text in members), "tool_use")
            members["type"] = encoded(kind)
        source = index_of(event.members)
        if self._open.repeats(kind, source, members):
            self._counts["block_start_repeated"] += 1
            return
        block = Block(kind, source, members)
        block.event = {
            name: raw for name, raw in event.members.items() if name not in ("type", "index", "content_block")
        }
        if kind == "tool_use" and not word_of(members.get("name")):
            self.fault = _NAMELESS
            return
        if not self._open.admit(block):
            self.fault = self._open.fault
            return
        block.size = sum(map(size_of, (*members.values(), *block.event.values()))) + _PIECE
        self.held += block.size
        if kind in TEXTUAL:
            self._start_text(block, whole=event.whole)
        elif kind == "tool_use":
            self._start_call(block, whole=event.whole)
        else:
            self._enqueue(block)
        self._promote()

    def add(self, piece: Piece) -> None:
        """A `content_block_delta`."""
        block = self._open.owner(piece)
        if block is not None:
            self._append(block, piece)
        else:
            self.fault = self._open.fault

    def stop(self, event: Native) -> None:
        """A `content_block_stop`."""
        block = self._open.find(index_of(event.members))
        if block is None:
            self._counts["stray_block_stop"] += 1
            return
        self._close(block)
        self._promote()

    def finish(self, *, cut_short: bool) -> None:
        """The message ends well; `cut_short`: a call may be half of what the model meant. May set `fault`."""
        waiting = [block for block in (self._head, *self._queue) if block is not None]
        if not cut_short and any(block.unfinished for block in waiting):
            self._counts["arguments_cut"] += 1
            self.fault = _ARGUMENTS_CUT  # before anything is stopped: a stop is an order to run it
            return
        self._give_up_halves()
        for block in self._open.blocks[:]:
            if block.state is not _STOPPED:
                self._counts["block_stop_missing"] += 1
            self._close(block)
        self._promote()
        if self._head is not None:
            self._stop(self._head)
        for block in self._queue:
            if block.nothing_said and cut_short:
                # Cut before its arguments: a client would run it with {}.
                self._counts["cut_call_dropped"] += 1
                continue
            self._go_live(block)
            self._stop(block)
        self._queue.clear()
        self.held = 0

    # --- starts and stops ---

    def _start_text(self, block: Block, *, whole: bool) -> None:
        name, word = TEXTUAL[block.kind]
        text = word_of(block.members.get(name))
        signature = word_of(block.members.get("signature")) if block.kind == "thinking" else ""
        block.members = {**block.members, **EMPTY_BLOCK[block.kind]}
        if (text or signature) and not whole:
            self._counts["content_in_block_start"] += 1
        if text:
            self._append(block, Piece(block.source, word, text))
        if signature:  # clients keep only what comes in a delta
            self._append(block, Piece(block.source, "signature_delta", signature))

    def _start_call(self, block: Block, *, whole: bool) -> None:
        block.given = _arguments(block.members.get("input"))
        if block.given and not whole:
            self._counts["input_in_block_start"] += 1
        block.members = {**block.members, "input": _NO_INPUT}
        self._enqueue(block)

    def _close(self, block: Block) -> None:
        """The upstream has stopped it."""
        block.open = False
        self._open.blocks.remove(block)
        self._give_up_halves(of=block)
        if block.nothing_said:
            self._take_given(block)
        if not block.queued:
            self.held -= block.size
            self._counts["empty_block_dropped"] += 1

    def _take_given(self, block: Block) -> None:
        if block.given:
            self._append(block, Piece(block.source, "input_json_delta", block.given))
            block.given = ""

    # --- deltas ---

    def _append(self, block: Block, piece: Piece) -> None:
        if self._mender.waiting or not piece.text.isascii():
            mended = self._mended(block, piece)
            if mended is None:
                return
            piece = mended
        if not piece.text and piece.word in DELTA_TEXT:
            if block.kind in TEXTUAL and piece.word != "signature_delta":
                self._counts["empty_delta_dropped"] += 1
            return
        if piece.word == "signature_delta":
            # Last in its block, and once (protocol): it waits for the stop.
            if block.signature is not None:
                self._counts["signature_repeated"] += 1
            block.signature = piece
        else:
            if block.scan is not None and not self._scan(block, block.scan, piece.text):
                return
            tally = self._tally
            tally.characters += len(piece.text)
            tally.deltas += 1
            if block.state is _LIVE:
                self._writer.delta(block.index, piece)
                if block.scan is not None:
                    self._promote()
                return
            block.held.append(piece)
            size = len(piece.payload) + len(piece.text) + _PIECE
            block.size += size
            self.held += size
        if not block.queued:
            self._enqueue(block)
        if block.state is _HELD:
            self._promote()

    def _scan(self, block: Block, scan: ArgumentScanner, text: str) -> bool:
        """Follow a call's arguments; False: this text adds nothing to them."""
        if scan.whole:
            if text.isspace():
                return False
            if not scan.bare or block.state is _LIVE:
                scan.spoil()
                return True
            self._counts["placeholder_dropped"] += 1  # `{}` before the real arguments
            block.held.clear()
            block.scan = scan = ArgumentScanner()
        taken = scan.feed(text)
        if text[taken:].strip():
            scan.spoil()
        return True

    def _mended(self, block: Block, piece: Piece) -> Piece | None:
        """A text without half characters; None: it is half of one, and waits for the rest."""
        channel = (block, 0)
        waited = channel in self._mender.waiting
        self._give_up_halves(but=block)
        text = self._mender.text(channel, piece.text)
        if not waited and text == piece.text:
            return piece
        return Piece(piece.index, piece.word, text) if text else None

    def _give_up_halves(self, *, of: Block | None = None, but: Block | None = None) -> None:
        """What waits in a block (`of` this one, in any `but` this one) waits in vain."""
        for owner, _ in list(self._mender.waiting):
            if owner is but or (of is not None and owner is not of):
                continue
            del self._mender.waiting[owner, 0]
            self._counts["lone_surrogate"] += 1
            word = TEXTUAL[owner.kind][1] if owner.kind in TEXTUAL else "input_json_delta"
            if owner.state is not _STOPPED:
                self._append(owner, Piece(owner.source, word, "\ufffd"))

    # --- the queue ---

    def _enqueue(self, block: Block) -> None:
        block.queued = True
        self._queue.append(block)
        self.begun = True

    def _promote(self) -> None:
        """Let the head stop if it may, and the next one start: until one stays on the wire."""
        while self.fault is None:
            head = self._head
            if head is not None:
                if not self._may_stop(head):
                    return
                self._stop(head)
            if not self._queue or not self._may_start(self._queue[0]):
                return
            self._go_live(self._queue.popleft())

    def _may_stop(self, head: Block) -> bool:
        scan = head.scan
        if scan is None:
            return not head.open or bool(self._queue)
        if not scan.whole:
            return False
        return not head.open or (bool(self._queue) and not scan.bare and not self._open.overlap)

    def _may_start(self, block: Block) -> bool:
        return not block.nothing_said or (not block.open and len(self._queue) > 1)

    def _go_live(self, block: Block) -> None:
        self.held -= block.size
        block.size = 0
        block.state = _LIVE
        block.index = self._next_index
        self._next_index += 1
        self._head = block
        if block.source != block.index:
            self._counts["index_mended"] += 1
        if block.kind == "tool_use":
            self._name(block)
        self._writer.block_start(block.index, block.event, block.members)
        scan = block.scan
        if scan is not None and scan.blank:
            scan.feed("{}")
            block.held.append(Piece(None, "input_json_delta", "{}"))
        for piece in block.held:
            self._writer.delta(block.index, piece)
        block.held.clear()

    def _stop(self, block: Block) -> None:
        if block.signature is not None:
            self._writer.delta(block.index, block.signature)
        self._writer.block_stop(block.index)
        block.state = _STOPPED
        block.members = block.event = {}  # the upstream may leave it open for long
        self._head = None

    def _name(self, block: Block) -> None:
        """A call's id and name, as every client and every later upstream can take them."""
        self.tools += 1
        given = word_of(block.members.get("id"))
        id_ = given
        if given in self._taken or not _PLAIN_ID.fullmatch(given):
            id_ = tool_ids.outgoing(given or None, taken=self._taken, entropy=self._entropy)
            self._counts["tool_id_mended"] += 1
            block.members["id"] = encoded(id_)
        self._taken.add(id_)
        name = word_of(block.members.get("name"))
        if tool_name(name) != name:
            self._counts["tool_name_mended"] += 1
            block.members["name"] = encoded(tool_name(name))


def _arguments(given: Raw | None) -> str:
    """A call's arguments that stand in its start, as an object or as its text; "" if they say nothing."""
    if given is None:
        return ""
    if members_of(given):
        return bytes(given).decode()
    text = word_of(given)
    return text if is_object(text) and text.strip("{} \n") else ""


_NO_INPUT: Final = Raw(b"{}")
