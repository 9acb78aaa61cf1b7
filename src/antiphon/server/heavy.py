"""Heavy work that a client can cause, off the loop that carries streams: a worker process with limits.

Owns the process: one at a time, started on first use, bounded in memory and in time, replaced when it
has been killed. It must not know what the work is; the work may leave a note on what it is at, which is
all that is left of it when it had to be killed.

    heavy = HeavyWork(seconds=20)
    await heavy.run(parse_it, body)   -> what parse_it returns, or TooHeavyError(its last note)
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MEMORY = 1024**3
"""Bytes of address space for a worker. It takes 80 MB before it has done anything, and 300 MB for the largest
bodies and PDFs that are read in full (measured)."""

_NOTE_BYTES = 512


class TooHeavyError(Exception):
    """The work did not end within its limits. `note` is the last that it left (empty: none)."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.note = note


class HeavyWork:
    """Runs picklable functions elsewhere. `seconds` and bytes of `memory` for each."""

    def __init__(self, *, seconds: float, memory: int = MEMORY) -> None:
        self._seconds = seconds
        self._memory = memory
        self._pool: ProcessPoolExecutor | None = None
        # One at a time: nobody's time runs while another's work does, and a kill hits its own work only.
        self._turn = asyncio.Lock()
        self._context = multiprocessing.get_context("spawn")  # fork would copy the loop and its sockets
        self._note: Any = None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work(*args)`. Raises what it raises, and TooHeavyError. Calls take turns.

        Cancel safe: a caller that leaves while its work runs has the worker killed.
        """
        if kwargs:
            raise TypeError("only positional arguments travel to the worker")
        async with self._turn:
            pool = self._pool = self._pool or self._started()
            self._note.value = b""
            try:
                return await asyncio.wait_for(
                    asyncio.get_running_loop().run_in_executor(pool, work, *args), self._seconds
                )
            except (TimeoutError, BrokenProcessPool, MemoryError):
                self._replace(pool)
                raise TooHeavyError(self._note.value.decode(errors="replace")) from None
            except asyncio.CancelledError:
                self._replace(pool)  # what it left behind would take the next one's time
                raise

    def _started(self) -> ProcessPoolExecutor:
        if self._note is None:
            self._note = self._context.RawArray("c", _NOTE_BYTES)
        return ProcessPoolExecutor(
            1, mp_context=self._context, initializer=_enter, initargs=(self._note, self._memory)
        )

    def _replace(self, pool: ProcessPoolExecutor, *, wait: bool = False) -> None:
        if self._pool is pool:
            self._pool = None
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=wait, cancel_futures=True)

    def close(self) -> None:
        """End the worker. Waits for its pool's thread, which an interpreter that ends would trip over."""
        if self._pool is not None:
            self._replace(self._pool, wait=True)


# --- In the worker --------------------------------------------------------------------------------

_own_note: Any = None


def note(text: str) -> None:
    """Leave a note on what the work is at; anywhere but in a worker it goes nowhere."""
    if _own_note is not None:
        _own_note.value = text.encode()[: _NOTE_BYTES - 1]


def _enter(shared: Any, memory: int) -> None:
    global _own_note  # noqa: PLW0603 - the worker is a process with one thread and one task
    _own_note = shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what a client sent must not end up in a file
