"""Which tool call does a fragment belong to? Chat Completions servers disagree about `index` and `id`.

Owns the puzzle: a fragment's index, id, name and position in its chunk in, a stable key out. It keeps
no arguments and knows nothing of blocks.

    calls = CallKeys()
    calls.key(index=0, id="a", name="f", position=0, several=False)   -> 0
    calls.key(index=0, id=None, name=None, position=0, several=False) -> 0
    calls.key(index=0, id="b", name="g", position=0, several=False)   -> 1    (always index 0, other id)
"""

from __future__ import annotations

from msgspec import Struct


class _Call(Struct):
    key: int
    id: str | None


class CallKeys:
    """Keys count up from 0 in the order in which calls open."""

    __slots__ = ("_by_id", "_by_index", "_by_position", "_count", "_last")

    def __init__(self) -> None:
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._by_position: dict[int, _Call] = {}  # for entries without an index, side by side in a chunk
        self._last: _Call | None = None
        self._count = 0

    def key(
        self, *, index: int | None, id: str | None, name: str | None, position: int, several: bool
    ) -> int:  # noqa: A002
        """The call that this fragment belongs to; `None` stands for absent or unusable.

        `several`: the chunk holds more than one fragment; `position` is this one's place in it.
        """
        if index is not None:
            call = self._at_index(index, id, name)
            self._by_index[index] = call
        else:
            call = self._without_index(id, name, position if several else None)
            if several:
                self._by_position[position] = call
        if id is not None:
            if call.id is None:
                call.id = id
            self._by_id.setdefault(id, call)
        self._last = call
        return call.key

    def _at_index(self, index: int, id_: str | None, name: str | None) -> _Call:
        call = self._by_index.get(index)
        known = self._by_id.get(id_) if id_ is not None else None
        if call is None:
            if known is not None and not name:
                return known
            if id_ is not None or name:
                return self._open(id_)
            return self._last or self._open(id_)
        if id_ is None or call.id is None or call.id == id_:
            return call
        if known is not None:
            return known
        # A new call always has a name; some servers give every fragment an id of its own.
        return self._open(id_) if name else call

    def _without_index(self, id_: str | None, name: str | None, position: int | None) -> _Call:
        if id_ is not None:
            known = self._by_id.get(id_)
            if known is not None:
                return known
            if name or self._last is None:
                return self._open(id_)
            return self._last
        if position is not None:
            return self._by_position.get(position) or self._open(None)
        return self._last or self._open(None)

    def _open(self, id_: str | None) -> _Call:
        call = _Call(self._count, id_)
        self._count += 1
        return call
