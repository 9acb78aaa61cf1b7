"""The embedded servers: the simulator, and llama.cpp with a small model where it can run.

Owns their life in the one process that runs them, and the view of them that a backend needs, which also
travels to the workers of `--workers`: they ask servers that run in their supervisor.

    servers = EmbeddedServers(model_file=fetch_model())
    await servers.start()
    servers.view        -> EmbeddedView(simulator="http://127.0.0.1:4242/v1", local=LocalView(...))
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog
from msgspec import Struct

from antiphon.local import LocalServer, LocalServerError, State
from antiphon.simulator import Simulator, SimulatorSettings

log = structlog.get_logger("antiphon.server")

LOCAL_MODEL = "smollm2"
STUB_LOG = "stub-reasoning.log"


class LocalView(Struct, frozen=True):
    """llama.cpp at one moment. `retry_after` in seconds; `window` is tokens of a slot."""

    base_url: str
    api_key: str
    slots: int
    window: int
    state: State
    retry_after: int

    def __repr__(self) -> str:
        return f"LocalView({self.state!r}, slots={self.slots})"


class EmbeddedView(Struct, frozen=True):
    """Where the servers are. `local` None: llama.cpp cannot run here."""

    simulator: str
    local: LocalView | None = None


class Servers(Protocol):
    """The embedded servers as a backend sees them. It sets `on_change` before it starts them."""

    on_change: Callable[[], None]

    @property
    def view(self) -> EmbeddedView: ...
    async def start(self) -> None: ...
    async def aclose(self) -> None: ...


def _nothing() -> None:
    pass


class EmbeddedServers:
    """Runs them here. `model_file` None: llama.cpp cannot run, `reason` says why."""

    def __init__(self, *, model_file: Path | None, reason: str = "") -> None:
        self.on_change: Callable[[], None] = _nothing
        self._model_file = model_file
        self._reason = reason
        self._stack = contextlib.AsyncExitStack()
        self._simulator = ""
        self._local: LocalServer | None = None
        self._starting: asyncio.Task[None] | None = None
        self.stub_log: Path | None = Path(tempfile.gettempdir()) / STUB_LOG

    @property
    def view(self) -> EmbeddedView:
        local = self._local
        if local is None:
            return EmbeddedView(self._simulator)
        seen = LocalView(
            local.base_url, local.api_key, local.slots, local.window, local.state, local.retry_after
        )
        return EmbeddedView(self._simulator, seen)

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
        self._simulator = simulator.base_url

    async def _start_local(self, model_file: Path) -> None:
        local = LocalServer(model_file, alias=LOCAL_MODEL, on_state=self._on_local_state)
        self._stack.push_async_callback(local.aclose)
        # It loads for a second or two: until then its model alone is answered 529.
        self._starting = asyncio.get_running_loop().create_task(self._first_start(local))
        await asyncio.sleep(0)
        if local.state != "failed":
            self._local = local  # it has its address now

    async def _first_start(self, local: LocalServer) -> None:
        try:
            await local.start()
        except LocalServerError as error:
            log.warning("no_embedded_model", reason=str(error))  # the text says it all: no traceback

    def _on_local_state(self, state: str) -> None:
        log.info("embedded_model", state=state)
        if self._local is not None:
            self.on_change()

    async def aclose(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._stack.aclose()


class RemoteServers:
    """Servers that run in another process, which says how they are."""

    def __init__(self, view: EmbeddedView) -> None:
        self.on_change: Callable[[], None] = _nothing
        self._view = view

    @property
    def view(self) -> EmbeddedView:
        return self._view

    def update(self, view: EmbeddedView) -> None:
        self._view = view
        self.on_change()

    async def start(self) -> None:
        """They were started elsewhere."""

    async def aclose(self) -> None:
        """They are ended elsewhere."""
