"""Requests to the server under examination: few, small, bounded, and none of them raises.

Owns the HTTP of the probes. A reply that is late, cut off or nonsense is a `Reply` that says so.

    reply = await asker.post("/chat/completions", {"model": "m", "messages": [...]})
    reply.status, reply.json, reply.failure
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import aiohttp
from msgspec import Struct, field

MOST_REQUESTS: Final = 80
MOST_BYTES: Final = 4 * 1024 * 1024  # of one reply's body
_VERSIONS: Final = ("/v1", "/v1beta", "/v2", "/v3", "/v4")


class Reply(Struct):
    """`status` is None if no head came. `failure` is "" or what went wrong. Times are in seconds.

    `reads` counts the pieces in which the body came.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    failure: str = ""
    seconds: float = 0.0
    first_byte: float | None = None
    reads: int = 0

    @property
    def json(self) -> Any:
        """The decoded body, None if it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def members(self) -> dict[str, Any]:
        """The decoded body if it is an object, else an empty one."""
        decoded = self.json
        return decoded if isinstance(decoded, dict) else {}

    @property
    def ok(self) -> bool:
        """A whole answer with status 200."""
        return self.status == 200 and not self.failure

    @property
    def said(self) -> str:
        """Status or failure, for a sentence."""
        return f"HTTP {self.status}" if self.status is not None and not self.failure else self.failure


class Asker:
    """Asks one server, an async context manager. `base_url` ends where `/chat/completions` begins.

    `timeout` and `budget` are seconds, for one request and for all of them; after the budget or
    `MOST_REQUESTS` nothing more is sent, and every reply says so.
    """

    def __init__(
        self, base_url: str, *, key: str | None = None, timeout: float = 30.0, budget: float = 180.0
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/chat/completions")
        self.requests = 0
        self.timeout = timeout
        self._budget = budget
        self._deadline = 0.0
        self._headers = {"accept-encoding": "identity"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

    @property
    def root_url(self) -> str:
        """The server without the version in its path: where /metrics and /tokenize are."""
        for version in _VERSIONS:
            if self.base_url.endswith(version):
                return self.base_url.removesuffix(version)
        return self.base_url

    async def __aenter__(self) -> Self:
        self._deadline = asyncio.get_running_loop().time() + self._budget
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            auto_decompress=False,
            # A new connection each time: servers close idle ones just when the next request comes.
            connector=aiohttp.TCPConnector(force_close=True),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, *, at_root: bool = False) -> Reply:
        """GET below the base URL, or below the root."""
        return await self._ask("GET", (self.root_url if at_root else self.base_url) + path, None)

    async def post(self, path: str, body: object, *, at_root: bool = False) -> Reply:
        """POST JSON below the base URL, or below the root; the whole reply, streams too."""
        return await self._ask("POST", (self.root_url if at_root else self.base_url) + path, body)

    async def chat(self, body: object) -> Reply:
        """POST to /chat/completions."""
        return await self.post("/chat/completions", body)

    def spent(self) -> str:
        """Why nothing more is asked, "" while it may be."""
        if self.requests >= MOST_REQUESTS:
            return f"not asked: {MOST_REQUESTS} requests were sent before"
        if asyncio.get_running_loop().time() >= self._deadline:
            return f"not asked: the {self._budget:g} s for all probes are over"
        return ""

    @asynccontextmanager
    async def opened(self, body: object) -> AsyncIterator[aiohttp.ClientResponse]:
        """A chat stream that the caller reads and leaves; leaving closes the connection at once.

        Raises aiohttp.ClientError, TimeoutError or OSError, and TimeoutError when nothing may be asked.
        """
        if reason := self.spent():
            raise TimeoutError(reason)
        self.requests += 1
        # A client of its own: closing it closes the socket, and no pool keeps it for another request.
        async with (
            aiohttp.ClientSession(headers=self._headers, auto_decompress=False) as session,
            session.post(
                self.base_url + "/chat/completions", json=body, timeout=self._limits(), allow_redirects=False
            ) as response,
        ):
            try:
                yield response
            finally:
                response.close()

    async def _ask(self, method: str, url: str, body: object) -> Reply:
        reply = Reply(failure=self.spent())
        if reply.failure or self._session is None:
            return reply
        self.requests += 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"content-type": "application/json"}
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, timeout=self._limits(), allow_redirects=False
            ) as response:
                reply.status = response.status
                reply.headers = {name.lower(): value for name, value in response.headers.items()}
                async for piece in response.content.iter_any():
                    reply.first_byte = reply.first_byte or loop.time() - began
                    reply.body += piece
                    reply.reads += 1
                    if len(reply.body) > MOST_BYTES:
                        reply.failure = f"more than {MOST_BYTES >> 20} MiB came"
                        break
        except TimeoutError:
            reply.failure = f"no end after {self.timeout:g} s"
        except aiohttp.ClientPayloadError:
            reply.failure = "the answer was cut off"
        except OSError as error:  # before ClientError: a refused connection is both
            reply.failure = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
        except (aiohttp.ClientError, ValueError) as error:
            reply.failure = f"{type(error).__name__}: {error}"
        reply.seconds = loop.time() - began
        return reply

    def _limits(self) -> aiohttp.ClientTimeout:
        left = max(0.1, self._deadline - asyncio.get_running_loop().time())
        return aiohttp.ClientTimeout(total=min(self.timeout, left), connect=min(10.0, self.timeout))
