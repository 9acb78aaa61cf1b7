"""Asking a server which one it is: over a real socket, with servers that do not behave."""

import asyncio
import logging
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from antiphon.core.recognise import Recognition
from antiphon.server import recognition
from antiphon.server.recognition import LARGEST, look

KEY = "a-secret-key"


@asynccontextmanager
async def serving(answer):
    """A server that answers every GET with `answer(request)`; its base URL and what it was asked."""
    asked = []

    async def handle(request):
        asked.append(request)
        return await answer(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    try:
        async with aiohttp.ClientSession() as session:
            yield session, f"http://127.0.0.1:{server.port}/v1", asked
    finally:
        await server.close()


def routes(**by_path):
    async def answer(request):
        found = by_path.get(request.path.strip("/").replace("/", "_"))
        return web.json_response(found) if found is not None else web.Response(status=404, text="no")

    return answer


@pytest.mark.parametrize(
    "answers, expected",
    [
        (
            {"v1_models": {"data": [{"id": "m", "owned_by": "vllm"}]}, "version": {"version": "0.33.0"}},
            Recognition("vllm", "0.33.0"),
        ),
        (
            {"v1_models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}, "props": {"total_slots": 3}},
            Recognition("llamacpp", None, 3),
        ),
        ({"api_version": {"version": "0.14.0"}}, Recognition("ollama", "0.14.0")),
        ({"get_server_info": {"max_running_requests": 5}}, Recognition("sglang", None, 5)),
        ({}, Recognition()),
    ],
    ids=str,
)
async def test_a_server_by_its_answers(answers, expected):
    async with serving(routes(**answers)) as (session, url, _):
        assert await look(session, url, None) == expected


async def test_the_key_goes_with_every_question_and_the_query_of_the_base_url_with_the_models():
    async with serving(routes()) as (session, url, asked):
        await look(session, url + "?tenant=1", KEY)
        assert {request.headers.get("authorization") for request in asked} == {f"Bearer {KEY}"}
        assert [request.path_qs for request in asked if "models" in request.path] == ["/v1/models?tenant=1"]
        asked.clear()
        await look(session, url, None)
        assert not any("authorization" in request.headers for request in asked)


async def test_a_hosted_api_is_not_asked():
    class NoSession:
        def get(self, *args, **kwargs):
            raise AssertionError("asked")

    assert await look(NoSession(), "https://api.mistral.ai/v1", KEY) == Recognition("mistral")


async def test_nobody_there():
    async with serving(routes()) as (session, url, _):
        gone = url
    async with aiohttp.ClientSession() as session:
        for url in (gone, "http://no-such-host.invalid/v1", "nonsense", "http://127.0.0.1:99999/v1"):
            assert await look(session, url, KEY) == Recognition()


async def test_a_redirect_is_not_followed():
    async def away(request):
        if "elsewhere" in request.path:
            return web.json_response({"data": [{"owned_by": "vllm"}], "version": "1", "total_slots": 1})
        raise web.HTTPFound("/elsewhere")

    async with serving(away) as (session, url, asked):
        assert await look(session, url, KEY) == Recognition()
        assert not any("elsewhere" in request.path for request in asked)


@pytest.mark.parametrize("body", [b"{", b"<html>", b"\xff\xfe", b"", b"[" * 20_000, b"null"])
async def test_answers_that_are_no_answers(body):
    async def answer(request):
        return web.Response(body=body, content_type="application/json")

    async with serving(answer) as (session, url, _):
        assert await look(session, url, None) == Recognition()


async def test_an_answer_without_end_is_not_read_on():
    """More than the limit is no sign, though what came would be one."""
    sent = 0

    async def flood(request):
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path != "/props":
            return response
        await response.write(b'{"total_slots":2,"x":"')
        try:
            while sent < 100 * LARGEST:
                await response.write(b"x" * LARGEST)
                sent += LARGEST
        except ConnectionError:
            return response
        await response.write(b'"}')
        return response

    async with serving(flood) as (session, url, _):
        assert await look(session, url, None) == Recognition()
    assert sent < 100 * LARGEST


async def test_what_came_in_time_counts_though_the_rest_hangs(monkeypatch):
    monkeypatch.setattr(recognition, "TIME_LIMIT", 0.2)
    asked_props = asyncio.Event()
    never = asyncio.Event()

    async def answer(request):
        if request.path == "/api/version":
            return web.json_response({"version": "0.14.0"})
        asked_props.set()
        await never.wait()
        return web.Response()

    async with serving(answer) as (session, url, _):
        began = time.monotonic()
        assert await look(session, url, None) == Recognition("ollama", "0.14.0")
        assert asked_props.is_set()
        assert time.monotonic() - began < 30
        never.set()


async def test_a_cancellation_leaves_no_question_behind():
    asked, never = asyncio.Event(), asyncio.Event()

    async def answer(request):
        asked.set()
        await never.wait()
        return web.Response()

    async with serving(answer) as (session, url, _):
        before = asyncio.all_tasks()
        looking = asyncio.create_task(look(session, url, None))
        await asked.wait()
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        left = {task for task in asyncio.all_tasks() - before if "_Asker.ask" in repr(task.get_coro())}
        assert not left
        never.set()


async def test_the_key_is_never_shown(caplog):
    caplog.set_level(logging.DEBUG)

    async def echo(request):
        return web.json_response({"version": request.headers["authorization"], "total_slots": 1})

    async with serving(echo) as (session, url, _):
        found = await look(session, url, KEY)
    assert KEY not in caplog.text + repr(found)
    assert found.kind != "generic"
