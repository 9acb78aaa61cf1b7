"""The corpus's `termination` cases that need more than one exchange of bytes to tell."""

from __future__ import annotations

import json

import pytest

from pipeline import run
from scenarios.cases import case
from server.harness import DONE, USAGE, House, frame, on_uvloop, request


@pytest.mark.parametrize("asked", [{"stream": False}, {}], ids=["false", "absent"])
@on_uvloop
async def test_END_10_an_sse_body_answers_a_request_that_does_not_stream(asked) -> None:
    async with House() as house:
        client = await house.client()
        body = {
            "model": "a-model",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": "hi"}],
            **asked,
        }
        client.send(request(json.dumps(body).encode()))
        visit = await house.visit()
        visit.head()
        visit.send(frame({"role": "assistant", "content": "Hi"}), frame(finish="stop"), USAGE, DONE)
        response = await client.response()
        context = {"model": "a-model", "judge_request_id": True}
        text = response.body.decode()
        expected = case("END-10")["expected"]
        assert (
            run.http_verdict(
                expected, response.status, response.headers, text, context | {"judge_request_id": False}
            )
            is None
        )
        assert response.headers["content-type"] == expected["content_type"]
        assert response.json["usage"] == {**response.json["usage"], "input_tokens": 21, "output_tokens": 5}
