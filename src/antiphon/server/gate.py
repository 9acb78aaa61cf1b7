"""Who may ask at all: the rules that keep a web page off a gateway without keys.

Pure. While no keys are set, only this machine is served and a page in its browser must not be able to
use it: `Host` must be a loopback name or address (a rebound name is none), any `Origin` is refused, and
a POST must be `application/json` (a form is none, and it makes a browser ask first).
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.config import is_loopback
from antiphon.core import own_faults
from antiphon.core.parts import Fault


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
