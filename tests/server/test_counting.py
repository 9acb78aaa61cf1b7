"""Token counts: asked of the upstream's own tokenizer, kept by content, None where it does not say."""

import asyncio
import json

import pytest
from aiohttp import ClientSession, web

from antiphon.server.counting import LARGEST, PrefixCounts, TokenCounter
from antiphon.server.prefixes import prefix_chain

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


def chat(*texts, tools=None):
    messages = [
        {"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)
    ]
    return json.dumps(
        {"model": "m", "stream": True, **({"tools": tools} if tools else {}), "messages": messages}
    ).encode()


def learn(counts, body, tokens, model="m"):
    counts.learn(model, prefix_chain(body), tokens)


def guess(counts, body, model="m"):
    return counts.guess(model, prefix_chain(body))


def test_a_conversation_begins_where_its_last_turn_ended():
    counts = PrefixCounts()
    assert guess(counts, chat("q")) is None
    learn(counts, chat("q"), 1000)
    assert guess(counts, chat("q")) == 1000
    longer = guess(counts, chat("q", "a", "more"))
    assert 1000 < longer < 1050
    learn(counts, chat("q", "a", "more"), 1020)
    assert guess(counts, chat("q", "a", "more", "b")) > 1020


def test_another_conversation_is_not_mistaken_for_it():
    counts = PrefixCounts()
    learn(counts, chat("q"), 1000)
    assert guess(counts, chat("other")) is None
    assert guess(counts, chat("q", tools=[{"type": "function"}])) is None
    assert guess(counts, chat("q", "x" * 100_000)) is None
    assert guess(counts, chat("q"), model="other") is None


def test_what_has_no_chain_is_not_counted():
    counts = PrefixCounts()
    learn(counts, b"{}", 1000)
    assert guess(counts, b"{}") is None


async def test_the_tokens_of_a_large_body_are_not_asked_beside_streams():
    large = chat("x" * LARGEST)
    async with Server('{"count":9}') as server:
        counter = TokenCounter("tokenize", server.base_url, server.session)
        assert counter.tell(large, lambda tokens: None) is None
        assert server.asked == []


def test_counts_are_bounded():
    counts = PrefixCounts(kept=2)
    for number in range(5):
        learn(counts, chat(f"q{number}"), number + 1)
    assert [guess(counts, chat(f"q{number}")) for number in range(5)] == [None, None, None, 4, 5]


async def test_message_start_has_the_tokenizers_count_if_it_comes_in_time(tmp_path):
    """A vLLM-like server whose first token waits for nothing but the count of the same prompt."""
    from live_gateway import gateway

    counted = asyncio.Event()

    async def tokenize(request):
        counted.set()
        return web.json_response({"count": 777})

    async def complete(request):
        body = await request.json()
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        await counted.wait()
        await asyncio.sleep(0.1)  # for the answer to the count to be read
        chunks = [{"choices": [{"index": 0, "delta": {"content": "Hi"}}]}]
        chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served = gateway(
        tmp_path, f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1", "--profile", "vllm"
    )
    process = await asyncio.to_thread(served.__enter__)
    try:
        request = {
            "model": "m",
            "max_tokens": 9,
            "stream": True,
            "messages": [{"role": "user", "content": "hi"}],
        }
        async with ClientSession() as session:
            async with session.post(f"{process.base_url}/v1/messages", json=request) as answer:
                start = next(line for line in (await answer.text()).split("\n") if '"message_start"' in line)
        assert json.loads(start.removeprefix("data: "))["message"]["usage"]["input_tokens"] == 777
    finally:
        await asyncio.to_thread(served.__exit__, None, None, None)
        await runner.cleanup()
