"""One message on one connection: framing, limits, smuggling, encodings, early answers."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import zlib
from typing import Any

import pytest

from antiphon.server import upstream_encoding
from antiphon.server.upstream_http import WRITE_PIECE, Connection
from server.raw_server import Peer, Recorder, leftovers, on_both_loops, pool_for, raw_server, until

OK = b"HTTP/1.1 200 OK\r\n"


async def exchange(answer: bytes, *, then: str = "", **options: Any) -> tuple[Recorder, bool]:
    """Send `answer` in one write. Returns what was heard and whether the connection was kept."""
    async with raw_server() as server, pool_for(server, **options) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(answer)
        if then:
            await heard.until(lambda: bool(heard.pieces) or then == "reset at once")
            peer.finish() if then == "finish" else peer.reset()
        await heard.over()
        assert call.closed and not call.connected
        return heard, pool.statistics().idle == 1


# --- Framing --------------------------------------------------------------------------------------


@on_both_loops
async def test_content_length() -> None:
    heard, kept = await exchange(
        OK + b"Content-Type: text/plain\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 5\r\n\r\nhello"
    )
    assert heard.heard == ["open", "head", "body", "end", "read"]
    assert (heard.status, heard.body) == (200, b"hello")
    assert heard.headers == {"content-type": "text/plain", "x-a": "1, 2", "content-length": "5"}
    assert kept


@on_both_loops
async def test_each_chunk_is_heard_when_it_arrives_and_each_read_ends_with_on_read() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        await heard.until(lambda: heard.heard == ["open", "head", "read"])
        peer.send(b"1\r\na\r\n2;name=value\r\nbc\r\n")
        await heard.until(lambda: heard.heard[3:] == ["body", "body", "read"])
        peer.send(b"1\r\nd\r\n0\r\nTrailer: 1\r\n\r\n")
        await heard.until(lambda: heard.heard[6:] == ["body", "end", "read"])
        assert heard.pieces == [b"a", b"bc", b"d"]
        assert "trailer" not in heard.headers
        assert pool.statistics().idle == 1


@on_both_loops
async def test_a_body_without_length_ends_with_the_connection() -> None:
    heard, kept = await exchange(OK + b"\r\nhello", then="finish")
    assert heard.heard == ["open", "head", "body", "read", "end", "read"]
    assert heard.body == b"hello"
    assert not kept


@on_both_loops
async def test_a_reset_does_not_end_a_body_without_length() -> None:
    heard, _ = await exchange(OK + b"\r\nhello", then="reset")
    assert heard.heard[-1] == "lost"
    assert heard.kind in {"reset", "eof"}


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\nX: 1\r\n\r\n"]
)
@on_both_loops
async def test_interim_responses_are_swallowed(interim: bytes) -> None:
    heard, kept = await exchange(interim + interim + OK + b"Content-Length: 1\r\n\r\na")
    assert heard.heard == ["open", "head", "body", "end", "read"]
    assert (heard.status, heard.headers) == (200, {"content-length": "1"})
    assert kept


@pytest.mark.parametrize(
    "head",
    [
        b"204 No Content\r\n",
        b"204 No Content\r\nContent-Encoding: br\r\n",
        b"304 Not Modified\r\nContent-Length: 50\r\nContent-Encoding: gzip\r\n",
        b"200 OK\r\nContent-Length: 0\r\nContent-Encoding: gzip\r\n",
    ],
)
@on_both_loops
async def test_responses_without_a_body(head: bytes) -> None:
    heard, kept = await exchange(b"HTTP/1.1 " + head + b"\r\n")
    assert heard.heard == ["open", "head", "end", "read"]
    assert kept


@on_both_loops
async def test_a_redirect_is_an_answer_like_any_other() -> None:
    heard, kept = await exchange(
        b"HTTP/1.1 307 T\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    )
    assert (heard.status, heard.headers["location"]) == (307, "http://127.0.0.1:1/")
    assert kept


class FakeTransport(asyncio.Transport):
    """Takes everything, sends nothing."""

    def __init__(self, *, closing: bool = False, unsent: int = 0) -> None:
        self.closing = closing
        self.unsent = unsent
        self.aborted = False

    def write(self, data: Any) -> None: ...

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Ignore:
    """The owner and the caller of a connection that is tested without a pool."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.__dict__.__setitem__("last", name)


