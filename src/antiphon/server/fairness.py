"""Who is next: a bounded queue that is fair between shares and ordered inside one.

Owns the order and nothing else; pure, no clock. A *share* is whoever waits together (an API key, a Claude
Code session, an address). The next slot goes to the share that uses the fewest slots for its weight; among
equals, to the one that was served longest ago. Inside a share, interactive requests go before background
ones, and each kind in order of arrival.

    queue = FairQueue()
    queue.weigh("key-a", 2.0)
    queue.push(ticket, share="key-a", priority=Priority.INTERACTIVE)
    queue.pop(used={"key-a": 3, "key-b": 0})   -> the next ticket, or None
    queue.remove(ticket)                       -> left the queue: costs nothing, wakes nobody
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from heapq import nlargest
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Priority(IntEnum):
    """The smaller goes first, inside its share."""

    INTERACTIVE = 0
    BACKGROUND = 1


class _Place(Struct, frozen=True):
    share: str
    priority: Priority


class _Line(Generic[T]):
    """Who waits of one share. `number` grows from line to line."""

    __slots__ = ("kinds", "number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = 0
        self.kinds: dict[Priority, OrderedDict[T, None]] = {}

    def first(self) -> T:
        return next(iter(next(self.kinds[kind] for kind in sorted(self.kinds) if self.kinds[kind])))

    def newest(self) -> T:
        """The last to come of those who are served last."""
        kinds = sorted(self.kinds, reverse=True)
        return next(reversed(next(self.kinds[kind] for kind in kinds if self.kinds[kind])))


class _Standing(NamedTuple):
    """A share in numbers: slots in use, weight, how many wait; `rank`: who is first among equals."""

    used: int
    weight: float
    waits: int
    rank: tuple[int, float]

    def load(self, served: int) -> float:
        return (self.used + served) / self.weight

    def ahead_of_the_next(self, other: _Standing) -> int:
        """How many of this line are served before one who came to the end of the other now.

        Counted, not played through: it is asked for every request, and queues are long when many come.
        """
        if self.weight == other.weight:
            reach = other.used + other.waits - self.used
            if reach < 0 or reach >= self.waits:
                return min(self.waits, max(0, reach))
            # One more has the same load, as have those before them, back to the end of the shorter line.
            return reach + (reach < other.waits or (reach == other.waits and self.rank < other.rank))
        # As many as have a smaller load; the one or two at its edge are compared in full.
        ahead = min(self.waits, max(0, math.floor(other.load(other.waits) * self.weight - self.used) - 1))
        while ahead < self.waits and self._goes_before(ahead, other, other.waits):
            ahead += 1
        return ahead

    def _goes_before(self, mine: int, other: _Standing, theirs: int) -> bool:
        """Whether the one behind `mine` of this line is served before the one behind `theirs` there."""
        while self.load(mine) == other.load(theirs):
            # Equals: whose line was served longest ago, which is whose last one had been first.
            if not mine or not theirs:
                return self.rank < other.rank if mine == theirs else not mine
            mine, theirs = mine - 1, theirs - 1
        return self.load(mine) < other.load(theirs)


class FairQueue(Generic[T]):
    """See the module. A share weighs 1 until `weigh` says otherwise."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}  # of the shares that do not weigh 1
        self._lines: dict[str, _Line[T]] = {}
        self._places: dict[T, _Place] = {}
        self._served: OrderedDict[str, int] = OrderedDict()  # shares by when they were last served
        self._numbers = count()
        # What refusals ask again and again while a full queue stands still; gone with every change.
        self._longest: list[tuple[float, str]] | None = None
        self._ahead: dict[tuple[str, float], int] = {}
        self._ahead_with: Mapping[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def weigh(self, share: str, weight: float) -> None:
        """From now on a share of weight 2 gets twice the slots of one of weight 1. `weight` is over 0."""
        if weight == self.weight(share):
            return
        self._changed()
        if weight == 1.0:
            self._weights.pop(share, None)
        else:
            self._weights[share] = weight

    def weight(self, share: str) -> float:
        """What it weighs now."""
        return self._weights.get(share, 1.0)

    def push(self, item: T, *, share: str, priority: Priority = Priority.INTERACTIVE) -> None:
        """Wait at the end of the share's line. An item waits once."""
        self._changed()
        line = self._lines.get(share)
        if line is None:
            line = self._lines[share] = _Line(next(self._numbers))
        line.kinds.setdefault(priority, OrderedDict())[item] = None
        line.size += 1
        self._places[item] = _Place(share, priority)

    def remove(self, item: T) -> bool:
        """Leave the queue; false if it did not wait."""
        place = self._places.pop(item, None)
        if place is None:
            return False
        self._changed()
        line = self._lines[place.share]
        del line.kinds[place.priority][item]
        line.size -= 1
        if not line.size:
            del self._lines[place.share]
        return True

    def pop(self, used: Mapping[str, int]) -> T | None:
        """Take out who is next, given how many slots each share uses now. None if nobody waits."""
        share = self._next_share(used)
        if share is None:
            return None
        item = self._lines[share].first()
        self.remove(item)
        self._served.pop(share, None)
        self._served[share] = next(self._numbers)
        # Who neither waits nor was served lately has no claim to remember.
        while len(self._served) > 2 * (len(self._lines) + 64):
            self._served.popitem(last=False)
        return item

    def ahead_of_newcomer(self, share: str, used: Mapping[str, int], weight: float | None = None) -> int:
        """How many would be served before one of this share who came now.

        `weight` is what the newcomer's share would weigh from then on; None: what it weighs now.
        """
        if used != self._ahead_with:
            self._ahead.clear()
            self._ahead_with = dict(used)
        weight = self.weight(share) if weight is None else weight
        # Whoever has no slot, no place and no past stands where everybody does who comes for the first time.
        known = share in self._lines or share in self._served or share in used
        key = (share if known else "", weight)
        ahead = self._ahead.get(key)
        if ahead is None:
            mine = self._standing(share, used)._replace(weight=weight)
            ahead = self._ahead[key] = mine.waits + sum(
                self._standing(other, used).ahead_of_the_next(mine) for other in self._lines if other != share
            )
        return ahead

    def newest_of_longest(self, *, than: str, weight: float | None = None) -> T | None:
        """The last to come of the share that waits most for its weight, if it is longer than `than` would be.

        `weight` is what share `than` would weigh from now on; None: what it weighs now.
        """
        if self._longest is None:
            loads = (
                (line.size / self.weight(share), -line.number, share) for share, line in self._lines.items()
            )
            self._longest = [(load, share) for load, _, share in nlargest(2, loads)]
        weight = self.weight(than) if weight is None else weight
        mine = (self._size(than) + 1) / weight
        for load, share in self._longest:
            if share != than:
                return self._lines[share].newest() if load > mine else None
        return None

    def in_order(self, used: Mapping[str, int]) -> list[T]:
        """Everybody who waits, in the order in which they would be served if nothing else came or ended."""
        copy: FairQueue[T] = FairQueue()
        copy._weights = self._weights
        copy._numbers = self._numbers
        copy._served = OrderedDict(self._served)
        for name, line in self._lines.items():
            for priority, items in line.kinds.items():
                for waiting in items:
                    copy.push(waiting, share=name, priority=priority)
        counted = dict(used)
        order: list[T] = []
        while True:
            share = copy._next_share(counted)
            item = copy.pop(counted)
            if item is None or share is None:
                return order
            counted[share] = counted.get(share, 0) + 1
            order.append(item)

    def _changed(self) -> None:
        self._longest = None
        self._ahead.clear()

    def _size(self, share: str) -> int:
        line = self._lines.get(share)
        return 0 if line is None else line.size

    def _standing(self, share: str, used: Mapping[str, int]) -> _Standing:
        line = self._lines.get(share)
        size, number = (0, math.inf) if line is None else (line.size, line.number)
        rank = (self._served.get(share, -1), number)
        return _Standing(used.get(share, 0), self._weights.get(share, 1.0), size, rank)

    def _next_share(self, used: Mapping[str, int]) -> str | None:
        if len(self._lines) <= 1:
            return next(iter(self._lines), None)
        return min(
            self._lines,
            key=lambda share: (
                used.get(share, 0) / self._weights.get(share, 1.0),
                self._served.get(share, -1),
            ),
        )
