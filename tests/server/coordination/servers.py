"""A real Valkey or Redis on a free loopback port, with its data nowhere; and a proxy that is slow."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path


def _installed() -> dict[str, str]:
    """The servers of this machine by name. One that is only another's name (Debian's) is not there twice."""
    found: dict[str, str] = {}
    for name in ("valkey", "redis"):
        program = shutil.which(f"{name}-server")
        if program is not None and not any(Path(program).samefile(other) for other in found.values()):
            found[name] = program
    return found


BINARIES = _installed()
BINARY = next(iter(BINARIES.values()), None)


class RedisServer:
    """`port` stays the same over restarts; nothing is kept over them."""

    def __init__(self, folder: Path, *, cluster: bool = False, binary: str | None = BINARY) -> None:
        self._folder = folder
        self.binary = binary
        self.port, self.bus_port = _free_port(), _free_port()
        self._cluster = ["--cluster-enabled", "yes", "--cluster-port", str(self.bus_port)] if cluster else []
        self._process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = ["--save", "", "--appendonly", "no", "--dir", str(self._folder), "--loglevel", "warning"]
        self._process = subprocess.Popen(
            [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", *options, *self._cluster],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """It stands still: connections stay open, nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class SlowProxy:
    """Passes bytes on to a port of this machine, `delay` seconds late each way."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.delay = 0.0
        self.port = 0
        self._tasks: set[asyncio.Task] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer) -> None:
        self._tasks.add(asyncio.current_task())
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, target_writer))
                group.create_task(self._pass(target_reader, writer))
        except* OSError:
            pass
        finally:
            for end in (writer, target_writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()
            self._tasks.discard(asyncio.current_task())

    async def _pass(self, reader, writer) -> None:
        while data := await reader.read(65536):
            await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()
        raise ConnectionError

    async def aclose(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
