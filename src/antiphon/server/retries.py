"""What one request may still try after an attempt has failed.

Owns the attempts of one request: who has failed it, how many are left, which fallback models it has been
through. What a failure means is core.failover's; the budget is shared by all requests, so that a storm of
failures does not become a storm of attempts.

    retries = Retries(settings.retries, budget, clock=time.monotonic)
    retries.after(verdict, plan, others=True)   -> ANYWHERE, Aim(model="big"), or None: that was all
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from antiphon.config import RetrySettings
from antiphon.core.failover import Fallback, Verdict
from antiphon.server.plan import ANYWHERE, Aim, Plan
from antiphon.server.retry_budget import RetryBudget


class Retries:
    """`clock` is monotonic, in seconds."""

    __slots__ = ("_budget", "_clock", "_left", "_names", "failed", "further")

    def __init__(self, settings: RetrySettings, budget: RetryBudget, *, clock: Callable[[], float]) -> None:
        self._left = settings.attempts - 1
        self._budget = budget
        self._clock = clock
        self._names: set[str] = set()  # models that it was planned for, or was to be
        self.failed: set[str] = set()  # upstreams that have failed it
        self.further: Counter[str] = Counter()  # attempts after the first: `elsewhere`, or a `Fallback`

    def after(self, verdict: Verdict, plan: Plan, *, others: bool) -> Aim | None:
        """Where to go on. `others`: this route has a target that has not failed the request yet."""
        if verdict.elsewhere and others and self._left > 0:
            if not self._budget.spend(self._clock()):
                return None
            self._left -= 1
            self.further["elsewhere"] += 1
            return ANYWHERE
        return None if verdict.fallback is None else self.instead(verdict.fallback, plan)

    def instead(self, why: Fallback, plan: Plan) -> Aim | None:
        """The model that the configuration names for this, unless the request has been there."""
        self._names.add(plan.name)
        name: str | None = getattr(plan.route.fallbacks, why)
        if name is None or name in self._names or not self._budget.spend(self._clock()):
            return None
        self.further[why] += 1
        self._names.add(name)  # also if planning finds it too small and goes on from there
        self.failed.clear()  # another model's targets are asked about another model
        return Aim(model=name)
