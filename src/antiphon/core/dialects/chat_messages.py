"""The conversation of a Messages request, as Chat Completions messages.

Owns the order and the form of messages: turns of one side that follow each other are one message, the
results of tool calls come first and in the order of the calls, texts of a message are one string. What a
single block becomes is in `chat_content`. A turn never changes because of a later one, so the messages of
turn n are the first bytes of turn n+1's.

    [user "q", assistant [thinking "t", tool_use c1], user [tool_result c1 "r", text "go on"]]
    -> user "q"; assistant null + reasoning_content "t" + tool_calls [c1]; tool c1 "r"; user "go on"
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Raw, Struct, field

from antiphon.core import tool_ids
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
    from antiphon.core.dialects.chat_tools import ToolNames
    from antiphon.core.dialects.losses import Losses
    from antiphon.core.dialects.quirks import Quirks

# Claude Code's first system block; kept, it would change the head of the prompt with every release (and in
# some releases with every request), and no prefix cache would ever hold.
_BILLING = "x-anthropic-billing-header"
_REMINDER = "<system-reminder>"
_ALPHANUMERIC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ALNUM9 = 9
_CUT = b"\0"  # a byte that no JSON has: inside strings it is escaped

Unseal: TypeAlias = Callable[[str], Any]
"""A thinking block's `signature` to the state that this upstream once gave, None for everything else."""


def nothing_sealed(signature: str) -> None:
    """No seal is known: every signature is foreign."""


class Conversation(Struct, frozen=True):
    """`count` messages as JSON, in pieces to be joined; the client's tool ids.

    `images` are in them, and all but `text_bytes` of the JSON are theirs. `is_prefill`: the last message is
    text of the assistant's, to be continued.
    """

    pieces: list[bytes | memoryview]
    count: int
    images: int
    text_bytes: int
    client_tool_ids: frozenset[str]
    is_prefill: bool


class _User(Struct):
    """Consecutive turns of the user's side. A piece is a text, an image, or a `_Note` in its place."""

    results: list[tuple[str, ToolResult]] = field(default_factory=list)
    pieces: list[Piece | _Note] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not self.results and not self.pieces


class _Assistant(Struct):
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

    def append(self, later: _Assistant) -> None:
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


class _Note(Struct, frozen=True):
    """A text of a `system` turn that stands inside the conversation."""

    text: str


def encode_messages(
    request: MessagesRequest,
    quirks: Quirks,
    names: ToolNames,
    losses: Losses,
    unseal: Unseal = nothing_sealed,
) -> Conversation:
    """The messages for a server. Raises RequestError, with the path of the turn or block."""
    system, sides = _sides(request, quirks, losses, unseal)
    if not sides:
        raise RequestError("messages", "at least one message with content is required")
    writer = _Writer(quirks, names, losses)
    if system:
        writer.messages.append({"role": "system", "content": "\n\n".join(system)})
    previous: _Assistant | None = None
    for side in sides:
        if isinstance(side, _Assistant):
            writer.assistant(side)
            previous = side
        else:
            writer.user(side, previous)
            previous = None
    if previous is not None:
        _in_call_order([], previous)  # there is no next message, so there are no results
        if quirks.prefill_mark is not None:
            writer.messages[-1][quirks.prefill_mark] = True
        elif not quirks.prefill and not quirks.continues:
            losses.degrade(previous.path)
    texts, pictures = _encoded(writer.messages)
    return Conversation(
        pieces=_interleaved(texts, pictures),
        count=len(writer.messages),
        images=len(pictures),
        text_bytes=sum(map(len, texts)),
        client_tool_ids=frozenset(writer.ids),
        is_prefill=previous is not None,
    )


# --- Turns into sides -----------------------------------------------------------------------------


def _sides(
    request: MessagesRequest, quirks: Quirks, losses: Losses, unseal: Unseal
) -> tuple[list[str], list[_User | _Assistant]]:
    """The system texts, and the turns with what is empty left out and neighbours of one side together."""
    system = _system(request, losses)
    turns: list[_User | _Assistant] = []
    for i, turn in enumerate(request.messages):
        path = f"messages.{i}"
        if turn.role == "assistant":
            _join(turns, _assistant(turn, path, quirks, losses, unseal))
        elif turn.role == "user":
            _join(turns, _user(turn, path, quirks, losses))
        else:
            found = _notes(turn, path, quirks, losses, text_only=not turns or quirks.system_turns != "user")
            if turns:
                _join(turns, _User(pieces=found))
            else:  # before the conversation begins it is the system prompt
                system += [note.text for note in found if isinstance(note, _Note)]
    sides: list[_User | _Assistant] = []
    for side in turns:
        if isinstance(side, _Assistant) and side.thoughts and not _wants_thoughts(side, quirks):
            losses.ignore("messages.*.content.*.thinking")
            side.thoughts.clear()
        _join(sides, side)
    return system, sides


