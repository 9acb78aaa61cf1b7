r"""Passing bytes of an answer, looked at without a change: how far is it, what has it used, did it end well?

Owns what is known of an answer that nobody translates. It must not hold bytes back, alter or refuse any; what
it cannot read, it counts. Any cut of the same bytes gives the same findings.

    watch = StreamWatch(counts)
    watch.feed(b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n')
    watch.feed(b"data: [DONE]\n\n")   -> 14, the bytes of it that belong to the stream
    watch.findings.finished, watch.done    -> {0}, True
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from typing import Final, Protocol

from antiphon.core.complaint import is_error
from antiphon.core.dialects import chat_lenient
from antiphon.core.dialects.chat_stream import FINISH_WORDS
from antiphon.core.dialects.chat_wire import Chunk, WireUsage, decode_chunk, usage_part
from antiphon.core.faults import fault_of_error, finish_fault
from antiphon.core.parts import Fault, StopReason, Usage
from antiphon.core.sse import BOM

FRAME_LIMIT: Final = 1024 * 1024
"""Bytes of a frame that is looked at. A longer one passes unseen: a chunk of text has 300 bytes."""

TAIL_LIMIT: Final = 64 * 1024
"""Bytes of a whole answer that are kept to be looked at: its last ones, where servers put `usage`."""


class Findings:
    """What an answer has told so far.

    `units` counts frames with data, of which nearly every one is a token. `finished` are the indices of the
    choices that gave a reason to stop. `fault` is an error that stands in the answer. `usage` is every report
    in its order.
    """

    __slots__ = ("fault", "finished", "stop_reason", "units", "usage")

    def __init__(self) -> None:
        self.units = 0
        self.finished: set[int] = set()
        self.stop_reason: StopReason | None = None
        self.fault: Fault | None = None
        self.usage: list[Usage] = []

    def read(self, data: bytes) -> None:
        """Take what a frame, or a whole answer, has to tell beside its content. Never raises."""
        if not _TELLING.search(data):
            return  # nearly every frame: only content
        chunk = decode_chunk(data)
        if chunk is None:
            document = chat_lenient.load(data)
            if not isinstance(document, dict):
                return
            if is_error(document):
                self.fault = self.fault or fault_of_error(document)
            chunk = chat_lenient.chunk(document)
        self._take(chunk)

    def _take(self, chunk: Chunk) -> None:
        self.note(chunk.usage)
        for choice in chunk.choices:
            self.note(choice.usage)  # Kimi
            word = (choice.finish_reason or "").lower()
            if word not in _UNFINISHED:
                self.finished.add(choice.index or 0)
                self.stop_reason = FINISH_WORDS.get(word, "end_turn")
                self.fault = self.fault or finish_fault(word)

    def note(self, wire: WireUsage | None) -> None:
        """Take a report."""
        report = usage_part(wire) if wire is not None else None
        if report is not None:
            self.usage.append(report)


class Watch(Protocol):
    """Looks at one answer."""

    findings: Findings

    @property
    def begun(self) -> bool:
        """There is content."""

    @property
    def done(self) -> bool:
        """The answer itself has said that it is over."""

    @property
    def midway(self) -> bool:
        """What has passed ends in the middle of something."""

    @property
    def size(self) -> int:
        """Bytes of content, where those are what its tokens are estimated by."""

    def feed(self, data: bytes) -> int:
        """Look at the next bytes; how many of them belong to the answer (the rest came after its end)."""

    def end(self) -> None:
        """Nothing more will come."""


class StreamWatch:
    """Looks at server-sent events, by the line rules of WHATWG HTML 9.2. `limit` is in bytes, for a frame.

    Beside `core.sse`, which hands out frames, this one must know at which byte `[DONE]` has ended, and get
    over a frame that is too long.
    """

    __slots__ = ("_counts", "_data", "_first", "_frame_size", "_held", "_limit", "_lost", "done", "findings")

    size = 0  # every frame is taken for a token

    def __init__(self, counts: Counter[str], *, limit: int = FRAME_LIMIT) -> None:
        self.findings = Findings()
        self.done = False
        self._counts = counts
        self._limit = limit
        self._first = True  # the first line may begin with a BOM
        self._held = bytearray()  # of a line whose end has not come
        self._frame_size = 0  # of the whole lines of the frame at hand
        self._data: list[bytes] = []
        self._lost = False  # the frame at hand is too long

    @property
    def begun(self) -> bool:
        return self.findings.units > 0

    @property
    def midway(self) -> bool:
        return bool(self._frame_size or self._held)

    def feed(self, data: bytes) -> int:
        """See Watch."""
        if self.done:
            return 0
        if (
            not self._held
            and not self._frame_size
            and data.startswith(b"data: {")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n")
            and b"\r" not in data
            and len(data) <= self._limit
        ):  # one whole frame in one read, as nearly all come
            self._first = False
            self._frame(data[6:-2])
            return len(data)
        return self._feed_lines(data)

    def _feed_lines(self, data: bytes) -> int:
        """Line by line. A CR at the end of a read waits: the LF that may follow belongs to it."""
        before = len(self._held)
        waiting = self._held.endswith(b"\r")
        self._held += data
        if not waiting and b"\n" not in data and b"\r" not in data:
            self._bound()
            return len(data)
        text = bytes(self._held)
        start = 0
        for ending in _LINE_END.finditer(text, max(before - 1, 0)):
            self._line(text[start : ending.start()])
            start = ending.end()
            if self.done:
                self._held.clear()
                return start - before
        self._held[:] = text[start:]
        self._bound()
        return len(data)

    def end(self) -> None:
        """See Watch. Real servers leave out the last blank line, so what lacks it is a frame all the same."""
        if not self.done:
            line = bytes(self._held).removesuffix(b"\r")
            self._held.clear()
            if line:
                self._line(line)
            self._line(b"")

    def _line(self, line: bytes) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            data, self._data = self._data, []
            self._frame_size = 0
            self._lost = False
            if data:
                self._frame(b"\n".join(data))
            return
        self._frame_size += len(line)
        if self._frame_size > self._limit:
            self._lose()
        elif line.startswith(b"data:") and not self._lost:
            self._data.append(line[5:].removeprefix(b" "))

    def _frame(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.done = True
        else:
            self.findings.units += 1
            self.findings.read(data)

    def _bound(self) -> None:
        """Keep no more of a line than may be looked at. One byte more: a CR may be its end."""
        if self._lost or self._frame_size + len(self._held) > self._limit + 1:
            self._lose()
            if len(self._held) > len(_STUMP):
                self._held[:] = _STUMP + self._held[-1:]

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._counts["frame_unseen"] += 1
        self._data.clear()


class WholeWatch:
    """Looks at an answer in one piece, by its last `limit` bytes: JSON or anything else."""

    __slots__ = ("_limit", "_tail", "findings", "size")

    done = False  # only its HTTP message says that it is over
    midway = True  # until then it is a part of something

    def __init__(self, *, limit: int = TAIL_LIMIT) -> None:
        self.findings = Findings()
        self.size = 0
        self._limit = limit
        self._tail = bytearray()

    @property
    def begun(self) -> bool:
        return self.size > 0

    def feed(self, data: bytes) -> int:
        """See Watch."""
        self.size += len(data)
        self._tail += data
        if len(self._tail) > 2 * self._limit:  # not with each read: it moves what is kept
            del self._tail[: -self._limit]
        return len(data)

    def end(self) -> None:
        """See Watch."""
        tail, self._tail = bytes(self._tail[-self._limit :]), bytearray()
        if len(tail) == self.size:
            self.findings.read(tail)
            return
        for found in list(_USAGE.finditer(tail))[-1:]:
            with contextlib.suppress(ValueError, RecursionError):  # then nobody has reported it
                report, _ = _JSON.raw_decode(tail[found.end() :].decode("utf-8", "replace"))
                self.findings.note(chat_lenient.chunk({"usage": report}).usage)


_UNFINISHED = ("", "null", "none")
_STUMP = b"?"  # stands for a line that is too long: not blank, and no data
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
# The names with their quotes stand for themselves: inside a JSON string a quote has a backslash before it.
_TELLING = re.compile(rb'"(?:finish_reason"\s*:\s*"|usage"\s*:\s*\{|error"\s*:\s*[{"]|object"\s*:\s*"error")')
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_JSON = json.JSONDecoder()
