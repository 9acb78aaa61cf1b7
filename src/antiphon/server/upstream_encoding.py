"""Content-encodings of a response body: compressed pieces in, plain pieces out.

We ask for `accept-encoding: identity`; some servers and the proxies before them compress all the
same. This module undoes gzip and deflate as the bytes arrive, so that a piece which the upstream
flushed is delivered at once. It owns the limits against decompression bombs and knows nothing of
sockets or HTTP messages.

    decoder = decoder_for("gzip")            # None: the body is sent as it is
    for piece in decoder.decode(data): ...   # each at most STEP bytes
    decoder.close()                          # raises EncodingError if the stream was cut
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP: Final = 64 * 1024
"""Bytes of output in one piece."""

MAX_FROM_ONE_READ: Final = 16 * 1024 * 1024
"""Bytes of output that one read from the socket may become: as much as the largest SSE frame."""

_INPUT_SLICE: Final = 4096
"""Bytes of input in one step: zlib copies what it did not use, which must not be a whole read."""

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_RAW_WINDOW: Final = -zlib.MAX_WBITS


class EncodingError(Exception):
    """The body cannot be decoded: unknown encoding, bad data, cut, or absurdly compressed."""


class Decoder(Protocol):
    """What turns the bytes of one encoded body into plain ones."""

    def begin_read(self) -> None:
        """What follows came with one read from the socket: its budget starts anew."""
        ...

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield what can be known by now. Raises EncodingError."""
        ...

    def close(self) -> None:
        """The body is complete. Raises EncodingError if its encoded stream is not."""
        ...


def decoder_for(content_encoding: str) -> Decoder | None:
    """The decoder for a `content-encoding` value (RFC 9110, 8.4.1), None if nothing is to be done.

    An unknown encoding is not refused here but by the first byte of the body: the status and the
    headers of such a response are still good.
    """
    encoding = content_encoding.strip().lower()
    if encoding in {"", "identity"}:
        return None
    if encoding in {"gzip", "x-gzip"}:
        return Inflater(gzip=True)
    if encoding == "deflate":
        return Inflater(gzip=False)
    return _Undecodable()


class Inflater:
    """gzip, or deflate with or without its zlib wrapper; one stream or several in a row."""

    __slots__ = ("_gzip", "_produced", "_stream")

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._produced = 0
        self._stream: zlib._Decompress | None = None  # None: between two streams, a good place to end

    def begin_read(self) -> None:
        self._produced = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        for start in range(0, len(view), _INPUT_SLICE):
            for piece in self._inflate(bytes(view[start : start + _INPUT_SLICE])):
                self._produced += len(piece)
                if self._produced > MAX_FROM_ONE_READ:
                    raise EncodingError("the compressed response body expands too far")
                yield piece

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        # A full piece may leave output behind inside zlib even when all input is used up.
        pending = False
        while data or pending:
            if self._stream is None:
                self._stream = self._open(data[0])
            try:
                piece = self._stream.decompress(data, STEP)
            except zlib.error:
                raise EncodingError("the compressed response body is damaged") from None
            pending = len(piece) == STEP
            if self._stream.eof:
                data = self._stream.unused_data
                pending = False
                self._stream = None
            else:
                data = self._stream.unconsumed_tail
            if piece:
                yield piece

    def _open(self, first: int) -> zlib._Decompress:
        if self._gzip:
            return zlib.decompressobj(_GZIP_WINDOW)
        # "deflate" means the zlib format, but raw deflate is sent under that name too. The low four
        # bits of a zlib header are 8 (RFC 1950, CM); no encoder starts a raw stream with them.
        return zlib.decompressobj(zlib.MAX_WBITS if first & 0x0F == zlib.DEFLATED else _RAW_WINDOW)

    def close(self) -> None:
        if self._stream is not None:
            raise EncodingError("the compressed response body was cut off")


class _Undecodable:
    """Stands for an encoding that we do not know (and did not ask for)."""

    __slots__ = ()

    def begin_read(self) -> None:
        """There is no budget."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        raise EncodingError("the response body has a content-encoding that was not asked for")

    def close(self) -> None:
        """An empty body is the same in every encoding."""
