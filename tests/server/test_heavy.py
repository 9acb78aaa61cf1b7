"""The worker process: what travels to it and back, and what becomes of it when its work goes wrong."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import pytest

from antiphon.server.heavy import HeavyWork, SharedFile, TooHeavyError

MIB = 1024 * 1024


def reverse(data: bytes, mark: bytes) -> tuple[int, bytes]:
    return os.getpid(), mark + data[::-1]


def fail(data: bytes) -> tuple[None, bytes]:
    raise ValueError(data.decode())


def die(data: bytes) -> tuple[None, bytes]:
    os._exit(1)


def wait(data: bytes) -> tuple[None, bytes]:
    threading.Event().wait()
    return None, data


@pytest.fixture
def heavy():
    made = HeavyWork(seconds=30)
    yield made
    made.close()


async def test_bytes_travel_both_ways_and_nobody_keeps_them(heavy):
    pieces = [b"a" * (MIB + 1), b"", b"bc"]
    pid, data = await heavy.run(reverse, pieces, b"!")
    assert pid != os.getpid()
    assert data == b"!cb" + b"a" * (MIB + 1)
    assert pieces == []
    # Nothing is left of the last, longer ones.
    assert await heavy.run(reverse, [b"12"], b"") == (pid, b"21")
    assert await heavy.run(reverse, [], b"") == (pid, b"")


async def test_calls_take_turns(heavy):
    found = await asyncio.gather(*(heavy.run(reverse, [b"x%d" % n], b"") for n in range(5)))
    assert [data for _, data in found] == [b"%dx" % n for n in range(5)]
    assert len({pid for pid, _ in found}) == 1


async def test_what_the_work_raises_comes_out_and_the_worker_lives(heavy):
    with pytest.raises(ValueError, match="said so"):
        await heavy.run(fail, [b"said so"])
    (worker,) = heavy.processes
    assert (await heavy.run(reverse, [b"12"], b""))[0] == worker.pid


async def test_a_worker_that_died_is_replaced(heavy):
    with pytest.raises(TooHeavyError):
        await heavy.run(die, [b"x" * MIB])
    assert heavy.processes == []
    assert (await heavy.run(reverse, [b"12"], b""))[1] == b"21"


async def test_a_caller_that_leaves_leaves_no_bytes_behind(heavy):
    await heavy.run(reverse, [b"12"], b"")
    (worker,) = heavy.processes
    asked = asyncio.create_task(heavy.run(wait, [b"x" * MIB] * 8))
    await asyncio.sleep(0)  # it is sending
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await asyncio.to_thread(worker.join, 20)
    assert worker.exitcode == -9
    assert (await heavy.run(reverse, [b"34"], b""))[1] == b"43"


def test_a_shared_file_is_closed_with_its_last_reference():
    file = SharedFile()
    fd = file._fd
    file.write(b"abc", 0)
    file.write(b"X", 1)
    assert (file.take(), file.take()) == (b"aXc", b"")
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_without_memfd_a_file_without_a_name_does(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    file = SharedFile()
    file.write(b"abc", 0)
    assert os.fstat(file._fd).st_nlink == 0
    assert file.take() == b"abc"