def transcript(*reads: bytes, transport: FakeTransport | None = None) -> tuple[Any, ...]:
    """What a listener and, last, the owner hear of one response. Runs without a socket."""
    loop = asyncio.new_event_loop()
    try:
        heard, owner = Recorder(), Ignore()
        connection = Connection(loop, owner, max_header_bytes=4096)
        connection.connection_made(transport or FakeTransport())
        connection.start(Ignore(), heard, b"", b"", reused=False, paused=False)
        for read in reads:
            connection.data_received(read)
        heads = [what for what in heard.heard if what not in {"body", "read"}]
        return heads, heard.status, heard.headers, heard.body, owner.last
    finally:
        loop.close()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_same_is_heard_whatever_the_reads_are(encoding: str) -> None:
    plain = b"data: one\n\ndata: two\n\n"
    body = gzip.compress(plain[:8]) + gzip.compress(plain[8:]) if encoding == "gzip" else plain
    chunks = b"".join(b"%x;e=1\r\n%s\r\n" % (len(c), c) for c in (body[:1], body[1:9], body[9:]))
    answer = (
        b"HTTP/1.1 100 Continue\r\nX-Interim: 1\r\n\r\nHTTP/1.1 200 OK\r\nX-Empty:\r\nX-A: 1\r\nx-a: 2\r\n"
        b"Content-Encoding: " + encoding.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    ) + b"0\r\nTrailer: 1\r\n\r\n"
    whole = transcript(answer)
    assert whole[0] == ["head", "end"]
    assert whole[3:] == (plain, "free")
    assert whole[2]["x-a"] == "1, 2"
    assert whole[2]["x-empty"] == ""
    for cut in range(1, len(answer)):
        assert transcript(answer[:cut], answer[cut:]) == whole, cut
    assert transcript(*(answer[i : i + 1] for i in range(len(answer)))) == whole


# --- Keeping the connection -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
        OK + b"Connection: Close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Connection: keep-alive, close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
    ],
)
@on_both_loops
async def test_a_connection_that_will_close_is_not_kept(answer: bytes) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(answer)
        await heard.over()
        assert heard.heard[-2:] == ["end", "read"]
        assert pool.statistics().idle == 0
        await peer.gone()


@pytest.mark.parametrize(
    "surplus", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"HTTP/1.1 200 OK\r\n\r\nx"]
)
@on_both_loops
async def test_bytes_behind_the_message_are_not_heard_and_end_the_connection(surplus: bytes) -> None:
    heard, kept = await exchange(OK + b"Content-Length: 2\r\n\r\nok" + surplus)
    assert heard.heard == ["open", "head", "body", "end", "read"]
    assert heard.body == b"ok"
    assert not kept


@pytest.mark.parametrize(
    ("transport", "owner_hears"),
    [(FakeTransport(), "free"), (FakeTransport(unsent=1), "dead"), (FakeTransport(closing=True), "dead")],
    ids=["sound", "request still in the transport", "transport closing"],
)
def test_a_connection_is_kept_only_if_its_transport_is_done(
    transport: FakeTransport, owner_hears: str
) -> None:
    assert transcript(OK + b"Content-Length: 2\r\n\r\nok", transport=transport)[3:] == (b"ok", owner_hears)
    assert transport.aborted == (owner_hears == "dead")


def test_a_connection_that_is_made_after_its_abort_is_closed() -> None:
    loop = asyncio.new_event_loop()
    connection = Connection(loop, Ignore(), max_header_bytes=4096)
    connection.abort()
    transport = FakeTransport()
    connection.connection_made(transport)
    loop.close()
    assert transport.aborted


# --- Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 5\r\n\r\nhell",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhell",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ],
)
@pytest.mark.parametrize("then", ["finish", "reset"])
@on_both_loops
async def test_a_message_that_is_cut_is_lost(answer: bytes, then: str) -> None:
    heard, kept = await exchange(answer, then=then)
    assert heard.heard == ["open", "head", "body", "read", "lost"]
    # A FIN or an RST that stands right behind data may be seen as either.
    assert heard.kind in {"eof", "reset"}
    assert heard.failure and not heard.failure.before_response
    assert not kept


