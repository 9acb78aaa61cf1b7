"""A Messages request as the body for an upstream that speaks Messages itself.

Owns what is changed in a client's own body: the model's name, `stream`, what the operator overrides, and
thinking that the upstream did not sign. Everything else is the client's, byte for byte: order of members,
unknown ones, big numbers. The upstream is always asked to stream, also for a client that does not.

    encode(b'{"model":"m","max_tokens":64,"messages":[...],"new":1}', model="theirs").body
    -> b'{"model":"theirs","max_tokens":64,"messages":[...],"new":1,"stream":true}'
    count_body(that)   -> b'{"model":"theirs","messages":[...],"new":1}'

The request is checked as for every other upstream, so that what is wrong has a path; what is refused there
only because Chat Completions has nothing like it is allowed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw

from antiphon.core import seal
from antiphon.core.dialects.chat_request import ChatRequest, tokens_of_bytes
from antiphon.core.dialects.losses import Losses
from antiphon.core.dialects.overrides import Overrides, overridden
from antiphon.core.surfaces.messages.request import MessagesRequest, RequestError, parse
from antiphon.core.surfaces.messages.request_blocks import Block, Document, Image, ToolResult
from antiphon.core.surfaces.messages.request_reading import checked

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_TRUE: Final = Raw(b"true")

# What the API has, a Messages upstream may do, and no other dialect carries.
_NATIVE_ONLY: Final = ("mcp_servers", "thread", "compaction", "container", "context_management")

# Members about the answer: `count_tokens` knows none of them (API reference of 2026-10-21).
_OF_THE_ANSWER: Final = (
    "max_tokens",
    "stream",
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "metadata",
    "service_tier",
    "container",
    "inference_geo",
    "diagnostics",
    "fallbacks",
    "fallback_credit_token",
    "billing_policy",
)
_BILLING: Final = b"x-anthropic-billing-header"

# Tokens of an image, and of a document whose pages nobody has counted.
_IMAGE_TOKENS, _DOCUMENT_TOKENS = 1600, 3000


def sealed_here(signature: str) -> bool:
    """The signature is state that this gateway sealed for another kind of upstream."""
    return signature.startswith(seal.PREFIX)


def encode(
    body: bytes,
    *,
    model: str,
    overrides: Overrides | None = None,
    counting: bool = False,
    max_tokens: int | None = None,
    is_ours: Callable[[str], bool] = sealed_here,
    keeps_unsigned_thinking: bool = False,
    drops_billing_header: bool = False,
    request: MessagesRequest | None = None,
) -> ChatRequest:
    """Write the body to send, from the client's own bytes. Raises RequestError, and nothing else.

    `model` is the upstream's name for it; `max_tokens` the room that is left for the answer, in tokens, where
    it is known; `is_ours` tells of a thinking block's signature that the upstream did not make it.
    `keeps_unsigned_thinking`: the upstream takes back thinking without a signature, as servers of open
    models do. `drops_billing_header`: leave out Claude Code's first system block, which changes from turn to
    turn and with it the head of every cached prefix; the real API wants it. `request` is the parsed body, if
    the caller has it. `counting`: both bodies are those of `count_tokens`.
    """
    body = checked(body)
    if request is None:
        request = parse(_checkable(body), counting=counting)
    members = _OBJECT.decode(body)  # it was parsed before
    wanted = overrides or Overrides()
    losses = Losses(overridden(request, wanted).ignored[len(request.ignored) :])
    members["model"] = _encoded(model)
    _trim_history(members, losses, is_ours, keeps_unsigned=keeps_unsigned_thinking)
    if drops_billing_header:
        _drop_billing(members, losses)
    _override(members, wanted, max_tokens)
    if counting:
        members = _countable(members)
    else:
        members["stream"] = _TRUE
    return ChatRequest(
        body=msgspec.json.encode(members),
        ignored=losses.ignored,
        degraded=losses.degraded,
        stop_sequences=request.stop_sequences,
        input_estimate=_estimate(members, request),
        history_tool_ids=frozenset(),
        tool_names={},
        side_request=not request.tools and request.output_config.format is not None,
    )


def count_body(sent: bytes) -> bytes:
    """A body that `encode` made, as the one for `/messages/count_tokens`."""
    return msgspec.json.encode(_countable(_OBJECT.decode(sent)))


def _countable(members: dict[str, Raw]) -> dict[str, Raw]:
    return {name: raw for name, raw in members.items() if name not in _OF_THE_ANSWER}


def _checkable(body: bytes) -> bytes:
    """The body without members that only a Messages upstream understands; itself, if it has none."""
    if not any(name.encode() in body for name in _NATIVE_ONLY):
        return body
    try:
        members = _OBJECT.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body  # `parse` says what is wrong with it
    return msgspec.json.encode({name: raw for name, raw in members.items() if name not in _NATIVE_ONLY})


# --- history ---------------------------------------------------------------------------------------


def _trim_history(
    members: dict[str, Raw], losses: Losses, is_ours: Callable[[str], bool], *, keeps_unsigned: bool
) -> None:
    """Take out thinking that the upstream did not sign: the API answers 400 to it."""
    raw = members["messages"]
    if b'"thinking"' not in bytes(raw):
        return
    turns = _LIST.decode(raw)
    kept: list[Raw] = []
    for turn in turns:
        trimmed = _trim_turn(turn, losses, is_ours, keeps_unsigned=keeps_unsigned)
        if trimmed is not None:
            kept.append(trimmed)
    if not kept:
        raise RequestError("messages", "nothing is left of it without the thinking of another model")
    if kept != turns:
        members["messages"] = _encoded(kept)


def _trim_turn(
    raw: Raw, losses: Losses, is_ours: Callable[[str], bool], *, keeps_unsigned: bool
) -> Raw | None:
    """The turn without such blocks: the same object if it has none, None if there is nothing else in it."""
    turn = _OBJECT.decode(raw)
    content = turn.get("content")
    if content is None or not bytes(content).lstrip().startswith(b"[") or turn["role"] != _ASSISTANT:
        return raw
    blocks = _LIST.decode(content)
    kept = []
    for block in blocks:
        trimmed = _trim_block(block, losses, is_ours, keeps_unsigned=keeps_unsigned)
        if trimmed is not None:
            kept.append(trimmed)
    if kept == blocks:
        return raw
    if not kept:
        return None  # the turns beside it are joined by the API
    turn["content"] = _encoded(kept)
    return _encoded(turn)


def _trim_block(
    raw: Raw, losses: Losses, is_ours: Callable[[str], bool], *, keeps_unsigned: bool
) -> Raw | None:
    if b"thinking" not in bytes(raw):
        return raw
    block = _OBJECT.decode(raw)
    if block.get("type") != _THINKING:
        return raw
    given = _value(block.get("signature"))
    signature = given if isinstance(given, str) else ""
    foreign = bool(signature) and is_ours(signature)
    if not foreign and (signature or keeps_unsigned):
        return raw
    if foreign and keeps_unsigned and _value(block.get("thinking")):
        losses.ignore("messages.*.content.*.signature")
        return _encoded({**block, "signature": _NO_SIGNATURE})
    losses.ignore("messages.*.content.*.thinking")
    return None


def _drop_billing(members: dict[str, Raw], losses: Losses) -> None:
    raw = members.get("system")
    if raw is None or _BILLING not in bytes(raw) or not bytes(raw).lstrip().startswith(b"["):
        return
    blocks = _LIST.decode(raw)
    kept = [block for block in blocks if not _is_billing(block)]
    if len(kept) == len(blocks):
        return
    losses.ignore("system.*")
    if kept:
        members["system"] = _encoded(kept)
    else:
        del members["system"]


def _is_billing(raw: Raw) -> bool:
    text = _value(_OBJECT.decode(raw).get("text"))
    return isinstance(text, str) and text.startswith(_BILLING.decode())


# --- what the operator sets ------------------------------------------------------------------------


def _override(members: dict[str, Raw], wanted: Overrides, room: int | None) -> None:
    if wanted.temperature is not None:
        members["temperature"] = _encoded(wanted.temperature)
    if wanted.top_p is not None:
        members["top_p"] = _encoded(wanted.top_p)
    for most in (wanted.max_tokens, room):
        if most is not None and "max_tokens" in members and _value(members["max_tokens"]) > most:
            members["max_tokens"] = _encoded(most)
    if wanted.thinking is not None:
        _set_thinking(members, on=wanted.thinking)
    if wanted.effort is not None and wanted.thinking is not False:
        _join(members, "output_config", {"effort": wanted.effort})
    if wanted.chat_template_kwargs:  # vLLM and SGLang read it in a Messages body too
        _join(members, "chat_template_kwargs", wanted.chat_template_kwargs)
    if wanted.system_prefix:
        _put_before_system(members, wanted.system_prefix)


def _set_thinking(members: dict[str, Raw], *, on: bool) -> None:
    told = _object(members.get("thinking")).get("type")
    if not on:
        members["thinking"] = _encoded({"type": "disabled"})
        if "output_config" in members:  # thinking that is off has no effort
            kept = {name: raw for name, raw in _object(members["output_config"]).items() if name != "effort"}
            members["output_config"] = _encoded(kept)
    elif told is None or told == _DISABLED:  # else the client's own way to have it on
        members["thinking"] = _encoded({"type": "adaptive"})


def _join(members: dict[str, Raw], name: str, set_: dict[str, Any]) -> None:
    members[name] = _encoded({**_object(members.get(name)), **set_})


def _put_before_system(members: dict[str, Raw], prefix: str) -> None:
    """Before the client's own, with a blank line between: servers join blocks with nothing."""
    raw = members.get("system")
    own = _value(raw) if raw is not None else None
    if raw is not None and isinstance(own, list) and own:
        first = _encoded({"type": "text", "text": f"{prefix}\n\n"})
        members["system"] = _encoded([first, *_LIST.decode(raw)])
    else:
        members["system"] = _encoded(f"{prefix}\n\n{own}" if isinstance(own, str) and own else prefix)


