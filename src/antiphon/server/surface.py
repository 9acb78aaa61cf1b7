"""What a kind of client expects around an answer: how streams begin, how errors look, what keeps it waiting.

Owns one row for each surface, and which of them a request's target belongs to. What is in an answer is
core's.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from antiphon.core.faults import error_body
from antiphon.core.parts import Fault
from antiphon.core.surfaces.messages.events import PING
from antiphon.core.surfaces.openai import errors as openai
from antiphon.core.surfaces.openai.request import ROUTES
from antiphon.server.answers import EVENT_STREAM, Headers, Send, error_frame, fault_headers, respond


class Surface(Struct, frozen=True):
    """`ping` is written into a silent stream; empty: this kind of client knows none."""

    name: str
    stream_head: Headers
    ping: bytes
    id_names: tuple[bytes, ...]
    error_body: Callable[[Fault, str], bytes]
    error_frame: Callable[[Fault, str], bytes]
    ends_with_error: bool
    """A stream that fails ends in order, behind an error that nobody overlooks; otherwise it is cut."""
    status_of: Callable[[Fault], int]
    """The status that a fault has for this kind of client."""

    def id_headers(self, request_id: str) -> Headers:
        """Under which names beside `request-id` its SDKs look for it."""
        return [(name, request_id.encode()) for name in self.id_names]

    async def respond(
        self, send: Send, fault: Fault, request_id: str, extra: tuple[tuple[bytes, bytes], ...] = ()
    ) -> int:
        """An error answer, with what tells SDKs whether and when to come back. Returns its status."""
        status = self.status_of(fault)
        headers = [*fault_headers(fault, request_id, extra), *self.id_headers(request_id)]
        await respond(send, status, self.error_body(fault, request_id), headers)
        return status


def _own_status(fault: Fault) -> int:
    return fault.status


MESSAGES = Surface("messages", EVENT_STREAM, PING, (), error_body, error_frame, True, _own_status)
OPENAI = Surface(
    "openai",
    EVENT_STREAM,
    b"",
    (b"x-request-id",),
    openai.error_body,
    openai.error_frame,
    False,
    openai.status_of,
)

_OPENAI_PATHS = tuple(f"/v1{route}".encode() for route in ROUTES)


def surface_at(target: bytes) -> Surface:
    """Whose shape an error has that is said before anything is routed. `target` as on the request's line."""
    path = target.partition(b"?")[0].rstrip(b"/")
    return OPENAI if path.endswith(_OPENAI_PATHS) else MESSAGES
