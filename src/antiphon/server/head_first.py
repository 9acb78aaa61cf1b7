"""The head of a response and what comes right behind it, as one write.

Owns the head between the two. uvicorn writes them one by one, which is two system calls and wakes the client
twice: the dearest part of a short answer. What has nothing behind it goes out with the loop's next turn.

    cycle.transport = HeadFirst(cycle)
    cycle.transport.write(head)      # waits
    cycle.transport.write(body)      # one write of both
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

_LARGE = 64 * 1024  # bytes of a body that is not copied to go out with its head


class Cycle(Protocol):
    """uvicorn's RequestResponseCycle, as far as this goes."""

    response_started: bool
    transport: Any


class HeadFirst:
    """One cycle's transport. Everything but `write` and `close` is the transport's own."""

    __slots__ = ("_cycle", "_seen", "_transport", "held")

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._transport: asyncio.Transport = cycle.transport
        self.held = b""  # the head, while it waits
        self._seen = False  # the head has come

    def write(self, data: bytes) -> None:
        if not self._seen and self._cycle.response_started:
            self._seen = True
            self.held = data
            asyncio.get_running_loop().call_soon(self.flush)
        elif len(data) > _LARGE:
            self.flush()
            self._transport.write(data)
        else:
            held, self.held = self.held, b""
            self._transport.write(held + data if held else data)

    def flush(self) -> None:
        """Nothing came behind the head, or nothing will."""
        held, self.held = self.held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Close behind what was written."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
