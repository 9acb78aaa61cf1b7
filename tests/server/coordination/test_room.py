"""What a gateway leaves behind: used for as long as its server works on, then free, and nobody's."""

from __future__ import annotations

import pytest

from antiphon.server.coordination.protocol import Acquire, Claim, Leave, Notice, Register, Release, Renew
from antiphon.server.coordination.room import Room

TTL = 6000


class Stage:
    """A room with two gateways: `g1` has the only slot and lingers for 5000, `g2` waits for it."""

    def __init__(self, linger: int = 5000) -> None:
        self.room = Room(born="b", calm=300)
        self.say("g1", Register(limit=1, linger=linger), now=0)
        self.say("g2", Register(limit=1), now=0)
        assert self.say("g1", Acquire(Claim("g1:1", "a")), now=0).granted == ["g1:1"]
        assert self.say("g1", Acquire(Claim("g1:2", "a")), now=0).granted == []
        assert self.say("g2", Acquire(Claim("g2:1", "b")), now=0).granted == []

    def say(self, gateway: str, operation, now: int, epoch: int = 1):
        return self.room.apply(gateway, epoch, TTL, operation, now)[0]


def test_the_lease_of_a_dropped_gateway_lingers_and_its_waiters_do_not() -> None:
    stage = Stage()
    assert stage.room.drop("g1", 1, now=100) == {}
    assert stage.room.due(100) == 5000
    answer = stage.say("g2", Renew(), now=200)
    assert (answer.used, answer.waiting, answer.gateways, answer.again) == (1, 1, 1, 4900)
    assert stage.room.sweep(5099) == {}
    assert stage.room.due(5099) == 1
    assert stage.room.sweep(5100) == {"g2": Notice(granted=["g2:1"])}
    assert stage.room.due(5100) is None


def test_any_operation_after_its_time_frees_it_too() -> None:
    stage = Stage()
    stage.room.drop("g1", 1, now=100)
    stage.say("g2", Renew(), now=3000)
    assert stage.say("g2", Renew(), now=5100).granted == ["g2:1"]


def test_without_a_linger_it_is_free_at_once() -> None:
    stage = Stage(linger=0)
    assert stage.room.drop("g1", 1, now=100) == {"g2": Notice(granted=["g2:1"])}
    assert stage.room.due(100) is None


def test_the_last_word_on_it_counts() -> None:
    stage = Stage(linger=0)
    stage.say("g1", Renew(linger=700), now=50)
    stage.room.drop("g1", 1, now=100)
    assert stage.room.due(100) == 700


@pytest.mark.parametrize(("linger", "granted"), [(0, ["g2:1"]), (400, [])])
def test_who_leaves_says_how_long(linger, granted) -> None:
    stage = Stage()
    stage.say("g1", Leave(linger), now=100)
    assert stage.say("g2", Renew(), now=499).granted == []
    assert [key for key in stage.room._leases if key in granted] == granted
    assert stage.say("g2", Renew(), now=500).used == 1
    assert list(stage.room._leases) == ["g2:1"]


def test_a_gateway_that_comes_back_has_its_lease_again() -> None:
    stage = Stage()
    stage.room.drop("g1", 1, now=100)
    answer = stage.say("g1", Register(limit=1, past="b", leases=[Claim("g1:1", "a")]), now=200, epoch=2)
    assert (answer.lost, answer.used) == ([], 1)
    assert stage.room.due(200) is None
    stage.say("g2", Renew(), now=2600)
    assert stage.say("g2", Renew(), now=5200).granted == []  # it is held, not lingering
    assert stage.say("g1", Release(["g1:1"]), now=5300, epoch=2).used == 1
    assert list(stage.room._leases) == ["g2:1"]


def test_what_it_released_meanwhile_is_free_when_it_comes_back() -> None:
    stage = Stage()
    stage.room.drop("g1", 1, now=100)
    stage.say("g1", Register(limit=1, past="b"), now=200, epoch=2)
    assert list(stage.room._leases) == ["g2:1"]


def test_while_it_is_calm_nothing_that_lingers_is_freed() -> None:
    stage = Stage(linger=100)
    stage.room.drop("g1", 1, now=100)
    stage.say("g2", Renew(), now=5000)  # nobody was heard for more than half a TTL: calm for 0.4 of it
    assert stage.room.sweep(5001) == {}
    assert stage.room.due(5001) == 2399
    assert stage.room.sweep(7400) == {"g2": Notice(granted=["g2:1"])}


def test_the_next_room_begins_with_what_was_left_behind() -> None:
    stage = Stage()
    assert stage.room.orphans("g1") == (1, 5000)
    assert stage.room.orphans("g2") == (0, 0)  # its server gives up what it is told to
    stage.room.drop("g1", 1, now=100)
    assert stage.room.orphans("g2") == (1, 5000)
    fresh = Room(born="c", calm=300)
    fresh.inherit(1, 5000, now=150)
    stage.room = fresh
    stage.say("g2", Register(limit=1, past="b", waiting=[Claim("g2:1", "b")]), now=160)
    assert stage.say("g2", Renew(), now=1000).used == 1
    assert stage.say("g2", Renew(), now=3000).again == 2150
    assert stage.say("g2", Renew(), now=5150).granted == ["g2:1"]
