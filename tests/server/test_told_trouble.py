"""What an operator hears of trouble: one line for each kind of it, and nothing of a request's content."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from antiphon.config import Settings, UpstreamSettings
from antiphon.server.fleet import Fleet
from inference_servers import models, serving
from server.fleet_house import FleetHouse
from server.harness import House, on_uvloop


@on_uvloop
async def test_how_a_request_failed_and_what_was_tried_before() -> None:
    async with FleetHouse() as house:
        client = await house.ask(stream=False)
        first = await house.visit()
        first.refuse(500)
        second = await house.visit()
        second.cut()
        await client.response()
        record = await house.record()
        assert (record["cause"], record["log_level"]) == ("upstream", "warning")
        assert record["tried"] == f"{first.at}:status"
        assert record["failure"] == "eof"
        assert (record["input_tokens"], record["output_tokens"]) == (0, 0)  # nobody has worked on it
        assert "estimated" not in record


@on_uvloop
async def test_a_good_answer_is_no_warning() -> None:
    async with House() as house:
        client = await house.ask(stream=False)
        (await house.visit()).answer("well")
        await client.response()
        record = await house.record()
        assert record["log_level"] == "info"
        assert "failure" not in record
        assert record["output_tokens"] > 0


@on_uvloop
async def test_an_upstream_that_is_given_up_is_told_once_with_what_was_wrong() -> None:
    async with House() as house:
        for _ in range(5):
            client = await house.ask(stream=False)
            (await house.visit()).refuse(401)
            await client.response()
        (told,) = [line for line in house.said.entries if line["event"] == "upstream_lost"]
        assert (told["upstream"], told["trouble"]) == ("up", "refused")


@on_uvloop
async def test_what_is_refused_before_an_upstream_has_a_line() -> None:
    async with House() as house:
        client = await house.client()
        body = b'{"model":"SECRET","messages":[]}'
        client.send(
            b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert (await client.response()).status == 400
        (told,) = [line for line in house.said.entries if line["event"] == "refused"]
        assert (told["surface"], told["error"], told["status"]) == ("messages", "invalid_request_error", 400)
        assert "SECRET" not in repr(told)


@pytest.mark.parametrize(("path", "hints"), [("", 1), ("/v1", 0)])
async def test_a_base_url_without_its_version_is_noticed(path, hints) -> None:
    with serving(models("qwen3")) as port:
        one = UpstreamSettings(
            name="gpu1", base_url=f"http://127.0.0.1:{port}{path}", kind="generic", slots=1
        )
        with capture_logs() as said:
            fleet = Fleet(Settings(upstreams=(one,)), probes=False)
            await fleet.start()
            while fleet._tasks:
                await next(iter(fleet._tasks))
            await fleet.aclose()
        assert [line["upstream"] for line in said if line["event"] == "base_url_looks_wrong"] == [
            "gpu1"
        ] * hints
