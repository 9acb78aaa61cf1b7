"""HTTP as clients speak it, well and badly."""

from __future__ import annotations

import json

import pytest

from server.harness import (
    SSE_HEAD,
    House,
    Response,
    body_of,
    chunk,
    frame,
    on_both_loops,
    on_uvloop,
    post,
    request,
    tool,
    turns,
    until,
)

TEXT = frame({"content": "Hello"})
H = b"Host: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def is_error(response: Response, status: int, kind: str) -> bool:
    """The one shape of every error."""
    assert response.status == status, response
    assert response.headers["content-type"] == "application/json"
    assert set(response.json) == {"type", "error", "request_id"}
    assert response.json["type"] == "error"
    assert set(response.json["error"]) == {"type", "message"}
    assert response.json["error"]["type"] == kind
    assert response.json["error"]["message"]
    assert response.json["request_id"].startswith("req_")
    assert response.headers["request-id"] == response.json["request_id"]
    return True


# --- Answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/llm/v1/messages", "/v1/messages/", "/v1/messages?beta=true"]
)
@on_uvloop
async def test_a_stream(path) -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(body_of(), path=path))
        visit = await house.visit()
        visit.answer("Hello")
        response = await client.response()
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["request-id"].startswith("req_")
        assert response.kinds[0] == "message_start"
        assert response.kinds[-1] == "message_stop"
        assert response.text == "Hello"
        assert response.events[0]["message"]["model"] == "m"
        assert (await house.record())["cause"] == "finished"


@on_both_loops
async def test_each_read_of_the_upstream_is_one_write_at_once() -> None:
    async with House() as house:
        client = await house.ask()
        visit = await house.visit()
        visit.head()
        for number in range(1, 6):
            visit.text(f"{number} ")
            await client.event("content_block_delta", count=number)
        visit.finish()
        visit.done()
        assert (await client.response()).text == "1 2 3 4 5 "


@on_both_loops
async def test_a_stream_a_whole_answer_and_errors_on_one_socket() -> None:
    async with House() as house:
        client = await house.client()
        ids = set()
        for _ in range(2):
            client.ask()
            (await house.visit()).answer("streamed")
            response = await client.response()
            assert response.text == "streamed"
            ids.add(response.headers["request-id"])

            client.ask(stream=False)
            (await house.visit()).answer("whole")
            response = await client.response()
            assert response.json["content"] == [{"type": "text", "text": "whole"}]
            assert response.json["usage"] == {"input_tokens": 21, "output_tokens": 5}
            ids.add(response.headers["request-id"])

            client.ask()
            (await house.visit()).refuse(400, b'{"error":{"message":"bad thing"}}')
            response = await client.response()
            assert is_error(response, 400, "invalid_request_error")
            ids.add(response.headers["request-id"])

            client.send(request(b"{"))
            response = await client.response()
            assert is_error(response, 400, "invalid_request_error")
            ids.add(response.headers["request-id"])

            client.ask()
            visit = await house.visit()
            visit.raw(SSE_HEAD + chunk(TEXT))
            await client.event("content_block_delta")
            visit.cut()
            response = await client.response()
            assert response.complete
            assert response.error["request_id"] == response.headers["request-id"]
            ids.add(response.headers["request-id"])
        assert len(ids) == 10
        assert not client.ended


@on_uvloop
async def test_the_upstreams_connection_is_reused() -> None:
    async with House() as house:
        client = await house.client()
        for _ in range(3):
            client.ask()
            (await house.visit()).answer()
            await client.response()
            await until(lambda: house.up.pool.statistics().idle == 1)
        assert len({visit.side for visit in house.upstream.visits}) == 1


@on_uvloop
async def test_an_idle_upstream_connection_that_died_is_not_a_failure() -> None:
    async with House() as house:
        client = await house.client()
        client.ask()
        visit = await house.visit()
        visit.answer()
        await client.response()
        await until(lambda: house.up.pool.statistics().idle == 1)
        visit.reset()
        client.ask()
        (await house.visit()).answer("again")
        assert (await client.response()).text == "again"


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/healthz", "GET", 200), ("/", "HEAD", 200), ("/", "GET", 200), ("/api/hello", "HEAD", 200)],
)
@on_uvloop
async def test_ordinary_routes(path, method, status) -> None:
    async with House() as house:
        client = await house.client()
        for _ in range(2):  # nothing of the first answer is left in the second one's way
            client.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            response = await client.response(head_only=method == "HEAD")
            assert response.status == status
            assert response.headers["request-id"].startswith("req_")
            await turns()
            assert client.data == b""


