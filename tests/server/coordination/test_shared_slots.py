"""SharedSlots against a coordinator whose messages are delivered one by one, in every order."""

from __future__ import annotations

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.server.admission import LeaseState, QueueFullError, SlotStatistics
from antiphon.server.coordination.protocol import Answer
from antiphon.server.coordination.shared_slots import CoordinatorGoneError, SharedSlots
from antiphon.server.fairness import Priority
from antiphon.server.reports import ReportStatistics
from server.coordination.stepped import TTL, Hub, SteppedCoordinator


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Gateway:
    """One gateway: its slots, its end of the conversation, and what became of its requests."""

    def __init__(self, hub: Hub, name: str, slots: int = 2, *, connect: bool = True, **options) -> None:
        self.clock = Clock()
        self.lost: list = []
        self.end = SteppedCoordinator(hub, name)
        self.slots = SharedSlots(
            "up", slots, coordinator=self.end, lost=self.lost.append, clock=self.clock, **options
        )
        self.end.start(self.slots)
        self.requests: list[Request] = []
        if connect:
            self.end.connect()
            hub.settle()

    def request(self, share: str = "", **options) -> Request:
        request = Request(self, share, **options)
        self.requests.append(request)
        return request

    def has_served(self, seconds: float) -> None:
        """An answer of that length came to its end: expected waits come from it."""
        first = self.request()
        self.end.hub.settle()
        first.lease.active = True
        self.clock.now += seconds
        first.end()
        self.end.hub.settle()


class Request:
    def __init__(self, gateway: Gateway, share: str = "", **options) -> None:
        self.share = share
        self._order = gateway.end.hub.order
        self.lease = None
        self.grants = 0
        self.displaced = False
        self.ticket = gateway.slots.request(
            f"req_{len(gateway.requests)}", self._granted, share=share, displaced=self._displaced, **options
        )

    def _granted(self, lease) -> None:
        self.grants += 1
        self.lease = lease
        self._order.append(self)

    def _displaced(self) -> None:
        assert not self.displaced
        self.displaced = True

    @property
    def holds(self) -> bool:
        return self.lease is not None and self.lease.state is not LeaseState.FREE

    def end(self) -> None:
        """As an exchange closes: in whatever state it is."""
        self.ticket.cancel()
        if self.lease is not None:
            self.lease.release()


@pytest.fixture
def hub() -> Hub:
    return Hub()


def test_a_grant_comes_with_the_coordinators_answer(hub) -> None:
    one, two = Gateway(hub, "g1"), Gateway(hub, "g2")
    first, second = one.request(), two.request()
    assert (first.lease, second.lease) == (None, None)
    hub.settle()
    assert first.holds
    assert second.holds
    assert one.slots.statistics() == SlotStatistics(slots=2, held=1, draining=0, free=1, waiting=0)
    assert two.slots.statistics() == SlotStatistics(slots=2, held=1, draining=0, free=0, waiting=0)


def test_a_release_in_one_gateway_wakes_a_waiter_in_another(hub) -> None:
    one, two = Gateway(hub, "g1", 1), Gateway(hub, "g2", 1)
    held = one.request()
    hub.settle()
    waiting = two.request()
    hub.settle()
    assert not waiting.holds
    held.lease.release()
    hub.settle()
    assert waiting.holds


def test_shares_are_served_fairly_whichever_gateway_they_wait_at(hub) -> None:
    one, two = Gateway(hub, "g1", 2), Gateway(hub, "g2", 2)
    flood = [one.request("flood") for _ in range(20)]
    hub.settle()
    quiet = [two.request("quiet") for _ in range(5)]
    hub.settle()
    order = hub.order
    for ended in range(25):
        order[ended].end()  # in the order of their grants: each frees one slot
        hub.settle()
    served = [request.share for request in order]
    assert served[:2] == ["flood", "flood"]
    assert served[2:12].count("quiet") == 5
    assert [request.grants for request in flood + quiet] == [1] * 25


def test_a_weight_gives_a_share_that_much_more(hub) -> None:
    one, two = Gateway(hub, "g1", 4), Gateway(hub, "g2", 4)
    for _ in range(8):
        one.request("small")
        two.request("big", weight=3.0)
    hub.settle()
    assert [sum(r.holds for r in gateway.requests) for gateway in (one, two)] != [4, 0]
    for _ in range(3):  # whatever was served first gives way to what is fair
        next(r for r in one.requests if r.holds).end() if sum(r.holds for r in one.requests) > 1 else None
        hub.settle()
    assert [sum(r.holds for r in gateway.requests) for gateway in (one, two)] == [1, 3]


