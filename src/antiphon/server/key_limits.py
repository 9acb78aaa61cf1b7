"""What a key may use up: requests at once, requests and tokens in a minute.

Owns the count of each key's running requests, what is charged when, and the answers to a key that is over its
own limit: 429 `rate_limit_error` with `retry-after`, and Anthropic's rate-limit headers on every answer
(protocol: A, rate-limit headers). A full gateway is another matter: 529, server.admission's.

    limits = KeyLimits(where="redis://host:6379/0")          # None: counted in this process
    said = await limits.check(identity.key, estimate=chat.input_estimate, now=time.time())
    if isinstance(said, Refusal): ...                         # said.fault, said.headers
    said.finish(usage)                                        # exactly one way out of a request calls this

- A request's input is charged when it comes, as estimated, and corrected when it ends: to the input that was
  not read from a cache, and the output. What was charged too much is given back as far as it still counts.
- A request that is larger than the whole minute's limit is not impossible: it takes a whole minute.
- Requests at once are counted in this process, minutes where `where` says.
- A store that does not answer in time limits nobody: the log says so, and it is asked in the background until
  it answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

import structlog
from msgspec import Struct

from antiphon.core.parts import Fault, MessageUsage
from antiphon.server.key_windows import MINUTE, SCHEMES, Window, Windows
from antiphon.server.keys import Key

log = structlog.get_logger("antiphon.keys")

T = TypeVar("T")

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

PATIENCE: Final = 0.05
"""Seconds that a request waits for the store."""

_PROBE_PATIENCE: Final = 2.0  # seconds to connect in, when nobody waits for it
_PROBE_PAUSE: Final = 1.0
_BUSY_RETRY: Final = 2  # seconds: when a key's own request ends is not known
_REQUESTS: Final = "requests"
_TOKENS: Final = "tokens"


class Refusal(Struct, frozen=True):
    """The key is over its limit: what to say, and what to say it with.

    `limit`: which one, `concurrent`, `requests` or `tokens`.
    """

    fault: Fault
    headers: Headers = ()
    limit: str = "concurrent"


class Admission:
    """A request that was let in. `headers` go with its answer, whatever it is."""

    __slots__ = ("_finish", "headers")

    def __init__(
        self, headers: Headers = (), finish: Callable[[MessageUsage | None], None] | None = None
    ) -> None:
        self.headers = headers
        self._finish = finish

    def finish(self, usage: MessageUsage | None) -> None:
        """The request is over; None: it used nothing. Idempotent, waits for nothing."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(usage)


UNLIMITED: Final = Admission()
"""Of a request that no limit concerns."""