@pytest.mark.parametrize(("then", "kind"), [("finish", "eof"), ("reset", "reset")])
@on_both_loops
async def test_a_fresh_connection_that_dies_before_any_byte_is_not_repeated(then: str, kind: str) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.request()
        peer.finish() if then == "finish" else peer.reset()
        await heard.over()
        assert heard.heard == ["open", "lost"]
        assert heard.kind == kind
        assert heard.failure and heard.failure.before_response
        assert server.accepted == 1


@on_both_loops
async def test_one_byte_of_a_response_is_a_response() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(b"H")
        await heard.hears("read")
        peer.finish()
        await heard.over()
        assert heard.failure and not heard.failure.before_response


@pytest.mark.parametrize(
    "answer",
    [
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
        OK + b"No colon\r\n\r\n",
        OK + b"Space : 1\r\n\r\n",
        OK + b"Folded: 1\r\n 2\r\n\r\n",
        OK + b"Content-Length: x\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 99999999999999999999999\r\n\r\n",
        # Smuggling: more than one way to see where the message ends.
        OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        OK + b"Content-Length: 2, 3\r\n\r\nok",
        OK.replace(b"\r", b"") + b"Content-Length: 2\n\nok",
    ],
)
@on_both_loops
async def test_what_is_not_http_is_lost_before_its_head_is_heard(answer: bytes) -> None:
    heard, kept = await exchange(answer)
    assert heard.heard == ["open", "lost"]
    assert heard.kind == "protocol"
    assert not kept


@on_both_loops
async def test_a_bad_chunk_is_lost_after_what_came_before_it() -> None:
    heard, _ = await exchange(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n")
    assert heard.heard == ["open", "head", "body", "lost"]
    assert heard.kind == "protocol"


@pytest.mark.parametrize(
    "coding", [b"gzip, chunked", b"gzip", b"chunked\r\nTransfer-Encoding: gzip", b"xchunked"]
)
@on_both_loops
async def test_transfer_encodings_other_than_chunked_are_refused(coding: bytes) -> None:
    heard, _ = await exchange(OK + b"Transfer-Encoding: " + coding + b"\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    assert heard.heard == ["open", "lost"]
    assert heard.kind == "encoding"


# --- Limits ---------------------------------------------------------------------------------------

LIMIT = 4096


def _headers(size: int) -> bytes:
    """Header lines of `size` bytes together."""
    line = b"X-Filler: 0123456789\r\n"
    count, rest = divmod(size, len(line))
    return line * (count - 1) + b"Y: " + b"z" * (len(line) + rest - 5) + b"\r\n"


@pytest.mark.parametrize("where", ["head", "trailers"])
@pytest.mark.parametrize("over", [0, 1])
@on_both_loops
async def test_the_header_limit_is_exact(where: str, over: int) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n"
    filler = _headers(LIMIT - len(chunked) + over)
    head, trailers = (filler, b"") if where == "head" else (b"", filler)
    heard, kept = await exchange(
        OK + head + chunked + b"\r\n2\r\nok\r\n0\r\n" + trailers + b"\r\n", max_header_bytes=LIMIT
    )
    assert heard.kind == ("protocol" if over else None)
    assert kept == (not over)


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (OK, b"x" * 512),
        (OK + b"Y: ", b"y" * 512),
        (OK, b"X-Filler: 0123456789\r\n" * 10),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10),
        (OK[:-2], b" very" * 100),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2", b";ext" * 100),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Filler: 0123456789\r\n" * 10),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nY: ", b"y" * 512),
    ],
    ids=["name", "value", "headers", "1xx", "reason", "extension", "trailers", "trailer value"],
)
@on_both_loops
async def test_headers_without_an_end_are_given_up(start: bytes, again: bytes) -> None:
    async with raw_server() as server, pool_for(server, max_header_bytes=LIMIT) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(start)
        sent = 0
        while heard.failure is None:
            before = heard.heard.count("read")
            peer.send(again)
            sent += len(again)
            await heard.until(lambda: heard.failure is not None or heard.heard.count("read") > before)
            assert sent < 4 * LIMIT
        assert heard.kind == "protocol"
        assert f"larger than {LIMIT} bytes" in heard.failure.message
        await peer.gone()