@pytest.mark.parametrize("steps", range(12))
def test_a_cancel_at_any_step_leaves_nothing_and_loses_nobody(hub, steps) -> None:
    """Between any two messages of a request that waits, is granted and released."""
    one, two = Gateway(hub, "g1", 1), Gateway(hub, "g2", 1)
    held = two.request()
    hub.settle()
    cancelled, next_one = one.request(), two.request()
    for step in range(steps):
        hub.step()
        if step == 2:
            held.end()
    cancelled.end()
    cancelled.end()
    held.end()
    hub.settle()
    assert cancelled.grants <= 1
    assert not cancelled.holds
    assert next_one.holds
    next_one.end()
    hub.settle()
    assert hub.room._leases == {}
    assert hub.room._waiting == {}


def test_a_grant_that_crosses_its_cancel_is_given_back_unseen(hub) -> None:
    one = Gateway(hub, "g1", 1)
    request = one.request()
    one.end.deliver_up()  # granted there; the answer is on its way
    assert hub.room._leases
    request.ticket.cancel()
    hub.settle()
    assert request.grants == 0
    assert hub.room._leases == {}


def test_a_grant_that_ends_at_once_passes_the_slot_on(hub) -> None:
    one = Gateway(hub, "g1", 1)
    seen = []
    for number in range(50):
        one.slots.request("r", lambda lease, number=number: (seen.append(number), lease.release()))
    hub.settle()
    assert seen == list(range(50))
    assert hub.room._leases == {}


def test_the_last_word_on_the_limit_counts_for_all(hub) -> None:
    one, two = Gateway(hub, "g1", 2), Gateway(hub, "g2", 2)
    for _ in range(3):
        one.request()
        two.request()
    hub.settle()
    assert one.slots.statistics().held + two.slots.statistics().held == 2
    two.slots.set_slots(5)
    hub.settle()
    assert one.slots.statistics().held + two.slots.statistics().held == 5
    one.end.deliver_down()
    one.slots._look()
    hub.settle()
    assert one.slots.statistics().slots == 5
    one.slots.set_slots(1)
    hub.settle()
    two.requests[0].end()
    hub.settle()
    assert hub.room._limit == 1
    assert len(hub.room._leases) == 4


def test_who_had_another_limit_tells_that_it_has_changed(hub) -> None:
    one = Gateway(hub, "g1", 2)
    Gateway(hub, "g2", 5)
    with structlog.testing.capture_logs() as told:
        one.slots._look()
        hub.settle()
        one.slots._look()
        hub.settle()
    (line,) = [line for line in told if line["event"] == "slots_changed"]
    assert (line["slots"], line["before"]) == (5, 2)


def test_a_limit_that_changes_while_disconnected_is_said_later(hub) -> None:
    one, two = Gateway(hub, "g1", 2), Gateway(hub, "g2", 2)
    one.end.disconnect()
    one.slots.set_slots(7)
    one.end.connect()
    hub.settle()
    assert hub.room._limit == 7
    two.end.disconnect()
    two.end.connect()  # without news: it does not bring the old one back
    hub.settle()
    assert hub.room._limit == 7


def test_a_limit_that_was_lost_with_its_connection_is_said_again(hub) -> None:
    one = Gateway(hub, "g1", 2)
    one.slots.set_slots(7)
    one.end.disconnect()
    one.end.late.clear()
    one.end.connect()
    hub.settle()
    assert hub.room._limit == 7
    assert one.slots.statistics().slots == 7


def test_a_guess_is_never_news(hub) -> None:
    """A gateway whose server has not told yet takes what the others go by, and works with it."""
    one, two = Gateway(hub, "g1", 2), Gateway(hub, "g2", 8, guess=True)
    assert hub.room._limit == 2
    assert two.slots.statistics().slots == 2
    for _ in range(8):
        two.request()
    hub.settle()
    assert two.slots.statistics().held == 2
    two.end.disconnect()
    two.end.connect()
    hub.settle()
    assert (hub.room._limit, one.slots.statistics().slots, two.slots.statistics().slots) == (2, 2, 2)


