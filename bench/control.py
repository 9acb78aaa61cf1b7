"""Workers of the bench: a script in its own process that answers commands, one JSON line each way.

Owns the pipe and nothing else. A command is answered when it is done; they are served one after another.

    with Worker("load_client.py") as client:     # in the bench
        client.call("count")                     -> whatever the handler returned

    serve({"count": count})                      # in load_client.py
"""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import uvloop

HERE = Path(__file__).resolve().parent


class WorkerError(Exception):
    """A worker could not do what it was told; the text has its traceback."""


class Worker:
    """The bench's end of a worker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def call(self, command: str, **arguments: Any) -> Any:
        """Run a command and wait for its answer. Raises WorkerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"{self.name} died with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {command}\n{answer['error']}")
        return answer["value"]

    def close(self) -> None:
        """End the worker; it leaves when its input ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """The worker's end: answer commands from standard input until it ends."""
    uvloop.run(_serve(handlers))


async def _serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command, arguments = json.loads(line)
        try:
            value = handlers[command](**arguments)
            if inspect.isawaitable(value):
                value = await value
            answer = {"value": value}
        except Exception:
            answer = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
