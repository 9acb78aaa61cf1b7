"""Turned away before the body is read: only who would be refused anyway, and nobody's place is touched."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.config import Fallbacks
from antiphon.core import own_faults
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.server.admission import QueueFullError, Slots
from antiphon.server.routing import Route, RouteTable, Target
from antiphon.server.turnstile import TurnedAway, turned_away

QUIRKS = by_name("generic")


class Upstream:
    """One slot that is taken, and `waiting` of share `flood` behind it in a queue of two."""

    def __init__(self, *, waiting: int = 2, down: Fault | None = None, hold: float = 0.0) -> None:
        self.now = 0.0
        self.slots = Slots("up", 1, queue_limit=2, clock=lambda: self.now)
        if hold:
            self.slots.request("before", lambda lease: self._held(lease, hold))
        self.slots.request("holder", lambda lease: None, share="flood")
        for number in range(waiting):
            self.slots.request(f"w{number}", lambda lease: None, share="flood")
        self._down = down

    def _held(self, lease, seconds: float) -> None:
        self.now += seconds
        lease.active = True
        lease.release()

    def refusal(self) -> Fault | None:
        return self._down


def table(*upstreams: str, model: str = "*", fallbacks: Fallbacks = Fallbacks()) -> RouteTable:
    targets = tuple(Target(name, QUIRKS) for name in upstreams)
    return RouteTable((Route(model, targets, fallbacks=fallbacks),))


def body(**fields) -> list[bytes]:
    whole = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "model": "m", "stream": True}
    return [json.dumps({**whole, **fields}).encode()]


def ask(sent: list[bytes], routes: RouteTable | None = None, *, share="flood", patience=600.0, **upstreams):
    upstreams = upstreams or {"up": Upstream()}
    routes = routes or table(*upstreams)
    return turned_away(sent, routes, upstreams, share=share, patience=patience)


def test_a_full_queue() -> None:
    assert ask(body()) == TurnedAway(own_faults.queue_full(0), "m", "up", streaming=True)
    assert ask(body(stream=False)) == TurnedAway(own_faults.queue_full(0), "m", "up", streaming=False)


def test_a_place_in_the_queue_or_a_slot() -> None:
    assert ask(body(), up=Upstream(waiting=1)) is None
    assert ask(body(), share="calm") is None  # somebody of the flood gives way


def test_a_wait_that_is_longer_than_the_client_has_patience() -> None:
    up = Upstream(waiting=1, hold=10.0)
    assert ask(body(), up=up, patience=19.0) == TurnedAway(own_faults.queue_timeout(20), "m", "up", True)
    assert ask(body(), up=up, patience=20.0) is None


def test_slots_that_let_nobody_in_whatever_is_free() -> None:
    class Closed(Slots):
        closed = True

    shut, full = Upstream(), Upstream()
    shut.slots = Closed("shut", 1)
    assert ask(body(), up=shut) == TurnedAway(own_faults.COORDINATOR_GONE, "m", "up", streaming=True)
    # The full one would take somebody later: its words are the ones that help.
    assert ask(body(), table("one"), one=full, two=shut).fault == own_faults.queue_full(0)
    assert ask(body(), one=shut, two=Upstream(waiting=1)) is None


def test_the_body_may_come_in_pieces_and_the_model_last() -> None:
    (whole,) = body(model="last")
    assert ask([whole[:20], whole[20:40], whole[40:]]).model == "last"


def test_no_byte_is_read_while_somebody_may_be_served() -> None:
    assert ask([b"\xff not JSON"], up=Upstream(waiting=0)) is None


@pytest.mark.parametrize(
    "sent",
    [
        [b""],
        [b"\xff"],
        [b"{"],
        [b'{"model": 5}'],
        [b'{"messages": []}'],
        [b'{"model": "\xff"}'],
        [b"[" * 100_000],
        [b'{"messages":' + b"[" * 100_000],
        body(max_tokens=0),  # needs no slot
        body(max_tokens="many"),
    ],
)
def test_what_is_told_better_by_whoever_reads_all_of_it(sent) -> None:
    assert ask(sent) is None


def test_a_model_that_nobody_serves() -> None:
    assert ask(body(), table("up", model="other")) is None


def test_a_model_that_this_key_may_not_use() -> None:
    turned = turned_away(
        body(), table("up"), {"up": Upstream()}, share="flood", patience=600.0, allowed=lambda model: False
    )
    assert turned is None


def test_a_model_with_fallbacks_may_be_served_by_another() -> None:
    assert ask(body(), table("up", fallbacks=Fallbacks(overloaded="small"))) is None


def test_every_target_must_have_no_place() -> None:
    full, free = Upstream(), Upstream(waiting=1)
    assert ask(body(), one=full, two=free) is None
    assert ask(body(), one=full, two=Upstream()).upstream == "one"
    assert ask(body(), table("one"), one=full, two=free).fault.kind == "overloaded_error"
    assert ask(body(), table("two"), one=full, two=free) is None


def test_a_target_whose_server_is_down_is_told_by_the_exchange() -> None:
    down = Upstream(down=own_faults.UPSTREAM_RESTARTING)
    assert ask(body(), one=Upstream(), two=down) is None


def test_full_here_and_slow_there_is_a_place_to_wait() -> None:
    full, slow = Upstream(), Upstream(waiting=1, hold=100.0)
    assert ask(body(), one=full, two=slow, patience=5.0) is None


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1.0, 2.5])), max_size=12))
def test_it_refuses_exactly_whom_the_queue_would_refuse(arrivals) -> None:
    slots = Slots("up", 2, queue_limit=4)
    up = Upstream()
    up.slots = slots
    for number, (share, weight) in enumerate(arrivals):
        before = slots.statistics(), [ticket.owner for ticket in slots.waiting()]
        turned = turned_away(body(), table("up"), {"up": up}, share=share, weight=weight, patience=600.0)
        assert (slots.statistics(), [ticket.owner for ticket in slots.waiting()]) == before
        try:
            slots.request(str(number), lambda lease: None, share=share, weight=weight)
        except QueueFullError:
            assert turned is not None
        else:
            assert turned is None