# --- Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v2/messages", 404, "not_found_error"),
        ("POST", "/", 405, "invalid_request_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("PUT", "/llm/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/healthz", 405, "invalid_request_error"),
        ("GET", "/%00%ff/\u00e4".encode().decode("latin-1"), 400, "invalid_request_error"),
        ("GET", "/%0d%0aX:%20y", 404, "not_found_error"),
    ],
)
@on_uvloop
async def test_404_and_405(method, path, status, kind) -> None:
    async with House() as house:
        client = await house.client()
        headers = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n"
        client.send(f"{method} {path} HTTP/1.1\r\n{headers}".encode("latin-1"))
        response = await client.response()
        if status == 400:
            house.records.lines.clear()  # uvicorn's line about what is no HTTP
        assert is_error(response, status, kind)
        if status == 405:
            assert response.headers["allow"]


@on_uvloop
async def test_head_of_a_path_that_takes_posts_has_no_body() -> None:
    async with House() as house:
        client = await house.client()
        client.send(b"HEAD /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET)
        response = await client.response(head_only=True)
        assert response.status == 405
        client.send(GET)
        await client.gone()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"\xff", ""),
        (b'{"model":"m","max_tokens":1}', "messages"),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}]}', "max_tokens"),
        (b'{"max_tokens":1,"messages":[{"role":"user","content":"x"}]}', "model"),
        (b'{"model":"m","max_tokens":1,"messages":[{"role":"user"}]}', "messages.0"),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text"}]}]}',
            "messages.0.content.0",
        ),
        (b"[" * 100_000, ""),
    ],
)
@on_uvloop
async def test_bad_bodies_name_the_field(body, said) -> None:
    async with House() as house:
        client = await house.client()
        client.send(request(body))
        response = await client.response()
        assert is_error(response, 400, "invalid_request_error")
        assert said in response.json["error"]["message"]
        client.ask()  # the connection is as good as before
        (await house.visit()).answer()
        assert (await client.response()).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # HTTP/2 without asking first
        b"nonsense\r\n\r\n",
        b"GET / HTTP/3.0\r\n" + H + b"\r\n",
        b"GET / HTTP/1.1\r\nHo st: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\n" + H + b"Content-Length: x\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\n" + H + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/messages HTTP/1.1\r\n"
        + H
        + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"POST /v1/messages HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\n" + H + b"\r\n",
        b"GET http:// HTTP/1.1\r\n" + H + b"\r\n",
    ],
)
@pytest.mark.parametrize("before", [False, True], ids=["first", "after another"])
@on_both_loops
async def test_what_is_no_http_is_answered_in_the_same_shape(data, before) -> None:
    async with House() as house:
        client = await house.client()
        if before:
            client.send(GET)
            assert (await client.response()).status == 200
        client.send(data)
        response = await client.response()
        assert is_error(response, 400, "invalid_request_error")
        assert response.headers["connection"] == "close"
        await client.gone()
        assert client.data == b""
        assert house.upstream.visits == []
        house.records.lines[:] = [line for line in house.records.lines if "Invalid HTTP request" not in line]


@on_uvloop
async def test_half_close_behind_garbage_still_gets_the_answer() -> None:
    async with House() as house:
        client = await house.client()
        client.send(b"nonsense\r\n\r\n")
        client.half_close()
        assert is_error(await client.response(), 400, "invalid_request_error")
        await until(lambda: not house.gateway.edges)
        house.records.lines.clear()


UPGRADE = (
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
)