@on_both_loops
async def test_a_long_body_has_nothing_to_do_with_the_header_limit() -> None:
    chunk = b"%x\r\n%s\r\n" % (5 * LIMIT, b"x" * (5 * LIMIT))
    heard, kept = await exchange(
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + 5 * chunk + b"0\r\n\r\n", max_header_bytes=LIMIT
    )
    assert len(heard.body) == 25 * LIMIT
    assert kept


# --- Encodings ------------------------------------------------------------------------------------


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def _encoded(name: str, body: bytes) -> bytes:
    return OK + f"Content-Encoding: {name}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("gzip", gzip.compress),
        ("X-GZip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", _raw_deflate),
    ],
    ids=["gzip", "x-gzip", "deflate", "raw deflate"],
)
@on_both_loops
async def test_compressed_bodies_are_decoded(name: str, pack: Any) -> None:
    text = bytes(range(256)) * 1000
    heard, kept = await exchange(_encoded(name, pack(text)))
    assert heard.body == text
    assert kept


@on_both_loops
async def test_what_a_compressing_server_flushes_is_heard_at_once() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(OK + b"Content-Encoding: gzip\r\n\r\n")
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        text = b""
        for event in (b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n"):
            text += event
            peer.send(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH))
            await heard.until(lambda: heard.body == text)  # noqa: B023  awaited in the same round
        peer.send(packer.flush())
        peer.finish()
        await heard.over()
        assert heard.heard[-2:] == ["end", "read"]


@pytest.mark.parametrize(
    "answer",
    [
        _encoded("gzip", gzip.compress(b"hello" * 100)[:-1]),
        _encoded("gzip", gzip.compress(b"hello")[:-8] + b"\0" * 8),
        _encoded("gzip", gzip.compress(b"hello") + b"rubbish"),
        _encoded("deflate", zlib.compress(b"hello") + b"rubbish"),
        _encoded("gzip", b"not gzip"),
        _encoded("gzip", b"\x1f"),
        _encoded("br", b"hello"),
        _encoded("gzip, gzip", b"hello"),
        _encoded("gzip", gzip.compress(bytes(64 * 1024 * 1024))),
    ],
    ids=["cut", "checksum", "tail", "deflate tail", "not gzip", "one byte", "unknown", "two", "bomb"],
)
@on_both_loops
async def test_a_body_that_cannot_be_decoded_is_lost_after_its_head(answer: bytes) -> None:
    heard, kept = await exchange(answer)
    assert heard.status == 200
    assert heard.heard[-1] == "lost"
    assert "end" not in heard.heard
    assert heard.kind == "encoding"
    assert not kept
    assert len(heard.body) <= 16 * 1024 * 1024
    assert max(map(len, heard.pieces), default=0) <= 65536


@on_both_loops
async def test_the_bound_of_a_compressed_body_is_for_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_encoding, "MAX_FROM_ONE_READ", 100_000)
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(OK + b"Content-Encoding: gzip\r\n\r\n")
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        for size in (80_000, 160_000, 240_000):
            peer.send(packer.compress(bytes(80_000)) + packer.flush(zlib.Z_SYNC_FLUSH))
            await heard.until(lambda: len(heard.body) == size or heard.failure is not None)  # noqa: B023  awaited in the same round
        assert heard.failure is None


@on_both_loops
async def test_a_compressed_body_that_ends_with_the_connection_must_be_whole() -> None:
    packed = gzip.compress(b"hello")
    heard, _ = await exchange(OK + b"Content-Encoding: gzip\r\n\r\n" + packed, then="finish")
    assert heard.heard[-2:] == ["end", "read"]
    heard, _ = await exchange(OK + b"Content-Encoding: gzip\r\n\r\n" + packed[:-3], then="finish")
    assert heard.kind == "encoding"


# --- Request bodies -------------------------------------------------------------------------------

LARGE = bytes(range(256)) * (20 * 4096)  # 20 MiB


