"""Answers that the application gives without an upstream, asked through plain ASGI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.config import Limits, Settings, UpstreamSettings
from antiphon.core.dialects.quirks import by_name
from antiphon.server.app import Gateway
from antiphon.server.catalog import Model
from antiphon.server.prefixes import PrefixIndex
from antiphon.server.routing import ANY, Route, RouteTable, Target
from antiphon.server.upstreams import Upstream


class Backend:
    """One upstream that cannot be reached."""

    table = RouteTable((Route(ANY, (Target("upstream", by_name("generic")),)),))

    def __init__(self) -> None:
        settings = UpstreamSettings(name="upstream", base_url="http://127.0.0.1:1/v1")
        self.upstreams = {"upstream": Upstream(settings, Limits())}
        self.prefixes = PrefixIndex()
        self.leaving = ()

    async def models(self) -> list[Model]:
        return []


async def ask(path: str, **fields: Any) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body of an answer."""
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    sent: list[dict] = []
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}

    async def receive() -> dict:
        return {"type": "http.request", "body": json.dumps(asked).encode()}

    async def send(message: dict) -> None:
        sent.append(message)

    await Gateway(Settings(), Backend())(scope, receive, send)
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told, json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/messages", {"max_tokens": 0}), ("/v1/messages/count_tokens", {})]
)
async def test_answers_without_an_upstream_say_what_was_degraded(path: str, fields: dict[str, int]) -> None:
    status, headers, _ = await ask(path, **fields, top_k=1, container="c")
    assert (status, headers["antiphon-degraded"]) == (200, "container, top_k")
    assert headers["request-id"].startswith("req_")
    status, headers, _ = await ask(path, **fields)
    assert status == 200
    assert "antiphon-degraded" not in headers


async def test_no_token_is_asked_for_and_none_is_given() -> None:
    _, _, message = await ask("/v1/messages", max_tokens=0)
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"]["input_tokens"] > 0


async def test_a_count_that_nobody_gives_is_an_estimate() -> None:
    _, headers, counted = await ask("/v1/messages/count_tokens")
    assert headers["antiphon-token-count"] == "estimate"
    assert counted["input_tokens"] > 0
