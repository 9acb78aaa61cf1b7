"""The door: from a request's headers to who asks, or to why nobody is let in.

Owns how keys are sent (protocol: A1 and B2, `x-api-key` and `authorization: Bearer`), which paths need which
key, and the texts of the refusals. Pure but for the keyring that it looks into. What a key may use up is
server.key_limits', who may ask while there are no keys is server.gate's.

    entry = Entry(keyring, admin=admin_key)
    who = entry.admit(scope, path, now=time.time())    -> Identity, or a Fault to answer with

| path | without keys | with keys |
|---|---|---|
| `/`, `/api/hello`, `/healthz` | this machine | everybody |
| `/metrics` | this machine, or the admin key | this machine, or the admin key |
| `/admin/*` | the admin key; this machine where none is set | the admin key |
| everything else | this machine; with `allow_anonymous` everybody but web pages | a key |
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from antiphon.config import ConfigError, Settings, is_loopback
from antiphon.core.parts import Fault
from antiphon.server import clients, gate
from antiphon.server.admin_key import AdminKey
from antiphon.server.fairness import Priority
from antiphon.server.keys import Key, Keyring

OPEN_PATHS: Final = frozenset(("/", "/api/hello", "/healthz"))
METRICS: Final = "/metrics"
ADMIN: Final = "/admin"

MISSING_KEY: Final = Fault(
    "authentication_error", "an API key is needed: x-api-key, or authorization: Bearer", 401
)
UNKNOWN_KEY: Final = Fault("authentication_error", "the API key is not valid", 401)
SEVERAL_KEYS: Final = Fault(
    "authentication_error", "the request has several different API keys in headers of one name", 401
)
REVOKED_KEY: Final = Fault("authentication_error", "this API key was revoked", 401)
WRONG_ADMIN_KEY: Final = Fault("authentication_error", "the admin key is missing or not valid", 401)
NO_ADMIN_KEY: Final = Fault(
    "permission_error", "this gateway has no admin key: its operator can set one", 403
)


class Identity(Struct, frozen=True):
    """Who asks. `share` names who waits together; `key` None: somebody who needs none.

    `operator`: it may use `/admin/*`.
    """

    key: Key | None = None
    share: str = ""
    weight: float = 1.0
    highest: Priority = Priority.INTERACTIVE
    strict: bool = False
    operator: bool = False

    @property
    def name(self) -> str:
        """The key's name, for logs and `/admin`; "" without a key. Never the key."""
        return self.key.name if self.key is not None else ""

    @property
    def limited(self) -> bool:
        """There are models that it may not use."""
        return self.key is not None and bool(self.key.models)

    def allows(self, model: str) -> bool:
        """It may use the model of this name."""
        return self.key is None or self.key.allows(model)


class Entry:
    """One gateway's door. `keyring` None: it has no keys. An empty keyring lets nobody in."""

    def __init__(
        self,
        keyring: Keyring | None = None,
        *,
        admin: AdminKey | None = None,
        allow_anonymous: bool = False,
    ) -> None:
        self.keyring = keyring
        self._admin = admin
        self._allow_anonymous = allow_anonymous

    def admit(self, scope: Any, path: str, now: float) -> Identity | Fault:
        """Who may ask for this path. `now` in Unix seconds: keys expire by the calendar."""
        if path == ADMIN or path.startswith(f"{ADMIN}/"):
            return self._operator(scope)
        if path == METRICS:
            return self._reader(scope)
        if path in OPEN_PATHS and (self.keyring is not None or self._allow_anonymous):
            return Identity()
        return identify(scope, self.keyring, now, allow_anonymous=self._allow_anonymous)

    def tick(self, now: float) -> None:
        """About once a second: a changed keys file counts from here on."""
        if self.keyring is not None:
            self.keyring.tick(now)

    def _operator(self, scope: Any) -> Identity | Fault:
        if self._admin is not None:
            return Identity(operator=True) if self._has_admin_key(scope) else WRONG_ADMIN_KEY
        if self.keyring is not None:
            return NO_ADMIN_KEY
        refused = _local_refusal(scope)
        return Identity(operator=True) if refused is None else refused

    def _reader(self, scope: Any) -> Identity | Fault:
        if gate.is_local(scope) or self._has_admin_key(scope):
            return Identity()
        if self._admin is not None:
            return WRONG_ADMIN_KEY
        return _local_refusal(scope) or gate.NOT_LOCAL

    def _has_admin_key(self, scope: Any) -> bool:
        sent = presented(scope["headers"])
        return self._admin is not None and not isinstance(sent, Fault) and self._admin.is_one_of(sent)


