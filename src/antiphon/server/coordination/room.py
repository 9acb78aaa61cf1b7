"""One upstream's shared slots as plain state: what `local_coordinator` serves and the scripts mirror.

Owns who holds, who waits and who is next among several gateways. Pure: no I/O, no clock (`now` is an
argument, in milliseconds). `redis_scripts` has the same rules in Lua: a change here is a change there, and
a test drives both with the same operations.

    room = Room(born="a1", calm=500)
    answer, notices = room.apply("g1", epoch=1, ttl=6000, operation=Acquire(...), now=123)
    notices["g2"]          # what that did for another gateway
    room.drop("g1", epoch=1, now=456)     # its connection is gone, and with it all that it had

**Lingering.** A gateway that is gone was perhaps in the middle of requests which its upstream does not give
up. Those that it leaves behind stay used for as long as it had said (`linger`), and are nobody's: `sweep`
frees them, at `due`, and so does any other operation after that. `orphans` is how many there would be if one
more gateway died now: what the next room must begin with, should it be the one that keeps this room.

**Calm.** Nothing is granted and nothing is taken back while it lasts, because gateways may hold what they
have not said yet: after an empty start of what was not empty before, and after a gateway has told of a
lease that was admitted without us (`calm` long); and after a time in which nobody was heard (0.4 TTL long).
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from antiphon.server.coordination.protocol import (
    Acquire,
    Answer,
    Claim,
    Leave,
    Notice,
    Operation,
    Register,
    Release,
    Renew,
)
from antiphon.server.fairness import FairQueue, Priority

_STALE = Answer(stale=True)


class _Gateway(Struct):
    epoch: int
    expires: int  # with it everything that it holds
    active: int = 0
    linger: int = 0


class Room:
    """See the module. `calm` is in milliseconds."""

    def __init__(self, born: str, calm: int) -> None:
        self.born = born
        self._calm = calm
        self._made: int | None = None
        self._seen = 0
        self._calm_until = 0
        self._limit = 0
        self._limit_set = 0
        self._gateways: dict[str, _Gateway] = {}
        self._leases: dict[str, str] = {}  # key -> share
        self._lingering: dict[str, int] = {}  # key of a lease whose gateway is gone -> when it is free
        self._longest_linger = 0
        self._waiting: dict[str, str] = {}  # key -> share
        self._queue: FairQueue[str] = FairQueue()
        self._granted: dict[str, list[str]] = {}  # in the running operation, by gateway
        self._displaced: dict[str, list[str]] = {}

    def apply(
        self, gateway: str, epoch: int, ttl: int, operation: Operation, now: int
    ) -> tuple[Answer, dict[str, Notice]]:
        """Do it. Returns the answer, and notices for other gateways."""
        self._open(operation, ttl, now)
        self._purge(now)
        known = self._gateways.get(gateway)
        lost: list[str] = []
        if isinstance(operation, Register):
            if known is not None and known.epoch > epoch:
                return self._told(gateway, _STALE)
            self._gateways[gateway] = _Gateway(epoch, now + ttl, operation.active, operation.linger)
            lost = self._register(gateway, operation, now)
        elif known is None or known.epoch != epoch:
            return self._told(gateway, _STALE)
        else:
            self._change(gateway, known, operation, now, ttl)
        self._grant(now)
        return self._told(gateway, self._answer(gateway, operation, lost, now))

    def drop(self, gateway: str, epoch: int, now: int) -> dict[str, Notice]:
        """Its connection is gone; a later epoch of it stays."""
        known = self._gateways.get(gateway)
        if known is None or known.epoch != epoch:
            return {}
        self._remove(gateway, known.linger, now)
        self._grant(now)
        return self._told(gateway, _STALE)[1]

    def due(self, now: int) -> int | None:
        """Milliseconds until `sweep` is worth it: at least 1, None if nothing lingers."""
        if not self._lingering:
            return None
        return max(1, min(self._lingering.values()) - now, self._calm_until - now)

    def orphans(self, gateway: str) -> tuple[int, int]:
        """How many leases linger, or would if this gateway were gone; and for how many milliseconds."""
        known = self._gateways.get(gateway)
        linger = known.linger if known is not None else 0
        own = sum(_of(key) == gateway for key in self._leases) if linger else 0
        return len(self._lingering) + own, linger or self._longest_linger

    def inherit(self, orphans: int, linger: int, now: int) -> None:
        """Begin with leases whose gateway died together with the room before this one."""
        for number in range(orphans):
            key = f":{number}"  # of no gateway
            self._leases[key] = ""
            self._linger(key, linger, now)

    def sweep(self, now: int) -> dict[str, Notice]:
        """Free what has lingered for long enough."""
        self._purge(now)
        self._grant(now)
        return self._told("", _STALE)[1]

    def _open(self, operation: Operation, ttl: int, now: int) -> None:
        late = ttl * 2 // 5
        past = operation.past if isinstance(operation, Register) else ""
        if self._made is None:
            self._made = now
        elif self._leases and now - self._seen > ttl // 2:
            self._calm_until = now + late
        if past not in ("", self.born) and now - self._made < self._calm:
            self._calm_until = max(self._calm_until, self._made + self._calm)
        self._seen = now

    def _purge(self, now: int) -> None:
        if now < self._calm_until:
            return
        for name in [name for name, known in self._gateways.items() if known.expires <= now]:
            self._remove(name, 0, now)
        for key in [key for key, free in self._lingering.items() if free <= now]:
            self._forget(key)

    def _remove(self, gateway: str, linger: int, now: int) -> None:
        """It is gone, and what it held with it after `linger`."""
        del self._gateways[gateway]
        for key in self._of(gateway):
            if linger and key in self._leases:
                self._linger(key, linger, now)
            else:
                self._forget(key)
        if not self._gateways:  # whoever comes next may know another server at this address
            self._limit = self._limit_set = 0

    def _linger(self, key: str, linger: int, now: int) -> None:
        self._longest_linger = max(self._longest_linger, linger)
        self._lingering[key] = now + linger

    def _of(self, gateway: str) -> list[str]:
        return [key for key in (*self._leases, *self._waiting) if _of(key) == gateway]

    def _forget(self, key: str) -> None:
        self._leases.pop(key, None)
        self._lingering.pop(key, None)
        if self._waiting.pop(key, None) is not None:
            self._queue.remove(key)

    def _register(self, gateway: str, said: Register, now: int) -> list[str]:
        if said.set_limit:
            self._set_limit(said.limit, now)
        elif not self._limit or said.limit_set > self._limit_set:
            self._limit, self._limit_set = said.limit, said.limit_set
        listed = {claim.key for claim in (*said.leases, *said.waiting)}
        for key in self._of(gateway):
            self._lingering.pop(key, None)  # it was not dead: only its connection was
            if key not in listed:
                self._forget(key)
        missing = [claim for claim in said.leases if claim.key not in self._leases]
        if said.entitled and missing:
            # Admitted without us, by it and so perhaps by others, who have not said so yet.
            self._calm_until = max(self._calm_until, now + self._calm)
            for claim in missing:
                self._hold(claim)
            missing = []
        self._grant(now)
        lost = []
        for claim in missing:
            if len(self._leases) < self._limit:
                self._hold(claim)
            else:
                self._forget(claim.key)
                lost.append(claim.key)
        for claim in said.waiting:
            if claim.key in self._leases:
                self._granted.setdefault(gateway, []).append(claim.key)
            elif claim.key not in self._waiting:
                self._wait(claim, said.queue_limit, now)
        return lost

    def _change(self, gateway: str, known: _Gateway, said: Operation, now: int, ttl: int) -> None:
        match said:
            case Renew():
                known.active, known.linger = said.active, said.linger
                known.expires = now + ttl
                if said.limit is not None:
                    self._set_limit(said.limit, now)
            case Acquire():
                if said.claim.key not in self._leases and said.claim.key not in self._waiting:
                    self._wait(said.claim, said.queue_limit, now)
            case Release():
                known.active = said.active
                for key in said.keys:
                    self._forget(key)
            case Leave():
                self._remove(gateway, said.linger, now)

    def _set_limit(self, limit: int, now: int) -> None:
        self._limit, self._limit_set = limit, max(now, self._limit_set + 1)

    def _hold(self, claim: Claim) -> None:
        self._forget(claim.key)
        self._leases[claim.key] = claim.share

    def _wait(self, claim: Claim, queue_limit: int, now: int) -> None:
        self._queue.weigh(claim.share, claim.weight)
        free_now = not self._waiting and now >= self._calm_until and len(self._leases) < self._limit
        if not free_now and len(self._waiting) >= queue_limit:
            loser = self._queue.newest_of_longest(than=claim.share, priority=Priority(claim.priority))
            gone = claim.key if loser is None else loser
            self._forget(gone)
            self._displaced.setdefault(_of(gone), []).append(gone)
            if loser is None:
                return
        self._waiting[claim.key] = claim.share
        self._queue.push(claim.key, share=claim.share, priority=Priority(claim.priority))

    def _grant(self, now: int) -> None:
        if now < self._calm_until:
            return
        while self._waiting and len(self._leases) < self._limit:
            key = self._queue.pop(Counter(self._leases.values()), self._limit)
            if key is None:
                return
            self._leases[key] = self._waiting.pop(key)
            self._granted.setdefault(_of(key), []).append(key)

    def _answer(self, gateway: str, operation: Operation, lost: list[str], now: int) -> Answer:
        again: int | None = None
        if self._waiting:
            again = self._calm_until - now
            if again <= 0:
                again = max(1, min(map(self._free_at, self._leases), default=now) - now)
        standing = isinstance(operation, Register | Renew)
        others = [known.active for name, known in self._gateways.items() if name != gateway]
        return Answer(
            lost=lost,
            born=self.born,
            limit=self._limit,
            limit_set=self._limit_set,
            used=len(self._leases),
            waiting=len(self._waiting),
            gateways=len(self._gateways) if standing else 0,
            rank=sorted(self._gateways).index(gateway) if standing else 0,
            active=sum(others) if standing else 0,
            again=again,
        )

    def _free_at(self, key: str) -> int:
        """When a lease ends at the latest, if nobody speaks for it."""
        return self._lingering[key] if key in self._lingering else self._gateways[_of(key)].expires

    def _told(self, gateway: str, answer: Answer) -> tuple[Answer, dict[str, Notice]]:
        granted, self._granted = self._granted, {}
        displaced, self._displaced = self._displaced, {}
        notices = {
            name: Notice(granted.get(name, []), displaced.get(name, []))
            for name in (*granted, *displaced)
            if name != gateway
        }
        mine = Answer(
            stale=answer.stale,
            granted=granted.get(gateway, []),
            displaced=displaced.get(gateway, []),
            lost=answer.lost,
            born=answer.born,
            limit=answer.limit,
            limit_set=answer.limit_set,
            used=answer.used,
            waiting=answer.waiting,
            gateways=answer.gateways,
            rank=answer.rank,
            active=answer.active,
            again=answer.again,
        )
        return mine, notices


def _of(key: str) -> str:
    """The gateway that a key belongs to."""
    return key.partition(":")[0]
