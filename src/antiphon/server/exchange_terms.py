"""The terms of an exchange: its job, its phases, the causes of its end, and what it asks of a client's link.

Owns the table of causes. No behaviour lives here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from antiphon.core import own_faults
from antiphon.core.parts import Fault
from antiphon.server.fairness import Priority
from antiphon.server.plan import Aim, Plan
from antiphon.server.surface import Surface

CLIENT_TIMEOUT = 600.0
"""Seconds that SDKs wait where they do not say (protocol: official SDKs, default time-out)."""


class Phase(Enum):
    """Where an exchange is, seen from its upstream."""

    QUEUED = "queued"
    CONNECTING = "connecting"
    WAITING = "waiting"  # the request is sent, no response head yet
    PREFILL = "prefill"  # a head, no content yet
    STREAMING = "streaming"
    OVER = "over"  # the upstream has nothing more to say


class Cause(Struct, frozen=True):
    """What an end does.

    `fault` is said to the client if the message has not ended; `drops_client` aborts the client.
    """

    meaning: str
    fault: Fault | None = None
    drops_client: bool = False


CAUSES: dict[str, Cause] = {
    "finished": Cause("the upstream's answer came to its end"),
    "upstream": Cause("the upstream failed; its fault is in the stream"),
    "client": Cause("the client is gone; nothing is said"),
    "deadline": Cause("a time limit ran out; the limit's own fault is said"),
    "overload": Cause("no slot in time: the queue is full, or the wait outlasts the client"),
    "stall": Cause("the client left a full buffer unread", drops_client=True),
    "shutdown": Cause("the gateway stops", own_faults.SHUTTING_DOWN),
    "operator": Cause(
        "somebody cancelled it",
        Fault("api_error", "the request was cancelled by the operator", 500, should_retry=False),
    ),
    "lost": Cause(
        "this process stood still for so long that its slot was given to somebody else",
        Fault("overloaded_error", "this gateway stood still and lost its slot at the upstream", 529, "1"),
    ),
    "internal": Cause("a bug of this gateway; the log has the traceback, and the machine is not asked"),
}

CLIENT_IS_GONE = ("client", "stall")


class ClientLink(Protocol):
    """The client's side of a response, as server.edge and server.asgi_link provide it."""

    listener: Any

    @property
    def gone(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    def begin(self) -> None: ...
    def write(self, frames: bytes) -> None: ...
    def cut(self) -> None: ...
    def abort(self) -> None: ...


def _nothing() -> None:
    pass


class Job(Struct, frozen=True):
    """What is to be done, made from a client's request before anything is promised.

    `share` names who waits together in the queue, `weight` is theirs; `patience` is how many seconds the
    client will wait. `replan` plans the same request for somewhere else; after `forget` it cannot.
    """

    request_id: str
    plan: Plan
    surface: Surface
    replan: Callable[[Aim], Awaitable[Plan | Fault]]
    forget: Callable[[], None] = _nothing
    share: str = ""
    weight: float = 1.0
    key: str = ""  # the name of the client's key
    headers: tuple[tuple[bytes, bytes], ...] = ()  # of whatever is answered
    session: str = ""  # stands for the client's session, "" for none
    forwarded: tuple[tuple[str, str], ...] = ()  # the client's, for servers that speak Messages themselves
    priority: Priority = Priority.INTERACTIVE
    patience: float = CLIENT_TIMEOUT
