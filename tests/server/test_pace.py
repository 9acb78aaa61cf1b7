"""Slower than usual: seen, weighed, forgotten; and never seen where it is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.server.pace import ENOUGH, HALF_LIFE, Pace


def settled(seconds=0.4, answers=30):
    pace = Pace()
    for number in range(answers):
        pace.record(float(number), seconds)
    return pace, float(answers)


def test_as_usual_there_is_no_penalty():
    pace, now = settled()
    assert pace.penalty(now) == 0.0


def test_nothing_is_usual_before_there_are_enough():
    pace = Pace()
    for number in range(ENOUGH - 1):
        pace.record(0.0, 0.1 if number < 3 else 30.0)
    assert pace.penalty(0.0) == 0.0


def test_one_outlier_is_mild_and_several_are_not():
    pace, now = settled()
    pace.record(now, 6.4)
    once = pace.penalty(now)
    for _ in range(10):
        pace.record(now, 6.4)
    assert once < 0.2
    assert pace.penalty(now) > 0.5


def test_twice_as_slow_is_tolerated():
    pace, now = settled(0.4)
    for _ in range(10):
        pace.record(now, 0.79)
    assert pace.penalty(now) == 0.0


def test_noise_below_a_twentieth_of_a_second_is_none():
    pace, now = settled(0.001)
    for _ in range(10):
        pace.record(now, 0.05)
    assert pace.penalty(now) == 0.0


def test_it_fades_while_nothing_comes_so_that_the_server_gets_another_chance():
    pace, now = settled()
    for _ in range(10):
        pace.record(now, 6.4)
    before = pace.penalty(now)
    assert pace.penalty(now + HALF_LIFE) == pytest.approx(before / 2)
    pace.record(now + 20 * HALF_LIFE, 0.4)
    assert pace.penalty(now + 20 * HALF_LIFE) == 0.0


def test_what_stays_slow_becomes_usual():
    pace, now = settled()
    for _ in range(300):
        pace.record(now, 6.4)
    assert pace.penalty(now) == 0.0


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e6)), max_size=80), st.floats(0, 1e4))
def test_the_penalty_is_a_share(answers, later):
    pace, now = Pace(), 0.0
    for passed, seconds in answers:
        now += passed
        pace.record(now, seconds)
        assert 0.0 <= pace.penalty(now) <= 1.0
    assert 0.0 <= pace.penalty(now + later) <= pace.penalty(now)
