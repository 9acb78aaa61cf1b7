"""Token counts: asked of the upstream's own tokenizer, kept by content, None where it does not say."""

import json

import pytest
from aiohttp import ClientSession, web

from antiphon.server.counting import TokenCounter

BODY = json.dumps(
    {
        "model": "m",
        "max_tokens": 5,
        "stream": True,
        "tools": [{"a": 1}],
        "messages": [{"role": "user", "content": "hi"}],
    }
).encode()


class Server:
    """A tokenizer on a real socket that records what it was asked."""

    def __init__(self, answer, status=200):
        self.answer, self.status, self.asked = answer, status, []

    async def __aenter__(self):
        async def handler(request):
            self.asked.append((request.path, await request.json(), request.headers.get("authorization")))
            return web.Response(text=self.answer, status=self.status)

        app = web.Application()
        app.router.add_post("/{tail:.*}", handler)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        self.session = ClientSession()
        return self

    async def __aexit__(self, *exc):
        await self.session.close()
        await self.runner.cleanup()


@pytest.mark.parametrize(
    ("route", "path", "answer"),
    [
        ("tokenize", "/tokenize", '{"count":31,"max_model_len":4096,"tokens":[1]}'),
        ("input_tokens", "/v1/chat/completions/input_tokens", '{"object":"x","input_tokens":31}'),
    ],
)
async def test_each_route_gets_messages_and_tools_and_nothing_about_the_answer(route, path, answer):
    async with Server(answer) as server:
        counter = TokenCounter(route, server.base_url, server.session, "key")
        assert await counter.count(BODY) == 31
        assert await counter.count(BODY) == 31
        ((asked_path, question, key),) = server.asked
        assert asked_path == path
        assert key == "Bearer key"
        assert set(question) == {"model", "messages", "tools"}
        other = BODY.replace(b'"hi"', b'"ho"')
        await counter.count(other)
        assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("", 200),
        ("[]", 200),
        ('{"count":0}', 200),
        ('{"count":true}', 200),
        ('{"count":"7"}', 200),
        ('{"count":7}', 404),
    ],
)
async def test_nonsense_is_no_count_and_is_not_kept(answer, status):
    async with Server(answer, status) as server:
        counter = TokenCounter("tokenize", server.base_url, server.session)
        assert await counter.count(BODY) is None
        assert await counter.count(BODY) is None
        assert len(server.asked) == 2


async def test_no_route_asks_nobody():
    async with Server("{}") as server:
        counter = TokenCounter("none", server.base_url, server.session)
        assert await counter.count(BODY) is None
        assert counter.tell(BODY, lambda tokens: None) is None
        assert server.asked == []


async def test_telling_can_be_cancelled_and_leaves_nothing():
    told = []
    async with Server('{"count":9}') as server:
        counter = TokenCounter("tokenize", server.base_url, server.session)
        await counter.tell(BODY, told.append)
        assert told == [9]
        task = counter.tell(BODY.replace(b"hi", b"yo"), told.append)
        task.cancel()
        await counter.aclose()
        assert task.done()
        assert told == [9]
