"""A gateway in a process of its own between the harness's bare upstream and clients.

For what only a process can show: how much memory it takes, and how it ends. Owns the wiring and the reading
of /proc; the process's life is `live_gateway`'s, which also fails the test for anything that it complained of.

    async with served(tmp_path, drain=0.5) as gateway:
        client = await gateway.ask()
        visit = await gateway.upstream.next()
        gateway.grown()      # bytes by which its memory has ever grown since the start
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

from live_gateway import GatewayProcess, gateway
from server.harness import Client, ScriptedUpstream

MIB = 1024 * 1024


def memory(pid: int, what: str) -> int:
    """`VmRSS` (resident now) or `VmHWM` (the most that ever was) of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(what)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def pid_of(process: GatewayProcess, upstream: str) -> int:
    """The process behind a `live_gateway.gateway`, told from others by its upstream."""
    (pid,) = [
        child
        for child in children(os.getpid())
        if upstream.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
    ]
    return pid


@dataclass
class Served:
    process: GatewayProcess
    pid: int
    upstream: ScriptedUpstream
    resident: int  # bytes, when nothing had been asked yet

    async def client(self) -> Client:
        port = urlsplit(self.process.base_url).port
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(None), "127.0.0.1", port
        )
        return client

    async def ask(self, tag: str = "hi", **fields: object) -> Client:
        client = await self.client()
        client.ask(tag, **fields)
        return client

    def grown(self) -> int:
        return memory(self.pid, "VmHWM") - self.resident

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    @property
    def ended(self) -> bool:
        """Only its exit status is left of it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    def said(self, event: str) -> bool:
        return f'"event":"{event}"' in self.process.log.read_text().replace(": ", ":")


@contextlib.asynccontextmanager
async def served(folder: Path, **limits: float) -> AsyncIterator[Served]:
    """Limits are seconds or bytes, as in `config.Limits`. Leaving it ends the process and judges its log."""
    upstream = ScriptedUpstream()
    await upstream.start()
    base_url = f"http://127.0.0.1:{upstream.port}/v1"
    running = gateway(folder, base_url)
    environment = {f"ANTIPHON_{name.upper()}": str(value) for name, value in limits.items()}
    try:
        with mock.patch.dict(os.environ, environment):
            process = await asyncio.to_thread(running.__enter__)
        try:
            pid = pid_of(process, base_url)
            yield Served(process, pid, upstream, memory(pid, "VmRSS"))
        except BaseException as error:
            await asyncio.to_thread(running.__exit__, type(error), error, error.__traceback__)
            raise
        await asyncio.to_thread(running.__exit__, None, None, None)
    finally:
        await upstream.stop()
