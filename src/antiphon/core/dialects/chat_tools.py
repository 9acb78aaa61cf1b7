"""Tools, `tool_choice` and tool names of a Messages request, as Chat Completions functions.

Owns which tools the model is offered and under which names. A schema is the model's contract with the
client's code, so it passes byte for byte; only what servers refuse is repaired, and only at its top level.
Must not run a tool nor know a server by name.

    {"name": "ping", "input_schema": {"type": "object"}}
    -> {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from antiphon.core.dialects.chat_typed_tools import DEFINED_TOOLS
from antiphon.core.surfaces.messages.request import MessagesRequest, RequestError, Tool
from antiphon.core.surfaces.messages.request_blocks import ToolReference, ToolResult, ToolUse
from antiphon.core.surfaces.messages.request_reading import NULL, Foreign

if TYPE_CHECKING:
    from antiphon.core.dialects.losses import Losses
    from antiphon.core.dialects.quirks import Quirks

# Run on Anthropic's servers; there is no such server behind this gateway.
_SERVER_TOOLS = (
    "web_search_",
    "web_fetch_",
    "code_execution_",
    "tool_search_tool_",
    "mcp_toolset",
    "advisor_",
)
TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})
"""Blocks of system turns that offer a tool, or withdraw it, from there on (protocol: Messages API, beta)."""
# Several tools under one entry, without names or schemas of their own.
_TOOLSETS = ("computer_toolset_", "browser_toolset_")
_NAME_LIMIT = 128
_DIGEST = 8
_SEARCH = re.compile(r"tool_?search", re.IGNORECASE)
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_OBJECT = Raw(b'"object"')
_EMPTY = Raw(b"{}")


class ToolNames:
    """Function names for a server, and the way back. The same name always gives the same function name."""

    __slots__ = ("_limit", "_sent")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit or _NAME_LIMIT
        self._sent: dict[str, str] = {}

    def sent(self, name: str) -> str:
        """The name to send: the client's own if it may travel, else one with a digest of it at its end."""
        found = self._sent.get(name)
        if found is None:
            found = name
            plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
            if plain != name or len(name) > self._limit:
                digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
                found = f"{plain[: self._limit - _DIGEST - 1]}_{digest}"
            self._sent[name] = found
        return found

    def changed(self) -> dict[str, str]:
        """Sent name to the client's, for those that differ."""
        return {sent: name for name, sent in self._sent.items() if sent != name}


class Tools(Struct, frozen=True):
    """`functions` for `tools`, `choice` for `tool_choice` (None: leave it out); both out if no functions.

    `forced`: by the choice the model may not answer without a call.
    """

    functions: list[dict[str, Any]]
    choice: str | dict[str, Any] | None
    one_at_a_time: bool
    names: ToolNames
    forced: bool = False


def encode_tools(request: MessagesRequest, quirks: Quirks, losses: Losses) -> Tools:
    """The tools that the model is offered. Raises RequestError, with the path of the tool or choice."""
    names = ToolNames(quirks.tool_name_limit)
    offered: dict[str, dict[str, Any]] = {}
    dropped: dict[str, str] = {}
    seen: set[str] = set()
    hidden = _hidden(request, _added(request, losses))
    for i, tool in enumerate(request.tools):
        path = f"tools.{i}"
        if _is_dropped(tool, path):
            losses.degrade(path)
            dropped[tool.name or ""] = path
            continue
        function = _function(tool, path, quirks, names, losses)
        name = tool.name or ""
        if name in seen:
            raise RequestError(path, f"Tool names must be unique: {name[:128]}")
        seen.add(name)
        if name not in hidden:
            offered[name] = function
    choice = _choice(request, quirks, names, offered, dropped, losses)
    functions = [{"type": "function", "function": function} for function in offered.values()]
    single = bool(functions) and _one_at_a_time(request, quirks, losses)
    forced = bool(functions) and choice not in (None, "auto", "none")
    return Tools(functions, choice, single, names, forced)


# --- Which tools ----------------------------------------------------------------------------------


def _is_dropped(tool: Tool, path: str) -> bool:
    """A tool that nobody could run: Anthropic's servers do, or nothing is known of it but its type."""
    kind = tool.type
    if kind is None or kind == "custom" or kind in DEFINED_TOOLS:
        return False
    if kind.startswith(_TOOLSETS):
        raise RequestError(f"{path}.type", f"'{kind[:64]}' is not supported: declare its tools one by one")
    return kind.startswith(_SERVER_TOOLS) or tool.input_schema == NULL


def _added(request: MessagesRequest, losses: Losses) -> set[str]:
    """Names of declared tools that a `tool_addition` offers. What else changes tools is degraded."""
    declared = {tool.name for tool in request.tools}
    added = set()
    for i, turn in enumerate(request.messages):
        if turn.role != "system":
            continue
        for j, block in enumerate(turn.content):
            if isinstance(block, Foreign) and block.type in TOOL_CHANGES:
                name = _name_of_change(block)
                if block.type == "tool_addition" and name in declared:
                    added.add(name)
                else:  # a definition of its own, tools of an MCP server, or a tool taken away
                    losses.degrade(f"messages.{i}.content.{j}")
    return added


def _name_of_change(block: Foreign) -> str:
    try:
        reference = msgspec.json.decode(block.raw, type=_ToolChange).tool
    except (msgspec.DecodeError, RecursionError):
        return ""
    return reference.name if reference.type == "tool_reference" else ""


class _Reference(Struct, frozen=True):
    name: str
    type: str = "tool_reference"


class _ToolChange(Struct, frozen=True):
    tool: _Reference


