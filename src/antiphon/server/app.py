"""The ASGI application: routes, limits on bodies, health, and the life of the gateway.

Owns which path does what. The streaming paths are dispatched here, before Starlette, which serves the
ordinary routes; how a request runs is server.exchange's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import structlog
from msgspec import structs

from antiphon.config import ConfigError, Limits, Settings
from antiphon.config_changes import changes, taken_over
from antiphon.core import own_faults
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.openai.request import ROUTES
from antiphon.observe.gauges import Sources
from antiphon.observe.log import log_bug, set_level
from antiphon.observe.metrics import Metrics
from antiphon.server.admission import LeaseState
from antiphon.server.answers import Receive, Send
from antiphon.server.catalog import Model
from antiphon.server.drains import Drains
from antiphon.server.edge import EdgeProtocol
from antiphon.server.entry import Entry, entry_for
from antiphon.server.exchange import Exchange
from antiphon.server.inference import Asked, Inference
from antiphon.server.key_limits import KeyLimits
from antiphon.server.ordinary import PREFIXES, OrdinaryRoutes
from antiphon.server.planning import Planning
from antiphon.server.prefixes import PrefixIndex
from antiphon.server.reload import ConfigWatch
from antiphon.server.retry_budget import RetryBudget
from antiphon.server.routing import RouteTable
from antiphon.server.surface import MESSAGES, OPENAI
from antiphon.server.upstreams import Upstream
from antiphon.server.worker_peers import Peers

log = structlog.get_logger("antiphon.server")

MESSAGES_PATHS = frozenset(f"{prefix}/v1/messages" for prefix in PREFIXES)
COUNT_TOKENS = frozenset(f"{path}/count_tokens" for path in MESSAGES_PATHS)
RELAYED = {f"{prefix}/v1{route}": route for prefix in PREFIXES for route in ROUTES}
# A letter for each byte; some come more often than others, and 24 are far more than enough all the same.
_ID_LETTERS = (b"0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz" * 5)[:256]


class _Told:
    """ASGI's send, and whether the answer has begun."""

    __slots__ = ("_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Any) -> None:
        self.started = True
        await self._send(message)


class Backend(Protocol):
    """What stands behind the gateway: upstreams by name, and the table that chooses among them."""

    @property
    def table(self) -> RouteTable: ...
    @property
    def upstreams(self) -> dict[str, Upstream]: ...
    @property
    def leaving(self) -> list[Upstream]: ...
    @property
    def prefixes(self) -> PrefixIndex: ...
    async def models(self) -> list[Model]: ...
    async def start(self) -> None: ...
    def expire(self, now: float) -> None: ...
    def apply(self, settings: Settings) -> None: ...
    async def aclose(self) -> None: ...


class Gateway:
    """One gateway process.

    `sealer` None: what is sealed lasts as long as the process. `clock` is monotonic, in seconds; tests
    give their own and call `tick`.
    """

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        *,
        sealer: Sealer | None = None,
        entry: Entry | None = None,
        key_limits: KeyLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.sealer = sealer or Sealer(secrets.token_bytes(32))
        self.limits: Limits = settings.limits
        self.clock = clock
        self.backend = backend
        self.edges: set[EdgeProtocol] = set()
        self.live: set[Exchange] = set()
        self.draining = False
        self._drain_deadline: float | None = None
        self._known: tuple[RouteTable | None, set[str]] = (None, set())
        self.planning = Planning(self.limits, settings.pdf)
        self.budget = RetryBudget(per_request=settings.retries.budget, now=clock())
        self.entry = entry or Entry()
        self.key_limits = key_limits or KeyLimits(clock=clock)
        self.watch: ConfigWatch | None = None  # of the files that the settings came from
        self._inference = Inference(self)
        self.drains = Drains()
        self.metrics = Metrics(
            Sources(
                known_models=self._known_models,
                upstreams=lambda: backend.upstreams,
                leaving=lambda: backend.leaving,
                budget=self.budget.statistics,
                clock=clock,
            )
        )
        self.peers: Peers | None = None  # the other workers on the same port
        self.ordinary = OrdinaryRoutes(self)

    # --- ASGI ---

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        request_id = self.new_request_id()
        told = _Told(send)
        try:
            await self._route(scope, receive, told, request_id)
        except Exception as error:
            if told.started:
                raise  # the server logs it and cuts the answer off: half of it must not look whole
            log_bug(log, error, request_id=request_id)
            surface = OPENAI if scope["path"].rstrip("/") in RELAYED else MESSAGES
            await surface.respond(send, own_faults.internal(request_id), request_id)

    async def _route(self, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
        path = scope["path"].rstrip("/") or "/"
        surface = OPENAI if path in RELAYED else MESSAGES
        who = self.entry.admit(scope, path, time.time())
        if isinstance(who, Fault):
            self.metrics.refused(who.kind, surface.name)
            log.info(
                "refused", request_id=request_id, surface=surface.name, error=who.kind, status=who.status
            )
            await surface.respond(send, who, request_id)
            return
        if path not in MESSAGES_PATHS and path not in COUNT_TOKENS and path not in RELAYED:
            more = {"path": path, "raw_path": None, "antiphon.request_id": request_id, "antiphon.who": who}
            await self.ordinary.app({**scope, **more}, receive, _with_request_id(send, request_id))
            return
        if scope["method"] != "POST":
            fault = own_faults.method_not_allowed(scope["method"], path)
            await surface.respond(send, fault, request_id, ((b"allow", b"POST"),))
            return
        asked = Asked(scope, receive, send, request_id, who)
        if path in RELAYED:
            await self._inference.relay(asked, RELAYED[path])
        elif path in COUNT_TOKENS:
            await self._inference.count_tokens(asked)
        else:
            await self._inference.messages(asked)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        async with self.running():
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The gateway's life: its upstreams, its ticker."""
        await self.backend.start()
        if self.peers is not None:
            await self.peers.start()
        ticker = asyncio.get_running_loop().create_task(self._tick_for_ever())
        try:
            yield
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
            for exchange in list(self.live):
                exchange.close("shutdown")
            self.planning.close()
            if self.peers is not None:
                await self.peers.aclose()
            await self.backend.aclose()
            await self.key_limits.aclose()

    # --- time and the end ---

    def _known_models(self) -> set[str]:
        table = self.backend.table
        if self._known[0] is not table:  # a table is made anew when something in it has changed
            exact = {route.model for route in table.routes if route.exact}
            self._known = table, exact.union(*table.listed.values())
        return self._known[1]

    def new_request_id(self) -> str:
        return "req_" + os.urandom(24).translate(_ID_LETTERS).decode()

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self.limits.tick
            await asyncio.sleep(self.limits.tick)
            self.metrics.loop_lag.observe(max(0.0, loop.time() - due))
            try:
                self.tick(self.clock())
            except Exception as error:  # noqa: BLE001 - time limits must outlive a bug
                log_bug(log, error, request_id="tick")

    def tick(self, now: float) -> None:
        """The one coarse ticker: every time limit of every request is looked at here."""
        self.drains.apply(self.backend.upstreams)  # first: who waits there is told at this tick
        for exchange in list(self.live):
            exchange.tick(now)
        for edge in list(self.edges):
            edge.tick(now)
        self.backend.expire(now)
        self.entry.tick(now)
        if self.watch is not None:
            self.watch.tick(now)
        if self._drain_deadline is not None and now >= self._drain_deadline:
            for exchange in list(self.live):
                exchange.close("shutdown")

    def apply(self, wanted: Settings) -> None:
        """Take over new settings; running exchanges keep theirs. Raises ConfigError before any change."""
        if self.peers is not None and self.settings.coordination is not None:
            # Workers count themselves, and may share through a folder of their own, which no file names.
            own = self.settings.coordination
            asked = wanted.coordination or own
            if structs.replace(asked, gateways=own.gateways) == own:
                wanted = structs.replace(wanted, coordination=own)
        told = changes(self.settings, wanted)
        settings = taken_over(self.settings, wanted)
        entry = entry_for(settings)
        try:
            self.backend.apply(settings)
        except ValueError as wrong:
            raise ConfigError(str(wrong)) from None
        self.drains.apply(self.backend.upstreams)
        self.settings, self.limits, self.entry = settings, settings.limits, entry
        self.budget.set_rate(settings.retries.budget)
        self.planning.apply(settings.limits, settings.pdf)
        set_level(settings.log_level)
        if told:
            log.info("settings_changed", **told.told())

    def cancel(self, request_id: str) -> bool:
        """End an exchange, for the operator; of one that is gone free what drains. Whether there was one."""
        for exchange in list(self.live):
            if exchange.job.request_id == request_id and not exchange.over:
                exchange.close("operator")
                return True
        drains = [
            lease
            for upstream in (*self.backend.upstreams.values(), *self.backend.leaving)
            for lease in upstream.slots.leases()
            if lease.owner == request_id and lease.state is LeaseState.DRAINING
        ]
        for lease in drains:
            lease.release()
        return bool(drains)

    def drain(self) -> None:
        """Take no more requests; those that run may run on until the deadline."""
        if not self.draining:
            self.draining = True
            self._drain_deadline = self.clock() + self.limits.drain
            log.info("draining", exchanges=len(self.live), seconds=self.limits.drain)

    def stop_now(self) -> None:
        """No more patience: every exchange ends with an honest error at the next tick of the loop."""
        for exchange in list(self.live):
            exchange.close("shutdown")
        self.planning.close()


def _with_request_id(send: Send, request_id: str) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"request-id", request_id.encode())]
        await send(message)

    return sending
