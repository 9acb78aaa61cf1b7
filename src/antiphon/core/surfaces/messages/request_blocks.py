"""The content blocks that a Messages request may hold, as the client spelled them.

One struct for each type that means something to an OpenAI-style upstream; every other type is a `Foreign`
block, and what becomes of it is the dialect's decision. Members that no dialect ever carries are in the
class's `unused`: known, noted, and gone. `input` and image `data` stay raw JSON: megabytes and big numbers
pass through untouched.

Source: Anthropic's `types/*_param.py`, as in the API reference for `POST /v1/messages`.

    read_content(b'"hi"' ...)  -> (Text("hi"),)
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from msgspec import Raw, Struct

from antiphon.core.surfaces.messages.request_reading import NULL, Foreign, RequestError, Shape


class Text(Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = ("citations", "cache_control")
    text: str
    citations: Raw = NULL
    cache_control: Raw = NULL


class Thinking(Struct, frozen=True, tag="thinking", forbid_unknown_fields=True):
    """Both members are required by the API; a history that lost one must stay usable."""

    thinking: str = ""
    signature: Raw = NULL


class RedactedThinking(Struct, frozen=True, tag="redacted_thinking", forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = ("data",)
    data: Raw = NULL


class ToolUse(Struct, frozen=True, tag="tool_use", forbid_unknown_fields=True):
    """`input` is the raw JSON of the arguments, `null` where the client sent none."""

    unused: ClassVar[tuple[str, ...]] = ("caller", "toolset_name", "cache_control")
    id: str
    name: str
    input: Raw = NULL
    caller: Raw = NULL
    toolset_name: Raw = NULL
    cache_control: Raw = NULL


class ToolReference(Struct, frozen=True, tag="tool_reference", forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = ("cache_control",)
    tool_name: str
    cache_control: Raw = NULL


class Source(Struct, frozen=True):
    """Where an image or a document comes from. `data` is a raw JSON string, quotes included."""

    type: str
    media_type: str | None = None
    data: Raw = NULL
    url: str | None = None
    content: tuple[Block, ...] = ()


class Image(Struct, frozen=True):
    source: Source


class Document(Struct, frozen=True):
    """`cited` is true where the client asked for citations."""

    source: Source
    title: str | None
    context: str | None
    cited: bool


class SearchResult(Struct, frozen=True):
    source: str
    title: str
    content: tuple[Block, ...]
    cited: bool


class ToolResult(Struct, frozen=True):
    tool_use_id: str
    content: tuple[Block, ...]
    is_error: bool
    cache_control: Raw = NULL


Block: TypeAlias = (
    Text
    | Thinking
    | RedactedThinking
    | ToolUse
    | ToolReference
    | Image
    | Document
    | SearchResult
    | ToolResult
    | Foreign
)


def read_content(content: str | list[Raw], path: str, unknown: dict[str, None]) -> tuple[Block, ...]:
    """The blocks of a turn, of a tool's result or of a document; a string is one text block.

    `path` is that of the content, `unknown` collects members that no struct has. Raises RequestError.
    """
    if isinstance(content, str):
        return (Text(content),)
    return tuple([read_block(raw, f"{path}.{i}", unknown) for i, raw in enumerate(content)])


def read_block(raw: Raw, path: str, unknown: dict[str, None]) -> Block:
    """One content block. Raises RequestError where a known type has missing or wrong members."""
    block = _BLOCKS.read_or_foreign(raw, path, unknown)
    match block:
        case _ToolResult():
            content = read_content(block.content or "", f"{path}.content", unknown)
            return ToolResult(block.tool_use_id, content, bool(block.is_error), block.cache_control)
        case _Image():
            return Image(_read_source(block.source, f"{path}.source", unknown))
        case _Document():
            source = _read_source(block.source, f"{path}.source", unknown)
            return Document(source, block.title, block.context, _enabled(block.citations, path, unknown))
        case _SearchResult():
            content = read_content(block.content, f"{path}.content", unknown)
            return SearchResult(block.source, block.title, content, _enabled(block.citations, path, unknown))
        case ToolUse() if block.input != NULL and memoryview(block.input)[0] != ord("{"):
            raise RequestError(f"{path}.input", "Input should be an object")
        case _:
            return block


# --- The same, as they stand in the JSON: nested values are read one level at a time -------------


class _Image(Struct, frozen=True, tag="image", forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = ("transformations", "cache_control")
    source: Raw
    transformations: Raw = NULL
    cache_control: Raw = NULL


class _Document(Struct, frozen=True, tag="document", forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = ("cache_control",)
    source: Raw
    title: str | None = None
    context: str | None = None
    citations: Raw = NULL
    cache_control: Raw = NULL


class _SearchResult(Struct, frozen=True, tag="search_result", forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = ("cache_control",)
    source: str
    title: str
    content: str | list[Raw]
    citations: Raw = NULL
    cache_control: Raw = NULL


class _ToolResult(Struct, frozen=True, tag="tool_result", forbid_unknown_fields=True):
    unused: ClassVar[tuple[str, ...]] = ("toolset_name", "cache_control")
    tool_use_id: str
    content: str | list[Raw] | None = None
    is_error: bool | None = None
    toolset_name: Raw = NULL
    cache_control: Raw = NULL


class _Source(Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    media_type: str | None = None
    data: Raw = NULL
    url: str | None = None
    file_id: str | None = None
    content: str | list[Raw] | None = None


class _Citations(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool | None = None


_BLOCKS: Shape[
    Text
    | Thinking
    | RedactedThinking
    | ToolUse
    | ToolReference
    | _Image
    | _Document
    | _SearchResult
    | _ToolResult
] = Shape(
    Text, Thinking, RedactedThinking, ToolUse, ToolReference, _Image, _Document, _SearchResult, _ToolResult
)
_SOURCE = Shape(_Source)
_CITATIONS = Shape(_Citations)


def _read_source(raw: Raw, path: str, unknown: dict[str, None]) -> Source:
    source = _SOURCE.read(raw, path, unknown)
    content = read_content(source.content or "", f"{path}.content", unknown)
    return Source(source.type, source.media_type, source.data, source.url, content)


def _enabled(citations: Raw, path: str, unknown: dict[str, None]) -> bool:
    if citations == NULL:
        return False
    return bool(_CITATIONS.read(citations, f"{path}.citations", unknown).enabled)
