"""Slots against a simple model: never more than the limit, nobody lost, first come first served."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from antiphon.server.admission import Lease, LeaseState, Left, QueueFullError, Slots, SlotStatistics, Ticket
from antiphon.server.fairness import Priority
from antiphon.server.reports import ReportStatistics


class Waiter:
    """Asks for a slot and remembers its lease; `then` is done inside the grant."""

    def __init__(self, slots: Slots, name: str, then=lambda lease: None, **options) -> None:
        self.name = name
        self.lease: Lease | None = None
        self.grants = 0
        self._then = then
        self.ticket: Ticket = slots.request(name, self._granted, **options)

    def _granted(self, lease: Lease) -> None:
        self.grants += 1
        self.lease = lease
        self._then(lease)


def test_a_free_slot_is_granted_before_request_returns() -> None:
    slots = Slots("a", 1)
    waiter = Waiter(slots, "one")
    assert waiter.lease is not None
    assert waiter.lease.owner == "one"
    assert waiter.ticket.lease is waiter.lease
    assert slots.statistics() == SlotStatistics(slots=1, held=1, draining=0, free=0, waiting=0)


def test_waiters_are_served_in_order_in_the_call_that_frees_a_slot() -> None:
    slots = Slots("a", 2)
    one, two, three, four = (Waiter(slots, name) for name in ("one", "two", "three", "four"))
    assert (three.lease, four.lease) == (None, None)
    two.lease.release()
    assert three.lease is not None
    assert four.lease is None
    one.lease.release()
    assert four.lease is not None


def test_release_and_cancel_are_idempotent() -> None:
    slots = Slots("a", 1)
    one, two, three = (Waiter(slots, name) for name in ("one", "two", "three"))
    two.ticket.cancel()
    two.ticket.cancel()
    one.lease.release()
    one.lease.release()
    assert (two.grants, three.grants) == (0, 1)
    three.ticket.cancel()  # after the grant it does nothing
    assert slots.statistics().held == 1


def test_a_draining_lease_is_used_until_its_time_is_over() -> None:
    drains = []
    slots = Slots("a", 1, on_draining=lambda: drains.append(1))
    one, two = Waiter(slots, "one"), Waiter(slots, "two")
    one.lease.drain(until=10.0)
    one.lease.drain(until=99.0)  # it drains already
    assert drains == [1]
    assert slots.statistics() == SlotStatistics(slots=1, held=0, draining=1, free=0, waiting=1)
    slots.expire(9.9)
    assert two.lease is None
    slots.expire(10.0)
    assert two.lease is not None
    assert one.lease.state is LeaseState.FREE


def test_without_a_time_only_the_report_frees_it() -> None:
    slots = Slots("a", 1)
    one = Waiter(slots, "one")
    one.lease.drain(until=None)
    slots.expire(1e9)
    assert slots.draining == 1
    slots.settle(busy=0)
    assert slots.draining == 0


@pytest.mark.parametrize(
    ("busy", "active", "freed"),
    [(0, 0, 2), (1, 0, 1), (2, 0, 0), (3, 0, 0), (1, 1, 2), (2, 1, 1), (3, 1, 0), (2, 2, 2), (0, 2, 2)],
)
def test_a_report_frees_what_it_does_not_explain(busy, active, freed) -> None:
    """Held leases that have begun explain a busy slot each; those that have not explain none."""
    slots = Slots("a", 4)
    draining = [Waiter(slots, f"d{number}") for number in range(2)]
    holding = [Waiter(slots, f"h{number}") for number in range(2)]
    for waiter in draining:
        waiter.lease.drain(until=None)
    for waiter in holding[:active]:
        waiter.lease.active = True
    slots.settle(busy)
    assert slots.statistics().draining == 2 - freed
    assert slots.statistics().held == 2


def test_a_full_queue_takes_nobody_else() -> None:
    slots = Slots("a", 1, queue_limit=2)
    one, two = Waiter(slots, "one"), Waiter(slots, "two")
    Waiter(slots, "three")
    with pytest.raises(QueueFullError):
        Waiter(slots, "four")
    two.ticket.cancel()
    four = Waiter(slots, "four")
    one.lease.release()
    assert four.lease is None
    assert slots.statistics().waiting == 1


def test_a_grant_that_ends_at_once_passes_the_slot_on_without_nesting() -> None:
    slots = Slots("a", 1, queue_limit=5000)
    one = Waiter(slots, "one")
    order: list[str] = []

    def give_back(lease: Lease) -> None:
        order.append(f"+{lease.owner}")
        lease.release()
        order.append(f"-{lease.owner}")

    hasty = [Waiter(slots, f"hasty{number}", give_back) for number in range(2000)]
    last = Waiter(slots, "last")
    one.lease.release()
    assert order[:4] == ["+hasty0", "-hasty0", "+hasty1", "-hasty1"]
    assert all(waiter.grants == 1 for waiter in hasty)
    assert last.lease is not None


def test_who_asks_or_leaves_inside_a_grant_is_not_lost() -> None:
    slots = Slots("a", 1)
    one = Waiter(slots, "one")
    late: list[Waiter] = []

    def meddle(lease: Lease) -> None:
        leaver.ticket.cancel()
        late.append(Waiter(slots, "late"))
        lease.release()

    Waiter(slots, "meddler", meddle)
    leaver = Waiter(slots, "leaver")
    one.lease.release()
    assert leaver.grants == 0
    assert late[0].lease is not None


def test_a_lower_limit_lets_leases_run_to_their_end() -> None:
    slots = Slots("a", 3)
    held = [Waiter(slots, f"h{number}") for number in range(3)]
    waiting = Waiter(slots, "waiting")
    slots.set_slots(1)
    assert slots.statistics().free == -2
    held[0].lease.release()
    held[1].lease.release()
    assert waiting.lease is None
    held[2].lease.release()
    assert waiting.lease is not None
    slots.set_slots(2)
    assert slots.statistics().free == 1


def test_a_share_has_the_weight_that_it_came_with_last() -> None:
    slots = Slots("a", 4)
    held = [Waiter(slots, f"held{number}") for number in range(4)]
    for number in range(8):
        Waiter(slots, f"light{number}", share="light")
        Waiter(slots, f"heavy{number}", share="heavy", weight=3.0)
    for waiter in held:
        waiter.lease.release()
    assert sorted(lease.share for lease in slots.leases()) == ["heavy"] * 3 + ["light"]
    Waiter(slots, "heavy8", share="heavy")
    for lease in slots.leases():
        lease.release()
    assert sorted(lease.share for lease in slots.leases()) == ["heavy"] * 2 + ["light"] * 2


def test_a_newcomers_weight_is_in_its_expected_wait() -> None:
    now = [0.0]
    slots = Slots("a", 1, clock=lambda: now[0])
    first = Waiter(slots, "first", share="light")
    waiting = [Waiter(slots, f"light{number}", share="light") for number in range(4)]
    now[0] = 10.0
    first.lease.active = True
    first.lease.release()
    waiting[0].lease.drain(None)  # one of it is used, three wait
    assert slots.expected_wait(share="new", weight=1.0) == 10.0
    Waiter(slots, "own", share="new", weight=1.0)
    assert slots.expected_wait(share="new") == 30.0
    assert slots.expected_wait(share="new", weight=4.0) == 20.0


def test_what_ended_before_it_was_answered_does_not_shorten_the_expected_wait() -> None:
    now = [0.0]
    slots = Slots("a", 1, clock=lambda: now[0])
    served = Waiter(slots, "served")
    served.lease.active = True
    now[0] = 60.0
    served.lease.release()
    for number in range(15):
        failed = Waiter(slots, f"failed{number}")
        now[0] += 0.002
        failed.lease.release()
    left = Waiter(slots, "left")
    left.lease.drain(None)
    left.lease.release()
    Waiter(slots, "holds")
    assert slots.expected_wait(0) == 60.0
    half = Waiter(slots, "half", then=lambda lease: lease.drain(until=now[0]))
    half.ticket.cancel()
    assert slots.expected_wait(0) == 60.0


def test_a_lease_that_served_and_drained_counts_to_the_end_of_its_draining() -> None:
    now = [0.0]
    slots = Slots("a", 1, clock=lambda: now[0])
    served = Waiter(slots, "served")
    served.lease.active = True
    now[0] = 8.0
    served.lease.drain(until=10.0)
    now[0] = 10.0
    slots.expire(10.0)
    Waiter(slots, "holds")
    assert slots.expected_wait(0) == 10.0


def test_while_nothing_has_ended_the_expected_wait_is_what_is_known_of_those_that_run() -> None:
    now = [0.0]
    slots = Slots("a", 3, clock=lambda: now[0])
    assert slots.expected_wait() == 0.0
    one = Waiter(slots, "one")
    now[0] = 20.0
    Waiter(slots, "two")
    drains = Waiter(slots, "three")
    drains.lease.drain(None)  # nobody's answer: it tells nothing
    now[0] = 40.0
    assert slots._held_for() == 30.0
    assert slots.expected_wait(0) == 10.0  # one of three slots each 10 seconds
    assert slots.expected_wait(2) == 30.0
    one.lease.active = True
    now[0] = 50.0
    one.lease.release()
    assert slots._held_for() == 50.0


def test_nobody_shuts_the_slots_of_one_process() -> None:
    assert not Slots("a", 0).closed


def test_whose_a_draining_lease_was() -> None:
    slots = Slots("a", 1)
    whose = Left("alice", "m", 7)
    one = Waiter(slots, "one")
    assert one.lease.left is None
    one.lease.drain(5.0, whose)
    one.lease.drain(9.0, Left("bob", "m", 8))  # it drains already
    assert (one.lease.left, one.lease.drain_until) == (whose, 5.0)


def test_a_full_queue_makes_room_for_who_weighs_more() -> None:
    slots = Slots("a", 0, queue_limit=5)
    for number in range(3):
        Waiter(slots, f"light{number}", share="light")
    for number in range(2):
        Waiter(slots, f"heavy{number}", share="heavy", weight=2.0)
    assert slots.would_refuse(share="heavy")  # three of it would be as many as they have
    assert not slots.would_refuse(share="heavy", weight=2.0)
    assert slots.would_refuse(share="light")
    Waiter(slots, "heavy2", share="heavy", weight=2.0)
    assert sorted(ticket.owner for ticket in slots.waiting()) == [
        "heavy0",
        "heavy1",
        "heavy2",
        "light0",
        "light1",
    ]


def test_a_report_that_disagrees_is_counted() -> None:
    slots = Slots("a", 4)
    assert slots.reports == ReportStatistics()
    one, two = Waiter(slots, "one"), Waiter(slots, "two")
    one.lease.active = two.lease.active = True
    slots.settle(2)
    assert slots.reports == ReportStatistics(busy=2)
    slots.settle(3)
    assert slots.reports == ReportStatistics(busy=3, busier=1)
    slots.settle(1)
    assert slots.reports == ReportStatistics(busy=1, busier=1, idler=1)


class SlotsModel(RuleBasedStateMachine):
    """The model: a list of who holds, a dictionary of who drains, a queue. The class must agree with it."""

    waiters = Bundle("waiters")

    def __init__(self) -> None:
        super().__init__()
        self.limit, self.queue_limit = 2, 4
        self.slots = Slots("a", self.limit, queue_limit=self.queue_limit)
        self.queue: deque[Waiter] = deque()
        self.held: list[Waiter] = []
        self.draining: dict[Waiter, float | None] = {}
        self.granted: list[str] = []
        self.now = 0.0
        self.number = 0

    def _model_wake(self) -> None:
        while self.queue and len(self.held) + len(self.draining) < self.limit:
            waiter = self.queue.popleft()
            self.held.append(waiter)
            self.expected.append(waiter.name)

    expected: list[str]

    @rule(target=waiters)
    def arrive(self):
        self.number += 1
        name = f"w{self.number}"
        try:
            waiter = Waiter(self.slots, name, lambda lease: self.granted.append(lease.owner))
        except QueueFullError:
            assert len(self.queue) == self.queue_limit
            return multiple()
        self.queue.append(waiter)
        self._settle_model()
        return waiter

    def _settle_model(self) -> None:
        self.expected = []
        self._model_wake()
        fresh, self.granted = self.granted, []
        assert fresh == self.expected  # the same ones, in the same order, none missing

    @rule(waiter=waiters)
    def cancel(self, waiter):
        """Anywhere: in the queue, while held, while draining, after the end."""
        waiter.ticket.cancel()
        if waiter in self.queue:
            self.queue.remove(waiter)
        self._settle_model()

    @rule(waiter=consumes(waiters))
    def end(self, waiter):
        if waiter.lease is None:
            waiter.ticket.cancel()
            self.queue.remove(waiter) if waiter in self.queue else None
        else:
            waiter.lease.release()
            self.draining.pop(waiter, None)
            if waiter in self.held:
                self.held.remove(waiter)
        self._settle_model()

    @rule(waiter=waiters, grace=st.sampled_from([None, 1.0, 5.0]))
    def drain(self, waiter, grace):
        until = None if grace is None else self.now + grace
        if waiter.lease is not None:
            waiter.lease.drain(until)
        if waiter in self.held:
            self.held.remove(waiter)
            self.draining[waiter] = until
        self._settle_model()

    @rule(waiter=waiters)
    def begin(self, waiter):
        if waiter.lease is not None:
            waiter.lease.active = True

    @rule(busy=st.integers(0, 4))
    def settle(self, busy):
        active = sum(waiter.lease.active for waiter in self.held)
        keep = max(0, busy - active)
        before = set(self.draining)
        self.slots.settle(busy)
        freed = {waiter for waiter in before if waiter.lease.state is LeaseState.FREE}
        assert len(freed) == max(0, len(before) - keep)
        for waiter in freed:
            del self.draining[waiter]
        self._settle_model()

    @rule(seconds=st.sampled_from([0.0, 1.0, 3.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.slots.expire(self.now)
        self.draining = {
            waiter: until for waiter, until in self.draining.items() if until is None or until > self.now
        }
        self._settle_model()

    @rule(limit=st.integers(0, 4))
    def set_slots(self, limit):
        grows = limit > self.limit
        self.limit = limit
        self.slots.set_slots(limit)
        self._settle_model()
        if not grows:
            assert self.expected == []

    @invariant()
    def the_numbers_agree(self):
        used = len(self.held) + len(self.draining)
        assert self.slots.statistics() == SlotStatistics(
            slots=self.limit,
            held=len(self.held),
            draining=len(self.draining),
            free=self.limit - used,
            waiting=len(self.queue),
        )
        assert all(waiter.grants == 1 for waiter in (*self.held, *self.draining))
        assert all(waiter.grants == 0 for waiter in self.queue)


TestSlotsModel = SlotsModel.TestCase
TestSlotsModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


class SharesModel(RuleBasedStateMachine):
    """Several shares and a full queue: whoever is served next, nobody is lost and no slot is left unused."""

    waiters = Bundle("waiters")

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots("a", 2, queue_limit=4, clock=lambda: 0.0)
        self.all: list[Waiter] = []
        self.left: set[Waiter] = set()
        self.displaced: set[str] = set()
        self.order: dict[str, list[str]] = {}

    @rule(target=waiters, share=st.sampled_from("abc"), weight=st.sampled_from([1.0, 1.0, 2.5]))
    def arrive(self, share, weight):
        name = f"{share}{len(self.all)}"
        before = (self.slots.statistics(), [ticket.owner for ticket in self.slots.waiting()])
        refuses = self.slots.would_refuse(share=share, weight=weight)
        assert before == (self.slots.statistics(), [ticket.owner for ticket in self.slots.waiting()])
        full = self.slots.statistics().waiting == 4
        lost = len(self.displaced)
        try:
            waiter = Waiter(
                self.slots,
                name,
                lambda lease: self.order.setdefault(share, []).append(lease.owner),
                share=share,
                weight=weight,
                displaced=lambda: self.displaced.add(name),
            )
        except QueueFullError:
            assert refuses
            assert full
            assert len(self.displaced) == lost
            return multiple()
        assert not refuses
        assert len(self.displaced) == lost + full  # a place in a full queue is somebody else's
        assert name not in self.displaced
        self.all.append(waiter)
        return waiter

    @rule(waiter=consumes(waiters))
    def end(self, waiter):
        waiter.ticket.cancel()
        if waiter.lease is not None:
            waiter.lease.release()
        self.left.add(waiter)

    @rule(waiter=waiters)
    def drain(self, waiter):
        if waiter.lease is not None:
            waiter.lease.drain(until=1.0)

    @rule()
    def the_drained_are_free(self):
        self.slots.expire(2.0)

    @rule(limit=st.integers(0, 4))
    def set_slots(self, limit):
        self.slots.set_slots(limit)

    @invariant()
    def nobody_is_lost(self):
        numbers = self.slots.statistics()
        waiting = {ticket.owner for ticket in self.slots.waiting()}
        here = [waiter for waiter in self.all if waiter not in self.left and waiter.grants == 0]
        assert waiting == {waiter.name for waiter in here} - self.displaced
        assert all(waiter.grants <= 1 for waiter in self.all)
        assert all(waiter.grants == 0 for waiter in self.all if waiter.name in self.displaced)
        assert numbers.waiting == len(waiting)
        assert not waiting or numbers.free <= 0  # no slot is left unused while somebody waits
        used = [waiter for waiter in self.all if waiter.lease and waiter.lease.state is not LeaseState.FREE]
        assert numbers.held + numbers.draining == len(used) == len(self.slots.leases())

    @invariant()
    def inside_a_share_they_are_served_in_order(self):
        for served in self.order.values():
            numbers = [int(name[1:]) for name in served]
            assert numbers == sorted(numbers)


TestSharesModel = SharesModel.TestCase
TestSharesModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_without_a_queue_a_free_slot_is_had_and_a_taken_one_refused_at_once() -> None:
    slots = Slots("a", 2, queue_limit=0)
    held = [Waiter(slots, f"w{number}") for number in range(2)]
    assert all(waiter.lease is not None for waiter in held)
    assert slots.would_refuse()
    with pytest.raises(QueueFullError):
        Waiter(slots, "late")
    held[0].lease.release()
    assert not slots.would_refuse()
    assert Waiter(slots, "next").lease is not None


def test_in_a_full_queue_an_interactive_request_takes_the_place_of_a_background_one_of_its_share() -> None:
    slots = Slots("a", 0, queue_limit=2)
    gone = []
    slots.request(
        "title", lambda lease: None, share="a", priority=Priority.BACKGROUND, displaced=lambda: gone.append(1)
    )
    Waiter(slots, "main", share="a")
    assert slots.would_refuse(share="a", priority=Priority.BACKGROUND)
    assert not slots.would_refuse(share="a")
    Waiter(slots, "other", share="a")
    assert gone == [1]
    assert slots.would_refuse(share="a")
