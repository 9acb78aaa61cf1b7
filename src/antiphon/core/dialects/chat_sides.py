"""The turns of a Messages request, gathered into what each side said before the other spoke again.

Owns where a turn's blocks belong: neighbours of one side are one, empty turns leave no trace, a system turn
is the system prompt or a note in the user's side, thinking is opened and kept where the server wants it
back. How a side is written is in `chat_messages`, what a single block becomes in `chat_content`.

    [user "q", system "n", assistant [thinking "t", tool_use c1], assistant "x"]
    -> User(pieces=["q", Note("n")]), Assistant(texts=["x"], thoughts=["t"], calls={"c1": ...})
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct, field

from antiphon.core.dialects import chat_content, chat_tools
from antiphon.core.surfaces.messages.request import MessagesRequest, RequestError, Turn
from antiphon.core.surfaces.messages.request_blocks import (
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from antiphon.core.surfaces.messages.request_reading import Foreign

if TYPE_CHECKING:
    from antiphon.core.dialects.chat_content import Piece
    from antiphon.core.dialects.losses import Losses
    from antiphon.core.dialects.quirks import Quirks

# Claude Code's first system block; kept, it would change the head of the prompt with every release (and in
# some releases with every request), and no prefix cache would ever hold.
_BILLING = "x-anthropic-billing-header"

Unseal: TypeAlias = Callable[[str], Any]
"""A thinking block's `signature` to the state that this upstream once gave, None for everything else."""


def nothing_sealed(signature: str) -> None:
    """No seal is known: every signature is foreign."""


class User(Struct):
    """Consecutive turns of the user's side. A piece is a text, an image, or a `Note` in its place."""

    results: list[tuple[str, ToolResult]] = field(default_factory=list)
    pieces: list[Piece | Note] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not self.results and not self.pieces


class Assistant(Struct):
    """Consecutive turns of the assistant's. `path` is that of the last, `calls_at` of the last that calls."""

    path: str
    calls_at: str = ""
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: dict[str, ToolUse] = field(default_factory=dict)
    details: list[Any] = field(default_factory=list)
    """`reasoning_details` as the upstream gave them."""
    extras: dict[str, Any] = field(default_factory=dict)
    """`extra_content` of calls, by the call's id; of the message itself under ""."""

    def is_empty(self) -> bool:
        return not self.texts and not self.thoughts and not self.calls and not self.details

    def append(self, later: Assistant) -> None:
        self.path = later.path
        self.calls_at = later.calls_at or self.calls_at
        self.texts += later.texts
        self.thoughts += later.thoughts
        self.details += later.details
        self.extras.update(later.extras)
        for call in later.calls.values():
            self.call(call, later.calls_at)

    def call(self, block: ToolUse, path: str) -> None:
        """Add a call. Raises RequestError for an id that the same message has already."""
        if block.id in self.calls:
            raise RequestError(path, f"`tool_use` ids must be unique: {block.id[:128]}")
        self.calls[block.id] = block


class Note(Struct, frozen=True):
    """A text of a `system` turn that stands inside the conversation."""

    text: str


def gather(
    request: MessagesRequest, quirks: Quirks, losses: Losses, unseal: Unseal
) -> tuple[list[str], list[User | Assistant]]:
    """The system texts, and the turns with what is empty left out and neighbours of one side together."""
    system = _system(request, losses)
    turns: list[User | Assistant] = []
    for i, turn in enumerate(request.messages):
        path = f"messages.{i}"
        if turn.role == "assistant":
            _join(turns, _assistant(turn, path, quirks, losses, unseal))
        elif turn.role == "user":
            _join(turns, _user(turn, path, quirks, losses))
        else:
            found = _notes(turn, path, quirks, losses, text_only=not turns or quirks.system_turns != "user")
            if turns:
                _join(turns, User(pieces=found))
            else:  # before the conversation begins it is the system prompt
                system += [note.text for note in found if isinstance(note, Note)]
    sides: list[User | Assistant] = []
    for side in turns:
        if isinstance(side, Assistant) and side.thoughts and not _wants_thoughts(side, quirks):
            losses.ignore("messages.*.content.*.thinking")
            side.thoughts.clear()
        _join(sides, side)
    return system, sides


