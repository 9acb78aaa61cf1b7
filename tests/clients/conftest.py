"""Gateways for the client suites: one with the simulator behind it, one with an upstream that records."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from clients import sdk_driver
from live_gateway import GatewayProcess, SimulatorProcess, gateway, simulator
from recording_upstream import RecordingUpstream


@dataclass(frozen=True)
class Scripted:
    gateway: GatewayProcess
    simulator: SimulatorProcess

    @property
    def base_url(self) -> str:
        return self.gateway.base_url


@dataclass(frozen=True)
class Recorded:
    gateway: GatewayProcess
    upstream: RecordingUpstream

    @property
    def base_url(self) -> str:
        return self.gateway.base_url


@pytest.fixture(scope="session")
def scripted(tmp_path_factory):
    """A gateway in front of the simulator."""
    folder = tmp_path_factory.mktemp("scripted")
    with simulator(folder) as upstream, gateway(folder, upstream.base_url) as antiphon:
        yield Scripted(antiphon, upstream)


@pytest.fixture(scope="session")
def _recording(tmp_path_factory):
    with (
        RecordingUpstream() as upstream,
        gateway(tmp_path_factory.mktemp("recorded"), upstream.base_url) as antiphon,
    ):
        yield Recorded(antiphon, upstream)


@pytest.fixture
def recorded(_recording):
    """A gateway in front of an upstream that keeps what it is sent and answers what the test says."""
    _recording.upstream.reset()
    return _recording


@pytest.fixture(scope="session", params=sdk_driver.NAMES)
def sdk(request):
    """One official SDK in a process of its own."""
    if reason := sdk_driver.missing(request.param):
        pytest.skip(reason)
    with sdk_driver.Sdk(request.param) as driver:
        yield driver
