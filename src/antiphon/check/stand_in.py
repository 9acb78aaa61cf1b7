"""The upstream that the corpus is played from: an OpenAI-style server that says the case's bytes.

Owns a listening socket and raw HTTP/1.1, because the faults are about which bytes come in which read.
It judges nothing and keeps what it was asked.

    async with StandIn(19000) as upstream:
        upstream.play({"kind": "openai_sse", "data": ["[DONE]"], "end": "eof"})
        ...                                   # the gateway asks http://127.0.0.1:19000/v1
        upstream.requests[0].body["model"]
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

_LIMIT = 64 * 1024 * 1024  # bytes of a request's head, or of one of its chunks
_PAUSE = 0.004  # seconds between two writes, so that they arrive as two reads
_HANG = 20.0  # seconds that a case with `end: hang` keeps its socket open
_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream"}
MODEL = "up-model"
"""What the stand-in calls its model."""


class Request(Struct):
    """One inference request. `headers` have lower-case names, `body` is decoded JSON, else text."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class StandIn:
    """The server, an async context manager. Entering raises OSError if the port is taken."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.requests: list[Request] = []
        self._host = host
        self._trigger: Mapping[str, Any] | None = None
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        """What a gateway needs as its upstream's address."""
        return f"http://{self._host}:{self.port}/v1"

    def play(self, trigger: Mapping[str, Any] | None) -> None:
        """Answer with this trigger from now on, None: with a short answer. Forgets earlier requests."""
        self._trigger, self.requests = trigger, []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, self.port, limit=_LIMIT)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # With no buffer of its own, `drain` returns when the kernel has every byte: RST may follow.
        writer.transport.set_write_buffer_limits(0)
        try:
            request = await _read_request(reader)
            await self._answer(request, reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            # A gateway that gives up, or that speaks no HTTP, is judged by what its client gets.
            writer.transport.abort()
        finally:
            writer.close()

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = request.path.partition("?")[0].rstrip("/")
        if path.endswith("/models"):
            models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
            await _whole(writer, 200, _JSON, json.dumps(models))
        elif not path.endswith("/chat/completions"):
            # Tokenizers, health checks and their like: this is a plain server that has none.
            await _whole(writer, 404, _JSON, '{"error":{"message":"no such route"}}')
        else:
            self.requests.append(request)
            await self._play(request, reader, writer)

    async def _play(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        trigger = self._trigger or {"kind": "none"}
        if trigger["kind"] == "openai_sse":
            frames = [f"data: {line}\n\n".encode() for line in trigger["data"]]
            await _stream(writer, reader, 200, _EVENTS, frames, trigger.get("end", "eof"))
        elif trigger["kind"] == "raw_body":
            chunks = [bytes.fromhex(chunk) for chunk in trigger["chunks_hex"]]
            await _stream(
                writer,
                reader,
                trigger.get("status", 200),
                trigger.get("headers", {}),
                chunks,
                trigger.get("end", "eof"),
            )
        elif trigger["kind"] == "upstream_http":
            body = trigger["body"]
            text = body if isinstance(body, str) else json.dumps(body)
            await _whole(writer, trigger["status"], trigger["headers"], text)
        elif isinstance(request.body, dict) and request.body.get("stream"):
            await _stream(writer, reader, 200, _EVENTS, _SHORT_STREAM, "eof")
        else:
            await _whole(writer, 200, _JSON, json.dumps(_SHORT_ANSWER))


def _chunk(delta: dict[str, Any], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    body = {
        "id": "chatcmpl-d",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
    }
    return f"data: {json.dumps(body)}\n\n".encode()


_SHORT_STREAM = [
    _chunk({"role": "assistant", "content": "ok"}, None),
    _chunk({}, "stop"),
    b"data: [DONE]\n\n",
]
_SHORT_ANSWER = {
    "id": "chatcmpl-d",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


async def _read_request(reader: asyncio.StreamReader) -> Request:
    """Raises ValueError or IncompleteReadError (an EOFError) for what is no HTTP request."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers: dict[str, str] = {}
    for line in head[1:]:
        name, _, value = line.partition(":")
        if name:
            headers[name.lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", ""):
        data = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            data += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        data = await reader.readexactly(int(headers.get("content-length", 0)))
    try:
        body = json.loads(data) if data else None
    except ValueError:
        body = data.decode("utf-8", "replace")
    return Request(method, path, headers, body)


def _head(status: int, headers: Mapping[str, str], *more: str) -> bytes:
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = "Status"
    lines = [f"{name}: {value}" for name, value in headers.items() if name.lower() != "content-length"]
    return "\r\n".join([f"HTTP/1.1 {status} {reason}", *lines, *more, "connection: close", "", ""]).encode()


async def _whole(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], text: str) -> None:
    body = text.encode()
    writer.write(_head(status, headers, f"content-length: {len(body)}") + body)
    await writer.drain()


async def _stream(
    writer: asyncio.StreamWriter,
    reader: asyncio.StreamReader,
    status: int,
    headers: Mapping[str, str],
    chunks: list[bytes],
    end: str,
) -> None:
    writer.write(_head(status, headers, "transfer-encoding: chunked"))
    await writer.drain()
    for chunk in chunks:
        writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        await writer.drain()
        await asyncio.sleep(_PAUSE)
    if end == "eof":
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    elif end == "reset":
        # A linger time of zero makes the close send RST.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    elif end == "hang":
        try:
            await asyncio.wait_for(reader.read(1), _HANG)
        except TimeoutError:
            return
