"""What is said of a server whose client left, case by case."""

import dataclasses

import pytest

from antiphon.check.upstream import leaving
from antiphon.check.upstream.asking import Asker
from antiphon.check.upstream.findings import Report
from antiphon.check.upstream.leaving import probe_leaving
from check.imitations import LLAMACPP, VLLM, Imitation, Shape


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(leaving, "_PATIENCE", 0.3)
    monkeypatch.setattr(leaving, "_INTERVAL", 0.01)
    monkeypatch.setattr(leaving, "_WAITED", 0.2)


async def leave(shape, busy=0, **members):
    async with Imitation(shape) as server, Asker(server.url) as asker:
        server.running = busy
        report = Report(url=server.url, model="imitation", **members)
        await probe_leaving(asker, report)
    return report


@pytest.mark.parametrize(
    "load", ["slots", "vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"]
)
@pytest.mark.parametrize("busy", [0, 1])
async def test_stops_whoever_else_is_there(load, busy):
    report = await leave(Shape(load=load), busy)
    assert report.value("client leaves").startswith("stops within")
    assert report.problems == []


@pytest.mark.parametrize("load", ["slots", "vllm:num_requests_running"])
async def test_goes_on(load):
    report = await leave(dataclasses.replace(LLAMACPP, load=load))
    assert report.value("client leaves") == "goes on"
    assert report.measured["cancels_everywhere"].value is False


async def test_too_fast_to_tell():
    assert (await leave(VLLM, tokens_per_second=1e9)).value("client leaves") == "unknown"


async def test_a_report_that_does_not_move():
    report = await leave(Shape(load="slots"), busy=2)  # both slots were busy before
    assert report.value("client leaves") == "unknown"


async def test_without_a_report():
    assert (await leave(Shape())).value("client leaves") == "unknown"
    assert (await leave(Shape(slow=True, leaves="goes_on"))).value("client leaves") == "goes on"


async def test_no_stream_to_leave(unused_tcp_port):
    async with Asker(f"http://127.0.0.1:{unused_tcp_port}/v1") as asker:
        report = Report(url=asker.base_url, model="m")
        await probe_leaving(asker, report)
    assert report.value("client leaves") == "unknown"
