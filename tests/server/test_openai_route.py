"""The OpenAI surface through a whole gateway: what passes, what it shares, and how each failure is said."""

from __future__ import annotations

import json

import pytest

from antiphon.core.surfaces.openai.request import ROUTES
from antiphon.server.heavy import HeavyWork
from server.fleet_house import FleetHouse, model
from server.harness import (
    DONE,
    SSE_HEAD,
    USAGE,
    Client,
    House,
    Visit,
    body_of,
    chunk,
    deaf_listener,
    frame,
    on_both_loops,
    on_uvloop,
    request,
    turns,
    until,
)
from server.openai_wire import (
    FIRST,
    JSON_HEAD,
    PATH,
    STOP,
    WHOLE,
    asked,
    chat,
    cut_behind,
    passed,
    refused,
    through_asgi,
)

both_ways = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


async def streaming(house: House, tag: str = "hi", **fields: object) -> tuple[Client, Visit]:
    client = await asked(house, tag, **fields)
    visit = await house.visit()
    visit.raw(SSE_HEAD + chunk(FIRST))
    await passed(client, FIRST)
    return client, visit


async def heard(house: House, visit: Visit, data: bytes) -> None:
    """Send it and wait until the exchange has taken it."""
    exchange = house.exchange()
    exchange._time.heard = False
    visit.send(data)
    await until(lambda: exchange._time.heard)


# --- What passes ------------------------------------------------------------------------------------


@on_both_loops
async def test_each_read_of_the_upstream_passes_at_once() -> None:
    async with House() as house:
        client, visit = await streaming(house)
        said = FIRST
        for piece in (b": hello\r\n", FIRST[:9], FIRST[9:], STOP, USAGE, DONE):
            visit.send(piece)
            said += piece
            await passed(client, said)
        response = await client.response()
        assert response.complete
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"  # else nginx keeps frames back
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["antiphon-upstream"] == "up"
        assert response.headers["x-request-id"] == response.headers["request-id"]
        record = await house.record()
        assert (record["surface"], record["cause"], record["stop_reason"]) == (
            "openai",
            "finished",
            "end_turn",
        )
        assert (record["input_tokens"], record["output_tokens"]) == (21, 5)
        assert "estimated" not in record


@on_both_loops
async def test_a_stream_a_whole_answer_an_error_and_the_other_surface_on_one_socket() -> None:
    async with House(slots=1) as house:
        client = await house.client()
        client.send(chat())
        (await house.visit()).answer("Hi")
        assert (await client.response()).body.endswith(DONE)
        client.send(chat(stream=False))
        (await house.visit()).raw(JSON_HEAD + chunk(WHOLE) + b"0\r\n\r\n")
        response = await client.response()
        assert (response.body, response.headers["content-type"]) == (WHOLE, "application/json")
        assert "cache-control" not in response.headers
        client.send(chat())
        (await house.visit()).refuse(422, b'{"error":  {"message": "no"}}')
        response = await client.response()
        assert (response.status, response.body) == (422, b'{"error":  {"message": "no"}}')
        client.ask()
        (await house.visit()).answer("Hi")
        assert (await client.response()).kinds[-1] == "message_stop"
        assert len({visit.side for visit in house.upstream.visits}) == 1


@on_both_loops
async def test_http_1_0_gets_no_chunks_and_a_close() -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(body_of(), path=PATH, version="1.0"))
        (await house.visit()).answer("Hi")
        await client.gone()
        response = await client.response()
        assert "transfer-encoding" not in response.headers
        assert response.body.startswith(b"data: {")
        assert response.body.endswith(DONE)


@on_uvloop
async def test_nothing_is_promised_and_no_ping_is_sent() -> None:
    async with House() as house:
        client = await asked(house)
        visit = await house.visit()
        house.tick(100)
        house.tick(100)
        await turns()
        assert client.data == b""
        visit.raw(SSE_HEAD + chunk(FIRST))
        await passed(client, FIRST)
        house.tick(100)
        await turns()
        visit.send(DONE)
        assert (await client.response()).body == FIRST + DONE


