"""A request's body, from any ASGI server: as far as it may be long, whatever its headers say."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.server.reading import TooLargeError, read_body

LIMIT = 10


async def read(*pieces: bytes, length: bytes | None = None, leaves: bool = False) -> list[bytes] | None:
    """What is read of these pieces; `leaves`: the client does before the end."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": leaves or place + 1 < len(pieces)}
        for place, piece in enumerate(pieces)
    ]
    messages.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    headers = [] if length is None else [(b"content-length", length)]
    return await read_body({"headers": headers}, receive, LIMIT)


@pytest.mark.parametrize("length", [None, b"10"])
async def test_a_body_as_long_as_it_may_be(length) -> None:
    assert await read(b"12345", b"", b"67890", length=length) == [b"12345", b"", b"67890"]


@pytest.mark.parametrize("length", [None, b"10", b"1", b"", b"+5", b"5, 5", b"-1", b"11", b"9" * 5000])
@pytest.mark.parametrize("pieces", [(b"12345", b"678901"), (b"12345678901",)])
async def test_one_byte_more(pieces, length) -> None:
    with pytest.raises(TooLargeError):
        await read(*pieces, length=length)


async def test_what_says_that_it_is_too_long_is_not_read() -> None:
    with pytest.raises(TooLargeError):
        await read(b"12345", length=b"11")


async def test_a_client_that_leaves() -> None:
    assert await read(b"12345", length=b"10", leaves=True) is None
