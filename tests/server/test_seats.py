"""A place in several queues, against a simple model: the first slot wins, and nobody is lost or served twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.core.dialects.quirks import by_name
from antiphon.server.admission import Lease, Slots
from antiphon.server.fairness import Priority
from antiphon.server.routing import Target
from antiphon.server.seats import Place, Seats


class Server:
    """As much of an upstream as seats know."""

    def __init__(self, name: str, slots: int = 1, queue: int = 8) -> None:
        self.name = name
        self.slots = Slots(name, slots, queue_limit=queue)
        self.place = Place(Target(name, by_name("generic"), "m"), self)  # type: ignore[arg-type]

    @property
    def now(self) -> tuple[int, int]:
        """(held, waiting)."""
        numbers = self.slots.statistics()
        return numbers.held, numbers.waiting

    @property
    def waiting(self) -> list[str]:
        return [ticket.owner for ticket in self.slots.waiting()]


class Asking:
    """One request: where it was granted, how often it was refused. `then` is done inside the grant."""

    def __init__(
        self,
        name: str,
        servers: Sequence[Server],
        *,
        then: Callable[[Asking], None] = lambda asking: None,
        share: str = "",
        ask: bool = True,
        **options: Any,
    ) -> None:
        self.name = name
        self.at: str | None = None
        self.lease: Lease | None = None
        self.grants = self.refusals = 0
        self.refused: Callable[[], None] = lambda: None  # what is done then
        self._then = then
        self.seats = Seats(
            [server.place for server in servers],
            owner=name,
            share=share,
            granted=self._granted,
            refused=self._refused,
            **options,
        )
        if ask:
            self.seats.ask()

    def _granted(self, place: Place, lease: Lease) -> None:
        self.grants += 1
        self.at, self.lease = place.upstream.name, lease
        self._then(self)

    def _refused(self) -> None:
        self.refusals += 1
        self.refused()

    def release(self) -> None:
        assert self.lease is not None
        self.lease.release()

    @property
    def told(self) -> tuple[int, int]:
        return self.grants, self.refusals


def servers(*slots: int, queue: int = 8) -> list[Server]:
    return [Server("abc"[number], count, queue) for number, count in enumerate(slots)]


# --- One by one ---------------------------------------------------------------------------------------


def test_the_first_with_a_free_slot_in_order_of_preference():
    a, b = servers(1, 1)
    one, two, three = (Asking(name, [b, a]) for name in ("one", "two", "three"))
    assert (one.at, two.at, three.at) == ("b", "a", None)
    assert a.now == b.now == (1, 1)  # the third waits in both


def test_the_first_slot_that_is_free_wins_and_the_other_place_is_given_up():
    a, b = servers(1, 1)
    one, two = Asking("one", [a]), Asking("two", [b])
    both, after = Asking("both", [a, b]), Asking("after", [a, b])
    two.release()
    assert (both.at, after.at) == ("b", None)
    assert (a.waiting, b.waiting) == (["after"], ["after"])
    one.release()
    assert after.at == "a"
    assert a.now == b.now == (1, 0)
    assert both.told == after.told == (1, 0)


def test_who_leaves_leaves_every_queue():
    a, b = servers(1, 1)
    one, two = Asking("one", [a]), Asking("two", [b])
    both, after = Asking("both", [a, b]), Asking("after", [b])
    both.seats.leave()
    both.seats.leave()
    assert (a.waiting, b.waiting) == ([], ["after"])
    one.release()
    two.release()
    assert both.told == (0, 0)
    assert after.at == "b"
    assert a.now == (0, 0)


def test_a_grant_that_is_given_back_at_once_reaches_the_next_in_the_same_call():
    a, b = servers(1, 1)
    one, two = Asking("one", [a]), Asking("two", [b])
    fussy = Asking("fussy", [a, b], then=Asking.release)
    after = Asking("after", [a])
    one.release()
    assert (fussy.at, after.at) == ("a", "a")
    assert (a.waiting, b.waiting) == ([], [])
    assert two.lease is not None


def test_who_asks_again_inside_its_own_grant():
    """As an exchange does whose server fell ill while it waited."""
    a, b = servers(1, 1)
    one, two = Asking("one", [a]), Asking("two", [b])
    again: list[Asking] = []

    def move(asking: Asking) -> None:
        asking.release()
        again.append(Asking("again", [b]))

    Asking("moves", [a, b], then=move)
    one.release()
    assert b.waiting == ["again"]
    two.release()
    assert again[0].at == "b"
    assert a.now == (0, 0)


def test_refused_once_and_only_when_every_queue_is_full():
    a, b = servers(1, 1, queue=1)
    Asking("one", [a])
    Asking("two", [b])
    Asking("in a", [a])
    half = Asking("half", [a, b])  # a is full, b has a place
    assert half.told == (0, 0)
    assert b.waiting == ["half"]
    none = Asking("none", [a, b])
    assert none.told == (0, 1)
    assert none.seats.over
    assert (a.waiting, b.waiting) == (["in a"], ["half"])


def test_nowhere_to_ask_is_a_refusal():
    assert Asking("one", []).told == (0, 1)


def test_displaced_in_one_queue_it_keeps_the_other():
    a, b = servers(1, 1, queue=2)
    one, two = Asking("one", [a]), Asking("two", [b])
    first, last = Asking("first", [a], share="flood"), Asking("last", [a, b], share="flood")
    Asking("newcomer", [a], share="other")
    assert sorted(a.waiting) == ["first", "newcomer"]
    assert b.waiting == ["last"]
    assert last.told == (0, 0)
    two.release()
    assert last.at == "b"
    one.release()
    assert a.now == (1, 1)
    assert first.told[1] == 0


def test_displaced_in_its_last_queue_it_is_refused_once():
    a, b = servers(1, 1, queue=2)
    Asking("one", [a])
    Asking("two", [b])
    Asking("first", [a, b], share="flood")
    last = Asking("last", [a, b], share="flood")
    Asking("newcomer", [a, b], share="other")
    assert last.told == (0, 1)
    assert (sorted(a.waiting), sorted(b.waiting)) == (["first", "newcomer"],) * 2


def test_displaced_where_another_place_was_not_asked_yet_it_asks_there():
    a, b = servers(1, 1, queue=2)
    one = Asking("one", [a])
    Asking("first", [a], share="flood")
    last = Asking("last", [a], share="flood")
    last.seats.offer([a.place, b.place])
    Asking("newcomer", [a], share="other")
    assert last.at == "b"
    assert sorted(a.waiting) == ["first", "newcomer"]
    one.release()


def test_what_is_offered_later_is_asked_when_it_takes_too_long():
    a, b = servers(1, 1)
    Asking("one", [a])
    waits = Asking("waits", [a])
    waits.seats.offer([a.place, b.place])
    assert waits.at is None
    waits.seats.widen()
    assert waits.at == "b"
    assert a.waiting == []


def test_an_offer_does_not_ask_twice_in_one_queue():
    a, b = servers(1, 1)
    Asking("one", [a])
    Asking("two", [b])
    waits = Asking("waits", [a, b])
    for _ in range(3):
        waits.seats.offer([b.place, a.place])
        waits.seats.widen()
    assert (a.waiting, b.waiting) == (["waits"], ["waits"])


def test_what_is_not_offered_any_more_is_not_asked():
    """A server that has left, or fell ill, before it was asked at all."""
    a, b = servers(1, 1)
    Asking("one", [a])
    waits = Asking("waits", [a])
    waits.seats.offer([a.place, b.place])
    waits.seats.offer([a.place])
    waits.seats.widen()
    assert b.now == (0, 0)
    assert waits.told == (0, 0)


def test_an_offer_after_the_end_is_nothing():
    a, b = servers(1, 1)
    served, gone = Asking("served", [a]), Asking("gone", [a])
    gone.seats.leave()
    for each in (served, gone):
        each.seats.offer([b.place])
        each.seats.widen()
    assert b.now == (0, 0)
    assert (served.told, gone.told) == ((1, 0), (0, 0))


def test_its_weight_counts_at_every_place():
    a, b = servers(1, 1)
    Asking("one", [a], share="light")
    Asking("two", [b], share="light")
    for number in range(4):
        Asking(f"light{number}", [a, b], share="light")
        Asking(f"heavy{number}", [a, b], share="heavy", weight=3.0)
    a.slots.set_slots(5)
    heavy = [lease.share for lease in a.slots.leases()].count("heavy")
    assert heavy == 3  # of four with a light one there


def test_its_priority_counts_at_every_place():
    a, b = servers(1, 1)
    one = Asking("one", [a])
    Asking("two", [b])
    later = Asking("later", [a, b], priority=Priority.BACKGROUND)
    sooner = Asking("sooner", [a, b])
    one.release()
    assert (later.at, sooner.at) == (None, "a")


def test_who_leaves_while_it_asks_has_no_place_there():
    """Somebody gives way to it, and what that one does next ends this request."""
    a, b = servers(1, 1, queue=1)
    Asking("one", [a])
    Asking("two", [b])
    newcomer = Asking("newcomer", [a], share="other", ask=False)
    loses = Asking("loses", [a], share="flood", weight=0.5)
    loses.refused = newcomer.seats.leave
    newcomer.seats.ask()
    assert loses.told == (0, 1)
    assert newcomer.told == (0, 0)
    assert a.now == (1, 0)


def test_who_leaves_while_it_asks_gives_a_slot_back():
    a, b = servers(1, 1, queue=1)
    one = Asking("one", [a])
    newcomer = Asking("newcomer", [a], share="other", ask=False)
    loses = Asking("loses", [a], share="flood", weight=0.5)

    def leave_and_make_room() -> None:
        newcomer.seats.leave()
        one.release()

    loses.refused = leave_and_make_room
    newcomer.seats.ask()
    assert newcomer.told == (0, 0)
    assert a.now == b.now == (0, 0)


class Slow(Slots):
    """Grants when it is told to, as slots do that several gateways share."""

    def __init__(self, name: str, slots: int) -> None:
        super().__init__(name, slots)
        self.asleep = True

    def _wake(self) -> None:
        if not self.asleep:
            super()._wake()

    def answer(self) -> None:
        self.asleep = False
        self._wake()


def test_where_a_grant_takes_time_nobody_else_is_asked_while_the_first_has_a_slot_free():
    a, b = servers(1, 1)
    a.slots = Slow("a", 1)
    one = Asking("one", [a, b])
    assert (one.at, b.now) == (None, (0, 0))
    a.slots.answer()
    assert one.at == "a"
    a.slots.asleep = True
    b.slots = Slow("b", 1)
    two = Asking("two", [a, b])  # a has none free: both are asked
    assert (a.now, b.now) == ((1, 1), (0, 1))
    b.slots.answer()
    assert (two.at, a.now) == ("b", (1, 0))


def test_what_was_not_asked_is_asked_when_the_first_is_late():
    a, b = servers(1, 1)
    a.slots = Slow("a", 1)
    one = Asking("one", [a, b])
    one.seats.widen()
    assert (one.at, a.now) == ("b", (0, 0))


def test_who_stays_asks_the_others_only_for_a_slot_that_is_free():
    a, b, c = servers(1, 1, 1)
    one, two = Asking("one", [a]), Asking("two", [b])
    stays = Asking("stays", [a, b, c], ask=False)
    stays.seats.ask(everywhere=False)
    assert (a.waiting, b.waiting, c.now) == (["stays"], [], (0, 0))
    three = Asking("three", [c])
    stays.seats.spread()
    assert (stays.at, a.waiting, b.waiting, c.waiting) == (None, ["stays"], [], [])
    two.release()
    stays.seats.spread()
    assert (stays.at, a.waiting, c.now) == ("b", [], (1, 0))
    stays.seats.spread()
    for each in (one, three, stays):
        each.release()
    assert stays.told == (1, 0)
    assert a.now == b.now == c.now == (0, 0)


def test_who_stays_goes_on_where_the_queue_is_full():
    a, b, c = servers(1, 1, 1, queue=1)
    for number, server in enumerate((a, a, b)):
        Asking(f"{number}", [server])
    stays = Asking("stays", [a, b, c], ask=False)
    stays.seats.ask(everywhere=False)
    assert (a.waiting, b.waiting, c.now) == (["1"], ["stays"], (0, 0))
    nowhere = Asking("nowhere", [a, b], ask=False)
    nowhere.seats.ask(everywhere=False)
    assert nowhere.told == (0, 1)


def test_who_stays_and_is_displaced_asks_the_others():
    a, b = servers(1, 1, queue=2)
    Asking("one", [a])
    Asking("first", [a], share="flood")
    stays = Asking("stays", [a, b], share="flood", ask=False)
    stays.seats.ask(everywhere=False)
    Asking("newcomer", [a], share="other")
    assert (stays.at, stays.told) == ("b", (1, 0))


# --- All together, against a model ------------------------------------------------------------------------


class Model:
    """Three queues, first come first served, and one wish in several of them."""

    def __init__(self, slots: list[int], queue: int) -> None:
        self.slots = slots
        self.queue = queue
        self.held: list[list[str]] = [[], [], []]
        self.waiting: list[list[str]] = [[], [], []]
        self.fussy: set[str] = set()  # they give a slot back at once
        self.grants: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    def ask(self, name: str, order: list[int]) -> None:
        for number in order:
            if len(self.waiting[number]) >= self.queue:
                continue
            self.waiting[number].append(name)
            self._serve(number)
            if self.grants[name]:
                return
        if not self.queues(name):
            self.refusals[name] += 1

    def leave(self, name: str) -> None:
        for line in self.waiting:
            if name in line:
                line.remove(name)

    def release(self, name: str) -> None:
        for number, names in enumerate(self.held):
            if name in names:
                names.remove(name)
                self._serve(number)

    def resize(self, number: int, slots: int) -> None:
        self.slots[number] = slots
        self._serve(number)

    def queues(self, name: str) -> set[int]:
        return {number for number, line in enumerate(self.waiting) if name in line}

    def _serve(self, number: int) -> None:
        while self.waiting[number] and len(self.held[number]) < self.slots[number]:
            name = self.waiting[number][0]
            self.leave(name)
            self.grants[name] += 1
            if name not in self.fussy:
                self.held[number].append(name)


orders = st.permutations([0, 1, 2]).flatmap(
    lambda order: st.integers(1, 3).map(lambda count: list(order)[:count])
)


class SeatsAgainstModel(RuleBasedStateMachine):
    """Everything that may happen to requests at three servers, in any order."""

    QUEUE = 3

    def __init__(self) -> None:
        super().__init__()
        self.servers = servers(1, 2, 1, queue=self.QUEUE)
        self.model = Model([1, 2, 1], self.QUEUE)
        self.all: dict[str, Asking] = {}
        self.orders: dict[str, list[int]] = {}

    def _some(self, number: int, true: Callable[[str], bool]) -> str | None:
        names = [name for name in self.all if true(name)]
        return names[number % len(names)] if names else None

    def _waits(self, name: str) -> bool:
        return bool(self.model.queues(name))

    def _holds(self, name: str) -> bool:
        return any(name in held for held in self.model.held)

    @rule(order=orders, fussy=st.sampled_from([False, False, False, True]))
    def ask(self, order: list[int], fussy: bool) -> None:
        name = f"r{len(self.all)}"
        if fussy:
            self.model.fussy.add(name)
        then = Asking.release if fussy else lambda asking: None
        self.orders[name] = order
        asking = Asking(name, [self.servers[number] for number in order], then=then, ask=False)
        self.all[name] = asking
        asking.seats.ask()
        self.model.ask(name, order)

    @precondition(lambda self: any(map(self._holds, self.all)))
    @rule(number=st.integers(0, 20))
    def release(self, number: int) -> None:
        name = self._some(number, self._holds)
        self.all[name].release()
        self.all[name].release()
        self.model.release(name)

    @precondition(lambda self: any(map(self._waits, self.all)))
    @rule(number=st.integers(0, 20))
    def leave(self, number: int) -> None:
        name = self._some(number, self._waits)
        self.all[name].seats.leave()
        self.model.leave(name)

    @precondition(lambda self: self.all)
    @rule(number=st.integers(0, 20))
    def leave_too_late(self, number: int) -> None:
        name = self._some(number, lambda name: not self._waits(name))
        if name is not None:
            self.all[name].seats.leave()

    @precondition(lambda self: any(map(self._waits, self.all)))
    @rule(number=st.integers(0, 20), order=orders)
    def look_again(self, number: int, order: list[int]) -> None:
        """The tick: what may be asked by now, also where the queue was full."""
        name = self._some(number, self._waits)
        seats = self.all[name].seats
        seats.offer([self.servers[each].place for each in order])
        seats.widen()
        more = [each for each in order if each not in self.model.queues(name)]
        self.model.ask(name, more)

    @rule(number=st.integers(0, 2), slots=st.integers(0, 3))
    def resize(self, number: int, slots: int) -> None:
        self.servers[number].slots.set_slots(slots)
        self.model.resize(number, slots)

    @invariant()
    def everything_agrees(self) -> None:
        for number, server in enumerate(self.servers):
            held = [lease.owner for lease in server.slots.leases()]
            assert sorted(held) == sorted(self.model.held[number])
            assert server.waiting == self.model.waiting[number]
            assert server.now == (len(held), len(self.model.waiting[number]))
        for name, asking in self.all.items():
            assert asking.told == (self.model.grants[name], self.model.refusals[name])
            assert asking.grants + asking.refusals <= 1
            assert asking.seats.over or self._waits(name)

    def teardown(self) -> None:
        """Whoever waits is served once the others have gone: nobody is lost."""
        for server in self.servers:
            server.slots.set_slots(1)
        while holding := [
            each for each in self.all.values() if each.lease and each.lease.state.value == "held"
        ]:
            holding[0].release()
        assert all(server.now == (0, 0) for server in self.servers)


TestSeatsAgainstModel = SeatsAgainstModel.TestCase
TestSeatsAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class SharesAtFullQueues(RuleBasedStateMachine):
    """Several shares that displace one another: who is served is fairness's; that nobody is lost is ours."""

    def __init__(self) -> None:
        super().__init__()
        self.servers = servers(1, 1, 2, queue=2)
        self.all: list[Asking] = []
        self.left: set[str] = set()

    @rule(order=orders, share=st.sampled_from(["x", "x", "y", "z"]), weight=st.sampled_from([1.0, 2.0]))
    def ask(self, order: list[int], share: str, weight: float) -> None:
        places = [self.servers[number] for number in order]
        asking = Asking(f"r{len(self.all)}", places, share=share, weight=weight, ask=False)
        self.all.append(asking)
        asking.seats.ask()

    @precondition(lambda self: self.all)
    @rule(number=st.integers(0, 50))
    def end(self, number: int) -> None:
        asking = self.all[number % len(self.all)]
        if asking.lease is not None:
            asking.release()
        elif not asking.seats.over:
            self.left.add(asking.name)
            asking.seats.leave()

    @precondition(lambda self: self.all)
    @rule(number=st.integers(0, 50), order=orders)
    def look_again(self, number: int, order: list[int]) -> None:
        seats = self.all[number % len(self.all)].seats
        seats.offer([self.servers[each].place for each in order])
        seats.widen()

    @invariant()
    def nobody_is_lost(self) -> None:
        waiting = Counter(name for server in self.servers for name in set(server.waiting))
        for asking in self.all:
            ends = asking.grants + asking.refusals + (asking.name in self.left)
            assert ends == (0 if waiting[asking.name] else 1), asking.name
        for server in self.servers:
            now = server.slots.statistics()
            assert not (now.free > 0 and now.waiting)
            assert len(set(server.waiting)) == now.waiting  # once in a queue at most
            assert 0 <= now.held <= now.slots


TestSharesAtFullQueues = SharesAtFullQueues.TestCase
TestSharesAtFullQueues.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