# --- One set of slots -------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["openai", "messages"])
@both_ways
@on_both_loops
async def test_the_surfaces_wait_for_each_others_slot(first, stream) -> None:
    async with House(slots=1) as house:

        async def ask(surface: str, tag: str) -> Client:
            return await (asked if surface == "openai" else House.ask)(house, tag, stream=stream)

        second = "messages" if first == "openai" else "openai"
        holder = await ask(first, "holder")
        holding = await house.visit()
        waiter = await ask(second, "waiter")
        await house.waiting(1)
        assert len(house.upstream.visits) == 1
        holding.answer()
        assert (await holder.response()).complete
        visit = await house.visit()
        assert (visit.tag, house.stats) == ("waiter", (1, 0, 0))
        visit.answer()
        assert (await waiter.response()).status == 200
        assert {record["surface"] for record in house.records_written} == {"openai", "messages"}


@both_ways
@on_uvloop
async def test_a_full_queue(stream) -> None:
    async with House(slots=1, limits={"queue_length": 1}) as house:
        holder = await house.ask("holder")
        visit = await house.visit()
        waiter = await asked(house, "waiter")
        await house.waiting(1)
        response = await (await asked(house, "too many", stream=stream)).response()
        refused(response, 503, "server_error", "overloaded")
        assert int(response.headers["retry-after"]) > 0
        visit.answer()
        (await house.visit()).answer()
        assert (await holder.response()).complete
        assert (await waiter.response()).complete


@both_ways
@on_uvloop
async def test_queue_timeout(stream) -> None:
    async with House(slots=1) as house:
        await house.ask("holder")
        await house.visit()
        waiter = await asked(house, "waiter", stream=stream)
        await house.waiting(1)
        house.tick(300.1)
        response = await waiter.response()
        refused(response, 503, "server_error", "overloaded")
        assert int(response.headers["retry-after"]) > 0


# --- An upstream that fails -------------------------------------------------------------------------


def end_of(client: Client) -> bytes:
    """The last bytes on the wire."""
    return bytes(client.data[-5:])


@pytest.mark.parametrize("end", [Visit.cut, Visit.reset], ids=["fin", "rst"])
@pytest.mark.parametrize("half", [b"", FIRST[:20]], ids=["between-frames", "in-a-frame"])
@on_both_loops
async def test_a_stream_that_is_cut_has_an_error_and_no_end(end, half) -> None:
    async with House() as house:
        client, visit = await streaming(house)
        if half:
            visit.send(half)
            await passed(client, FIRST + half)
        end(visit)
        await client.gone()
        assert end_of(client) != b"0\r\n\r\n"
        error = cut_behind(await client.response(), FIRST + half + (b"\n\n" if half else b""))
        assert error["type"] == "server_error"
        record = await house.record()
        assert (record["cause"], record["error"], record["status"]) == ("upstream", "api_error", 200)


@pytest.mark.parametrize("end", [Visit.cut, Visit.reset], ids=["fin", "rst"])
@pytest.mark.parametrize("framing", ["chunked", "length"])
@on_both_loops
async def test_half_a_whole_answer_has_no_end_and_nothing_behind_it(framing, end) -> None:
    async with House() as house:
        client = await asked(house, stream=False)
        visit = await house.visit()
        if framing == "chunked":
            visit.raw(JSON_HEAD + chunk(WHOLE[:30]))
        else:
            head = (
                f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(WHOLE)}\r\n\r\n"
            )
            visit.raw(head.encode() + WHOLE[:30])
        await passed(client, WHOLE[:30])
        end(visit)
        await client.gone()
        response = await client.response()
        assert not response.complete
        assert response.body == WHOLE[:30]
        assert end_of(client) != b"0\r\n\r\n"
        assert (await house.record())["cause"] == "upstream"


@pytest.mark.parametrize("end", [Visit.cut, Visit.reset], ids=["fin", "rst"])
@on_both_loops
async def test_what_breaks_behind_a_finish_reason_takes_nothing_away(end) -> None:
    async with House() as house:
        client, visit = await streaming(house)
        visit.send(STOP)
        await passed(client, FIRST + STOP)
        end(visit)
        response = await client.response()
        assert response.complete
        assert response.body == FIRST + STOP


