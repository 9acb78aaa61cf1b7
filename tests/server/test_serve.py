"""The process: signals, the drain, the exit. Real processes, with the simulator as upstream."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon.server.serve import raise_descriptor_limit
from live_gateway import simulator, wait_until

PATIENCE = 20.0


class Gateway:
    def __init__(self, process: subprocess.Popen, folder: Path) -> None:
        self.process = process
        self.out, self.err = folder / "gw.out", folder / "gw.err"
        found = wait_until(lambda: re.search(r"http://127.0.0.1:(\d+)", self.out.read_text()), "address")
        self.port = int(found.group(1))
        self.connections: list[http.client.HTTPConnection] = []

    def post(self, *, max_tokens: int, stream: bool = True) -> http.client.HTTPResponse:
        """A response whose head has come; the body is still coming."""
        connection = self.connect()
        body = {
            "model": "m",
            "max_tokens": max_tokens,
            "stream": stream,
            "messages": [{"role": "user", "content": "long"}],
        }
        connection.request("POST", "/v1/messages", json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse()

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        self.connections.append(connection)
        return connection

    def listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit(self) -> int:
        """Its status; it must not have complained, and must have ended by itself."""
        status = self.process.wait(PATIENCE)
        errors = self.err.read_text()
        assert "Traceback" not in errors, errors
        told = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
        # What a shutdown cuts off is a warning.
        loud = [line for line in told if line.get("cause") != "shutdown"]
        assert {line["level"] for line in loud} <= {"info", "debug"}, errors
        return status


@pytest.fixture(scope="module")
def upstream(tmp_path_factory) -> Iterator[str]:
    with simulator(tmp_path_factory.mktemp("simulator"), "--token-interval", "20") as process:
        yield process.base_url


@pytest.fixture
def start(tmp_path, upstream) -> Iterator[Callable[..., Gateway]]:
    started: list[Gateway] = []

    def start_one(**limits: str) -> Gateway:
        environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "ANTIPHON_TICK": "0.02", **limits}
        arguments = ["serve", "--upstream", upstream, "--port", "0", "--log-json", "--log-level", "debug"]
        with (tmp_path / "gw.out").open("wb") as out, (tmp_path / "gw.err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "antiphon.cli", *arguments], stdout=out, stderr=err, env=environment
            )
        started.append(Gateway(process, tmp_path))
        return started[-1]

    yield start_one
    for gateway in started:
        for connection in gateway.connections:
            connection.close()
        gateway.process.kill()
        gateway.process.wait()


def events(body: bytes) -> list[str]:
    return re.findall(r"^event: (\S+)", body.decode(), re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_the_first_signal_lets_streams_run_to_their_end(start, number) -> None:
    gateway = start()
    response = gateway.post(max_tokens=60)
    first = response.readline()
    gateway.signal(number)
    wait_until(lambda: not gateway.listens(), "closed listener")
    assert gateway.process.poll() is None
    body = first + response.read()
    assert events(body)[-1] == "message_stop"
    assert gateway.exit() == 0


def test_an_idle_gateway_exits_at_once_also_with_open_connections(start) -> None:
    gateway = start()
    idle = gateway.connect()
    idle.request("GET", "/healthz")
    assert idle.getresponse().read()
    with socket.create_connection(("127.0.0.1", gateway.port)):
        gateway.signal(signal.SIGTERM)
        assert gateway.exit() == 0


def test_the_deadline_ends_what_still_runs_with_an_error(start) -> None:
    gateway = start(ANTIPHON_DRAIN="0.2")
    streamed = gateway.post(max_tokens=4096)
    streamed.readline()
    gateway.signal(signal.SIGTERM)
    body = streamed.read()
    assert events(body)[-1] == "error"
    assert b"overloaded_error" in body
    assert gateway.exit() == 0


def test_a_second_signal_ends_everything_at_once(start) -> None:
    gateway = start()
    response = gateway.post(max_tokens=4096)
    response.readline()
    gateway.signal(signal.SIGTERM)
    wait_until(lambda: not gateway.listens(), "closed listener")
    gateway.signal(signal.SIGTERM)
    assert events(response.read())[-1] == "error"
    assert gateway.exit() == 0


@pytest.mark.parametrize("how", ["half a request", "a client that does not read"])
def test_a_second_signal_does_not_wait_for_a_client(start, how) -> None:
    gateway = start()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", gateway.port))
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    if how == "half a request":
        client.sendall(head + b"Content-Length: 1000\r\n\r\n{")
    else:
        body = (
            b'{"model":"m","max_tokens":100000,"stream":true,"messages":[{"role":"user","content":"long"}]}'
        )
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert client.recv(10)
    time.sleep(0.1)  # the request is there; nothing tells us so
    gateway.signal(signal.SIGTERM)
    wait_until(lambda: not gateway.listens(), "closed listener")
    assert gateway.process.poll() is None
    gateway.signal(signal.SIGTERM)
    assert gateway.exit() == 0
    client.close()


def test_a_client_in_the_middle_of_its_request_cannot_outlast_the_drain(start) -> None:
    gateway = start(ANTIPHON_DRAIN="0.2")
    with socket.create_connection(("127.0.0.1", gateway.port)) as client:
        client.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
        time.sleep(0.1)  # the request is there; nothing tells us so
        gateway.signal(signal.SIGTERM)
        assert gateway.exit() == 0


def test_a_port_that_is_taken_is_said_and_is_no_success(start, upstream, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "antiphon.cli", "serve", "--upstream", upstream, "--port", port],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode != 0
    assert b"address" in done.stderr.lower()
    assert b"Traceback" not in done.stderr


def test_the_descriptor_limit_is_raised_to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        raised = raise_descriptor_limit()
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised >= min(1_048_576, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
