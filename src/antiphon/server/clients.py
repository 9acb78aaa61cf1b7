"""What a request's headers tell of its client: who waits together, how urgent it is, how long it waits.

Pure. Nothing here is trusted for more than an order in the queue, and no header's value is kept or shown:
shares are digests.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any, TypeAlias

from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.server.exchange_terms import CLIENT_TIMEOUT
from antiphon.server.fairness import Priority

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

_KEYS = (b"x-api-key", b"authorization")
_SESSION = b"x-claude-code-session-id"
_PRIORITIES = {b"interactive": Priority.INTERACTIVE, b"background": Priority.BACKGROUND}
_LONGEST_PATIENCE = 24 * 3600.0


def share(scope: Any) -> str:
    """Who waits together: a Claude Code session, else a key, else an address. Twelve hexadecimal digits.

    While the gateway has no keys of its own, a key is whatever the client sends; the session says more.
    """
    headers = dict(scope["headers"])
    session = headers.get(_SESSION)
    if session:
        return _digest(b"session", session)
    for name in _KEYS:
        if headers.get(name):
            return _digest(name, headers[name])
    client = scope.get("client")
    return _digest(b"address", str(client[0]).encode()) if client else ""


def priority(headers: Headers, chat: ChatRequest) -> Priority:
    """What `antiphon-priority` asks for; without it, or with an unknown word, what the request is like."""
    for name, value in headers:
        if name == b"antiphon-priority" and value.strip().lower() in _PRIORITIES:
            return _PRIORITIES[value.strip().lower()]
    return Priority.BACKGROUND if chat.side_request else Priority.INTERACTIVE


def patience(headers: Headers) -> float:
    """Seconds that the client says it waits (protocol: SDKs, `X-Stainless-Timeout`), else their default."""
    for name, value in headers:
        if name == b"x-stainless-timeout":
            try:
                seconds = float(value)
            except ValueError:
                return CLIENT_TIMEOUT
            usable = math.isfinite(seconds) and 0 < seconds <= _LONGEST_PATIENCE
            return seconds if usable else CLIENT_TIMEOUT
    return CLIENT_TIMEOUT


def _digest(kind: bytes, value: bytes) -> str:
    return hashlib.sha256(kind + b"\0" + value).hexdigest()[:12]
