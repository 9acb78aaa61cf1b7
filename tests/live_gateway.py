"""Real processes for tests: a simulator, and a gateway in front of any upstream.

Owns their start, their end and what they must not have logged. Nothing here knows what a test asks.

    with simulator(folder) as upstream, gateway(folder, upstream.base_url) as antiphon:
        post(f"{antiphon.base_url}/v1/messages", ...)

Leaving `gateway` fails the test if the process did not end with status 0 or logged anything but its
ordinary lines: a bug that a client did not see is still a bug.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 30.0  # seconds; a bound for a loaded machine, never a measurement


def wait_until(ready: Callable[[], object], what: str, seconds: float = PATIENCE) -> object:
    """The first true value of `ready`. Fails the test if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        assert time.monotonic() < deadline, f"in {seconds:g} s there was no {what}"
        time.sleep(0.01)
    return value


def free_port() -> int:
    """A port that was free a moment ago, for a program that cannot choose one itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class SimulatorProcess:
    base_url: str
    log: Path

    def lines(self) -> list[str]:
        """The request log: one line for each request that ended."""
        return self.log.read_text().splitlines()


@dataclass(frozen=True)
class GatewayProcess:
    base_url: str
    log: Path

    def records(self) -> list[dict]:
        """The log lines of the exchanges that ended, oldest first."""
        return [line for line in self.lines() if line.get("event") == "exchange"]

    def complaints(self) -> list[dict]:
        """What a gateway that had no trouble of its own does not log."""
        return [
            line
            for line in self.lines()
            if line.get("level") not in ("debug", "info")
            # An upstream's trouble, or an end that the test itself has brought about.
            and line.get("event") != "upstream_lost"
            and not (line.get("event") == "exchange" and line.get("cause") != "internal")
        ]

    def lines(self) -> list[dict]:
        return [_log_line(line) for line in self.log.read_text().splitlines() if line.strip()]


def _log_line(line: str) -> dict:
    try:
        return json.loads(line)
    except ValueError:
        return {"level": "not a log line", "line": line}  # a traceback, or a warning of the interpreter


@contextlib.contextmanager
def simulator(folder: Path, *options: str) -> Iterator[SimulatorProcess]:
    """`antiphon simulate` on a free port, a token per millisecond unless `options` say otherwise."""
    log = folder / "simulator.log"
    arguments = ["simulate", "--port", "0", "--log", str(log), "--token-interval", "1", *options]
    with _antiphon(arguments, folder / "simulator") as output:
        yield SimulatorProcess(_announced(output, r"http://[\d.:]+/v1"), log)


@contextlib.contextmanager
def gateway(folder: Path, upstream: str, *options: str) -> Iterator[GatewayProcess]:
    """`antiphon serve` on a free port with `upstream` (a base URL) behind it and its default limits."""
    arguments = [
        "serve",
        "--upstream",
        upstream,
        "--port",
        "0",
        "--log-json",
        "--log-level",
        "debug",
        *options,
    ]
    with _serving(folder, arguments) as process:
        yield process
    assert process.complaints() == []


@contextlib.contextmanager
def configured_gateway(
    folder: Path, configuration: str, *, expected: Collection[str] = ()
) -> Iterator[GatewayProcess]:
    """`antiphon serve` with a configuration file, which says that its port is 0 and its log is JSON.

    `expected`: events that it may warn of.
    """
    file = folder / "antiphon.toml"
    file.write_text(configuration, encoding="utf-8")
    with _serving(folder, ["serve", "--config", str(file)]) as process:
        yield process
    assert [line for line in process.complaints() if line.get("event") not in expected] == []


@contextlib.contextmanager
def _serving(folder: Path, arguments: list[str]) -> Iterator[GatewayProcess]:
    with _antiphon(arguments, folder / "gateway") as output:
        process = GatewayProcess(_announced(output, r"http://[\d.:]+"), folder / "gateway.err")
        wait_until(lambda: _healthy(process.base_url), "healthy gateway")
        yield process


@contextlib.contextmanager
def _antiphon(arguments: list[str], name: Path) -> Iterator[Path]:
    """The command line in a process of its own, with its output in files. It must end when it is told to."""
    output, errors = name.with_suffix(".out"), name.with_suffix(".err")
    # Warnings go to standard error: a descriptor that was never closed is a complaint too.
    # The key that seals state is the test's own, unless it brings one.
    state = {"XDG_STATE_HOME": str(name.parent / "state"), **os.environ}
    environment = {**state, "PYTHONWARNINGS": "default", "NO_COLOR": "1", "COLUMNS": "200"}
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "antiphon.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
        )
    try:
        wait_until(lambda: output.stat().st_size or process.poll() is not None, f"sign of {arguments[0]}")
        assert process.poll() is None, errors.read_text()
        yield output
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, errors.read_text()


def _announced(output: Path, pattern: str) -> str:
    """The first address that a process printed."""
    found = wait_until(lambda: re.search(pattern, output.read_text()), f"{pattern} in {output}")
    assert isinstance(found, re.Match)
    return found.group()


def _healthy(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/healthz", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False
