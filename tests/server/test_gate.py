"""Who may ask: Host, Origin and content-type, as tables."""

from __future__ import annotations

import pytest

from antiphon.core import own_faults
from antiphon.server.gate import refusal
from server.harness import House, on_uvloop

JSON = (b"content-type", b"application/json")


def host(value: bytes) -> tuple[bytes, bytes]:
    return b"host", value


@pytest.mark.parametrize(
    "value",
    [
        b"localhost",
        b"LocalHost:8080",
        b"127.0.0.1",
        b"127.0.0.1:8080",
        b"127.8.9.10",
        b"[::1]",
        b"[::1]:8080",
    ],
)
def test_names_of_this_machine(value) -> None:
    assert refusal("GET", [host(value)]) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"example.com",
        b"example.com:8080",
        b"localhost.example.com",
        b"127.0.0.1.example.com",
        b"127.0.0.1@example.com",
        b"127.1",
        b"2130706433",
        b"0.0.0.0",
        b"192.168.1.5",
        b"[::]",
        b"[fe80::1]",
        b"::1",
        b"[::1",
        b"\xff\xfe",
    ],
)
def test_other_names_are_foreign(value) -> None:
    if value == b"[::1":  # a bracket that is not closed still names this machine
        assert refusal("GET", [host(value)]) is None
        return
    assert refusal("GET", [host(value)]) is own_faults.FOREIGN_HOST


def test_a_request_without_a_host_or_with_two() -> None:
    assert refusal("GET", []) is own_faults.FOREIGN_HOST
    two = [host(b"localhost"), host(b"example.com")]
    assert refusal("GET", two) is own_faults.FOREIGN_HOST
    assert refusal("GET", two[::-1]) is own_faults.FOREIGN_HOST


@pytest.mark.parametrize("origin", [b"http://evil.example", b"null", b"", b"http://localhost:8080"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_any_origin_is_a_web_page(method, origin) -> None:
    headers = [host(b"localhost"), JSON, (b"origin", origin)]
    assert refusal(method, headers) is own_faults.FOREIGN_PAGE


@pytest.mark.parametrize(
    ("content_type", "allowed"),
    [
        (b"application/json", True),
        (b"Application/JSON", True),
        (b"application/json; charset=utf-8", True),
        (b" application/json ;x=y", True),
        (None, False),
        (b"", False),
        (b"text/plain", False),
        (b"text/plain; application/json", False),
        (b"application/x-www-form-urlencoded", False),
        (b"multipart/form-data; boundary=x", False),
        (b"application/jsonp", False),
        (b"application/json, text/plain", False),
    ],
)
def test_a_post_is_json(content_type, allowed) -> None:
    headers = [host(b"localhost")]
    if content_type is not None:
        headers.append((b"content-type", content_type))
    assert (refusal("POST", headers) is None) is allowed
    assert refusal("GET", headers) is None


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ("Host: example.com\r\nContent-Type: application/json\r\n", 403, "permission_error"),
        ("Host: localhost\r\nOrigin: null\r\nContent-Type: application/json\r\n", 403, "permission_error"),
        ("Host: localhost\r\nContent-Type: text/plain\r\n", 415, "invalid_request_error"),
        ("Host: localhost\r\n", 415, "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/llm/v1/messages", "/nowhere"])
@on_uvloop
async def test_refusals_have_the_shape_of_every_error(path, headers, status, kind) -> None:
    async with House() as house:
        client = await house.client()
        client.send(f"POST {path} HTTP/1.1\r\n{headers}Content-Length: 2\r\n\r\n{{}}".encode())
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (status, kind)
        assert response.headers["request-id"] == response.json["request_id"]
        assert response.json["type"] == "error"
        assert house.upstream.visits == []
