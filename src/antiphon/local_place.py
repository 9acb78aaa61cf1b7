"""The embedded server's place on the machine: its port and its log file, for as long as the gateway runs.

Owns how both are got without meeting another gateway. Must not know what runs there.

    place = Place(cache_folder() / "logs")
    place.port, place.log_fd, place.log_path
    place.close()
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOG_LIMIT = 4 << 20


class Place:
    """What stays the same while children come and go: the port and the log.

    The port is bound but does not listen, and is shared with the child by SO_REUSEPORT. The kernel gives a
    port chosen this way to nobody else, not as the source of a connection either, and refuses connections
    while no child listens: the address survives restarts and two gateways never meet.
    """

    def __init__(self, log_folder: Path) -> None:
        self.log_fd, self.log_path = _open_log(log_folder)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind((LOOPBACK, 0))
        except OSError:
            self.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def bound_log(self) -> None:
        """Empty a log that has grown too long. The child appends, so it goes on at the new end."""
        if os.fstat(self.log_fd).st_size > _LOG_LIMIT:
            os.ftruncate(self.log_fd, 0)

    def close(self) -> None:
        """Let go of both. May be called twice."""
        self._socket.close()
        if self.log_fd >= 0:
            os.close(self.log_fd)
            self.log_fd = -1


def _open_log(folder: Path) -> tuple[int, Path]:
    """The first `llamacpp-N.log` that no running gateway writes to, emptied, mode 0600."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = folder / f"llamacpp-{number}.log"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            # The children inherit the lock with the descriptor: it ends with the last who can write.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, 0)
        except BlockingIOError:
            os.close(fd)
        except OSError:
            os.close(fd)
            raise
        else:
            return fd, path
    raise AssertionError  # count() has no end
