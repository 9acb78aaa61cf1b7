"""Timers with names: a later one of a name takes the place of the one before.

timers.after("beat", 2.0, self._beat)
timers.cancel("beat")
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """Does nothing before `start` and after `stop`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._running

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        for name in list(self._running):
            self.cancel(name)
        self._loop = None

    def after(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        if self._loop is None:
            return
        self.cancel(name)

        def fire() -> None:
            del self._running[name]
            call()

        self._running[name] = self._loop.call_later(seconds, fire)

    def cancel(self, name: str) -> None:
        timer = self._running.pop(name, None)
        if timer is not None:
            timer.cancel()