def test_a_guess_counts_where_nobody_knows_more(hub) -> None:
    one, two = Gateway(hub, "g1", 8, guess=True), Gateway(hub, "g2", 9, guess=True)
    assert [gateway.slots.statistics().slots for gateway in (one, two)] == [8, 8]
    two.slots.set_slots(2)  # its server has told
    hub.settle()
    one.slots._look()
    hub.settle()
    assert [gateway.slots.statistics().slots for gateway in (one, two)] == [2, 2]


def test_what_the_server_tells_before_the_coordinator_answers_is_news(hub) -> None:
    Gateway(hub, "g1", 4)
    two = Gateway(hub, "g2", 8, connect=False, guess=True)
    two.end.connect()
    two.slots.set_slots(2)
    hub.settle()
    assert (hub.room._limit, two.slots.statistics().slots) == (2, 2)
    three = Gateway(hub, "g3", 8, connect=False, guess=True)
    three.slots.set_slots(3)
    three.end.connect()
    hub.settle()
    assert hub.room._limit == 3


def test_who_had_guessed_brings_back_what_it_learnt(hub) -> None:
    """A coordinator that has lost everything learns the limit from whoever comes first."""
    Gateway(hub, "g1", 2)
    two = Gateway(hub, "g2", 8, guess=True)
    hub.restart()
    two.slots._look()  # the answer is `stale`
    hub.settle()
    assert (hub.room._limit, two.slots.statistics().slots) == (2, 2)


def test_alone_who_had_guessed_has_its_part_of_what_it_learnt(hub) -> None:
    Gateway(hub, "g1", 2)
    two = Gateway(hub, "g2", 8, guess=True)
    two.end.disconnect()
    for _ in range(8):
        two.request()
    two.slots._go_alone()
    assert two.slots.statistics().held == 1
    two.end.connect()
    hub.settle()
    assert hub.room._limit == 2


def test_a_full_queue_displaces_the_newest_of_the_longest_share(hub) -> None:
    one, two = Gateway(hub, "g1", 1, queue_limit=3), Gateway(hub, "g2", 1, queue_limit=3)
    flood = [one.request("flood") for _ in range(4)]
    hub.settle()
    assert flood[0].holds
    quiet = two.request("quiet")
    hub.settle()
    assert [request.displaced for request in flood] == [False, False, False, True]
    assert not quiet.displaced
    refused = two.request("quiet2")
    more = two.request("quiet2")
    hub.settle()
    assert [request.displaced for request in flood] == [False, False, True, True]
    assert (refused.displaced, more.displaced) == (False, True)
    assert one.slots.statistics().waiting == 1


def test_this_gateways_own_queue_is_bounded_without_asking(hub) -> None:
    one = Gateway(hub, "g1", 1, queue_limit=2)
    kept = [one.request("a") for _ in range(3)]  # a slot, and two places to wait
    with pytest.raises(QueueFullError):
        one.request("a")
    other = one.request("b")
    assert [request.displaced for request in kept] == [False, False, True]
    hub.settle()
    assert kept[0].holds
    assert other.grants == 0


def test_what_it_would_refuse_is_what_it_refuses(hub) -> None:
    one = Gateway(hub, "g1", 1, queue_limit=3)
    one.request("a")
    hub.settle()
    for _ in range(3):
        assert not one.slots.would_refuse(share="a")
        one.request("a")
    hub.settle()
    assert one.slots.would_refuse(share="a")
    assert not one.slots.would_refuse(share="b")
    with pytest.raises(QueueFullError):
        one.request("a")
    before = one.slots.statistics()
    one.request("b")
    assert one.slots.statistics() == before


def _full(hub: Hub, queue_limit: int = 2, **options) -> tuple[Gateway, Gateway]:
    """Two gateways, one slot that is held, and a queue of both that is full of the second one's."""
    one = Gateway(hub, "g1", 1, queue_limit=queue_limit, **options)
    two = Gateway(hub, "g2", 1, queue_limit=queue_limit)
    ended = one.request("z")
    hub.settle()
    ended.lease.active = True
    one.clock.now += 0.4
    ended.end()
    for _ in range(queue_limit + 1):
        two.request("a")
    hub.settle()
    return one, two


