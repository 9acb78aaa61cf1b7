"""State that an upstream wants back, carried by clients in the `signature` of a thinking block.

Owns the envelope: an HMAC over dialect, model and value, so that only what this gateway wrote for the same
kind of server and the same model is ever handed back; everything else is ignored, never an error. The key
comes from outside. It must not know what the value means.

    sealer = Sealer(key)
    sealed = sealer.seal("generic", "m", {"reasoning_details": [...]})   -> "ap1...." or None (too large)
    sealer.open("generic", "m", sealed)                                   -> {"reasoning_details": [...]}
    sealer.open("generic", "other-model", sealed)                         -> None
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import zlib
from typing import Any

import msgspec
from msgspec import Struct

PREFIX = "ap1."
COMPRESS_ABOVE = 1024
CAP = 64 * 1024  # characters of the sealed text
_MAC = 16
_PLAIN, _ZLIB = b"p", b"z"


class Sealer(Struct, frozen=True):
    """`key` is secret, 32 bytes; the same key in every process that should read the others' seals."""

    key: bytes

    def __repr__(self) -> str:
        return "Sealer(key=...)"

    def seal(self, dialect: str, model: str, value: Any) -> str | None:
        """The sealed text, None where it would be larger than `CAP`. `value` is JSON."""
        body = msgspec.json.encode(value)
        form = _PLAIN
        if len(body) > COMPRESS_ABOVE:
            form, body = _ZLIB, zlib.compress(body, 6)
        mac = self._mac(dialect, model, form + body)
        sealed = PREFIX + base64.urlsafe_b64encode(mac + form + body).decode().rstrip("=")
        return sealed if len(sealed) <= CAP else None

    def open(self, dialect: str, model: str, sealed: str) -> Any:
        """The value, None for what is not ours: foreign, edited, of another model. Never raises."""
        if not sealed.startswith(PREFIX) or len(sealed) > CAP:
            return None
        text = sealed.removeprefix(PREFIX)
        try:
            packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, form, body = packed[:_MAC], packed[_MAC : _MAC + 1], packed[_MAC + 1 :]
        if not hmac.compare_digest(mac, self._mac(dialect, model, form + body)):
            return None
        # Only what this key wrote comes this far, so the sizes are ours.
        return msgspec.json.decode(zlib.decompress(body) if form == _ZLIB else body)

    def pseudonym(self, text: str) -> str:
        """A stable name for something that must not travel in the clear, 32 hexadecimal digits."""
        return hmac.new(self.key, b"pseudonym\0" + text.encode(), hashlib.sha256).hexdigest()[:32]

    def _mac(self, dialect: str, model: str, packed: bytes) -> bytes:
        head = msgspec.json.encode([dialect, model])
        return hmac.new(self.key, b"seal\0%d\0%b%b" % (len(head), head, packed), hashlib.sha256).digest()[
            :_MAC
        ]