@on_uvloop
async def test_an_offer_to_upgrade_is_ignored() -> None:
    """As curl --http2 makes it. What follows it on the connection would not be understood: it is closed."""
    async with House() as house:
        client = await house.client()
        client.send(request(b"", method="GET", path="/healthz", headers=UPGRADE))
        response = await client.response()
        assert response.status == 200
        assert response.headers["connection"] == "close"
        await client.gone()


@pytest.mark.parametrize("framing", ["", "Transfer-Encoding: chunked\r\n"])
@on_uvloop
async def test_an_offer_to_upgrade_with_a_body_is_refused_in_words(framing) -> None:
    async with House() as house:
        client = await house.client()
        data = post(headers=UPGRADE)
        if framing:
            head = b"POST /v1/messages HTTP/1.1\r\n" + H + (UPGRADE + framing).encode()
            data = head + b"\r\n" + chunk(body_of()) + b"0\r\n\r\n"
        client.send(data)
        response = await client.response()
        assert is_error(response, 400, "invalid_request_error")
        assert "Upgrade" in response.json["error"]["message"]
        await client.gone()


# --- One after the other ----------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["the same read", "while it is answered"])
@on_both_loops
async def test_a_pipelined_request_is_dropped_and_the_connection_closed(when) -> None:
    async with House() as house:
        client = await house.client()
        second = post("second")
        client.send(post("first") + (second if when == "the same read" else b""))
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        await client.event("content_block_delta")
        if when != "the same read":
            client.send(second)
            await turns()
        visit.finish()
        visit.done()
        response = await client.response()
        assert response.kinds[-1] == "message_stop"
        await client.gone()
        assert client.data == b""
        assert [each.tag for each in house.upstream.visits] == ["first"]


@on_uvloop
async def test_a_request_that_comes_in_single_bytes() -> None:
    async with House() as house:
        client = await house.client()
        for byte in post("slow"):
            client.send(bytes([byte]))
            await turns(1)
        (await house.visit()).answer()
        assert (await client.response()).status == 200


@on_uvloop
async def test_two_requests_one_right_behind_the_others_answer() -> None:
    async with House() as house:
        client = await house.client()
        for number in range(5):
            client.send(GET)
            assert (await client.response()).status == 200, number
            client.ask(f"{number}", stream=False)
            (await house.visit()).answer()
            assert (await client.response()).status == 200


@pytest.mark.parametrize("stream", [True, False])
@on_both_loops
async def test_http_1_0_gets_no_chunks_and_a_close(stream) -> None:
    async with House() as house:
        client = await house.client()
        client.send(post("old", version="1.0", stream=stream))
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(TEXT))
        if stream:
            await client.event("content_block_delta")
        visit.finish()
        visit.done()
        await client.gone()
        response = await client.response()
        assert "transfer-encoding" not in response.headers
        assert response.headers["connection"] == "close"
        if stream:
            assert response.kinds[-1] == "message_stop"
            assert response.text == "Hello"
        else:
            assert response.json["content"] == [{"type": "text", "text": "Hello"}]


@on_uvloop
async def test_connection_close_is_honoured() -> None:
    async with House() as house:
        client = await house.client()
        client.send(post(headers="Connection: close\r\n"))
        (await house.visit()).answer()
        response = await client.response()
        assert response.headers["connection"] == "close"
        await client.gone()


@on_uvloop
async def test_a_chunked_body() -> None:
    async with House() as house:
        client = await house.client()
        body = body_of("chunked")
        head = b"POST /v1/messages HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n"
        client.send(head + chunk(body[:10]) + chunk(body[10:]) + b"0\r\n\r\n")
        visit = await house.visit()
        assert visit.tag == "chunked"
        visit.answer()
        assert (await client.response()).status == 200


# --- What was not carried ---------------------------------------------------------------------------


@on_uvloop
async def test_antiphon_degraded_is_bounded() -> None:
    async with House() as house:
        client = await house.client()
        client.ask(top_k=5)
        (await house.visit()).answer()
        response = await client.response()
        assert response.headers["antiphon-degraded"] == "top_k"

        client.ask(stream=False, top_k=5)
        (await house.visit()).answer()
        assert (await client.response()).headers["antiphon-degraded"] == "top_k"

        client.ask()
        (await house.visit()).answer()
        assert "antiphon-degraded" not in (await client.response()).headers


