"""The conversation of a Messages request, as Chat Completions messages.

Owns the order and the form of messages: each side is one message, the results of tool calls come first and in
the order of the calls, texts of a message are one string. Which turns make a side is in `chat_sides`, what
a single block becomes in `chat_content`. A turn never changes because of a later one, so the messages of
turn n are the first bytes of turn n+1's.

    [user "q", assistant [thinking "t", tool_use c1], user [tool_result c1 "r", text "go on"]]
    -> user "q"; assistant null + reasoning_content "t" + tool_calls [c1]; tool c1 "r"; user "go on"
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from antiphon.core import tool_ids
from antiphon.core.dialects import chat_content
from antiphon.core.dialects.chat_sides import Assistant, Note, Unseal, User, gather, nothing_sealed
from antiphon.core.surfaces.messages.request import MessagesRequest, RequestError
from antiphon.core.surfaces.messages.request_blocks import ToolResult, ToolUse

if TYPE_CHECKING:
    from antiphon.core.dialects.chat_content import Piece
    from antiphon.core.dialects.chat_tools import ToolNames
    from antiphon.core.dialects.losses import Losses
    from antiphon.core.dialects.quirks import Quirks

_REMINDER = "<system-reminder>"
_ALPHANUMERIC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ALNUM9 = 9
_SYSTEM_MARK, _TURN_MARK = "system.*.cache_control", "messages.*.content.*.cache_control"
_MARKS = frozenset({_SYSTEM_MARK, _TURN_MARK})
_OF_FUNCTION = re.compile(r"functions\.[A-Za-z0-9_-]+:\d+")
_CUT = b"\0"  # a byte that no JSON has: inside strings it is escaped


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


def encode_messages(
    request: MessagesRequest,
    quirks: Quirks,
    names: ToolNames,
    losses: Losses,
    unseal: Unseal = nothing_sealed,
) -> Conversation:
    """The messages for a server. Raises RequestError, with the path of the turn or block."""
    system, sides = gather(request, quirks, losses, unseal)
    if not sides:
        raise RequestError("messages", "at least one message with content is required")
    has_marks = not _MARKS.isdisjoint(request.ignored)
    writer = _Writer(quirks, names, losses, in_parts=quirks.cache_control and has_marks)
    if system:
        writer.system(system)
    previous: Assistant | None = None
    for side in sides:
        if isinstance(side, Assistant):
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


# --- Sides into messages --------------------------------------------------------------------------


class _Writer:
    """Writes messages one after the other and keeps what must agree between them: tool ids and counts."""

    def __init__(self, quirks: Quirks, names: ToolNames, losses: Losses, *, in_parts: bool) -> None:
        self.messages: list[dict[str, Any]] = []
        self.ids: dict[str, str] = {}
        """Tool ids: the client's to the upstream's."""
        self._used: set[str] = set()
        self._quirks = quirks
        self._names = names
        self._losses = losses
        # A mark moves on from turn to turn, and what is around it must not change with it: with marks
        # anywhere in the request, every text that could have one is a part.
        self._in_parts = in_parts

    def system(self, texts: list[str]) -> None:
        content: str | list[dict[str, Any]] = "\n\n".join(texts)
        if self._in_parts:
            content = [self._text_part(text, _SYSTEM_MARK) for text in texts]
        self.messages.append({"role": "system", "content": content})

    def assistant(self, said: Assistant) -> None:
        empty = None if said.calls and self._quirks.null_content == "null" else ""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "\n".join(said.texts) if said.texts else empty,
        }
        reasoning = self._quirks.reasoning_missing if said.calls else None
        if said.thoughts:
            reasoning = "\n".join(said.thoughts)
        if reasoning is not None and self._quirks.reasoning_tags_out:
            # The line feeds within the tags are its own; those behind them were taken for part of the tag.
            message["content"] = f"<think>{reasoning}</think>\n\n{message['content'] or ''}"
        elif reasoning is not None:
            for name in self._quirks.reasoning_fields_out:
                message[name] = reasoning
        if said.details:
            message["reasoning_details"] = said.details
        if "" in said.extras:
            message["extra_content"] = said.extras[""]
        if said.calls:
            extras = said.extras
            if not extras and self._quirks.call_extra is not None:
                extras = {next(iter(said.calls)): self._quirks.call_extra}
            message["tool_calls"] = [self._call(call, extras.get(call.id)) for call in said.calls.values()]
        self.messages.append(message)

    def _call(self, call: ToolUse, extra: Any) -> dict[str, Any]:
        name = self._names.sent(call.name)
        entry: dict[str, Any] = {
            "id": self._upstream_id(call.id, name),
            "type": "function",
            "function": {
                "name": name,
                "arguments": chat_content.arguments(call),
            },
        }
        if extra is not None:
            entry["extra_content"] = extra
        return entry

    def user(self, side: User, previous: Assistant | None) -> None:
        """`previous` is what the assistant said right before (None: nothing, or the user spoke first)."""
        shown: list[Piece | Note] = []
        for where, result in _in_call_order(side.results, previous):
            text, images = chat_content.result(result, where, self._quirks, self._losses)
            content: str | list[dict[str, Any]] = text
            if self._in_parts and text:
                content = [self._text_part(chat_content.marked(text, result), _TURN_MARK)]
            self.messages.append(
                {"role": "tool", "tool_call_id": self.ids[result.tool_use_id], "content": content}
            )
            shown += images
        run: list[Piece] = []
        for piece in shown + side.pieces:
            if not isinstance(piece, Note):
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
        if len(texts) == len(pieces) and not self._in_parts:
            self.messages.append({"role": "user", "content": "\n".join(texts)})
            return
        parts: list[dict[str, Any]] = []
        for piece in pieces:
            if isinstance(piece, str):
                parts.append(self._text_part(piece, _TURN_MARK))
            else:
                parts.append({"type": "image_url", "image_url": {"url": piece}})
        self.messages.append({"role": "user", "content": parts})

    def _text_part(self, text: str, path: str) -> dict[str, Any]:
        """`path` is that of the marks, which are lost where texts are no parts."""
        part: dict[str, Any] = {"type": "text", "text": str(text)}
        if isinstance(text, chat_content.Marked) and self._in_parts:
            part["cache_control"] = text.cache_control
            self._losses.carried(path)
        return part

    def _upstream_id(self, client_id: str, name: str) -> str:
        """The id as the upstream gave it, the same for a call of the function `name` and its result.

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
            elif self._quirks.tool_id_form == "functions" and not _OF_FUNCTION.fullmatch(found):
                found = self._of_function(name)
            self._used.add(found)
            self.ids[client_id] = found
        return found

    def _of_function(self, name: str) -> str:
        """An id as Kimi's models write it: N counts the calls, past those that were given already."""
        count = len(self.ids)
        while f"functions.{name}:{count}" in self._used:
            count += 1
        return f"functions.{name}:{count}"


def _encoded(messages: list[dict[str, Any]]) -> tuple[list[bytes], list[chat_content.Picture]]:
    """The messages as JSON, cut where an image's URL belongs, and the images."""
    pictures: list[chat_content.Picture] = []

    def cut(picture: chat_content.Picture) -> Raw:
        pictures.append(picture)
        return Raw(_CUT)

    encoded = msgspec.json.encode(messages, enc_hook=cut)
    return (encoded.split(_CUT) if pictures else [encoded]), pictures


# Joined they are the JSON: an image's data is copied only then.
def _interleaved(texts: list[bytes], pictures: list[chat_content.Picture]) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = [texts[0]]
    for picture, text in zip(pictures, texts[1:], strict=True):
        pieces += (picture.head, picture.tail, text)
    return pieces


def _in_call_order(
    results: list[tuple[str, ToolResult]], previous: Assistant | None
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