def test_who_had_no_place_in_the_queue_of_all_has_none_for_a_moment(hub) -> None:
    one, _ = _full(hub)
    first = one.request("a")
    assert not one.slots.would_refuse(share="a")
    hub.settle()
    assert first.displaced
    assert one.slots.would_refuse(share="a")
    assert not one.slots.would_refuse(share="b")  # it did not ask: the flood may give way to it
    assert not one.request("b").displaced
    one.clock.now += 0.39  # half of two places of 0.4 s each is 0.4 s
    assert one.slots.would_refuse(share="a")
    one.clock.now += 0.02
    assert not one.slots.would_refuse(share="a")


def test_it_is_half_a_second_at_the_longest(hub) -> None:
    one, _ = _full(hub, 20)
    one.request("a")
    hub.settle()
    one.clock.now += 0.49
    assert one.slots.would_refuse(share="a")
    one.clock.now += 0.02
    assert not one.slots.would_refuse(share="a")


def test_alone_nobody_is_turned_down_for_what_the_others_had(hub) -> None:
    one, _ = _full(hub)
    one.request("a")
    hub.settle()
    assert one.slots.would_refuse(share="a")
    one.end.disconnect()
    one.slots._go_alone()
    assert not one.slots.would_refuse(share="a")


def test_while_no_lease_has_ended_nobody_is_turned_down_unasked(hub) -> None:
    one, two = Gateway(hub, "g1", 1, queue_limit=1), Gateway(hub, "g2", 1, queue_limit=1)
    for _ in range(2):
        two.request("a")
    hub.settle()
    refused = one.request("a")
    hub.settle()
    assert refused.displaced
    assert not one.slots.would_refuse(share="a")


def test_without_a_queue_nobody_is_turned_down_unasked(hub) -> None:
    """The slot that was taken a moment ago may be free now."""
    one, two = _full(hub, 0)
    # Its own queue is that full too, but for what is free as far as it knows.
    one.slots._view = Answer(gateways=2)
    refused = one.request("a")
    hub.settle()
    assert refused.displaced
    assert not one.slots._turned_down.holds("a", Priority.INTERACTIVE, one.clock.now)
    two.requests[0].end()
    hub.settle()
    one.slots._look()
    hub.settle()
    assert not one.slots.would_refuse(share="a")


def test_reports_are_compared_with_what_all_gateways_have(hub) -> None:
    one, two = Gateway(hub, "g1", 4), Gateway(hub, "g2", 4)
    ours, theirs = one.request(), two.request()
    ours.ticket.lease or hub.settle()
    ours.lease.active = theirs.lease.active = True
    for gateway in (one, two):
        gateway.slots._look()
        hub.settle()
    for busy in (2, 2, 3, 1):
        one.slots.settle(busy)
        hub.settle()
    assert one.slots.reports == ReportStatistics(busy=1, busier=1, idler=1)
    # With nobody to ask, others may be what makes it busy.
    one.end.disconnect()
    one.slots.settle(4)
    assert one.slots.reports == ReportStatistics(busy=4, busier=1, idler=1)


def test_a_draining_lease_is_used_for_everybody(hub) -> None:
    one, two = Gateway(hub, "g1", 1), Gateway(hub, "g2", 1)
    draining = one.request()
    hub.settle()
    waiting = two.request()
    draining.lease.drain(until=10.0)
    hub.settle()
    assert not waiting.holds
    one.slots.expire(11.0)
    hub.settle()
    assert waiting.holds


def test_a_report_is_read_with_what_other_gateways_hold(hub) -> None:
    """Busy slots that another gateway's leases explain do not keep ours from being free."""
    one, two = Gateway(hub, "g1", 3), Gateway(hub, "g2", 3)
    draining, theirs = one.request(), two.request()
    hub.settle()
    draining.lease.drain(until=None)
    one.slots.settle(busy=1)  # ours or theirs
    hub.settle()
    assert draining.holds
    theirs.lease.active = True
    two.slots._look()
    hub.settle()
    one.slots.settle(busy=2)
    hub.settle()
    one.slots.settle(busy=2)
    hub.settle()
    assert draining.holds
    one.slots.settle(busy=1)
    hub.settle()
    assert not draining.holds
    assert theirs.holds


def test_what_a_dead_connection_still_carries_changes_nothing(hub) -> None:
    one, two = Gateway(hub, "g1", 1), Gateway(hub, "g2", 1)
    request = one.request()  # its Acquire is under way
    one.end.disconnect()
    request.ticket.cancel()
    one.end.connect()
    hub.settle()
    while one.end.deliver_late():
        pass
    other = two.request()
    hub.settle()
    assert other.holds