class KeyLimits:
    """See the module. `where` is a coordination's: what is no `redis://` has no store.

    `clock` is monotonic, in seconds. Raises ModuleNotFoundError without the redis client, ValueError for a
    URL that is none.
    """

    def __init__(self, where: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._windows = Windows(where if where is not None and where.startswith(SCHEMES) else None)
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._probe: asyncio.Task[None] | None = None  # the store is down while this runs
        self._tasks: set[asyncio.Task[None]] = set()

    def running(self, key: Key) -> int:
        """How many requests of this key run in this process."""
        return self._running[key.sha256]

    async def check(self, key: Key | None, estimate: int, now: float) -> Admission | Refusal:
        """May it run? `estimate` in input tokens, `now` in Unix seconds.

        Left by cancellation, it has counted nothing as running.
        """
        if key is None or not _limited(key):
            return UNLIMITED
        if key.concurrent is not None and self._running[key.sha256] >= key.concurrent:
            fault = _over(f"this API key may have {key.concurrent} requests at once", _BUSY_RETRY)
            return Refusal(fault, await self._headers(key, now))
        self._enter(key)  # before anything is waited for: two cannot take one place
        admitted = False
        try:
            said = await self._take(key, estimate, now)
            admitted = isinstance(said, Admission)
        finally:
            if not admitted:
                self._leave(key)
        return said

    async def settled(self) -> None:
        """Every correction so far has arrived, or was given up."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Corrections that are on their way may arrive; then the store is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE * 2):
                await self.settled()
        left = [*self._tasks, *([self._probe] if self._probe is not None else [])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._windows.aclose()

    # --- what is used ---

    async def _take(self, key: Key, estimate: int, now: float) -> Admission | Refusal:
        requests, tokens = key.requests_per_minute, key.tokens_per_minute
        charge = 0 if tokens is None else max(1, min(estimate, tokens))
        taken: list[tuple[str, Window]] = []

        async def take() -> Refusal | None:
            who = _counter_name(key)
            if tokens is not None:
                fits, window = await self._windows.take(_TOKENS, who, limit=tokens, cost=charge)
                taken.append((_TOKENS, window))
                if not fits:
                    return _refusal(_TOKENS, tokens, window.wait(charge), taken, now)
            if requests is not None:
                fits, window = await self._windows.take(_REQUESTS, who, limit=requests, cost=1)
                taken.append((_REQUESTS, window))
                if not fits:
                    self._correct(key, -charge)
                    return _refusal(_REQUESTS, requests, window.wait(1), taken, now)
            return None

        began = self._clock()
        asked, refusal = await self._ask(take)
        if refusal is not None:
            return refusal
        charged = charge if asked else 0

        def finish(usage: MessageUsage | None) -> None:
            self._leave(key)
            difference = _counted(usage) - charged
            if difference < 0:  # it counts less the older it is, and less is given back
                difference = round(difference * max(0.0, 1 - (self._clock() - began) / MINUTE))
            self._correct(key, difference)

        return Admission(_headers(taken, now), finish)

    def _enter(self, key: Key) -> None:
        self._running[key.sha256] += 1

    def _leave(self, key: Key) -> None:
        self._running[key.sha256] -= 1
        if not self._running[key.sha256]:
            del self._running[key.sha256]

    def _correct(self, key: Key, difference: int) -> None:
        limit = key.tokens_per_minute
        if limit is None or not difference:
            return

        async def add() -> None:
            await self._windows.add(_TOKENS, _counter_name(key), limit=limit, cost=difference)

        self._later(self._ask_nobody_waits(add))

    async def _headers(self, key: Key, now: float) -> Headers:
        found: list[tuple[str, Window]] = []

        async def look() -> None:
            for kind, limit in ((_REQUESTS, key.requests_per_minute), (_TOKENS, key.tokens_per_minute)):
                if limit is not None:
                    found.append((kind, await self._windows.look(kind, _counter_name(key), limit=limit)))

        await self._ask(look)
        return _headers(found, now)

    # --- the store ---

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> tuple[bool, T | None]:
        """Whether the store has answered, and what. It never makes anybody wait for longer than PATIENCE."""
        if self._probe is not None:
            return False, None
        try:
            async with asyncio.timeout(PATIENCE):
                return True, await question()
        except self._windows.errors as error:
            self._is_down(error)
            return False, None

    async def _ask_nobody_waits(self, question: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._probe is None:
            try:
                async with asyncio.timeout(_PROBE_PATIENCE):
                    await question()
            except self._windows.errors as error:
                self._is_down(error)

    def _is_down(self, error: Exception) -> None:
        if self._probe is None:
            # Its text may hold an address.
            log.warning("key_limits_unreachable", reason=type(error).__name__, policy="nobody is limited")
            self._probe = asyncio.get_running_loop().create_task(self._until_up())

    async def _until_up(self) -> None:
        """Connect without haste: what is within reach but far away must not stay down for PATIENCE's sake."""
        while True:
            try:
                async with asyncio.timeout(_PROBE_PATIENCE):
                    await self._windows.look("probe", "", limit=1)
            except self._windows.errors:
                await asyncio.sleep(_PROBE_PAUSE)
            else:
                break
        self._probe = None
        log.info("key_limits_reachable")

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _limited(key: Key) -> bool:
    return (key.concurrent or key.requests_per_minute or key.tokens_per_minute) is not None


def _counter_name(key: Key) -> str:
    return key.sha256[:16]  # names may be anything to anybody; the same key is the same in every gateway


def _counted(usage: MessageUsage | None) -> int:
    """Tokens of a request that count: what was read from a cache does not (protocol: A, rate limits)."""
    if usage is None:
        return 0
    return usage.input_tokens + (usage.cache_creation_input_tokens or 0) + usage.output_tokens


def _over(said: str, retry_after: int) -> Fault:
    return Fault("rate_limit_error", said, 429, retry_after=str(retry_after))


def _refusal(kind: str, limit: int, wait: int, taken: list[tuple[str, Window]], now: float) -> Refusal:
    said = f"this API key's limit of {limit} {kind} in a minute is reached"
    return Refusal(_over(said, max(1, wait)), _headers(taken, now), kind)


def _headers(windows: list[tuple[str, Window]], now: float) -> Headers:
    headers: list[tuple[bytes, bytes]] = []
    for kind, window in windows:
        name = f"anthropic-ratelimit-{kind}".encode()
        reset = datetime.fromtimestamp(int(now) + window.reset, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        headers += [
            (name + b"-limit", b"%d" % window.limit),
            (name + b"-remaining", b"%d" % window.remaining),
            (name + b"-reset", reset.encode()),
        ]
    return tuple(headers)
