r"""One answer of a native Anthropic upstream, from its bytes to a client's: passed through, and mended.

Owns how a message begins, commits and ends; the layers are `core.dialects.messages_*`: reader, blocks, usage
and end, then frames or a fold. It is used like `core.translation.Translation`, which does the same for
upstreams that speak Chat Completions. Pure: ids and randomness come in.

    answer = Passage(request, model="m", message_id="msg_1", request_id="req_1", entropy=os.urandom, ...)
    answer.feed(b'event: content_block_delta\ndata: {...}\n\n')
    answer.frames()      -> b"event: message_start\n..."      (streaming)
    answer.message()     -> b'{"id":"msg_1",...}'              (whole, after the end)

    what came                  before a reason to stop     after one                   after the end
    event, piece               taken                       taken                       ignored
    an error                   fails                       fails                       ignored
    data that is no JSON       fails                       counted                     ignored
    `message_stop`             ends, the reason inferred   ends                        ignored
    `[DONE]`, EOF, a cut       fails                       ends, counted               ignored

A failure is an HTTP answer while nothing is committed, else `event: error`, and the open block stays open.
What was mended is in `counts`, by kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw

from antiphon.core import own_faults
from antiphon.core.answer import Head, Whole
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.dialects.messages_blocks import NativeBlocks
from antiphon.core.dialects.messages_end import Ending, stop_reason_of
from antiphon.core.dialects.messages_fold import NativeFold
from antiphon.core.dialects.messages_frames import NativeFrames, Writer
from antiphon.core.dialects.messages_stream import BODY_LIMIT, MessagesStream, Said
from antiphon.core.dialects.messages_usage import NativeUsage
from antiphon.core.dialects.messages_wire import Native, Piece, members_of, value_of
from antiphon.core.faults import fault_of_response
from antiphon.core.parts import End, Fault, Malformed, MessageUsage, StopReason
from antiphon.core.sse import MAX_FRAME
from antiphon.core.stream import HELD_LIMIT
from antiphon.core.surfaces.messages.fold import FOLD_LIMIT

_AT_START: dict[str, Any] = {
    "role": "assistant",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
}


class Passage:
    """See the module. `request` is what the answer is to; limits are those of the layers, in bytes.

    `max_held` bounds what waits behind the block on the wire; `message_id` is for an upstream without one.
    """

    __slots__ = (
        "_blocks",
        "_counts",
        "_ending",
        "_fault",
        "_fold",
        "_frames",
        "_max_held",
        "_message_id",
        "_model",
        "_promised",
        "_reader",
        "_start",
        "_started",
        "_usage",
        "_writer",
        "ended",
        "stop_reason",
    )

    def __init__(
        self,
        request: ChatRequest,
        *,
        model: str,
        message_id: str,
        request_id: str,
        streaming: bool,
        entropy: Callable[[int], bytes],
        counts: Counter[str],
        max_frame: int = MAX_FRAME,
        max_body: int = BODY_LIMIT,
        max_held: int = HELD_LIMIT,
        max_fold: int = FOLD_LIMIT,
    ) -> None:
        self._model = model
        self._message_id = message_id
        self._counts = counts
        self._max_held = max_held
        self._reader = MessagesStream(counts=counts, max_frame=max_frame, max_body=max_body)
        self._usage = NativeUsage(input_tokens=request.input_estimate)
        self._ending = Ending(stop_sequences=request.stop_sequences)
        self._frames = NativeFrames(request_id=request_id)
        self._fold = None if streaming else NativeFold(counts=counts, limit=max_fold)
        self._writer: Writer = self._frames if self._fold is None else self._fold
        self._blocks = NativeBlocks(self._writer, tally=self._usage.tally, counts=counts, entropy=entropy)
        self._start: Native | None = None  # the upstream's `message_start`
        self._started = False  # the client's is written
        self._promised = False  # the client gets a stream whatever comes, or the message ended well
        self._fault: Fault | None = None
        self.ended = False  # nothing more will be taken in
        self.stop_reason: StopReason | None = None  # what the client was told, once it was

    # --- what a shell asks ---

    @property
    def streaming(self) -> bool:
        """The client gets events; otherwise one message at the end."""
        return self._fold is None

    @property
    def head(self) -> Head | None:
        """A stream begins in its surface's own way."""
        return None

    @property
    def broken(self) -> bool:
        """Never: an `event: error` tells."""
        return False

    @property
    def begun(self) -> bool:
        """Some content is there: the first token has come."""
        return self._blocks.begun

    @property
    def committed(self) -> bool:
        """The status may go out: there is content, or a good end, or the client was promised a stream."""
        return self._promised or self._blocks.begun

    @property
    def finished(self) -> bool:
        """The upstream gave a reason to stop: what breaks from here on takes nothing away."""
        return self._ending.told

    @property
    def fault(self) -> Fault | None:
        """Why there is no good answer, if there is none."""
        if self._fault is not None or self._fold is None:
            return self._fault
        return self._fold.fault

    @property
    def usage(self) -> MessageUsage:
        """What the message has used so far; what nobody reported is estimated."""
        return self._usage.usage

    @property
    def usage_reported(self) -> bool:
        """The upstream told how many tokens it generated."""
        return self._usage.reported

    @property
    def pending(self) -> int:
        """Bytes received and not yet taken."""
        return self._frames.pending + self._blocks.held

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """Nothing in it is for a client."""

    def guess_input(self, tokens: int) -> None:
        """A better estimate of the prompt, in tokens."""
        self._usage.tally.guess_input(tokens)

    def count_input(self, tokens: int) -> None:
        """The prompt was counted by the upstream's tokenizer, in tokens; what the upstream reports wins."""
        self._usage.tally.count_input(tokens)

    # --- the upstream's side ---

    def feed(self, data: bytes) -> bool:
        """The next bytes of the upstream's body. False: they were more of what had begun, nothing else."""
        news = not self._blocks.begun
        for said in self._reader.feed(data):
            news = self._take(said) or news
        return news

    def end(self, fault: Fault | None = None) -> None:
        """The body is over: None for its regular end, else what cut it."""
        if self.ended:
            return
        for said in self._reader.end(fault):
            self._take(said)
        if not self.ended:  # a reader that has had its end says no more
            self._take_end(End(clean=False, fault=fault))

    def refuse(self, fault: Fault) -> None:
        """There is no body to read: the upstream, or this gateway, said no."""
        if not self.ended:
            self._fail(fault)

    def refuse_response(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The upstream's error answer; `headers` in lower case, `body` as far as it was read."""
        self.refuse(fault_of_response(status, headers, body))

    def refusal(self, fault: Fault) -> Whole | None:
        return None

    def last_words(self, fault: Fault) -> bytes | None:
        return None

    def commit(self) -> None:
        """The client has waited long enough: promise a stream, whatever comes."""
        if not self.ended:
            self._promised = True
            if not self._started:
                self._begin()

    # --- the client's side ---

    def frames(self) -> bytes:
        """Everything that may go out now, for one write; empty if there is nothing."""
        return self._frames.take()

    def fold(self) -> None:
        """Take what came into the whole message: it is there already."""

    def message(self) -> bytes | None:
        """The whole message as JSON; None if there is none, then `fault` tells why."""
        return None if self._fold is None or self._fault is not None else self._fold.message()

    # --- what the upstream said ---

    def _take(self, said: Said) -> bool:
        """One thing that it said. True: it was more than a delta."""
        if self.ended:
            return False
        if type(said) is Piece:
            self._blocks.add(said)
            self._look()
            return self.ended
        if isinstance(said, Native):
            _TAKE[said.kind](self, said)
            if not self.ended:
                self._look()
        elif isinstance(said, Malformed):
            if self.finished:
                self._counts["malformed_after_finish"] += 1
            else:
                self._fail(Fault("api_error", said.message, 502))
        elif isinstance(said, End):
            self._take_end(said)
        elif isinstance(said, Fault):
            self._fail(said)
        return True

    def _look(self) -> None:
        """After every step: has the message begun, has it failed?"""
        blocks = self._blocks
        if blocks.fault is not None:
            self._fail(blocks.fault)
        elif blocks.held > self._max_held:
            self._counts["held_too_much"] += 1
            self._fail(own_faults.UPSTREAM_TOO_LARGE)
        elif blocks.begun and not self._started:
            self._begin()

    def _take_start(self, event: Native) -> None:
        message = members_of(event.members.get("message")) or {}
        self._usage.note(members_of(message.get("usage")) or {}, final=False)
        if self._start is not None or self._blocks.begun:
            self._counts["message_start_repeated"] += 1
        else:
            self._start = event

    def _take_block_start(self, event: Native) -> None:
        self._blocks.start(event)

    def _take_block_stop(self, event: Native) -> None:
        self._blocks.stop(event)

    def _take_delta(self, event: Native) -> None:
        self._usage.note(self._ending.note(event, self._counts), final=True)
        if self._ending.fault is not None:
            self._fail(self._ending.fault)

    def _take_stop(self, event: Native) -> None:
        if not self._ending.seen:
            self._counts["message_delta_missing"] += 1
            if self._start is None and not self._blocks.begun:
                self._fail(own_faults.UPSTREAM_EMPTY)
                return
        self._complete()

    def _take_end(self, end: End) -> None:
        if not self.finished:
            self._fail(end.fault or own_faults.UPSTREAM_CUT)
            return
        self._counts["message_stop_missing"] += 1
        self._complete()

    # --- beginning and end ---

    def _begin(self) -> None:
        """Write `message_start`: the upstream's, completed, or one of our own where it has said none yet."""
        self._started = True
        event = self._start.members if self._start is not None else {}
        message: dict[str, Any] = dict(members_of(event.get("message")) or {})
        if self._start is None and self._blocks.begun:
            self._counts["message_start_missing"] += 1
        id_ = value_of(message.get("id"))
        if not isinstance(id_, str) or not id_.startswith("msg_"):  # llama.cpp's are `chatcmpl-`
            id_ = self._message_id
            if self._start is not None:
                self._counts["message_id_made"] += 1
        message = {"id": id_, "type": "message", **_without(message, "id", "type"), **_AT_START}
        message["model"] = self._model
        message["usage"] = self._usage.start_members(begun=self._blocks.begun)
        self._writer.message_start({**event, "message": message})

    def _complete(self) -> None:
        """The upstream has said everything, and that this is the end."""
        ending, blocks = self._ending, self._blocks
        if ending.fault is not None:
            self._fail(ending.fault)
            return
        blocks.finish(cut_short=ending.cut_short)
        if blocks.fault is not None:
            self._fail(blocks.fault)
            return
        reason = ending.decide(tools=blocks.tools, counts=self._counts)
        self.ended = self._promised = True
        if not self._started:
            self._begin()
        self.stop_reason = stop_reason_of(reason)
        self._writer.message_end(ending.close(reason, self._usage.final_members()))

    def _fail(self, fault: Fault) -> None:
        self.ended = True
        self._fault = fault
        if self.committed:
            if not self._started:
                self._begin()
            self._writer.error(fault)


def _without(members: dict[str, Raw], *names: str) -> dict[str, Raw]:
    return {name: raw for name, raw in members.items() if name not in names}


_TAKE: dict[str, Callable[[Passage, Native], None]] = {
    "message_start": Passage._take_start,
    "content_block_start": Passage._take_block_start,
    "content_block_stop": Passage._take_block_stop,
    "message_delta": Passage._take_delta,
    "message_stop": Passage._take_stop,
}
