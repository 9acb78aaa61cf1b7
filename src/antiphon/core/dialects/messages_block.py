"""One content block of a native upstream's message, from its start to its stop.

Owns a block's own facts: what it holds, how far it is, which deltas it takes. It decides nothing about its
neighbours: order is `messages_blocks`'.

    block = Block("text", 0, EMPTY_BLOCK["text"])
    block.takes("text_delta")       -> True
    block.takes("thinking_delta")   -> False
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from antiphon.core.arguments import ArgumentScanner
from antiphon.core.blocks import State
from antiphon.core.dialects.messages_wire import Piece

# Which deltas a block takes; a kind that is not here takes every one.
FITS: Final[dict[str, frozenset[str]]] = {
    "text": frozenset({"text_delta", "citations_delta"}),
    "thinking": frozenset({"thinking_delta", "signature_delta"}),
    "tool_use": frozenset({"input_json_delta"}),
    "redacted_thinking": frozenset(),
}
KIND_OF: Final = {word: kind for kind, words in FITS.items() for word in words}
TEXTUAL: Final = {"text": ("text", "text_delta"), "thinking": ("thinking", "thinking_delta")}
EMPTY_BLOCK: Final = {
    "text": {"type": Raw(b'"text"'), "text": Raw(b'""')},
    "thinking": {"type": Raw(b'"thinking"'), "thinking": Raw(b'""'), "signature": Raw(b'""')},
}


class Block:
    """One block. `source` is its index at the upstream, `index` the one at the client, once it is there."""

    __slots__ = (
        "event",
        "given",
        "held",
        "index",
        "kind",
        "members",
        "open",
        "queued",
        "scan",
        "signature",
        "size",
        "source",
        "state",
    )

    def __init__(self, kind: str, source: int | None, members: dict[str, Raw]) -> None:
        self.kind = kind
        self.source = source
        self.index = -1
        self.state = State.HELD
        self.open = True  # the upstream has not stopped it
        self.queued = False  # it has a place in the message
        self.event: dict[str, Raw] = {}  # other members of its `content_block_start`
        self.members = members  # as it starts for the client
        self.held: list[Piece] = []
        self.size = 0  # of `held`, in bytes
        self.signature: Piece | None = None  # goes out last
        self.scan = ArgumentScanner() if kind == "tool_use" else None
        self.given = ""  # arguments that stood in its start

    def takes(self, word: str) -> bool:
        fits = FITS.get(self.kind)
        return fits is None or word in fits

    @property
    def nothing_said(self) -> bool:
        """A call without an argument that means anything; a lone `{}` counts as none."""
        return self.scan is not None and (self.scan.blank or self.scan.bare)

    @property
    def unfinished(self) -> bool:
        """A call whose arguments are the beginning of a JSON object."""
        scan = self.scan
        return scan is not None and not (scan.whole or scan.hopeless or scan.blank)
