"""The key of core.seal: made once, kept in a file that only its owner reads, the same after a restart.

Owns the file. `ANTIPHON_SEAL_KEY` (64 hexadecimal digits) replaces it, for a fleet that shares one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import structlog
from platformdirs import user_state_path

from antiphon.config import ConfigError
from antiphon.core.seal import Sealer

VARIABLE = "ANTIPHON_SEAL_KEY"
_SIZE = 32

log = structlog.get_logger("antiphon.server")


def load_sealer(environ: Mapping[str, str], folder: Path | None = None) -> Sealer:
    """The sealer of this installation. Raises ConfigError for a key that is none.

    Where the file cannot be kept, the key lives as long as the process: what it sealed is then ignored
    after a restart, which costs an upstream its hidden state and nothing else.
    """
    given = environ.get(VARIABLE)
    if given is not None:
        try:
            key = bytes.fromhex(given)
        except ValueError:
            key = b""
        if len(key) != _SIZE:
            raise ConfigError(f"{VARIABLE}: must be {2 * _SIZE} hexadecimal digits")
        return Sealer(key)
    path = (folder or user_state_path("antiphon")) / "seal.key"
    try:
        return Sealer(_read(path) or _make(path))
    except OSError as refused:
        log.warning("seal_key_not_kept", reason=refused.strerror or type(refused).__name__)
        return Sealer(secrets.token_bytes(_SIZE))


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        key = file.read(_SIZE + 1)
    return key if len(key) == _SIZE else None


def _make(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = secrets.token_bytes(_SIZE)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    try:
        # Of two processes that start at once, the first one's key is everybody's.
        path.hardlink_to(fresh)
    except FileExistsError:
        kept = _read(path)
        if kept is not None:
            return kept
        fresh.replace(path)
        return key
    finally:
        fresh.unlink(missing_ok=True)
    return key
