"""A server's own report beside our count of its slots: where the two disagree.

Owns the comparison and its numbers; pure, no clock. It frees nothing: what a report means for leases is
`admission.Slots.settle`'s. A report is the larger of two looks, and each is older than the count that it is
compared with, so a count is taken over the same time: a disagreement is one that no delay explains.

    comparison = Comparison()
    comparison.used(3)                            # at each grant
    comparison.compare(busy=5, used=3, active=2)
    comparison.statistics()                       -> ReportStatistics(busy=5, busier=1, idler=0)
"""

from __future__ import annotations

from msgspec import Struct


class ReportStatistics(Struct, frozen=True):
    """A snapshot. `busy` is what the last report said, None before the first.

    `busier` counts reports of more busy slots than all leases explain: somebody else uses the server, or a
    slot was freed too early. `idler` counts those of fewer than have begun to answer and not ended.
    """

    busy: int | None = None
    busier: int = 0
    idler: int = 0


class Comparison:
    """See the module. `used` and `active` of several gateways are those of all of them."""

    __slots__ = ("_active", "_busier", "_busy", "_idler", "_peak", "_peak_before")

    def __init__(self) -> None:
        self._busy: int | None = None
        self._busier = self._idler = 0
        # The most that was used since the last report, and between the two before it: one of its two looks
        # is as old as that.
        self._peak = self._peak_before = 0
        self._active = 0  # at the last report

    def used(self, used: int) -> None:
        """So many leases there are now."""
        self._peak = max(self._peak, used)

    def compare(self, busy: int, *, used: int, active: int) -> None:
        """A report of `busy` slots, `used` leases, `active` of which have begun to answer."""
        self._busy = busy
        self._busier += busy > max(self._peak, self._peak_before, used)
        self._idler += busy < min(active, self._active)
        self._peak_before, self._peak, self._active = self._peak, used, active

    def statistics(self) -> ReportStatistics:
        return ReportStatistics(self._busy, self._busier, self._idler)
