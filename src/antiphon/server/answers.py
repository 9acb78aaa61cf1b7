"""Answers through ASGI that are no stream of events: whole bodies, errors, and the headers of all of them.

Owns header names and the two sends of a whole answer. It knows no upstream and no phase.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from antiphon.core.faults import error_body
from antiphon.core.parts import Fault

Send: TypeAlias = Callable[[Any], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def answer_headers(request_id: str, degraded: tuple[str, ...]) -> Headers:
    """What every answer to a client carries: its id, and what could not be carried upstream."""
    headers = [(b"request-id", request_id.encode())]
    named = degraded_header(degraded)
    return [*headers, (b"antiphon-degraded", named)] if named else headers


def degraded_header(paths: tuple[str, ...], limit: int = 1024) -> bytes:
    """Field paths for `antiphon-degraded`: ASCII, at most `limit` bytes, then `+N` for the rest."""
    shown: list[str] = []
    size = 0
    for position, path in enumerate(paths):
        clean = "".join(letter if "!" <= letter <= "~" and letter != "," else "_" for letter in path)
        if size + len(clean) + 2 > limit - 8:
            return ", ".join([*shown, f"+{len(paths) - position}"]).encode()
        shown.append(clean)
        size += len(clean) + 2
    return ", ".join(shown).encode()


def error_frame(fault: Fault, request_id: str) -> bytes:
    """A stream's `event: error`, without an encoder."""
    return b"event: error\ndata: %b\n\n" % error_body(fault, request_id)


def fault_headers(fault: Fault, request_id: str, extra: tuple[tuple[bytes, bytes], ...] = ()) -> Headers:
    """What an error answer carries: its id, and what tells SDKs whether and when to come back."""
    headers = [(b"request-id", request_id.encode()), *extra]
    if fault.retry_after is not None:
        headers.append((b"retry-after", fault.retry_after.encode("ascii", "replace")))
    if fault.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if fault.should_retry else b"false"))
    return headers


async def respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A whole JSON answer."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def respond_fault(
    send: Send, fault: Fault, request_id: str, extra: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """An error answer in Anthropic's shape, where no surface is known yet."""
    headers = fault_headers(fault, request_id, extra)
    await respond(send, fault.status, error_body(fault, request_id), headers)
