"""Whether a server is slower than it usually is: the time to its first byte against its own past.

Owns the two averages and the penalty. Pure: the clock comes in. It compares a server with itself only, never
with others: which prompts come is not known here, and long ones take long everywhere. Slowness is a reason
to prefer another target, never one to shut this one out.

    pace.record(now, seconds=0.4)      # once for each answer that has begun
    pace.penalty(now)                  -> 0.0 as usual ... 1.0 sixteen times as slow, or slower
"""

from __future__ import annotations

import math
from typing import Final

ENOUGH: Final = 10  # answers before anything is "usual"
_MEMORY: Final = 50  # answers that "usual" reaches back
_LATELY: Final = 0.3  # the weight of the newest answer
_FLOOR: Final = 0.05  # seconds; below this a difference is noise
_TOLERATED: Final = 1.0  # doublings that are no slowness
_WORST: Final = 4.0  # doublings that are a penalty of 1
HALF_LIFE: Final = 30.0  # seconds in which a slowness that nothing renews counts half


class Pace:
    """Averages of the logarithm: one answer of a minute among many of a second must not hide them."""

    __slots__ = ("_at", "_count", "_lately", "_usual")

    def __init__(self) -> None:
        self._count = 0
        self._usual = self._lately = 0.0  # log2 of seconds
        self._at = 0.0

    def record(self, now: float, seconds: float) -> None:
        """An answer began `seconds` after its request was sent."""
        taken = math.log2(max(seconds, _FLOOR))
        self._count = min(self._count + 1, _MEMORY)
        if self._count == 1:
            self._usual = self._lately = taken
        else:
            lately = self._usual + (self._lately - self._usual) * self._left(now)
            self._usual += (taken - self._usual) / self._count
            self._lately = lately + _LATELY * (taken - lately)
        self._at = now

    def penalty(self, now: float) -> float:
        """0 to 1: how much of its capacity to take as used because it is slow; fades while nothing comes."""
        if self._count < ENOUGH:
            return 0.0
        excess = (self._lately - self._usual - _TOLERATED) / (_WORST - _TOLERATED)
        return min(1.0, max(0.0, excess)) * self._left(now)

    def _left(self, now: float) -> float:
        return float(0.5 ** (max(0.0, now - self._at) / HALF_LIFE))
