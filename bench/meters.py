"""What the kernel says of a process tree and of the machine: CPU time, memory, reads, load.

Owns the reading of /proc (Linux only). A tree is a process with all that it started.

    before = cpu(pid); ...; used = cpu(pid) - before      # Cpu: seconds in all, in user space, in the kernel
    pss(pid)                                              -> bytes
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
CPUS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Cpu:
    """Seconds. `total` is exact (schedstat, nanoseconds); user and system come in ticks of 10 ms."""

    total: float
    user: float
    system: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.total - other.total, self.user - other.user, self.system - other.system)


@dataclass(frozen=True)
class Machine:
    """Seconds of all CPUs together since boot."""

    busy: float
    stolen: float

    def __sub__(self, other: Machine) -> Machine:
        return Machine(self.busy - other.busy, self.stolen - other.stolen)


def tree(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for one in found:
        for task in (PROC / str(one) / "task").iterdir():
            found.extend(map(int, (task / "children").read_text().split()))
    return found


def cpu(pid: int) -> Cpu:
    """CPU time of every thread of the tree that still lives."""
    total = user = system = 0
    for one in tree(pid):
        for task in (PROC / str(one) / "task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
        fields = (PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
        user += int(fields[11])
        system += int(fields[12])
    return Cpu(total / 1e9, user / _TICKS, system / _TICKS)


def pss(pid: int) -> int:
    """Bytes of memory of the tree, pages that are shared divided among those who share them."""
    total = 0
    for one in tree(pid):
        for line in (PROC / str(one) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def reads(pid: int) -> int:
    """`read` calls of the tree. A `recv` is not counted by the kernel: libuv reads, nginx receives."""
    total = 0
    for one in tree(pid):
        for line in (PROC / str(one) / "io").read_text().splitlines():
            if line.startswith("syscr:"):
                total += int(line.split()[1])
    return total


def machine() -> Machine:
    """What all CPUs did, and what the host took from them."""
    user, nice, system, _idle, _wait, irq, soft, stolen = map(
        int, (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return Machine((user + nice + system + irq + soft) / _TICKS, stolen / _TICKS)


def cpu_model() -> str:
    """The processor's name, as the kernel gives it."""
    for line in (PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def raise_descriptor_limit() -> None:
    """As many sockets as the system allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
