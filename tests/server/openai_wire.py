"""What the harness lacks for OpenAI clients: their requests, and how their answers are read.

Owns no gateway and no upstream: those are `server.harness`'s.

    client = await house.client()
    client.send(chat("hi"))
    (await house.visit()).raw(SSE_HEAD + chunk(FIRST))
    await passed(client, FIRST)
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from server.harness import Client, House, Response, body_of, frame, request
from server.test_asgi_link import Asgi

PATH = "/v1/chat/completions"
FIRST = frame({"content": "Hello"})
STOP = frame(finish="stop")
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = b'{"id": "c",  "choices": [], "usage": {"prompt_tokens": 21, "completion_tokens": 5}}\n'


def chat(tag: str = "hi", *, path: str = PATH, headers: str = "", **fields: Any) -> bytes:
    """A request; `tag` is how its visit is called."""
    return request(body_of(tag, **fields), path=path, headers=headers)


async def asked(house: House, tag: str = "hi", **fields: Any) -> Client:
    """An OpenAI client that has sent its request."""
    client = await house.client()
    client.send(chat(tag, **fields))
    return client


async def passed(client: Client, data: bytes) -> None:
    """Wait until the body so far is exactly this."""

    def whole() -> bool:
        response = client.so_far
        body = b"" if response is None else response.body
        assert data.startswith(body), body
        return body == data

    await client.until(whole)


def refused(response: Response, status: int, kind: str, code: str | None) -> dict[str, Any]:
    """The error of an answer, in OpenAI's shape with this gateway's id."""
    assert response.complete
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == response.headers["request-id"]
    assert list(response.json) == ["error"]
    error: dict[str, Any] = response.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (response.status, error["type"], error["code"]) == (status, kind, code)
    return error


def cut_behind(response: Response, data: bytes) -> dict[str, Any]:
    """The error that stands behind what passed of a stream; the connection was cut behind it."""
    assert response.status == 200
    assert not response.complete
    passing, words = response.body[: len(data)], response.body[len(data) :]
    assert passing == data
    assert words.startswith(b"data: ")
    assert words.endswith(b"\n\n")
    error: dict[str, Any] = json.loads(words.removeprefix(b"data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def through_asgi(house: House, **fields: Any) -> Asgi:
    """A request of another ASGI server."""

    async def gateway(scope: dict, receive: Any, send: Any) -> None:
        await house.gateway({**scope, "path": PATH}, receive, send)

    return Asgi(SimpleNamespace(gateway=gateway), **fields)  # type: ignore[arg-type]  # of a house it asks no more
