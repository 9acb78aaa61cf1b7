"""The official SDKs as processes that answer one JSON command at a time.

Owns which SDKs there are, where they are installed, and the pipe to their driver scripts. What a command
and an answer look like is in `sdk_script.py`.

    with Sdk("python-2") as sdk:
        sdk.stream(base_url, {"model": "m", ...})["message"]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

from clients import install

HERE = Path(__file__).parent
NAMES = ("python-0", "python-1", "python-2", "typescript-0", "typescript-1")


def missing(name: str) -> str | None:
    """Why this SDK cannot be run here; None if it can."""
    language, _, major = name.partition("-")
    if language == "python":
        if install.installed(major):
            return None
        return f"Python SDK {major}.x: not installed (python tests/clients/install.py)"
    if shutil.which("node") is None:
        return f"TypeScript SDK {major}.x: there is no node"
    if not (HERE / "node_modules" / f"sdk{major}").is_dir():
        return f"TypeScript SDK {major}.x: not installed (npm ci in tests/clients)"
    return None


class Sdk:
    """One SDK in one process. `version` is what it calls itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.language, _, self.major = name.partition("-")
        if self.language == "python":
            command = [str(install.python_of(self.major)), str(HERE / "sdk_script.py")]
        else:
            command = ["node", str(HERE / "sdk_script.mjs"), f"sdk{self.major}"]
        # A proxy of this machine has no business with the loopback, nor has a key of its user's.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANTHROPIC_")}
        environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1"
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE
        )
        self.version: str = self._receive()["version"]

    def create(self, base_url: str, request: dict) -> dict[str, Any]:
        return self._ask({"op": "create", "base_url": base_url, "request": request})

    def stream(self, base_url: str, request: dict, *, leave_after: int | None = None) -> dict[str, Any]:
        command = {"op": "stream", "base_url": base_url, "request": request, "leave_after": leave_after}
        return self._ask(command)

    def turn(
        self, base_url: str, request: dict, say: Any, *, first: bool = False, streaming: bool = True
    ) -> dict[str, Any]:
        """The next turn of a conversation that the SDK's process keeps: `request` has no messages."""
        command = {"op": "turn", "base_url": base_url, "request": request, "say": say}
        return self._ask(command | {"first": first, "streaming": streaming})

    def count(self, base_url: str, request: dict) -> dict[str, Any]:
        return self._ask({"op": "count", "base_url": base_url, "request": request})

    def models(self, base_url: str, request: dict) -> dict[str, Any]:
        return self._ask({"op": "models", "base_url": base_url, "request": request})

    def _ask(self, command: dict) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            raise AssertionError(f"{self.name} ended with status {self._process.returncode}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
