"""`antiphon serve --workers` and `--coordination`: real processes, one set of slots."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from antiphon.config import Coordination, Limits, Settings, UpstreamSettings
from antiphon.core.seal import Sealer
from antiphon.server.backends import EmbeddedBackend
from antiphon.server.embedded import EmbeddedView, LocalView, RemoteServers
from antiphon.server.serve import gateway_for
from antiphon.server.workers import _reserved
from live_gateway import wait_until
from server.coordination.servers import BINARY, RedisServer
from server.held_upstream import HeldUpstream

PATIENCE = 30.0
# Warnings that belong to a worker's end, and to that of its streams.
ORDINARY = {"worker_restarts", "exchange"}


class Fleet:
    """An `antiphon serve` with its workers."""

    def __init__(self, process: subprocess.Popen, name: Path) -> None:
        self.process = process
        self._out, self._err = name.with_suffix(".out"), name.with_suffix(".err")
        self._connections: list[http.client.HTTPConnection] = []
        self.port = int(wait_until(self._announced, "address").group(1))

    def _announced(self) -> re.Match | None:
        assert self.process.poll() is None, self._err.read_text()
        return re.search(r"http://127.0.0.1:(\d+)", self._out.read_text())

    def workers(self) -> list[int]:
        """Their process ids."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def ask(self, model: str = "m") -> http.client.HTTPResponse:
        """A stream whose head has come, over a new connection."""
        body = {
            "model": model,
            "max_tokens": 9,
            "stream": True,
            "messages": [{"role": "user", "content": "x"}],
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        self._connections.append(connection)
        connection.request("POST", "/v1/messages", json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse()

    def metrics(self) -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        self._connections.append(connection)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return {
            name: float(value)
            for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        }

    def admin(self, method: str, path: str) -> tuple[int, dict]:
        """A new connection: whichever worker the kernel gives it to answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        self._connections.append(connection)
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def logged(self) -> list[dict]:
        return [json.loads(line) for line in self._err.read_text().splitlines()]

    def exit(self) -> int:
        """Its status. It must have complained about nothing but the ends of workers."""
        status = self.process.wait(PATIENCE)
        loud = [line for line in self.logged() if line["level"] not in ("info", "debug")]
        assert {line["event"] for line in loud} <= ORDINARY, loud
        return status

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        # Two signals: a test that failed may have left streams open.
        for _ in range(2):
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def upstream() -> Iterator[HeldUpstream]:
    with HeldUpstream() as upstream:
        yield upstream


@pytest.fixture
def serve(tmp_path, upstream) -> Iterator[Callable[..., Fleet]]:
    started: list[Fleet] = []

    def start(*options: str, **environment: str) -> Fleet:
        name = tmp_path / f"fleet-{len(started)}"
        arguments = ["serve", "--upstream", upstream.base_url, "--slots", "2", "--port", "0", "--log-json"]
        with name.with_suffix(".out").open("wb") as out, name.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "antiphon.cli", *arguments, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={
                    **os.environ,
                    "NO_COLOR": "1",
                    "COLUMNS": "200",
                    "ANTIPHON_TICK": "0.05",
                    **environment,
                },
                start_new_session=True,
            )
        started.append(Fleet(process, name))
        return started[-1]

    yield start
    for fleet in started:
        fleet.close()


@pytest.fixture
def redis_url(tmp_path) -> Iterator[str]:
    if BINARY is None:
        pytest.skip("shared slots: no valkey-server or redis-server")
    server = RedisServer(tmp_path)
    server.start()
    yield server.url
    server.close()


class Clients:
    """Streams that are read to their end, each in a thread."""

    def __init__(self, *fleets: Fleet, count: int, model: str = "m") -> None:
        self.ends: list[str] = []
        self._model = model
        self._threads = [
            threading.Thread(target=self._read, args=(fleets[number % len(fleets)],))
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, fleet: Fleet) -> None:
        try:
            self.ends.append(last_event(fleet.ask(self._model).read()))
        except (OSError, http.client.HTTPException) as error:
            self.ends.append(type(error).__name__)

    def join(self) -> list[str]:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return self.ends


def last_event(body: bytes) -> str:
    return re.findall(r"^event: (\S+)", body.decode(), re.MULTILINE)[-1]


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def owner_of(port: int, upstream: HeldUpstream, pids: list[int]) -> int:
    """Which process has the connection from that port to the upstream."""
    wanted = (port, int(upstream.base_url.split(":")[2].removesuffix("/v1")))
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    [inode] = [row[9] for row in rows if (port_in(row[1]), port_in(row[2])) == wanted]
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) == f"socket:[{inode}]":
                    return pid
    raise AssertionError(f"nobody has port {port}")


def port_in(address: str) -> int:
    return int(address.partition(":")[2], 16)


def all_of(upstream: HeldUpstream, clients: Clients, count: int) -> None:
    """Let them through two at a time: those that are not inside must wait."""
    for _ in range(count // 2):
        wait_until(lambda: len(upstream.inside()) == 2, "two at the upstream")
        upstream.let_go(1)
        wait_until(lambda: len(upstream.inside()) == 2 or len(clients.ends) == count - 1, "the next one")
        upstream.let_go(1)


def test_workers_share_the_slots_and_their_figures(serve, upstream) -> None:
    fleet = serve("--workers", "3")
    assert len(fleet.workers()) == 3
    clients = Clients(fleet, count=12)
    all_of(upstream, clients, 12)
    assert clients.join() == ["message_stop"] * 12
    assert upstream.peak == 2
    served = {line["worker"] for line in fleet.logged() if line["event"] == "exchange"}
    assert len(served) > 1
    finished = (
        'antiphon_requests_total{model="other",outcome="finished",surface="messages",upstream="upstream"}'
    )
    wait_until(lambda: fleet.metrics().get(finished) == 12, "sum of all workers")
    assert fleet.metrics()['antiphon_slots_limit{upstream="upstream"}'] == 2
    free = 'antiphon_slots{state="free",upstream="upstream"}'
    wait_until(lambda: fleet.metrics()[free] == 2, "everybody's heartbeat")


def test_every_worker_shows_and_ends_what_all_of_them_hold(serve, upstream) -> None:
    fleet = serve("--workers", "3")
    clients = Clients(fleet, count=3)
    wait_until(lambda: len(upstream.inside()) == 2, "two at the upstream")

    def shown() -> dict:
        return fleet.admin("GET", "/admin/slots")[1]["upstream"]

    wait_until(lambda: len(shown()["queue"]) == 1, "one that waits")
    for _ in range(8):  # whoever answers
        told = shown()
        assert (len(told["leases"]), told["held"], told["slots"]) == (2, 2, 2)
    doomed, before = shown()["leases"][0]["lease"], set(upstream.inside())
    assert fleet.admin("DELETE", f"/admin/slots/{doomed}") == (200, {"cancelled": doomed})
    assert fleet.admin("DELETE", f"/admin/slots/{doomed}")[0] == 404
    wait_until(lambda: len(clients.ends) == 1, "its honest end")
    # The upstream's own look at the closed connection comes in its time: until then both are there.
    wait_until(lambda: len(set(upstream.inside()) - before) == 1, "the one that waited, in its place")
    wait_until(lambda: len(upstream.inside()) == 2, "end of the cancelled one")
    upstream.let_go(1)
    wait_until(lambda: len(clients.ends) == 2, "the first of them")
    upstream.let_go(1)
    assert sorted(clients.join()) == ["error", "message_stop", "message_stop"]


def test_a_killed_worker_costs_its_own_streams_and_nothing_else(serve, upstream) -> None:
    fleet = serve("--workers", "3")
    before = fleet.workers()
    victims = Clients(fleet, count=1)
    wait_until(lambda: len(upstream.inside()) == 1, "stream at the upstream")
    victim = owner_of(upstream.inside()[0], upstream, before)
    os.kill(victim, signal.SIGKILL)
    assert victims.join() == ["IncompleteRead"]
    wait_until(lambda: gone([victim]), "end of the killed one")
    # Its slot is free with its socket; the upstream's own look at the closed connection comes in its time.
    wait_until(lambda: not upstream.inside(), "end of its stream at the upstream")
    clients = Clients(fleet, count=4)
    all_of(upstream, clients, 4)  # two at a time: its slot has come back
    assert clients.join() == ["message_stop"] * 4
    assert upstream.peak == 2
    wait_until(lambda: len(set(fleet.workers()) - {victim}) == 3, "its successor")
    assert [line["status"] for line in fleet.logged() if line["event"] == "worker_restarts"] == [-9]


def test_a_worker_that_stood_still_too_long_ends_its_streams_honestly(serve, upstream, redis_url) -> None:
    fleet = serve("--workers", "3", "--slots", "1", "--coordination", redis_url)
    first = Clients(fleet, count=1)
    wait_until(lambda: len(upstream.inside()) == 1, "stream at the upstream")
    [mine] = upstream.inside()
    still = owner_of(mine, upstream, fleet.workers())
    os.kill(still, signal.SIGSTOP)
    try:
        others = Clients(fleet, count=10)  # some of them reach a worker that runs
        wait_until(lambda: len(upstream.inside()) == 2, "slot that was taken back")
    finally:
        os.kill(still, signal.SIGCONT)
    assert first.join() == ["error"]
    wait_until(lambda: mine not in upstream.inside(), "its end at the upstream")
    upstream.let_go(10)
    assert others.join() == ["message_stop"] * 10
    wait_until(lambda: len(causes(fleet)) == 11, "record of each")
    assert sorted(causes(fleet)) == ["finished"] * 10 + ["lost"]


def causes(fleet: Fleet) -> list[str]:
    return [line["cause"] for line in fleet.logged() if line["event"] == "exchange"]


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
def test_the_first_signal_drains_every_worker(serve, upstream, how) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        check_drain(serve("--workers", "3", TMPDIR=folder), upstream, how)
        assert os.listdir(folder) == []


def check_drain(fleet: Fleet, upstream: HeldUpstream, how: str) -> None:
    workers = fleet.workers()
    clients = Clients(fleet, count=2)
    wait_until(lambda: len(upstream.inside()) == 2, "two streams")
    if how == "SIGTERM":
        fleet.process.send_signal(signal.SIGTERM)
    else:
        os.killpg(fleet.process.pid, signal.SIGINT)  # a terminal's: to the whole group
    wait_until(lambda: not fleet.listens(), "closed listeners")
    assert len(upstream.inside()) == 2
    upstream.let_go(2)
    assert clients.join() == ["message_stop"] * 2
    assert fleet.exit() == 0
    assert gone(workers)


def test_a_second_signal_stops_every_worker_at_once(serve, upstream) -> None:
    fleet = serve("--workers", "2")
    workers = fleet.workers()
    clients = Clients(fleet, count=2)
    wait_until(lambda: len(upstream.inside()) == 2, "two streams")
    fleet.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not fleet.listens(), "closed listeners")
    fleet.process.send_signal(signal.SIGTERM)
    assert clients.join() == ["error"] * 2
    assert fleet.exit() == 0
    assert gone(workers)


def test_workers_end_when_their_supervisor_was_killed(serve, upstream) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # nobody removes what the workers shared
        fleet = serve("--workers", "2", TMPDIR=folder)
        workers = fleet.workers()
        fleet.process.kill()
        fleet.process.wait()
        wait_until(lambda: not fleet.listens(), "closed listeners")
        for pid in workers:
            wait_until(lambda pid=pid: is_over(pid), "end of the workers")


def is_over(pid: int) -> bool:
    """Ended; in a container nobody may have taken notice of it yet."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_two_gateways_share_the_slots_through_redis(serve, upstream, redis_url) -> None:
    first = serve("--coordination", redis_url)
    second = serve("--workers", "2", ANTIPHON_COORDINATION=redis_url)
    clients = Clients(first, second, count=8)
    all_of(upstream, clients, 8)
    assert clients.join() == ["message_stop"] * 8
    assert upstream.peak == 2
    for fleet in (first, second):
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.exit() == 0
        assert causes(fleet)


def test_without_the_server_and_closed_nobody_is_admitted(serve, upstream) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        where = f"redis://127.0.0.1:{taken.getsockname()[1]}/0"
        fleet = serve("--coordination", where, "--coordination-policy", "closed")
        answer = fleet.ask()
    assert answer.status == 529
    assert upstream.peak == 0


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "antiphon.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_workers_do_not_share_a_port_with_those_of_another_gateway(serve, upstream) -> None:
    port = str(serve("--workers", "2").port)
    done = run("--upstream", upstream.base_url, "--workers", "2", "--port", port)
    assert done.returncode == 2
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--coordination", "http://host"], "must begin with"),
        (["--coordination", "redis://:secret@host:port/0"], "coordination: this URL cannot be read"),
        (["--coordination", "redis://user:sec/ret@host"], "coordination: this URL cannot be read"),
        (["--coordination", "local:/"], "belong to this user"),
        (["--coordination-policy", "open"], "local_share or closed"),
        (["--workers", "0"], "--workers"),
    ],
)
def test_what_cannot_be_is_refused_in_plain_words(upstream, arguments, said) -> None:
    done = run("--upstream", upstream.base_url, *arguments)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "sec" not in done.stderr


