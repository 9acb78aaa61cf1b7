"""What a request's headers tell of its client: who waits together, how urgent it is, how long it waits.

Pure. Nothing here is trusted for more than an order in the queue, and no header's value is kept or shown:
shares are digests, or names of keys.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from antiphon.core.dialects.address import API_VERSION
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.surfaces.openai.request import RelayRequest
from antiphon.server.exchange_terms import CLIENT_TIMEOUT
from antiphon.server.fairness import Priority

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

_KEYS = (b"x-api-key", b"authorization")
_SESSION = b"x-claude-code-session-id"
_PLAIN = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._,; -]{0,998}[A-Za-z0-9]|[A-Za-z0-9]")
_PRIORITIES = {b"interactive": Priority.INTERACTIVE, b"background": Priority.BACKGROUND}
_LONGEST_PATIENCE = 24 * 3600.0


def share(scope: Any, key: str | None = None) -> str:
    """Who waits together: everybody with the gateway's key of this name.

    While the gateway has no keys of its own: a Claude Code session, else whatever the client sends as a key
    (the session says more), else an address; as twelve hexadecimal digits.
    """
    if key is not None:
        return key
    headers = dict(scope["headers"])
    session = headers.get(_SESSION)
    if session:
        return _digest(b"session", session)
    for name in _KEYS:
        if headers.get(name):
            return _digest(name, headers[name])
    client = scope.get("client")
    return _digest(b"address", str(client[0]).encode()) if client else ""


def priority(
    headers: Headers, chat: ChatRequest | RelayRequest, highest: Priority = Priority.INTERACTIVE
) -> Priority:
    """What `antiphon-priority` asks for; without it, or with an unknown word, what the request is like.

    Never more than `highest`, which is what its key may ask for.
    """
    return asked_priority(
        headers, highest, other=Priority.BACKGROUND if chat.side_request else Priority.INTERACTIVE
    )


def asked_priority(
    headers: Headers, highest: Priority, *, other: Priority = Priority.INTERACTIVE
) -> Priority:
    """As `priority`, where what the request is like is not known: `other` stands for it."""
    wanted = other
    for name, value in headers:
        if name == b"antiphon-priority" and value.strip().lower() in _PRIORITIES:
            wanted = _PRIORITIES[value.strip().lower()]
            break
    return max(wanted, highest)  # the smaller goes first


def session(headers: Headers) -> str:
    """Stands for the client's session, if it names one; "" if not."""
    for name, value in headers:
        if name == _SESSION and value:
            return _digest(b"session", value)
    return ""


def api_headers(headers: Headers) -> tuple[tuple[str, str], ...]:
    """What a server that speaks Messages itself must hear of the client's headers: version and betas."""
    version, betas = API_VERSION, []
    for name, value in headers:
        if not _PLAIN.fullmatch(value):
            continue
        if name == b"anthropic-version":
            version = value.decode("ascii")
        elif name == b"anthropic-beta":
            betas.append(value.decode("ascii"))
    beta = [("anthropic-beta", ",".join(betas))] if betas else []
    return ("anthropic-version", version), *beta


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
