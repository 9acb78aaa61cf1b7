"""A Messages request as the body of an OpenAI-style `POST /chat/completions`.

Owns the body: which members it has, in which order, and what was left out of it. Messages are the business
of `chat_messages`, tools of `chat_tools`, facts about servers of `quirks`. The upstream is always asked to
stream, also for a client that does not: a stream can be watched, cut and folded.

    encode(parse(body), GENERIC).body
    -> b'{"model":"m","max_tokens":64,"stream":true,"stream_options":{...},"messages":[...]}'

Bytes are stable: members in one order, settings and tools first, `messages` last, so that the request for
turn n+1 begins with the bytes of turn n and a server's prefix cache holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from antiphon.core.dialects import chat_messages, chat_sides, chat_tools
from antiphon.core.dialects.losses import Losses
from antiphon.core.dialects.overrides import Overrides, overridden
from antiphon.core.surfaces.messages.request import MessagesRequest, RequestError

if TYPE_CHECKING:
    from antiphon.core.dialects.quirk_facts import Fields, Quirks

__all__ = ["ChatRequest", "encode", "tokens_of_bytes"]

# Tokens a text costs: 3.5 bytes of its JSON each. English prose has more than four bytes a token, code and
# tool schemas about three and a half: an estimate should rather be too high, because clients compact by it.
_TOKENS, _BYTES = 2, 7
_MESSAGE_TOKENS = 4
_TOOL_TOKENS = 8
_IMAGE_TOKENS = 1600


def tokens_of_bytes(size: int) -> int:
    """An estimate on the high side for so many bytes of a request's JSON."""
    return size * _TOKENS // _BYTES


class ChatRequest(Struct, frozen=True):
    """What to send upstream, and what the answer's reader must know of it.

    `body` is the JSON to post. `ignored` and `degraded` are the paths of what it does not carry
    (`core.dialects.losses`). `stop_sequences` are the client's, to tell a matched one. `input_estimate` is
    in tokens and errs on the high side. `history_tool_ids` are the tool ids of the conversation as the
    client spells them. `tool_names` maps a function's name as sent to the client's, where they differ.
    `side_request`: it asks for a form and has no tools, as agents do for titles and summaries.
    """

    body: bytes
    ignored: tuple[str, ...]
    degraded: tuple[str, ...]
    stop_sequences: tuple[str, ...]
    input_estimate: int
    history_tool_ids: frozenset[str]
    tool_names: dict[str, str]
    side_request: bool = False


def encode(
    request: MessagesRequest,
    quirks: Quirks,
    *,
    model: str | None = None,
    unseal: chat_sides.Unseal = chat_sides.nothing_sealed,
    pseudonym: Callable[[str], str] | None = None,
    overrides: Overrides | None = None,
) -> ChatRequest:
    """Write the body for a server with these quirks.

    `model` is the upstream's name for it (None: the client's own); `unseal` opens what `core.seal` sealed;
    `pseudonym` stands for a user's id where a server wants one (None: it gets none); `overrides` are what
    is set in every request for this model. Raises RequestError for what the server cannot take and what
    would be a lie to drop.
    """
    if overrides is not None:
        request = overridden(request, overrides)
    losses = Losses(request.ignored, request.degraded)
    tools = chat_tools.encode_tools(request, quirks, losses)
    conversation = chat_messages.encode_messages(request, quirks, tools.names, losses, unseal)
    stop = _stop(request, quirks, losses)

    body: dict[str, Any] = {"model": request.model if model is None else model}
    body[quirks.token_limit_field] = request.max_tokens
    _write_sampling(body, request, quirks, losses)
    if stop:
        body["stop"] = stop
    body["stream"] = True
    if quirks.stream_usage != "none":
        body["stream_options"] = _STREAM_OPTIONS[quirks.stream_usage]
    body.update(quirks.members)
    if request.user_id:
        fields = [name for name in (quirks.user_field, quirks.cache_key_field) if name is not None]
        if fields and pseudonym is not None:
            body.update(dict.fromkeys(fields, pseudonym(request.user_id)))
        else:
            losses.ignore("metadata")
    _write_format(body, request, quirks, losses)
    if tools.forced and not quirks.thinks_when_forced:
        _write_no_thinking(body, request, quirks, losses)
    else:
        _write_thinking(body, request, quirks, losses)
    if overrides is not None and overrides.chat_template_kwargs:
        for name, value in overrides.chat_template_kwargs.items():
            _put(body, f"chat_template_kwargs.{name}", value)
    if conversation.is_prefill:
        body.update(quirks.prefill)
    tool_bytes = 0
    if tools.functions:
        encoded_tools = msgspec.json.encode(tools.functions)
        tool_bytes = len(encoded_tools)
        body["tools"] = Raw(encoded_tools)
        if tools.choice is not None:
            body["tool_choice"] = tools.choice
        if tools.one_at_a_time:
            body["parallel_tool_calls"] = False
        body.update(quirks.tools_members)
    head = msgspec.json.encode(body).removesuffix(b"}")
    return ChatRequest(
        body=b"".join((head, b',"messages":', *conversation.pieces, b"}")),
        ignored=losses.ignored,
        degraded=losses.degraded,
        stop_sequences=tuple(stop),
        input_estimate=tokens_of_bytes(conversation.text_bytes + tool_bytes)
        + _MESSAGE_TOKENS * conversation.count
        + _TOOL_TOKENS * len(tools.functions)
        + _IMAGE_TOKENS * conversation.images,
        history_tool_ids=conversation.client_tool_ids,
        tool_names=tools.names.changed(),
        side_request=not tools.functions and request.output_config.format is not None,
    )


