"""Which connections a `redis://`, `rediss://` or `unix://` URL asks for.

Owns the reading of it, at the start: what cannot work is refused then, by the name of the option, and not
found out by a connection that never comes to be. No text here repeats anything else of the URL: it may hold
a password, also in a place where none belongs.

    read_url("redis://:secret@host:6379/0", {"protocol": 3})    -> (Connection, {"host": "host", ...})
    read_url("redis://host/0?max_connections=5", {})            ValueError: ... max_connections ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, parse_url

# What may be said of one connection. Not what would change what the client makes of an answer (`encoding`,
# `decode_responses`), is no text (`retry`) or concerns a pool.
_OPTIONS: Final = frozenset(
    {
        "client_name",
        "db",
        "health_check_interval",
        "password",
        "protocol",
        "retry_on_timeout",
        "socket_connect_timeout",
        "socket_keepalive",
        "socket_read_size",
        "socket_timeout",
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_exclude_verify_flags",
        "ssl_include_verify_flags",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
        "username",
    }
)
_ESCAPE: Final = "/, ? and # in a password are written %2F, %3F and %23"


def read_url(url: str, own: Mapping[str, Any]) -> tuple[type[AbstractConnection], dict[str, Any]]:
    """The class of its connections, and what each is made with; `own` goes before what the URL says.

    Reads the files of a `rediss://` URL. Raises ValueError, which names the option that is wrong.
    """
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError(f"coordination: this URL cannot be read ({_ESCAPE})") from None
    astray = parts.query + parts.fragment + ("" if parts.scheme == "unix" else parts.path)
    if "@" in astray and "@" not in parts.netloc:
        # Half a password would be taken for a host, and the rest of it for names that errors repeat.
        raise ValueError(f"coordination: this URL cannot be read ({_ESCAPE})")
    bare = url.partition("#")[0].partition("?")[0]
    if _fails(bare, [], own):
        raise ValueError(f"coordination: this URL cannot be read ({_ESCAPE})")
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        # The client would take the first database, and those who mistyped it apart share nothing.
        raise ValueError("coordination: the database at the end of the URL: must be a number")
    unknown = [name for name, _ in options if name not in _OPTIONS]
    if unknown:
        raise ValueError(f"coordination: {_named(unknown)} of the URL: not known here")
    if _fails(bare, options, own):
        # The one without which it would work, if it is one.
        without = [[other for other in options if other is not option] for option in options]
        wrong = [
            option[0] for option, rest in zip(options, without, strict=True) if not _fails(bare, rest, own)
        ]
        names = wrong[:1] or [name for name, _ in options]
        raise ValueError(f"coordination: {_named(names)} of the URL: cannot be used as it stands")
    return _taken(bare, options, own)


def _taken(
    bare: str, options: list[tuple[str, str]], own: Mapping[str, Any]
) -> tuple[type[AbstractConnection], dict[str, Any]]:
    query = f"?{urlencode(options)}" if options else ""
    read: dict[str, Any] = dict(parse_url(bare + query))
    connection_class: type[AbstractConnection] = read.pop("connection_class", Connection)
    if "ssl_certfile" in read or "ssl_keyfile" in read:
        read.setdefault("ssl_password", "")  # without one OpenSSL would ask at the terminal, and wait
    return connection_class, {**read, **own}


def _fails(bare: str, options: list[tuple[str, str]], own: Mapping[str, Any]) -> bool:
    """Whether no connection can be made of this. None is opened."""
    try:
        connection_class, read = _taken(bare, options, own)
        connection = connection_class(**read)
        if isinstance(connection, SSLConnection):
            connection.ssl_context.get()
    except Exception:  # noqa: BLE001 - whatever it is: its text may quote the URL
        return True
    return False


def _named(names: list[str]) -> str:
    shown = dict.fromkeys(name if name.isidentifier() else "(no name)" for name in names)
    return f"option{'s' if len(shown) > 1 else ''} {', '.join(shown)}"
