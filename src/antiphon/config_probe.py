"""Which inference servers there are: a look at their usual ports on this machine, or at one that is named.

Owns the list of ports and the bound of the looking. What a server is and how many slots it has, is
recognition's to say, as it is when the gateway starts. Unless it is named nothing but this machine is asked,
and nothing is sent that costs a server more than a list.

    await find_servers(look)    -> [Found("vllm", "http://127.0.0.1:8000/v1", version="0.33.0", ...)]
    await find_server(look, "http://10.0.0.9:8080/v1", None)    -> Found("llamacpp", ..., slots=4)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import aiohttp
import msgspec
from msgspec import Struct

from antiphon.core.dialects.address import below, key_headers
from antiphon.core.dialects.quirks import GENERIC
from antiphon.core.recognise import hosted_kind
from antiphon.server.upstream_dial import header_value

TIME_LIMIT: Final = 3.0
"""Seconds for the looks at all ports together: longer than recognition takes where a server leaves a question
unanswered, so that what it did answer counts."""

NAMED_TIME_LIMIT: Final = 6.0
"""Seconds for the look at a server that is named: it may be far."""

PORTS: Final = (
    (8000, "vllm"),
    (30000, "sglang"),
    (8080, "llamacpp"),
    (8081, "llamacpp"),
    (11434, "ollama"),
    (1234, "lmstudio"),
)
"""The usual ports, and the server that has each by default: for one that gives no other sign."""

_LARGEST: Final = 1024 * 1024  # bytes of a list of models
_LISTED: Final = 32  # models of one server that are kept


class Recognised(Protocol):
    """What a look comes back with, as core.recognise has it."""

    @property
    def kind(self) -> str: ...
    @property
    def version(self) -> str | None: ...
    @property
    def slots(self) -> int | None: ...


class Look(Protocol):
    """Asks a server which one it is; `server.recognition.look`."""

    async def __call__(
        self, session: aiohttp.ClientSession, base_url: str, api_key: str | None
    ) -> Recognised: ...


class Found(Struct, frozen=True):
    """A server that answered. `models` are the names that it lists; `slots` what it tells of itself.

    `is_guess`: it gave no sign of its kind, which is the one that usually has its port then.
    """

    kind: str
    base_url: str
    version: str | None = None
    slots: int | None = None
    models: tuple[str, ...] = ()
    is_guess: bool = False


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model] | None  # Ollama has null for an empty list
    has_more: bool | None = None  # only lists for Messages clients have it: a gateway, perhaps this one


async def find_servers(
    look: Look, ports: Sequence[tuple[int, str]] = PORTS, *, time_limit: float = TIME_LIMIT
) -> list[Found]:
    """The servers on these ports of this machine, in their order. Never raises for what one says.

    Without a list of models a port is no inference server: others listen on 8000 and 8080 too.
    """
    async with _session() as session:
        deadline = asyncio.get_running_loop().time() + time_limit
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    _look_at(look, session, deadline, f"http://127.0.0.1:{port}/v1", None, usual)
                )
                for port, usual in ports
            ]
    found = [task.result() for task in tasks]
    return [each for each in found if each is not None]


async def find_server(
    look: Look, base_url: str, api_key: str | None, *, time_limit: float = NAMED_TIME_LIMIT
) -> Found | None:
    """The server behind a base URL; None where none lists its models in time. Never raises for what it says.

    A hosted API is known by its host, and not asked. The key goes nowhere but to that address.
    """
    if (hosted := hosted_kind(base_url)) is not None:
        return Found(hosted, base_url)
    if api_key is not None:
        try:
            header_value("key", api_key)
        except ValueError:
            return None  # nobody could be asked with it, by the gateway neither: loading the file says so
    async with _session() as session:
        deadline = asyncio.get_running_loop().time() + time_limit
        return await _look_at(look, session, deadline, base_url, api_key, None)


def _session() -> aiohttp.ClientSession:
    # No proxy and no cookies: the gateway has neither.
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())


async def _look_at(
    look: Look,
    session: aiohttp.ClientSession,
    deadline: float,
    base_url: str,
    api_key: str | None,
    usual: str | None,
) -> Found | None:
    """`usual`: the kind that a server has which gives no sign of it."""
    models: tuple[str, ...] | None = None
    seen: Recognised | None = None
    try:
        async with asyncio.timeout_at(deadline):
            models = await _models(session, base_url, api_key)
            if models is not None:
                seen = await look(session, base_url, api_key)
    except TimeoutError:
        pass  # what is known by now is all there is
    if models is None:
        return None
    if seen is None or seen.kind == GENERIC.name:
        return Found(usual or GENERIC.name, base_url, models=models, is_guess=usual is not None)
    return Found(seen.kind, base_url, seen.version, seen.slots, models)


async def _models(
    session: aiohttp.ClientSession, base_url: str, api_key: str | None
) -> tuple[str, ...] | None:
    """The models that a server lists; None where that is no list of models, or wants a key."""
    try:
        headers = key_headers("bearer", api_key)  # what one runs oneself takes no other
        url = below(base_url, "/models")
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                return None
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > _LARGEST:
                    return None
            listed = msgspec.json.decode(body, type=_Models)
    except (aiohttp.ClientError, OSError, ValueError, RecursionError):
        return None  # msgspec's errors are ValueErrors
    if listed.has_more is not None:
        return None
    return tuple(model.id for model in (listed.data or [])[:_LISTED])
