"""What the operator sets in every request for a model, whatever the client says.

Owns these settings and what they make of a parsed request, before any server's row is looked at. What of the
client's is replaced is named as ignored: it was not left out by mistake. `chat_template_kwargs` is no part of
a Messages request; `chat_request` merges it into the body.

    overridden(request, Overrides(temperature=0.2, max_tokens=4096)).temperature   -> 0.2
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from antiphon.core.surfaces.messages.request import MessagesRequest, ThinkingConfig
from antiphon.core.surfaces.messages.request_blocks import Text

__all__ = ["Overrides", "overridden"]

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Overrides(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is set in every request for a model, whatever the client says; None: nothing."""

    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, Meta(description="of sampling")] = None
    top_p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="the share that is sampled from")
    ] = None
    thinking: Annotated[bool | None, Meta(description="on or off")] = None
    effort: Annotated[Effort | None, Meta(description="how much it thinks")] = None
    max_tokens: Annotated[
        Annotated[int, Meta(gt=0)] | None, Meta(description="a cap: a client may ask for less")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any], Meta(description="for the upstream's chat template, as it is")
    ] = {}
    system_prefix: Annotated[str, Meta(description="goes before the client's own system prompt")] = ""

    def __repr__(self) -> str:
        # What is passed on as it is may hold anything, also what came from the environment.
        free = {name: ... for name in ("chat_template_kwargs", "system_prefix") if getattr(self, name)}
        names = [name for name in self.__struct_fields__ if name not in free]
        values = {name: getattr(self, name) for name in names if getattr(self, name) not in (None, "", {})}
        return f"Overrides({', '.join(f'{name}={value!r}' for name, value in (values | free).items())})"


def overridden(request: MessagesRequest, overrides: Overrides) -> MessagesRequest:
    """The request as the operator wants it. What of the client's is gone is in its `ignored`."""
    changed: dict[str, Any] = {}
    lost: list[str] = []
    for name in ("temperature", "top_p"):
        wanted, asked = getattr(overrides, name), getattr(request, name)
        if wanted is not None:
            changed[name] = wanted
            if asked not in (None, wanted):
                lost.append(name)
    if overrides.max_tokens is not None and request.max_tokens > overrides.max_tokens:
        changed["max_tokens"] = overrides.max_tokens
        lost.append("max_tokens")
    if overrides.thinking is not None:
        changed["thinking"] = _thinking(request.thinking, on=overrides.thinking)
        if _thinks(request.thinking) not in (None, overrides.thinking):
            lost.append("thinking")
    asked_effort = request.output_config.effort
    # Thinking that is off has no effort: the client's is not told to a server that was told not to think.
    effort = None if overrides.thinking is False else overrides.effort or asked_effort
    if effort != asked_effort:
        changed["output_config"] = structs.replace(request.output_config, effort=effort)
        if asked_effort is not None:
            lost.append("output_config.effort")
    if overrides.system_prefix:
        changed["system"] = (Text(overrides.system_prefix), *request.system)
    if lost:
        changed["ignored"] = (*request.ignored, *lost)
    return structs.replace(request, **changed) if changed else request


def _thinks(asked: ThinkingConfig | None) -> bool | None:
    return None if asked is None else asked.type != "disabled"


def _thinking(asked: ThinkingConfig | None, *, on: bool) -> ThinkingConfig:
    """Thinking turned on keeps the budget that the client gave."""
    if not on:
        return ThinkingConfig("disabled")
    return ThinkingConfig("enabled", None if asked is None else asked.budget_tokens)
