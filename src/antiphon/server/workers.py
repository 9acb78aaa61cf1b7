"""Several gateway processes on one port, and the one that keeps them: `antiphon serve --workers`.

Owns the workers' lives: their start, their restart with back-off, the signals, the end of all of them. The
embedded servers run here, once. It serves no request: each worker has a socket of its own on the port
(SO_REUSEPORT, so the kernel spreads connections evenly, also those of a burst), and a worker that dies
takes its socket with it, so that new connections go to the others at once. This process holds the port
without listening on it.

    raise SystemExit(run_workers(settings, sealer, on_started=print))

The first signal drains every worker, the second stops them at once, the third kills them. A terminal's
Ctrl-C reaches this process only. Whoever does not end in time is killed: nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import structlog

from antiphon.config import Coordination, CoordinationPolicy, Settings
from antiphon.config_file import Loaded
from antiphon.core.seal import Sealer
from antiphon.server.embedded import EmbeddedServers
from antiphon.server.serve import LAST_WORDS, raise_descriptor_limit
from antiphon.server.worker import READY, Address, Orders
from antiphon.server.worker_metrics import bury

log = structlog.get_logger("antiphon.server")

_COMMAND: Final = (sys.executable, "-P", "-m", "antiphon.server.worker")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds before a restart; it doubles
_STABLE: Final = 60.0  # seconds without a crash, after which the pause is short again
_GRACE: Final = 5.0  # seconds beyond every deadline of its own after which a worker is killed


def run_workers(
    settings: Settings,
    sealer: Sealer,
    embedded: EmbeddedServers | None = None,
    *,
    loaded: Loaded | None = None,
    policy: CoordinationPolicy = "local_share",
    on_started: Callable[[int], None] = lambda port: None,
) -> int:
    """Serve with `settings.workers` processes until a signal; the exit status.

    Without a coordination of the user's they share their slots through a private folder, under `policy`.
    `loaded` is where the settings come from: each worker watches its files. `on_started` gets the port when
    the workers listen. Raises OSError if the address cannot be used.
    """
    raise_descriptor_limit()
    with _reserved(settings.host, settings.port) as addresses, _private_folder() as folder:
        coordination = settings.coordination or Coordination(where=f"local:{folder / 'slots'}", policy=policy)
        coordination = msgspec.structs.replace(coordination, gateways=settings.workers)
        settings = msgspec.structs.replace(settings, coordination=coordination)
        supervisor = _Supervisor(settings, sealer, addresses, folder, embedded, loaded)
        return asyncio.run(supervisor.run(on_started))


class _Supervisor:
    def __init__(
        self,
        settings: Settings,
        sealer: Sealer,
        addresses: list[Address],
        folder: Path,
        embedded: EmbeddedServers | None,
        loaded: Loaded | None,
    ) -> None:
        self._loaded = b"" if loaded is None or not loaded.files else pickle.dumps(loaded)
        self._settings = settings
        self._sealer = sealer
        self._addresses = addresses
        self._folder = folder
        self._embedded = embedded
        self._running: dict[int, subprocess.Popen[bytes]] = {}  # by the worker's number
        self._tried: dict[int, asyncio.Event] = {}  # whose first start has worked, or not
        self._ever_ready = False
        self._signals = 0
        self._stopping = asyncio.Event()
        # Each worker has one thread that waits for it: no child watcher, no signal that others may eat.
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="worker")

    async def run(self, on_started: Callable[[int], None]) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        if self._loaded:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            if self._embedded is not None:
                self._embedded.on_change = self._tell
                await self._embedded.start()
            return await self._run_workers(on_started)
        finally:
            for process in self._running.values():
                _kill(process)
            self._threads.shutdown()
            if self._embedded is not None:
                await self._embedded.aclose()

    async def _run_workers(self, on_started: Callable[[int], None]) -> int:
        numbers = range(1, self._settings.workers + 1)
        self._tried = {number: asyncio.Event() for number in numbers}
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(self._keep(number))
            for tried in self._tried.values():
                await tried.wait()
            if self._stopping.is_set():
                return 0
            if not self._ever_ready:
                log.error("no_worker_serves")
                self._end()
                return 1
            on_started(self._addresses[0].port)
        return 0

    async def _keep(self, number: int) -> None:
        """One worker after another, until the end."""
        try:
            await self._keep_running(number)
        finally:
            self._tried[number].set()

    async def _keep_running(self, number: int) -> None:
        crashes = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._live(number)
            self._tried[number].set()
            if self._stopping.is_set():
                return
            crashes = 0 if time.monotonic() - began > _STABLE else crashes
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(crashes, 10))
            crashes += 1
            log.warning("worker_restarts", worker=number, status=status, seconds=pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _live(self, number: int) -> int:
        """One process from start to end: its exit status."""
        loop = asyncio.get_running_loop()
        # It starts in milliseconds, and nobody waits in this loop.
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own command
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Out of the terminal's process group: Ctrl-C reaches us alone, and we tell the workers.
            start_new_session=True,
        )
        self._running[number] = process
        try:
            _say(process, msgspec.json.encode(self._orders(number)))
            return await loop.run_in_executor(self._threads, self._attend, process, number, loop)
        except BaseException:  # cancelled: nobody would end it later
            _kill(process)
            raise
        finally:
            del self._running[number]
            bury(self._folder, process.pid)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def _attend(self, process: subprocess.Popen[bytes], number: int, loop: asyncio.AbstractEventLoop) -> int:
        """In a thread: notice that it listens, wait for its end."""
        if process.stdout is not None and process.stdout.readline() == READY:
            loop.call_soon_threadsafe(self._ready, number)
        status = process.wait()
        if status:
            _kill(process)  # what it had started itself
        return status

    def _ready(self, number: int) -> None:
        self._ever_ready = True
        self._tried[number].set()

    def _orders(self, number: int) -> Orders:
        view = None if self._embedded is None else self._embedded.view
        return Orders(
            number,
            self._settings,
            self._sealer.key,
            self._addresses,
            str(self._folder),
            view,
            self._loaded,
        )

    def _tell(self) -> None:
        """How the embedded servers are, to every worker."""
        if self._embedded is not None:
            line = msgspec.json.encode(self._embedded.view)
            for process in self._running.values():
                _say(process, line)

    def _reload(self) -> None:
        """Every worker reads the files again; those of a later one are read at its start."""
        for process in self._running.values():
            process.send_signal(signal.SIGHUP)

    # --- the end ---

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals > 2:
            self._kill_all()
        else:
            self._end()

    def _end(self) -> None:
        """Every worker hears the signal: the first drains it, a second stops it at once."""
        self._stopping.set()
        for process in self._running.values():
            process.terminate()
        limits = self._settings.limits
        patience = _GRACE + LAST_WORDS + (limits.drain + limits.tick if self._signals < 2 else 0)
        asyncio.get_running_loop().call_later(patience, self._kill_all)

    def _kill_all(self) -> None:
        for number, process in self._running.items():
            log.warning("worker_killed", worker=number)
            _kill(process)


def _say(process: subprocess.Popen[bytes], line: bytes) -> None:
    """A line to a worker; one that has ended hears nothing, and its end is noticed elsewhere."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line + b"\n")
            process.stdin.flush()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """A worker and what it had started: they are a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[list[Address]]:
    """The addresses to listen on, with a port that stays ours. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses: list[Address] = []
    with contextlib.ExitStack() as stack:
        for family, _, _, _, place in dict.fromkeys(found):
            address = Address(family, str(place[0]), port)
            if port:
                _refuse_taken(address)
            bound = stack.enter_context(contextlib.closing(address.bind()))
            port = bound.getsockname()[1]
            addresses.append(Address(family, str(place[0]), port))
        yield addresses


def _refuse_taken(address: Address) -> None:
    """SO_REUSEPORT would let us share it with another gateway of this user: that is never meant."""
    with socket.socket(socket.AddressFamily(address.family), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """For what the workers share: sockets and figures. Gone at the end."""
    # The path of a Unix socket is short: where the usual place has a long name, the common one will do.
    parent = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="antiphon-", dir=parent if len(parent) < 48 else "/tmp"))  # noqa: S108 - mkdtemp makes it private
    # Cleaners of temporary files leave a folder alone while somebody has this lock (systemd-tmpfiles).
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)
