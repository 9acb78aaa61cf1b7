"""Clients' API keys: what a key is, what it may do, and finding the one that a client has sent.

Owns the form of a key, its record, and `Keyring`, the keys as they stand in their file. A key itself is
nowhere: its record has its SHA-256, which is enough for a value of 256 random bits. It must not know headers
(server.entry) or count anything (server.key_limits); the file is written by server.keys_file.

    secret, key = make("alice", now=time.time())     -> ("sk-antiphon-...", Key(name="alice", ...))
    keyring = Keyring(Path("antiphon-keys.json"))
    keyring.find(b"sk-antiphon-...")                 -> the Key, whether it is still good or not; or None
    keyring.tick(now)                                # reads the file again if it is another one
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import structlog
from msgspec import Meta, Struct

from antiphon.config import ConfigError
from antiphon.server.fairness import Priority
from antiphon.server.keys_file import KeysFileError, Stamp, read_rows, stamp_of

log = structlog.get_logger("antiphon.keys")

PREFIX: Final = "sk-antiphon-"
"""How keys begin: as SDKs, secret scanners and core.scrub expect it of a key."""

_RANDOM_BYTES: Final = 32
_FORM: Final = re.compile(rb"sk-antiphon-[A-Za-z0-9_-]{43}")
_SHOWN: Final = 8  # characters after the prefix by which people tell keys apart; 208 secret bits stay

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")]
Positive = Annotated[int, Meta(ge=1)]
When = Annotated[datetime, Meta(tz=True)]
PriorityName: TypeAlias = Literal["interactive", "background"]

PRIORITIES: Final[dict[PriorityName, Priority]] = {
    "interactive": Priority.INTERACTIVE,
    "background": Priority.BACKGROUND,
}


class Key(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One key, as its file has it. What is left out is not limited.

    `models` are names or globs (`*`, `?`, `[...]`) of the names that clients send; none: every model.
    """

    name: Name
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,16}\Z")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    created: When
    expires: When | None = None
    revoked: When | None = None
    models: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] = ()
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    priority: PriorityName = "interactive"  # the highest that it may ask for
    concurrent: Positive | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    strict: bool = False

    def __repr__(self) -> str:
        return f"Key({self.name!r}, id={self.id!r})"

    def expired(self, now: float) -> bool:
        """`now` in Unix seconds."""
        return self.expires is not None and now >= self.expires.timestamp()

    def good(self, now: float) -> bool:
        """It opens the door. `now` in Unix seconds."""
        return self.revoked is None and not self.expired(now)

    def allows(self, model: str) -> bool:
        """It may use a model that a client names so."""
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)

    @property
    def highest(self) -> Priority:
        return PRIORITIES[self.priority]


def make(name: str, *, now: float) -> tuple[str, Key]:
    """A new key of 256 random bits, and its record. `now` in Unix seconds."""
    random = secrets.token_urlsafe(_RANDOM_BYTES)
    secret = PREFIX + random
    created = datetime.fromtimestamp(int(now), UTC)
    return secret, Key(name=name, id=random[:_SHOWN], sha256=digest(secret.encode()).hex(), created=created)


def digest(secret: bytes) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret).digest()


def is_key(presented: bytes) -> bool:
    """It has the form of our keys; what has not is none, whatever it is."""
    return _FORM.fullmatch(presented) is not None


class Keyring:
    """The keys of one file. Raises ConfigError if the file cannot be used at the start.

    Later a file that cannot be used changes nothing: the keys stay as they were, and the log says why.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._by_digest: dict[bytes, Key] = {}
        try:
            self._load()
        except KeysFileError as refused:
            raise ConfigError(f"keys file {path}: {refused} (make one: antiphon key new NAME)") from None

    def find(self, presented: bytes) -> Key | None:
        """The record of a key, also of one that was revoked or has expired."""
        if not is_key(presented):
            return None
        hashed = digest(presented)
        key = self._by_digest.get(hashed)
        # The dictionary has told already; a comparison whose time tells nothing costs nothing.
        if key is None or not hmac.compare_digest(bytes.fromhex(key.sha256), hashed):
            return None
        return key

    def keys(self) -> list[Key]:
        return list(self._by_digest.values())

    def tick(self, now: float) -> None:
        """Look whether the file is another one, about once a second: a key that is revoked is so at once."""
        try:
            if stamp_of(self._path) != self._stamp:
                self._load()
                log.info("keys_loaded", keys=len(self._by_digest))
        except KeysFileError as refused:
            if self._stamp != refused.stamp:
                self._stamp = refused.stamp
                log.warning("keys_file_refused", reason=str(refused), keys=len(self._by_digest))

    def _load(self) -> None:
        rows, stamp = read_rows(self._path, Key)
        self._by_digest = by_digest(rows)
        self._stamp = stamp


def by_digest(rows: Iterable[Key]) -> dict[bytes, Key]:
    """The same key twice (a file that was put together by hand): revoked wins, then the last."""
    found: dict[bytes, Key] = {}
    for key in rows:
        hashed = bytes.fromhex(key.sha256)
        if hashed not in found or found[hashed].revoked is None:
            found[hashed] = key
    return found
