"""A coordinator without a server: the first process of this machine serves the others.

Owns the connection of one gateway for one upstream over a Unix socket, and the taking over: whoever finds
nobody behind the socket and gets the lock beside it serves (`local_service`), to itself too. What a gateway
had ends with its connection, so a process that is killed costs no time; one that stands still costs its TTL.

    coordinator = LocalCoordinator(Path("/run/user/1000/antiphon"), "vllm", ttl=6.0)
    coordinator.start(listener)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import secrets
import stat
from pathlib import Path
from typing import Final

import msgspec
import structlog

from antiphon.server.coordination.local_service import ANSWER, NOTICE, Lines, LocalService, Said
from antiphon.server.coordination.protocol import Answer, Listener, Notice, Operation

log = structlog.get_logger("antiphon.coordination")

_ANSWER: Final = msgspec.json.Decoder(Answer)
_NOTICE: Final = msgspec.json.Decoder(Notice)
_LAST_WORDS: Final = 1.0  # seconds to say goodbye in
_RETRY: Final = (0.01, 0.03)  # seconds: somebody else may be taking over just now
_PROCESS: Final = secrets.token_hex(4)


class LocalCoordinator:
    """See the module. `upstream` is what all its gateways call it, `name` what the log calls it.

    `ttl` in seconds. Raises ValueError if `folder` (made if need be) is not this user's alone: who can write
    to it could serve in our place.
    """

    def __init__(self, folder: Path, upstream: str, *, ttl: float, name: str | None = None) -> None:
        # Several of one process may share an upstream: they live apart and die together.
        self._process = f"{_PROCESS}{os.getpid():x}-"
        self.gateway = self._process + secrets.token_hex(4)
        self.ttl = ttl
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ValueError("coordination: the folder must belong to this user and be closed to others")
        digest = hashlib.blake2b(upstream.encode(), digest_size=8).hexdigest()  # a socket's path is short
        self._socket = folder / f"slots-{digest}.sock"
        self._name = upstream if name is None else name
        self._listener: Listener | None = None
        self._connection: _Connection | None = None
        self._service: LocalService | None = None
        self._runner: asyncio.Task[None] | None = None

    @property
    def serves(self) -> bool:
        """Whether it is this process that serves the others."""
        return self._service is not None

    def start(self, listener: Listener) -> None:
        """Connect, and stay connected. From a running loop, once."""
        self._listener = listener
        self._runner = asyncio.get_running_loop().create_task(self._run())

    def send(self, epoch: int, operation: Operation) -> None:
        if self._connection is not None:
            said = Said(self.gateway, epoch, round(self.ttl * 1000), operation)
            self._connection.owed += 1
            self._connection.say(msgspec.json.encode(said))

    def reset(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()

    async def aclose(self) -> None:
        self._listener = None
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if self._connection is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._connection.answered()
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        if self._service is not None:
            await self._service.aclose()

    async def _run(self) -> None:
        while True:
            try:
                await self._converse()
            except Exception:  # a bug of ours: a new connection starts from the truth
                log.exception("coordination_failed", upstream=self._name)
                await asyncio.sleep(self.ttl / 6)
            await asyncio.sleep(random.uniform(*_RETRY))  # noqa: S311 - no secret

    async def _converse(self) -> None:
        """One connection from its start to its end, or the attempt to serve if there is nobody."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.ttl / 3):
                _, connection = await loop.create_unix_connection(
                    lambda: _Connection(self), str(self._socket)
                )
        except (OSError, TimeoutError):
            await self._take_over()
            return
        try:
            await self._talk(connection)
        finally:
            connection.transport.abort()

    async def _talk(self, connection: _Connection) -> None:
        if self._listener is None:
            return
        self._connection = connection
        try:
            self._listener.on_up()
            await connection.closed
        finally:
            self._connection = None
            if self._listener is not None:
                self._listener.on_down()

    async def _take_over(self) -> None:
        if self._service is not None:
            return
        try:
            self._service = await LocalService.open(self._socket, self._process)
        except OSError as error:
            log.warning("coordination_socket", upstream=self._name, reason=error.strerror)
            await asyncio.sleep(self.ttl / 6)

    def _heard(self, line: bytes) -> None:
        listener = self._listener
        if line[:1] == ANSWER:
            answer = _ANSWER.decode(line[1:])
            if listener is not None:
                listener.on_answer(answer)
        elif line[:1] == NOTICE and listener is not None:
            listener.on_notice(_NOTICE.decode(line[1:]))


class _Connection(Lines):
    """The gateway's end."""

    def __init__(self, owner: LocalCoordinator) -> None:
        super().__init__()
        self._owner = owner
        self.owed = 0  # answers that are still to come
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle: asyncio.Future[None] | None = None

    async def answered(self) -> None:
        """Wait until everything that was said has its answer, or the connection is gone."""
        if self.owed and not self.closed.done():
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def on_line(self, line: bytes) -> None:
        if line[:1] == ANSWER:
            self.owed -= 1
        self._owner._heard(line)
        if self._idle is not None and not self.owed and not self._idle.done():
            self._idle.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.closed, self._idle):
            if future is not None and not future.done():
                future.set_result(None)