def test_a_coordinator_that_lost_everything_is_told_again(hub) -> None:
    one, two = Gateway(hub, "g1", 2), Gateway(hub, "g2", 2)
    held = [one.request(), two.request()]
    hub.settle()
    waiting = [one.request(), two.request()]
    hub.settle()
    hub.restart()
    one.slots._look()  # a heartbeat: the answer is `stale`
    hub.settle()
    assert not waiting[0].holds  # calm: the other one has not said yet what it holds
    two.slots._look()
    hub.settle()
    assert all(request.holds for request in held)
    assert sorted(hub.room._leases) == ["g1:1", "g2:1"]
    hub.now += round(TTL * 400)
    held[0].end()
    hub.settle()
    assert sum(request.holds for request in waiting) == 1
    assert one.lost == two.lost == []


def test_who_stood_still_loses_what_was_given_to_others(hub) -> None:
    one, two = Gateway(hub, "g1", 1), Gateway(hub, "g2", 1)
    held = one.request()
    hub.settle()
    one.slots._pulse = one.clock.now
    waiting = two.request()
    hub.settle()
    # g1 stands still for longer than the TTL; g2's heartbeats go on
    for _ in range(4):
        hub.now += round(TTL * 300)
        two.clock.now += TTL * 0.3
        two.slots._look()
        hub.settle()
    assert waiting.holds
    one.clock.now += TTL * 1.2
    one.slots._beat()
    hub.settle()
    assert one.lost == [held.lease]
    assert held.lease.state is LeaseState.FREE
    held.end()
    held.lease.release()
    hub.settle()
    assert waiting.holds
    assert list(hub.room._leases) == ["g2:1"]


def test_who_stood_still_keeps_what_nobody_wanted(hub) -> None:
    one, two = Gateway(hub, "g1", 2), Gateway(hub, "g2", 2)
    held = one.request()
    hub.settle()
    one.slots._pulse = one.clock.now
    for _ in range(4):
        hub.now += round(TTL * 300)
        two.clock.now += TTL * 0.3
        two.slots._look()
        hub.settle()
    assert hub.room._leases == {}
    one.clock.now += TTL * 1.2
    one.slots._beat()
    hub.settle()
    assert held.holds
    assert one.lost == []
    assert list(hub.room._leases) == ["g1:1"]


def test_a_grant_read_after_a_stall_is_not_believed(hub) -> None:
    one, two = Gateway(hub, "g1", 1), Gateway(hub, "g2", 1)
    held = two.request()
    hub.settle()
    waiting = one.request()
    hub.settle()
    one.slots._pulse = one.clock.now
    held.end()
    two.end.deliver_up()  # granted to g1: the notice lies in its socket
    after = two.request()
    for _ in range(4):
        hub.now += round(TTL * 300)
        two.clock.now += TTL * 0.3
        two.slots._look()
        while two.end.deliver_up() | two.end.deliver_down():
            pass
    assert after.holds
    one.clock.now += TTL * 1.2
    hub.settle()
    assert waiting.grants == 0
    after.end()
    hub.settle()
    assert waiting.holds


def test_alone_a_gateway_has_its_share_and_what_it_held(hub) -> None:
    one, two = Gateway(hub, "g1", 5), Gateway(hub, "g2", 5)
    one.slots._look()
    hub.settle()
    for gateway in (one, two):
        gateway.end.disconnect()
        for _ in range(6):
            gateway.request()
        assert gateway.slots.statistics().held == 0
        gateway.slots._go_alone()
    assert [gateway.slots.statistics().held for gateway in (one, two)] == [3, 2]  # the lower id has the rest
    one.requests[0].end()
    assert one.slots.statistics().held == 3
    assert one.slots.statistics() == SlotStatistics(slots=5, held=3, draining=0, free=0, waiting=2)
    for gateway in (one, two):
        gateway.end.connect()
    hub.settle()
    assert not one.slots.alone
    assert len(hub.room._leases) == 5  # calm: nobody was granted before both had told
    hub.now += round(TTL * 400)
    one.slots._look()
    hub.settle()
    assert len(hub.room._leases) == 5
    assert len(hub.room._waiting) == 6
    for gateway in (one, two):
        for request in gateway.requests:
            request.end()
            hub.settle()
    assert hub.room._leases == {}


