"""Where a request is planned: on the loop that carries streams, or in a worker process with limits.

Owns that decision and the worker. A large body goes to the worker, and so does every body with a PDF
whatever its size: no PDF is ever opened on the loop. It must not know what a plan is or how a PDF is read.

    planning = Planning(settings.limits, settings.pdf)
    await planning.plan(Planner(table, sealer), [body])   -> Plan | Fault
"""

from __future__ import annotations

from msgspec import Raw, structs

from antiphon.config import Limits, PdfMode
from antiphon.core import own_faults
from antiphon.core.dialects.documents import PDF, OpenedDocument
from antiphon.core.parts import Fault
from antiphon.server import pdf
from antiphon.server.heavy import MEMORY, HeavyWork, TooHeavyError
from antiphon.server.plan import ANYWHERE, Aim, Plan, Planner

# Of a body, at most, while it is read: as it came, with an image taken out and put in, and as it is sent;
# and what the allocator keeps of that.
_COPIES = 8


class _NeedsWorkerError(Exception):
    """There is a PDF in the request: found by reading it, because JSON has many spellings for its name."""


class Planning:
    """Plans requests, each in its place. `close` ends the worker."""

    def __init__(self, limits: Limits, mode: PdfMode) -> None:
        self._heavy_body = limits.heavy_body
        self._mode = mode
        memory = MEMORY + _COPIES * limits.max_body
        self._heavy = HeavyWork(seconds=limits.heavy_time, memory=memory)

    async def plan(
        self, planner: Planner, body: list[bytes], *, counting: bool = False, aim: Aim = ANYWHERE
    ) -> Plan | Fault:
        """The plan of a request's body, or why it is refused. Cancel safe.

        `body` comes in pieces and is emptied on the way to the worker, so that it is nowhere twice.
        """
        if sum(map(len, body)) < self._heavy_body:
            whole = body[0] if len(body) == 1 else b"".join(body)
            try:
                return planner.plan(whole, counting, None if self._mode == "refuse" else _elsewhere, aim)
            except _NeedsWorkerError:
                del whole  # below
        try:
            planned, sent = await self._heavy.run(_plan_in_worker, body, planner, counting, self._mode, aim)
        except TooHeavyError as ended:
            if ended.note:  # the path of the document that it was reading
                said = f"{ended.note}: document {PDF}: it takes too much time or memory to read"
                return own_faults.invalid_request(said)
            return own_faults.invalid_request("the request's body takes too long to read")
        if isinstance(planned, Fault):
            return planned
        return structs.replace(planned, chat=structs.replace(planned.chat, body=sent))

    async def relay(
        self, planner: Planner, body: list[bytes], path: str, aim: Aim = ANYWHERE
    ) -> Plan | Fault:
        """The same for an OpenAI client's request to `path`, which passes as it is. Cancel safe."""
        if sum(map(len, body)) < self._heavy_body:
            return planner.relay(b"".join(body), path, aim)
        try:
            planned, sent = await self._heavy.run(_relay_in_worker, body, planner, path, aim)
        except TooHeavyError:
            return own_faults.invalid_request("the request's body takes too long to read")
        if isinstance(planned, Fault):
            return planned
        return structs.replace(planned, chat=structs.replace(planned.chat, body=sent))

    def apply(self, limits: Limits, mode: PdfMode) -> None:
        """Other settings, for what is planned from here on; the worker keeps its time and memory."""
        self._heavy_body = limits.heavy_body
        self._mode = mode

    def close(self) -> None:
        self._heavy.close()


def _elsewhere(path: str, data: Raw, images: bool) -> OpenedDocument:
    raise _NeedsWorkerError


def _relay_in_worker(body: bytes, planner: Planner, path: str, aim: Aim) -> tuple[Plan | Fault, bytes]:
    """The plan without the body that it sends, and that body."""
    return _apart(planner.relay(body, path, aim))


def _apart(planned: Plan | Fault) -> tuple[Plan | Fault, bytes]:
    if isinstance(planned, Fault):
        return planned, b""
    return structs.replace(planned, chat=structs.replace(planned.chat, body=b"")), planned.chat.body


def _plan_in_worker(
    body: bytes, planner: Planner, counting: bool, mode: PdfMode, aim: Aim
) -> tuple[Plan | Fault, bytes]:
    """The plan without the body that it sends, and that body."""
    return _apart(planner.plan(body, counting, None if mode == "refuse" else pdf.reader(mode), aim))