EMBEDDED = """
import sys
from antiphon.config import Settings
from antiphon.core.seal import Sealer
from antiphon.server.embedded import EmbeddedServers
from antiphon.server.workers import run_workers
servers = EmbeddedServers(model_file=None, reason="not wanted")
servers.stub_log = None
settings = Settings(port=0, workers=2, log_json=True)
started = lambda port: print(f"http://127.0.0.1:{port}", flush=True)
sys.exit(run_workers(settings, Sealer(bytes(32)), servers, on_started=started))
"""


def test_the_embedded_servers_run_once_for_all_workers(tmp_path) -> None:
    name = tmp_path / "embedded"
    with name.with_suffix(".out").open("wb") as out, name.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen([sys.executable, "-c", EMBEDDED], stdout=out, stderr=err)
    fleet = Fleet(process, name)
    try:
        assert len(fleet.workers()) == 2
        clients = Clients(fleet, count=6, model="reasoning")
        assert clients.join() == ["message_stop"] * 6
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        fleet.close()


async def test_workers_hear_how_the_embedded_model_is(tmp_path) -> None:
    local = LocalView("http://127.0.0.1:9/v1", "key", slots=4, window=4096, state="starting", retry_after=2)
    servers = RemoteServers(EmbeddedView("http://127.0.0.1:8/v1", local))
    backend = EmbeddedBackend(Limits(), servers)
    await backend.start()
    try:
        upstream = backend.upstreams["local"]
        assert upstream.refusal().status == 529
        servers.update(EmbeddedView("", replace(local, state="ready", slots=6)))
        assert upstream.refusal() is None
        assert upstream.slots.statistics().slots == 6
        servers.update(EmbeddedView("", replace(local, state="failed")))
        assert upstream.refusal().retry_after == "30"
    finally:
        await backend.aclose()


