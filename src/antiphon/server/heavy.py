"""Heavy work that a client can cause, off the loop that carries streams: a worker process with limits.

Owns the process: one at a time, started on first use, bounded in memory and in time, replaced when it
has been killed. It must not know what the work is.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MEMORY = 2 * 1024**3  # bytes of address space for one piece of work


class TooHeavyError(Exception):
    """The work did not end within its limits."""


class HeavyWork:
    """Runs picklable functions elsewhere. `seconds` for each; made in the loop that uses it."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        # One at a time: nobody's time runs while another's work does, and a kill hits its own work only.
        self._turn = asyncio.Lock()
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work(*args)`. Raises what it raises, and TooHeavyError. Calls take turns.

        Cancel safe: a caller that leaves while its work runs has the worker killed.
        """
        if kwargs:
            raise TypeError("only positional arguments travel to the worker")
        async with self._turn:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")  # fork would copy the loop and its sockets
                self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_limit)
            pool = self._pool
            try:
                return await asyncio.wait_for(
                    asyncio.get_running_loop().run_in_executor(pool, work, *args), self._seconds
                )
            except (TimeoutError, BrokenProcessPool, MemoryError):
                self._replace(pool)
                raise TooHeavyError from None
            except asyncio.CancelledError:
                self._replace(pool)  # what it left behind would take the next one's time
                raise

    def _replace(self, pool: ProcessPoolExecutor) -> None:
        if self._pool is pool:
            self._pool = None
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        if self._pool is not None:
            self._replace(self._pool)


def _limit() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
