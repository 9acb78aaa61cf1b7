"""The corpus's `errors-http` case of an upstream that cannot be reached."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from server.harness import House, on_asyncio, until


@contextlib.asynccontextmanager
async def refusing(monkeypatch) -> AsyncIterator[str]:
    with socket.socket() as bound:  # and not listening: nobody else gets the port meanwhile
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/secret-path/v1"


@contextlib.asynccontextmanager
async def unknown_host(monkeypatch) -> AsyncIterator[str]:
    real = socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        if host == "inference.internal":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield "http://inference.internal:8000/secret-path/v1"


class _PlainHttp(asyncio.Protocol):
    """Whoever comes with TLS is told in plain HTTP that this is wrong."""

    def connection_made(self, transport) -> None:
        transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        transport.close()


@contextlib.asynccontextmanager
async def no_tls(monkeypatch) -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(_PlainHttp, "127.0.0.1", 0)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/secret-path/v1"
    server.close()
    await server.wait_closed()


@contextlib.asynccontextmanager
async def deaf(monkeypatch) -> AsyncIterator[str]:
    """A port whose backlog is full: the kernel leaves every further connect without an answer."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        while True:
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.05)
            try:
                filler.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield f"http://127.0.0.1:{port}/secret-path/v1"


Upstream = Callable[[pytest.MonkeyPatch], AbstractAsyncContextManager[str]]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("unreachable", "status", "kind"),
    [
        (refusing, 502, "api_error"),
        (unknown_host, 502, "api_error"),
        (no_tls, 502, "api_error"),
        (deaf, 504, "timeout_error"),
    ],
    ids=["connection refused", "no such host", "no TLS", "connect timeout"],
)
@on_asyncio
async def test_ERR_12_an_upstream_that_cannot_be_reached(
    unreachable: Upstream, status, kind, stream, monkeypatch
) -> None:
    async with unreachable(monkeypatch) as url, House(upstream_url=url) as house:
        client = await house.ask(stream=stream)
        if status == 504:
            await until(lambda: house.up.pool.statistics().connecting == 1)
            house.tick(11)
        response = await client.response()
        assert response.status == status, response.body
        assert response.headers["content-type"] == "application/json"
        assert response.json["type"] == "error"
        assert response.json["error"]["type"] == kind
        assert response.json["request_id"] == response.headers["request-id"]
        said = response.json["error"]["message"]
        port = url.split(":")[2].partition("/")[0]
        for internal in ("127.0.0.1", "inference", "secret-path", port, "Traceback", "Errno"):
            assert internal not in said
        assert house.upstream.visits == []
