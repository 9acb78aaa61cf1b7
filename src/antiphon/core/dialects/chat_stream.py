r"""Chat Completions answers: the bytes of a body in, parts out.

Owns everything that OpenAI-style servers do differently when they answer: where reasoning stands, how
tool calls are cut, what an error looks like, how a stream ends. It must not know about blocks or about
the order that clients need.

    reader = ChatStream(stop_sequences=("\n\n",), counts=Counter())
    reader.feed(b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n')   -> [Text("Hi")]
    reader.feed(b"data: [DONE]\n\n")                                              -> [End(clean=True)]
    reader.end(fault)     the body ended otherwise: EOF, a reset, a time limit

A frame is decoded by msgspec into what is used of it; a frame that this refuses (list content, string
index, odd usage, lone surrogates, deep nesting) goes once through `chat_lenient`, which builds the same
structs. Both ways meet in `_take_chunk`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from antiphon.core import faults, own_faults
from antiphon.core.dialects import chat_lenient
from antiphon.core.dialects.chat_calls import CallKeys, Fragment
from antiphon.core.dialects.chat_plain import decode_plain
from antiphon.core.dialects.chat_state import Seal, StateKeeper, no_seal
from antiphon.core.dialects.chat_wire import (
    Call,
    Choice,
    Chunk,
    Delta,
    Segments,
    WireUsage,
    decode_chunk,
    usage_part,
)
from antiphon.core.dialects.surrogates import SurrogateMender, whole
from antiphon.core.dialects.think_tags import Mode, Pieces, ThinkTags
from antiphon.core.parts import (
    End,
    Fault,
    Finish,
    Malformed,
    Part,
    Reasoning,
    Refusal,
    StopReason,
    Text,
    ToolArgs,
    ToolOpen,
    Usage,
)
from antiphon.core.sse import BOM, MAX_FRAME, Frame, SseDecoder

BODY_LIMIT = 32 * 1024 * 1024

# finish_reason -> stop_reason. Words that are failures stand in core.faults; what is in neither is a
# normal end, counted.
FINISH_WORDS: dict[str, StopReason] = {
    "stop": "end_turn",
    "eos": "end_turn",
    "eos_token": "end_turn",
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_calls": "tool_use",
    "tool_use": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
    "content_filtered": "refusal",
    "sensitive": "refusal",
    "safety": "refusal",
    "refusal": "refusal",
}
# "None": what Python servers make of it
_UNFINISHED = ("", "null", "none")
_PLAIN_EVENTS = (b"", b"message")


class ChatStream:
    """Reads one answer. `stop_sequences` are the client's; `counts` takes what was odd, by kind.

    `seal` seals state that the upstream wants back.
    `max_frame` (one event of a stream) and `max_body` (a whole JSON answer) are in bytes.
    """

    __slots__ = (
        "_body",
        "_calls",
        "_counts",
        "_done",
        "_last_finish",
        "_lead",
        "_max_body",
        "_mender",
        "_plain",
        "_said",
        "_seen",
        "_sse",
        "_state",
        "_stops",
        "_tags",
    )

    def __init__(
        self,
        *,
        counts: Counter[str],
        stop_sequences: tuple[str, ...] = (),
        think_tags: Mode = "auto",
        seal: Seal = no_seal,
        max_frame: int = MAX_FRAME,
        max_body: int = BODY_LIMIT,
    ) -> None:
        self._counts = counts
        self._stops = stop_sequences
        self._tags: ThinkTags | None = ThinkTags(think_tags)
        self._mender = SurrogateMender(counts)
        self._calls = CallKeys()
        self._state = StateKeeper(seal, counts)
        self._sse = SseDecoder(max_frame)
        self._max_body = max_body
        self._lead: bytes | None = b""  # what may be part of a BOM; None: it is known what this body is
        self._body: bytearray | None = None  # a body that is no event stream: JSON, HTML
        self._last_finish: tuple[str, str | None] = ("", None)
        self._seen = False  # a choice, or a report of usage
        self._said = False  # a delta with something in it
        self._done = False
        self._plain = True  # no chunk has said more than text since there is text

    @property
    def at_rest(self) -> bool:
        """Nothing that came before waits for what comes next. Asked of an answer that is going on."""
        return self._plain and self._tags is None and not self._mender.waiting and not self._state.waiting

    def plain(self, data: bytes, kind: str) -> str | None:
        """The text of a read that is one whole frame with one piece of text of this kind, and nothing else.

        To be asked only `at_rest`: then `feed` would make this one part of it and be left as it was, and so
        is this. `kind` is `text` or `thinking`. None: `feed` must take the read.
        """
        payload = self._sse.lone(data)
        if payload is None:
            return None
        delta = decode_plain(payload)
        if delta is None:
            # A server that says more in one chunk mostly does so in all: not to be tried again and again.
            self._plain = False
            return None
        text, other = delta.content, delta.reasoning_content or delta.reasoning
        if kind == "thinking":
            text, other = other, text
        return text if text and not other else None

    def feed(self, data: bytes) -> list[Part]:
        """Take the next bytes of the body. Never raises for what they say; nothing follows an end."""
        out: list[Part] = []
        if self._done:
            return out
        if self._lead is not None:
            data = self._sniff(self._lead + data)
        body = self._body
        if body is not None:
            body += data
            if len(body) > self._max_body:
                self._finish(out, own_faults.UPSTREAM_TOO_LARGE)
            return out
        self._take_frames(self._sse.feed(data), out)
        if self._sse.overflow and not self._done:
            self._finish(out, own_faults.UPSTREAM_TOO_LARGE)
        return out

    def end(self, fault: Fault | None = None) -> list[Part]:
        """The body is over: `fault` None for its regular end (EOF), else what cut it."""
        out: list[Part] = []
        if self._done:
            return out
        if self._body is not None:
            self._take_document(bytes(self._body), fault, out)
            return out
        self._take_frames(self._sse.flush(), out, cut=True)
        if not self._done:
            self._flush_held(out)
            if fault is None and not self._seen:
                fault = own_faults.UPSTREAM_EMPTY
            self._finish(out, End(clean=False, fault=fault))
        return out

    # --- what kind of body is this ---

    def _sniff(self, data: bytes) -> bytes:
        """The first byte that is no white space tells an event stream from a document."""
        if BOM.startswith(data):
            self._lead = data
            return b""
        # Blank lines before the answer are a server's way to keep a connection alive (DeepSeek).
        data = data.removeprefix(BOM).lstrip()
        self._lead = None if data else b""
        if data[:1] in (b"{", b"[", b"<"):
            self._body = bytearray()
        return data

    def _take_document(self, body: bytes, fault: Fault | None, out: list[Part]) -> None:
        """A whole JSON completion instead of a stream is one burst; everything else is a failure."""
        document = chat_lenient.load(body)
        if isinstance(document, dict) and not faults.is_error(document):
            chunk = chat_lenient.chunk(document)
            if chunk.choices:
                self._take_chunk(chunk, out, document=True)
                if not self._done:
                    self._flush_held(out)
                    self._finish(out, End(clean=True))
                return
        if document is chat_lenient.NOT_JSON and fault is not None:
            self._finish(out, End(clean=False, fault=fault))
        else:
            self._finish(out, faults.fault_of_response(200, {}, body))

    # --- frames ---

    def _take_frames(self, frames: list[Frame], out: list[Part], *, cut: bool = False) -> None:
        """`cut`: the body ended before the last frame did."""
        for event, payload in frames:
            chunk = decode_chunk(payload) if event in _PLAIN_EVENTS else None
            if chunk is not None:
                self._take_chunk(chunk, out)
            else:
                self._take_odd_frame(event, payload.strip(), out, cut=cut)
            if self._done:
                return

    def _take_odd_frame(self, event: bytes, payload: bytes, out: list[Part], *, cut: bool) -> None:
        document = chat_lenient.load(payload)
        known = document is not chat_lenient.NOT_JSON
        if event == b"error":
            said = document if known else payload.decode("utf-8", "replace")
            self._finish(out, faults.fault_of_error(said))
        elif payload.startswith(b"[DONE]"):
            self._take_done(out)
        elif isinstance(document, dict):
            self._take_object(event, document, out)
        elif isinstance(document, list) and _is_error_list(document):
            self._finish(out, faults.fault_of_error(document))
        elif known or not payload:
            self._counts["foreign_data"] += 1
        elif event not in _PLAIN_EVENTS:
            self._counts["foreign_event"] += 1
        elif not cut:
            out.append(Malformed(own_faults.UPSTREAM_MALFORMED.message))

    def _take_object(self, event: bytes, document: dict[str, Any], out: list[Part]) -> None:
        plain = event in _PLAIN_EVENTS
        if document.get("error") or (plain and faults.is_error(document)):
            self._finish(out, faults.fault_of_error(document))
        elif plain or "choices" in document:
            self._take_chunk(chat_lenient.chunk(document), out)
        else:
            self._counts["foreign_event"] += 1

    def _take_done(self, out: list[Part]) -> None:
        if not self._seen:
            self._finish(out, own_faults.UPSTREAM_EMPTY)
            return
        self._flush_held(out)
        self._finish(out, End(clean=True))

    def _take_chunk(self, chunk: Chunk, out: list[Part], *, document: bool = False) -> None:
        # before the content: message_start shall have it
        reported = chunk.usage is not None and self._take_usage(chunk.usage, out)
        progress = chunk.prompt_progress
        if progress is not None and progress.total is not None:
            out.append(Usage(prompt=progress.total))
        for choice in chunk.choices:
            if choice.index:
                self._counts["other_choice"] += 1
                continue
            self._seen = True
            if choice.usage is not None and not reported:
                self._take_usage(choice.usage, out)
            self._take_choice(choice, out, document=document)
            if self._done:
                return

    def _take_usage(self, usage: WireUsage, out: list[Part]) -> bool:
        part = usage_part(usage)
        if part is None:
            return False
        self._seen = True
        out.append(part)
        return True

    def _take_choice(self, choice: Choice, out: list[Part], *, document: bool) -> None:
        if choice.error is not None:
            self._finish(out, faults.fault_of_error({"error": choice.error}))
            return
        delta = choice.delta
        if delta is None and (document or not self._said):
            delta = choice.message
        if delta is not None:
            self._take_delta(delta, out)
        word = choice.finish_reason
        if word is not None and word.strip().lower() not in _UNFINISHED:
            self._take_finish(word.strip().lower(), choice.matched, out)

    def _take_finish(self, word: str, matched: str | None, out: list[Part]) -> None:
        failure = faults.finish_fault(word)
        if failure is not None:
            self._finish(out, failure)
            return
        reason = FINISH_WORDS.get(word)
        if reason is None:
            self._counts["unknown_finish_reason"] += 1
            reason = "end_turn"
        if matched is None and self._last_finish[0] == word:
            matched = self._last_finish[1]  # the same chunk once more, for its usage
        self._last_finish = (word, matched)
        if reason == "end_turn" and matched is not None and matched in self._stops:
            out.append(Finish("stop_sequence", matched))
        else:
            out.append(Finish(reason))

    # --- what a delta says ---

    def _take_delta(self, delta: Delta, out: list[Part]) -> None:
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning:
            self._take_reasoning(reasoning, out)
        if delta.details:
            self._state.note_details(list(delta.details))
        if self._state.waiting and (delta.content or delta.tool_calls or delta.refusal):
            out += self._state.take()
        if delta.extra_content is not None:
            self._state.note_message(delta.extra_content)
        if delta.content:
            if self._tags is None:
                self._say(Text, delta.content, out)
            else:
                self._take_content(delta.content, out)
        if delta.segments:
            self._take_segments(delta.segments, out)
        if delta.refusal:
            self._stop_tags(out)
            self._say(Refusal, delta.refusal, out)
        if delta.tool_calls:
            self._take_calls(delta.tool_calls, out)

    def _take_segments(self, segments: Segments, out: list[Part]) -> None:
        for is_reasoning, text in segments:
            if is_reasoning:
                self._take_reasoning(text, out)
            else:
                self._take_content(text, out)

    def _take_reasoning(self, text: str, out: list[Part]) -> None:
        self._stop_tags(out)
        self._say(Reasoning, text, out)

    def _take_content(self, text: str, out: list[Part]) -> None:
        if self._tags is None:
            self._say(Text, text, out)
            return
        self._said = True
        self._say_split(self._tags.split(text), out)
        if self._tags.off:
            self._tags = None

    def _take_calls(self, calls: list[Call], out: list[Part]) -> None:
        fragments: list[Fragment] = []
        arguments: list[str] = []
        extras: list[Any] = []
        for position, call in enumerate(calls):
            function = call.function
            name, text = (function.name, function.arguments) if function is not None else (None, None)
            # Mistral's types default an id to the word "null"
            id_ = call.id if call.id and call.id != "null" else None
            if id_ or name or text or call.extra_content is not None:  # otherwise it says nothing
                place = position if len(calls) > 1 else None
                fragments.append(Fragment(call.index, id_, name or "", place))
                arguments.append(text or "")
                extras.append(call.extra_content)
        if not fragments:
            return
        self._said = True
        self._stop_tags(out)
        self._give_up_halves(ToolArgs, out)
        keys = self._calls.keys(fragments)
        for key, fragment, text, extra in zip(keys, fragments, arguments, extras, strict=True):
            if fragment.id or fragment.name:
                id_ = whole(fragment.id) if fragment.id else None
                out.append(ToolOpen(key, id_, whole(fragment.name)))
            if extra is not None:
                out += self._state.of_call(key, extra)
            if text and (self._mender.waiting or not text.isascii()):
                text = self._mender.text((ToolArgs, key), text)  # noqa: PLW2901 - the same text, mended
            if text:
                out.append(ToolArgs(key, text))

    def _say(self, kind: type[Text | Reasoning | Refusal], text: str, out: list[Part]) -> None:
        self._said = True
        if self._mender.waiting or not text.isascii():
            self._give_up_halves(kind, out)
            text = self._mender.text((kind, 0), text)
            if not text:
                return
        out.append(kind(text))

    def _say_split(self, pieces: Pieces, out: list[Part]) -> None:
        for is_reasoning, text in pieces:
            self._say(Reasoning if is_reasoning else Text, text, out)

    def _give_up_halves(self, kind: type[Part] | None, out: list[Part]) -> None:
        if not self._mender.waiting:
            return
        for (lost_kind, key), text in self._mender.give_up(kind):
            out.append(ToolArgs(key, text) if lost_kind is ToolArgs else lost_kind(text))

    def _stop_tags(self, out: list[Part]) -> None:
        tags, self._tags = self._tags, None
        if tags is not None:
            self._say_split(tags.stop(), out)

    def _flush_held(self, out: list[Part]) -> None:
        self._stop_tags(out)
        self._give_up_halves(None, out)
        out += self._state.take_all()

    def _finish(self, out: list[Part], part: Part) -> None:
        self._done = True
        out.append(part)


def _is_error_list(document: list[Any]) -> bool:
    """Gemini's way: an array with an error object in it."""
    return any(isinstance(item, dict) and faults.is_error(item) for item in document[:1])
