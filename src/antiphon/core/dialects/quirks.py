"""Facts about inference servers, as data: one row for each, and no `if vendor` anywhere else.

A fact is a field here, a value in the rows that have it, and a test on both sides of it. `GENERIC` is the
server that nothing identifies: it gets what every Chat Completions server takes, and nothing else.

    by_name("vllm").stream_usage   -> "continuous"
    by_name("no-such-server")      -> KeyError
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Fields = tuple[tuple[str, Any], ...]
"""Members to add to a request body, in this order; the values are plain JSON values."""


class Quirks(Struct, frozen=True, kw_only=True):
    """What one server takes, wants and does. The defaults are the generic profile."""

    name: str

    # --- the request body ---
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # noqa: S105 - a name
    send_top_k: bool = False
    max_stop: int | None = None
    """How many stop strings it takes; None: any number."""
    stream_usage: Literal["none", "end", "continuous"] = "end"
    """`stream_options`: not known to it, usage at the end, or `continuous_usage_stats` as well."""
    members: Fields = ()
    """Members that every request to it carries."""
    user_field: str | None = None
    """Where it takes an end user's id; what is sent is a pseudonym, never the id itself."""
    response_format: bool = True
    """`response_format: json_schema` is understood."""
    images: Literal["any", "base64", "none"] = "any"
    """Which `image_url`s it takes: http and data URLs, data URLs only, or no images at all."""

    # --- messages ---
    system_turns: Literal["user", "in_place"] = "user"
    """A `system` turn inside `messages`: text of the neighbouring user turn (templates that want the
    system message first are common), or a `system` message where it stands."""
    null_content: Literal["null", "empty"] = "null"
    """`content` of an assistant message that only calls tools: null, or "" for templates that need it."""
    continues: bool = False
    """It is known to continue a trailing assistant message without being told to."""
    prefill: Fields = ()
    """Members that make it continue a trailing assistant message."""
    prefill_mark: str | None = None
    """The same as a member of that message itself, which is `true` then."""
    reasoning_fields_out: tuple[str, ...] = ("reasoning_content",)
    """Under which names an assistant message carries its reasoning back."""
    reasoning_when: Literal["tool_turns", "always", "never"] = "tool_turns"

    # --- tools ---
    tool_choice: Literal["named", "required_only", "ignored"] = "named"
    """`named`: also the object that names a function. `required_only`: only the strings `auto`, `none`,
    `required` are read, so a named choice is that one tool and `required`. `ignored`: not read at all."""
    parallel_tool_calls: bool = True
    """`parallel_tool_calls: false` is understood."""
    strict_tools: bool = False
    """`strict` in a function is understood."""
    tool_name_limit: int | None = None
    """Longest function name in characters; None: as long as a client may make it (128)."""
    tool_id_form: Literal["any", "alnum9"] = "any"
    """`alnum9`: tool call ids are exactly nine of `[A-Za-z0-9]`."""

    # --- thinking ---
    effort_field: str | None = None
    effort_words: tuple[tuple[str, str], ...] = ()
    """`output_config.effort` to this server's word; an effort that is not listed is not sent."""
    thinking_off: Fields = ()
    """Members that turn thinking off; empty: it cannot be told."""
    thinking_budget_field: str | None = None
    think_tags: Literal["auto", "off", "open"] = "auto"
    """How `<think>` in the answer's text is read (see `core.dialects.chat_stream`)."""

    # --- tokens ---
    tokenizer: Literal["none", "tokenize", "input_tokens"] = "none"
    """Where it counts a chat request's tokens: nowhere, `POST /tokenize` beside the base path, or
    `POST /chat/completions/input_tokens` below it."""

    # --- slots ---
    cancels_everywhere: bool = True
    """Closing the connection ends the work in every phase, also while it prefills."""
    drain_report: Literal["none", "slots"] = "none"
    """Where it says that a sequence slot is idle again: nowhere, or in `GET /slots`."""


_SAME_EFFORT = (("low", "low"), ("medium", "medium"), ("high", "high"))
# Older releases of these servers take three words only and answer 400 to a fourth.
_CAPPED_EFFORT = (*_SAME_EFFORT, ("xhigh", "high"), ("max", "high"))
# A template that has no such switch ignores it; `reasoning_effort: none` is a 400 on older releases.
_TEMPLATE_OFF: Fields = (("chat_template_kwargs", {"enable_thinking": False}),)
_CONTINUE: Fields = (("add_generation_prompt", False), ("continue_final_message", True))

GENERIC = Quirks(name="generic")

VLLM = Quirks(
    name="vllm",
    send_top_k=True,
    stream_usage="continuous",
    prefill=_CONTINUE,
    # Up to 0.11.0 it reads `reasoning_content`, from 0.16 to 0.20 only `reasoning`; it ignores the other.
    reasoning_fields_out=("reasoning_content", "reasoning"),
    effort_field="reasoning_effort",
    effort_words=_CAPPED_EFFORT,
    thinking_off=_TEMPLATE_OFF,
    # `thinking_token_budget` is a 400 unless the server was started with a reasoning configuration.
    tokenizer="tokenize",
)

SGLANG = Quirks(
    name="sglang",
    send_top_k=True,
    stream_usage="continuous",
    prefill=_CONTINUE,
    effort_field="reasoning_effort",
    effort_words=_CAPPED_EFFORT,
    thinking_off=_TEMPLATE_OFF,
    tokenizer="tokenize",
)

LLAMACPP = Quirks(
    name="llamacpp",
    send_top_k=True,
    continues=True,
    # An object in `tool_choice` silently behaves as `auto`.
    tool_choice="required_only",
    effort_field="reasoning_effort",
    effort_words=_CAPPED_EFFORT,
    thinking_off=_TEMPLATE_OFF,
    thinking_budget_field="reasoning_budget_tokens",
    # It notices a client that left only when it writes: with progress chunks an abandoned prefill ends
    # after one batch, without them it runs to its end (measured: 0.2 to 1 s against 4 to 18 s).
    members=(("return_progress", True),),
    tokenizer="input_tokens",
    # Measured: a prefill goes on for 6 to 58 s after its client left.
    cancels_everywhere=False,
    drain_report="slots",
)

OLLAMA = Quirks(
    name="ollama",
    images="base64",
    reasoning_fields_out=("reasoning",),
    tool_choice="ignored",
    parallel_tool_calls=False,
    # No effort: every word but `none` is a 400 ("does not support thinking") for a model that cannot think.
    thinking_off=(("reasoning_effort", "none"),),
    cancels_everywhere=False,
)

OPENAI = Quirks(
    name="openai",
    token_limit_field="max_completion_tokens",  # noqa: S106 - a name
    max_stop=4,
    user_field="safety_identifier",
    reasoning_when="never",
    strict_tools=True,
    tool_name_limit=64,
)

MISTRAL = Quirks(
    name="mistral",
    stream_usage="none",
    prefill_mark="prefix",
    reasoning_when="never",
    tool_id_form="alnum9",
)

_ROWS = {row.name: row for row in (GENERIC, VLLM, SGLANG, LLAMACPP, OLLAMA, OPENAI, MISTRAL)}


def names() -> tuple[str, ...]:
    """The names of all rows, generic first."""
    return tuple(_ROWS)


def by_name(name: str) -> Quirks:
    """The row of a server. Raises KeyError for a name that no row has."""
    return _ROWS[name]
