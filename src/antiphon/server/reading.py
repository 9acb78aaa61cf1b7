"""A request's body in pieces, as far as it may be long.

Owns the limit on bodies. It parses nothing.
"""

from __future__ import annotations

from typing import Any

from antiphon.server.answers import Receive


class TooLargeError(Exception):
    """The body is longer than it may be; what is left of it is not read."""


async def read_body(scope: Any, receive: Receive, limit: int) -> list[bytes] | None:
    """The body, at most `limit` bytes of it; None: the client left. Raises TooLargeError."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    pieces: list[bytes] = []
    size = int(length) if length.isdigit() else 0
    while size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return pieces
        if not length:
            size += len(pieces[-1])
    raise TooLargeError