def _join(sides: list[_User | _Assistant], side: _User | _Assistant) -> None:
    """Append a turn; the same side's goes on with what it said before, an empty one leaves no trace."""
    last = sides[-1] if sides else None
    if side.is_empty():
        return
    if isinstance(last, _User) and isinstance(side, _User):
        last.results += side.results
        last.pieces += side.pieces
    elif isinstance(last, _Assistant) and isinstance(side, _Assistant):
        last.append(side)
    else:
        sides.append(side)


def _wants_thoughts(said: _Assistant, quirks: Quirks) -> bool:
    if quirks.reasoning_when == "tool_turns":
        return bool(said.calls)
    return quirks.reasoning_when == "always"


def _system(request: MessagesRequest, losses: Losses) -> list[str]:
    texts = []
    for i, block in enumerate(request.system):
        text = block.text
        if text.startswith(_BILLING):
            losses.ignore(f"system.{i}")
            text = text.partition("\n")[2]
        if text:
            texts.append(text)
    return texts


def _notes(turn: Turn, path: str, quirks: Quirks, losses: Losses, *, text_only: bool) -> list[Piece | _Note]:
    """What a system turn says, and the images in it. The API's own have text only, and changes of tools.

    `text_only`: it becomes a system message, where no server takes images. Raises RequestError.
    """
    found: list[Piece | _Note] = []
    for j, block in enumerate(turn.content):
        where = f"{path}.content.{j}"
        if isinstance(block, Foreign) and block.type in chat_tools.TOOL_CHANGES:
            continue  # `chat_tools` says what becomes of it
        for piece in chat_content.pieces(block, where, quirks, losses):
            if isinstance(piece, str):
                found.append(_Note(piece))
            elif text_only:
                raise RequestError(where, "image: a system message can hold text only")
            else:
                found.append(piece)
    return found


def _user(turn: Turn, path: str, quirks: Quirks, losses: Losses) -> _User:
    heard = _User()
    for j, block in enumerate(turn.content):
        where = f"{path}.content.{j}"
        if isinstance(block, Text):
            if block.text:
                heard.pieces.append(block.text)
        elif isinstance(block, ToolResult):
            heard.results.append((where, block))
        elif isinstance(block, ToolUse | Thinking | RedactedThinking):
            kind = block.__struct_config__.tag
            raise RequestError(where, f"`{kind}` blocks can only be in `assistant` messages")
        else:
            heard.pieces += chat_content.pieces(block, where, quirks, losses)
    return heard


def _assistant(turn: Turn, path: str, quirks: Quirks, losses: Losses, unseal: Unseal) -> _Assistant:
    """The assistant's turn; whether its thinking is sent back is decided when its neighbours are known."""
    said = _Assistant(path)
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


# --- Sides into messages --------------------------------------------------------------------------


