"""A request's body in pieces, as far as it may be long.

Owns the limit on bodies. It parses nothing.
"""

from __future__ import annotations

from typing import Any

from antiphon.server.answers import Receive

_LONGEST = 20  # digits of a length: no body has more, and Python refuses to read thousands of them


class TooLargeError(Exception):
    """The body is longer than it may be; what is left of it is not read."""


async def read_body(scope: Any, receive: Receive, limit: int) -> list[bytes] | None:
    """The body, at most `limit` bytes of it; None: the client left. Raises TooLargeError."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    # What it says of itself refuses early; what counts is what comes: not every server compares the two.
    if len(length) > _LONGEST or (length.isdigit() and int(length) > limit):
        raise TooLargeError
    pieces: list[bytes] = []
    size = 0
    while size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size <= limit and not message.get("more_body"):
            return pieces
    raise TooLargeError
