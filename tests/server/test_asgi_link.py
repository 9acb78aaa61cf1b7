"""The same gateway without its own server: plain ASGI, driven by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.server.asgi_link import HIGH_WATER, AsgiLink
from server.harness import (
    SSE_HEAD,
    House,
    Response,
    body_of,
    chunk,
    frame,
    judge,
    on_both_loops,
    turns,
    until,
)

TEXT = frame({"content": "Hello"})


class Asgi:
    """One request of another ASGI server: `sent` is what it was told, `block` lets its `send` wait."""

    def __init__(self, house: House, **fields: Any) -> None:
        self.sent: list[dict] = []
        self.block = asyncio.Event()
        self.block.set()
        self.error: Exception | None = None
        self._incoming: asyncio.Queue[dict] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body_of(**fields), "more_body": False})
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/messages",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }
        self.task = asyncio.ensure_future(house.gateway(scope, self._incoming.get, self._send))

    async def _send(self, message: dict) -> None:
        await self.block.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    @property
    def response(self) -> Response | None:
        if not self.sent:
            return None
        start, *rest = self.sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        body = b"".join(message["body"] for message in rest)
        complete = bool(rest) and not rest[-1].get("more_body", False)
        return Response(start["status"], headers, body, complete, 0)

    async def kind(self, kind: str) -> None:
        await until(lambda: self.response is not None and kind in self.response.kinds)


@contextlib.asynccontextmanager
async def asked(**fields: Any) -> AsyncIterator[tuple[House, Asgi]]:
    async with House(slots=1) as house:
        asgi = Asgi(house, **fields)
        yield house, asgi
        await until(asgi.task.done)


@on_both_loops
async def test_a_stream_goes_out_as_it_comes() -> None:
    async with asked() as (house, asgi):
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await asgi.kind("content_block_delta")
        assert not asgi.response.complete
        visit.finish()
        visit.done()
        await asgi.task
        assert asgi.response.complete
        assert asgi.response.kinds[-1] == "message_stop"
        assert not judge.violations(asgi.response.events)
        assert [message["type"] for message in asgi.sent].count("http.response.start") == 1


@on_both_loops
async def test_a_whole_answer_and_an_error() -> None:
    async with asked(stream=False) as (house, asgi):
        (await house.visit()).answer("Hi")
        await asgi.task
        assert asgi.response.json["content"] == [{"type": "text", "text": "Hi"}]
    async with asked() as (house, asgi):
        (await house.visit()).refuse(400)
        await asgi.task
        assert asgi.response.status == 400
        assert asgi.response.json["request_id"] == asgi.response.headers["request-id"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "streaming"])
@on_both_loops
async def test_a_disconnect_that_receive_tells(phase, stream) -> None:
    async with asked(stream=stream) as (house, asgi):
        visit = await house.visit()
        if phase != "waiting":
            visit.raw(SSE_HEAD + (chunk(TEXT) if phase == "streaming" else b""))
            await until(lambda: house.exchange().phase.value == phase)
        asgi.disconnect()
        await visit.closed.wait()
        assert house.stats == (0, 0, 0)
        await asgi.task
        assert (await house.record())["cause"] == "client"
        assert asgi.response is None or not asgi.response.complete


@on_both_loops
async def test_a_disconnect_in_the_queue() -> None:
    async with House(slots=1) as house:
        holder = await house.ask("holder")
        holding = await house.visit()
        asgi = Asgi(house)
        await house.waiting(1)
        asgi.disconnect()
        await asgi.task
        assert house.stats == (1, 0, 0)
        holding.answer()
        await holder.response()


@on_both_loops
async def test_a_send_that_waits_makes_the_gateway_wait() -> None:
    async with asked() as (house, asgi):
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await asgi.kind("content_block_delta")
        asgi.block.clear()
        exchange = house.exchange()
        sent = 0
        while not exchange._time.held_back:
            visit.text("y" * 50_000)
            sent += 50_000
            await turns(3)
        assert exchange._client.link.paused
        asgi.block.set()
        visit.finish()
        visit.done()
        await asgi.task
        assert asgi.response.kinds[-1] == "message_stop"
        assert asgi.response.text.count("y") == sent


@on_both_loops
async def test_a_send_that_waits_for_ever_is_a_stall() -> None:
    async with asked() as (house, asgi):
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await asgi.kind("content_block_delta")
        asgi.block.clear()
        while not house.exchange()._client.link.paused:
            visit.text("y" * 50_000)
            await turns(3)
        house.tick(60.1)
        await visit.closed.wait()
        await asgi.task
        assert (await house.record())["cause"] == "stall"
        assert not asgi.response.complete  # a bare end would look like success


@on_both_loops
async def test_a_stall_behind_the_end_leaves_the_response_without_its_end() -> None:
    async with asked() as (house, asgi):
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await asgi.kind("content_block_delta")
        asgi.block.clear()
        while not house.exchange()._client.link.paused:
            visit.text("y" * 50_000)
            await turns(3)
        visit.finish()
        visit.done()
        await until(lambda: house.stats == (0, 0, 0))
        house.tick(60.1)
        await asgi.task
        assert not asgi.response.complete
        assert (await house.record())["cause"] == "finished"


@on_both_loops
async def test_a_send_that_fails_is_a_client_that_left() -> None:
    """ASGI: a server may raise OSError from send when the client is gone."""
    async with asked() as (house, asgi):
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await asgi.kind("content_block_delta")
        asgi.error = OSError("gone")
        visit.text("more")
        await visit.closed.wait()
        await asgi.task
        assert (await house.record())["cause"] == "client"


@on_both_loops
async def test_a_send_with_a_bug_does_not_hang_and_is_not_silent() -> None:
    async with asked() as (house, asgi):
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await asgi.kind("content_block_delta")
        asgi.error = ValueError("a bug of the server")
        visit.text("more")
        visit.finish()
        visit.done()
        await until(asgi.task.done)
        assert isinstance(asgi.task.exception(), ValueError)
        assert house.take_bug()["error"] == "ValueError"


@on_both_loops
async def test_a_task_that_its_server_cancels() -> None:
    async with asked() as (house, asgi):
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await asgi.kind("content_block_delta")
        asgi.task.cancel()
        await visit.closed.wait()
        await until(asgi.task.done)
        assert asgi.task.cancelled()
        assert asgi.response.kinds[-1] == "error"
        assert (await house.record())["cause"] == "shutdown"


@on_both_loops
async def test_frames_go_before_the_end_and_what_waits_is_sent_together() -> None:
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    link = AsgiLink(asyncio.Queue().get, send)
    link.start()
    for frames in (b"a", b"b", b"c"):
        link.write(frames)
    await link.send({"type": "http.response.body", "body": b"", "more_body": False})
    assert [message["body"] for message in sent] == [b"abc", b""]
    link.write(b"x" * (HIGH_WATER + 1))
    assert link.paused
    await until(lambda: not link.paused)
    await link.stop()
