"""The OpenAI surface with the real llama.cpp behind it: its own bytes, its own refusals, and the same slots."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from live.llamacpp_house import REASON, LlamaHouse, Served, without_marks

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.skipif(REASON is not None, reason=f"live llama.cpp: {REASON}"),
    pytest.mark.asyncio(loop_scope="module"),
]

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory):
    served = {"one": Served(slots=1), "two": Served(slots=2)}
    async with LlamaHouse(tmp_path_factory.mktemp("openai"), served) as house:
        yield house


CHAT = {"messages": [{"role": "user", "content": "Say hello."}]}
PROMPT = {"prompt": "Once upon a time"}


@both_ways
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        pytest.param("/chat/completions", CHAT, id="chat"),
        pytest.param(
            "/chat/completions", CHAT | {"stream_options": {"include_usage": True}}, id="chat with usage"
        ),
        pytest.param("/completions", PROMPT, id="completions"),
    ],
)
async def test_an_openai_client_gets_the_servers_own_bytes(house, path, asked, stream):
    if not stream and "stream_options" in asked:
        asked = {name: value for name, value in asked.items() if name != "stream_options"}
    body = {"model": "only-two", "max_tokens": 12, "temperature": 0, "stream": stream, **asked}
    # Otherwise what is cached differs; nothing of it is the gateway's.
    body["cache_prompt"] = False
    async with house.direct("two", path, body | {"model": "smollm2"}) as answer:
        direct = await answer.read()
    async with house.post(path, body) as answer:
        through = await answer.read()
        assert answer.status == 200
        assert answer.headers["antiphon-upstream"] == "two"
    assert without_marks(through) == without_marks(direct)


async def test_an_openai_client_hears_the_servers_own_refusal(house):
    asked = {"model": "only-two", "input": "Hello"}
    async with house.direct("two", "/embeddings", asked) as answer:
        direct, status = await answer.json(), answer.status
    async with house.post("/embeddings", asked) as answer:
        assert answer.status == status == 501
        assert (await answer.json())["error"]["message"] == direct["error"]["message"]
    await house.until_idle()


async def test_both_kinds_of_clients_wait_for_the_same_slot(house):
    """It has one: who came second is asked of it when the first one's answer is over, not before."""
    chat = {"model": "only-one", "max_tokens": 24, "stream": False, "temperature": 0, **CHAT}
    for first_path, second_path in (
        ("/chat/completions", "/messages"),
        ("/messages", "/chat/completions"),
    ):
        async with house.post(first_path, chat | {"stream": True, "max_tokens": 900}) as first:
            await first.content.readline()
            second = asyncio.ensure_future(house.post(second_path, chat).__aenter__())
            await house.until_waiting("one", 1)
            assert (await house.busy("one"), second.done()) == (1, False)
            first.close()
        answer = await second
        assert answer.status == 200
        assert int(answer.headers["antiphon-queue-ms"]) > 0
        answer.close()
        await house.until_idle()
