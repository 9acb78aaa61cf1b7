"""The order in which targets are asked: free, then cheap, then home; and what that brings a fleet."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from antiphon.server.placement import HOME, SMALL, STEP, Candidate, order

BIG = 10 * SMALL


def names(candidates, key=b""):
    return [one.name for one in order(candidates, key)]


def target(name, **facts):
    return Candidate(**{"name": name, "free": 4, "total": BIG, **facts})


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("a free slot before a warm queue", {"load": 0.9}, {"free": 0, "warm": BIG}),
        ("warm before cold", {"warm": BIG}, {}),
        ("the warmer", {"warm": BIG // 2}, {"warm": BIG // 4}),
        ("warm and busy before cold and idle", {"warm": BIG, "load": 0.8}, {"load": 0.0}),
        ("spills over where less is warm than the load differs", {"load": 0.0}, {"warm": BIG // 2, "load": 0.8}),
        ("less loaded", {"load": 0.25}, {"load": 0.5}),
        ("by share of weight", {"load": 0.6, "weight": 4.0}, {"load": 0.4}),
        ("a shorter queue", {"free": 0, "load": 1.125}, {"free": 0, "load": 1.5}),
        ("a long queue costs more than the prompt", {"free": 0, "load": 1.0}, {"free": 0, "warm": BIG, "load": 2.5}),
        ("a short one does not", {"free": 0, "warm": BIG, "load": 1.5}, {"free": 0, "load": 1.0}),
        ("the hint, of equals", {"hint": True}, {}),
        ("the hint is no reason to wait", {"load": 0.25}, {"load": 0.5, "hint": True}),
        ("on trial", {"load": 0.5}, {"penalty": 1.0}),
        ("a small prompt is no reason to crowd", {"total": 800}, {"total": 800, "warm": 800, "load": 0.25}),
        ("more is warm than there is", {"load": 0.0, "warm": BIG}, {"load": 0.25, "warm": 9 * BIG}),
        ("nothing is known of the prompt", {"total": 0, "load": 0.1}, {"total": 0, "load": 0.5}),
    ],
)  # fmt: skip
def test_who_is_first(case, first, second):
    one, other = target("one", **first), target("other", **second)
    assert names([one, other]) == names([other, one]) == ["one", "other"], case
    # and not by its name
    one, other = structs.replace(one, name="other"), structs.replace(other, name="one")
    assert names([one, other]) == ["other", "one"], case


def test_one_or_none():
    only = target("a")
    assert order([only]) == [only]
    assert order([]) == []


def keys(count):
    return [b"session %d" % number for number in range(count)]


def test_a_new_session_goes_home_and_its_next_turn_too():
    fleet = [target(f"gpu-{number}") for number in range(8)]
    for key in keys(20):
        home = names(fleet, key)[0]
        assert names(reversed(fleet), key)[0] == home  # another gateway, another order
        busier = [structs.replace(one, load=HOME - STEP if one.name == home else 0.0) for one in fleet]
        assert names(busier, key)[0] == home
        crowded = [structs.replace(one, load=HOME + 2 * STEP if one.name == home else 0.0) for one in fleet]
        assert names(crowded, key)[0] != home
        elsewhere = next(one.name for one in fleet if one.name != home)
        known = [structs.replace(one, warm=BIG if one.name == elsewhere else 0) for one in fleet]
        assert names(known, key)[0] == elsewhere
        gone = [one for one in fleet if one.name != elsewhere]
        assert names(gone, key)[0] == home  # nobody else moves when one leaves


def test_homes_are_spread_by_weight():
    fleet = [target("light"), target("heavy", weight=3.0), target("other")]
    homes = Counter(names(fleet, key)[0] for key in keys(1000))
    assert 500 < homes["heavy"] < 700
    assert 150 < homes["light"] < 250


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.text("abc", min_size=1, max_size=3),
        free=st.integers(-2, 8),
        load=st.floats(0, 4),
        weight=st.floats(0.01, 100),
        warm=st.integers(0, BIG),
        total=st.integers(0, BIG),
        hint=st.booleans(),
        penalty=st.floats(0, 10),
    ),
    max_size=9,
)


@given(CANDIDATES, st.binary(max_size=16), st.randoms())
def test_nobody_is_lost_or_doubled_and_the_order_in_which_they_come_is_nothing(candidates, key, chance):
    ordered = order(candidates, key)
    assert Counter(map(repr, ordered)) == Counter(map(repr, candidates))
    free = [one.free > 0 for one in ordered]
    assert free == sorted(free, reverse=True)
    shuffled = list(candidates)
    chance.shuffle(shuffled)
    if len({one.name for one in candidates}) == len(candidates):
        assert order(shuffled, key) == ordered


# --- on the bench's fleet, in simulated time ---


@pytest.fixture(scope="module")
def affinity():
    bench = str(Path(__file__).parents[2] / "bench")
    sys.path.insert(0, bench)
    try:
        import affinity
    finally:
        sys.path.remove(bench)
    return affinity


@pytest.fixture(scope="module")
def results(affinity):
    return affinity.every(affinity.BASE)


def test_twice_the_cached_tokens_of_round_robin_at_no_worse_p95(affinity, results):
    times, slower = affinity.claim(results)
    assert times >= 2
    assert slower <= 1
    least, ours = results["least loaded"], results["prefix affinity"]
    assert ours.cached >= 2 * least.cached
    assert ours.first_p95 <= least.first_p95
    assert ours.cached <= ours.possible
    assert affinity.picture(results).count("<svg") == 1


def test_the_same_seed_is_the_same_fleet(affinity, results):
    assert affinity.simulate(affinity.BASE, affinity.RoundRobin) == results["round robin"]


def test_gateways_that_know_nothing_of_each_other_meet(affinity, results):
    four = affinity.simulate(replace(affinity.BASE, gateways=4), affinity.Affinity)
    assert four.cached > 0.9 * results["prefix affinity"].cached


def test_a_hot_prompt_spills_over(affinity):
    """Everybody has one system prompt, which is most of what they send: it may not all go to one replica."""
    hot = replace(affinity.BASE, shared=8000, prompts=1, sessions=100)
    ours, plain = (affinity.simulate(hot, policy) for policy in (affinity.Affinity, affinity.RoundRobin))
    assert ours.busiest < 2
    assert ours.first_p95 <= plain.first_p95
    assert ours.cached > plain.cached