def _join(sides: list[User | Assistant], side: User | Assistant) -> None:
    """Append a turn; the same side's goes on with what it said before, an empty one leaves no trace."""
    last = sides[-1] if sides else None
    if side.is_empty():
        return
    if isinstance(last, User) and isinstance(side, User):
        last.results += side.results
        last.pieces += side.pieces
    elif isinstance(last, Assistant) and isinstance(side, Assistant):
        last.append(side)
    else:
        sides.append(side)


def _wants_thoughts(said: Assistant, quirks: Quirks) -> bool:
    if quirks.reasoning_when == "tool_turns":
        return bool(said.calls)
    return quirks.reasoning_when == "always"


def _system(request: MessagesRequest, losses: Losses) -> list[str]:
    texts = []
    for i, block in enumerate(request.system):
        text = chat_content.marked(block.text, block)
        if text.startswith(_BILLING):
            losses.ignore(f"system.{i}")
            text = text.partition("\n")[2]
        if text:
            texts.append(text)
    return texts


def _notes(turn: Turn, path: str, quirks: Quirks, losses: Losses, *, text_only: bool) -> list[Piece | Note]:
    """What a system turn says, and the images in it. The API's own have text only, and changes of tools.

    `text_only`: it becomes a system message, where no server takes images. Raises RequestError.
    """
    found: list[Piece | Note] = []
    for j, block in enumerate(turn.content):
        where = f"{path}.content.{j}"
        if isinstance(block, Foreign) and block.type in chat_tools.TOOL_CHANGES:
            continue  # `chat_tools` says what becomes of it
        for piece in chat_content.pieces(block, where, quirks, losses):
            if isinstance(piece, str):
                found.append(Note(piece))
            elif text_only:
                raise RequestError(where, "image: a system message can hold text only")
            else:
                found.append(piece)
    return found


def _user(turn: Turn, path: str, quirks: Quirks, losses: Losses) -> User:
    heard = User()
    for j, block in enumerate(turn.content):
        where = f"{path}.content.{j}"
        if isinstance(block, Text):
            if block.text:
                heard.pieces.append(chat_content.marked(block.text, block))
        elif isinstance(block, ToolResult):
            heard.results.append((where, block))
        elif isinstance(block, ToolUse | Thinking | RedactedThinking):
            kind = block.__struct_config__.tag
            raise RequestError(where, f"`{kind}` blocks can only be in `assistant` messages")
        else:
            heard.pieces += chat_content.pieces(block, where, quirks, losses)
    return heard


def _assistant(turn: Turn, path: str, quirks: Quirks, losses: Losses, unseal: Unseal) -> Assistant:
    """The assistant's turn; whether its thinking is sent back is decided when its neighbours are known."""
    said = Assistant(path)
    extra: Any = None  # a call's state stands in the thinking block right before it
    for j, block in enumerate(turn.content):
        where = f"{path}.content.{j}"
        if isinstance(block, Text):
            if block.text:
                said.texts.append(block.text)
        elif isinstance(block, Thinking):
            if block.thinking:
                said.thoughts.append(block.thinking)
            state = unseal(_signature(block))
            if isinstance(state, dict):
                said.details += state.get("reasoning_details") or []
                extra = state.get("extra_content", extra)
                if "message_extra_content" in state:
                    said.extras[""] = state["message_extra_content"]
        elif isinstance(block, RedactedThinking):
            losses.ignore(where)
        elif isinstance(block, ToolUse):
            said.call(block, where)
            said.calls_at = path
            if extra is not None:
                said.extras[block.id] = extra
                extra = None
        elif isinstance(block, ToolResult):
            raise RequestError(where, "`tool_result` blocks can only be in `user` messages")
        else:
            said.texts += chat_content.spoken(block, where, quirks, losses)
    return said


def _signature(block: Thinking) -> str:
    """Foreign signatures are of any form and never an error."""
    try:
        return msgspec.json.decode(block.signature, type=str)
    except msgspec.DecodeError:
        return ""