class _Writer:
    """Writes messages one after the other and keeps what must agree between them: tool ids and counts."""

    def __init__(self, quirks: Quirks, names: ToolNames, losses: Losses) -> None:
        self.messages: list[dict[str, Any]] = []
        self.ids: dict[str, str] = {}
        """Tool ids: the client's to the upstream's."""
        self._used: set[str] = set()
        self._quirks = quirks
        self._names = names
        self._losses = losses

    def assistant(self, said: _Assistant) -> None:
        empty = None if said.calls and self._quirks.null_content == "null" else ""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "\n".join(said.texts) if said.texts else empty,
        }
        if said.thoughts:
            reasoning = "\n".join(said.thoughts)
            for name in self._quirks.reasoning_fields_out:
                message[name] = reasoning
        if said.details:
            message["reasoning_details"] = said.details
        if "" in said.extras:
            message["extra_content"] = said.extras[""]
        if said.calls:
            message["tool_calls"] = [
                self._call(call, said.extras.get(call.id)) for call in said.calls.values()
            ]
        self.messages.append(message)

    def _call(self, call: ToolUse, extra: Any) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": self._upstream_id(call.id),
            "type": "function",
            "function": {
                "name": self._names.sent(call.name),
                "arguments": chat_content.arguments(call),
            },
        }
        if extra is not None:
            entry["extra_content"] = extra
        return entry

    def user(self, side: _User, previous: _Assistant | None) -> None:
        """`previous` is what the assistant said right before (None: nothing, or the user spoke first)."""
        shown: list[Piece | _Note] = []
        for where, result in _in_call_order(side.results, previous):
            text, images = chat_content.result(result, where, self._quirks, self._losses)
            self.messages.append(
                {"role": "tool", "tool_call_id": self.ids[result.tool_use_id], "content": text}
            )
            shown += images
        run: list[Piece] = []
        for piece in shown + side.pieces:
            if not isinstance(piece, _Note):
                run.append(piece)
            elif self._quirks.system_turns == "user":
                run.append(_reminder(piece.text))
            else:
                self._user_message(run)
                run = []
                self.messages.append({"role": "system", "content": piece.text})
        self._user_message(run)

    def _user_message(self, pieces: list[Piece]) -> None:
        """One message: a plain string if it is only text, which every template and server takes."""
        if not pieces:
            return
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if len(texts) == len(pieces):
            self.messages.append({"role": "user", "content": "\n".join(texts)})
            return
        parts: list[dict[str, Any]] = []
        for piece in pieces:
            if isinstance(piece, str):
                parts.append({"type": "text", "text": piece})
            else:
                parts.append({"type": "image_url", "image_url": {"url": piece}})
        self.messages.append({"role": "user", "content": parts})

    def _upstream_id(self, client_id: str) -> str:
        """The id as the upstream gave it, the same for a call and its result.

        Two ids of one conversation may unwrap to the same (an upstream that counts from 0 in every turn):
        the later stays wrapped, so that the server can tell them apart.
        """
        found = self.ids.get(client_id)
        if found is None:
            found = tool_ids.original(client_id)
            if found in self._used:
                found = client_id
            if self._quirks.tool_id_form == "alnum9":
                found = _alnum9(found)
            self._used.add(found)
            self.ids[client_id] = found
        return found


def _encoded(messages: list[dict[str, Any]]) -> tuple[list[bytes], list[chat_content.Picture]]:
    """The messages as JSON, cut where an image's URL belongs, and the images."""
    pictures: list[chat_content.Picture] = []

    def cut(picture: chat_content.Picture) -> Raw:
        pictures.append(picture)
        return Raw(_CUT)

    encoded = msgspec.json.encode(messages, enc_hook=cut)
    return (encoded.split(_CUT) if pictures else [encoded]), pictures


def _interleaved(texts: list[bytes], pictures: list[chat_content.Picture]) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = [texts[0]]
    for picture, text in zip(pictures, texts[1:], strict=True):
        pieces += (picture.head, picture.tail, text)
    return pieces


def _in_call_order(
    results: list[tuple[str, ToolResult]], previous: _Assistant | None
) -> list[tuple[str, ToolResult]]:
    """The results of one turn in the order of the calls. Raises RequestError in Anthropic's own words."""
    order = {known: i for i, known in enumerate(previous.calls)} if previous is not None else {}
    answered = set()
    for where, result in results:
        known = result.tool_use_id
        if known not in order:
            raise RequestError(
                where,
                f"unexpected `tool_use_id` found in `tool_result` blocks: {known[:128]}. Each `tool_result` "
                "block must have a corresponding `tool_use` block in the previous message.",
            )
        if known in answered:
            raise RequestError(
                where,
                "each tool_use must have a single result. Found multiple `tool_result` blocks with id: "
                f"{known[:128]}",
            )
        answered.add(known)
    missing = [call for call in order if call not in answered]
    if missing and previous is not None:
        raise RequestError(
            previous.calls_at,
            f"`tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)[:512]}. Each `tool_use` block must have a corresponding `tool_result` "
            "block in the next message.",
        )
    return sorted(results, key=lambda each: order[each[1].tool_use_id])


def _reminder(text: str) -> str:
    if text.lstrip().startswith(_REMINDER):
        return text
    return f"{_REMINDER}\n{text}\n</system-reminder>"


def _alnum9(upstream_id: str) -> str:
    """An id of nine alphanumerics: itself if it is one, else always the same one for the same id."""
    if len(upstream_id) == _ALNUM9 and upstream_id.isascii() and upstream_id.isalnum():
        return upstream_id
    digest = hashlib.sha256(upstream_id.encode()).digest()
    return "".join(_ALPHANUMERIC[byte % len(_ALPHANUMERIC)] for byte in digest[:_ALNUM9])