@on_uvloop
async def test_an_error_in_the_stream_passes_and_ends_it_in_order() -> None:
    async with House() as house:
        client, visit = await streaming(house)
        error = b'data: {"error": {"message": "the engine is dead", "code": 500}}\n\n'
        visit.send(error, DONE)
        response = await client.response()
        assert response.complete
        assert response.body == FIRST + error + DONE
        assert (await house.record())["error"] == "api_error"


@both_ways
@on_both_loops
async def test_an_upstream_that_hangs_up(stream) -> None:
    async with House() as house:
        client = await asked(house, stream=stream)
        (await house.visit()).reset()
        refused(await client.response(), 502, "server_error", None)


@both_ways
@on_uvloop
async def test_an_upstream_that_says_nothing(stream) -> None:
    async with House() as house:
        client = await asked(house, stream=stream)
        visit = await house.visit()
        visit.raw((SSE_HEAD if stream else JSON_HEAD) + b"0\r\n\r\n")
        refused(await client.response(), 502, "server_error", None)


# --- Limits -----------------------------------------------------------------------------------------


@both_ways
@on_uvloop
async def test_connect(stream) -> None:
    with deaf_listener() as port:
        async with House(upstream_url=f"http://127.0.0.1:{port}/v1") as house:
            client = await asked(house, stream=stream)
            await until(lambda: house.up.pool.statistics().connecting)
            house.tick(10.1)
            refused(await client.response(), 504, "server_error", "timeout")


@pytest.mark.parametrize("head", [b"", SSE_HEAD, JSON_HEAD], ids=["waiting", "stream", "whole"])
@on_uvloop
async def test_first_token(head) -> None:
    async with House() as house:
        client = await asked(house, stream=head != JSON_HEAD)
        visit = await house.visit()
        if head:
            visit.raw(head)
            await until(lambda: house.exchange().phase.value == "prefill")
        house.tick(600)
        assert house.stats == (1, 0, 0)
        house.tick(0.1)
        await visit.closed.wait()
        refused(await client.response(), 504, "server_error", "timeout")


@on_uvloop
async def test_gap() -> None:
    async with House() as house:
        client, visit = await streaming(house)
        for _ in range(3):
            house.tick(179)
            await heard(house, visit, b": still there\n\n")
            house.tick()
        house.tick(180.1)
        await visit.closed.wait()
        await client.gone()
        error = cut_behind(await client.response(), FIRST + b": still there\n\n" * 3)
        assert (error["type"], error["code"]) == ("server_error", "timeout")
        assert (await house.record())["cause"] == "deadline"


@on_uvloop
async def test_gap_in_a_whole_answer() -> None:
    async with House() as house:
        client = await asked(house, stream=False)
        visit = await house.visit()
        visit.raw(JSON_HEAD + chunk(WHOLE[:30]))
        await passed(client, WHOLE[:30])
        house.tick()
        house.tick(180.1)
        await client.gone()
        response = await client.response()
        assert (response.complete, response.body) == (False, WHOLE[:30])


@pytest.mark.parametrize(("asks", "grace"), [(True, 5), (False, 2)])
@on_uvloop
async def test_finish_grace(asks, grace) -> None:
    """A `[DONE]` that does not come is waited for longer where usage should stand before it."""
    async with House() as house:
        client, visit = await streaming(house, stream_options={"include_usage": asks})
        await heard(house, visit, STOP)
        house.tick()
        house.tick(grace)
        assert house.stats == (1, 0, 0)
        house.tick(0.1)
        response = await client.response()
        assert response.complete
        assert response.body == FIRST + STOP
        await visit.closed.wait()
        assert (await house.record())["cause"] == "finished"


@on_both_loops
async def test_a_client_that_does_not_read_pauses_its_upstream_and_loses_nothing() -> None:
    async with House(slots=1, sndbuf=16 * 1024) as house:
        client = await house.client(rcvbuf=4096)
        client.send(chat())
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(FIRST))
        await passed(client, FIRST)
        client.stop_reading()
        said = [FIRST]
        exchange = house.exchange()
        while not exchange._time.held_back:
            said.append(frame({"content": "x" * 50_000}))
            visit.send(said[-1])
            await turns(3)
        assert exchange.answer.pending > house.gateway.limits.max_behind
        while not visit.side.bytes_paused:  # from here on it is the upstream's sockets that fill
            said.append(frame({"content": "y" * 500_000}))
            visit.send(said[-1])
            await turns(3)
        held = exchange.answer.pending
        house.tick(50)  # its silence is ours
        await turns()
        assert exchange.answer.pending == held
        client.read_on()
        visit.send(STOP, DONE)
        response = await client.response()
        assert response.body == b"".join(said) + STOP + DONE
        assert (await house.record())["cause"] == "finished"


