"""Who is next: a bounded queue that is fair between shares and ordered inside one.

Owns the order and nothing else; pure, no clock. A *share* is whoever waits together (an API key, a Claude
Code session, an address). The next slot goes to the share that uses the fewest slots for its weight; among
equals, to the one that was served longest ago. Inside a share, interactive requests go before background
ones, and each kind in order of arrival.

    queue = FairQueue()
    queue.push(ticket, share="key-a", priority=Priority.INTERACTIVE)
    queue.pop(used={"key-a": 3, "key-b": 0})   -> the next ticket, or None
    queue.remove(ticket)                       -> left the queue: costs nothing, wakes nobody
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Priority(IntEnum):
    """The smaller goes first, inside its share."""

    INTERACTIVE = 0
    BACKGROUND = 1


class _Place(Struct, frozen=True):
    share: str
    priority: Priority


class FairQueue(Generic[T]):
    """`weights` of shares that are not 1; a share of weight 2 gets twice the slots of one of weight 1."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self._lines: dict[str, dict[Priority, OrderedDict[T, None]]] = {}
        self._places: dict[T, _Place] = {}
        self._served: OrderedDict[str, None] = OrderedDict()  # shares by when they were last served

    def __len__(self) -> int:
        return len(self._places)

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

    def ahead_of_newcomer(self, share: str, used: Mapping[str, int]) -> int:
        """How many would be served before one of this share who came now."""
        own = self._lines.get(share, {})
        if len(self._lines) == 1 and own:
            return len(self)
        mine = sum(map(len, own.values()))
        counted = dict(used)
        waiting = {other: sum(map(len, lines.values())) for other, lines in self._lines.items()}
        waiting[share] = mine + 1
        turns = {other: turn for turn, other in enumerate(self._served)}
        ahead = 0
        while True:
            next_share = min(
                waiting,
                key=lambda other: (
                    counted.get(other, 0) / self._weights.get(other, 1.0),
                    turns.get(other, -1),
                ),
            )
            if next_share == share and waiting[share] == 1:
                return ahead
            ahead += 1
            counted[next_share] = counted.get(next_share, 0) + 1
            turns[next_share] = len(self._served) + ahead
            waiting[next_share] -= 1
            if not waiting[next_share]:
                del waiting[next_share]

    def newest_of_longest(self, *, than: str) -> T | None:
        """The last to come of the share that waits most, if it waits for more than share `than` would."""
        sizes = {share: sum(map(len, lines.values())) for share, lines in self._lines.items()}
        longest = max(sizes, key=lambda share: sizes[share] / self._weights.get(share, 1.0), default=None)
        if longest is None or longest == than or sizes[longest] <= sizes.get(than, 0) + 1:
            return None
        lines = self._lines[longest]
        line = next(lines[priority] for priority in sorted(lines, reverse=True) if lines[priority])
        return next(reversed(line))

    def in_order(self, used: Mapping[str, int]) -> list[T]:
        """Everybody who waits, in the order in which they would be served if nothing else came or ended."""
        copy: FairQueue[T] = FairQueue(self._weights)
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