def test_embedded_upstreams_are_not_shared_with_other_gateways() -> None:
    done = run("--coordination", "redis://localhost")
    assert done.returncode == 2
    assert "no upstreams to share" in done.stderr


def test_a_name_is_listened_on_at_all_its_addresses_with_one_port() -> None:
    with _reserved("localhost", 0) as addresses:
        assert len({address.port for address in addresses}) == 1
        assert addresses[0].port > 0
        for address in addresses:
            address.bind().close()  # a worker may


async def test_a_lost_lease_ends_its_exchange_and_no_other(tmp_path) -> None:
    one = UpstreamSettings(name="u", base_url="http://127.0.0.1:9/v1")
    coordination = Coordination(where=f"local:{tmp_path / 'slots'}")
    settings = Settings(upstreams=(one,), coordination=coordination, limits=Limits())
    gateway = gateway_for(settings, Sealer(bytes(32)))
    lost: list[str] = []
    for name in ("a", "b"):
        gateway.live.add(FakeExchange(name, lost))
    async with gateway.running():
        [upstream] = gateway.backend.upstreams.values()
        leases: list = []
        upstream.slots.request("b", leases.append)
        async with asyncio.timeout(PATIENCE):
            while not leases:
                await asyncio.sleep(0.01)
        upstream.slots._lost(leases[0])
        assert lost == ["b"]


class FakeExchange:
    def __init__(self, request_id: str, lost: list[str]) -> None:
        self.job = SimpleNamespace(request_id=request_id)
        self._lost = lost

    def on_lease_lost(self) -> None:
        self._lost.append(self.job.request_id)

    def close(self, cause: str) -> None:
        pass

    def tick(self, now: float) -> None:
        pass