@pytest.mark.parametrize("reads", [True, False], ids=["reads-on", "never-reads"])
@on_both_loops
async def test_a_cut_behind_a_client_that_does_not_read(reads) -> None:
    """The slot is free at once; the error waits in the client's buffer, for as long as that may be full."""
    async with House(slots=1, sndbuf=16 * 1024) as house:
        client = await house.client(rcvbuf=4096)
        client.send(chat())
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(FIRST))
        await passed(client, FIRST)
        client.stop_reading()
        said = [FIRST]
        while not client.edge.paused:
            said.append(frame({"content": "x" * 50_000}))
            visit.send(said[-1])
            await turns(3)
        await until(lambda: house.exchange().answer._watch.findings.units == len(said))
        visit.cut()
        await until(lambda: house.stats == (0, 0, 0))
        await until(lambda: not house.gateway.live)
        assert house.gateway.edges
        if reads:
            client.read_on()
            await client.gone()
            cut_behind(await client.response(), b"".join(said))
        else:
            house.tick(60.1)
            await until(lambda: not house.gateway.edges)
            client.read_on()
            await client.gone()
            assert end_of(client) != b"0\r\n\r\n"


@on_both_loops
async def test_write_stall() -> None:
    async with House(sndbuf=16 * 1024) as house:
        client = await house.client(rcvbuf=4096)
        client.send(chat())
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(FIRST))
        await passed(client, FIRST)
        client.stop_reading()
        while not client.edge.paused:
            visit.text("x" * 50_000)
            await turns(3)
        house.tick(60.1)
        await visit.closed.wait()
        assert (await house.record())["cause"] == "stall"
        client.read_on()
        await client.gone()
        assert end_of(client) != b"0\r\n\r\n"


@on_both_loops
async def test_drain() -> None:
    async with House(slots=1) as house:
        idle = await house.client()
        client, visit = await streaming(house)
        queued = await asked(house, "queued", stream=False)
        await house.waiting(1)
        house.gateway.drain()
        idle.send(chat("late"))
        response = await idle.response()
        refused(response, 503, "server_error", "overloaded")
        assert response.headers["connection"] == "close"
        assert int(response.headers["retry-after"]) > 0
        await idle.gone()
        house.tick(29.9)
        visit.send(FIRST)
        await passed(client, FIRST * 2)
        house.tick(0.1)
        await visit.closed.wait()
        await client.gone()
        assert "shutting down" in cut_behind(await client.response(), FIRST * 2)["message"]
        refused(await queued.response(), 503, "server_error", "overloaded")


# --- Requests that are refused ----------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/llm"])
@pytest.mark.parametrize("route", ROUTES)
@on_uvloop
async def test_another_method(route, prefix) -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(b"", method="GET", path=f"{prefix}/v1{route}"))
        response = await client.response()
        refused(response, 405, "invalid_request_error", None)
        assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"messages":[]}', "model"),
        (b'{"model":7}', "model"),
        (b'{"model":"m","stream":"yes"}', "stream"),
        (b'{"model":"m","model":"n"}', "model"),
    ],
)
@on_uvloop
async def test_a_bad_body(body, param) -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(body, path=PATH))
        error = refused(await client.response(), 400, "invalid_request_error", None)
        assert error["param"] == param
        assert house.upstream.visits == []


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("path", [PATH, f"{PATH}?x=1", f"/llm{PATH}/"])
@on_both_loops
async def test_max_body(path, chunked) -> None:
    """It is said in OpenAI's shape where no application has seen the request yet, too."""
    async with House(limits={"max_body": 2000}) as house:
        client = await house.client()
        big = b"x" * 100_000
        if chunked:
            client.send(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Transfer-Encoding: chunked\r\n\r\n".encode()
                + chunk(big)
            )
        else:
            client.send(request(big, path=path))
        response = await client.response()
        refused(response, 413, "invalid_request_error", "request_too_large")
        assert response.headers["connection"] == "close"
        await client.gone()


