"""Who is next: a bounded queue that is fair between shares and ordered inside one.

Owns the order and nothing else; pure, no clock. A *share* is whoever waits together (an API key, a Claude
Code session, an address).

Between shares there are two rules. Who uses less than its part of the slots goes before who uses that or
more: so slots that are held for long are shared too, not only requests. Among those, whose *turn* comes
first: each grant puts a share's next turn further back, by 1 for weight 1 and by 1/3 for weight 3. So
weights hold also where a part is less than one slot. Who was away has no claim to the turns it missed.

Inside a share, interactive requests go before background ones, but not before one that has seen `PATIENCE`
others come. Each kind goes in order of arrival.

    queue = FairQueue()
    queue.weigh("key-a", 2.0)
    queue.push(ticket, share="key-a", priority=Priority.INTERACTIVE)
    queue.pop(used={"key-a": 3, "key-b": 0}, slots=8)   -> the next ticket, or None
    queue.remove(ticket)                                -> left the queue: costs nothing, wakes nobody

The rules are written twice: `coordination.redis_queue` has them in Lua. So everything that is compared is
a whole number, which both languages compute alike.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from heapq import nlargest
from typing import Final, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

TURN: Final = 720_720  # how far one grant puts a share of weight 1 back; divisible by 1 to 16
PATIENCE: Final = 64  # so many may come, of whatever share, before a background request is like any other
REMEMBERED: Final = 1024  # shares whose next turn is remembered while they do not wait


class Priority(IntEnum):
    """The smaller goes first, inside its share."""

    INTERACTIVE = 0
    BACKGROUND = 1


class _Place(Struct, frozen=True):
    share: str
    priority: Priority


class _Line(Generic[T]):
    """Who waits of one share, with the number of their arrival.

    `due` is when its turn is, `number` that of the arrival with which it began: among equals it goes first.
    """

    __slots__ = ("due", "kinds", "number", "size")

    def __init__(self, due: int, number: int) -> None:
        self.due = due
        self.number = number
        self.size = 0
        self.kinds: tuple[OrderedDict[T, int], OrderedDict[T, int]] = (OrderedDict(), OrderedDict())

    def first(self) -> T:
        heads = [next(iter(kind.items())) for kind in self.kinds if kind]
        item, number = heads[0]
        return heads[1][0] if len(heads) > 1 and heads[1][1] + PATIENCE < number else item

    def newest(self) -> T:
        """The last to come of those who are served last."""
        return next(reversed(self.kinds[Priority.BACKGROUND] or self.kinds[Priority.INTERACTIVE]))

    def copy(self) -> _Line[T]:
        twin: _Line[T] = _Line(self.due, self.number)
        twin.size = self.size
        twin.kinds = (self.kinds[0].copy(), self.kinds[1].copy())
        return twin


class FairQueue(Generic[T]):
    """See the module. A share weighs 1 until `weigh` says otherwise."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}  # of the shares that do not weigh 1
        self._lines: dict[str, _Line[T]] = {}
        self._places: dict[T, _Place] = {}
        self._due: dict[str, int] = {}  # when the turn is of those that were served
        self._turn = 0  # whose turn it was last
        self._arrivals = 0
        # What refusals ask again and again while a full queue stands still; gone with every change.
        self._longest: list[tuple[float, str]] | None = None
        self._ahead: dict[tuple[str | None, float], int] = {}

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
        self._arrivals += 1
        line = self._lines.get(share)
        if line is None:
            line = self._lines[share] = _Line(self._start(share), self._arrivals)
        line.kinds[priority][item] = self._arrivals
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

    def pop(self, used: Mapping[str, int], slots: int) -> T | None:
        """Take out who is next. None if nobody waits.

        `used`: how many of the `slots` each share uses now; who is not named uses none.
        """
        if not self._lines:
            return None
        share = next(iter(self._lines)) if len(self._lines) == 1 else self._next_share(used, slots)
        line = self._lines[share]
        item = line.first()
        # Up to a whole turn is kept for it that it could not take, because it used its part already.
        line.due = max(line.due, self._turn - TURN)
        self._turn = max(self._turn, line.due)
        line.due += _step(self.weight(share))
        self._remember(share, line.due)
        self.remove(item)
        return item

    def ahead_of_newcomer(self, share: str, weight: float | None = None) -> int:
        """How many would be served before one of this share who came now, if they had one slot after another.

        `weight` is what the newcomer's share would weigh from then on; None: what it weighs now.
        """
        weight = self.weight(share) if weight is None else weight
        # Whoever has no place and no past stands where everybody does who comes for the first time.
        known = share in self._lines or share in self._due
        key = (share if known else None, weight)
        ahead = self._ahead.get(key)
        if ahead is None:
            mine = self._lines.get(share) or _Line(self._start(share), self._arrivals + 1)
            due = mine.due + mine.size * _step(weight)
            ahead = mine.size
            for name, other in self._lines.items():
                if name != share and other.due <= due:
                    step = _step(self._weights[name]) if name in self._weights else TURN
                    turns, between = divmod(due - other.due, step)
                    before = between > 0 or other.number < mine.number  # of two that are due together
                    ahead += min(other.size, turns + before)
            self._ahead[key] = ahead
        return ahead

    def newest_of_longest(
        self, *, than: str, weight: float | None = None, priority: Priority = Priority.INTERACTIVE
    ) -> T | None:
        """Who gives way to a newcomer of the share `than`: None if nobody does.

        The last to come of the share that waits most for its weight, if it is longer than `than` would be;
        else, for an interactive request, the last background one of its own share. `weight` is what `than`
        would weigh from now on; None: what it weighs now.
        """
        if self._longest is None:
            weights = self._weights
            loads = [(line.size / weights.get(share, 1.0), share) for share, line in self._lines.items()]
            self._longest = nlargest(2, loads)
        weight = self.weight(than) if weight is None else weight
        own = self._lines.get(than)
        mine = ((0 if own is None else own.size) + 1) / weight
        for load, share in self._longest:
            if share != than and load > mine:
                return self._lines[share].newest()
        if own is not None and priority < Priority.BACKGROUND and own.kinds[Priority.BACKGROUND]:
            return own.newest()
        return None

    def in_order(self) -> list[T]:
        """Everybody who waits, in the order of their turns: as if on one slot, and nobody else came."""
        copy: FairQueue[T] = FairQueue()
        copy._weights = self._weights
        copy._lines = {share: line.copy() for share, line in self._lines.items()}
        copy._places = dict(self._places)
        order: list[T] = []
        while copy._lines:
            share = copy._next_share({}, 1)
            line = copy._lines[share]
            line.due += _step(copy.weight(share))
            order.append(line.first())
            copy.remove(order[-1])
        return order

    def _changed(self) -> None:
        self._longest = None
        self._ahead.clear()

    def _start(self, share: str) -> int:
        """When the turn is of a share that begins to wait now."""
        return max(self._turn, self._due.get(share, 0))

    def _remember(self, share: str, due: int) -> None:
        self._due[share] = due
        if len(self._due) > REMEMBERED:
            # Whose turn is past stands where a share stands that comes for the first time.
            self._due = {other: turn for other, turn in self._due.items() if turn > self._turn}
            while len(self._due) > REMEMBERED:
                self._due.pop(min(self._due, key=lambda other: self._due[other]))

    def _next_share(self, used: Mapping[str, int], slots: int) -> str:
        # With every grant, over everybody who waits: plain loops, and nothing made for each of them.
        lines, weights = self._lines, self._weights
        all_of_them = 1000 * (len(lines) + sum(share not in lines for share in used))
        all_of_them += sum(
            _whole(weights[share]) - 1000 for share in weights if share in lines or share in used
        )
        best, best_rank = "", (True, math.inf, 0)
        for share, line in lines.items():
            if line.due > best_rank[1] and not best_rank[0]:
                continue
            has_its_part = share in used and used[share] * all_of_them >= slots * _whole(self.weight(share))
            rank = (has_its_part, line.due, line.number)
            if rank < best_rank:
                best, best_rank = share, rank
        return best


def _step(weight: float) -> int:
    """How far a grant puts a share back."""
    return max(1, int(TURN / weight + 0.5))


def _whole(weight: float) -> int:
    """A weight in thousandths."""
    return max(1, int(weight * 1000 + 0.5))
