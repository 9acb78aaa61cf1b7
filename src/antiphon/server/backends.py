"""What stands behind a gateway without a configuration: the embedded upstreams.

Owns their life, and what every upstream's slots are shared with. Those of a configuration are
server.fleet's.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable

import aiohttp

from antiphon.config import Coordination, Limits, Settings, UpstreamSettings
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.local import slots_busy
from antiphon.server.catalog import Model, with_aliases
from antiphon.server.coordination import open_coordinator
from antiphon.server.embedded import LOCAL_MODEL, LocalView, Servers
from antiphon.server.prefixes import PrefixIndex
from antiphon.server.routing import ANY, Route, RouteTable, Target
from antiphon.server.upstream_dial import parse_base_url
from antiphon.server.upstreams import Sharing, Upstream

SIMULATED_MODEL = "reasoning"
SIMULATED_SLOTS = 8
_REMEDY = (
    "The embedded model is small: serve a larger one with `antiphon serve --upstream http://HOST:PORT/v1`, "
    f"or try the gateway with the simulator: model `{SIMULATED_MODEL}`."
)


def session_for_facts() -> aiohttp.ClientSession:
    """For what is not inference. No connection is kept: llama.cpp closes them right after its answer."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


def nobody(request_id: str) -> None:
    pass


def sharing(
    coordination: Coordination | None,
    settings: UpstreamSettings,
    lost: Callable[[str], None],
    *,
    twins: int = 1,
) -> Sharing | None:
    """What joins the other gateways of this upstream: those that call it by the same URL.

    `twins` is how many upstreams each of them has at this URL: in their slots they are so many gateways.
    Raises ValueError, OSError (a folder that cannot be used), ModuleNotFoundError (no redis client).
    """
    if coordination is None:
        return None
    coordinator = open_coordinator(coordination.where, shared_name(settings.base_url), name=settings.name)
    return Sharing(coordinator, lost, coordination.policy, coordination.gateways * twins)


def shared_name(base_url: str) -> str:
    """What all gateways call the upstream at this URL: a digest, so that no address is where they meet.

    Raises ValueError for a base URL that is none.
    """
    origin = parse_base_url(base_url)
    return hashlib.blake2b(f"{origin}?{origin.query}".encode(), digest_size=8).hexdigest()


class EmbeddedBackend:
    """`antiphon serve` alone: llama.cpp with a small model where it can run, and the simulator.

    `servers` run in this process or in the supervisor of several; then `coordination` is between those.
    """

    def __init__(
        self,
        limits: Limits,
        servers: Servers,
        *,
        coordination: Coordination | None = None,
        lost: Callable[[str], None] = nobody,
    ) -> None:
        self._limits = limits
        self._servers = servers
        self._coordination = coordination
        self._lost = lost
        self._stack = contextlib.AsyncExitStack()
        self._ready = False  # llama.cpp, when we last looked
        self.upstreams: dict[str, Upstream] = {}
        self.leaving: list[Upstream] = []  # none ever does
        self.prefixes = PrefixIndex()

    @property
    def table(self) -> RouteTable:
        routes = [Route(SIMULATED_MODEL, (Target("simulator", by_name("generic")),))]
        local = self._servers.view.local
        if local is not None:
            targets = (Target("local", by_name("llamacpp"), LOCAL_MODEL),)
            routes += [
                Route(LOCAL_MODEL, targets, local.window),
                Route(ANY, targets, local.window, _REMEDY),
            ]
        return RouteTable(tuple(routes))

    async def models(self) -> list[Model]:
        return with_aliases([Model(route.model, route.window) for route in self.table.routes if route.exact])

    async def start(self) -> None:
        servers = self._servers
        servers.on_change = self._changed
        self._stack.push_async_callback(servers.aclose)
        await servers.start()
        simulator = UpstreamSettings(
            name="simulator", base_url=servers.view.simulator, slots=SIMULATED_SLOTS, kind="generic"
        )
        self._add(Upstream(simulator, self._limits, sharing=self._sharing(simulator)))
        if servers.view.local is not None:
            await self._add_local(servers.view.local)

    async def _add_local(self, local: LocalView) -> None:
        session = await self._stack.enter_async_context(session_for_facts())

        async def busy() -> int | None:
            return await slots_busy(local.base_url, session, api_key=local.api_key)

        settings = UpstreamSettings(
            name="local",
            base_url=local.base_url,
            api_key=local.api_key,
            slots=local.slots,
            kind="llamacpp",
        )
        self._add(
            Upstream(
                settings,
                self._limits,
                session=session,
                busy=busy,
                unavailable=self._local_refusal,
                sharing=self._sharing(settings),
            )
        )
        self._changed()

    def _sharing(self, settings: UpstreamSettings) -> Sharing | None:
        return sharing(self._coordination, settings, self._lost)

    def _changed(self) -> None:
        local, upstream = self._servers.view.local, self.upstreams.get("local")
        if local is None or upstream is None:
            return
        was, self._ready = self._ready, local.state == "ready"
        if self._ready and not was:
            upstream.slots.set_slots(local.slots)

    def _local_refusal(self) -> Fault | None:
        local = self._servers.view.local
        if local is None or local.state == "ready":
            return None
        if local.state in ("starting", "restarting"):
            said = f"the embedded model's server is {local.state}"
            return Fault("overloaded_error", said, 529, str(local.retry_after))
        return Fault("overloaded_error", "the embedded model's server does not run", 529, "30")

    def _add(self, upstream: Upstream) -> None:
        upstream.start()
        self.upstreams[upstream.name] = upstream
        self._stack.push_async_callback(upstream.aclose)

    def expire(self, now: float) -> None:
        """See `Upstream.expire`. About once a second."""
        for upstream in self.upstreams.values():
            upstream.expire(now)

    def apply(self, settings: Settings) -> None:
        """Nothing of a configuration is about the embedded ones."""

    async def aclose(self) -> None:
        await self._stack.aclose()