@on_uvloop
async def test_limits_of_the_request_itself() -> None:
    async with House(limits={"max_headers": 4096}) as house:
        client = await house.client()
        client.send(chat(headers=f"X-Pad: {'x' * 5000}\r\n"))
        refused(await client.response(), 431, "invalid_request_error", None)
        client = await house.client()
        client.send(request(b"", length=100, path=PATH))
        await until(lambda: house.server.server_state.tasks)
        house.tick(60.1)
        refused(await client.response(), 408, "invalid_request_error", None)


@on_uvloop
async def test_a_server_of_the_messages_api_takes_none_of_these_requests() -> None:
    async with FleetHouse(kinds={"a": {"kind": "anthropic"}}) as house:
        for route in ROUTES:
            client = await house.client()
            client.send(chat(path=f"/v1{route}"))
            error = refused(await client.response(), 404, "invalid_request_error", "model_not_found")
            assert "POST /v1/messages" in error["message"]
        assert house.script("a").visits == []


@on_uvloop
async def test_among_servers_of_both_kinds_the_fitting_one_is_asked() -> None:
    async with FleetHouse(kinds={"a": {"kind": "anthropic"}, "b": {}}) as house:
        for number in range(4):
            client = await asked(house, f"{number}")
            visit = await house.visit()
            assert visit.at == "b"
            visit.answer()
            assert (await client.response()).complete


@on_uvloop
async def test_a_model_that_nobody_has() -> None:
    async with FleetHouse() as house:
        error = refused(
            await (await asked(house, model="unknown")).response(),
            404,
            "invalid_request_error",
            "model_not_found",
        )
        assert error["param"] == "model"


# --- Where the request goes -------------------------------------------------------------------------


@on_uvloop
async def test_a_large_body_is_planned_in_the_worker_and_passes_as_it_is(monkeypatch) -> None:
    planned, run = [], HeavyWork.run

    async def counted(self: HeavyWork, *args: object) -> object:
        planned.append(args[0].__name__)
        return await run(self, *args)

    monkeypatch.setattr(HeavyWork, "run", counted)
    async with FleetHouse(models=(model("m", "a", sends="theirs"),)) as house:
        body = body_of("x" * 2 * 1024 * 1024)
        client = await house.client()
        client.send(request(body, path=PATH))
        visit = await house.visit()
        assert planned == ["_relay_in_worker"]
        assert visit.body == {**json.loads(body), "model": "theirs"}
        visit.answer()
        assert (await client.response()).body.endswith(DONE)


@pytest.mark.parametrize("failure", ["reset", "503", "head", "empty"])
@both_ways
@on_both_loops
async def test_what_fails_before_the_first_byte_is_tried_elsewhere(failure, stream) -> None:
    models = (model("m", "a", "b", sends="theirs"),)
    async with FleetHouse(models=models) as house:
        client = await asked(house, stream=stream)
        visit = await house.visit()
        if failure == "503":
            visit.refuse(503)
        elif failure == "reset":
            visit.reset()
        else:
            visit.raw(SSE_HEAD if stream else JSON_HEAD)
            if failure == "head":
                await until(lambda: house.exchange().phase.value == "prefill")
                visit.cut()
            else:
                visit.raw(b"0\r\n\r\n")
        other = await house.visit()
        assert other.at != visit.at
        assert other.body == visit.body
        assert other.body["model"] == "theirs"
        other.answer("yours")
        response = await client.response()
        assert response.complete
        assert response.headers["antiphon-upstream"] == other.at
        assert response.body.endswith(DONE)
        assert (await house.record())["retries"] == 1


@on_both_loops
async def test_nothing_is_tried_elsewhere_behind_the_first_byte() -> None:
    async with FleetHouse() as house:
        client = await asked(house)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(b": hello\n\n"))
        await passed(client, b": hello\n\n")
        visit.reset()
        await client.gone()
        cut_behind(await client.response(), b": hello\n\n")
        assert "retries" not in await house.record()


