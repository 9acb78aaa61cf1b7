"""The client's side of a response on any ASGI server: no extension, only `send` and `receive`.

Owns what server.edge does on its own server: it buffers frames for the request's task, tells the
exchange when the client is behind, and watches `receive()` for the disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.server.edge import LinkListener

HIGH_WATER = 64 * 1024


class AsgiLink:
    """Frames go into a buffer; `pump` sends them. Cancel safe: the watcher ends with the request."""

    def __init__(self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        self.listener: LinkListener | None = None
        self.paused = False
        self.gone = False
        self._receive = receive
        self._send = send
        self._buffer: list[bytes] = []
        self._size = 0
        self._ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._cut = False
        self._drained = asyncio.Event()
        self._drained.set()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._pump())]

    async def stop(self) -> None:
        """End the watcher and the sender. Raises what ended one of them, if that was a bug.

        What stands before a cut is sent first: nobody has waited for it, as `send` waits at an end in order.
        """
        if self._cut:
            await self._drained.wait()
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    def begin(self) -> None:
        """The server frames the body by itself."""

    def write(self, frames: bytes) -> None:
        self._buffer.append(frames)
        self._size += len(frames)
        self._drained.clear()
        self._ready.set()
        if self._size > HIGH_WATER and not self.paused:
            self.paused = True
            if self.listener is not None:
                self.listener.on_client_paused()

    def cut(self) -> None:
        """What is buffered still goes out, in `stop`; the response is left without its end."""
        self._cut = True

    def abort(self) -> None:
        """ASGI knows no abort: what is buffered is dropped, and the response is left without its end."""
        self._buffer.clear()
        self._leave()
        for task in self._tasks:
            task.cancel()

    async def send(self, message: Any) -> None:
        """ASGI's send for the start and the end: frames that were written before go first."""
        await self._drained.wait()
        if not self.gone:
            await self._send(message)

    async def _pump(self) -> None:
        try:
            while True:
                await self._ready.wait()
                self._ready.clear()
                await self._send_buffer()
        except OSError:
            self._leave()  # ASGI's word for a client that is gone, since version 2.4 of its HTTP part
        finally:
            self._drained.set()

    async def _send_buffer(self) -> None:
        frames = b"".join(self._buffer)
        self._buffer.clear()
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})
        self._size -= len(frames)
        if not self._buffer:
            self._drained.set()
        if self.paused and self._size <= HIGH_WATER // 2:
            self.paused = False
            if self.listener is not None:
                self.listener.on_client_resumed()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        """The client is gone, or given up: whoever waits to send does not wait any longer."""
        self.gone = True
        self._drained.set()
        if self.listener is not None:
            self.listener.on_client_gone()
