"""Where a server is asked, and how the key travels: URLs and headers from a base URL and a row.

Owns the joining and the header's name. It opens nothing and shows no key.

    below("https://a.example/openai/deployments/d?api-version=2024-10-21", "/chat/completions")
    -> "https://a.example/openai/deployments/d/chat/completions?api-version=2024-10-21"
    key_header("api-key", "k")   -> ("api-key", "k")
"""

from __future__ import annotations

from antiphon.core.dialects.quirk_facts import Auth

API_VERSION = "2023-06-01"
"""The header `anthropic-version` (protocol: Messages API, versions): there is no other that answers."""

_BEARER = "Bearer "


def below(base_url: str, path: str) -> str:
    """`path` below the base URL. A query of the base URL belongs to every request (Azure's `api-version`)."""
    base, mark, query = base_url.partition("?")
    base = base.rstrip("/")
    if not mark:
        return base + path
    return f"{base}{path}{'&' if '?' in path else '?'}{query}"


def key_header(auth: Auth, key: str) -> tuple[str, str]:
    """Name and value of the header that carries the key."""
    if auth == "bearer":
        return "authorization", _BEARER + key
    return auth, key


def key_headers(auth: Auth, key: str | None) -> dict[str, str]:
    """What carries a key to a server that speaks `auth`; nothing without a key.

    `x-api-key` is the Messages API's, and brings its version: without it the API answers nothing.
    """
    if key is None:
        return {}
    name, value = key_header(auth, key)
    return {name: value} | ({"anthropic-version": API_VERSION} if auth == "x-api-key" else {})
