"""The alphabet in the middle: what an upstream said (parts) and what a client hears (events).

Dialects turn an upstream's bytes into parts, `core.stream` turns parts into events, surfaces encode
events. This module owns the two vocabularies and nothing else: no parsing, no order, no I/O.

    Text("Hel"), Text("lo"), Finish("end_turn"), End(clean=True)
    -> MessageStart, BlockStart, TextDelta, TextDelta, BlockStop, MessageDelta, MessageStop
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

StopReason: TypeAlias = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
]

# --- Parts: what an upstream said ---------------------------------------------------------------


class Text(Struct, frozen=True, gc=False):
    """A piece of the visible answer. Never empty, never with lone surrogates."""

    s: str


class Reasoning(Struct, frozen=True, gc=False):
    """A piece of the model's reasoning. Never empty, never with lone surrogates."""

    s: str


class Refusal(Struct, frozen=True, gc=False):
    """A piece of a refusal: text that also makes the message's `stop_reason` `refusal`."""

    s: str


class ToolOpen(Struct, frozen=True, gc=False):
    """A tool call is named, or more is known of it. May come several times for one `key`.

    `id` is the upstream's id (None: not given); `name` a piece of the name ("" : not given).
    """

    key: int
    id: str | None
    name: str


class ToolArgs(Struct, frozen=True, gc=False):
    """A piece of a tool call's argument text. Never empty."""

    key: int
    s: str


class Opaque(Struct, frozen=True, gc=False):
    """State that the upstream wants back, already sealed: it leaves in a `signature_delta`.

    `key` None: it belongs to the last thinking block (a new one, if text or tools came since);
    a tool's key: it goes into an empty thinking block right before that tool.
    """

    signature: str
    key: int | None = None


class Usage(Struct, frozen=True, gc=False):
    """Token counts as reported; None means that the upstream did not say (or said nonsense).

    `prompt` includes what was read from or written to a cache, as Chat Completions counts it.
    """

    prompt: int | None = None
    completion: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None


class Finish(Struct, frozen=True, gc=False):
    """The upstream named a reason to stop; `matched` is the stop string of the client's that it hit."""

    reason: StopReason
    matched: str | None = None


class Fault(Struct, frozen=True, gc=False):
    """The upstream (or this gateway) reported a failure.

    `kind` is an Anthropic error type, `status` the HTTP status that it has before the commit point,
    `message` is already scrubbed. `retry_after` is the header's value, seconds or an HTTP date.
    """

    kind: str
    message: str
    status: int
    retry_after: str | None = None
    should_retry: bool | None = None


class Malformed(Struct, frozen=True, gc=False):
    """Data that is neither JSON nor `[DONE]`: a failure, unless the upstream had finished already."""

    message: str


class End(Struct, frozen=True, gc=False):
    """Nothing more will come. `clean` is true only for the upstream's own `[DONE]` (or a whole JSON body).

    Otherwise `fault` tells what cut the answer (EOF, reset, a time limit), should it matter.
    """

    clean: bool
    fault: Fault | None = None


Part: TypeAlias = (
    Text | Reasoning | Refusal | ToolOpen | ToolArgs | Opaque | Usage | Finish | Fault | Malformed | End
)

# --- Events: what a client hears ----------------------------------------------------------------


class MessageUsage(Struct, frozen=True, gc=False):
    """Usage in Anthropic's terms: `input_tokens` excludes cached tokens; None is left out.

    `estimated` names what nobody reported ("input", "output"); it is for records, not for the wire.
    """

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    thinking_tokens: int | None = None
    estimated: tuple[str, ...] = ()


class MessageStart(Struct, frozen=True, gc=False):
    usage: MessageUsage


class BlockStart(Struct, frozen=True, gc=False):
    """`kind` is `text`, `thinking` or `tool_use`; `id` and `name` are set for a tool."""

    index: int
    kind: str
    id: str = ""
    name: str = ""


class TextDelta(Struct, frozen=True, gc=False):
    index: int
    s: str


class ThinkingDelta(Struct, frozen=True, gc=False):
    index: int
    s: str


class InputJsonDelta(Struct, frozen=True, gc=False):
    index: int
    s: str


class SignatureDelta(Struct, frozen=True, gc=False):
    index: int
    s: str


class BlockStop(Struct, frozen=True, gc=False):
    index: int


class MessageDelta(Struct, frozen=True, gc=False):
    stop_reason: StopReason
    stop_sequence: str | None
    usage: MessageUsage


class MessageStop(Struct, frozen=True, gc=False):
    pass


class Ping(Struct, frozen=True, gc=False):
    pass


class Error(Struct, frozen=True, gc=False):
    fault: Fault


Event: TypeAlias = (
    MessageStart
    | BlockStart
    | TextDelta
    | ThinkingDelta
    | InputJsonDelta
    | SignatureDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | Error
)

JsonObject: TypeAlias = dict[str, Any]
