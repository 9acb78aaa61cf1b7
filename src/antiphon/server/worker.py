"""One of several gateway processes on one port: what `server.workers` starts.

Owns the process from its orders on standard input to its exit. Orders come through a pipe and never stand
on a command line: they hold keys. The pipe is a lifeline too: when its other end is gone, so is the
supervisor, and the worker drains and ends.

    python -m antiphon.server.worker     <- one line of JSON: Orders; -> "ready" when it listens
                                         <- more lines: EmbeddedView, when it has changed
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from antiphon.config import ConfigError, Settings
from antiphon.config_changes import taken_over
from antiphon.config_file import Loaded
from antiphon.core.seal import Sealer
from antiphon.observe import log
from antiphon.server.drains import Drains
from antiphon.server.embedded import EmbeddedView, RemoteServers
from antiphon.server.serve import gateway_for, serve
from antiphon.server.worker_metrics import WorkerMetrics
from antiphon.server.worker_peers import Peers

READY: Final = b"ready\n"
_WRITE_METRICS: Final = 1.0  # seconds
_ORDERS, _SAYS = 0, 1  # descriptors


class Address(Struct, frozen=True, array_like=True):
    """What to listen on: one socket of each worker, side by side (SO_REUSEPORT)."""

    family: int
    host: str
    port: int

    def bind(self) -> socket.socket:
        """A socket that is bound and does not listen yet. Raises OSError."""
        bound = socket.socket(socket.AddressFamily(self.family), socket.SOCK_STREAM)
        try:
            if bound.family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((self.host, self.port))
        except BaseException:
            bound.close()
            raise
        return bound


class Orders(Struct, frozen=True):
    """What a worker needs to know. `number` is from 1, `folder` is for what the workers share.

    `settings` are those of the start: what has changed in the files since then is read by the worker.
    """

    number: int
    settings: Settings
    seal_key: bytes
    addresses: list[Address]
    folder: str
    embedded: EmbeddedView | None = None
    loaded: bytes = b""  # config_file.Loaded, pickled; empty where no file was read

    def __repr__(self) -> str:
        return f"Orders({self.number})"


class _Worker:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._embedded = None if orders.embedded is None else RemoteServers(orders.embedded)
        self._heard = b""
        # It comes through our own supervisor's pipe.
        loaded: Loaded | None = pickle.loads(orders.loaded) if orders.loaded else None  # noqa: S301
        sealer = Sealer(orders.seal_key)
        settings = _newest(orders.settings, loaded)
        gateway = self.gateway = gateway_for(settings, sealer, self._embedded, loaded)
        folder = Path(orders.folder)
        self.metrics = gateway.metrics = WorkerMetrics(folder, gateway.metrics.sources)
        gateway.drains = Drains(folder / "drained")
        gateway.peers = Peers(folder, gateway.ordinary.answer)

    def run(self) -> None:
        serve(self.gateway, self._listening, [address.bind() for address in self._orders.addresses])
        self.metrics.write()

    def _listening(self, port: int) -> None:
        asyncio.get_running_loop().add_reader(_ORDERS, self._supervisor_speaks)
        if self.gateway.watch is not None:
            self.gateway.watch.check_now()  # the supervisor's settings may be hours old
        self._write_metrics()
        os.write(_SAYS, READY)

    def _supervisor_speaks(self) -> None:
        piece = os.read(_ORDERS, 65536)
        if not piece:
            asyncio.get_running_loop().remove_reader(_ORDERS)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        *lines, self._heard = (self._heard + piece).split(b"\n")
        if lines and self._embedded is not None:  # the last one is how things are
            self._embedded.update(msgspec.json.decode(lines[-1], type=EmbeddedView))

    def _write_metrics(self) -> None:
        asyncio.get_running_loop().call_later(_WRITE_METRICS, self._write_metrics)
        self.metrics.write()


def _newest(settings: Settings, loaded: Loaded | None) -> Settings:
    """The settings of the start, with what the files have changed since: they may be hours old.

    Before anything is done with them: a limit of slots is told to the others as news.
    """
    if loaded is None:
        return settings
    try:
        return taken_over(settings, loaded.again(os.environ).settings)
    except ConfigError:
        return settings  # it is told with the first look at the files


def _read_orders() -> Orders:
    # Not through sys.stdin: what it had buffered, nobody would see.
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(_ORDERS, 1)  # not a byte of what comes next
        if not piece:
            raise SystemExit(1)  # the supervisor is gone
        line += piece
    return msgspec.json.decode(line, type=Orders)


def main() -> None:
    """The process. Exit status as of `antiphon serve`."""
    orders = _read_orders()
    settings = orders.settings
    log.configure(level=settings.log_level, as_json=settings.log_json)
    structlog.contextvars.bind_contextvars(worker=orders.number)
    try:
        _Worker(orders).run()
    except OSError as refused:
        structlog.get_logger("antiphon.server").error("worker_cannot_serve", reason=refused.strerror)
        sys.exit(1)


if __name__ == "__main__":
    main()