def entry_for(settings: Settings) -> Entry:
    """The door that these settings ask for.

    Raises ConfigError for keys that cannot be used, and for an address that others than this machine can
    reach while there are none: that has to be written down (`allow_anonymous`).
    """
    keyring = Keyring(Path(settings.keys_file)) if settings.keys_file is not None else None
    if keyring is None and not settings.allow_anonymous and not is_loopback(settings.host):
        raise ConfigError(
            f"host {settings.host}: without keys only loopback addresses are served; make keys (antiphon key "
            "new NAME) and name their file (keys_file), or write down allow_anonymous = true"
        )
    admin = AdminKey(settings.admin_key) if settings.admin_key is not None else None
    return Entry(keyring, admin=admin, allow_anonymous=settings.allow_anonymous)


def identify(
    scope: Any, keyring: Keyring | None, now: float, *, allow_anonymous: bool = False
) -> Identity | Fault:
    """Who asks for something that needs a key, if there are keys. `now` in Unix seconds."""
    method, headers = scope["method"], scope["headers"]
    if keyring is None:
        refused = gate.page_refusal(method, headers) if allow_anonymous else _local_refusal(scope)
        return refused or Identity(share=clients.share(scope))
    key = _key(headers, keyring, now)
    if isinstance(key, Fault):
        return key
    # A browser adds no key by itself, so that neither Host nor Origin says more than the key does.
    refused = gate.type_refusal(method, headers)
    return refused or Identity(
        key=key,
        share=clients.share(scope, key=key.name),
        weight=key.weight,
        highest=key.highest,
        strict=key.strict,
    )


def presented(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, ...] | Fault:
    """The secrets that a request carries, `x-api-key`'s first, as the API takes it (protocol: A1).

    Empty values and other schemes than Bearer (a proxy's Basic) are none. One header twice with two values
    is a Fault: what is before and behind a proxy must not be able to read two different keys.
    """
    api_keys: list[bytes] = []
    bearers: list[bytes] = []
    for name, value in headers:
        if name == b"x-api-key":
            api_keys.append(value.strip())
        elif name == b"authorization":
            scheme, *rest = value.split(None, 1) or (b"",)
            if scheme.lower() == b"bearer":
                bearers.append(rest[0].strip() if rest else b"")
    found: list[bytes] = []
    for values in (api_keys, bearers):
        different = {value for value in values if value}
        if len(different) > 1:
            return SEVERAL_KEYS
        found.extend(different)
    return tuple(dict.fromkeys(found))


def _key(headers: Iterable[tuple[bytes, bytes]], keyring: Keyring, now: float) -> Key | Fault:
    """The first good key among those that were sent; else what is wrong with the first known one."""
    sent = presented(headers)
    if isinstance(sent, Fault):
        return sent
    known = [key for key in map(keyring.find, sent) if key is not None]
    for key in known:
        if key.good(now):
            return key
    if known:
        return _no_longer(known[0])
    return UNKNOWN_KEY if sent else MISSING_KEY


def _no_longer(key: Key) -> Fault:
    """Only who has the key hears what became of it."""
    if key.revoked is not None or key.expires is None:
        return REVOKED_KEY
    day = key.expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Fault("authentication_error", f"this API key expired on {day}", 401)


def _local_refusal(scope: Any) -> Fault | None:
    return gate.peer_refusal(scope) or gate.refusal(scope["method"], scope["headers"])
