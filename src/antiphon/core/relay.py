r"""One answer that passes as it is: bytes of an upstream to a client that speaks the same protocol.

Owns what is held until the client takes it, how the answer ends, and its usage, which it learns by looking
(`core.surfaces.openai.watching`). What the upstream says in a good answer reaches the client byte for byte,
each read at once. Two things are added where the upstream fails before its answer is complete, so that half
an answer does not look whole: a last frame with an `error` in a stream, and `broken`, upon which the
connection is cut instead of ended. Nothing is promised before the first byte, and there are no pings: the
protocol has none.

    answer = Relay(request, counts=counts)
    answer.on_head(200, {"content-type": "text/event-stream"})
    answer.feed(b'data: {"choices":[...]}\n\n')   -> True: the first byte, the status may go out
    answer.frames()                               -> b'data: {"choices":[...]}\n\n'
    answer.feed(b"data: [DONE]\n\n")              -> True: it has ended, the socket may stay open
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import structs

from antiphon.core import own_faults
from antiphon.core.answer import Head, Whole
from antiphon.core.parts import Fault, MessageUsage, StopReason
from antiphon.core.surfaces.openai.errors import (
    error_frame,
    passing_headers,
    refusal,
    upstream_refusal,
)
from antiphon.core.surfaces.openai.request import RelayRequest
from antiphon.core.surfaces.openai.watching import FRAME_LIMIT, StreamWatch, Watch, WholeWatch
from antiphon.core.usage import Tally

_SSE = "text/event-stream"


class Relay:
    """See the module; an `Answer`. `max_frame` is in bytes, for what is looked at of a stream's frame.

    `counts` takes what was odd, by kind: `done_missing` (a stream without its `[DONE]`), `frame_unseen` (too
    long to be looked at), `error_in_stream`.
    """

    __slots__ = (
        "_choices",
        "_counts",
        "_generates",
        "_held",
        "_max_frame",
        "_pending",
        "_refusal",
        "_tally",
        "_told",
        "_watch",
        "broken",
        "committed",
        "ended",
        "fault",
        "head",
        "stop_reason",
    )

    streaming = True  # bytes go out as they come, whatever they are

    def __init__(self, request: RelayRequest, *, counts: Counter[str], max_frame: int = FRAME_LIMIT) -> None:
        self._choices = request.choices
        self._generates = request.generates
        self._counts = counts
        self._max_frame = max_frame
        self._tally = Tally(input_tokens=request.input_estimate)
        self._watch: Watch = WholeWatch()
        self._held: list[bytes] = []
        self._pending = 0
        self._refusal: Whole | None = None  # the upstream's own
        self._told: tuple[bool, bool, bool] | None = None  # what the shell knows since the last read
        self.head: Head | None = None
        self.committed = False
        self.ended = False
        self.broken = False
        self.fault: Fault | None = None
        self.stop_reason: StopReason | None = None  # the last that was given, in the records' vocabulary

    # --- what a shell asks ---

    @property
    def begun(self) -> bool:
        """Some content is there: the first frame with data, or the first byte of what is no stream."""
        return self._watch.begun

    @property
    def finished(self) -> bool:
        """Every choice has given its reason to stop, or an error: only usage and `[DONE]` are missing."""
        findings = self._watch.findings
        return len(findings.finished) >= self._choices or findings.fault is not None

    @property
    def usage(self) -> MessageUsage:
        """As reported; else every frame of a stream counts as a token, and four bytes of other text."""
        tally = self._tally
        tally.deltas, tally.characters = self._watch.findings.units, self._watch.size
        usage = tally.usage
        if self._generates:
            return usage
        return structs.replace(
            usage, output_tokens=0, estimated=tuple(what for what in usage.estimated if what != "output")
        )

    @property
    def usage_reported(self) -> bool:
        """The upstream told how many tokens it generated."""
        return self._tally.reported

    @property
    def pending(self) -> int:
        """Bytes that the client has not taken."""
        return self._pending

    # --- the upstream's side ---

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of a good answer; `headers` have names in lower case."""
        self.head = (status, passing_headers(headers))
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._watch = StreamWatch(self._counts, limit=self._max_frame) if media_type == _SSE else WholeWatch()

    def feed(self, data: bytes) -> bool:
        """The next bytes of the body. False: nothing changed but what `frames` will give."""
        if self.ended:
            return False
        watch = self._watch
        size = watch.feed(data)
        # What is behind `[DONE]` would pass or not as the network has cut it, so none of it passes.
        self._hold(data if size == len(data) else data[:size])
        self.committed = True
        if watch.findings.usage:
            self._learn()
        if watch.done:
            self._close()
        before, self._told = self._told, (watch.begun, self.finished, self.ended)
        return self._told != before

    def end(self, fault: Fault | None = None) -> None:
        """The body is over: None for its regular end, else what cut it."""
        if self.ended:
            return
        watch = self._watch
        midway = watch.midway
        if fault is None or isinstance(watch, StreamWatch):
            watch.end()  # the `[DONE]` that lacks its blank line counts
        self._learn()
        if not self.committed:
            self.refuse(fault or own_faults.UPSTREAM_EMPTY)
        elif isinstance(watch, StreamWatch) and not watch.done:
            self._counts["done_missing"] += 1
            self._end_stream(fault, midway=midway)
        elif fault is not None and not watch.done:
            self.broken = True
            self._close(fault)
        else:
            self._close()

    def _end_stream(self, fault: Fault | None, *, midway: bool) -> None:
        if self.finished:
            # All of it has passed. A frame that is only half there must not look whole all the same.
            self.broken = fault is not None and midway
            self._close()
        elif fault is None:
            self._close(own_faults.UPSTREAM_CUT)  # for the record; the client gets the end as it came
        else:
            # Half a frame ends here, so that no client takes the error for the rest of it.
            self._hold((b"\n\n" if midway else b"") + error_frame(fault))
            self.broken = True
            self._close(fault)

    def refuse(self, fault: Fault) -> None:
        """There is no body to read: the upstream, or this gateway, said no."""
        if not self.ended:
            self.ended = True
            self.fault = fault

    def refuse_response(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The upstream's error answer, which passes as far as it may. `headers` in lower case."""
        if not self.ended:
            fault, self._refusal = upstream_refusal(status, headers, body)
            self.refuse(fault)

    def guess_input(self, tokens: int) -> None:
        """A better estimate of the prompt."""
        self._tally.guess_input(tokens)

    def count_input(self, tokens: int) -> None:
        """The upstream's own tokenizer has counted the prompt."""
        self._tally.count_input(tokens)

    def _learn(self) -> None:
        reports = self._watch.findings.usage
        for report in reports:
            self._tally.note(report)
        reports.clear()

    def _close(self, fault: Fault | None = None) -> None:
        findings = self._watch.findings
        self.ended = True
        self.fault = findings.fault or fault
        self.stop_reason = findings.stop_reason
        if findings.fault is not None:
            self._counts["error_in_stream"] += 1

    # --- the client's side ---

    def commit(self) -> None:
        """Nothing: a status that came before the upstream's would be a guess, and no ping could follow it."""

    def frames(self) -> bytes:
        """What the client has not taken yet, for one write."""
        held = self._held
        data = held[0] if len(held) == 1 else b"".join(held)
        held.clear()
        self._pending = 0
        return data

    def refusal(self, fault: Fault) -> Whole:
        """How a failure is said before anything was sent: in the upstream's words, if `fault` is its own."""
        return self._refusal if self._refusal is not None and fault is self.fault else refusal(fault)

    def last_words(self, fault: Fault) -> bytes:
        """What a begun stream is told before it is cut; nothing, where the answer is no stream."""
        if not isinstance(self._watch, StreamWatch):
            return b""
        # What is held stays behind, so that the client may be midway where the upstream was not.
        apart = b"\n\n" if self._watch.midway or self._pending else b""
        return apart + error_frame(fault)

    def fold(self) -> None:
        """Nothing is folded."""

    def message(self) -> bytes | None:
        """None: a whole answer passes in its pieces, too."""
        return None

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._pending += len(data)
