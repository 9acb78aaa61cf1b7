"""What is measured: the gateway as users start it, nginx as the floor, and the upstream itself.

Owns the starting and stopping of those processes. Each start is a fresh process on a free port.

    with gateway(upstream=port) as arm:
        arm.port, arm.pid, arm.surface
"""

from __future__ import annotations

import contextlib
import getpass
import grp
import os
import shutil
import signal
import socket
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SLOTS = 2000


@dataclass(frozen=True)
class Arm:
    """Where to send what: `surface` is a key of wire.PATHS, `pid` the top of its process tree."""

    name: str
    port: int
    surface: str
    pid: int | None


def direct(upstream: int) -> Arm:
    """The mock upstream without anything between."""
    return Arm("direct", upstream, "chat", None)


def gateway_command(upstream: int, port: int) -> list[str]:
    """As in the README, with slots for all streams. Every other setting is the default."""
    program = Path(sys.executable).parent / "antiphon"
    url = f"http://127.0.0.1:{upstream}/v1"
    return [str(program), "serve", "--upstream", url, "--slots", str(SLOTS), "--port", str(port)]


@contextlib.contextmanager
def gateway(upstream: int) -> Iterator[Arm]:
    """A fresh gateway. Limits come from its defaults: the bench's environment does not reach it."""
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            gateway_command(upstream, port), stdout=log, stderr=log, env=environment, start_new_session=True
        )
        with _running(process, port, log):
            yield Arm("antiphon", port, "messages", process.pid)


def nginx_program() -> str | None:
    """nginx, if this machine has it (Debian keeps it where only root's PATH looks)."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def nginx(upstream: int) -> Iterator[Arm]:
    """A fresh nginx with one worker; see nginx.conf.template."""
    program = nginx_program()
    if program is None:
        raise FileNotFoundError("nginx")
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder, tempfile.TemporaryFile() as log:
        user = ""
        if os.geteuid() == 0:  # else the worker runs as another user, who cannot enter the folder
            user = f"user {getpass.getuser()} {grp.getgrgid(os.getegid()).gr_name};"
        template = string.Template((HERE / "nginx.conf.template").read_text())
        config = Path(folder) / "nginx.conf"
        config.write_text(template.substitute(folder=folder, port=port, upstream=upstream, user=user))
        process = subprocess.Popen(
            [program, "-p", folder, "-c", str(config), "-e", str(Path(folder) / "error.log")],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        with _running(process, port, log):
            yield Arm("nginx", port, "chat", process.pid)


@contextlib.contextmanager
def _running(process: subprocess.Popen[bytes], port: int, log: object) -> Iterator[None]:
    try:
        _wait_until_open(process, port, log)
        yield
    finally:
        # A second signal, because streams may be open: the gateway drains on the first one.
        for _ in range(2):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
                break
        else:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_open(process: subprocess.Popen[bytes], port: int, log: object) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    said = ""
    if hasattr(log, "seek") and hasattr(log, "read"):
        log.seek(0)
        said = log.read().decode("utf-8", "replace")
    raise RuntimeError(f"{process.args} does not listen:\n{said}")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
