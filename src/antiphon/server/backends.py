"""What stands behind a gateway: one upstream of the user's, or the embedded ones.

Owns which upstreams there are and their life. A later config file adds a third kind here.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import aiohttp
import structlog

from antiphon.config import Coordination, Limits, UpstreamSettings
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.local import LocalServer, LocalServerError, slots_busy
from antiphon.server.catalog import Catalog, Model, ask_upstream, with_aliases
from antiphon.server.coordination import open_coordinator
from antiphon.server.routing import Route, RouteTable
from antiphon.server.upstream_dial import parse_base_url
from antiphon.server.upstreams import BusyReport, Sharing, Upstream
from antiphon.simulator import Simulator, SimulatorSettings

log = structlog.get_logger("antiphon.server")

LOCAL_MODEL, SIMULATED_MODEL = "smollm2", "reasoning"
SIMULATED_SLOTS = 8
STUB_LOG = "stub-reasoning.log"
_REMEDY = (
    "The embedded model is small: serve a larger one with `antiphon serve --upstream http://HOST:PORT/v1`, "
    f"or try the gateway with the simulator: model `{SIMULATED_MODEL}`."
)


def _session() -> aiohttp.ClientSession:
    """For what is not inference. No connection is kept: llama.cpp closes them right after its answer."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


def _nobody(request_id: str) -> None:
    pass


def sharing(
    coordination: Coordination | None, settings: UpstreamSettings, lost: Callable[[str], None]
) -> Sharing | None:
    """What joins the other gateways of this upstream. Raises ValueError, ModuleNotFoundError (no redis client).

    Gateways share the slots of upstreams that they call by one name and one URL.
    """
    if coordination is None:
        return None
    coordinator = open_coordinator(coordination.where, f"{settings.name} {settings.base_url}")
    return Sharing(coordinator, lost, coordination.policy, coordination.gateways)


