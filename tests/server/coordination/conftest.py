from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from server.coordination.fleet import Fleet
from server.coordination.servers import BINARY, RedisServer


@pytest.fixture(scope="session")
def _redis(tmp_path_factory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
def redis_server(_redis) -> Iterator[RedisServer]:
    """A running server without data."""
    if BINARY is None:
        pytest.skip("shared slots: no valkey-server or redis-server")
    _redis.close()
    _redis.start()
    yield _redis


@pytest.fixture(params=["redis", "local"])
def where(request, tmp_path) -> str:
    """What a coordinator is opened with, for each kind."""
    if request.param == "local":
        return f"local:{tmp_path / 'slots'}"
    return request.getfixturevalue("redis_server").url


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.aclose()
