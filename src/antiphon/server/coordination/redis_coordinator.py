"""A coordinator in Valkey or Redis: one connection, one script for each operation.

Owns the connection of one gateway for one upstream: the scripts' answers and the notices of its channel
come over the same one (RESP3), so that their order is the order of the changes. Who may have a slot is the
scripts' business (`redis_scripts`), what to do without an answer is `SharedSlots`'; what a URL may say is
`redis_url`'s. What the client raises may hold the password: of an exception only its type is logged.

    coordinator = RedisCoordinator("redis://host:6379/0", "vllm", ttl=6.0)
    coordinator.start(listener)              # connects, and again whenever it has to
    coordinator.send(epoch, Renew())         # -> listener.on_answer
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from typing import Final
from urllib.parse import quote

import msgspec
import structlog
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import MovedError, RedisError

from antiphon.server.coordination.protocol import Answer, Listener, Notice, Operation
from antiphon.server.coordination.redis_scripts import KEY_NAMES, SCRIPTS
from antiphon.server.coordination.redis_url import read_url

log = structlog.get_logger("antiphon.coordination")

_ANSWER: Final = msgspec.json.Decoder(Answer)
_NOTICE: Final = msgspec.json.Decoder(Notice)
_LAST_WORDS: Final = 1.0  # seconds to say goodbye in


class RedisCoordinator:
    """See the module. `upstream` is what all its gateways call it, `name` what the log calls it.

    `ttl` in seconds. Raises ValueError for a URL that cannot be used; see `read_url`.
    """

    def __init__(
        self, url: str, upstream: str, *, ttl: float, name: str | None = None, prefix: str = "antiphon"
    ) -> None:
        self.gateway = secrets.token_hex(6)
        self.ttl = ttl
        self._name = upstream if name is None else name
        # No time limit of the client's: an answer that is late is `SharedSlots`' business.
        own = {"protocol": 3, "socket_timeout": None, "health_check_interval": 0}
        self._connection_class, self._options = read_url(url, own)
        tag = f"{prefix}:{{{quote(upstream, safe='')}}}"
        self._keys = [f"{tag}:{name}" for name in KEY_NAMES]
        self._channels = f"{tag}:to:"
        self._digests: dict[str, str] = {}
        self._listener: Listener | None = None
        self._outbox: list[bytes] = []
        self._news = asyncio.Event()  # the outbox is not empty, or `reset`
        self._reset = False
        self._up = False
        self._owed = 0  # answers that are still to come
        self._packer: AbstractConnection | None = None
        self._runner: asyncio.Task[None] | None = None

    def start(self, listener: Listener) -> None:
        """Connect, and stay connected. From a running loop, once."""
        self._listener = listener
        self._runner = asyncio.get_running_loop().create_task(self._run())

    def send(self, epoch: int, operation: Operation) -> None:
        if not self._up or self._packer is None:
            return
        command: tuple[str | bytes | int, ...] = (
            "EVALSHA",
            self._digests[type(operation).__name__],
            len(self._keys),
            *self._keys,
            self.gateway,
            epoch,
            round(self.ttl * 1000),
            msgspec.json.encode(operation),
            round(self.ttl * 400),
            self._channels,
        )
        self._owed += 1
        self._outbox += self._packer.pack_command(*command)
        self._news.set()

    def reset(self) -> None:
        self._reset = True
        self._news.set()

    async def aclose(self) -> None:
        listener, self._listener = self._listener, None
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if listener is not None and self._up:
            self._news.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await asyncio.wait({runner})
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)

    async def _run(self) -> None:
        """Connect again whenever the connection is gone, after a pause. Nothing but a goodbye ends it."""
        told = ""
        while True:
            try:
                await self._converse()
            except MovedError as moved:
                # A cluster: another node has this upstream's slot.
                self._options["host"] = moved.host or self._options["host"]
                self._options["port"] = moved.port
                reason = "moved"
            except (RedisError, OSError, TimeoutError, msgspec.DecodeError) as error:
                reason = type(error).__name__  # its text may hold an address
            except Exception as error:  # noqa: BLE001 - a bug, of ours or the client's: the next one starts anew
                # No traceback: its frames hold the password.
                reason = type(error).__name__
                log.error("coordination_failed", upstream=self._name, reason=reason)  # noqa: TRY400 - see above
            else:
                return
            if reason != told:
                log.warning("coordinator_unreachable", upstream=self._name, reason=reason)
                told = reason
            # Faster than calm lasts after an empty start: 0.4 of the TTL.
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(1.0, self.ttl / 6))  # noqa: S311 - no secret

    async def _converse(self) -> None:
        """One connection from its start to its end: returns if this gateway has said goodbye."""
        connection = self._connection_class(**self._options)
        try:
            async with asyncio.timeout(self.ttl / 3):
                await self._open(connection)
            await self._talk(connection)
        finally:
            await _close(connection)

    async def _open(self, connection: AbstractConnection) -> None:
        await connection.connect()  # type: ignore[no-untyped-call]  # as the library has it
        for name, script in SCRIPTS.items():
            await connection.send_command("SCRIPT", "LOAD", script, check_health=False)
            self._digests[name] = (await connection.read_response()).decode()
        await connection.send_command("SUBSCRIBE", self._channels + self.gateway, check_health=False)
        await connection.read_response(push_request=True)

    async def _talk(self, connection: AbstractConnection) -> None:
        """Until the connection is gone (raises why), or this gateway has said goodbye."""
        self._packer = connection
        self._reset = False
        self._owed = 0
        self._outbox.clear()
        self._news.clear()
        self._up = True
        reader = asyncio.get_running_loop().create_task(self._listen(connection))
        reader.add_done_callback(lambda _: self._news.set())
        try:
            if self._listener is not None:
                self._listener.on_up()
            while not reader.done() and (self._listener is not None or self._owed):
                await self._news.wait()
                self._news.clear()
                if self._reset:
                    raise TimeoutError
                commands, self._outbox = self._outbox, []
                if commands:
                    async with asyncio.timeout(self.ttl / 3):
                        await connection.send_packed_command(commands, check_health=False)
            if reader.done():
                reader.result()
        finally:
            self._up = False
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if self._listener is not None:
                self._listener.on_down()

    async def _listen(self, connection: AbstractConnection) -> None:
        while True:
            said = await connection.read_response(push_request=True)
            if isinstance(said, bytes):
                self._owed -= 1
                if self._listener is not None:
                    self._listener.on_answer(_ANSWER.decode(said))
                else:
                    self._news.set()
            elif isinstance(said, list) and said[0] == b"message" and self._listener is not None:
                self._listener.on_notice(_NOTICE.decode(said[2]))


async def _close(connection: AbstractConnection) -> None:
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)
