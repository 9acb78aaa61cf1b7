"""Shares that the queue of all gateways had no place for a moment ago.

Owns how long that is believed without asking again. Only the coordinator knows that everybody's queue is
full, and a flood that has to be told so request by request costs both sides more than the refusals
themselves. So a share that was turned down is turned down again for the part of a second in which the queue
cannot have emptied: slots stay busy, and shares that were not turned down are not concerned.

    shares = TurnedDown()
    shares.note("s", Priority.INTERACTIVE, now, drains_in=8.0)   # a full queue takes 8 s to be served
    shares.holds("s", Priority.INTERACTIVE, now + 0.1)           -> True
"""

from __future__ import annotations

from typing import Final

from antiphon.server.fairness import Priority

LONGEST: Final = 0.5  # seconds
PART: Final = 0.5  # of the time that a full queue takes


class TurnedDown:
    """Times in seconds, of one clock."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[tuple[str, Priority], float] = {}

    def note(self, share: str, priority: Priority, now: float, drains_in: float) -> None:
        """One of this priority has no place. `drains_in`: how long a full queue takes; 0: not known."""
        for other in [other for other, until in self._until.items() if until <= now]:
            del self._until[other]
        believed = min(LONGEST, PART * drains_in)
        self._until.pop((share, priority), None)
        if believed > 0:
            self._until[share, priority] = now + believed

    def holds(self, share: str, priority: Priority, now: float) -> bool:
        """It had no place, so lately that it still has none. What an urgent one had not, no other has."""
        return any(now < self._until.get((share, other), 0.0) for other in Priority if other <= priority)
