"""The simulator's request log: one line for each chat request, written at its end.

It owns the file and the form of a line. It must not hold a word that a client wrote: the log lies in
the system's temporary folder, and counting `cancelled` in it must count cancelled requests.

    2026-01-31T12:00:00.123Z request=1 model=reasoning stream=true tokens=36 outcome=completed

Outcomes: `completed`; `cancelled`, the moment its client goes away; `fault`, a switched-on fault ended
it; `rejected`, an invalid request; `stopped`, the simulator itself was closed; `failed`, a bug.
`fault=NAME` stands before the outcome where a fault struck (a client that leaves a stalled answer is
`fault=stall_after outcome=cancelled`). The model is `reasoning` or `other`.
"""

from __future__ import annotations

import fcntl
import os
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from antiphon.simulator_script import Script


def open_log(path: Path) -> TextIO:
    """Open a request log for appending, mode 0600, emptied. It may lie in a folder that all can write to.

    Raises OSError with a plain text if it cannot be opened, is a link, has a second name (a hard
    link), belongs to another user, is no regular file or is being written by another process. Such a file
    keeps its content.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # O_NONBLOCK: a pipe with nobody at its other end must fail, not wait.
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        why = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise OSError(f"cannot write the log {path}: {why}") from error
    why_not = _foreign(os.fstat(descriptor)) or _taken(descriptor)
    if why_not:
        os.close(descriptor)
        raise OSError(f"cannot write the log {path}: {why_not}")
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, 0)
    return os.fdopen(descriptor, "w", buffering=1, encoding="ascii")


def _foreign(facts: os.stat_result) -> str | None:
    """Why this file may not be emptied; None if it is ours."""
    if not stat.S_ISREG(facts.st_mode):
        return "it is not a regular file"
    if facts.st_uid != os.geteuid():
        return "it belongs to another user"
    if facts.st_nlink > 1:
        return "it has more than one name (a hard link)"
    return None


def _taken(descriptor: int) -> str | None:
    """Lock the file for as long as it is open: of two gateways, the second must not empty the first's log."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another process is writing it"
    return None


class Record:
    """The log line of one request. `write` takes the finished line; only the first `finish` counts."""

    def __init__(self, number: int, write: Callable[[str], None]) -> None:
        self._number = number
        self._write = write
        self._finished = False
        self.model = "-"
        self.stream = "-"
        self.fault: str | None = None
        self.script: Script | None = None

    def finish(self, outcome: str) -> None:
        if self._finished:
            return
        self._finished = True
        now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        tokens = self.script.completion_tokens if self.script else 0
        fault = f"fault={self.fault} " if self.fault else ""
        self._write(
            f"{now}Z request={self._number} model={self.model} stream={self.stream} "
            f"tokens={tokens} {fault}outcome={outcome}\n"
        )
