"""What may differ between inference servers: one field for each fact, with what it means.

Owns the shape of a row; its defaults are the generic profile. The rows are in `quirk_rows`, their names in
`quirks`. A fact belongs here only if code reads it. What the reader of answers takes from every server alike
(finish words, forms of an error, where a stop string, usage or reasoning is told) is no fact of a row: see
`chat_stream` and `core.complaint`.

    Quirks(name="mine", send_top_k=True).images   -> "any"
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Members to add to a request body, in this order; the values are plain JSON values."""

TokenRoute: TypeAlias = Literal["none", "tokenize", "input_tokens", "count_tokens"]

Auth: TypeAlias = Literal["bearer", "api-key", "x-api-key"]


class Quirks(Struct, frozen=True, kw_only=True):
    """What one server takes, wants and does. The defaults are the generic profile."""

    name: str

    # --- how it is reached ---
    speaks: Literal["chat", "messages"] = "chat"
    """Chat Completions, or the Messages API itself; then its answers are passed on, not translated."""
    unsigned_thinking: bool = True
    """Of those that speak Messages: thinking without a signature is taken back. The API itself refuses it."""
    billing_header: bool = False
    """Of those that speak Messages: Claude Code's billing block is wanted. To others it is a prompt that
    changes with every turn, and with it the head of every cached prefix."""
    probe: Literal["models", "health"] = "models"
    """How to see whether it is there: `GET /models` below the base URL, or `GET /health` beside it."""
    path: str = "/chat/completions"
    """Where chat requests are posted, below the base URL."""
    auth: Auth = "bearer"
    """How the key travels: `Authorization: Bearer KEY`, or in a header of that name."""
    native_messages: bool = False
    """It speaks `POST /v1/messages` itself as well."""

    # --- the request body ---
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # noqa: S105 - a name
    sampling: bool = True
    """`temperature` and `top_p` may be set."""
    least_temperature: float = 0.0
    """The smallest `temperature` that it takes; what is below is raised to it."""
    send_top_k: bool = False
    max_stop: int | None = None
    """How many stop strings it takes; None: any number."""
    stream_usage: Literal["none", "end", "continuous"] = "end"
    """`stream_options`: not known to it, usage at the end, or `continuous_usage_stats` as well."""
    members: Fields = ()
    """Members that every request to it carries."""
    user_field: str | None = None
    """Where it takes an end user's id; what is sent is a pseudonym, never the id itself."""
    cache_key_field: str | None = None
    """Where it takes a key that keeps requests of one session near one prompt cache; a pseudonym, too."""
    cache_control: bool = False
    """`cache_control` of a text is understood on its text part. In a request with such marks all texts of the
    system and of users are parts, so that a mark that moves on changes nothing else."""
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
    reasoning_tags_out: bool = False
    """It goes back as `<think>` text before the content instead, as it came."""
    reasoning_when: Literal["tool_turns", "always", "never"] = "tool_turns"
    reasoning_missing: str | None = None
    """What a turn that calls tools carries as reasoning where it has none; None: nothing is demanded."""

    # --- tools ---
    tools_members: Fields = ()
    """Members that every request with tools carries."""
    tool_choice: Literal["named", "required_only", "ignored"] = "named"
    """`named`: also the object that names a function. `required_only`: only the strings `auto`, `none`,
    `required` are read, so a named choice is that one tool and `required`. `ignored`: not read at all, or
    nothing but `auto`."""
    thinks_when_forced: bool = True
    """It takes a forced `tool_choice` while it thinks; otherwise thinking is turned off for that request."""
    parallel_tool_calls: bool = True
    """`parallel_tool_calls: false` is understood."""
    strict_tools: bool = False
    """`strict` in a function is understood."""
    tool_name_limit: int | None = None
    """Longest function name in characters; None: as long as a client may make it (128)."""
    tool_id_form: Literal["any", "alnum9", "functions"] = "any"
    """`alnum9`: tool call ids are exactly nine of `[A-Za-z0-9]`. `functions`: `functions.NAME:N`, N counts
    the calls of the conversation."""
    call_extra: Any = None
    """`extra_content` of the first call of a turn whose state is not known, where it demands some."""

    # --- thinking ---
    effort_field: str | None = None
    """Where the effort goes; `a.b` is member b of the object a."""
    effort_words: tuple[tuple[str, str], ...] = ()
    """`output_config.effort` to this server's word; an effort that is not listed is not sent."""
    thinking_on: Fields = ()
    """Members that turn thinking on; empty: it thinks by itself or not at all."""
    thinking_off: Fields = ()
    """Members that turn thinking off; empty: it cannot be told."""
    thinking_budget_field: str | None = None
    """As `effort_field`. Where both are in one object it takes one of them, and the effort is sent."""
    think_tags: Literal["auto", "off", "open"] = "auto"
    """How `<think>` in the answer's text is read (see `core.dialects.chat_stream`)."""

    # --- tokens ---
    tokenizer: TokenRoute = "none"
    """Where it counts a request's tokens: nowhere, `POST /tokenize` beside the base path, or below it
    `/chat/completions/input_tokens`, or the Messages API's `/messages/count_tokens`."""

    # --- slots ---
    slots_report: Literal["none", "props", "server_info"] = "none"
    """Where it tells how many sequences it runs at once: nowhere, `total_slots` in `GET /props`, or
    `max_running_requests` in `GET /server_info`."""
    cancels_everywhere: bool = True
    """Closing the connection ends the work in every phase, also while it prefills."""
    drain_report: Literal["none", "slots"] = "none"
    """Where it says that a sequence slot is idle again: nowhere, or in `GET /slots`."""
