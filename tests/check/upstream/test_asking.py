"""The asker: replies to everything that can come, and nothing raises."""

import asyncio
import contextlib

import pytest

from antiphon.check.upstream import asking
from antiphon.check.upstream.asking import Asker
from antiphon.check.upstream.examine import examine
from antiphon.check.upstream.identity import Unreachable


@contextlib.asynccontextmanager
async def raw_server(answer, hold=None):
    """Says the same bytes to everyone, then closes, or holds the connection until `hold` is set."""

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if hold is not None:
                await hold.wait()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        if hold is not None:
            hold.set()
        server.close()
        await server.wait_closed()


CUT = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhalf"


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"", None, "ServerDisconnectedError"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", None, "400"),
        (b"\x00\xff\r\n\r\n", None, "400"),
        (CUT, 200, "cut off"),
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            302,
            "HTTP 302",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xfe{}", 200, "HTTP 200"),
    ],
)
async def test_a_reply_says_what_came(answer, status, words):
    async with raw_server(answer) as url, Asker(url) as asker:
        reply = await asker.get("/models")
    assert reply.status == status
    assert words in reply.said
    assert reply.members == {}
    assert reply.ok == (status == 200 and not reply.failure)


async def test_a_server_that_never_answers():
    async with raw_server(b"", asyncio.Event()) as url, Asker(url, timeout=0.1) as asker:
        assert (await asker.get("/models")).said == "no end after 0.1 s"


async def test_too_much(monkeypatch):
    monkeypatch.setattr(asking, "MOST_BYTES", 1 << 20)
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + b"x" * 3_000_000
    async with raw_server(answer) as url, Asker(url) as asker:
        assert (await asker.get("/models")).failure == "more than 1 MiB came"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull",
        b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"data":[1,2]',
        b"HTTP/1.1 500 No\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
        CUT,
    ],
)
async def test_an_examination_of_nonsense_ends(answer):
    async with raw_server(answer) as url, Asker(url, timeout=2) as asker:
        report = await examine(asker, model="m")
        assert report.problems
        with pytest.raises(Unreachable):
            await examine(asker)


async def test_roots():
    assert Asker("http://a:1/v1/").root_url == "http://a:1"
    assert Asker("http://a:1/v1/chat/completions").base_url == "http://a:1/v1"
    assert Asker("http://a:1/api/v1").root_url == "http://a:1/api"
    assert Asker("http://a:1").root_url == "http://a:1"
