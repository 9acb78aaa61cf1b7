"""Gateways in this process and in others, for tests: opened, driven and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from antiphon.server.coordination import open_coordinator
from antiphon.server.coordination.shared_slots import SharedSlots

SCRIPT = Path(__file__).with_name("gateway_process.py")


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something that happens in callbacks. The bound is generous: it only ends a failing test."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


class Member:
    """A gateway in this process. `granted` are its leases in order, `lost` those that were lost."""

    def __init__(self, where: str, slots: int, ttl: float, coordinator=None, **options) -> None:
        self.granted: list = []
        self.lost: list = []
        self.displaced = 0
        self.coordinator = coordinator or open_coordinator(where, "up", ttl=ttl)
        self.slots = SharedSlots("up", slots, coordinator=self.coordinator, lost=self.lost.append, **options)

    def request(self, share: str = "", weight: float = 1.0):
        return self.slots.request(
            "r", self.granted.append, share=share, weight=weight, displaced=self._displaced
        )

    def _displaced(self) -> None:
        self.displaced += 1

    @property
    def held(self) -> int:
        return self.slots.statistics().held


class Process:
    """A gateway in a process of its own; see gateway_process.py."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said: list[str] = []
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while line := await self._process.stdout.readline():
            self.said.append(line.decode().strip())

    def say(self, command: str) -> None:
        self._process.stdin.write(command.encode() + b"\n")

    async def hears(self, line: str, seconds: float = 20.0) -> None:
        await until(lambda: line in self.said, seconds)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    async def aclose(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await self._reader
        self._process._transport.close()


class Fleet:
    """Opens gateways, here and in processes, and ends them."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()

    async def member(
        self, where: str, slots: int = 2, ttl: float = 1.5, *, wait: bool = True, **options
    ) -> Member:
        member = Member(where, slots, ttl, **options)
        member.slots.start()
        self._stack.push_async_callback(member.slots.aclose)
        if wait:
            await until(lambda: member.slots.view.born)
        return member

    async def process(self, where: str, slots: int = 2, ttl: float = 1.5, linger: float = 0.0) -> Process:
        process = Process(
            await asyncio.create_subprocess_exec(
                *(sys.executable, str(SCRIPT), where, str(ttl), str(slots), str(linger)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        )
        self._stack.push_async_callback(process.aclose)
        await process.hears("up")
        return process

    async def aclose(self) -> None:
        await self._stack.aclose()
