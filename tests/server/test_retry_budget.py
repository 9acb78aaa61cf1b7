"""The shared budget of further attempts: bursts are covered, storms are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.server.retry_budget import RetryBudget


def spend_all(budget, now):
    spent = 0
    while budget.spend(now):
        spent += 1
    return spent


def test_it_starts_full_and_is_bounded():
    budget = RetryBudget(ceiling=10)
    assert spend_all(budget, 0.0) == 10
    for _ in range(1000):
        budget.earn(0.0)
    assert spend_all(budget, 0.0) == 10


def test_five_requests_earn_one_attempt():
    budget = RetryBudget(per_request=0.2, per_second=0, ceiling=10)
    spend_all(budget, 0.0)
    for _ in range(4):
        budget.earn(0.0)
    assert not budget.spend(0.0)
    budget.earn(0.0)
    assert budget.spend(0.0)
    assert not budget.spend(0.0)


def test_time_earns_so_that_a_quiet_gateway_may_retry():
    budget = RetryBudget(per_request=0, per_second=0.5, ceiling=10, now=100.0)
    spend_all(budget, 100.0)
    assert not budget.spend(101.0)
    assert budget.spend(102.0)
    assert not budget.spend(102.0)
    assert spend_all(budget, 1000.0) == 10


def test_a_clock_that_is_a_moment_behind_takes_nothing_back():
    budget = RetryBudget(per_request=0, per_second=1, ceiling=2)
    spend_all(budget, 10.0)
    assert budget.spend(11.0)
    assert not budget.spend(9.0)
    assert not budget.spend(11.0)
    assert budget.spend(12.0)


def test_the_numbers():
    budget = RetryBudget(per_request=0.5, per_second=1, ceiling=2)
    spend_all(budget, 0.0)
    budget.earn(0.0)
    seen = budget.statistics(0.25)
    assert (seen.balance, seen.spent, seen.refused) == (0.75, 2, 1)
    assert budget.statistics(0.25) == seen


@pytest.mark.parametrize("wrong", [{"per_request": -1}, {"per_second": -0.1}, {"ceiling": 0.5}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError):
        RetryBudget(**wrong)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 20)), max_size=60))
def test_however_requests_fail_attempts_are_bounded(steps):
    """Every request wants to be tried again as often as it may."""
    budget = RetryBudget(per_request=0.2, per_second=1, ceiling=10)
    now, requests, spent = 0.0, 0, 0
    for passed, arrivals in steps:
        now += passed
        for _ in range(arrivals):
            requests += 1
            budget.earn(now)
            spent += spend_all(budget, now)
    assert spent <= 10 + 0.2 * requests + now + 1e-6
