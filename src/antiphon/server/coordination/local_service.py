"""What the first process of a machine serves to the others: one room behind a Unix socket.

Owns the socket, the lock that says who may have it, and the lines on the wire: from a gateway JSON of
`Said`, to it an `Answer` after an `A` or a `Notice` after an `N`, each ended by a newline (JSON has none).
In the lock's file stands what a successor must know should this process be killed: how many leases nobody
else would tell it of, and for how many milliseconds they are still used (16 bytes, two integers).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import struct
import time
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from antiphon.server.coordination.protocol import Leave, Notice, Operation
from antiphon.server.coordination.room import Room
from antiphon.server.coordination.timers import Timers

log = structlog.get_logger("antiphon.coordination")

ANSWER: Final = b"A"
NOTICE: Final = b"N"
_WILL: Final = struct.Struct("=QQ")
_CALM: Final = (
    300  # milliseconds: who was connected to the last one comes back within some hundredths of a second
)


class Said(Struct, frozen=True, array_like=True):
    """An operation and who says it. `ttl` is in milliseconds."""

    gateway: str
    epoch: int
    ttl: int
    operation: Operation


_SAID: Final = msgspec.json.Decoder(Said)


class Lines(asyncio.Protocol):
    """A connection that carries lines. What `on_line` raises ends it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream's transport is one

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                self.on_line(line)
        except msgspec.DecodeError:
            log.warning("coordination_failed", reason="not our protocol")
            self.transport.abort()
        except Exception:  # a bug of ours: a new connection starts from the truth
            log.exception("coordination_failed")
            self.transport.abort()

    def on_line(self, line: bytes) -> None:
        raise NotImplementedError

    def say(self, line: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(line + b"\n")


class LocalService:
    """See the module; `open` makes one. Times of the room are this process's monotonic clock."""

    def __init__(self, lock: int, socket: Path, process: str) -> None:
        self._lock = lock
        self._socket = socket
        self._process = process  # its gateways die when the service does
        self._will = (0, 0)
        self._room = Room(born=secrets.token_hex(8), calm=_CALM)
        self._members: dict[str, _Member] = {}
        self._timers = Timers()
        self._timers.start()
        self._server: asyncio.Server | None = None

    @classmethod
    async def open(cls, socket: Path, process: str) -> LocalService | None:
        """Serve, or None if another process does. Raises OSError if the folder cannot be used.

        `process` is what the ids of this process's own gateways begin with.
        """
        lock = os.open(socket.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        service = cls(lock, socket, process)
        try:
            service._inherit()
            _unlink(socket)  # of a process that was killed
            service._server = await asyncio.get_running_loop().create_unix_server(
                lambda: _Member(service), str(socket), backlog=1024
            )
        except BaseException:
            os.close(lock)
            raise
        return service

    def heard(self, member: _Member, said: Said) -> None:
        member.gateway, member.epoch = said.gateway, said.epoch
        self._members[said.gateway] = member
        answer, notices = self._room.apply(said.gateway, said.epoch, said.ttl, said.operation, _now())
        self._tell(notices)
        self._write_will()
        if isinstance(said.operation, Leave):
            self._sweep_when_due()
        member.say(ANSWER + msgspec.json.encode(answer))

    def gone(self, member: _Member) -> None:
        if self._members.get(member.gateway) is member:
            del self._members[member.gateway]
        self._tell(self._room.drop(member.gateway, member.epoch, _now()))
        self._sweep_when_due()

    def _inherit(self) -> None:
        will = os.pread(self._lock, _WILL.size, 0)
        if len(will) == _WILL.size:
            orphans, linger = _WILL.unpack(will)
            self._room.inherit(orphans, linger, _now())
            self._sweep_when_due()

    def _write_will(self) -> None:
        lingering, linger = self._room.orphans("")
        own = [self._room.orphans(name) for name in self._members if name.startswith(self._process)]
        orphans = lingering + sum(count - lingering for count, _ in own)
        will = (orphans, max((each for _, each in own), default=linger))
        if will != self._will:
            self._will = will
            os.pwrite(self._lock, _WILL.pack(*will), 0)

    def _sweep_when_due(self) -> None:
        self._write_will()
        due = self._room.due(_now())
        if due is not None:
            self._timers.after("sweep", due / 1000, self._sweep)

    def _sweep(self) -> None:
        self._tell(self._room.sweep(_now()))
        self._sweep_when_due()

    def _tell(self, notices: dict[str, Notice]) -> None:
        for gateway, notice in notices.items():
            member = self._members.get(gateway)
            if member is not None:
                member.say(NOTICE + msgspec.json.encode(notice))

    async def aclose(self) -> None:
        """Stop serving. Another process takes over as soon as the lock is free."""
        self._timers.stop()
        if self._server is not None:
            self._server.close()
        for member in list(self._members.values()):
            member.transport.abort()
        _unlink(self._socket)
        os.close(self._lock)


class _Member(Lines):
    """The serving end of one gateway's connection."""

    def __init__(self, service: LocalService) -> None:
        super().__init__()
        self._service = service
        self.gateway = ""
        self.epoch = -1

    def on_line(self, line: bytes) -> None:
        self._service.heard(self, _SAID.decode(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.gone(self)


def _unlink(socket: Path) -> None:
    socket.unlink(missing_ok=True)


def _now() -> int:
    return time.monotonic_ns() // 1_000_000
