"""`admission.Slots` for one gateway of several: the same calls, but a coordinator grants.

Owns what this gateway has of an upstream's slots, and what it does while the coordinator does not answer.
It never awaits and has no task: state changes in the call that changes it, the coordinator is told
afterwards, and grants come from its callbacks.

    slots = SharedSlots("vllm", 8, coordinator=coordinator, lost=abort)
    slots.start()
    ticket = slots.request("req_1", granted=exchange.on_granted)   # called later, once; or now, if alone
    ticket.cancel()                # at any moment: a grant that is on its way is given back unseen

**Alone.** A coordinator that has not answered for `patience` seconds counts as gone. Then, by `policy`:
`local_share`: the slots divided by the number of gateways that were last known to be alive, rounded down,
the remainder to the lowest ids; what is held stays. `closed`: whoever waits or comes is refused. On its
return everything is registered: what was granted meanwhile may then be more than the limit, and nothing
else is granted until it is not.

**A guess** of the limit (its server has not told yet) is never news: it counts only where nobody knows more.
Such a gateway works with what the others have said until it is told itself.

**Lost.** A gateway that stood still for longer than the TTL has lost its leases to others. It learns so
from the coordinator with the first answer after it runs again: `lost(lease)` is called for each that could
not be had back, when it is FREE already; releasing it does nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeAlias

import structlog

from antiphon.server.admission import (
    QUEUE_LIMIT,
    Lease,
    LeaseState,
    QueueFullError,
    Slots,
    SlotStatistics,
    Ticket,
)
from antiphon.server.coordination.protocol import (
    Acquire,
    Answer,
    Claim,
    Coordinator,
    Leave,
    Notice,
    Operation,
    Register,
    Release,
    Renew,
)
from antiphon.server.coordination.timers import Timers
from antiphon.server.coordination.turned_down import TurnedDown
from antiphon.server.fairness import Priority

Policy: TypeAlias = Literal["local_share", "closed"]

log = structlog.get_logger("antiphon.coordination")


class CoordinatorGoneError(QueueFullError):
    """Nobody is admitted while the coordinator is gone (policy `closed`)."""


class SharedSlots(Slots):
    """See the module.

    `guess`: `slots` was neither configured nor told; what `set_slots` says later always was.
    `linger` is how many seconds a lease stays used when this process is gone in the middle of it: the
    upstream may work on. It may be set at any time; the coordinator is told with the next heartbeat.
    `gateways` is how many are taken to share the slots before the coordinator has ever said; `patience` in
    seconds, None: a third of the TTL. `lost` is only called for leases that were held, not for draining ones.
    """

    def __init__(
        self,
        name: str,
        slots: int,
        *,
        coordinator: Coordinator,
        lost: Callable[[Lease], None],
        guess: bool = False,
        policy: Policy = "local_share",
        patience: float | None = None,
        gateways: int = 1,
        linger: float = 0.0,
        queue_limit: int = QUEUE_LIMIT,
        on_draining: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, slots, queue_limit=queue_limit, on_draining=on_draining, clock=clock)
        self._elapsed = _since_boot if clock is time.monotonic else clock
        self._coordinator = coordinator
        self._lost = lost
        self._policy: Policy = policy
        self.linger = linger
        self._ttl = coordinator.ttl
        self._patience = self._ttl / 3 if patience is None else patience
        self._numbers = itertools.count(1)
        self._tickets: dict[str, Ticket] = {}  # who waits, by key, in order of arrival
        self._ticket_keys: dict[Ticket, str] = {}
        self._priorities: dict[str, Priority] = {}
        self._held: dict[str, Lease] = {}  # held or draining, by key, in order of the grants
        self._lease_keys: dict[Lease, str] = {}
        # What the coordinator said last.
        self._view = Answer(gateways=gateways)
        self._past = ""  # the state that our leases are registered in
        self._others_active = 0  # what others' leases explain of a report, and what they may explain
        self._others_used = 0
        # The conversation with it.
        self._up = False  # a connection stands, and we are registered or about to be
        self._alone = False
        self._epoch = 0
        self._unanswered: deque[tuple[float, int, Operation]] = deque()  # when, in which epoch, what
        self._registering = False  # the last `Register` is not answered yet
        self._unreported = False  # something was granted by ourselves after it was sent
        self._limit_is_news = not guess
        self._limit_in_flight = 0  # operations that bring the news and are not answered
        self._renewed: float | None = None  # when the last renewal that was answered had been sent
        self._pulse: float | None = None  # when the heartbeat's timer last ran: an old one tells of a stall
        self._stalled: float | None = None  # when a stall was noticed that may have cost our leases
        # A report of the upstream's, and the operation whose answer says what others explain of it.
        self._busy: tuple[int, Operation] | None = None
        self._turned_down = TurnedDown()
        self._timers = Timers()

    # --- life ---

    def start(self) -> None:
        """Connect. From a running loop, once; requests that came before are sent then."""
        self._timers.start()
        self._pulse = self._elapsed()
        self._timers.after("patience", self._patience, self._go_alone)
        self._timers.after("beat", self._ttl / 3, self._beat)
        self._coordinator.start(self)

    async def aclose(self) -> None:
        """Leave: others have what was held here at once. Nothing is granted any more."""
        self._send(Leave(self._linger_ms))
        self._up = self._alone = False
        self._timers.stop()
        await self._coordinator.aclose()

    @property
    def alone(self) -> bool:
        """The coordinator is gone: the policy decides."""
        return self._alone

    @property
    def closed(self) -> bool:
        """Nobody is admitted: the coordinator is gone, and the policy says so."""
        return self._alone and self._policy == "closed"

    @property
    def view(self) -> Answer:
        """How things stand for all gateways, as the coordinator said last."""
        return self._view

    # --- what an exchange does (admission.Slots) ---

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
        """As `Slots.request`, but `granted` comes later, unless the coordinator is gone.

        `displaced` is also called if the queue of all gateways is full, or when the coordinator is given
        up (policy `closed`). Raises QueueFullError for this gateway's own queue, CoordinatorGoneError.
        """
        if self.closed:
            raise CoordinatorGoneError
        ticket = Ticket(self, owner, share, self._clock(), granted, displaced)
        if self._full:
            self._make_room(share, weight, priority)
        key = f"{self._coordinator.gateway}:{next(self._numbers)}"
        self._queue.weigh(share, weight)
        self._queue.push(ticket, share=share, priority=priority)
        self._tickets[key] = ticket
        self._ticket_keys[ticket] = key
        self._priorities[key] = priority
        self._send(Acquire(self._claim(key, ticket.share), self._queue_limit))
        self._wake()
        return ticket

    def would_refuse(
        self, *, share: str = "", weight: float = 1.0, priority: Priority = Priority.INTERACTIVE
    ) -> bool:
        """As `Slots.would_refuse`. Of a full queue of all it knows what the coordinator said a moment ago."""
        if self.closed:
            return True
        if not self._alone and self._turned_down.holds(share, priority, self._clock()):
            return True
        return super().would_refuse(share=share, weight=weight, priority=priority)

    def set_slots(self, slots: int) -> None:
        """The limit changed, for all gateways: whoever says so last is right."""
        # Said even if it is what we knew: another gateway may have said something else since.
        self._limit = slots
        self._limit_is_news = not self._up
        self._send(self._renewal(slots))
        self._wake()

    def settle(self, busy: int) -> None:
        """As `Slots.settle`; what other gateways' leases explain is asked for first."""
        if self._up and self._view.gateways > 1:
            look = self._renewal()
            self._busy = (busy, look)
            self._send(look)
        else:
            # Nobody else, or nobody to ask: what others explain is not subtracted.
            others = 0 if self._view.gateways <= 1 else self._limit
            self._settle(busy, others_active=0, others_used=others)

    def expected_wait(
        self, position: int | None = None, *, share: str = "", weight: float | None = None
    ) -> float:
        """As `Slots.expected_wait`, in the queue of all gateways. `position` is in this gateway's own part.

        Of the others' queues only the length is known: a place in the queue of all is in proportion to
        the place in ours.
        """
        here, everywhere = len(self._queue), max(len(self._queue), self._view.waiting)
        ahead = self._queue.ahead_of_newcomer(share, weight) if position is None else position
        if here:
            ahead = ahead * everywhere // here
        elif position is None:
            ahead = everywhere
        free = self._free()
        if ahead < free:
            return 0.0
        return self._held_for() * (ahead - free + 1) / max(1, self._limit)

    def statistics(self) -> SlotStatistics:
        """`slots` and `free` are everybody's; `held`, `draining` and `waiting` this gateway's."""
        draining = self.draining
        return SlotStatistics(
            self._limit, len(self._leases) - draining, draining, self._free(), len(self._queue)
        )

    def _free(self) -> int:
        used = len(self._leases) if self._alone else max(len(self._leases), self._view.used)
        return (self._local_limit() if self._alone else self._limit) - used

    # --- what tickets and leases call ---

    def _left(self, ticket: Ticket) -> None:
        super()._left(ticket)
        key = self._ticket_keys.pop(ticket, None)
        if key is not None:
            del self._tickets[key], self._priorities[key]
            self._send(Release([key], self._active()))

    def _freed(self, lease: Lease) -> None:
        key = self._lease_keys.pop(lease)
        del self._held[key]
        # The coordinator first: what its own grants do next comes behind it.
        self._send(Release([key], self._active()))
        super()._freed(lease)

    def _draining(self) -> None:
        self._send(self._renewal())  # one that explains a busy slot less
        super()._draining()

    def _wake(self) -> None:
        """Grant by ourselves, if that is for us to do now."""
        if not self._alone or self.closed or self._granting:
            return
        self._granting = True
        try:
            while self._queue and len(self._leases) < self._local_limit():
                ticket = self._queue.pop(self._used(), self._local_limit())
                if ticket is None:
                    return
                self._unreported = True
                self._grant(ticket, self._ticket_keys[ticket])
        finally:
            self._granting = False

    def _grant(self, ticket: Ticket, key: str) -> None:
        del self._tickets[key], self._ticket_keys[ticket], self._priorities[key]
        lease = Lease(self, ticket.owner, ticket.share, self._clock())
        self._leases.add(lease)
        self._held[key] = lease
        self._lease_keys[lease] = key
        self._comparison.used(len(self._leases))
        ticket._grant(lease)

    def _local_limit(self) -> int:
        gateways = max(1, self._view.gateways)
        share, remainder = divmod(self._limit, gateways)
        return share + (self._view.rank < remainder)

    # --- what the coordinator says (protocol.Listener) ---

    def on_up(self) -> None:
        self._up = True
        self._register()

    def on_down(self) -> None:
        # Not worth a warning yet: it may be back in a moment. `without_coordinator` is one.
        log.debug("coordinator_down", upstream=self.name)
        self._limit_is_news = self._limit_is_news or self._limit_in_flight > 0
        self._limit_in_flight = 0
        self._up = self._registering = False
        self._unanswered.clear()
        self._timers.cancel("answer")
        self._busy = None
        if self._alone:
            self._wake()
        elif "patience" not in self._timers:
            self._timers.after("patience", self._patience, self._go_alone)

    def on_answer(self, answer: Answer) -> None:
        sent, epoch, operation = self._unanswered.popleft()
        self._limit_in_flight -= _brings_limit(operation)
        self._watch_answers()
        if epoch != self._epoch:
            return  # overtaken: what it says of this gateway's keys is said anew
        if answer.stale:
            self._limit_is_news = self._limit_is_news or _brings_limit(operation)
            self._register()
            return
        if isinstance(operation, Register | Renew):
            self._renewed = sent
            if self._stalled is not None and sent >= self._stalled:
                self._stalled = None
        self._see(answer)
        if isinstance(operation, Register):
            self._registered(answer)
        self._take(answer.granted, answer.displaced)
        if self._busy is not None and self._busy[1] is operation:
            busy, self._busy = self._busy[0], None
            self._settle(busy, others_active=self._others_active, others_used=self._others_used)

    def on_notice(self, notice: Notice) -> None:
        # Before its answer a `Register` was not read yet: it has these keys as they were.
        if not self._registering:
            self._take(notice.granted, notice.displaced)

    def _see(self, answer: Answer) -> None:
        """Keep what it says of everybody."""
        if answer.gateways:
            # The smaller of two looks: one that counts too many would free a slot twice.
            self._others_active = min(answer.active, self._view.active)
            self._others_used = max(0, max(answer.used, self._view.used) - len(self._leases))
            self._view = answer
        else:
            view = self._view
            self._view = Answer(
                limit=answer.limit,
                limit_set=answer.limit_set,
                used=answer.used,
                waiting=answer.waiting,
                gateways=view.gateways,
                rank=view.rank,
                active=view.active,
            )
        if not self._limit_in_flight and not self._limit_is_news and answer.limit != self._limit:
            # What was said last is everybody's: of two that were configured differently one is wrong.
            log.info("slots_changed", upstream=self.name, slots=answer.limit, before=self._limit)
            self._limit = answer.limit
        if answer.again is not None and self._tickets:
            # Not polling: a moment at which leases run out if their holder is dead.
            self._timers.after("again", answer.again / 1000 + 0.005, self._look)

    def _take(self, granted: list[str], displaced: list[str]) -> None:
        if granted and not self._certain():
            # We stood still: what was granted then may have been taken back by now.
            self._register()
            return
        for key in granted:
            ticket = self._tickets.get(key)
            if ticket is not None:  # else it was cancelled, and its release is on its way
                self._queue.remove(ticket)
                self._grant(ticket, key)
        for key in displaced:
            ticket = self._tickets.pop(key, None)
            if ticket is not None:
                del self._ticket_keys[ticket]
                self._queue.remove(ticket)
                drains_in = self._queue_limit * self._hold / max(1, self._limit)
                self._turned_down.note(ticket.share, self._priorities.pop(key), self._clock(), drains_in)
                ticket._displace()

    def _certain(self) -> bool:
        return self._renewed is not None and self._elapsed() - self._renewed < self._ttl

    # --- registering ---

    def _register(self) -> None:
        """Say everything that we have. Begins a new epoch."""
        self._notice_stall(self._elapsed())
        self._epoch += 1
        self._registering = True
        self._unreported = False
        local = self._policy == "local_share"
        self._send(
            Register(
                limit=self._limit,
                past=self._past,
                entitled=self._stalled is None and (local or self._certain()),
                set_limit=self._limit_is_news,
                limit_set=self._view.limit_set,
                queue_limit=self._queue_limit,
                active=self._active(),
                linger=self._linger_ms,
                leases=[self._claim(key, lease.share) for key, lease in self._held.items()],
                waiting=[self._claim(key, ticket.share) for key, ticket in self._tickets.items()],
            )
        )
        self._limit_is_news = False

    def _registered(self, answer: Answer) -> None:
        self._registering = False
        self._timers.cancel("patience")
        told = log.info if self._alone or not self._past else log.debug
        told("coordinator_up", upstream=self.name, gateways=answer.gateways, slots=answer.limit)
        self._alone = False
        self._past = answer.born
        if self._unreported:
            self._register()
        for key in answer.lost:
            lease = self._held.pop(key, None)
            if lease is None:
                continue  # released meanwhile
            was, lease.state = lease.state, LeaseState.FREE
            del self._lease_keys[lease]
            self._leases.discard(lease)
            log.warning("lease_lost", upstream=self.name, request_id=lease.owner)
            if was is LeaseState.HELD:
                self._lost(lease)

    # --- time ---

    def _beat(self) -> None:
        now = self._elapsed()
        self._notice_stall(now)
        self._pulse = now
        self._timers.after("beat", self._ttl / 3, self._beat)
        self._look()

    def _notice_stall(self, now: float) -> None:
        # A little less than the TTL: the renewal that follows must arrive before it is over.
        if self._pulse is not None and now - self._pulse >= self._ttl * 5 / 6:
            self._stalled = now
            log.warning("stood_still", upstream=self.name, seconds=round(now - self._pulse, 3))

    def _look(self) -> None:
        if self._up:
            self._send(self._renewal())

    def _go_alone(self) -> None:
        if not self._alone:
            log.warning("without_coordinator", upstream=self.name, policy=self._policy)
        self._alone = True
        if self.closed:
            for ticket in list(self._tickets.values()):
                self._left(ticket)
                ticket._displace()
        self._wake()

    def _watch_answers(self) -> None:
        """Give the connection up when its oldest operation has waited for too long."""
        self._timers.cancel("answer")
        if self._unanswered:
            left = self._unanswered[0][0] + self._patience - self._elapsed()
            self._timers.after("answer", max(0.0, left), self._give_up)

    def _give_up(self) -> None:
        late = self._elapsed() - self._unanswered[0][0] - self._patience
        if late > self._patience / 2:
            # It was us who stood still: the answer may lie in the socket, unread.
            self._timers.after("answer", self._patience, self._give_up)
            return
        self._timers.after("patience", 0.0, self._go_alone)
        self._coordinator.reset()

    # --- small things ---

    def _send(self, operation: Operation) -> None:
        if not self._up:
            return
        self._limit_in_flight += _brings_limit(operation)
        self._unanswered.append((self._elapsed(), self._epoch, operation))
        self._coordinator.send(self._epoch, operation)
        if len(self._unanswered) == 1:
            self._watch_answers()

    def _renewal(self, limit: int | None = None) -> Renew:
        return Renew(self._active(), self._linger_ms, limit)

    @property
    def _linger_ms(self) -> int:
        return round(self.linger * 1000)

    @property
    def _full(self) -> bool:
        # Some of those who wait may be granted at once; the coordinator knows, and bounds the whole queue.
        return len(self._queue) >= self._queue_limit + max(0, self._free())

    def _claim(self, key: str, share: str) -> Claim:
        weight = self._queue.weight(share)
        return Claim(key, _digest(share), weight, self._priorities.get(key, Priority.INTERACTIVE))


def _since_boot() -> float:
    """Seconds, and those too in which the machine slept: a coordinator elsewhere has counted them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _brings_limit(operation: Operation) -> bool:
    match operation:
        case Renew(limit=limit):
            return limit is not None
        case Register(set_limit=news):
            return news
    return False


@lru_cache(maxsize=4096)
def _digest(share: str) -> str:
    return hashlib.blake2b(share.encode(), digest_size=8).hexdigest()
