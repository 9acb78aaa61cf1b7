"""Heavy work that a client can cause, off the loop that carries streams: a worker process with limits.

Owns the process: one at a time, started on first use, bounded in memory and in time, replaced when it
has been killed. It must not know what the work is; the work may leave a note on what it is at, which is
all that is left of it when it had to be killed.

    heavy = HeavyWork(seconds=20)
    await heavy.run(work, [body], argument)   -> what work(body, argument) returns, or TooHeavyError(its note)

Bytes go to the work and come back through anonymous files that both processes have open: pickled, they
would be in both several times over at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import reduction
from typing import Any, TypeVar, TypeVarTuple

from msgspec import Struct

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MEMORY = 1024**3
"""Bytes of address space for a worker. It takes 80 MB before it has done anything, and 300 MB for the largest
bodies and PDFs that are read in full (measured)."""

_NOTE_BYTES = 512
_PIECE = 256 * 1024  # bytes written at a time, between which the loop turns


class TooHeavyError(Exception):
    """The work did not end within its limits. `note` is the last that it left (empty: none)."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.note = note


class SharedFile:
    """A file without a name. It travels to a process that is being started, and to no other."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = _anonymous() if fd is None else fd

    def __reduce__(self) -> Any:
        return _adopted, (reduction.DupFd(self._fd),)

    def __del__(self) -> None:
        # Not before: a thread may be reading from it when the worker and all that is its own are replaced.
        os.close(self._fd)

    def write(self, data: bytes | memoryview, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, offset)
            offset += written
            view = view[written:]

    def take(self) -> bytes:
        """All that is in it; nothing is left."""
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        self.clear()
        return data

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("antiphon-body")
    with tempfile.TemporaryFile() as file:  # not Linux: on a disk, but without a name there as well
        return os.dup(file.fileno())


def _adopted(passed: Any) -> SharedFile:
    return SharedFile(passed.detach())


class _Worker(Struct, frozen=True, eq=False):
    pool: ProcessPoolExecutor
    inbox: SharedFile
    outbox: SharedFile


class HeavyWork:
    """Runs picklable functions elsewhere. `seconds` and bytes of `memory` for each."""

    def __init__(self, *, seconds: float, memory: int = MEMORY) -> None:
        self._seconds = seconds
        self._memory = memory
        self._worker: _Worker | None = None
        # One at a time: nobody's time runs while another's work does, and a kill hits its own work only.
        self._turn = asyncio.Lock()
        self._context = multiprocessing.get_context("spawn")  # fork would copy the loop and its sockets
        self._note: Any = None

    async def run(
        self, work: Callable[[bytes, *Ts], tuple[T, bytes]], data: list[bytes], *args: *Ts
    ) -> tuple[T, bytes]:
        """What `work(data, *args)` returns: a picklable value, and bytes. Calls take turns.

        `data` is joined on the way, and the list is empty afterwards: nobody keeps what the worker has.
        Raises what the work raises, and TooHeavyError. Cancel safe: a caller that leaves while its work runs
        has the worker killed.
        """
        async with self._turn:
            worker = self._worker = self._worker or self._started()
            self._note.value = b""
            try:
                async with asyncio.timeout(self._seconds):
                    await _send(data, worker.inbox)
                    loop = asyncio.get_running_loop()
                    result = await loop.run_in_executor(worker.pool, _run, work, *args)
                    return result, await asyncio.to_thread(worker.outbox.take)
            except (TimeoutError, BrokenProcessPool, MemoryError):
                self._replace(worker)
                raise TooHeavyError(self._note.value.decode(errors="replace")) from None
            except asyncio.CancelledError:
                self._replace(worker)  # what it left behind would take the next one's time
                raise

    def _started(self) -> _Worker:
        if self._note is None:
            self._note = self._context.RawArray("c", _NOTE_BYTES)
        inbox, outbox = SharedFile(), SharedFile()
        with_limits = (self._note, inbox, outbox, self._memory)
        pool = ProcessPoolExecutor(1, mp_context=self._context, initializer=_enter, initargs=with_limits)
        return _Worker(pool, inbox, outbox)

    def _replace(self, worker: _Worker, *, wait: bool = False) -> None:
        if self._worker is worker:
            self._worker = None
        for process in list((worker.pool._processes or {}).values()):
            process.kill()
        worker.pool.shutdown(wait=wait, cancel_futures=True)

    @property
    def processes(self) -> list[Any]:
        """The worker's process, if it runs."""
        return list((self._worker.pool._processes or {}).values()) if self._worker else []

    def close(self) -> None:
        """End the worker. Waits for its pool's thread, which an interpreter that ends would trip over."""
        if self._worker is not None:
            self._replace(self._worker, wait=True)


async def _send(data: list[bytes], inbox: SharedFile) -> None:
    """Move the pieces into the file; the loop turns between them."""
    inbox.clear()
    data.reverse()
    offset = 0
    while data:
        view = memoryview(data.pop())
        for start in range(0, len(view), _PIECE):
            inbox.write(view[start : start + _PIECE], offset + start)
            await asyncio.sleep(0)
        offset += len(view)


# --- In the worker --------------------------------------------------------------------------------


class _Own(Struct):
    note: Any = None
    inbox: SharedFile | None = None
    outbox: SharedFile | None = None


_own = _Own()  # filled in a worker, which is a process with one thread and one task


def note(text: str) -> None:
    """Leave a note on what the work is at; anywhere but in a worker it goes nowhere."""
    if _own.note is not None:
        _own.note.value = text.encode()[: _NOTE_BYTES - 1]


def _enter(shared: Any, inbox: SharedFile, outbox: SharedFile, memory: int) -> None:
    _own.note, _own.inbox, _own.outbox = shared, inbox, outbox
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what a client sent must not end up in a file


def _run(work: Callable[[bytes, *Ts], tuple[T, bytes]], *args: *Ts) -> T:
    assert _own.inbox is not None  # noqa: S101  `_enter` ran before
    assert _own.outbox is not None  # noqa: S101
    result, data = work(_own.inbox.take(), *args)
    _own.outbox.write(data, 0)
    return result