def _hidden(request: MessagesRequest, added: set[str]) -> set[str]:
    """Names of `defer_loading` tools that the conversation has not asked for yet.

    Only where something in the request can find them: with no search tool that the client runs, a tool
    that is held back could never be called.
    """
    deferred = {tool.name for tool in request.tools if tool.defer_loading and tool.name}
    if not deferred:
        return set()
    found = set(added)
    for turn in request.messages:
        for block in turn.content:
            if isinstance(block, ToolUse):
                found.add(block.name)
            elif isinstance(block, ToolResult):
                found.update(each.tool_name for each in block.content if isinstance(each, ToolReference))
    searchable = found & deferred or any(
        not tool.defer_loading and tool.type in {None, "custom"} and _SEARCH.search(tool.name or "")
        for tool in request.tools
    )
    if not searchable:
        return set()
    if request.tool_choice is not None and request.tool_choice.name:
        found.add(request.tool_choice.name)
    return deferred - found


def _function(tool: Tool, path: str, quirks: Quirks, names: ToolNames, losses: Losses) -> dict[str, Any]:
    if tool.name is None:
        raise RequestError(f"{path}.name", "Field required")
    if not tool.name:
        raise RequestError(f"{path}.name", "String should have at least 1 character")
    description, schema = tool.description, tool.input_schema
    defined = DEFINED_TOOLS.get(tool.type or "")
    if defined is not None:
        description = defined.description
        if tool.display_width_px and tool.display_height_px:
            description += f" The screen is {tool.display_width_px} x {tool.display_height_px} pixels."
        schema = defined.schema
    elif schema == NULL:
        raise RequestError(f"{path}.input_schema", "Field required")
    if tool.input_examples:
        examples = [msgspec.json.format(bytes(each), indent=-1).decode() for each in tool.input_examples]
        description = "\n".join([description or "", "", "Examples of its input:", *examples]).lstrip("\n")
    if tool.allowed_callers and "direct" not in tool.allowed_callers:
        losses.degrade(f"{path}.allowed_callers")  # it was for code execution only
    function: dict[str, Any] = {"name": names.sent(tool.name)}
    if description:
        function["description"] = description
    function["parameters"] = _parameters(schema, f"{path}.input_schema")
    if tool.strict:
        if quirks.strict_tools:
            function["strict"] = True
        else:
            losses.degrade(f"{path}.strict")
    return function


def _parameters(schema: Raw, path: str) -> Raw:
    """The schema itself, or with the three repairs: `type: object`, `properties: {}`, no null `required`."""
    try:
        members = _MEMBERS.decode(schema)
    except msgspec.ValidationError:
        raise RequestError(path, "Input should be an object") from None
    absent = [name for name in ("type", "properties") if members.get(name, NULL) == NULL]
    if not absent and members.get("required") != NULL:
        return schema
    if "type" in absent:
        members = {"type": _OBJECT} | members | {"type": _OBJECT}
    if "properties" in absent:
        members["properties"] = _EMPTY
    if members.get("required") == NULL:
        del members["required"]
    return Raw(msgspec.json.encode(members))


# --- Which of them, and how many ------------------------------------------------------------------


def _choice(
    request: MessagesRequest,
    quirks: Quirks,
    names: ToolNames,
    offered: dict[str, dict[str, Any]],
    dropped: dict[str, str],
    losses: Losses,
) -> str | dict[str, Any] | None:
    """`tool_choice` for the server. May narrow `offered` where the server reads no better way to say it."""
    wanted = request.tool_choice
    if wanted is None:
        return None
    if wanted.type == "tool":
        _check_named(wanted.name, offered, dropped)
    elif wanted.type == "any" and not offered:
        reason = f"'any' needs a tool, and {', '.join(dropped.values())} cannot be run here"
        raise RequestError("tool_choice", reason if dropped else "may only force a tool if there are `tools`")
    if quirks.tool_choice == "ignored":
        _choose_by_tools(wanted.type, wanted.name, offered, losses)
        return None
    match wanted.type:
        case "auto":
            return "auto"
        case "none":
            return "none"
        case "any":
            return "required"
        case "tool":
            name = wanted.name or ""
            if quirks.tool_choice == "required_only":
                _keep_only(name, offered)
                return "required"
            return {"type": "function", "function": {"name": names.sent(name)}}


def _check_named(name: str | None, offered: dict[str, dict[str, Any]], dropped: dict[str, str]) -> None:
    if name is None:
        raise RequestError("tool_choice.name", "Field required")
    if name in dropped:
        raise RequestError("tool_choice.name", f"{dropped[name]} ('{name[:128]}') cannot be run here")
    if name not in offered:
        raise RequestError("tool_choice.name", f"Tool '{name[:128]}' not found in provided tools")


def _choose_by_tools(kind: str, name: str | None, offered: dict[str, dict[str, Any]], losses: Losses) -> None:
    """A server that reads no `tool_choice` can still be kept from calling what it is not offered."""
    if kind == "none":
        offered.clear()
    elif kind == "tool":
        _keep_only(name or "", offered)
        losses.degrade("tool_choice")
    elif kind == "any":
        losses.degrade("tool_choice")


def _keep_only(name: str, offered: dict[str, dict[str, Any]]) -> None:
    function = offered[name]
    offered.clear()
    offered[name] = function


def _one_at_a_time(request: MessagesRequest, quirks: Quirks, losses: Losses) -> bool:
    wanted = request.tool_choice
    if wanted is None or not wanted.disable_parallel_tool_use or wanted.type == "none":
        return False
    if not quirks.parallel_tool_calls:
        losses.degrade("tool_choice.disable_parallel_tool_use")
    return quirks.parallel_tool_calls
