"""Where an upstream is and how to get there: base URL, request head, addresses, TLS.

Owns what is the same for every request to one upstream. `dial()` opens one connection, with happy
eyeballs (RFC 8305) and TLS, and is the only coroutine on the way of an inference request. No HTTP
is read here and nothing is kept open.

    origin = parse_base_url("https://api.example/v1/")
    origin.target("/chat/completions")       # "/v1/chat/completions"
    await dial(origin, tls_context(), make_protocol)
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlsplit

import aiohappyeyeballs
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiohappyeyeballs import AddrInfoType

P = TypeVar("P", bound=asyncio.BaseProtocol)

HAPPY_EYEBALLS_DELAY: Final = 0.25
"""Seconds that one address may stay silent before the next is tried too (RFC 8305, section 5)."""

KEEPALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""An upstream that vanished without a FIN is noticed in half a minute, in the middle of a silence too."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NOT_VISIBLE_ASCII: Final = re.compile(r"[^\x21-\x7e]")
_NOT_PRINTABLE_ASCII: Final = re.compile(r"[^\x20-\x7e]")
# What a path may hold as it is (RFC 3986, 3.3); "%" because it is escaped already.
_PATH_SAFE: Final = "/%:@!$&'()*+,;=-._~"
_QUERY_SAFE: Final = _PATH_SAFE + "?"


class DialError(Exception):
    """No connection. `kind` is "connect" or "tls"; the text names no host and no address."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Origin(msgspec.Struct, frozen=True):
    """One upstream's place: `host` without brackets, `base_path` without a slash at its end."""

    scheme: str
    host: str
    port: int
    base_path: str
    query: str = ""  # goes with every request (Azure's `api-version`)

    @property
    def authority(self) -> str:
        """The `Host` header's value: IPv6 in brackets, the port only where it is not the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base_path}"

    def target(self, path: str) -> str:
        """The request target for `path`. Raises ValueError if it is not an absolute path in ASCII."""
        if not path.startswith("/") or _NOT_VISIBLE_ASCII.search(path):
            raise ValueError(f"not an absolute path of visible ASCII characters: {path!r}")
        return f"{self.base_path}{path}?{self.query}" if self.query else self.base_path + path


def parse_base_url(url: str) -> Origin:
    """Take a base URL apart. Raises ValueError; its text never repeats the URL, which may hold secrets."""
    if re.search(r"[\x00-\x20\x7f]", url):  # urlsplit would silently drop some of them
        raise ValueError("base URL: contains white space or control characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        # Python's own texts quote a piece of the URL.
        raise ValueError("base URL: the host or the port is not valid") from error
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("base URL: must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("base URL: must not contain a user name or password; give the key as api_key")
    if "#" in url:
        raise ValueError("base URL: must not contain a fragment")
    if not host:
        raise ValueError("base URL: has no host")
    if port == 0:
        raise ValueError("base URL: port 0 cannot be connected to")
    try:
        host = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise ValueError("base URL: the host is not a valid name") from error
    path = quote(parts.path, safe=_PATH_SAFE).rstrip("/")
    query = quote(parts.query, safe=_QUERY_SAFE)
    return Origin(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path, query)


def header_value(name: str, value: str) -> str:
    """Return `value` if a header can carry it. Raises ValueError without repeating it: it may be a key."""
    if not value or value != value.strip() or _NOT_PRINTABLE_ASCII.search(value):
        raise ValueError(f"{name}: must be printable ASCII without white space at its ends")
    return value


def tls_context(*, ca_file: str | None = None, verify: bool = True) -> ssl.SSLContext:
    """The client's TLS settings. `ca_file` (PEM) replaces the system's authorities.

    Raises ValueError if the file cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"ca_file: cannot be read as PEM certificates: {error.strerror or error}") from error
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def resolve(host: str, port: int) -> Sequence[AddrInfoType]:
    """The addresses of `host`, best first. A literal address asks nobody. Raises socket.gaierror."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def dial(origin: Origin, tls: ssl.SSLContext | None, factory: Callable[[], P]) -> P:
    """Connect, do the TLS handshake, return the protocol that `factory` made. Raises DialError.

    No time limit: the caller cancels. A cancelled dial leaves neither a socket nor a task.
    """
    try:
        addresses = await resolve(origin.host, origin.port)
        sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY)
    except socket.gaierror as error:
        raise DialError("connect", "the host name could not be resolved") from error
    except OSError as error:
        raise DialError("connect", _connect_message(error)) from error
    except (UnicodeError, RuntimeError) as error:
        # A name that cannot be encoded; uvloop's way to say that a descriptor is in use.
        raise DialError("connect", "the connection could not be opened") from error
    _set_options(sock)
    loop = asyncio.get_running_loop()
    try:
        _, protocol = await loop.create_connection(
            factory, sock=sock, ssl=tls, server_hostname=origin.host if tls else None
        )
    except OSError as error:
        if tls is None:
            raise DialError("connect", _connect_message(error)) from error
        raise DialError("tls", _tls_message(error)) from error
    return protocol


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        option = getattr(socket, name, None)  # not every system has all three
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _connect_message(error: OSError) -> str:
    # Not str(error): asyncio's texts contain the address.
    if error.errno == errno.ECONNREFUSED:
        return "connection refused"
    if error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}:
        return "the host is unreachable"
    if error.errno:
        return f"the connection could not be opened: {os.strerror(error.errno)}"
    return "no address of the host could be connected to"


def _tls_message(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if "mismatch" in error.verify_message:  # that text contains the host's name
            return "certificate verification failed: it is not valid for this host"
        return f"certificate verification failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS handshake failed: {error.reason}"
    return "the connection was lost during the TLS handshake"
