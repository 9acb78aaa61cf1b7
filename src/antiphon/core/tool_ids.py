"""Tool ids between an upstream and a client, without any state between turns.

Anthropic clients keep the ids of a whole conversation, and the Messages API wants them unique and within
`[A-Za-z0-9_-]`. Upstreams repeat ids in every turn (`call_0`), give none, or give forms of their own
(`functions.read:0`), which some of them want back unchanged. So an id that may travel as it is does, and
any other is wrapped so that it can be unwrapped when the client sends it back. This module owns that
spelling and must not remember anything.

    outgoing("call_0", taken=(), entropy=os.urandom)              -> "call_0"
    outgoing("functions.read:0", taken=(), entropy=os.urandom)    -> "toolu_ap..."
    original("toolu_ap...")                                       -> "functions.read:0"
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container

_MARK = "toolu_ap"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
# No lower-case letters: an id that was made here can never look like a wrapped one.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_SALT = 2  # bytes in front of a wrapped id, so that an id which an upstream repeats differs each time
_TRIES = 8


def outgoing(original: str | None, *, taken: Container[str], entropy: Callable[[int], bytes]) -> str:
    """The id under which a client hears of a tool call.

    `original` is the upstream's id (None or empty: it gave none), `taken` the ids of this message and of
    the request's history, `entropy(n)` returns n random bytes. Never raises for any text.
    """
    if not original:
        return "toolu_" + "".join(_ALPHABET[byte & 31] for byte in entropy(24))
    if _PLAIN.fullmatch(original) and original not in taken and not original.startswith(_MARK):
        return original
    plain = original.encode("utf-8", "replace")
    wrapped = ""
    for _ in range(_TRIES):  # bounded: a source of randomness that repeats itself must not hang a stream
        wrapped = _wrap(entropy(_SALT) + plain)
        if wrapped not in taken:
            break
    return wrapped


def original(client_id: str) -> str:
    """The upstream's own id of a call that a client names. What `outgoing` did not wrap stays as it is."""
    if not client_id.startswith(_MARK):
        return client_id
    text = client_id[len(_MARK) :]
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        plain = data[_SALT:].decode()
    except (binascii.Error, ValueError):
        return client_id
    # Only the one spelling that `outgoing` makes is unwrapped: two client ids never meet by accident.
    return plain if plain and _wrap(data) == client_id else client_id


def _wrap(data: bytes) -> str:
    return _MARK + base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")
