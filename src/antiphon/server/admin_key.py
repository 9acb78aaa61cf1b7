"""The admin key: the one secret that opens `/admin/*`. Only its hash is kept in memory.

Owns what may be one, and how it is compared with what a client sends. It is no client's key: it opens
nothing else.

    AdminKey("a-long-admin-secret").is_one_of((b"what", b"a client sent"))    -> False
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

from antiphon.config import ConfigError
from antiphon.server.keys import PREFIX, digest

_SHORTEST: Final = 16  # characters; what is shorter can be guessed


class AdminKey:
    """See the module. Raises ConfigError for a secret that is too short, or that a header cannot carry."""

    __slots__ = ("_digest",)

    def __init__(self, secret: str) -> None:
        if len(secret) < _SHORTEST or not all("!" <= letter <= "~" for letter in secret):
            raise ConfigError(f"the admin key must be {_SHORTEST} or more visible ASCII characters")
        if secret.startswith(PREFIX):
            raise ConfigError("the admin key must not be a client's key")
        self._digest = digest(secret.encode())

    def __repr__(self) -> str:
        return "AdminKey()"

    def is_one_of(self, presented: Iterable[bytes]) -> bool:
        """One of these is the key. The time that it takes tells nothing of how near one came."""
        matches = [hmac.compare_digest(digest(each), self._digest) for each in presented]
        return any(matches)
