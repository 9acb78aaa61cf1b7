"""Slots: who may use an upstream now, who waits, and when a slot is really free again.

Owns the leases and the queue of one upstream. A lease belongs to one exchange and goes
HELD -> DRAINING -> FREE, or straight to FREE; every number shown anywhere is derived from the leases.
It must not know about HTTP, sockets or bodies, and it never awaits: a state changes in the call that
changes it, and the next waiter is woken in the same call.

    slots = Slots("vllm", slots=8)
    ticket = slots.request("req_1", granted=exchange.on_granted)   # called now or later, once
    ticket.cancel()                                                # free in the queue, costs nothing
    lease.release()            # the upstream is done
    lease.drain(until=...)     # it may still be working for nobody: used until its report says idle
    slots.settle(busy=3)       # its report: what that does not explain has drained
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from antiphon.server.fairness import FairQueue, Priority
from antiphon.server.reports import Comparison, ReportStatistics

QUEUE_LIMIT = 1024


class LeaseState(Enum):
    HELD = "held"
    DRAINING = "draining"
    FREE = "free"


class QueueFullError(Exception):
    """Nobody else may wait for this upstream now."""


class Left(Struct, frozen=True):
    """Of a request that is gone while its lease drains, what an operator is shown: nothing else is kept."""

    key: str  # the name of the client's key
    model: str
    output_tokens: int


class Lease:
    """One slot of one upstream. `owner` is the request id of the exchange that holds it."""

    __slots__ = ("_slots", "active", "drain_until", "left", "owner", "share", "since", "state")

    def __init__(self, slots: Slots, owner: str, share: str, since: float) -> None:
        self._slots = slots
        self.owner = owner
        self.share = share
        self.since = since  # on the slots' clock
        self.state = LeaseState.HELD
        self.active = False  # the upstream has begun to answer: its own report counts this slot as busy
        self.drain_until: float | None = None  # monotonic seconds; None: only the upstream's report frees it
        self.left: Left | None = None  # whose it was, once it drains

    def release(self) -> None:
        """The upstream is done with it. Idempotent."""
        if self.state is not LeaseState.FREE:
            self.state = LeaseState.FREE
            self._slots._freed(self)

    def drain(self, until: float | None, left: Left | None = None) -> None:
        """The exchange is gone but the upstream may still be working. Ends by `Slots.settle` or `until`."""
        if self.state is LeaseState.HELD:
            self.state = LeaseState.DRAINING
            self.drain_until = until
            self.left = left
            self._slots._draining()


class Ticket:
    """A place in the queue, or what became of it."""

    __slots__ = ("_displaced", "_granted", "_slots", "lease", "owner", "share", "since", "waiting")

    def __init__(
        self,
        slots: Slots,
        owner: str,
        share: str,
        since: float,
        granted: Callable[[Lease], None],
        displaced: Callable[[], None] | None,
    ) -> None:
        self._slots = slots
        self._granted = granted
        self._displaced = displaced
        self.owner = owner
        self.share = share
        self.since = since
        self.lease: Lease | None = None
        self.waiting = True

    def cancel(self) -> None:
        """Leave the queue. Idempotent; after the grant it does nothing: the lease is its own handle."""
        if self.waiting:
            self.waiting = False
            self._slots._left(self)

    def _grant(self, lease: Lease) -> None:
        self.waiting = False
        self.lease = lease
        self._granted(lease)

    def _displace(self) -> None:
        self.waiting = False
        if self._displaced is not None:
            self._displaced()


class SlotStatistics(Struct, frozen=True):
    """A snapshot. `held` + `draining` are used; `free` may be negative after the limit was lowered."""

    slots: int
    held: int
    draining: int
    free: int
    waiting: int


class Slots:
    """The slots of one upstream, fair between shares and first come first served inside one.

    `on_draining` is called whenever a lease begins to drain: whoever can ask the upstream starts to.
    `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        name: str,
        slots: int,
        *,
        queue_limit: int = QUEUE_LIMIT,
        on_draining: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._clock = clock
        self._limit = slots
        self._queue_limit = queue_limit
        self._leases: set[Lease] = set()
        self._queue: FairQueue[Ticket] = FairQueue()
        self._hold = 0.0  # how long slots that served were held, seconds, a moving average; 0: none has ended
        self._on_draining = on_draining
        self._granting = False
        self._comparison = Comparison()

    def request(
        self,
        owner: str,
        granted: Callable[[Lease], None],
        *,
        share: str = "",
        weight: float = 1.0,
        priority: Priority = Priority.INTERACTIVE,
        displaced: Callable[[], None] | None = None,
    ) -> Ticket:
        """Ask for a slot; `granted` is called once, before this returns if a slot is free.

        `displaced` is called instead if the queue is full and somebody of a share that waits less takes
        this place: a flood fills its own part of the queue, not the others'. `weight` is what `share` weighs
        from now on: one of 2 gets twice the slots of one of 1. Raises QueueFullError.
        """
        ticket = Ticket(self, owner, share, self._clock(), granted, displaced)
        if self._full:
            self._make_room(share, weight, priority)
        self._queue.weigh(share, weight)
        self._queue.push(ticket, share=share, priority=priority)
        self._wake()
        return ticket

    def would_refuse(
        self, *, share: str = "", weight: float = 1.0, priority: Priority = Priority.INTERACTIVE
    ) -> bool:
        """Whether `request` would raise QueueFullError now. Changes nothing, for nobody."""
        if not self._full:
            return False
        return self._queue.newest_of_longest(than=share, weight=weight, priority=priority) is None

    def expected_wait(
        self, position: int | None = None, *, share: str = "", weight: float | None = None
    ) -> float:
        """Seconds until the waiter at `position` (0 is next) would have a slot.

        `position` None: one of `share` who came now, wherever fairness would put it; `weight` None: with the
        weight that it has. From how long slots that served were held of late; while none has ended, from
        how long those that are held have been, which is less than it will be. 0 while nothing is known.
        """
        ahead = position
        if ahead is None:
            ahead = self._queue.ahead_of_newcomer(share, weight)
        free = self._limit - len(self._leases)
        if ahead < free:
            return 0.0
        return self._held_for() * (ahead - free + 1) / max(1, self._limit)

    def leases(self) -> list[Lease]:
        """The leases that are held or draining, the oldest first."""
        return sorted(self._leases, key=lambda lease: lease.since)

    def waiting(self) -> list[Ticket]:
        """Who waits, in the order in which they would be served now."""
        return self._queue.in_order()

    def set_slots(self, slots: int) -> None:
        """The limit changed; leases that are held beyond it run to their end."""
        self._limit = slots
        self._wake()

    def set_queue_limit(self, queue_limit: int) -> None:
        """How many may wait, from now on; those that wait beyond it stay."""
        self._queue_limit = queue_limit

    def settle(self, busy: int) -> None:
        """The upstream reports how many of its slots are busy: what that does not explain has drained.

        Held leases that have begun to answer explain one busy slot each; those that have not may or may
        not be in the count, so they explain none: a slot is freed late rather than twice.
        """
        self._settle(busy, others_active=0, others_used=0)

    def _settle(self, busy: int, *, others_active: int, others_used: int) -> None:
        """`others_active` is how many busy slots other gateways explain, `others_used` how many they may."""
        active = others_active + self._active()
        self._comparison.compare(busy, used=others_used + len(self._leases), active=active)
        draining = [lease for lease in self._leases if lease.state is LeaseState.DRAINING]
        for lease in draining[max(0, busy - active) :]:
            lease.release()

    def expire(self, now: float) -> None:
        """Free the draining leases whose grace has run out (for upstreams without a report)."""
        for lease in list(self._leases):
            if (
                lease.state is LeaseState.DRAINING
                and lease.drain_until is not None
                and now >= lease.drain_until
            ):
                lease.release()

    @property
    def reports(self) -> ReportStatistics:
        """What the upstream's own reports said, and how often they disagreed with our count."""
        return self._comparison.statistics()

    @property
    def closed(self) -> bool:
        """Nobody is admitted now, whatever is free."""
        return False

    @property
    def draining(self) -> int:
        return sum(lease.state is LeaseState.DRAINING for lease in self._leases)

    def statistics(self) -> SlotStatistics:
        draining = self.draining
        used = len(self._leases)
        return SlotStatistics(self._limit, used - draining, draining, self._limit - used, len(self._queue))

    @property
    def _full(self) -> bool:
        return len(self._queue) >= self._queue_limit + max(0, self._limit - len(self._leases))

    def _make_room(self, share: str, weight: float, priority: Priority) -> None:
        """The place of whoever gives way to a newcomer of `share`. Raises QueueFullError if nobody does."""
        loser = self._queue.newest_of_longest(than=share, weight=weight, priority=priority)
        if loser is None:
            raise QueueFullError
        self._left(loser)
        loser._displace()

    def _held_for(self) -> float:
        """How long a slot is held, in seconds. While none has ended: how long those have been that are."""
        if self._hold:
            return self._hold
        since = [lease.since for lease in self._leases if lease.state is LeaseState.HELD]
        return self._clock() - sum(since) / len(since) if since else 0.0

    def _active(self) -> int:
        return sum(lease.active for lease in self._leases if lease.state is LeaseState.HELD)

    def _used(self) -> Counter[str]:
        return Counter(lease.share for lease in self._leases)

    def _freed(self, lease: Lease) -> None:
        self._leases.discard(lease)
        if lease.active:  # what ended before it was answered does not tell how long an answer takes
            held = self._clock() - lease.since
            self._hold = held if self._hold == 0 else self._hold + 0.2 * (held - self._hold)
        self._wake()

    def _draining(self) -> None:
        if self._on_draining is not None:
            self._on_draining()

    def _left(self, ticket: Ticket) -> None:
        self._queue.remove(ticket)

    def _wake(self) -> None:
        # A grant may end in a release at once (its exchange failed): the loop that is already running
        # sees that slot too, so the calls do not nest.
        if self._granting:
            return
        self._granting = True
        try:
            while self._queue and len(self._leases) < self._limit:
                ticket = self._queue.pop(self._used(), self._limit)
                if ticket is None:
                    return
                lease = Lease(self, ticket.owner, ticket.share, self._clock())
                self._leases.add(lease)
                self._comparison.used(len(self._leases))
                ticket._grant(lease)
        finally:
            self._granting = False
