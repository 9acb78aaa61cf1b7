"""What can go wrong with a simulated answer, and how a request asks for it.

It owns the names, the ranges and the three places that a fault comes from. It must not do anything to
a connection: `simulator.py` does, when `strike` says so. In this order the first place wins:

1. a marker in the request's last user text, as gateways drop fields that they do not know:
   `[[stall_after=3]]`, `[[status=503,delay_headers=2]]`;
2. the request's field `"simulate": {"stall_after": 3}`;
3. the settings of the simulator (its command-line switches).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from antiphon.simulator_script import RequestError

if TYPE_CHECKING:
    from antiphon.simulator_script import ChatRequest

_Seconds = Annotated[float, Meta(ge=0, le=86_400)]
_Frames = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class Faults:
    """What goes wrong with an answer; by default nothing does. Times are in seconds.

    `*_after` counts the SSE frames that are sent before it strikes; the role-only chunk is the first,
    0 means right after the headers. An answer without streaming counts the frames it would have had,
    and has sent nothing when a fault strikes.
    """

    delay_headers: _Seconds = 0.0
    """Wait before anything is sent, as a server does whose queue is full."""
    delay_first_token: _Seconds = 0.0
    """Wait between the headers and the first frame, as a server does in a long prefill."""
    stall_after: _Frames | None = None
    """Fall silent with the connection open until the client goes away."""
    cut_after: _Frames | None = None
    """Close the connection cleanly (FIN), without the chunk that ends the HTTP message."""
    reset_after: _Frames | None = None
    """Reset the connection (RST)."""
    error_after: _Frames | None = None
    """Send an error object, then `[DONE]` (as vLLM does). Without streaming: HTTP 500."""
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    """Answer with this HTTP status and an error body."""
    retry_after: _Seconds | None = None
    """The `retry-after` header beside `status`."""


_FAULT_NAMES = frozenset(each.name for each in fields(Faults))
_MARKER = re.compile(r"\[\[\s*(\w+\s*=\s*[\d.]+(?:\s*,\s*\w+\s*=\s*[\d.]+)*)\s*\]\]")


class Struck(Exception):  # noqa: N818 -- it is how a fault ends an answer, not an error of ours
    """The fault `name` strikes now."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def faults_for(request: ChatRequest, standing: Faults) -> Faults:
    """The faults of one request: its marker, else its `simulate` field, else the `standing` ones.

    Raises `RequestError` for an unknown name or a value out of range. A marker none of whose names
    is a fault's is ordinary text.
    """
    asked = dict(request.simulate or {})
    for marker in _MARKER.findall(request.prompt):
        pairs = dict(re.split(r"\s*=\s*", pair.strip()) for pair in marker.split(","))
        if not _FAULT_NAMES.isdisjoint(pairs):
            asked |= pairs
    if unknown := sorted(asked.keys() - _FAULT_NAMES):
        raise RequestError(
            f"no such fault: {', '.join(unknown)}; there are {', '.join(sorted(_FAULT_NAMES))}"
        )
    try:
        return msgspec.convert(asdict(standing) | asked, Faults, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"simulate: {error}") from error


def strike(faults: Faults, frames: int) -> None:
    """Raise `Struck` if a fault is due after this many frames."""
    for name in ("stall_after", "cut_after", "reset_after", "error_after"):
        if getattr(faults, name) == frames:
            raise Struck(name)
