"""Calls and connections: reuse, the one repeat, abort and release in every phase, pausing, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.server import upstream
from antiphon.server.upstream import Call, UpstreamPool
from server.raw_server import Peer, RawServer, Recorder, on_both_loops, pool_for, raw_server, sockets, until

OK = b"HTTP/1.1 200 OK\r\n"
SHORT = OK + b"Content-Length: 2\r\n\r\nok"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LARGE = bytes(4 * 1024 * 1024)


async def first_exchange(server: RawServer, pool: UpstreamPool) -> Peer:
    """One whole exchange; its connection is idle now."""
    heard = Recorder()
    pool.post("/chat/completions", b"{}", heard)
    peer = await server.accept()
    await peer.answer(SHORT)
    await heard.over()
    assert pool.statistics().idle == 1
    return peer


# --- The request ----------------------------------------------------------------------------------


@on_both_loops
async def test_the_request_has_these_headers_and_no_others() -> None:
    async with (
        raw_server() as server,
        pool_for(server, api_key="sk-secret", user_agent="antiphon/test") as pool,
    ):
        pool.post("/chat/completions", b'{"a":1}', Recorder())
        request = await (await server.accept()).request()
        assert request.line == "POST /v1/chat/completions HTTP/1.1"
        assert request.headers == {
            "host": f"127.0.0.1:{server.port}",
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "content-length": "7",
            "user-agent": "antiphon/test",
            "authorization": "Bearer sk-secret",
        }
        assert request.body == b'{"a":1}'


@on_both_loops
async def test_without_a_key_there_is_no_authorization() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        pool.post("/chat/completions", b"{}", Recorder(), accept="application/json")
        request = await (await server.accept()).request()
        assert "authorization" not in request.headers
        assert request.headers["accept"] == "application/json"
        assert request.headers["user-agent"].startswith("antiphon/")


@on_both_loops
async def test_base_paths() -> None:
    async with raw_server() as server:
        async with pool_for(server, base_url=f"http://127.0.0.1:{server.port}/api/v1/") as pool:
            pool.post("/chat/completions", b"{}", Recorder())
            request = await (await server.accept()).request()
            assert request.line == "POST /api/v1/chat/completions HTTP/1.1"


@pytest.mark.parametrize("path", ["", "chat", "/a b", "/a\r\nX: 1", "/ä"])
@on_both_loops
async def test_a_path_that_would_not_be_one_is_refused(path: str) -> None:
    pool = UpstreamPool("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="path"):
        pool.post(path, b"{}", Recorder())
    with pytest.raises(ValueError, match="accept"):
        pool.post("/", b"{}", Recorder(), accept="a\r\nX: 1")
    assert pool.statistics().connecting == 0


@pytest.mark.parametrize("key", ["a\r\nX: 1", "sk-secret\n", "", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        UpstreamPool("http://127.0.0.1:1", api_key=key)
    assert not key or key.strip() not in str(caught.value)


@on_both_loops
async def test_the_key_is_in_no_repr_and_no_failure() -> None:
    async with raw_server() as server, pool_for(server, api_key="sk-secret") as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(b"sk-secret is not HTTP")
        await heard.over()
        for text in (repr(pool), repr(call), repr(heard.failure), str(pool.statistics())):
            assert "sk-secret" not in text
        assert "127.0.0.1" not in repr(heard.failure)


@on_both_loops
async def test_post_calls_nobody_back_before_it_returns() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        await first_exchange(server, pool)
        for _ in range(2):  # on the idle connection, on a fresh one
            heard = Recorder()
            call = pool.post("/chat/completions", b"{}", heard)
            assert not heard.heard and not call.connected and not call.closed
            heard.do["open"] = lambda call=call: heard.heard.append(f"connected: {call.connected}")  # type: ignore[misc]
            await heard.hears("connected: True")


# --- Reuse ----------------------------------------------------------------------------------------


@on_both_loops
async def test_a_connection_is_used_again_and_no_call_waits_for_one() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        peer = await first_exchange(server, pool)
        calls = [Recorder() for _ in range(20)]
        for heard in calls:
            pool.post("/chat/completions", b"{}", heard)
        for heard in calls:
            await heard.hears("open")
        assert pool.statistics().active == 20
        others = [await server.accept() for _ in range(19)]
        for each in (peer, *others):
            await each.answer(SHORT)
        for heard in calls:
            await heard.over()
            assert heard.body == b"ok"
        assert pool.statistics().idle == 20
        assert server.accepted == 20


@on_both_loops
async def test_one_message_leaves_nothing_for_the_next() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        peer = await first_exchange(server, pool)
        for answer, body in (
            (b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"1\r\na\r\n0\r\nT: 1\r\n\r\n", b"a"),
            (b"HTTP/1.1 503 No\r\nX-A: 1\r\nContent-Encoding: identity\r\nContent-Length: 1\r\n\r\nb", b"b"),
            (SHORT, b"ok"),
        ):
            heard = Recorder()
            call = pool.post("/chat/completions", b"{}", heard)
            await peer.answer(answer)
            await heard.over()
            assert heard.body == body
            assert call.closed
        assert heard.headers == {"content-length": "2"}
        assert server.accepted == 1


@on_both_loops
async def test_the_connection_used_last_is_used_first() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        recorders = [Recorder(), Recorder()]
        for heard in recorders:
            pool.post("/chat/completions", b"{}", heard)
        peers = [await server.accept(), await server.accept()]
        for peer in peers:
            await peer.answer(SHORT)
        for heard in recorders:
            await heard.over()
        (_, last) = pool._idle
        again = Recorder()
        pool.post("/chat/completions", b"{}", again)
        await again.hears("open")
        assert last not in pool._idle


@on_both_loops
async def test_an_idle_connection_is_closed_after_its_limit() -> None:
    async with raw_server() as server, pool_for(server, idle_limit=0.01) as pool:
        peer = await first_exchange(server, pool)
        await peer.gone()
        assert pool.statistics().idle == 0


@on_both_loops
async def test_the_idle_limit_does_not_end_a_call() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        peer = await first_exchange(server, pool)
        (connection,) = pool._connections
        timer = connection._timer
        assert timer and not timer.cancelled()
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        await peer.request()
        assert timer.cancelled() and connection._timer is None
        peer.send(SHORT)
        await heard.over()
        assert heard.body == b"ok"


@pytest.mark.parametrize("what", ["bytes", "answer", "fin", "rst"])
@on_both_loops
async def test_an_idle_connection_on_which_anything_happens_is_closed(what: str) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        peer = await first_exchange(server, pool)
        actions: dict[str, Callable[[], Any]] = {
            "bytes": lambda: peer.send(b"\r\n"),
            "answer": lambda: peer.send(b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n"),
            "fin": peer.finish,
            "rst": peer.reset,
        }
        actions[what]()
        await until(lambda: pool.statistics().idle == 0)
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        await (await server.accept()).answer(SHORT)
        await heard.over()
        assert heard.heard == ["open", "head", "body", "end", "read"]


# --- The one repeat -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst"])
@on_both_loops
async def test_a_reused_connection_that_dies_before_any_byte_is_replaced_once(how: str) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        peer = await first_exchange(server, pool)
        heard = Recorder()
        call = pool.post("/chat/completions", b'{"again":1}', heard)
        await peer.request()
        peer.finish() if how == "fin" else peer.reset()
        second = await server.accept()
        request = await second.request()
        assert request.body == b'{"again":1}'
        assert heard.heard == ["open", "open"] and call.connected
        second.finish()
        await heard.over()
        assert heard.heard == ["open", "open", "lost"]
        assert heard.failure and (heard.failure.kind, heard.failure.before_response) == ("eof", True)
        assert server.accepted == 2


@on_both_loops
async def test_the_repeat_goes_to_a_fresh_connection_even_if_another_is_idle() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        recorders = [Recorder(), Recorder()]
        for heard in recorders:
            pool.post("/chat/completions", b"{}", heard)
        peers = [await server.accept(), await server.accept()]
        for peer in peers:
            await peer.answer(SHORT)
        for heard in recorders:
            await heard.over()
        again = Recorder()
        pool.post("/chat/completions", b"{}", again)
        asked = [asyncio.ensure_future(peer.request()) for peer in peers]
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        waiting.pop().cancel()
        peers[asked.index(done.pop())].reset()
        await (await server.accept()).answer(SHORT)
        await again.over()
        assert again.body == b"ok"
        assert pool.statistics().idle == 2


@on_both_loops
async def test_a_large_request_is_repeated_whole() -> None:
    async with raw_server(limit=1024) as server, pool_for(server) as pool:
        peer = await first_exchange(server, pool)
        heard = Recorder()
        body = bytes(range(256)) * 16384
        pool.post("/chat/completions", body, heard)
        await peer.head()
        peer.reset()
        second = await server.accept()
        assert (await second.request()).body == body
        second.send(SHORT)
        await heard.over()
        assert heard.body == b"ok"


@pytest.mark.parametrize("answer", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED, CHUNKED + b"1\r\na\r\n"])
@on_both_loops
async def test_nothing_is_repeated_after_the_first_byte(answer: bytes) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        peer = await first_exchange(server, pool)
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        await peer.answer(answer)
        await heard.hears("read")
        peer.finish()
        await heard.over()
        assert heard.failure and not heard.failure.before_response
        assert server.accepted == 1


@on_both_loops
async def test_a_repeat_that_cannot_connect_is_lost() -> None:
    async with raw_server() as server:
        pool = UpstreamPool(server.base_url)
        peer = await first_exchange(server, pool)
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        await peer.request()
        pool._origin = UpstreamPool("http://127.0.0.1:1")._origin
        peer.reset()
        await heard.over()
        assert heard.heard == ["open", "lost"]
        assert heard.failure and (heard.failure.kind, heard.failure.before_response) == ("connect", True)
        await pool.aclose()


@on_both_loops
async def test_a_request_is_kept_only_as_long_as_it_may_be_repeated() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.request()
        assert call._body == b""  # fresh: never repeated
        peer.send(SHORT)
        await heard.over()
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        await peer.request()
        assert call._body == b"{}"
        peer.send(CHUNKED)
        await heard.hears("head")
        assert call._body == b""


@on_both_loops
async def test_a_fresh_connection_that_dies_before_the_request_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        whole_dial = upstream.dial

        async def slow_dial(*arguments: Any) -> Any:
            connection = await whole_dial(*arguments)
            (await server.accept()).finish()
            await until(lambda: connection._transport is None)
            return connection

        monkeypatch.setattr(upstream, "dial", slow_dial)
        heard = Recorder()
        pool.post("/chat/completions", b"{}", heard)
        await heard.over()
        assert heard.heard == ["lost"]
        assert heard.failure and (heard.failure.kind, heard.failure.before_response) == ("reset", True)


# --- Abort ----------------------------------------------------------------------------------------


@on_both_loops
async def test_abort_before_anything_has_begun() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        call.abort()
        call.abort()
        assert call.closed
        await asyncio.sleep(0)
        assert (heard.heard, pool.statistics().connecting) == ([], 0)
        assert server.accepted == 0


@on_both_loops
async def test_abort_on_the_way_to_an_idle_connection_leaves_it_idle() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        await first_exchange(server, pool)
        pool.post("/chat/completions", b"{}", Recorder()).abort()
        await asyncio.sleep(0)
        assert pool.statistics().idle == 1


@pytest.mark.parametrize("rounds", range(12))
@on_both_loops
async def test_abort_after_any_number_of_rounds_of_the_loop(rounds: int) -> None:
    """Connecting takes a few rounds; between which of them the abort comes must not matter."""
    before = sockets()
    async with raw_server() as server:
        listening = sockets()
        pool = UpstreamPool(server.base_url)
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        for _ in range(rounds):
            await asyncio.sleep(0)
        call.abort()
        assert call.closed and not call.connected
        told = list(heard.heard)
        await pool.aclose()
        while sockets() - listening:  # the server accepts, and closes, when it gets round to it
            for peer in server.peers:
                await peer.gone()
            await asyncio.sleep(0)
        assert heard.heard == told
    assert sockets() <= before


class Phases:
    """A call that is led to one point of its life; `peer` is its connection's other end."""

    @staticmethod
    async def waiting_for_headers(heard: Recorder, peer: Peer) -> None:
        await peer.request()

    @staticmethod
    async def sending(heard: Recorder, peer: Peer) -> None:
        await peer.head()

    @staticmethod
    async def inside_headers(heard: Recorder, peer: Peer) -> None:
        await peer.answer(CHUNKED[:-2])
        await heard.hears("read")

    @staticmethod
    async def after_headers(heard: Recorder, peer: Peer) -> None:
        await peer.answer(CHUNKED)
        await heard.hears("read")

    @staticmethod
    async def streaming(heard: Recorder, peer: Peer) -> None:
        await peer.answer(CHUNKED + b"1\r\na\r\n")
        await heard.hears("read")


