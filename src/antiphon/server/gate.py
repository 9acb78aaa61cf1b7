"""Who may ask where no key tells: the rules that keep web pages and others off this machine's gateway.

Pure. While no keys are set, only this machine is served and a page in its browser must not be able to use
it: the peer is this machine, `Host` must be a loopback name or address (a rebound name is none), any
`Origin` is refused, and a POST must be `application/json` (a form is none, and it makes a browser ask first).

    refusal("POST", scope["headers"])   -> a Fault, or None
    is_local(scope)                     -> nothing says that it came from elsewhere
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from antiphon.config import is_loopback
from antiphon.core import own_faults
from antiphon.core.parts import Fault

NOT_LOCAL: Final = Fault("permission_error", "without an API key only this machine is served", 403)

# What proxies add: a peer on this machine that sends one of these speaks for somebody else.
_FORWARDED: Final = frozenset((b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"))


def refusal(method: str, headers: Iterable[tuple[bytes, bytes]]) -> Fault | None:
    """Why a request with these headers (lower-case names) is not served, or None."""
    host = content_type = None
    for name, value in headers:
        if name == b"host":
            if host is not None and host != value:
                return own_faults.FOREIGN_HOST
            host = value
        elif name == b"origin":
            return own_faults.FOREIGN_PAGE
        elif name == b"content-type":
            content_type = value
    if host is None or not is_loopback(_hostname(host.decode("latin-1"))):
        return own_faults.FOREIGN_HOST
    return _type_refusal(method, content_type)


def page_refusal(method: str, headers: Iterable[tuple[bytes, bytes]]) -> Fault | None:
    """The same where every host is served without a key: a web page is still refused."""
    content_type = None
    for name, value in headers:
        if name == b"origin":
            return own_faults.FOREIGN_PAGE
        if name == b"content-type":
            content_type = value
    return _type_refusal(method, content_type)


def type_refusal(method: str, headers: Iterable[tuple[bytes, bytes]]) -> Fault | None:
    """A POST that is not JSON, whoever sends it."""
    given = [value for name, value in headers if name == b"content-type"]
    return _type_refusal(method, given[-1] if given else None)


def peer_refusal(scope: Any) -> Fault | None:
    """A connection from another machine, wherever this one may listen."""
    client = scope.get("client")
    return None if client is None or _is_this_machine(str(client[0])) else NOT_LOCAL


def is_local(scope: Any) -> bool:
    """Peer, Host and Origin are of this machine, and no proxy says that it speaks for another."""
    headers = scope["headers"]
    return (
        peer_refusal(scope) is None
        and refusal("GET", headers) is None
        and not any(name in _FORWARDED for name, _ in headers)
    )


def _type_refusal(method: str, content_type: bytes | None) -> Fault | None:
    if method == "POST":
        kind = (content_type or b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            return own_faults.NOT_JSON_TYPE
    return None


def _hostname(host: str) -> str:
    """The name of a Host header without its port: `[::1]:8080` -> `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


@lru_cache(maxsize=1024)
def _is_this_machine(address: str) -> bool:
    """A peer's address. What is none (a Unix socket, a test's own transport) has not crossed a network."""
    try:
        peer = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True
    mapped = getattr(peer, "ipv4_mapped", None)
    return (mapped or peer).is_loopback
