"""What one worker asks the others: who holds which slot, and to end a request that is not its own.

Owns the sockets (one for each worker, in the folder that is theirs alone) and the adding up of answers. What
a question means is up to whoever answers it: it must not know exchanges or routes. A worker that is gone, or
that says nothing for a second, is left out.

    peers = Peers(folder, answer)                  # answer(Question(cancel="req_1")) -> bytes, in any worker
    await peers.start()
    await peers.ask(Question())                    -> [what each of the others answered]
    merged_slots([mine, *map(json.loads, theirs)]) -> as one process would have said it
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct

log = structlog.get_logger("antiphon.server")

_PATIENCE: Final = 1.0  # seconds
_SOCKETS: Final = "peer-*.sock"
_COMMON: Final = ("slots", "free")  # each worker says this of the slots that all of them share
_SUMS: Final = ("held", "draining", "waiting")


class Question(Struct, frozen=True, omit_defaults=True):
    """`cancel` is the request id of an exchange that is to end; None: who holds what, and who waits."""

    cancel: str | None = None


_QUESTION: Final = msgspec.json.Decoder(Question)


class Peers:
    """See the module. `answer` is this worker's own; it is called from the loop and must not wait."""

    def __init__(self, folder: Path, answer: Callable[[Question], bytes]) -> None:
        self._folder = folder
        self._socket = folder / f"peer-{os.getpid()}.sock"
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer the others from now on. Raises OSError if the folder cannot be used."""
        _clear(self._socket)  # of a process that had this id before
        self._server = await asyncio.start_unix_server(self._serve, self._socket)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
            _clear(self._socket)

    async def ask(self, question: Question) -> list[bytes]:
        """What the other workers say. Cancel safe: they have said it to nobody then."""
        others = [path for path in sorted(self._folder.glob(_SOCKETS)) if path != self._socket]
        answers = await asyncio.gather(*(_asked(path, question) for path in others))
        return [answer for answer in answers if answer]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                line = await reader.readline()
                writer.write(self._answer(_QUESTION.decode(line)))
                await writer.drain()
        except (OSError, TimeoutError, msgspec.DecodeError) as error:
            log.warning("worker_peer", reason=type(error).__name__)
        finally:
            writer.close()


async def _asked(path: Path, question: Question) -> bytes:
    """One worker's answer, b"" if it has none."""
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(msgspec.json.encode(question) + b"\n")
                return await reader.read()
            finally:
                writer.close()
    except (ConnectionRefusedError, FileNotFoundError):
        _clear(path)  # it was killed, or has ended just now
    except (OSError, TimeoutError) as error:
        log.warning("worker_peer", reason=type(error).__name__)
    return b""


def _clear(path: Path) -> None:
    path.unlink(missing_ok=True)


def merged_slots(answers: Iterable[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """`GET /admin/slots` of several workers as of one: by upstream, leases by age, queues by how long.

    A position is of its own worker's queue: the order among all of them is the coordinator's.
    """
    whole: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for name, theirs in answer.items():
            if name not in whole:
                whole[name] = {**theirs, "leases": list(theirs["leases"]), "queue": list(theirs["queue"])}
                continue
            ours = whole[name]
            for what in _COMMON:
                ours[what] = min(ours[what], theirs[what])
            for what in _SUMS:
                ours[what] += theirs[what]
            ours["leases"] += theirs["leases"]
            ours["queue"] += theirs["queue"]
    for upstream in whole.values():
        upstream["leases"].sort(key=lambda lease: -lease["age_seconds"])
        upstream["queue"].sort(key=lambda ticket: -ticket["waited_seconds"])
    return whole
