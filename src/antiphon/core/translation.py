r"""One answer, from an upstream's bytes to a client's: the layers of the streaming path, put together.

Owns their order: reader, machine, then encoder or fold. Pure: ids and randomness come in. It knows no
socket, so a shell may take the client's bytes whenever the client reads.

    answer = Translation(chat, model="m", message_id="msg_1", request_id="req_1", entropy=os.urandom, ...)
    answer.feed(b'data: {"choices":[...]}\n\n')
    answer.frames()      -> b"event: message_start\n..."      (streaming)
    answer.message()     -> b'{"id":"msg_1",...}'              (whole, after the end)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from msgspec import structs

from antiphon.core import tool_ids
from antiphon.core.answer import Head, Whole
from antiphon.core.blocks import Block
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.dialects.chat_state import Seal, no_seal
from antiphon.core.dialects.chat_stream import BODY_LIMIT, ChatStream
from antiphon.core.dialects.think_tags import Mode
from antiphon.core.faults import fault_of_response
from antiphon.core.parts import BlockStart, End, Event, Fault, MessageDelta, MessageUsage, Part, StopReason
from antiphon.core.sse import MAX_FRAME
from antiphon.core.stream import HELD_LIMIT, Phase, Stream
from antiphon.core.surfaces.messages.events import EventEncoder
from antiphon.core.surfaces.messages.fold import FOLD_LIMIT, Fold


class Translation:
    """See the module. `chat` is the request that the answer is to; limits are those of the layers."""

    __slots__ = ("_blocks", "_encoder", "_fold", "_lane", "_names", "_reader", "stop_reason", "stream")

    def __init__(
        self,
        chat: ChatRequest,
        *,
        model: str,
        message_id: str,
        request_id: str,
        streaming: bool,
        entropy: Callable[[int], bytes],
        counts: Counter[str],
        think_tags: Mode = "auto",
        seal: Seal = no_seal,
        max_frame: int = MAX_FRAME,
        max_body: int = BODY_LIMIT,
        max_held: int = HELD_LIMIT,
        max_fold: int = FOLD_LIMIT,
    ) -> None:
        taken = set(chat.history_tool_ids)

        def tool_id(original: str | None) -> str:
            made = tool_ids.outgoing(original, taken=taken, entropy=entropy)
            taken.add(made)
            return made

        self._names = chat.tool_names
        self._lane: Block | None = None  # see `_open_lane`
        self._reader = ChatStream(
            counts=counts,
            stop_sequences=chat.stop_sequences,
            think_tags=think_tags,
            seal=seal,
            max_frame=max_frame,
            max_body=max_body,
        )
        self.stream = Stream(
            tool_id=tool_id, input_tokens=chat.input_estimate, counts=counts, held_limit=max_held
        )
        self._blocks = self.stream.blocks
        self._encoder = EventEncoder(message_id=message_id, model=model, request_id=request_id)
        self._fold = (
            None if streaming else Fold(message_id=message_id, model=model, counts=counts, limit=max_fold)
        )
        self.stop_reason: StopReason | None = None  # what the client was told, once it was

    @property
    def streaming(self) -> bool:
        """The client gets events; otherwise one message at the end."""
        return self._fold is None

    @property
    def fault(self) -> Fault | None:
        """Why there is no good answer, if there is none."""
        if self.stream.fault is not None or self._fold is None:
            return self.stream.fault
        return self._fold.fault

    # --- what a shell asks (core.answer) ---

    @property
    def head(self) -> Head | None:
        return None

    @property
    def committed(self) -> bool:
        return self.stream.committed

    @property
    def begun(self) -> bool:
        return self.stream.begun

    @property
    def finished(self) -> bool:
        return self.stream.finished

    @property
    def ended(self) -> bool:
        return self.stream.ended

    @property
    def broken(self) -> bool:
        return False  # an `event: error` tells

    @property
    def usage(self) -> MessageUsage:
        return self.stream.usage

    @property
    def usage_reported(self) -> bool:
        return self.stream.usage_reported

    @property
    def pending(self) -> int:
        return self._blocks.pending

    # --- the upstream's side ---

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """Nothing in it is for a client of this surface."""

    def guess_input(self, tokens: int) -> None:
        """A better estimate of the prompt, in tokens."""
        self.stream.guess_input(tokens)

    def count_input(self, tokens: int) -> None:
        """The prompt was counted by the upstream's tokenizer, in tokens; what the upstream reports wins."""
        self.stream.count_input(tokens)

    def commit(self) -> None:
        """The client has waited long enough: promise a stream, whatever comes."""
        self.stream.commit()

    def feed(self, data: bytes) -> bool:
        """The next bytes of the upstream's body. False: they were more text for the lane, nothing else."""
        block = self._lane
        if block is not None:
            text = self._reader.plain(data, block.kind)
            if text is not None:
                self._blocks.flow(block, text)
                return False
        self._receive(self._reader.feed(data))
        return True

    def _receive(self, parts: list[Part]) -> None:
        self._lane = None
        self.stream.receive(parts)

    def end(self, fault: Fault | None = None) -> None:
        """The body is over: None for its regular end, else what cut it."""
        if not self.stream.ended:
            parts: list[Part] = self._reader.end(fault)
            # a reader that has had its end says no more; the machine may still wait for one
            self._receive(parts or [End(clean=False, fault=fault)])

    def refuse(self, fault: Fault) -> None:
        """There is no body to read: the upstream, or this gateway, said no."""
        self._receive([fault])

    def refuse_response(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The upstream's error answer; `headers` in lower case, `body` as far as it was read."""
        self.refuse(fault_of_response(status, headers, body))

    # --- the client's side ---

    def refusal(self, fault: Fault) -> Whole | None:
        return None

    def last_words(self, fault: Fault) -> bytes | None:
        return None

    def frames(self) -> bytes:
        """Everything that may go out now, for one write; empty if there is nothing."""
        block = self._lane
        if block is not None:
            return self._encoder.encode_one(self._blocks.take_flow(block)) if block.size else b""
        events = self._take()
        self._lane = self._open_lane()
        return self._encoder.encode(events) if events else b""

    def _open_lane(self) -> Block | None:
        """The block on the wire, if more text of its kind would change nothing but that block's backlog.

        That is what nearly every read brings. While it does, it needs no part, no table and no queue: it
        goes from `plain` to `flow` to `take_flow`. Every other read closes the lane and goes through all of
        them. Both ways must say and count the same: tests/core/test_lane.py.
        """
        if self.stream.phase is not Phase.STREAMING or not self._reader.at_rest:
            return None
        return self._blocks.flowing

    def fold(self) -> None:
        """Take what came into the whole message."""
        if self._fold is not None:
            self._fold.add(self._take())

    def message(self) -> bytes | None:
        """The whole message as JSON; None if there is none, then `fault` tells why."""
        return None if self._fold is None or self.stream.fault is not None else self._fold.message()

    def _take(self) -> list[Event]:
        events = self.stream.take()
        if self._names:
            events = [_renamed(event, self._names) for event in events]
        if self.stream.ended:
            for event in events:
                if isinstance(event, MessageDelta):
                    self.stop_reason = event.stop_reason
        return events


def _renamed(event: Event, names: dict[str, str]) -> Event:
    """A tool under the client's own name, where the upstream was given another."""
    if isinstance(event, BlockStart) and event.name in names:
        return structs.replace(event, name=names[event.name])
    return event
