"""One content block of a message, from its first fragment to its stop.

Owns a block's own facts: what it holds, how far it is, whether its arguments are whole. It decides
nothing about its neighbours: order is `core.stream`'s.
"""

from __future__ import annotations

import re
from enum import Enum

from antiphon.core.arguments import ArgumentScanner

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
NAME_LIMIT = 128


class State(Enum):
    """HELD: behind the head, nothing of it was sent. LIVE: it is the head. STOPPED: never again."""

    HELD = "held"
    LIVE = "live"
    STOPPED = "stopped"


class Block:
    """`kind` is `text`, `thinking` or `tool_use`. `pending` is what was received and not yet taken."""

    __slots__ = ("dropped", "index", "kind", "on_wire", "pending", "signature", "state")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.state = State.HELD
        self.pending: list[str] = []
        self.index = -1  # on the wire; given when it starts there
        self.on_wire = False
        self.dropped = False
        self.signature = ""

    @property
    def startable(self) -> bool:
        """Text and thinking enter the queue with content in them."""
        return True


class ToolBlock(Block):
    """A tool call. `upstream_id` None: the upstream gave none (yet)."""

    __slots__ = ("id", "key", "name", "queued", "repeat", "scan", "seal", "upstream_id")

    def __init__(self, key: int) -> None:
        super().__init__("tool_use")
        self.key = key
        self.id = ""
        self.name = ""
        self.upstream_id: str | None = None
        self.queued = False  # it has a name, so it has a place in the message
        self.seal = ""  # opaque state that goes out in a thinking block right before it
        self.scan = ArgumentScanner()
        self.repeat = ""  # what may be the whole text said again, or another call at the same index

    @property
    def empty(self) -> bool:
        """No argument byte came that means anything."""
        return self.scan.blank

    @property
    def bare(self) -> bool:
        """The arguments are `{}` and nothing else: perhaps only a placeholder."""
        return self.scan.whole and self.scan.text is not None and "".join(self.scan.text.split()) == "{}"

    @property
    def startable(self) -> bool:
        return not self.empty and not (self.bare and self.state is State.HELD)

    def forget_arguments(self) -> int:
        """The placeholder was one: start over. Returns how many characters are held no longer."""
        held = sum(map(len, self.pending))
        self.pending.clear()
        self.scan = ArgumentScanner()
        return held


def tool_name(name: str) -> str:
    """A name that `^[a-zA-Z0-9_-]{1,128}$` accepts (protocol: tool names of the Messages API)."""
    return _FOREIGN.sub("_", name)[:NAME_LIMIT]
