"""Which tool call does a fragment belong to? Chat Completions servers disagree about `index` and `id`.

Owns the puzzle: index, id, name and position of each fragment of a chunk in, stable keys out. It keeps
no arguments and knows nothing of blocks.

    calls = CallKeys()
    calls.keys([Fragment(0, "a", "f")])                            -> [0]
    calls.keys([Fragment(0, None, "")])                            -> [0]
    calls.keys([Fragment(0, "b", "g")])                            -> [1]      always index 0, another id
    calls.keys([Fragment(None, "c", "f", 0), Fragment(None, "d", "g", 1)])  -> [2, 3]   no index at all
"""

from __future__ import annotations

from msgspec import Struct


class Fragment(Struct, gc=False):
    """What one entry of `tool_calls` says about its place; None or "" for absent or unusable.

    `position` is its place among the entries of its chunk, None for the only one.
    """

    index: int | None
    id: str | None
    name: str
    position: int | None = None


class _Call(Struct):
    key: int
    id: str | None
    index: int | None


class CallKeys:
    """Keys count up from 0 in the order in which calls open."""

    __slots__ = ("_by_id", "_by_index", "_by_position", "_count", "_last", "_shared")

    def __init__(self) -> None:
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        # in the last chunk that had several fragments, until a call opens alone
        self._by_position: dict[int | None, _Call] = {}
        self._shared: set[int] = set()  # indices that one chunk gave to several calls
        self._last: _Call | None = None
        self._count = 0

    def keys(self, fragments: list[Fragment]) -> list[int]:
        """The calls that the fragments of one chunk belong to."""
        before = self._count
        found: list[_Call] = []
        here: dict[int, _Call] = {}
        for fragment in fragments:
            call = self._find(fragment.index, fragment.id, fragment.name, fragment.position)
            if fragment.index is not None and here.setdefault(fragment.index, call) is not call:
                self._shared.add(fragment.index)
            found.append(call)
        if fragments[0].position is not None:
            self._by_position = {
                fragment.position: call for fragment, call in zip(fragments, found, strict=True)
            }
        elif self._count > before:
            self._by_position = {}
        return [call.key for call in found]

    def _find(self, index: int | None, id_: str | None, name: str, position: int | None) -> _Call:
        if index in self._shared and id_ is None and not name:
            index = None  # it tells nothing: the place in the chunk does
        if index is None:
            call = self._without_index(id_, name, position)
        else:
            call = self._at_index(index, id_, name)
            self._by_index[index] = call
        if id_ is not None:
            if call.id is None:
                call.id = id_
            self._by_id.setdefault(id_, call)
        self._last = call
        return call

    def _at_index(self, index: int, id_: str | None, name: str) -> _Call:
        call = self._by_index.get(index)
        known = self._by_id.get(id_) if id_ is not None else None
        if call is None:
            if known is not None and not name:
                return known
            if id_ is None and not name and self._last is not None and self._last.index is None:
                return self._last  # a server that counts in some of its fragments only
            return self._open(id_, index)
        if id_ is None or call.id is None or call.id == id_:
            return call
        if known is not None:
            return known
        # A new call always has a name; some servers give every fragment an id of its own.
        return self._open(id_, index) if name else call

    def _without_index(self, id_: str | None, name: str, position: int | None) -> _Call:
        if id_ is not None:
            known = self._by_id.get(id_)
            if known is not None:
                return known
            if name:
                return self._open(id_, None)
        if position is not None:
            call = self._by_position.get(position)
            if call is not None:
                return call
            if name:
                return self._open(id_, None)
        return self._last or self._open(id_, None)

    def _open(self, id_: str | None, index: int | None) -> _Call:
        call = _Call(self._count, id_, index)
        self._count += 1
        return call
