"""The stand-in: the case's bytes in the case's reads, and every kind of end."""

import asyncio
import json

import pytest

from antiphon.check.stand_in import StandIn


async def ask(port, path="/v1/chat/completions", body=b"{}", head=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST %s HTTP/1.1\r\nhost: x\r\n%scontent-length: %d\r\n\r\n%s"
        % (path.encode(), head, len(body), body)
    )
    return reader, writer


async def answer(port, *args, **kwargs):
    reader, writer = await ask(port, *args, **kwargs)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


async def test_plays_frames():
    async with StandIn(0) as upstream:
        upstream.play({"kind": "openai_sse", "data": ["{}", "[DONE]"], "end": "eof"})
        got = await answer(upstream.port, body=b'{"model":"m"}')
    assert got.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
    assert got.endswith(b"\r\n\r\na\r\ndata: {}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    assert upstream.requests[0].body == {"model": "m"}
    assert upstream.requests[0].headers["host"] == "x"


async def test_plays_raw_bytes_with_their_status():
    async with StandIn(0) as upstream:
        upstream.play(
            {"kind": "raw_body", "status": 529, "headers": {"x-a": "b"}, "chunks_hex": ["ff00"], "end": "eof"}
        )
        got = await answer(upstream.port)
    assert got.startswith(b"HTTP/1.1 529 ")
    assert b"x-a: b\r\n" in got
    assert got.endswith(b"2\r\n\xff\x00\r\n0\r\n\r\n")


async def test_plays_a_whole_body():
    async with StandIn(0) as upstream:
        upstream.play(
            {"kind": "upstream_http", "status": 429, "headers": {"retry-after": "7"}, "body": {"a": 1}}
        )
        got = await answer(upstream.port)
    assert b"retry-after: 7\r\ncontent-length: 8\r\n" in got
    assert got.endswith(b'{"a": 1}')


async def test_resets():
    async with StandIn(0) as upstream:
        upstream.play({"kind": "openai_sse", "data": ["{}"], "end": "reset"})
        with pytest.raises(ConnectionResetError):
            await answer(upstream.port)


async def test_hangs_until_its_client_leaves():
    async with StandIn(0) as upstream:
        upstream.play({"kind": "openai_sse", "data": ["{}"], "end": "hang"})
        reader, writer = await ask(upstream.port)
        await reader.readuntil(b"data: {}\n\n\r\n")
        assert upstream._answering
        writer.close()
        for _ in range(1000):
            if not upstream._answering:
                break
            await asyncio.sleep(0.005)
        assert not upstream._answering


async def test_without_a_trigger_it_answers_shortly():
    async with StandIn(0) as upstream:
        assert b"data: [DONE]" in await answer(upstream.port, body=b'{"stream":true}')
        whole = await answer(upstream.port)
        assert json.loads(whole.partition(b"\r\n\r\n")[2])["usage"]["total_tokens"] == 4
        assert b"up-model" in await answer(upstream.port, "/v1/models?x=1")
        assert b"404 Not Found" in await answer(upstream.port, "/tokenize")
        assert len(upstream.requests) == 2


async def test_reads_chunked_requests():
    async with StandIn(0) as upstream:
        reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b'5\r\n{"a":\r\n2;x=y\r\n1}\r\n0\r\n\r\n')
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert upstream.requests[0].body == {"a": 1}


@pytest.mark.parametrize(
    "noise", [b"", b"\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n"]
)
async def test_noise_is_hung_up_on(noise):
    async with StandIn(0) as upstream:
        reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
        writer.write(noise)
        writer.write_eof()
        try:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        except ConnectionResetError:
            pass
        writer.close()


async def test_a_taken_port():
    async with StandIn(0) as upstream:
        with pytest.raises(OSError):
            await StandIn(upstream.port).__aenter__()
