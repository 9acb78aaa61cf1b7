"""Who cannot be served now is told so before anything is made of the request.

Owns the look at a request that comes before its translation: the model's name is taken out of the body, and
the upstreams that may serve it are asked whether there would be a place. Under overload most requests end
here, and a refusal must cost a small part of an answer. It changes no queue, and it refuses only what the
queue would refuse in the same moment: a flood's next request, not the first of somebody else. What it cannot
tell cheaply goes on and is told later: a body without a readable name, a model that nobody serves, a server
that is down, a model with fallbacks.

    turned = turned_away(body, table, upstreams, share="s", weight=1.0, patience=600.0)
    turned.fault               # 529 with a retry-after, or turned is None: go on
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from antiphon.config import Fallbacks
from antiphon.core import own_faults
from antiphon.core.parts import Fault
from antiphon.server.admission import Slots
from antiphon.server.fairness import Priority
from antiphon.server.routing import NoRouteError, RouteTable


class Upstream(Protocol):
    """A server, as far as this goes. `refusal`: why it takes no request at all, if it takes none."""

    @property
    def slots(self) -> Slots: ...
    def refusal(self) -> Fault | None: ...


class TurnedAway(Struct, frozen=True):
    """What is told to the client, and what is written down. `upstream` is the first of those asked."""

    fault: Fault
    model: str
    upstream: str
    streaming: bool


class _Head(Struct, frozen=True):
    """What decides where a request goes. Everything else in a body is skipped, not built."""

    model: str
    stream: bool | None = None
    max_tokens: int | None = None


_NO_FALLBACKS: Final = Fallbacks()
_HEAD: Final = msgspec.json.Decoder(_Head)


def turned_away(
    body: Sequence[bytes],
    table: RouteTable,
    upstreams: Mapping[str, Upstream],
    *,
    share: str,
    weight: float = 1.0,
    priority: Priority = Priority.INTERACTIVE,
    patience: float,
    allowed: Callable[[str], bool] = lambda model: True,
) -> TurnedAway | None:
    """Why a request with this body has no place anywhere now; None: it may have one, or it cannot be told.

    `body` in pieces, untouched; `priority` is the highest that it may have, `patience` how many seconds its
    client waits, `allowed` whether it may use a model of this name. While no server is busy this costs a
    microsecond: no byte of the body is looked at.
    """
    turning = {
        name: look
        for name, upstream in upstreams.items()
        if (look := _look(upstream.slots, share, weight, priority)).turns_away(patience)
    }
    if not turning:
        return None
    try:
        head = _HEAD.decode(body[0] if len(body) == 1 else b"".join(body))
        route = table.find(head.model)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NoRouteError):
        return None  # whoever reads all of it says why
    if head.max_tokens == 0 or route.fallbacks != _NO_FALLBACKS or not allowed(head.model):
        return None
    names = [target.upstream for target in route.targets if target.upstream in upstreams]
    if not names or any(name not in turning or upstreams[name].refusal() is not None for name in names):
        return None
    fault = _fault([turning[name] for name in names], patience)
    return None if fault is None else TurnedAway(fault, head.model, names[0], bool(head.stream))


class _Look(Struct, frozen=True):
    """What one who asked for a slot now would find: seconds to wait, and whether there is no place to.

    `closed`: nobody is let in, whatever is free.
    """

    wait: float = 0.0
    full: bool = False
    closed: bool = False

    def turns_away(self, patience: float) -> bool:
        return self.full or self.closed or self.wait > patience


def _look(slots: Slots, share: str, weight: float, priority: Priority) -> _Look:
    now, closed = slots.statistics(), slots.closed
    if now.free > now.waiting and not closed:
        return _Look()
    wait = slots.expected_wait(share=share, weight=weight)
    full = slots.would_refuse(share=share, weight=weight, priority=priority)
    return _Look(wait, full, closed)


def _fault(looks: list[_Look], patience: float) -> Fault | None:
    """What an exchange would say that had asked all of them, None if it would wait somewhere."""
    if all(look.closed for look in looks):
        return own_faults.COORDINATOR_GONE
    wait = min(look.wait for look in looks)
    if wait > patience:
        return own_faults.queue_timeout(math.ceil(wait))
    if all(look.full for look in looks):
        return own_faults.queue_full(math.ceil(wait))
    return None
