r"""Server-sent events: bytes in, frames out, whatever the network cut them into.

Owns the line rules of WHATWG HTML 9.2 (CR, LF and CRLF end a line and nothing else does; one optional
space after the colon; one leading BOM). Knows nothing of JSON or of any dialect.

    decoder = SseDecoder()
    decoder.feed(b'data: {"a"')   -> []
    decoder.feed(b':1}\n\n')      -> [(b"", b'{"a":1}')]
    decoder.flush()               -> []      (at the end of the body: what lacks its blank line)
"""

from __future__ import annotations

from typing import TypeAlias

Frame: TypeAlias = tuple[bytes, bytes]
"""(event name or b"", data with its lines joined by LF)."""

MAX_FRAME = 16 * 1024 * 1024
BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """An incremental decoder. `max_frame` is in bytes, for one frame's data lines and for any single line.

    `overflow`: a frame grew past that, the upstream is broken or hostile. Nothing more is decoded.
    """

    __slots__ = (
        "_after_cr",
        "_bom",
        "_data",
        "_event",
        "_idle",
        "_max",
        "_size",
        "_tail",
        "_tail_size",
        "overflow",
    )

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.overflow = False
        self._idle = False  # the last read ended with a frame: nothing before it is part of the next one
        self._max = max_frame
        self._tail: list[bytes] = []  # pieces of a line whose end has not come
        self._tail_size = 0
        self._data: list[bytes] = []
        self._size = 0  # of `_data`
        self._event = b""
        self._after_cr = False
        self._bom: bytes | None = b""  # what may still be the start of a BOM; None once decided

    def lone(self, chunk: bytes) -> bytes | None:
        """The data of a read that is one whole frame of one `data: ` line, as nearly every one is.

        None: it is something else, or belongs to what came before; then `feed` takes it.
        """
        if (
            self._idle
            and chunk.startswith(b"data: ")
            and chunk.find(b"\n") == len(chunk) - 2
            and chunk.endswith(b"\n")
            and b"\r" not in chunk
            and len(chunk) <= self._max
        ):
            return chunk[6:-2]
        return None

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take the next bytes of the body and return the frames that they complete."""
        data = self.lone(chunk)
        return [(b"", data)] if data is not None else self._split(chunk)

    def _split(self, chunk: bytes) -> list[Frame]:
        if self.overflow:
            return []
        if self._bom is not None:
            chunk = self._strip_bom(chunk)
        if self._after_cr or b"\r" in chunk:
            chunk = self._unify_line_ends(chunk)
        lines = chunk.split(b"\n")
        rest = lines.pop()
        frames: list[Frame] = []
        if lines and self._tail:
            self._tail.append(lines[0])
            lines[0] = b"".join(self._tail)
            self._tail.clear()
            self._tail_size = 0
        data = self._data
        for line in lines:
            if not line:
                if data:
                    frames.append((self._event, b"\n".join(data)))
                    data.clear()
                    self._size = 0
                self._event = b""
                continue
            if self._size + len(line) > self._max:
                self.overflow = True
                self._idle = False
                return frames
            if line.startswith(b"data: "):
                data.append(line[6:])
                self._size += len(line)
            else:
                self._take_line(line)
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            if self._size + self._tail_size > self._max:
                self.overflow = True
        self._idle = self._bom is None and not (self._tail or data or self._event or self._after_cr)
        return frames

    def flush(self) -> list[Frame]:
        """The body has ended: return the frame that lacks its blank line, if there is one.

        WHATWG drops it; real servers omit the last blank line, so the caller decides by its content.
        """
        if self._tail:
            line = b"".join(self._tail)
            self._tail.clear()
            self._take_line(line)
        if not self._data or self.overflow:
            return []
        frame = (self._event, b"\n".join(self._data))
        self._data.clear()
        return [frame]

    def _take_line(self, line: bytes) -> None:
        """A line that is neither blank nor of the ordinary kind."""
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(line)
        elif name == b"event":
            self._event = value.strip()

    def _strip_bom(self, chunk: bytes) -> bytes:
        head = (self._bom or b"") + chunk
        if len(head) < len(BOM) and BOM.startswith(head):
            self._bom = head
            return b""
        self._bom = None
        return head.removeprefix(BOM)

    def _unify_line_ends(self, chunk: bytes) -> bytes:
        """LF alone. A CR ends its line at once; the LF that may open the next read belongs to it."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk.endswith(b"\r"):
            self._after_cr = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
