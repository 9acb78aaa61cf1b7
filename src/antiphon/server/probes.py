"""The active prober: asks servers that no request tells of whether they are there.

Owns when which server is asked, and how an answer is read. One task asks for all of them. What an answer
means for a circuit is `server.health`'s, and no request ever waits for a probe. A server is asked

- at once when a connection to it broke under a request: one that died and was started anew within an
  `interval` would otherwise pass for the one that it was;
- soon again (`recovery` seconds) while it is gone, or its circuit is not closed, or it loads a model;
- every `interval` seconds while nothing else is heard of it: requests tell more than probes.

An answer below 500 is a server that is there: one that has no list of models, or wants another key, still
serves. One that accepts the connection and is late with its answer says nothing while it works for requests:
some servers read prompts on the loop that should answer.

When one that was gone answers again, `returned` is called with its name: it may be another process with
another model, so it is to be recognised anew, and what was cached there is lost.

    prober = Prober(lambda: watched, session, clock=time.monotonic, returned=recognise)
    prober.start()
    await prober.aclose()
"""

from __future__ import annotations

import asyncio
import random as randomness
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias

import aiohttp
import structlog
from msgspec import Struct

from antiphon.core.dialects.address import below
from antiphon.core.failover import Trouble, row_of
from antiphon.core.faults import fault_of_response
from antiphon.core.recognise import root_url
from antiphon.observe.log import log_bug
from antiphon.server.health import Health

log = structlog.get_logger("antiphon.probes")

ProbeRoute: TypeAlias = Literal["models", "health"]
"""`GET /models` below the base path, or `GET /health` beside it."""

_LACKS: Final = 501  # a server that lives, and lacks this route
_READ: Final = 16 * 1024  # bytes of a complaint
_JITTER: Final = 0.2  # of an interval, to either side: many gateways must not ask in step


class Watched(Struct, frozen=True):
    """One server to look after.

    `url`: what is asked (`probe_url`). `working`: requests run there now, and it may be late for that reason.
    """

    name: str
    url: str
    health: Health
    working: Callable[[], bool]
    headers: dict[str, str] = {}  # they carry the key

    def __repr__(self) -> str:
        return f"Watched({self.name!r})"


def probe_url(base_url: str, route: ProbeRoute) -> str:
    """Where a server is asked.

    llama.cpp, vLLM and SGLang have `/health` outside of `/v1`. llama.cpp's says 503 while it loads a model,
    when its list of models is already served.
    """
    return below(base_url, "/models") if route == "models" else f"{root_url(base_url)}/health"


class Prober:
    """See the module. `targets` is asked before every round, so that a reload needs nothing here.

    `session` is the caller's to close. `limit`: seconds for one answer. `concurrent`: probes at once.
    `random` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        targets: Callable[[], Iterable[Watched]],
        session: aiohttp.ClientSession,
        *,
        clock: Callable[[], float],
        returned: Callable[[str], None] = lambda name: None,
        interval: float = 10.0,
        recovery: float = 2.0,
        limit: float = 2.0,
        concurrent: int = 8,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._targets = targets
        self._session = session
        self._clock = clock
        self._returned = returned
        self._interval = interval
        self._recovery = recovery
        # The kernel accepts for a process that is busy: a late connection is another matter.
        self._timeout = aiohttp.ClientTimeout(total=limit, sock_connect=limit / 2)
        self._gate = asyncio.Semaphore(concurrent)
        self._random = random
        # When each was last asked, or first seen. Of its health: a reload that makes a new one begins anew.
        self._asked: dict[Health, tuple[float, float]] = {}
        self._task: asyncio.Task[None] | None = None

    def set_pace(self, interval: float, recovery: float) -> None:
        """Seconds between two probes of a server, and of one that is gone, from now on."""
        self._interval, self._recovery = interval, recovery

    def start(self) -> None:
        """Begin, from the running loop. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Stop, in the middle of a probe if need be; what was not answered yet counts as nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def round(self) -> None:
        """Ask everyone whose time has come, and wait for the answers. Cancel safe."""
        now = self._clock()
        watched = list(self._targets())
        self._asked = {
            # Who is new was asked what it is a moment ago (`kind = "auto"`): its first probe can wait.
            one.health: self._asked.get(one.health, (now, self._random() * 2 - 1))
            for one in watched
        }
        async with asyncio.TaskGroup() as probes:
            for one in watched:
                if self.due(one, now):
                    self._asked[one.health] = now, self._random() * 2 - 1
                    probes.create_task(self._probe(one))

    def due(self, one: Watched, now: float) -> bool:
        """Whether it is time to ask this one."""
        health = one.health
        if health.doubtful:
            return True
        ill = health.gone or health.waiting(now) or health.state(now) != "closed"
        every = self._recovery if ill else self._interval
        asked, shift = self._asked.get(health, (now, 0.0))
        if now - asked < every * (1 + _JITTER * shift):
            return False
        return ill or not health.heard_since(now - every)

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception as error:  # noqa: BLE001 - a bug must not leave every server unwatched
                log_bug(log, error, request_id="probes")
            await asyncio.sleep(min(self._recovery, self._interval) / 2)

    async def _probe(self, one: Watched) -> None:
        try:
            async with self._gate:
                trouble = await self._ask(one)
            self._note(one, trouble)
        except Exception as error:  # noqa: BLE001 - a bug in one probe must not end the others
            log_bug(log, error, request_id=f"probe:{one.name}")

    def _note(self, one: Watched, trouble: Trouble | None) -> None:
        now = self._clock()
        was = one.health.state(now)
        if trouble == "timeout" and one.working():
            return
        if trouble is not None:
            one.health.unanswered(trouble, now)
            if was == "closed" and one.health.state(now) != "closed":
                log.warning("upstream_lost", upstream=one.name, trouble=trouble)
        elif one.health.answered(now):
            log.info("upstream_returned", upstream=one.name)
            self._returned(one.name)

    async def _ask(self, one: Watched) -> Trouble | None:
        """What is wrong, None if it answers."""
        try:
            async with self._session.get(
                one.url, headers=one.headers, timeout=self._timeout, allow_redirects=False
            ) as answer:
                if answer.status < 500 or answer.status == _LACKS:
                    return None
                complaint = await answer.content.read(_READ)
        except aiohttp.ConnectionTimeoutError:
            return "connect"
        except TimeoutError:
            return "timeout"
        except aiohttp.ClientSSLError:
            return "tls"
        except aiohttp.ClientConnectorError:
            return "connect"
        except (aiohttp.ClientError, OSError, ValueError):
            return "reset"
        return _trouble_of(answer.status, complaint)


def _trouble_of(status: int, complaint: bytes) -> Trouble:
    """A 503 is a server that loads, or a proxy with nobody behind it: overload refuses no list of models."""
    loads = row_of(fault_of_response(status, {}, complaint), status=status) == "loading"
    return "loading" if loads else "status"
