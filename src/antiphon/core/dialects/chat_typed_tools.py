"""The tools that Anthropic defines and the client runs, written out as functions.

For Anthropic's models a type name is enough (`bash_20250124`); any other model must be shown a description
and a schema. Owns those texts and nothing else; a new version of a tool is a row in `DEFINED_TOOLS`.

Source: Anthropic's tool-use documentation (bash, text editor, memory, computer use) for the commands and
their parameters; the descriptions are this project's.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct


class DefinedTool(Struct, frozen=True):
    description: str
    schema: Raw


def _tool(description: str, required: list[str], **properties: dict[str, Any]) -> DefinedTool:
    schema = {"type": "object", "properties": properties, "required": required}
    return DefinedTool(description, Raw(msgspec.json.encode(schema)))


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _numbers(count: int, description: str) -> dict[str, Any]:
    items = {"type": "integer"}
    return {
        "type": "array",
        "items": items,
        "minItems": count,
        "maxItems": count,
        "description": description,
    }


def _command(name: str, *words: str) -> dict[str, dict[str, Any]]:
    return {name: {"type": "string", "enum": list(words)}}


_BASH = _tool(
    "Run a command in a bash shell that keeps its state between calls.",
    [],
    command=_text("The command to run. Needed unless restart is true."),
    restart={"type": "boolean", "description": "True: restart the shell instead of running a command."},
)

_LINES = _numbers(2, "view: first and last line to show; lines count from 1, a last line of -1 is the end.")


def _editor(*commands: str) -> DefinedTool:
    return _tool(
        "View, create and edit text files. str_replace needs an old_str that occurs exactly once.",
        ["command", "path"],
        **_command("command", *commands),
        path=_text("Path of the file, or of the directory to view."),
        file_text=_text("create: the content of the new file."),
        old_str=_text("str_replace: the text to replace, with its white space."),
        new_str=_text("str_replace: the new text. insert: the text to insert."),
        insert_line=_number("insert: the line after which the text goes; 0 is the beginning."),
        view_range=_LINES,
    )


_EDITOR = _editor("view", "create", "str_replace", "insert")
_EDITOR_WITH_UNDO = _editor("view", "create", "str_replace", "insert", "undo_edit")

_MEMORY = _tool(
    "Keep notes in files under /memories that last beyond this conversation. Look there before you begin.",
    ["command"],
    **_command("command", "view", "create", "str_replace", "insert", "delete", "rename"),
    path=_text("Path of the file or directory, under /memories. Needed by all commands but rename."),
    file_text=_text("create: the content of the file."),
    old_str=_text("str_replace: the text to replace."),
    new_str=_text("str_replace: the new text."),
    insert_line=_number("insert: the line after which the text goes; 0 is the beginning."),
    insert_text=_text("insert: the text to insert."),
    old_path=_text("rename: the present path."),
    new_path=_text("rename: the new path."),
    view_range=_LINES,
)

_FIRST_ACTIONS = (
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "screenshot",
    "cursor_position",
)
_ACTIONS = (
    *_FIRST_ACTIONS,
    "triple_click",
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "hold_key",
    "wait",
)


def _computer(*actions: str) -> DefinedTool:
    properties = {
        **_command("action", *actions),
        "coordinate": _numbers(2, "x and y in pixels, from the upper left corner."),
        "text": _text("type: the text. key, hold_key: the keys, such as ctrl+s. Clicks: keys held down."),
    }
    if "scroll" in actions:
        properties |= {
            "start_coordinate": _numbers(2, "left_click_drag: where the drag begins."),
            "scroll_amount": _number("scroll: how many steps."),
            "duration": {"type": "number", "description": "wait, hold_key: seconds."},
            **_command("scroll_direction", "up", "down", "left", "right"),
        }
    if "zoom" in actions:
        properties["region"] = _numbers(4, "zoom: x0, y0, x1, y1 of the part of the screen to show.")
    return _tool(
        "Use the mouse, keyboard and screen of a computer. Take a screenshot to see what an action did.",
        ["action"],
        **properties,
    )


DEFINED_TOOLS = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _EDITOR_WITH_UNDO,
    "text_editor_20250124": _EDITOR_WITH_UNDO,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
    "computer_20241022": _computer(*_FIRST_ACTIONS),
    "computer_20250124": _computer(*_ACTIONS),
    "computer_20251124": _computer(*_ACTIONS, "zoom"),
}
"""By the tool's `type`."""
