"""For how long a share that had no place in the queue of all is believed to have none."""

from __future__ import annotations

import pytest

from antiphon.server.coordination.turned_down import LONGEST, PART, TurnedDown
from antiphon.server.fairness import Priority

NOW = 1000.0
URGENT, OTHER = Priority.INTERACTIVE, Priority.BACKGROUND


@pytest.mark.parametrize(
    ("drains_in", "believed"),
    [(0.2, 0.2 * PART), (0.9, 0.9 * PART), (8.0, LONGEST), (3600.0, LONGEST)],
)
def test_for_half_of_what_a_full_queue_takes_and_half_a_second_at_most(drains_in, believed) -> None:
    shares = TurnedDown()
    assert not shares.holds("s", URGENT, NOW)
    shares.note("s", URGENT, NOW, drains_in)
    assert shares.holds("s", URGENT, NOW)
    assert shares.holds("s", URGENT, NOW + 0.99 * believed)
    assert not shares.holds("s", URGENT, NOW + 1.01 * believed)


def test_other_shares_are_not_concerned() -> None:
    shares = TurnedDown()
    shares.note("s", URGENT, NOW, 8.0)
    assert not shares.holds("t", URGENT, NOW)
    assert not shares.holds("", URGENT, NOW)


def test_where_it_is_not_known_how_long_a_queue_takes_nothing_is_believed() -> None:
    shares = TurnedDown()
    shares.note("s", URGENT, NOW, 0.0)
    assert not shares.holds("s", URGENT, NOW)
    shares.note("s", URGENT, NOW, 8.0)
    shares.note("s", URGENT, NOW + 0.1, 0.0)  # the last word counts
    assert not shares.holds("s", URGENT, NOW + 0.1)


def test_it_is_believed_anew_with_each_answer() -> None:
    shares = TurnedDown()
    shares.note("s", URGENT, NOW, 8.0)
    shares.note("s", URGENT, NOW + 0.4, 8.0)
    assert shares.holds("s", URGENT, NOW + 0.8)
    assert not shares.holds("s", URGENT, NOW + 0.95)


def test_what_is_over_is_not_kept() -> None:
    """A client may name a new session with every request."""
    shares = TurnedDown()
    for number in range(1000):
        shares.note(f"s{number}", URGENT, NOW + number, 8.0)
    assert list(shares._until) == [("s999", URGENT)]


def test_what_is_not_over_is_kept() -> None:
    shares = TurnedDown()
    shares.note("slow", URGENT, NOW, 8.0)
    shares.note("quick", URGENT, NOW, 0.2)
    shares.note("later", URGENT, NOW + 0.2, 8.0)
    assert [share for share, _ in shares._until] == ["slow", "later"]


def test_what_an_urgent_one_had_not_no_other_has() -> None:
    """But an urgent one may have the place of another of its own share."""
    shares = TurnedDown()
    shares.note("s", URGENT, NOW, 8.0)
    assert shares.holds("s", OTHER, NOW)
    shares = TurnedDown()
    shares.note("s", OTHER, NOW, 8.0)
    assert shares.holds("s", OTHER, NOW)
    assert not shares.holds("s", URGENT, NOW)
