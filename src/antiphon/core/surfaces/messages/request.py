"""What a Messages client asks for: the body of `POST /v1/messages` as one frozen struct.

Owns the fields of a request, their types, and the rules that need no upstream to be checked. It carries
nothing over to any upstream and leaves nothing out in silence: members that it does not know are named in
`ignored`, and what it knows but no dialect can carry in `ignored` or `degraded`.

    request = parse(b'{"model":"m","max_tokens":64,"messages":[{"role":"user","content":"hi"}]}')
    request.messages[0].content[0].text   -> "hi"
    parse(b'{"model":"m","messages":[]}') -> RequestError("max_tokens: Field required")

Source: Anthropic's `types/message_create_params.py` and its beta twin, API reference of 2026-10-21.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from antiphon.core.surfaces.messages.request_blocks import Block, Text, read_content
from antiphon.core.surfaces.messages.request_reading import (
    NULL,
    RequestError,
    Shape,
    checked,
    members_of,
)

__all__ = ["MessagesRequest", "RequestError", "Tool", "ToolChoice", "Turn", "parse"]


class Turn(Struct, frozen=True):
    """One entry of `messages`. `content` is never a string here: a string is one text block."""

    role: Literal["user", "assistant", "system"]
    content: tuple[Block, ...]


class Tool(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool of the request. `type` is None or `custom` for tools that bring their own schema."""

    unused: ClassVar[tuple[str, ...]] = ("eager_input_streaming", "cache_control")

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Raw = NULL
    strict: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[Raw] | None = None
    allowed_callers: list[str] | None = None
    eager_input_streaming: Raw = NULL
    cache_control: Raw = NULL
    display_width_px: int | None = None
    display_height_px: int | None = None


