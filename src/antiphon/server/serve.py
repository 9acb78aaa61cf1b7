"""Run a gateway on uvicorn until it is told to stop.

Owns the signals and the exit: the first SIGTERM or SIGINT drains (readiness off, listeners closed, streams
run on until their deadline), a second one ends them and exits. Exit status 0 both ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import resource
import signal
import socket
from collections.abc import Callable, Generator
from types import FrameType

import structlog
import uvicorn

from antiphon.config import Settings
from antiphon.config_file import Loaded
from antiphon.core.seal import Sealer
from antiphon.observe.log import log_unhandled
from antiphon.server.app import Backend, Gateway
from antiphon.server.backends import EmbeddedBackend
from antiphon.server.edge import EdgeProtocol
from antiphon.server.embedded import Servers
from antiphon.server.entry import entry_for
from antiphon.server.fleet import Fleet
from antiphon.server.key_limits import KeyLimits
from antiphon.server.reload import ConfigWatch

log = structlog.get_logger("antiphon.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LAST_WORDS = 0.2  # seconds for the last frames to reach a client before its connection is dropped


class AntiphonServer(uvicorn.Server):
    """uvicorn's server with our idea of a signal."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, on_started: Callable[[int], None]) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._on_started = on_started
        self._signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(log_unhandled)
        await super().startup(sockets)
        if self.started:
            # What is there by now stays for ever: the collector need not look through it with every request.
            gc.collect()
            gc.freeze()
            self._on_started(self.servers[0].sockets[0].getsockname()[1])

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises the signal again once it has drained, which ends in exit status 143
        loop = asyncio.get_running_loop()

        def arrived(number: int, frame: FrameType | None) -> None:
            # A handler runs between any two byte codes: what it does waits until the loop's turn.
            loop.call_soon_threadsafe(self.handle_exit, number, frame)

        # Without files there is nothing to read again: then a closed terminal ends the gateway, as ever.
        numbers = _SIGNALS if self._gateway.watch is not None else _SIGNALS[:2]
        before = {number: signal.signal(number, arrived) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends what still runs, a third does not even clean up.

        SIGHUP reads the configuration again, whether it has changed or not.
        Called from the loop.
        """
        loop = asyncio.get_running_loop()
        if sig == signal.SIGHUP:
            if self._gateway.watch is not None:
                self._gateway.watch.check_now()
            return
        # First, and whatever happens below: a signal must not be lost.
        self._signals += 1
        self.should_exit = True
        if self._signals == 1:
            self._gateway.drain()
        elif self._signals == 2:
            self._gateway.stop_now()
            loop.call_later(LAST_WORDS, self._drop_clients)
        else:
            self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn waits for its connections without an end: one that sends half a request, or reads
        # nothing, would outlast every deadline.
        limits = self._gateway.limits
        late = asyncio.get_running_loop().call_later(
            limits.drain + limits.tick + LAST_WORDS, self._drop_clients
        )
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()

    def _drop_clients(self) -> None:
        for edge in list(self._gateway.edges):
            edge.abort()


def raise_descriptor_limit() -> int:
    """Each stream takes two descriptors: use what the system allows. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def gateway_for(
    settings: Settings, sealer: Sealer, embedded: Servers | None = None, loaded: Loaded | None = None
) -> Gateway:
    """The gateway that these settings ask for; without an upstream of the user's it needs the embedded ones.

    Raises ValueError for an upstream or a coordination that cannot be, ModuleNotFoundError where the redis
    client is asked for and not installed, OSError for a folder that cannot be used.
    """

    def lost(request_id: str) -> None:
        for exchange in list(gateway.live):
            if exchange.job.request_id == request_id:
                exchange.on_lease_lost()

    backend: Backend
    if settings.upstreams:
        backend = Fleet(settings, lost=lost)
    elif embedded is not None:
        backend = EmbeddedBackend(settings.limits, embedded, coordination=settings.coordination, lost=lost)
    else:
        raise ValueError("an upstream is needed")
    where = None if settings.coordination is None else settings.coordination.where
    gateway = Gateway(
        settings, backend, sealer=sealer, entry=entry_for(settings), key_limits=KeyLimits(where)
    )
    if loaded is not None and loaded.files:
        gateway.watch = ConfigWatch(
            lambda: loaded.again(os.environ), lambda new: gateway.apply(new.settings), loaded.files
        )
    return gateway


def serve(
    gateway: Gateway,
    on_started: Callable[[int], None] = lambda port: None,
    sockets: list[socket.socket] | None = None,
) -> None:
    """Serve until a signal. `on_started` gets the port that is listened on, in the loop.

    `sockets` are bound already, where others have the same port. Raises SystemExit if the address cannot be
    used (uvicorn logs why).
    """
    raise_descriptor_limit()
    AntiphonServer(server_config(gateway), gateway, on_started).run(sockets)


def taken(host: str, port: int) -> str | None:
    """Why the address cannot be listened on now, None if it can: asked before anything is started."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], found[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[4])
            probe.listen(1)
    except OSError as refused:
        return refused.strerror or str(refused)
    return None


def server_config(gateway: Gateway) -> uvicorn.Config:
    """How uvicorn is set up to carry a gateway."""
    settings = gateway.settings
    return uvicorn.Config(
        gateway,
        host=settings.host,
        port=settings.port,
        http=EdgeProtocol,
        ws="none",
        loop="uvloop",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=math.ceil(settings.limits.keep_alive),
        backlog=2048,
    )
