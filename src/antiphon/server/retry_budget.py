"""How many further attempts all requests together may make: a storm must not multiply.

Owns one number that requests and time fill and attempts empty. Pure: the clock comes in. One budget
belongs to one gateway process, whatever models and upstreams it has.

    budget = RetryBudget()
    budget.earn(now)     # once for each request of a client
    budget.spend(now)    -> True: one more attempt may go out, to whichever target

While every server fails, attempts are at most 1.2 times the requests plus one a second. The ceiling is what
a sudden loss may cost: a replica that dies takes its waiting requests with it, and all of them move at once.
"""

from __future__ import annotations

from msgspec import Struct


class BudgetStatistics(Struct, frozen=True):
    """A moment's numbers. `balance`: attempts that may be made now; the others count since the start."""

    balance: float
    spent: int
    refused: int


class RetryBudget:
    """`per_request` attempts are earned by a request, `per_second` by time, `ceiling` at most are kept.

    It starts full: the first loss may come in the first second. `per_request` 0 and `per_second` 0 leave
    the ceiling for the life of the process.
    """

    __slots__ = ("_at", "_balance", "_ceiling", "_per_request", "_per_second", "_refused", "_spent")

    def __init__(
        self, *, per_request: float = 0.2, per_second: float = 1.0, ceiling: float = 100.0, now: float = 0.0
    ) -> None:
        """Raises ValueError for a negative rate or a ceiling below 1. `now` in seconds, monotonic."""
        if per_request < 0 or per_second < 0 or ceiling < 1:
            raise ValueError("a retry budget has no negative rates and a ceiling of at least 1")
        self._per_request = per_request
        self._per_second = per_second
        self._ceiling = self._balance = ceiling
        self._at = now
        self._spent = self._refused = 0

    def set_rate(self, per_request: float) -> None:
        """How many attempts a request earns, from now on. Raises ValueError for a negative rate."""
        if per_request < 0:
            raise ValueError("a retry budget has no negative rates")
        self._per_request = per_request

    def earn(self, now: float) -> None:
        """A client's request has come."""
        self._fill(now)
        self._balance = min(self._ceiling, self._balance + self._per_request)

    def spend(self, now: float) -> bool:
        """Take one further attempt. False: there is none, and the failure at hand is the answer."""
        self._fill(now)
        if self._balance < 1:
            self._refused += 1
            return False
        self._balance -= 1
        self._spent += 1
        return True

    def statistics(self, now: float) -> BudgetStatistics:
        """The numbers of this moment; changes nothing."""
        return BudgetStatistics(balance=self._at_moment(now), spent=self._spent, refused=self._refused)

    def _fill(self, now: float) -> None:
        self._balance = self._at_moment(now)
        self._at = max(now, self._at)

    def _at_moment(self, now: float) -> float:
        passed = max(0.0, now - self._at)  # clocks of two callers may be a moment apart
        return min(self._ceiling, self._balance + passed * self._per_second)
