"""What a kind of client expects around an answer: how streams begin, how errors look, what keeps it waiting.

Owns one row for each surface. What is in an answer is core's.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from antiphon.core.faults import error_body
from antiphon.core.parts import Fault
from antiphon.core.surfaces.messages.events import PING
from antiphon.server.answers import EVENT_STREAM, Headers, error_frame


class Surface(Struct, frozen=True):
    """`ping` is written into a silent stream; empty: this kind of client knows none."""

    name: str
    stream_head: Headers
    ping: bytes
    error_body: Callable[[Fault, str], bytes]
    error_frame: Callable[[Fault, str], bytes]


MESSAGES = Surface("messages", EVENT_STREAM, PING, error_body, error_frame)