NATIVE_BESIDE = {"kinds": {"a": {"slots": 1}, "b": {"kind": "anthropic"}}}


@pytest.mark.parametrize(("why", "status"), [("overloaded", 503), ("failed", 500)])
@on_uvloop
async def test_a_fallback_that_does_not_relay_is_no_way_out(why, status) -> None:
    models = (model("m", "a", **{why: "native"}), model("native", "b"))
    async with FleetHouse(**NATIVE_BESIDE, models=models) as house:
        client = await asked(house)
        (await house.visit()).refuse(status, b'{"error": {"message": "the reason"}}')
        response = await client.response()
        assert (response.status, response.json) == (status, {"error": {"message": "the reason"}})
        assert "retries" not in await house.record()


@on_uvloop
async def test_the_last_refusal_is_told_in_the_upstreams_words() -> None:
    async with FleetHouse() as house:
        client = await asked(house)
        for word in (b"first", b"last"):
            (await house.visit()).refuse(503, b'{"error": {"message": "%b"}}' % word, "retry-after: 7\r\n")
        response = await client.response()
        assert (response.status, response.json) == (503, {"error": {"message": "last"}})
        assert response.headers["retry-after"] == "7"


# --- Another ASGI server ----------------------------------------------------------------------------


@on_both_loops
async def test_asgi_passes_a_stream() -> None:
    async with House(slots=1) as house:
        asgi = through_asgi(house)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(FIRST))
        await until(lambda: asgi.response is not None and asgi.response.body == FIRST)
        visit.send(STOP, DONE)
        await asgi.task
        assert asgi.response.complete
        assert asgi.response.body == FIRST + STOP + DONE


@pytest.mark.parametrize("late", [False, True], ids=["reading", "slow"])
@on_both_loops
async def test_asgi_tells_of_a_cut_and_leaves_the_response_without_its_end(late) -> None:
    async with House(slots=1) as house:
        asgi = through_asgi(house)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(FIRST))
        await until(lambda: asgi.response is not None and asgi.response.body == FIRST)
        if late:
            asgi.block.clear()
        visit.reset()
        await until(lambda: house.stats == (0, 0, 0))
        asgi.block.set()
        await asgi.task
        assert cut_behind(asgi.response, FIRST)["type"] == "server_error"


@pytest.mark.parametrize("end", ["disconnect", "stall"])
@on_both_loops
async def test_asgi_does_not_wait_for_a_client_that_never_reads_the_cut(end) -> None:
    async with House(slots=1) as house:
        asgi = through_asgi(house)
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(FIRST))
        await until(lambda: asgi.response is not None and asgi.response.body == FIRST)
        asgi.block.clear()
        while not house.exchange()._client.link.paused:
            visit.text("y" * 50_000)
            await turns(3)
        visit.reset()
        await until(lambda: house.stats == (0, 0, 0))
        if end == "disconnect":
            asgi.disconnect()
        else:
            house.tick(60.1)
        await until(asgi.task.done)
        assert not asgi.response.complete


@on_both_loops
async def test_asgi_leaves_half_a_whole_answer_without_its_end() -> None:
    async with House(slots=1) as house:
        asgi = through_asgi(house, stream=False)
        visit = await house.visit()
        visit.raw(JSON_HEAD + chunk(WHOLE[:30]))
        await until(lambda: asgi.response is not None and asgi.response.body == WHOLE[:30])
        visit.reset()
        await asgi.task
        assert (asgi.response.complete, asgi.response.body) == (False, WHOLE[:30])


@pytest.mark.parametrize("phase", ["waiting", "prefill", "streaming"])
@both_ways
@on_both_loops
async def test_asgi_hears_a_disconnect(phase, stream) -> None:
    async with House(slots=1) as house:
        asgi = through_asgi(house, stream=stream)
        visit = await house.visit()
        if phase != "waiting":
            visit.raw((SSE_HEAD if stream else JSON_HEAD) + (chunk(FIRST) if phase == "streaming" else b""))
            await until(lambda: house.exchange().phase.value == phase)
        asgi.disconnect()
        await visit.closed.wait()
        await asgi.task
        assert (await house.record())["cause"] == "client"
        assert asgi.response is None or not asgi.response.complete
