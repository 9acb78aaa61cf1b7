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

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.core import faults, own_faults
from antiphon.core.dialects import chat_lenient
from antiphon.core.dialects.chat_calls import CallKeys
from antiphon.core.dialects.chat_wire import Choice, Chunk, Delta, decode_chunk
from antiphon.core.dialects.think_tags import Mode, ThinkTags
from antiphon.core.parts import (
    End,
    Fault,
    Finish,
    Malformed,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    StopReason,
    Text,
    ToolArgs,
    ToolOpen,
    Usage,
)
from antiphon.core.sse import FrameTooLargeError, SseDecoder

BODY_LIMIT = 32 * 1024 * 1024  # of a whole JSON answer, in bytes

# finish_reason -> stop_reason. Words that are failures stand in core.faults; what is in neither is a
# normal end, counted. "" and "null" mean not finished.
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
_UNFINISHED = ("", "null")
_HALF = re.compile(r"[\ud800-\udfff]")


class ChatStream:
    """Reads one answer. `stop_sequences` are the client's; `counts` takes what was odd, by kind."""

    __slots__ = (
        "_body",
        "_calls",
        "_counts",
        "_done",
        "_halves",
        "_seen_delta",
        "_seen_frame",
        "_sse",
        "_start",
        "_stops",
        "_tags",
    )

    def __init__(
        self, *, counts: Counter[str], stop_sequences: tuple[str, ...] = (), think_tags: Mode = "auto"
    ) -> None:
        self._counts = counts
        self._stops = stop_sequences
        self._tags = ThinkTags(think_tags)
        self._sse = SseDecoder()
        self._calls = CallKeys()
        self._start: bytes | None = b""  # white space before the first byte that tells what this is
        self._body: bytearray | None = None  # a body that is no event stream: JSON, HTML
        self._halves: dict[tuple[str, int], str] = {}  # high surrogates that wait for their low half
        self._seen_frame = False
        self._seen_delta = False
        self._done = False

    def feed(self, data: bytes) -> list[Part]:
        """Take the next bytes of the body. Never raises for what they say; nothing follows an end."""
        out: list[Part] = []
        if self._done:
            return out
        if self._start is not None:
            data = self._sniff(data)
        body = self._body
        if body is not None:
            body += data
            if len(body) > BODY_LIMIT:
                self._finish(out, _broken("the upstream's answer is larger than this gateway takes"))
            return out
        try:
            frames = self._sse.feed(data)
        except FrameTooLargeError:
            self._finish(out, _broken("one event of the upstream's stream is larger than this gateway takes"))
            return out
        for event, payload in frames:
            self._take_frame(event, payload, out, whole=True)
            if self._done:
                break
        return out

    def end(self, fault: Fault | None = None) -> list[Part]:
        """The body is over: `fault` None for its regular end (EOF), else what cut it."""
        out: list[Part] = []
        if self._done:
            return out
        if self._body is not None:
            self._take_document(bytes(self._body), out)
        else:
            for event, payload in self._sse.flush():
                # Some servers omit the last blank line; half a frame is a cut, not bad data.
                self._take_frame(event, payload, out, whole=False)
        if not self._done:
            self._flush_held(out)
            if fault is None and not self._seen_frame:
                fault = own_faults.UPSTREAM_EMPTY
            self._finish(out, End(clean=False, fault=fault))
        return out

    # --- what kind of body is this ---

    def _sniff(self, data: bytes) -> bytes:
        """The first byte that is no white space tells an event stream from a document."""
        data = (self._start or b"") + data
        first = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if not first:
            self._start = data
            return b""
        self._start = None
        if first in b"{[<":
            self._body = bytearray()
        return data

    def _take_document(self, body: bytes, out: list[Part]) -> None:
        """A whole JSON completion instead of a stream is one burst; everything else is a failure."""
        self._seen_frame = True
        document = chat_lenient.load(body)
        if isinstance(document, dict) and not faults.is_error(document):
            chunk = chat_lenient.chunk(document)
            if chunk.choices:
                self._take_chunk(chunk, out, document=True)
                if not self._done:
                    self._flush_held(out)
                    self._finish(out, End(clean=True))
                return
        self._finish(out, faults.fault_of_response(200, {}, body))

    # --- frames ---

    def _take_frame(self, event: bytes, payload: bytes, out: list[Part], *, whole: bool) -> None:
        chunk = decode_chunk(payload) if not event else None
        if chunk is not None:
            self._seen_frame = True
            self._take_chunk(chunk, out)
            return
        payload = payload.strip()
        if not payload:
            return
        if payload.startswith(b"[DONE]"):
            self._take_done(out)
            return
        document = chat_lenient.load(payload)
        if document is chat_lenient.NOT_JSON:
            self._take_garbage(event, payload, out, whole=whole)
        elif event == b"error" or (isinstance(document, dict) and faults.is_error(document)):
            self._seen_frame = True
            self._finish(out, faults.fault_of_error(document))
        elif (
            isinstance(document, list)
            and document
            and isinstance(document[0], dict)
            and faults.is_error(document[0])
        ):
            self._finish(out, faults.fault_of_error(document))
        elif isinstance(document, dict):
            if event in (b"", b"message") or "choices" in document:
                self._seen_frame = True
                self._take_chunk(chat_lenient.chunk(document), out)
            else:
                self._counts["foreign_event"] += 1
        else:
            self._counts["foreign_data"] += 1

    def _take_garbage(self, event: bytes, payload: bytes, out: list[Part], *, whole: bool) -> None:
        if event == b"error":
            self._finish(out, faults.fault_of_error(payload.decode("utf-8", "replace")))
        elif event not in (b"", b"message"):
            self._counts["foreign_event"] += 1
        elif whole:
            self._seen_frame = True
            out.append(Malformed("the upstream sent malformed data in its stream"))

    def _take_done(self, out: list[Part]) -> None:
        if not self._seen_frame:
            self._finish(out, own_faults.UPSTREAM_EMPTY)
            return
        self._flush_held(out)
        self._finish(out, End(clean=True))

    def _take_chunk(self, chunk: Chunk, out: list[Part], *, document: bool = False) -> None:
        if chunk.usage is not None:
            self._take_usage(chunk.usage, out)
        for choice in chunk.choices or ():
            if choice.index:
                self._counts["other_choice"] += 1
                continue
            self._take_choice(choice, out, document=document)
            if self._done:
                return

    def _take_choice(self, choice: Choice, out: list[Part], *, document: bool) -> None:
        if choice.usage is not None:
            self._take_usage(choice.usage, out)
        delta = choice.delta
        if delta is None and choice.message is not None and (document or not self._seen_delta):
            delta = choice.message
        if delta is not None:
            self._take_delta(delta, out)
        word = choice.finish_reason
        if word is not None and word not in _UNFINISHED:
            self._take_finish(word, choice, out)

    def _take_usage(self, usage: Usage, out: list[Part]) -> None:
        if usage != _NO_USAGE:
            out.append(usage)

    def _take_finish(self, word: str, choice: Choice, out: list[Part]) -> None:
        failure = faults.finish_fault(word)
        if failure is not None:
            self._finish(out, failure)
            return
        reason = FINISH_WORDS.get(word.lower())
        if reason is None:
            self._counts["unknown_finish_reason"] += 1
            reason = "end_turn"
        matched = choice.matched
        if reason == "end_turn" and matched is not None and matched in self._stops:
            out.append(Finish("stop_sequence", matched))
        else:
            out.append(Finish(reason))

    def _take_delta(self, delta: Delta, out: list[Part]) -> None:
        if delta.reasoning:
            self._stop_tags(out)
            self._say("reasoning", delta.reasoning, out)
        if delta.content:
            self._take_content(delta.content, out)
        for is_reasoning, text in delta.segments:
            if is_reasoning:
                self._stop_tags(out)
                self._say("reasoning", text, out)
            else:
                self._take_content(text, out)
        if delta.refusal:
            self._seen_delta = True
            self._say("refusal", delta.refusal, out)
        calls = delta.tool_calls
        if calls:
            self._take_calls(calls, out)
        for signature in delta.opaque:
            out.append(Opaque(signature))

    def _take_content(self, text: str, out: list[Part]) -> None:
        self._seen_delta = True
        if self._tags.off:
            self._say("text", text, out)
            return
        self._say_split(self._tags.split(text), out)

    def _take_calls(self, calls: list[Any], out: list[Part]) -> None:
        self._seen_delta = True
        if not self._tags.off:
            self._stop_tags(out)
        several = len(calls) > 1
        for position, call in enumerate(calls):
            # Mistral's types default an id to the word "null"
            id_ = call.id if call.id and call.id != "null" else None
            if not (id_ or call.name or call.arguments):
                continue  # a fragment that says nothing
            key = self._calls.key(
                index=call.index, id=id_, name=call.name or None, position=position, several=several
            )
            if id_ or call.name:
                out.append(ToolOpen(key, _whole(id_), _whole(call.name) or ""))
            if call.arguments:
                self._say("args", call.arguments, out, key)

    # --- text without lone surrogates ---

    def _say(self, channel: str, text: str, out: list[Part], key: int = 0) -> None:
        """Emit a piece; a high surrogate at its end waits for the low half in the channel's next piece."""
        if self._halves:
            self._flush_other_halves(channel, out)
            text = self._halves.pop((channel, key), "") + text
        if not text.isascii() and _HALF.search(text):
            if "\ud800" <= text[-1] <= "\udbff":
                self._halves[channel, key] = text[-1]
                text = text[:-1]
            # UTF-16 joins pairs and shows what has no partner
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            self._counts["lone_surrogate"] += 1
        if text:
            out.append(_PART[channel](text, key))

    def _say_split(self, pieces: list[tuple[bool, str]], out: list[Part]) -> None:
        for is_reasoning, text in pieces:
            if is_reasoning:
                self._say("reasoning", text, out)
            else:
                self._say("text", text, out)

    def _flush_other_halves(self, channel: str, out: list[Part]) -> None:
        for other in [pair for pair in self._halves if pair[0] != channel]:
            del self._halves[other]
            out.append(_PART[other[0]]("\ufffd", other[1]))

    def _stop_tags(self, out: list[Part]) -> None:
        if not self._tags.off:
            self._say_split(self._tags.stop(), out)

    def _flush_held(self, out: list[Part]) -> None:
        self._stop_tags(out)
        self._flush_other_halves("", out)

    def _finish(self, out: list[Part], part: Part) -> None:
        self._done = True
        out.append(part)


_NO_USAGE = Usage()


def _whole(word: str | None) -> str | None:
    """A name or id that can be encoded: halves of a surrogate pair do not wait there."""
    return word if word is None or word.isascii() else _HALF.sub("\ufffd", word)


_PART: dict[str, Callable[[str, int], Part]] = {
    "text": lambda text, key: Text(text),
    "refusal": lambda text, key: Refusal(text),
    "reasoning": lambda text, key: Reasoning(text),
    "args": lambda text, key: ToolArgs(key, text),
}


def _broken(message: str) -> Fault:
    return Fault("api_error", message, 502)
