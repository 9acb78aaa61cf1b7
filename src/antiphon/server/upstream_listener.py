"""What an upstream call tells the one who made it: the callbacks and the reasons of a failure.

Owns the contract between `upstream.py` and its listeners, and nothing that does anything.

    class Printer:                       # a Listener
        def on_body(self, data): print(data)
        def on_end(self): print("complete")
        def on_lost(self, failure): print(failure.kind, failure.message)
        ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    import asyncio

FailureKind = Literal["connect", "tls", "reset", "eof", "protocol", "encoding"]


class Failure(msgspec.Struct, frozen=True):
    """Why a call ended without its end.

    `kind`: "connect" (refused, unreachable, no such name), "tls", "reset" (the connection was lost),
    "eof" (closed by the upstream before the end), "protocol" (not valid HTTP, headers too large),
    "encoding" (damaged or unknown content-encoding). `message` names no address and no URL.
    `before_response`: not one byte of a response had arrived.
    """

    kind: FailureKind
    message: str
    before_response: bool


class Listener(Protocol):
    """Who hears what becomes of a call. Every callback is synchronous, out of the transport's own.

    In order: `on_open`; `on_head`; `on_body` as often as there is something; then `on_end` and one
    last `on_read`, or `on_lost`. Every callback may abort or release the call, after which there is
    none. Listeners guard themselves: what a callback raises reaches the loop's exception handler
    once, the connection is aborted, and the call has ended without `on_lost`.
    """

    def on_open(self) -> None:
        """The connection is there and the request is about to be written.

        A second time where a reused connection died before any response byte and the request is repeated.
        """

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """The final response head: names lower-case, repeated ones joined with ", ". 1xx are swallowed."""

    def on_body(self, data: bytes) -> None:
        """A piece of the body, decoded: never empty, cut wherever the network cut it."""

    def on_read(self) -> None:
        """Once per read, after its `on_head`, `on_body` and `on_end`: the place for one write."""

    def on_end(self) -> None:
        """The response is complete."""

    def on_lost(self, failure: Failure) -> None:
        """The response will not become complete. Instead of `on_end`; the last callback."""


def report(loop: asyncio.AbstractEventLoop, error: Exception) -> None:
    """Hand what a listener's callback raised to the loop's exception handler."""
    loop.call_exception_handler(
        {"message": "a callback of an upstream call's listener raised", "exception": error}
    )