class ToolChoice(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`type` is open: `enabled`, `adaptive`, `disabled`, `between_tools`, and what comes next."""

    unused: ClassVar[tuple[str, ...]] = ("display", "block_binding")

    type: str
    budget_tokens: int | None = None
    display: Raw = NULL
    block_binding: Raw = NULL


class OutputFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON schema that the answer must follow, as raw JSON."""

    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Struct, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class MessagesRequest(Struct, frozen=True, kw_only=True):
    """A request that is well-formed. Raw members are untouched JSON; token counts are tokens.

    `output_config.format` also holds what a client sent as the older `output_format`. `ignored` and
    `degraded` are the paths of what this surface already knows will not be carried (`core.dialects.losses`).
    """

    model: str
    max_tokens: int
    messages: tuple[Turn, ...]
    system: tuple[Text, ...] = ()
    stream: bool = False
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig = OutputConfig()
    user_id: str | None = None
    ignored: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()

    @property
    def warms_cache_only(self) -> bool:
        """`max_tokens: 0`: the answer is `content: []` with `stop_reason: max_tokens`, no upstream needed."""
        return self.max_tokens == 0


def parse(body: bytes, *, counting: bool = False) -> MessagesRequest:
    """Read a request body. Raises RequestError, and nothing else, for any bytes.

    `counting`: a body of `count_tokens`, which has no `max_tokens` (protocol: Messages API).
    """
    body = checked(body)
    unknown: dict[str, None] = {}
    try:
        wire: _Body = (_COUNT_BODY if counting else _BODY).read(body, "", unknown)
    except RequestError:
        members_of(body)  # says so if it is no JSON at all
        raise
    if not wire.messages:
        raise RequestError("messages", "at least one message is required")
    for name in _REFUSED:
        if getattr(wire, name) not in _ABSENT:
            raise RequestError(
                name, "not supported here, and the answer would mean something else without it"
            )
    degraded = [name for name in _MISSED if getattr(wire, name) not in _ABSENT]
    degraded += _edits(wire.context_management, unknown)
    turns = tuple([_turn(raw, f"messages.{i}", unknown) for i, raw in enumerate(wire.messages)])
    system = _system(wire.system, unknown)
    tools = tuple([_TOOL.read(raw, f"tools.{i}", unknown) for i, raw in enumerate(wire.tools or ())])
    tool_choice = thinking = None
    if wire.tool_choice != NULL:
        tool_choice = _TOOL_CHOICE.read(wire.tool_choice, "tool_choice", unknown)
    if wire.thinking != NULL:
        thinking = _THINKING.read(wire.thinking, "thinking", unknown)
    output_config = _output_config(wire, unknown)
    user_id = _user_id(wire.metadata)
    if wire.metadata != NULL and not user_id:  # of a user's id the dialect says what became of it
        unknown["metadata"] = None
    request = MessagesRequest(
        model=wire.model,
        max_tokens=wire.max_tokens,
        messages=turns,
        system=system,
        stream=bool(wire.stream),
        tools=tools,
        tool_choice=tool_choice,
        stop_sequences=tuple(wire.stop_sequences or ()),
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        thinking=thinking,
        output_config=output_config,
        user_id=user_id,
        ignored=tuple(unknown),
        degraded=tuple(degraded),
    )
    if request.warms_cache_only and not counting:
        _check_warming(request)
    return request


# --- The body as it stands in the JSON ------------------------------------------------------------


class _Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = (
        "service_tier",
        "speed",
        "cache_control",
        "diagnostics",
        "inference_geo",
        "fallbacks",
        "fallback_credit_token",
        "billing_policy",
    )
    model: str
    max_tokens: Annotated[int, Meta(ge=0)]
    messages: list[Raw]
    system: str | list[Raw] | None = None
    stream: bool | None = None
    tools: list[Raw] | None = None
    tool_choice: Raw = NULL
    stop_sequences: list[str] | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    top_k: int | None = None
    thinking: Raw = NULL
    output_config: Raw = NULL
    output_format: Raw = NULL
    context_management: Raw = NULL
    container: Raw = NULL
    compaction: Raw = NULL
    mcp_servers: Raw = NULL
    thread: Raw = NULL
    metadata: Raw = NULL
    service_tier: Raw = NULL
    speed: Raw = NULL
    cache_control: Raw = NULL
    diagnostics: Raw = NULL
    inference_geo: Raw = NULL
    fallbacks: Raw = NULL
    fallback_credit_token: Raw = NULL
    billing_policy: Raw = NULL


class _CountBody(_Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_tokens: Annotated[int, Meta(ge=0)] = 1


class _Turn(Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Raw]


class _OutputConfig(Struct, frozen=True, forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = ("task_budget",)
    effort: str | None = None
    format: Raw = NULL
    task_budget: Raw = NULL


class _ContextManagement(Struct, frozen=True, forbid_unknown_fields=True):
    edits: list[Raw] | None = None


_ABSENT = (NULL, Raw(b"[]"))
_REFUSED = ("mcp_servers", "thread", "compaction")
_MISSED = ("container",)

_BODY = Shape(_Body)
_COUNT_BODY = Shape(_CountBody)
_TURN = Shape(_Turn)
_TOOL = Shape(Tool)
_TOOL_CHOICE = Shape(ToolChoice)
_THINKING = Shape(ThinkingConfig)
_OUTPUT_CONFIG = Shape(_OutputConfig)
_OUTPUT_FORMAT = Shape(OutputFormat)
_CONTEXT_MANAGEMENT = Shape(_ContextManagement)


def _turn(raw: Raw, path: str, unknown: dict[str, None]) -> Turn:
    turn = _TURN.read(raw, path, unknown)
    return Turn(turn.role, read_content(turn.content, f"{path}.content", unknown))


def _system(system: str | list[Raw] | None, unknown: dict[str, None]) -> tuple[Text, ...]:
    texts = []
    for i, block in enumerate(read_content(system or "", "system", unknown)):
        if not isinstance(block, Text):
            raise RequestError(f"system.{i}.type", "Unexpected value; expected 'text'")
        texts.append(block)
    return tuple(texts)


class _Metadata(Struct, frozen=True):
    user_id: str | None = None


def _user_id(metadata: Raw) -> str | None:
    """Metadata cannot change the answer: what is odd in it is no reason to refuse."""
    if metadata == NULL:
        return None
    try:
        return msgspec.json.decode(metadata, type=_Metadata).user_id
    except msgspec.DecodeError:
        return None


def _output_config(wire: _Body, unknown: dict[str, None]) -> OutputConfig:
    config = _OutputConfig()
    if wire.output_config != NULL:
        config = _OUTPUT_CONFIG.read(wire.output_config, "output_config", unknown)
    if config.format != NULL:
        if wire.output_format != NULL:  # both at once: the newer one counts
            unknown["output_format"] = None
        wanted = _OUTPUT_FORMAT.read(config.format, "output_config.format", unknown)
    elif wire.output_format != NULL:
        wanted = _OUTPUT_FORMAT.read(wire.output_format, "output_format", unknown)
    else:
        wanted = None
    return OutputConfig(config.effort, wanted)


def _edits(raw: Raw, unknown: dict[str, None]) -> list[str]:
    """Edits of the context that the API would make and nobody makes here: the model sees more than asked.

    Thinking of earlier turns is the exception: upstream templates drop it by their own rules.
    """
    if raw == NULL:
        return []
    unknown["context_management"] = None
    found = []
    for i, edit in enumerate(_CONTEXT_MANAGEMENT.read(raw, "context_management", unknown).edits or ()):
        kind = _EDIT.read(edit, f"context_management.edits.{i}", {}).type
        if not kind.startswith("clear_thinking_"):
            found.append(f"context_management.edits.{i}")
    return found


class _Edit(Struct, frozen=True, forbid_unknown_fields=True):
    type: str


_EDIT = Shape(_Edit)


def _check_warming(request: MessagesRequest) -> None:
    """`max_tokens: 0` with something that only makes sense with an answer (the API refuses the same)."""
    forced = request.tool_choice is not None and request.tool_choice.type in {"any", "tool"}
    for path, present in (
        ("stream", request.stream),
        ("thinking", request.thinking is not None and request.thinking.type == "enabled"),
        ("output_config.format", request.output_config.format is not None),
        ("tool_choice", forced),
    ):
        if present:
            raise RequestError("max_tokens", f"0 cannot be combined with `{path}`")
