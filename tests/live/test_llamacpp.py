"""The real llama.cpp in a real child process, asked directly: life, death, slots."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import aiohttp
import pytest

from antiphon.local import LocalServer, LocalServerError, available, slots_busy
from antiphon.local_model import cached_model


def missing():
    return available() or (None if cached_model() else "the model file is not in the cache (antiphon fetch)")


REASON = missing()
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.skipif(REASON is not None, reason=f"live llama.cpp: {REASON}"),
]

# A gateway's skeleton: starts the server, says which process it is, waits.
PARENT = """
import asyncio, sys, uvloop
from antiphon.local import LocalServer
from antiphon.local_model import cached_model

async def main():
    async with LocalServer(cached_model(), slots=1, window=512) as server:
        print(server.pid, flush=True)
        await asyncio.Event().wait()

try:
    uvloop.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


def has_ended(pid):
    """Gone, or dead and waiting for whoever inherited it to take notice."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


class Client:
    def __init__(self, server, session):
        self.server, self.session = server, session

    def chat(self, text, **fields):
        body = {"model": "smollm2", "stream": True, "messages": [{"role": "user", "content": text}], **fields}
        headers = {"authorization": f"Bearer {self.server.api_key}"}
        return self.session.post(f"{self.server.base_url}/chat/completions", json=body, headers=headers)

    async def answer(self, text, **fields):
        async with self.chat(text, **fields) as response:
            assert response.status == 200
            lines = [line async for line in response.content]
        data = [line[6:].strip() for line in lines if line.startswith(b"data: ")]
        assert data[-1] == b"[DONE]"
        chunks = [json.loads(line) for line in data[:-1]]
        return "".join(
            chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]
        )

    async def busy(self):
        return await slots_busy(self.server.base_url, self.session, api_key=self.server.api_key)

    async def until_busy(self, slots, seconds=30.0):
        async with asyncio.timeout(seconds):
            while await self.busy() != slots:
                await asyncio.sleep(0.02)


@pytest.fixture
async def session():
    # llama.cpp closes a connection right behind a stream although it announces keep-alive.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


@pytest.fixture
async def client(session):
    async with LocalServer(cached_model()) as server:
        yield Client(server, session)


async def test_it_streams_and_reports_its_slots_and_window(client):
    assert (client.server.slots, client.server.window) == (4, 4096)
    assert await client.busy() == 0
    assert await client.answer("Say hello.", max_tokens=16)
    async with client.session.get(client.server.base_url.removesuffix("v1")) as page:
        # No web UI, and nothing for a web page: the key is asked for.
        assert page.status in {401, 404}
    assert await slots_busy(client.server.base_url, client.session) is None


async def test_a_client_that_leaves_in_the_stream_frees_the_slot(client):
    async with client.chat("Tell a long story.", max_tokens=2000) as response:
        await response.content.readuntil(b'"content":"')
        assert await client.busy() == 1
        response.close()
    await client.until_busy(0)


@pytest.mark.parametrize("return_progress", [True, False])
async def test_a_client_that_leaves_in_the_prefill_frees_the_slot(client, return_progress):
    # About 600 tokens, two seconds. llama.cpp notices at the end of a batch if it reports progress, else at
    # the end of the prompt: the slot's own report is what counts.
    words = " ".join(f"w{n * 7919 % 9973}" for n in range(120))
    async with client.chat(words, max_tokens=500, return_progress=return_progress) as response:
        # The headers come before the prefill.
        assert response.status == 200
        await client.until_busy(1)
        response.close()
    await client.until_busy(0)
    assert await client.answer("Say hello.", max_tokens=4)


async def test_a_crash_is_followed_by_a_restart_that_answers(session):
    changes = asyncio.Queue()
    async with LocalServer(cached_model(), on_state=changes.put_nowait) as server:
        url, pid = server.base_url, server.pid
        os.kill(pid, signal.SIGKILL)
        assert [await changes.get() for _ in range(3)] == ["ready", "restarting", "ready"]
        assert server.base_url == url
        assert server.pid != pid
        assert await Client(server, session).answer("Say hello.", max_tokens=4)


async def test_a_damaged_model_is_explained_in_llama_cpps_words(tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    server = LocalServer(damaged)
    with pytest.raises(LocalServerError, match="ended with status 1.*load.*--upstream"):
        await server.start()
    await server.aclose()


async def test_two_at_once(session):
    async with LocalServer(cached_model(), slots=1) as one, LocalServer(cached_model(), slots=2) as two:
        assert (one.slots, two.slots) == (1, 2)
        for server in (one, two):
            assert await Client(server, session).answer("Say hello.", max_tokens=4)
        async with session.post(
            f"{one.base_url}/chat/completions", json={}, headers={"authorization": f"Bearer {two.api_key}"}
        ) as refused:
            assert refused.status == 401


@pytest.mark.parametrize(
    ("kill", "status"),
    [
        pytest.param(lambda parent: parent.kill(), -9, id="parent killed"),
        pytest.param(lambda parent: os.killpg(parent.pid, signal.SIGINT), 130, id="ctrl-c in a terminal"),
    ],
)
def test_it_leaves_nothing_behind(kill, status):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as parent:
        child = int(parent.stdout.readline())
        assert not has_ended(child)
        kill(parent)
        out, err = parent.communicate()
    assert (parent.returncode, out, err) == (status, b"", b"")
    wait_for(lambda: has_ended(child))