@on_both_loops
async def test_a_large_request_waits_in_pieces_for_a_slow_server() -> None:
    async with raw_server(limit=1024) as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", LARGE, heard)
        peer = await server.accept()
        head = await peer.head()
        (connection,) = pool._connections
        await until(lambda: connection._write_paused)
        transport = connection._transport
        assert transport and transport.get_write_buffer_size() <= 2 * WRITE_PIECE
        received = bytearray()
        largest = 0
        while len(received) < len(LARGE):
            received += await peer.reader.read(1024 * 1024)
            largest = max(largest, transport.get_write_buffer_size())
        assert received == LARGE
        assert largest <= 2 * WRITE_PIECE
        assert int(head.headers["content-length"]) == len(LARGE)
        peer.send(OK + b"Content-Length: 2\r\n\r\nok")
        await heard.over()
        assert heard.body == b"ok"
        assert pool.statistics().idle == 1


@pytest.mark.parametrize("then", ["waits", "closes"])
@on_both_loops
async def test_an_early_answer_is_heard_and_stops_the_request(then: str) -> None:
    async with raw_server(limit=1024) as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", LARGE, heard)
        peer = await server.accept()
        await peer.head()
        (connection,) = pool._connections
        await until(lambda: connection._write_paused)
        peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\n\r\ntoo large")
        if then == "closes":
            peer.finish()  # with bytes unread: the kernel adds an RST
        await heard.over()
        assert heard.heard == ["open", "head", "body", "end", "read"]
        assert (heard.status, heard.body) == (413, b"too large")
        assert pool.statistics().idle == 0
        if then == "waits":
            rest = 0
            while piece := await peer.reader.read(1024 * 1024):
                rest += len(piece)
            assert rest < len(LARGE)


@on_both_loops
async def test_the_request_of_an_early_answer_stays_stopped_while_the_answer_goes_on() -> None:
    async with raw_server(limit=1024) as server, pool_for(server) as pool:
        heard = Recorder()
        pool.post("/chat/completions", LARGE, heard)
        peer = await server.accept()
        await peer.head()
        (connection,) = pool._connections
        await until(lambda: connection._write_paused)
        peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\n\r\n")
        await heard.hears("head")
        transport = connection._transport
        assert transport
        received = 0
        while transport.get_write_buffer_size():
            received += len(await peer.reader.read(1024 * 1024))
        peer.send(b"too large")
        await heard.over()
        assert heard.body == b"too large"
        assert pool.statistics().idle == 0  # the server still waits for the rest
        while piece := await peer.reader.read(1024 * 1024):
            received += len(piece)
        assert received < len(LARGE)


@on_both_loops
async def test_a_large_request_on_a_connection_that_was_just_reset_is_lost_quietly() -> None:
    async with raw_server() as server:
        listening = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with pool_for(server, base_url=url) as pool:
            heard = Recorder()

            def reset() -> None:
                accepted, _ = listening.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                accepted.close()

            heard.do["open"] = reset
            pool.post("/chat/completions", LARGE, heard)
            await heard.over()
            assert heard.heard == ["open", "lost"]
            assert heard.kind == "reset"
        listening.close()


# --- Listeners that raise -------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["open", "head", "body", "end", "read"])
@on_both_loops
async def test_what_a_callback_raises_reaches_the_loops_handler_once(where: str) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard, error = Recorder(), ValueError("a listener's own error")

        def fail() -> None:
            raise error

        heard.do[where] = fail
        call = pool.post("/chat/completions", b"{}", heard)
        peer: Peer = await server.accept()
        if where != "open":
            await peer.answer(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
        await peer.gone()
        assert heard.heard[-1] == where
        assert heard.heard.count(where) == 1
        assert call.closed
        assert leftovers.take() == [error]


@on_both_loops
async def test_what_on_lost_raises_reaches_the_loops_handler_once() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard, error = Recorder(), ValueError("a listener's own error")

        def fail() -> None:
            raise error

        heard.do["lost"] = fail
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.request()
        peer.finish()
        await heard.over()
        assert leftovers.take() == [error]


@on_both_loops
async def test_what_a_callback_raises_at_an_end_by_eof_reaches_the_loops_handler_once() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard, error = Recorder(), ValueError("a listener's own error")

        def fail() -> None:
            raise error

        heard.do["end"] = fail
        pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(OK + b"\r\nhello")
        await heard.hears("body")
        peer.finish()
        await heard.hears("end")
        assert heard.heard == ["open", "head", "body", "read", "end"]
        assert leftovers.take() == [error]
