"""A place in several queues at once: the first upstream that grants a slot gets the request.

Owns the tickets of one request. It never awaits: in the call in which one place grants, the others are left.

    seats = Seats(places, owner="req_1", share="s", granted=exchange.on_granted, refused=exchange.on_refused)
    seats.ask()            # granted(place, lease) may be called before this returns
    seats.leave()          # at any moment; nothing is called afterwards
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from antiphon.server.admission import Lease, QueueFullError, Ticket
from antiphon.server.fairness import Priority
from antiphon.server.routing import Target
from antiphon.server.upstreams import Upstream


class Place(Struct, frozen=True, eq=False):
    """Where a request may be served: a target, and the upstream that it names."""

    target: Target
    upstream: Upstream

    @property
    def key(self) -> tuple[str, str]:
        """The cache that it stands for: an upstream, and the model there."""
        return self.upstream.name, self.target.sends or ""


class Seats:
    """`places` in order of preference. `refused` is called when every one of them has turned it down."""

    __slots__ = (
        "_granted",
        "_owner",
        "_places",
        "_priority",
        "_refused",
        "_share",
        "_tickets",
        "_weight",
        "over",
    )

    def __init__(
        self,
        places: Sequence[Place],
        *,
        owner: str,
        share: str,
        granted: Callable[[Place, Lease], None],
        refused: Callable[[], None],
        priority: Priority = Priority.INTERACTIVE,
        weight: float = 1.0,
    ) -> None:
        self._places = list(places)  # those that were not asked yet
        self._owner = owner
        self._share = share
        self._priority = priority
        self._weight = weight
        self._granted = granted
        self._refused = refused
        self._tickets: dict[Place, Ticket] = {}
        self.over = False  # it has a slot, or has left

    def ask(self, *, everywhere: bool = True) -> None:
        """Ask the first place, and the others too unless it has a slot free.

        Where slots are shared a grant takes its time: to ask everywhere would take slots from everybody
        for the moment until all but one are given back. `everywhere` false: ask the others only if the first
        one's queue is full.
        """
        while self._places and not self.over:
            place = self._places.pop(0)
            alone = not everywhere or (self._places and place.upstream.slots.statistics().free > 0)
            self._ask_one(place)
            if alone and place in self._tickets:
                return
        self._check()

    def spread(self) -> None:
        """Ask also those that have a slot free by now."""
        free = [place for place in self._places if place.upstream.slots.statistics().free > 0]
        self._places = [place for place in self._places if place not in free]
        for place in free:
            if not self.over:
                self._ask_one(place)

    def offer(self, places: Sequence[Place]) -> None:
        """The places that may be asked by now, among them those that were: the others may be no longer."""
        self._places = self.unasked(places)

    @property
    def waits_at(self) -> list[Place]:
        """Those in whose queues it has a place."""
        return list(self._tickets)

    def unasked(self, places: Sequence[Place]) -> list[Place]:
        """Those among them that it does not wait for yet."""
        asked = {id(place.upstream) for place in self._tickets}
        return [place for place in places if id(place.upstream) not in asked]

    def widen(self) -> None:
        """It takes longer than it should: ask those that were not asked yet."""
        while self._places and not self.over:
            self._ask_one(self._places.pop(0))
        self._check()

    def leave(self) -> None:
        """Give up every place in a queue. Idempotent."""
        self.over = True
        self._places.clear()
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            ticket.cancel()

    def _ask_one(self, place: Place) -> None:
        try:
            ticket = place.upstream.slots.request(
                self._owner,
                partial(self._on_granted, place),
                share=self._share,
                weight=self._weight,
                priority=self._priority,
                displaced=partial(self._on_displaced, place),
            )
        except QueueFullError:
            return
        if ticket.waiting and not self.over:
            self._tickets[place] = ticket
        elif ticket.waiting:
            ticket.cancel()

    def _on_granted(self, place: Place, lease: Lease) -> None:
        if self.over:
            lease.release()
            return
        self._tickets.pop(place, None)
        self.leave()
        self._granted(place, lease)

    def _on_displaced(self, place: Place) -> None:
        self._tickets.pop(place, None)
        self.widen()

    def _check(self) -> None:
        if not self.over and not self._tickets and not self._places:
            self.over = True
            self._refused()