def test_what_was_granted_while_the_register_was_under_way_is_told_too(hub) -> None:
    one = Gateway(hub, "g1", 2)
    Gateway(hub, "g2", 2)
    one.slots._look()
    hub.settle()
    one.end.disconnect()
    one.slots._go_alone()
    one.end.connect()
    request = one.request()
    assert request.holds  # by its own share: nothing was answered yet
    hub.settle()
    assert list(hub.room._leases) == ["g1:1"]
    assert request.grants == 1
    request.end()
    hub.settle()
    assert hub.room._leases == {}


def test_closed_refuses_while_the_coordinator_is_gone(hub) -> None:
    one = Gateway(hub, "g1", 1, policy="closed")
    held, waiting = one.request(), one.request()
    hub.settle()
    one.end.disconnect()
    one.slots._go_alone()
    assert waiting.displaced
    assert held.holds
    assert one.slots.closed
    assert one.slots.would_refuse()
    with pytest.raises(CoordinatorGoneError):
        one.request()
    held.end()
    one.end.connect()
    hub.settle()
    assert not one.slots.closed
    again = one.request()
    hub.settle()
    assert again.holds


def test_alone_by_its_own_share_it_is_not_closed(hub) -> None:
    one = Gateway(hub, "g1", 1)
    one.end.disconnect()
    one.slots._go_alone()
    assert not one.slots.closed


def test_a_coordinator_that_is_back_in_a_moment_is_no_warning(hub) -> None:
    """Workers that stop drain for a while: the one that served the others is only the first to go."""
    one = Gateway(hub, "g1", 1)
    with structlog.testing.capture_logs() as logs:
        one.end.disconnect()
        one.end.connect()
        hub.settle()
        assert {entry["log_level"] for entry in logs} == {"debug"}
        assert [entry["event"] for entry in logs] == ["coordinator_down", "coordinator_up"]
        logs.clear()
        one.end.disconnect()
        one.slots._go_alone()
        one.slots._go_alone()  # another connection that did not answer
        one.end.connect()
        hub.settle()
    told = [(entry["event"], entry["log_level"]) for entry in logs if entry["log_level"] != "debug"]
    assert told == [("without_coordinator", "warning"), ("coordinator_up", "info")]


def test_expected_wait_is_of_the_whole_queue(hub) -> None:
    one, two = Gateway(hub, "g1", 1), Gateway(hub, "g2", 1)
    one.has_served(10.0)
    assert one.slots.expected_wait() == 0.0
    for _ in range(3):
        two.request()
    hub.settle()
    one.request()
    hub.settle()
    assert one.slots.expected_wait() == pytest.approx(40.0)  # three ahead, and one that runs
    assert one.slots.expected_wait(0) == pytest.approx(10.0)


def test_expected_wait_of_a_place_is_of_the_whole_queue_too(hub) -> None:
    """Positions are of this gateway's own part: each has as many of the others' before it as are its part."""
    one, two = Gateway(hub, "g1", 2), Gateway(hub, "g2", 2)
    one.has_served(10.0)
    for _ in range(4):
        two.request("a")
        two.request("b")
        one.request("a")
    hub.settle()
    one.slots._look()
    hub.settle()
    here, everywhere = one.slots.statistics().waiting, hub.room._waiting
    assert (here, len(everywhere)) == (3, 10)
    waits = [one.slots.expected_wait(position) for position in range(here)]
    assert waits == pytest.approx([5.0, 20.0, 35.0])
    assert one.slots.expected_wait(share="a") == pytest.approx(55.0)  # as one at the end of all


def test_while_no_lease_has_ended_those_that_are_held_tell_of_the_wait(hub) -> None:
    one = Gateway(hub, "g1", 1)
    one.request()
    hub.settle()
    one.clock.now += 30.0
    assert one.slots.expected_wait() == pytest.approx(30.0)


async def test_who_leaves_gives_everything_back(hub) -> None:
    one, two = Gateway(hub, "g1", 1), Gateway(hub, "g2", 1)
    held, waiting = one.request(), two.request()
    hub.settle()
    await one.slots.aclose()
    hub.settle()
    assert waiting.holds
    held.end()  # too late to matter
    assert list(hub.room._gateways) == ["g2"]