PHASES = [name for name in vars(Phases) if not name.startswith("_")]


async def led_to(
    phase: str, server: RawServer, pool: UpstreamPool, *, reused: bool
) -> tuple[Recorder, Call, Peer]:
    peer = await first_exchange(server, pool) if reused else None
    heard = Recorder()
    call = pool.post("/chat/completions", LARGE if phase == "sending" else b"{}", heard)
    peer = peer or await server.accept()
    await getattr(Phases, phase)(heard, peer)
    return heard, call, peer


@pytest.mark.parametrize("reused", [False, True], ids=["fresh", "reused"])
@pytest.mark.parametrize("phase", PHASES)
@on_both_loops
async def test_abort_closes_the_connection_in_every_phase(phase: str, reused: bool) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard, call, peer = await led_to(phase, server, pool, reused=reused)
        told = list(heard.heard)
        call.abort()
        call.abort()
        call.release()
        call.pause_reading()
        call.resume_reading()
        assert call.closed and not call.connected
        assert pool.statistics().active == 0
        await peer.gone()
        assert heard.heard == told
        assert (pool.statistics().idle, server.accepted) == (0, 1)


@pytest.mark.parametrize("how", ["abort", "release"])
@pytest.mark.parametrize("where", ["open", "head", "body", "read", "end"])
@on_both_loops
async def test_nothing_is_heard_after_an_abort_or_a_release_inside_a_callback(where: str, how: str) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        heard.do[where] = getattr(call, how)
        peer = await server.accept()
        if where == "open":
            await peer.gone()
        else:
            # All of it in one read: there is more to come at each of these points.
            await peer.answer(CHUNKED + b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
            await heard.hears(where)
            if how == "abort":
                await peer.gone()
            else:
                assert pool.statistics().idle == 1  # the message's end was in the same read
        assert heard.heard[-1] == where
        assert heard.heard.count(where) == 1
        assert call.closed


@on_both_loops
async def test_an_abort_inside_a_decoded_body_ends_the_decoding() -> None:
    import gzip

    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        heard.do["body"] = call.abort
        packed = gzip.compress(bytes(1024 * 1024))
        peer = await server.accept()
        await peer.answer(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)
        await peer.gone()
        assert heard.heard == ["open", "head", "body"]


@on_both_loops
async def test_an_abort_in_the_middle_of_a_read_hides_what_is_wrong_with_the_rest() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        heard.do["body"] = call.abort
        peer = await server.accept()
        await peer.answer(CHUNKED + b"1\r\na\r\nnot a chunk")
        await peer.gone()
        assert heard.heard == ["open", "head", "body"]


# --- Release --------------------------------------------------------------------------------------


@on_both_loops
async def test_a_released_connection_is_kept_if_its_message_ends_soon() -> None:
    async with raw_server() as server, pool_for(server, settle=30.0) as pool:
        heard, call, peer = await led_to("streaming", server, pool, reused=False)
        told = list(heard.heard)
        call.release()
        call.release()
        assert call.closed and not call.connected
        assert (pool.statistics().active, pool.statistics().settling, pool.statistics().idle) == (0, 1, 0)
        peer.send(b"6\r\nignore\r\n0\r\n\r\n")
        await until(lambda: pool.statistics().idle == 1)
        assert pool.statistics().settling == 0
        assert heard.heard == told
        again = Recorder()
        pool.post("/chat/completions", b"{}", again)
        await peer.answer(SHORT)
        await again.over()
        assert server.accepted == 1


@on_both_loops
async def test_a_released_connection_is_closed_if_its_message_does_not_end() -> None:
    async with raw_server() as server, pool_for(server, settle=0.02) as pool:
        heard, call, peer = await led_to("streaming", server, pool, reused=False)
        told = list(heard.heard)
        call.release()
        peer.send(b"1\r\nb\r\n")
        await peer.gone()
        assert heard.heard == told
        assert pool.statistics().idle == 0


@pytest.mark.parametrize("what", ["fin", "rubbish"])
@on_both_loops
async def test_what_goes_wrong_after_a_release_is_not_heard(what: str) -> None:
    async with raw_server() as server, pool_for(server, settle=30.0) as pool:
        heard, call, peer = await led_to("streaming", server, pool, reused=False)
        told = list(heard.heard)
        call.release()
        peer.finish() if what == "fin" else peer.send(b"rubbish")
        await until(lambda: pool.statistics().settling == 0)
        await peer.gone()
        assert heard.heard == told


@on_both_loops
async def test_a_released_connection_that_cannot_be_kept_is_closed_at_once() -> None:
    async with raw_server() as server, pool_for(server, settle=30.0) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        peer = await server.accept()
        await peer.answer(OK + b"\r\ndata: [DONE]\n\n")  # ends with the connection
        await heard.hears("body")
        call.release()
        await peer.gone()
        assert pool.statistics().settling == 0


@on_both_loops
async def test_a_release_while_the_request_is_being_sent_is_an_abort() -> None:
    async with raw_server() as server, pool_for(server, settle=30.0) as pool:
        _, call, peer = await led_to("sending", server, pool, reused=False)
        call.release()
        assert pool.statistics().settling == 0
        await peer.gone()


@on_both_loops
async def test_a_release_without_a_connection_is_an_abort() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        await asyncio.sleep(0)
        call.release()
        assert call.closed
        assert pool.statistics().connecting == 0
        await pool.aclose()
        assert heard.heard == []


@on_both_loops
async def test_a_paused_call_that_is_released_still_settles() -> None:
    async with raw_server() as server, pool_for(server, settle=30.0) as pool:
        _, call, peer = await led_to("streaming", server, pool, reused=False)
        call.pause_reading()
        call.release()
        peer.send(b"0\r\n\r\n")
        await until(lambda: pool.statistics().idle == 1)


# --- Pausing --------------------------------------------------------------------------------------


async def settled(server: RawServer) -> None:
    """Wait until a whole exchange over another connection is through: what was sent before has arrived."""
    async with pool_for(server) as pool:
        for _ in range(3):
            heard = Recorder()
            pool.post("/chat/completions", b"{}", heard)
            await (await server.accept()).answer(SHORT.replace(OK, OK + b"Connection: close\r\n"))
            await heard.over()


@pytest.mark.parametrize("when", ["before", "in on_open", "connected", "in on_body"])
@pytest.mark.parametrize("reused", [False, True], ids=["fresh", "reused"])
@on_both_loops
async def test_a_paused_call_hears_nothing_until_it_resumes(when: str, reused: bool) -> None:
    async with raw_server() as server, pool_for(server) as pool:
        peer = await first_exchange(server, pool) if reused else None
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        call.resume_reading()
        if when == "before":
            call.pause_reading()
        elif when == "in on_open":
            heard.do["open"] = call.pause_reading
        elif when == "in on_body":
            heard.do["body"] = call.pause_reading
        peer = peer or await server.accept()
        await peer.request()
        peer.send(CHUNKED)
        if when in {"connected", "in on_body"}:
            await heard.hears("read")
        if when == "connected":
            call.pause_reading()
            call.pause_reading()
        if when == "in on_body":
            peer.send(b"1\r\na\r\n")
            await heard.hears("body")
            await heard.until(lambda: heard.heard[-1] == "read")
        told = list(heard.heard)
        peer.send(b"1\r\nb\r\n0\r\n\r\n")
        await settled(server)
        assert heard.heard == told
        heard.do.clear()
        call.resume_reading()
        call.resume_reading()
        await heard.over()
        assert heard.body == (b"ab" if when == "in on_body" else b"b")
        assert pool.statistics().idle == 1


@on_both_loops
async def test_a_call_that_pauses_at_its_end_leaves_a_connection_that_reads() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard = Recorder()
        call = pool.post("/chat/completions", b"{}", heard)
        heard.do["end"] = call.pause_reading
        peer = await server.accept()
        await peer.answer(SHORT)
        await heard.over()
        assert pool.statistics().idle == 1
        peer.finish()
        await until(lambda: pool.statistics().idle == 0)


@on_both_loops
async def test_a_paused_call_stops_the_server() -> None:
    async with raw_server() as server, pool_for(server) as pool:
        heard, call, peer = await led_to("streaming", server, pool, reused=False)
        call.pause_reading()
        chunk = b"%x\r\n%s\r\n" % (65536, bytes(65536))
        # More than the kernel's buffers on both sides: the rest stays in the server.
        peer.send(chunk * 512)
        await until(lambda: peer.writer.transport.get_write_buffer_size() < 512 * len(chunk))
        assert heard.body == b"a"
        call.resume_reading()
        peer.send(b"0\r\n\r\n")
        await heard.over()
        assert len(heard.body) == 1 + 512 * 65536


# --- Numbers and the end --------------------------------------------------------------------------


@on_both_loops
async def test_statistics_count_what_exists() -> None:
    async with raw_server() as server, pool_for(server, settle=30.0) as pool:
        await first_exchange(server, pool)
        first, second = Recorder(), Recorder()
        call = pool.post("/chat/completions", b"{}", first)
        pool.post("/chat/completions", b"{}", second)
        assert (pool.statistics().idle, pool.statistics().connecting) == (1, 2)
        await second.hears("open")
        now = pool.statistics()
        assert (now.idle, now.active, now.connecting, now.settling) == (0, 2, 0, 0)
        call.release()
        now = pool.statistics()
        assert (now.idle, now.active, now.connecting, now.settling) == (0, 1, 0, 1)


@on_both_loops
async def test_aclose_closes_everything_without_a_word() -> None:
    async with raw_server() as server, pool_for(server, settle=30.0) as pool:
        idle = await first_exchange(server, pool)
        active, released, connecting = Recorder(), Recorder(), Recorder()
        pool.post("/chat/completions", b"{}", active)
        await active.hears("open")
        call = pool.post("/chat/completions", b"{}", released)
        other = await server.accept()
        await other.answer(CHUNKED)
        await released.hears("read")
        call.release()
        pool.post("/chat/completions", b"{}", connecting)
        await asyncio.sleep(0)
        told = [list(heard.heard) for heard in (active, released, connecting)]
        await pool.aclose()
        assert not pool._connections and not pool._tasks
        await idle.gone()
        await other.gone()
        assert [active.heard, released.heard, connecting.heard] == told
        with pytest.raises(RuntimeError, match="closed"):
            pool.post("/chat/completions", b"{}", Recorder())
        await pool.aclose()