class SingleBackend:
    """`antiphon serve --upstream`: every model name passes through to one server.

    `lost` is told the request id of an exchange whose slot others have by now. Raises ValueError for a base
    URL that is none, and what `sharing` raises.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        limits: Limits,
        *,
        coordination: Coordination | None = None,
        lost: Callable[[str], None] = _nobody,
    ) -> None:
        parse_base_url(settings.base_url)
        self._settings = settings
        self._limits = limits
        self._sharing = sharing(coordination, settings, lost)
        self._session: aiohttp.ClientSession | None = None
        self._catalog = Catalog(self._ask)
        self._first_look: asyncio.Task[list[Model]] | None = None
        self.upstreams: dict[str, Upstream] = {}

    @property
    def table(self) -> RouteTable:
        windows = {model.id: model.window for model in self._catalog.known.values()}
        return RouteTable((Route(self._settings.name, self._settings.profile),), windows)

    async def models(self) -> list[Model]:
        return with_aliases(await self._catalog.models())

    async def _ask(self) -> list[Model] | None:
        session, settings = self._session, self._settings
        return None if session is None else await ask_upstream(session, settings.base_url, settings.api_key)

    async def start(self) -> None:
        settings = self._settings
        session = self._session = _session()
        busy: BusyReport | None = None
        if by_name(settings.profile).drain_report == "slots":

            async def busy() -> int | None:
                return await slots_busy(settings.base_url, session, api_key=settings.api_key)

        upstream = Upstream(settings, self._limits, session=session, busy=busy, sharing=self._sharing)
        upstream.start()
        self.upstreams = {settings.name: upstream}
        # Windows and aliases are worth knowing early; nothing waits for them.
        self._first_look = asyncio.get_running_loop().create_task(self._catalog.models())

    async def aclose(self) -> None:
        if self._first_look is not None:
            self._first_look.cancel()
            await asyncio.gather(self._first_look, return_exceptions=True)
        for upstream in self.upstreams.values():
            await upstream.aclose()
        if self._session is not None:
            await self._session.close()


class EmbeddedBackend:
    """`antiphon serve` alone: llama.cpp with a small model where it can run, and the simulator.

    `model_file` None: llama.cpp cannot run here, `reason` says why.
    """

    def __init__(self, limits: Limits, *, model_file: Path | None, reason: str = "") -> None:
        self._limits = limits
        self._model_file = model_file
        self._reason = reason
        self._stack = contextlib.AsyncExitStack()
        self._local: LocalServer | None = None
        self._starting: asyncio.Task[None] | None = None
        self.upstreams: dict[str, Upstream] = {}
        self.stub_log: Path | None = Path(tempfile.gettempdir()) / STUB_LOG

    @property
    def table(self) -> RouteTable:
        routes = [Route("simulator", "generic", model=SIMULATED_MODEL)]
        if self._local is not None:
            window = self._local.window
            routes += [
                Route("local", "llamacpp", model=LOCAL_MODEL, sends=LOCAL_MODEL, window=window),
                Route("local", "llamacpp", sends=LOCAL_MODEL, window=window, remedy=_REMEDY),
            ]
        return RouteTable(tuple(routes))

    async def models(self) -> list[Model]:
        return with_aliases(
            [Model(route.model, route.window) for route in self.table.routes if route.model is not None]
        )

    async def start(self) -> None:
        await self._start_simulator()
        if self._model_file is not None:
            await self._start_local(self._model_file)
        else:
            log.warning("no_embedded_model", reason=self._reason)

    async def _start_simulator(self) -> None:
        simulator = Simulator(SimulatorSettings(log_path=self.stub_log))
        try:
            await simulator.start()
        except OSError as refused:
            # Somebody else's file lies where the log should be: the gateway is worth more than the log.
            log.warning("simulator_without_log", reason=str(refused))
            self.stub_log = None
            simulator = Simulator(SimulatorSettings())
            await simulator.start()
        self._stack.push_async_callback(simulator.aclose)
        settings = UpstreamSettings(name="simulator", base_url=simulator.base_url, slots=SIMULATED_SLOTS)
        self._add(Upstream(settings, self._limits))

    async def _start_local(self, model_file: Path) -> None:
        local = self._local = LocalServer(model_file, alias=LOCAL_MODEL, on_state=self._on_local_state)
        self._stack.push_async_callback(local.aclose)
        # It loads for a second or two: until then its model alone is answered 529.
        self._starting = asyncio.get_running_loop().create_task(self._first_start(local))
        await asyncio.sleep(0)
        session = await self._stack.enter_async_context(_session())

        async def busy() -> int | None:
            return await slots_busy(local.base_url, session, api_key=local.api_key)

        settings = UpstreamSettings(
            name="local",
            base_url=local.base_url,
            api_key=local.api_key,
            slots=local.slots,
            profile="llamacpp",
        )
        self._add(
            Upstream(settings, self._limits, session=session, busy=busy, unavailable=self._local_refusal)
        )

    async def _first_start(self, local: LocalServer) -> None:
        try:
            await local.start()
        except LocalServerError as error:
            log.warning("no_embedded_model", reason=str(error))  # the text says it all: no traceback

    def _on_local_state(self, state: str) -> None:
        upstream = self.upstreams.get("local")
        if state == "ready" and upstream is not None and self._local is not None:
            upstream.slots.set_slots(self._local.slots)
        log.info("embedded_model", state=state)

    def _local_refusal(self) -> Fault | None:
        local = self._local
        if local is None or local.state == "ready":
            return None
        if local.state in ("starting", "restarting"):
            said = f"the embedded model's server is {local.state}"
            return Fault("overloaded_error", said, 529, str(local.retry_after))
        return Fault("overloaded_error", "the embedded model's server does not run", 529, "30")

    def _add(self, upstream: Upstream) -> None:
        self.upstreams[upstream.name] = upstream
        self._stack.push_async_callback(upstream.aclose)

    async def aclose(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._stack.aclose()