class SharedSlotsMachine(RuleBasedStateMachine):
    """Three gateways and one room; messages, cancels, ends, losses and limits in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = Hub()
        self.limit = 3
        self.gateways = [Gateway(self.hub, f"g{number}", 3) for number in range(2)]
        self.gateways.append(Gateway(self.hub, "g2", 5, guess=True))
        self.peak = 3  # the highest limit since the holders were last within it

    def _live(self):
        return [r for g in self.gateways for r in g.requests if not r.displaced]

    @rule(gateway=st.integers(0, 2), share=st.sampled_from("abc"))
    def request(self, gateway, share) -> None:
        self.gateways[gateway].request(share)

    @rule(gateway=st.integers(0, 2), choose=st.integers(0, 50))
    def end(self, gateway, choose) -> None:
        requests = self.gateways[gateway].requests
        if requests:
            requests.pop(choose % len(requests)).end()

    @rule(gateway=st.integers(0, 2), choose=st.integers(0, 50))
    def drain(self, gateway, choose) -> None:
        held = [request for request in self.gateways[gateway].requests if request.holds]
        if held:
            held[choose % len(held)].lease.drain(until=1.0)

    @rule(gateway=st.integers(0, 2))
    def expire(self, gateway) -> None:
        self.gateways[gateway].slots.expire(2.0)

    @rule(gateway=st.integers(0, 2), up=st.booleans())
    def deliver(self, gateway, up) -> None:
        end = self.gateways[gateway].end
        end.deliver_up() if up else end.deliver_down()

    @rule(gateway=st.integers(0, 2))
    def deliver_late(self, gateway) -> None:
        self.gateways[gateway].end.deliver_late()

    @rule(gateway=st.integers(0, 2))
    def beat(self, gateway) -> None:
        self.gateways[gateway].slots._look()

    @rule(gateway=st.integers(0, 2))
    def connection(self, gateway) -> None:
        end = self.gateways[gateway].end
        end.disconnect() if end.up else end.connect()

    @rule(limit=st.integers(1, 5), gateway=st.integers(0, 2))
    def set_limit(self, limit, gateway) -> None:
        gateway = self.gateways[gateway]
        if gateway.end.up:
            self.hub.settle()
            gateway.slots.set_slots(limit)
            self.hub.settle()
            self.limit = limit
            self.peak = max(self.peak, limit)

    @precondition(lambda self: all(gateway.end.up for gateway in self.gateways))
    @rule()
    def restart(self) -> None:
        self.hub.restart()
        for gateway in self.gateways:
            gateway.end.disconnect()
            gateway.end.late.clear()
            gateway.end.connect()
            while gateway.end.deliver_up():
                pass
        self.hub.now += round(TTL * 400)
        self.gateways[0].slots._look()
        self.hub.settle()

    @invariant()
    def never_more_than_the_limit(self) -> None:
        held = sum(len(gateway.slots.leases()) for gateway in self.gateways)
        # Granted before the limit was lowered, and not heard of yet: it counts from its grant.
        if max(held, len(self.hub.room._leases)) <= self.limit:
            self.peak = self.limit
        assert held <= self.peak

    @invariant()
    def nobody_is_served_twice(self) -> None:
        assert all(request.grants <= 1 for request in self._live())

    def teardown(self) -> None:
        """Once everything is delivered, both sides agree and nobody waits beside a free slot."""
        for gateway in self.gateways:
            while gateway.end.deliver_late():
                pass
            if not gateway.end.up:
                gateway.end.connect()
        self.hub.now += round(TTL * 400)
        for gateway in self.gateways:
            gateway.slots._look()
        self.hub.settle()
        room = self.hub.room
        held = {key for gateway in self.gateways for key in gateway.slots._held}
        waiting = {key for gateway in self.gateways for key in gateway.slots._tickets}
        assert set(room._leases) == held
        assert set(room._waiting) == waiting
        assert not waiting or len(held) >= self.limit
        for gateway in self.gateways:
            assert gateway.lost == []
            assert sum(r.holds for r in gateway.requests) <= len(gateway.slots.leases())
            for request in gateway.requests:
                request.end()
            for lease in gateway.slots.leases():
                lease.release()
        for _ in range(100):
            self.hub.settle()
            for gateway in self.gateways:
                for lease in gateway.slots.leases():
                    lease.release()
        assert room._leases == {}
        assert room._waiting == {}
        for gateway in self.gateways:
            slots = gateway.slots
            assert (slots._held, slots._tickets, slots._ticket_keys, slots._priorities) == ({}, {}, {}, {})
            assert slots._lease_keys == {}
            assert not slots._unanswered


TestSharedSlotsMachine = SharedSlotsMachine.TestCase
TestSharedSlotsMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