# --- sizes -----------------------------------------------------------------------------------------


def _estimate(members: dict[str, Raw], request: MessagesRequest) -> int:
    """Tokens of the prompt, on the high side. Data of images and documents are no text."""
    size = sum(
        memoryview(members[name]).nbytes for name in ("system", "messages", "tools") if name in members
    )
    tokens = 0
    for block in _blocks(block for turn in request.messages for block in turn.content):
        if isinstance(block, Image):
            tokens += _IMAGE_TOKENS
            size -= memoryview(block.source.data).nbytes
        elif isinstance(block, Document) and block.source.type == "base64":
            tokens += _DOCUMENT_TOKENS
            size -= memoryview(block.source.data).nbytes
    return tokens_of_bytes(max(size, 0)) + tokens


def _blocks(blocks: Iterable[Block]) -> Iterable[Block]:
    for block in blocks:
        yield block
        if isinstance(block, ToolResult):
            yield from block.content


def _object(raw: Raw | None) -> dict[str, Raw]:
    """The members of an object; none, where there is something else."""
    return _OBJECT.decode(raw) if raw is not None and isinstance(_value(raw), dict) else {}


def _value(raw: Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


def _encoded(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


_ASSISTANT: Final = Raw(b'"assistant"')
_THINKING: Final = Raw(b'"thinking"')
_DISABLED: Final = Raw(b'"disabled"')
_NO_SIGNATURE: Final = Raw(b'""')
