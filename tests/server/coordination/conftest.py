from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from server.coordination.fleet import Fleet
from server.coordination.servers import BINARIES, RedisServer

# Each server that is installed; where there is none, its tests are named and left out.
NAMES = list(BINARIES) or ["redis"]


@pytest.fixture(scope="session")
def _servers(tmp_path_factory) -> Iterator[dict[str, RedisServer]]:
    servers = {
        name: RedisServer(tmp_path_factory.mktemp(name), binary=binary) for name, binary in BINARIES.items()
    }
    yield servers
    for server in servers.values():
        server.close()


def _fresh(name: str, servers: dict[str, RedisServer]) -> RedisServer:
    if name not in servers:
        pytest.skip("shared slots: no valkey-server or redis-server")
    servers[name].close()
    servers[name].start()
    return servers[name]


@pytest.fixture(params=NAMES)
def redis_server(request, _servers) -> RedisServer:
    """A running server without data: Valkey and Redis, one after the other."""
    return _fresh(request.param, _servers)


@pytest.fixture(params=[*NAMES, "local"])
def where(request, tmp_path, _servers) -> str:
    """What a coordinator is opened with, for each kind and server."""
    if request.param == "local":
        return f"local:{tmp_path / 'slots'}"
    return _fresh(request.param, _servers).url


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.aclose()
