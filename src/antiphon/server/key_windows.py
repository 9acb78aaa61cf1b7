"""How much a key has used in the last minute: sliding window counters, in this process or in Valkey or Redis.

Owns the counters (the `limits` library's) and the arithmetic of one window. What is counted, and what follows
from it, is server.key_limits'. Nothing here knows a key: counters are named by what comes in.

    windows = Windows(None)                                  # or redis://, rediss://, unix://
    fits, window = await windows.take("tokens", "3fa9", limit=100_000, cost=2_000)
    window.remaining, window.wait(2_000)                     -> 98000, 0

A window counter keeps two numbers, this minute's and the one before, which counts for as much of it as still
lies within sixty seconds: https://limits.readthedocs.io (sliding window counter).
"""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from msgspec import Struct

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

MINUTE: Final = 60
SCHEMES: Final = ("redis://", "rediss://", "unix://")

_PREFIX: Final = "antiphon:limits"
_UNBOUNDED: Final = 2**53  # a number that Lua still counts exactly


class Window(Struct, frozen=True):
    """One counter at one moment. `*_left` in seconds: until the numbers count no more."""

    limit: int
    previous: int
    previous_left: float
    current: int
    current_left: float

    @property
    def remaining(self) -> int:
        used = floor(self.previous * self.previous_left / MINUTE) + self.current
        return min(self.limit, max(0, self.limit - used))

    @property
    def reset(self) -> int:
        """Whole seconds until nothing that was used counts any more."""
        if self.current > 0:
            return ceil(self.current_left)
        return ceil(self.previous_left) if self.previous > 0 else 0

    def wait(self, cost: int) -> int:
        """Whole seconds until there is room for `cost` (at most the limit), if nothing else is taken.

        At least 1 if there is none.
        """
        if cost <= self.remaining:
            return 0
        room = self.limit - self.current - cost
        if room >= 0:
            seconds = self.previous_left - MINUTE * room / self.previous if self.previous > 0 else 0.0
        else:  # this minute has to become the one before, and to fade
            turn = max(0.0, self.current_left - MINUTE)
            seconds = turn + MINUTE * (1 - (self.limit - cost) / self.current)
        return max(1, ceil(seconds))


class Windows:
    """See the module. `where` None: in this process. Raises ModuleNotFoundError without the redis client.

    What the store raises comes out of each call: `errors` are what it may be, a TimeoutError among them.
    """

    def __init__(self, where: str | None) -> None:
        self._pool: ConnectionPool | None = None
        self._storage: MemoryStorage | RedisStorage
        self.errors: tuple[type[Exception], ...] = (OSError,)
        if where is None:
            self._storage = MemoryStorage()
        else:
            from redis.asyncio import ConnectionPool
            from redis.exceptions import RedisError

            # The pool is ours: its address stays here, and it can be closed. The client has no time limit of
            # its own: the caller has one, and the client's (asyncio.wait_for) may lose a cancellation.
            self._pool = ConnectionPool.from_url(where, socket_timeout=None)
            self._storage = RedisStorage(
                "async+redis://",
                implementation="redispy",
                key_prefix=_PREFIX,
                connection_pool=self._pool,  # type: ignore[arg-type]  # documented; its type knows scalars only
            )
            self.errors = (OSError, RedisError)
        self._limiter = SlidingWindowCounterRateLimiter(self._storage)

    async def take(self, kind: str, who: str, *, limit: int, cost: int) -> tuple[bool, Window]:
        """Use up `cost` if it fits; and the window as it is then."""
        item = RateLimitItemPerMinute(limit, namespace=kind)
        fits = await self._limiter.hit(item, who, cost=cost)
        return fits, await self.look(kind, who, limit=limit)

    async def look(self, kind: str, who: str, *, limit: int) -> Window:
        item = RateLimitItemPerMinute(limit, namespace=kind)
        return Window(limit, *await self._storage.get_sliding_window(item.key_for(who), MINUTE))

    async def add(self, kind: str, who: str, *, limit: int, cost: int) -> None:
        """Use up `cost` whether it fits or not; give back what is negative."""
        item = RateLimitItemPerMinute(limit, namespace=kind)
        await self._storage.acquire_sliding_window_entry(item.key_for(who), _UNBOUNDED, MINUTE, cost)

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
