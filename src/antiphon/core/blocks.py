"""One content block of a message, from its first fragment to its stop.

Owns a block's own facts: what it holds, how far it is, whether its arguments are whole. It decides
nothing about its neighbours: order is `core.stream`'s, and which text belongs to which call is
`core.tool_calls`'.

    call = ToolBlock(0)
    call.name = "mcp:read"
    tool_name(call.name)   -> "mcp_read"
"""

from __future__ import annotations

import re
from enum import StrEnum

from antiphon.core.arguments import ArgumentScanner

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
NAME_LIMIT = 128


class State(StrEnum):
    """HELD: behind the head, nothing of it was sent. LIVE: it is the head. STOPPED: never again."""

    HELD = "held"
    LIVE = "live"
    STOPPED = "stopped"


class Block:
    """`kind` is `text`, `thinking` or `tool_use`. `pending` is what was received and not yet taken."""

    __slots__ = ("folded", "index", "kind", "pending", "signature", "size", "state")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.state = State.HELD
        self.pending: list[str] = []
        self.folded = 0  # how many of `pending`, from its start on, were made of many
        self.size = 0  # of `pending`, in characters
        self.index = -1  # on the wire; given when it starts there
        self.signature = ""

    @property
    def startable(self) -> bool:
        """Text and thinking enter the queue with content in them."""
        return True

    @property
    def certain(self) -> bool:
        """Nothing that may still come can change what a client does with this block."""
        return True


class ToolBlock(Block):
    """A tool call. `upstream_id` None: the upstream gave none (yet)."""

    __slots__ = (
        "id",
        "key",
        "matched",
        "name",
        "placeholder",
        "queued",
        "scan",
        "seal",
        "spare_id",
        "upstream_id",
    )

    def __init__(self, key: int) -> None:
        super().__init__("tool_use")
        self.key = key
        self.id = ""  # what clients see; given when it starts
        self.name = ""
        self.upstream_id: str | None = None
        self.spare_id: str | None = None  # an id that came when clients knew another one already
        self.queued = False  # it has a name, so it has a place in the message
        self.seal = ""  # opaque state that goes out in a thinking block right before it
        self.scan = ArgumentScanner()
        self.placeholder = False  # `{}` came first and in one piece; it is not in `pending`
        self.matched = 0  # characters that repeat the whole text, or begin another call at the same index

    @property
    def startable(self) -> bool:
        """There is an argument byte that means something."""
        return not self.scan.blank and not self.placeholder

    @property
    def certain(self) -> bool:
        return self.scan.whole and not self.scan.bare

    @property
    def nothing_said(self) -> bool:
        """No argument came that means anything; a lone `{}` counts as none."""
        return self.scan.blank or self.scan.bare


def tool_name(name: str) -> str:
    """A name that `^[a-zA-Z0-9_-]{1,128}$` accepts (protocol: tool names of the Messages API)."""
    return _FOREIGN.sub("_", name)[:NAME_LIMIT]
