"""The official OpenAI SDKs as processes that answer one JSON command at a time.

Owns which majors there are and the pipe to `openai_script.py`, which says what a command and an answer look
like. `install.py` puts them into `.sdk/openai-N`.

    with OpenAISdk("openai-2") as sdk:
        sdk.stream(base_url, {"model": "m", ...})["chunks"]
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Self

from clients import install

HERE = Path(__file__).parent
NAMES = ("openai-1", "openai-2", "openai-3")


def missing(name: str) -> str | None:
    """Why this SDK cannot be run here; None if it can."""
    if install.installed(name):
        return None
    return f"OpenAI SDK {name.removeprefix('openai-')}.x: not installed (python tests/clients/install.py)"


class OpenAISdk:
    """One SDK in one process. `version` is what it calls itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        # A proxy of this machine has no business with the loopback, nor has a key of its user's.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
        environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1"
        self._process = subprocess.Popen(
            [str(install.python_of(name)), str(HERE / "openai_script.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=HERE,
        )
        self.version: str = self._receive()["version"]

    def chat(self, base_url: str, request: dict) -> dict[str, Any]:
        return self._ask({"op": "chat", "base_url": base_url, "request": request})

    def stream(self, base_url: str, request: dict, *, leave_after: int | None = None) -> dict[str, Any]:
        command = {"op": "stream", "base_url": base_url, "request": request, "leave_after": leave_after}
        return self._ask(command)

    def complete(self, base_url: str, request: dict) -> dict[str, Any]:
        return self._ask({"op": "complete", "base_url": base_url, "request": request})

    def embed(self, base_url: str, request: dict) -> dict[str, Any]:
        return self._ask({"op": "embed", "base_url": base_url, "request": request})

    def models(self, base_url: str) -> dict[str, Any]:
        return self._ask({"op": "models", "base_url": base_url, "request": {}})

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
