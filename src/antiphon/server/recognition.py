"""Asks a server which one it is, within two seconds and without ever failing.

Owns the asking: a handful of GETs at once, each bounded, no redirect followed. What the answers mean is
`core.recognise`'s. Nothing of an answer but version and slots comes out of here, and the key goes nowhere
but to the server's own address.

    await look(session, "http://127.0.0.1:8000/v1", None)   -> Recognition("vllm", "0.33.0")
    await look(session, "https://api.groq.com/openai/v1", key)   -> Recognition("groq")     asks nobody
    await look(session, "http://127.0.0.1:9/v1", None)      -> Recognition("generic")
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import structs

from antiphon.core.dialects.address import below, key_header
from antiphon.core.recognise import (
    ROUTES,
    Evidence,
    Recognition,
    hosted_kind,
    owners_of,
    recognise,
    root_url,
)

TIME_LIMIT: Final = 2.0  # seconds for all of it
LARGEST: Final = 64 * 1024  # bytes of one answer; what is longer is not read to its end, and no sign
_MODELS: Final = "/models"


async def look(session: aiohttp.ClientSession, base_url: str, api_key: str | None) -> Recognition:
    """The server behind a base URL; `generic` if it gives no sign in time.

    Never raises for what a server says or does not say. A cancellation leaves no request behind.
    """
    if hosted_kind(base_url) is not None:
        return recognise(Evidence(base_url=base_url))
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    if api_key:
        # A server that one runs oneself: they all take this form.
        name, value = key_header("bearer", api_key)
        headers[name] = value
    asker = _Asker(session, headers)
    urls = {_MODELS: below(base_url, _MODELS)} | {route: root_url(base_url) + route for route in ROUTES}
    try:
        async with asyncio.timeout(TIME_LIMIT), asyncio.TaskGroup() as group:
            for route, url in urls.items():
                group.create_task(asker.ask(route, url))
    except TimeoutError:
        pass  # what came by now is all the evidence there is
    owners = owners_of(asker.answers.pop(_MODELS, None))
    found = recognise(
        Evidence(
            base_url=base_url,
            owners=owners,
            servers=tuple(dict.fromkeys(asker.servers)),
            answers=asker.answers,
        )
    )
    if api_key and found.version is not None and api_key in found.version:
        return structs.replace(found, version=None)  # it gave us our key back, and a version is shown
    return found


class _Asker:
    """Keeps what came: decoded answers by route, and every `server` header."""

    def __init__(self, session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        self.answers: dict[str, Any] = {}
        self.servers: list[str] = []
        self._session = session
        self._headers = headers

    async def ask(self, route: str, url: str) -> None:
        """One GET. An answer that is late, refused, too large or no JSON leaves nothing."""
        try:
            async with self._session.get(url, headers=self._headers, allow_redirects=False) as response:
                server = response.headers.get("server")
                if server is not None:
                    self.servers.append(server)
                if response.status == 200:
                    self.answers[route] = msgspec.json.decode(await _beginning(response))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError):
            return  # no sign; msgspec's errors are ValueErrors


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """The body up to a little more than `LARGEST`: cut JSON is none."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > LARGEST:
            raise ValueError("too large")
    return bytes(body)