_STREAM_OPTIONS = {
    "end": {"include_usage": True},
    "continuous": {"include_usage": True, "continuous_usage_stats": True},
}


def _write_sampling(body: dict[str, Any], request: MessagesRequest, quirks: Quirks, losses: Losses) -> None:
    for name, value in (("temperature", request.temperature), ("top_p", request.top_p)):
        if value is None:
            continue
        if not quirks.sampling:
            # 1 is the Messages API's default: to leave it out says the same.
            (losses.ignore if value == 1 else losses.degrade)(name)
        elif name == "temperature" and value < quirks.least_temperature:
            body[name] = quirks.least_temperature
            losses.degrade(name)
        else:
            body[name] = value
    if request.top_k is not None:
        if quirks.send_top_k:
            body["top_k"] = request.top_k
        else:
            losses.degrade("top_k")


def _stop(request: MessagesRequest, quirks: Quirks, losses: Losses) -> list[str]:
    stop = []
    for i, sequence in enumerate(request.stop_sequences):
        if sequence:
            stop.append(sequence)
        else:  # it would match before the first token
            losses.ignore(f"stop_sequences.{i}")
    if quirks.max_stop is not None and len(stop) > quirks.max_stop:
        raise RequestError(
            "stop_sequences", f"at most {quirks.max_stop} are supported by this model's server"
        )
    return stop


def _write_format(body: dict[str, Any], request: MessagesRequest, quirks: Quirks, losses: Losses) -> None:
    wanted = request.output_config.format
    if wanted is None:
        return
    if not quirks.response_format:
        losses.degrade("output_config.format")
        return
    # OpenAI's servers demand a name.
    schema = {"name": "output", "schema": wanted.schema, "strict": True}
    body["response_format"] = {"type": "json_schema", "json_schema": schema}


def _write_thinking(body: dict[str, Any], request: MessagesRequest, quirks: Quirks, losses: Losses) -> None:
    """Whether and how hard to think.

    How hard (effort, a budget, `adaptive`) is a wish: a server without a dial for it answers at its own
    default, and nothing was changed. Not to think at all is an order: where it cannot be given, the client
    is told.
    """
    thinking, effort = request.thinking, request.output_config.effort
    if thinking is not None and thinking.type == "disabled":
        if quirks.thinking_off:
            body.update(quirks.thinking_off)
        else:
            losses.degrade("thinking")
        if effort is not None:  # contradicts `disabled`, which wins
            losses.ignore("output_config.effort")
        return
    told: Fields = ()
    if thinking is not None and thinking.type == "enabled":
        told = quirks.thinking_on
        body.update(told)
    if effort is not None:
        word = dict(quirks.effort_words).get(effort)
        if quirks.effort_field is not None and word is not None:
            _put(body, quirks.effort_field, word)
        else:
            losses.ignore("output_config.effort")
            effort = None
    if thinking is None:
        return
    budget = quirks.thinking_budget_field
    if effort is not None and _in_one_object(budget, quirks.effort_field):
        budget = None
    if thinking.budget_tokens is not None and budget is not None:
        _put(body, budget, thinking.budget_tokens)
    elif thinking.budget_tokens is not None or not told:
        losses.ignore("thinking")


def _write_no_thinking(
    body: dict[str, Any], request: MessagesRequest, quirks: Quirks, losses: Losses
) -> None:
    """For a server that cannot think and be forced to call at once; the Messages API cannot either."""
    thinking = request.thinking
    body.update(quirks.thinking_off)
    if thinking is not None and thinking.type == "enabled":
        losses.degrade("thinking")
    elif thinking is not None and thinking.type != "disabled":
        losses.ignore("thinking")
    if request.output_config.effort is not None:
        losses.ignore("output_config.effort")


def _in_one_object(field: str | None, other: str | None) -> bool:
    """Both are dotted, and members of the same object of the body."""
    outer, dot, _ = (field or "").partition(".")
    return bool(dot) and (other or "").startswith(f"{outer}.")


def _put(body: dict[str, Any], field: str, value: Any) -> None:
    """Set a member of the body, or `a.b`: member b of its object a, which may have others."""
    outer, dot, inner = field.partition(".")
    body[outer] = {**body.get(outer, {}), inner: value} if dot else value