@pytest.mark.parametrize(
    ("value", "refused"), [("true", True), ("True", True), ("false", False), ("", False)]
)
@on_uvloop
async def test_antiphon_strict(value, refused) -> None:
    async with House() as house:
        client = await house.client()
        client.send(post(headers=f"antiphon-strict: {value}\r\n", top_k=5))
        if refused:
            response = await client.response()
            assert is_error(response, 400, "invalid_request_error")
            assert response.json["error"]["message"].startswith("top_k:")
        else:
            (await house.visit()).answer()
            assert (await client.response()).status == 200


@on_uvloop
async def test_strict_as_a_setting() -> None:
    async with House(strict=True) as house:
        client = await house.ask(top_k=5)
        assert is_error(await client.response(), 400, "invalid_request_error")
        client.ask()
        (await house.visit()).answer()
        assert (await client.response()).status == 200


# --- Failures of the upstream -----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("status", "body", "headers", "seen", "kind"),
    [
        (400, b'{"error":{"message":"x"}}', "", 400, "invalid_request_error"),
        (401, b"{}", "", 502, "api_error"),
        (404, b'{"error":{"message":"no model"}}', "", 404, "not_found_error"),
        (429, b"{}", "retry-after: 3\r\n", 429, "rate_limit_error"),
        (500, b"<html>", "", 502, "api_error"),
        (503, b"busy", "retry-after: 3\r\n", 529, "overloaded_error"),
        (302, b"", "location: http://elsewhere.example/\r\n", 502, "api_error"),
    ],
)
@on_uvloop
async def test_a_status_of_the_upstream(status, body, headers, seen, kind, stream) -> None:
    async with House() as house:
        client = await house.ask(stream=stream)
        (await house.visit()).refuse(status, body, headers)
        response = await client.response()
        if seen == 502 and response.status == 500:
            seen = 500  # which of the two is the table's business (core.faults)
        assert is_error(response, seen, kind)
        if "retry-after" in headers:
            assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("stream", [True, False])
@on_uvloop
async def test_a_large_error_body_is_cut(stream) -> None:
    async with House() as house:
        client = await house.ask(stream=stream)
        visit = await house.visit()
        visit.raw(b"HTTP/1.1 500 No\r\ncontent-length: 100000000\r\n\r\n" + b"x" * 200_000)
        await visit.closed.wait()
        assert (await client.response()).status in (500, 502)


@pytest.mark.parametrize("stream", [True, False])
@on_both_loops
async def test_an_upstream_that_hangs_up(stream) -> None:
    for data in (b"", b"HTTP/1.1 200 OK\r\n", SSE_HEAD, SSE_HEAD + chunk(b": comment\n\n")):
        async with House() as house:
            client = await house.ask(stream=stream)
            visit = await house.visit()
            visit.raw(data)
            visit.cut()
            assert is_error(await client.response(), 502, "api_error")


@pytest.mark.parametrize("end", ["cut", "reset"])
@on_both_loops
async def test_an_upstream_that_breaks_off(end) -> None:
    async with House() as house:
        client = await house.ask()
        visit = await house.visit()
        visit.raw(SSE_HEAD + chunk(frame(tool('{"a": 1}', call_id="c", name="f"))))
        await client.event("content_block_delta")
        getattr(visit, end)()
        response = await client.response()
        assert response.kinds[-1] == "error"
        assert "content_block_stop" not in response.kinds
        record = await house.record()
        assert (record["cause"], record["error"]) == ("upstream", "api_error")


@on_uvloop
async def test_a_port_where_nobody_listens() -> None:
    async with House(upstream_url="http://127.0.0.1:9/v1") as house:
        client = await house.ask()
        assert is_error(await client.response(), 502, "api_error")


@on_uvloop
async def test_the_record_of_a_request_holds_no_content() -> None:
    async with House() as house:
        client = await house.ask("SECRET question")
        (await house.visit()).answer("SECRET answer")
        await client.response()
        record = await house.record()
        assert "SECRET" not in json.dumps(record)
        assert (record["status"], record["stop_reason"], record["phase"]) == (200, "end_turn", "streaming")
