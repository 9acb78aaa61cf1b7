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


class _Line(NamedTuple):
    """A share's line in numbers: slots in use, weight, how many wait; `rank`: who is first among equals."""

    used: int
    weight: float
    waits: int
    rank: tuple[int, int]

    def load(self, served: int) -> float:
        return (self.used + served) / self.weight

    def ahead_of_the_next(self, other: _Line) -> int:
        """How many of this line are served before one who came to the end of the other now.

        Counted, not played through: it is asked for every request, and queues are long when many come.
        """
        # As many as have a smaller load; the one or two at its edge are compared in full.
        reach = other.load(other.waits) * self.weight - self.used
        ahead = min(self.waits, max(0, math.floor(reach) - 1))
        while ahead < self.waits and self._goes_before(ahead, other, other.waits):
            ahead += 1
        return ahead

    def _goes_before(self, mine: int, other: _Line, theirs: int) -> bool:
        """Whether the one behind `mine` of this line is served before the one behind `theirs` there."""
        while self.load(mine) == other.load(theirs):
            # Equals: whose line was served longest ago, which is whose last one had been first.
            if not mine or not theirs:
                return self.rank < other.rank if mine == theirs else not mine
            step = min(mine, theirs) if self.weight == other.weight else 1
            mine, theirs = mine - step, theirs - step
        return self.load(mine) < other.load(theirs)


class FairQueue(Generic[T]):
    """See the module. A share weighs 1 until `weigh` says otherwise."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}  # of the shares that do not weigh 1
        self._lines: dict[str, dict[Priority, OrderedDict[T, None]]] = {}
        self._places: dict[T, _Place] = {}
        self._served: OrderedDict[str, None] = OrderedDict()  # shares by when they were last served

    def __len__(self) -> int:
        return len(self._places)

    def weigh(self, share: str, weight: float) -> None:
        """From now on a share of weight 2 gets twice the slots of one of weight 1. `weight` is over 0."""
        if weight == 1.0:
            self._weights.pop(share, None)
        else:
            self._weights[share] = weight

    def weight(self, share: str) -> float:
        """What it weighs now."""
        return self._weights.get(share, 1.0)

    def push(self, item: T, *, share: str, priority: Priority = Priority.INTERACTIVE) -> None:
        """Wait at the end of the share's line. An item waits once."""
        lines = self._lines.setdefault(share, {})
        lines.setdefault(priority, OrderedDict())[item] = None
        self._places[item] = _Place(share, priority)

    def remove(self, item: T) -> bool:
        """Leave the queue; false if it did not wait."""
        place = self._places.pop(item, None)
        if place is None:
            return False
        lines = self._lines[place.share]
        del lines[place.priority][item]
        if not any(lines.values()):
            del self._lines[place.share]
        return True

    def pop(self, used: Mapping[str, int]) -> T | None:
        """Take out who is next, given how many slots each share uses now. None if nobody waits."""
        share = self._next_share(used)
        if share is None:
            return None
        lines = self._lines[share]
        line = next(lines[priority] for priority in sorted(lines) if lines[priority])
        item = next(iter(line))
        self.remove(item)
        self._served.pop(share, None)
        self._served[share] = None
        # Who neither waits nor was served lately has no claim to remember.
        while len(self._served) > 2 * (len(self._lines) + 64):
            self._served.popitem(last=False)
        return item

    def ahead_of_newcomer(self, share: str, used: Mapping[str, int], weight: float | None = None) -> int:
        """How many would be served before one of this share who came now.

        `weight` is what the newcomer's share would weigh from then on; None: what it weighs now.
        """
        weights = self._weights if weight is None else {**self._weights, share: weight}
        turns = {other: turn for turn, other in enumerate(self._served)}
        order = {other: place for place, other in enumerate(self._lines)}

        def line_of(name: str, waits: int) -> _Line:
            rank = (turns.get(name, -1), order.get(name, len(order)))
            return _Line(used.get(name, 0), weights.get(name, 1.0), waits, rank)

        mine = line_of(share, self._size(share))
        others = (line_of(other, self._size(other)) for other in self._lines if other != share)
        return mine.waits + sum(other.ahead_of_the_next(mine) for other in others)

    def newest_of_longest(self, *, than: str, weight: float | None = None) -> T | None:
        """The last to come of the share that waits most for its weight, if it is longer than `than` would be.

        `weight` is what share `than` would weigh from now on; None: what it weighs now.
        """
        weights = self._weights if weight is None else {**self._weights, than: weight}
        sizes = {share: self._size(share) for share in self._lines}
        loads = {share: size / weights.get(share, 1.0) for share, size in sizes.items()}
        longest = max(loads, key=lambda share: loads[share], default=None)
        if longest is None or longest == than:
            return None
        if loads[longest] <= (sizes.get(than, 0) + 1) / weights.get(than, 1.0):
            return None
        lines = self._lines[longest]
        line = next(lines[priority] for priority in sorted(lines, reverse=True) if lines[priority])
        return next(reversed(line))

    def in_order(self, used: Mapping[str, int]) -> list[T]:
        """Everybody who waits, in the order in which they would be served if nothing else came or ended."""
        copy: FairQueue[T] = FairQueue()
        copy._weights = self._weights
        copy._lines = {
            share: {priority: OrderedDict(line) for priority, line in lines.items()}
            for share, lines in self._lines.items()
        }
        copy._places = dict(self._places)
        copy._served = OrderedDict(self._served)
        counted = dict(used)
        order: list[T] = []
        while True:
            share = copy._next_share(counted)
            item = copy.pop(counted)
            if item is None or share is None:
                return order
            counted[share] = counted.get(share, 0) + 1
            order.append(item)

    def _size(self, share: str) -> int:
        return sum(map(len, self._lines.get(share, {}).values()))

    def _next_share(self, used: Mapping[str, int]) -> str | None:
        if not self._lines:
            return None
        if len(self._lines) == 1:
            return next(iter(self._lines))
        turns = {share: turn for turn, share in enumerate(self._served)}
        return min(
            self._lines,
            key=lambda share: (used.get(share, 0) / self._weights.get(share, 1.0), turns.get(share, -1)),
        )
