"""From a plan to a slot: the queues that a request waits in, and where it goes when that leads nowhere.

Owns the plan that holds now, the places in queues, a slot that nothing was sent with yet, and what is left to
try. Nothing is awaited but a second plan, and that in the request's own task. What is sent with a slot, and
what comes back, is the exchange's.

    seeking = Seeking(exchange, job.plan, chooser, retries, clock=time.monotonic)
    seeking.begin()               # exchange.send(plan, place, lease) is called now or later
    seeking.go_on(fault)          # after a failure: True, it is being tried elsewhere
    seeking.leave()               # at any moment; nothing is held afterwards
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from msgspec import structs

from antiphon.core import own_faults
from antiphon.core.failover import judge
from antiphon.core.parts import Fault
from antiphon.server.admission import Lease
from antiphon.server.choosing import Chooser
from antiphon.server.exchange_terms import Phase
from antiphon.server.guarding import Failing, guard
from antiphon.server.plan import Aim, Plan
from antiphon.server.retries import Retries
from antiphon.server.seats import Place, Seats

if TYPE_CHECKING:
    from antiphon.server.attempt import Attempt
    from antiphon.server.exchange import Exchange

# Seconds for which a request waits where its prompt is warm, while no slot is free elsewhere.
_LOYAL = 30.0


def _way_out(self: Seeking) -> Failing:
    return self._exchange.fail_internally


guarded = guard(_way_out)


class Seeking:
    """See the module. `aim` is where the request must be planned for before it can go on.

    `clock` is monotonic, in seconds.
    """

    __slots__ = (
        "_chooser",
        "_clock",
        "_exchange",
        "_failure",
        "_retries",
        "_seat",
        "_seats",
        "_waits_since",
        "aim",
        "plan",
    )

    def __init__(
        self,
        exchange: Exchange,
        plan: Plan,
        chooser: Chooser,
        retries: Retries,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._exchange = exchange
        self._chooser = chooser
        self._retries = retries
        self._clock = clock
        self.plan = plan
        self.aim: Aim | None = None
        self._failure: Fault | None = None  # what is said if it cannot be planned for there
        self._seats: Seats | None = None  # its places in queues
        self._waits_since: float | None = None  # it has some; what it waited before is in the record
        self._seat: tuple[Place, Lease] | None = None  # a slot, for which the request is not planned yet

    # --- queues ---

    @guarded
    def begin(self) -> None:
        """Ask for a slot."""
        exchange = self._exchange
        if exchange.cause is not None:
            return
        job, places = exchange.job, self._chooser.places(self.plan, self._retries.failed)
        if not places:
            # Nobody is asked, because nobody can be.
            exchange.answer.refuse(self._chooser.refusal(self.plan))
            exchange.received()
            return
        wait = min(place.upstream.slots.expected_wait(share=job.share, weight=job.weight) for place in places)
        # Where there is nothing to wait for, what is left does not count.
        if wait > max(0.0, self._deadline - self._clock()):
            self.overload(_no_slot(places, own_faults.queue_timeout(math.ceil(wait))))
            return
        seats = self._seats = Seats(
            places,
            owner=job.request_id,
            share=job.share,
            granted=self.on_granted,
            refused=self.on_refused,
            priority=job.priority,
            weight=job.weight,
        )
        seats.ask(everywhere=not self._chooser.stays(self.plan, places[0]))
        if self._seats is seats:
            self._waits_since = self._clock()

    def expected_wait(self) -> int:
        """Whole seconds after which it may be worth to come back."""
        return self._wait_at(self._chooser.eligible(self.plan))

    def _wait_at(self, places: Collection[Place]) -> int:
        job = self._exchange.job
        waits = (place.upstream.slots.expected_wait(share=job.share, weight=job.weight) for place in places)
        return math.ceil(min(waits, default=0.0))

    @property
    def waited(self) -> float | None:
        """Seconds in queues so far, of all attempts together; None: it was in none, and has had no slot."""
        waited, since = self._exchange.record.queued, self._waits_since
        return waited if since is None else (waited or 0.0) + self._clock() - since

    @property
    def _deadline(self) -> float:
        """When its client gives up; a client that has its status has nothing to give up for."""
        exchange = self._exchange
        return math.inf if exchange.promised else exchange.record.began + exchange.job.patience

    def tick(self, waited: float) -> None:
        """About once a second. `waited`: seconds since the request came."""
        seats = self._seats
        if seats is None:
            return
        if self._clock() > self._deadline:
            self._out_of_patience()
            return
        late = waited > _LOYAL
        eligible = self._chooser.eligible(self.plan, self._retries.failed)
        places, waits_at = seats.unasked(eligible), seats.waits_at
        if waits_at and len(places) == len(eligible) and not any(map(self._takes, waits_at)):
            # It waits for nobody: they were drained, or went down. Others may have it, or it is told so.
            self._leave_queues()
            self.begin()
            return
        if late or any(place.upstream.slots.statistics().free > 0 for place in places):
            # Only if one is asked now: hundreds may wait, and all of them are ticked between two tokens.
            places = self._chooser.ordered(self.plan, places)
        seats.offer(places)
        if late:
            seats.widen()
        else:
            seats.spread()

    def _takes(self, place: Place) -> bool:
        """Whether a slot there would be of use: one that is leaving still serves those who wait for it."""
        admits = self._chooser.admits(self.plan, place, self._retries.failed)
        return admits and place.upstream.refusal() is None

    def _out_of_patience(self) -> None:
        """Its client has given up, or will not hear the end: no other model is asked either."""
        self._exchange.close("overload", own_faults.queue_timeout(self.expected_wait()))

    def overload(self, fault: Fault, cause: str = "overload") -> None:
        """There is no slot in time: another model may have one."""
        exchange = self._exchange
        aim = None if exchange.started else self._retries.instead("overloaded", self.plan)
        if aim is None:
            exchange.close(cause, fault)
        else:
            self._leave_queues()
            exchange.enter(Phase.QUEUED)  # the time in the next queue is its own
            self._go_to(aim, fault)

    @guarded
    def on_refused(self) -> None:
        """Every queue is full, or this place went to somebody of a share that waits less."""
        self._end_wait()
        places = self._chooser.eligible(self.plan)
        self.overload(_no_slot(places, own_faults.queue_full(self._wait_at(places))))

    @guarded
    def on_granted(self, place: Place, lease: Lease) -> None:
        """A slot is ours: from this moment until it is given back it is used."""
        waited_since = self._waits_since
        self._end_wait()
        self._seat = (place, lease)
        exchange = self._exchange
        if exchange.cause is not None:
            self._give_seat_back()
        elif not self._takes(place):
            # It fell ill while we waited, and its slots are free because everybody fails there at once.
            self._give_seat_back()
            self.begin()
        elif waited_since is not None and waited_since <= self._deadline < self._clock():
            self._give_seat_back()
            self._out_of_patience()
        else:
            exchange.granted(place)
            if place.target.reads_as(self.plan.target):
                self._send()
            else:
                self._go_to(Aim(model=self.plan.name, target=place.target))

    def _send(self) -> None:
        if self._seat is not None:
            self._exchange.send(self.plan, *self._seat)
            self._seat = None  # not before: what raises in there leaves it to be given back

    # --- elsewhere ---

    def go_on(self, fault: Fault, attempt: Attempt | None) -> bool:
        """Try elsewhere, if something is left to try. `attempt`: what has failed, if there was one."""
        lost = status = None
        if attempt is not None:
            self._retries.failed.add(attempt.place.upstream.name)
            lost, status = attempt.lost, attempt.status
        others = bool(self._chooser.eligible(self.plan, self._retries.failed))
        aim = self._retries.after(judge(fault, lost=lost, status=status), self.plan, others=others)
        if aim is None:
            return False
        self._exchange.start_over(fault)
        if aim.model is None:
            self.begin()
        else:
            self._go_to(aim, fault)
        return True

    def _go_to(self, aim: Aim, failure: Fault | None = None) -> None:
        """The request must be planned again: its task does that. `failure`: why another model is next."""
        self.aim, self._failure = aim, failure
        self._exchange.wake()

    async def replan(self) -> None:
        """In the request's task: plan it for where it has to go, and go on."""
        exchange, aim = self._exchange, self.aim
        if aim is None:
            return
        planned = await exchange.job.replan(aim)
        self.aim = None  # not before: no limit runs out, and nothing else is begun, while it is planned
        if exchange.over:
            return  # closed meanwhile: the slot, if there was one, is given back
        if isinstance(planned, Fault):
            self._cannot_go_there(planned)
            return
        if planned.name != self.plan.name:
            self._give_seat_back()  # it does not fit there: another model is next
        # The chain stays the request's own: choosing and learning must not depend on how it is written.
        self.plan = structs.replace(planned, chain=self.plan.chain)
        exchange.renew(self.plan)
        if self._seat is None:
            self.begin()
        else:
            self._send()

    def _cannot_go_there(self, fault: Fault) -> None:
        """The request cannot be written for this place: another one may take it as it is."""
        place = self._give_seat_back()
        if place is not None:
            self._retries.failed.add(place.upstream.name)
        if place is not None and self._chooser.eligible(self.plan, self._retries.failed):
            self.begin()
            return
        # A model that cannot take the request leaves the failure as it was: no upstream has said this one.
        self._exchange.answer.refuse(self._failure or fault)
        self._exchange.close("upstream")

    # --- the end ---

    def leave(self) -> None:
        """Give back every place in a queue, and the slot that nothing was sent with. Idempotent."""
        self._leave_queues()
        self._give_seat_back()

    def _leave_queues(self) -> None:
        seats = self._end_wait()
        if seats is not None:
            seats.leave()

    def _end_wait(self) -> Seats | None:
        """It waits no longer; how long it did is written down. Returns the places that it may have still."""
        seats, self._seats = self._seats, None
        self._exchange.record.queued, self._waits_since = self.waited, None
        return seats

    def _give_seat_back(self) -> Place | None:
        seat, self._seat = self._seat, None
        if seat is None:
            return None
        seat[1].release()
        return seat[0]


def _no_slot(places: Collection[Place], fault: Fault) -> Fault:
    """Why none of these gave a slot: `fault`, unless they would have given none if all had been free."""
    closed = places and all(place.upstream.slots.closed for place in places)
    return own_faults.COORDINATOR_GONE if closed else fault
