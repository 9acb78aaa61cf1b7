"""What a request may still try: attempts, the shared budget, fallback models once each."""

from __future__ import annotations

import pytest
from msgspec import structs

from antiphon.config import Fallbacks, RetrySettings
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.dialects.quirks import by_name
from antiphon.core.failover import ROWS, Verdict
from antiphon.server.plan import ANYWHERE, Aim, Plan
from antiphon.server.retries import Retries
from antiphon.server.retry_budget import RetryBudget
from antiphon.server.routing import Route, Target

BROKEN, OVERFLOW, INVALID, LOADING = (ROWS[row] for row in ("reset", "overflow", "invalid", "loading"))


def plan(name: str = "m", **fallbacks: str) -> Plan:
    target = Target("up", by_name("generic"), name)
    chat = ChatRequest(b"{}", (), (), (), 1, frozenset(), {})
    return Plan("m", name, True, Route(name, (target,), fallbacks=Fallbacks(**fallbacks)), target, chat)


def retries(attempts: int = 2, budget: RetryBudget | None = None) -> Retries:
    return Retries(RetrySettings(attempts=attempts), budget or RetryBudget(per_second=0), clock=lambda: 0.0)


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_attempts_are_counted_with_the_first(attempts):
    tries = retries(attempts)
    for _ in range(attempts - 1):
        assert tries.after(BROKEN, plan(), others=True) == ANYWHERE
    assert tries.after(BROKEN, plan(), others=True) is None


def test_without_another_target_there_is_no_other_attempt():
    assert retries(5).after(BROKEN, plan(), others=False) is None


def test_what_no_target_can_mend_goes_nowhere():
    assert (
        retries(5).after(INVALID, plan(failed="big", overloaded="big", overflow="big"), others=True) is None
    )


def test_another_target_comes_before_another_model():
    tries, wish = retries(2), plan(failed="big")
    assert tries.after(BROKEN, wish, others=True) == ANYWHERE
    assert tries.after(BROKEN, wish, others=True) == Aim(model="big")


def test_what_only_another_model_mends_goes_there_at_once():
    assert retries(5).after(OVERFLOW, plan(overflow="long"), others=True) == Aim(model="long")


@pytest.mark.parametrize("why", ["overflow", "overloaded", "failed"])
def test_each_kind_of_failure_has_its_own_model(why):
    wish = plan(overflow="long", overloaded="spare", failed="other")
    verdict = Verdict(elsewhere=True, finding=None, fallback=why)
    expected = {"overflow": "long", "overloaded": "spare", "failed": "other"}[why]
    assert retries(1).after(verdict, wish, others=False) == Aim(model=expected)
    assert retries(1).after(verdict, structs.replace(plan()), others=False) is None


def test_another_model_starts_with_nobody_who_failed():
    tries = retries()
    tries.failed |= {"a", "b"}
    tries.after(LOADING, plan(overloaded="spare"), others=False)
    assert tries.failed == set()


def test_models_that_name_one_another_in_a_circle_end():
    tries = retries()
    assert tries.instead("failed", plan("m", failed="n")) == Aim(model="n")
    assert tries.instead("failed", plan("n", failed="o")) == Aim(model="o")
    assert tries.instead("failed", plan("o", failed="m")) is None
    assert tries.instead("failed", plan("o", failed="o")) is None


def test_a_model_that_planning_went_past_is_not_aimed_at_again():
    """`n` is too small for this prompt, so the plan was made for `long`."""
    tries = retries()
    assert tries.instead("failed", plan("m", failed="n")) == Aim(model="n")
    assert tries.instead("failed", plan("long", failed="n")) is None


def test_every_further_attempt_is_paid_for():
    budget = RetryBudget(per_request=0, per_second=0, ceiling=2)
    assert retries(5, budget).after(BROKEN, plan(), others=True) == ANYWHERE
    assert retries(5, budget).after(BROKEN, plan(failed="big"), others=False) == Aim(model="big")
    assert retries(5, budget).after(BROKEN, plan(), others=True) is None
    assert retries(5, budget).after(BROKEN, plan(failed="big"), others=False) is None
    assert budget.statistics(0.0).spent == 2


def test_what_leads_nowhere_costs_nothing():
    budget = RetryBudget(per_request=0, per_second=0, ceiling=2)
    tries = retries(1, budget)
    tries.after(BROKEN, plan(), others=True)
    tries.after(INVALID, plan(failed="big"), others=True)
    tries.instead("failed", plan())
    tries.instead("failed", plan(failed="m"))
    assert budget.statistics(0.0).balance == 2


def test_an_empty_budget_forgets_nobody_who_failed():
    budget = RetryBudget(per_request=0, per_second=0, ceiling=1)
    budget.spend(0.0)
    tries = retries(2, budget)
    tries.failed.add("a")
    assert tries.instead("failed", plan(failed="big")) is None
    assert tries.failed == {"a"}
