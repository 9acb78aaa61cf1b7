"""The tool calls of a message: which argument text is whose, and what it makes of the call.

Owns the puzzles of argument text: a placeholder `{}` before the real arguments, the whole text said
twice, the next call's object at the same key, white space and other things behind a whole object, a name
that comes late. It decides nothing about order: it answers with steps, which `core.stream` takes through
its table.

    calls = ToolCalls(counts)
    calls.open(ToolOpen(0, "a", "read"))   -> [("named", call, "")]
    calls.feed(0, '{"p":')                 -> [("delta", call, '{"p":')]
    calls.feed(0, "1}")                    -> [("delta", call, "1}"), ("whole", call, "")]
    calls.feed(0, '{"p":2}')               -> [("named", other, ""), ("delta", other, ...), ...]
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from antiphon.core.arguments import ArgumentScanner
from antiphon.core.blocks import ToolBlock
from antiphon.core.parts import ToolOpen

Step: TypeAlias = tuple[str, ToolBlock, str]
"""`named`: the call has a place in the message now; otherwise an input of `core.stream.BLOCK`."""

NAME_KEPT = 4096  # characters of a name that comes in pieces; clients get 128


class ToolCalls:
    """Every call of one message. `counts` takes what was dropped or mended, by kind."""

    __slots__ = ("_by_key", "_calls", "_counts", "_unfinished", "overlap")

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._calls: list[ToolBlock] = []
        self._by_key: dict[int, ToolBlock] = {}
        self._unfinished: set[ToolBlock] = set()  # those that are not whole
        self.overlap = False  # two calls were in flight at once: order tells nothing any more

    def at(self, key: int) -> ToolBlock:
        """The call that this key means now; a new one, if it means none."""
        return self._by_key.get(key) or self._new(key)

    def open(self, part: ToolOpen) -> list[Step]:
        """A name (or a piece of it) or an id for a call.

        Pieces of a name are joined until the first argument byte, the whole name once more is a repeat.
        """
        call, name = self.at(part.key), part.name
        if name and name != call.name:
            if call.name and call.scan.whole:
                call = self._new(part.key)  # no index, no id, but another tool: another call
            elif call.name and not call.scan.blank:
                self._counts["name_after_arguments"] += 1
                name = ""
            call.name = (call.name + name)[:NAME_KEPT]
        if part.id and call.upstream_id is None:
            if not call.id:
                call.upstream_id = part.id
            elif call.scan.whole:
                call.spare_id = part.id  # of another call of the same name, if there is one
            else:
                self._counts["id_too_late"] += 1
        return [("named", call, "")] if call.name and not call.queued else []

    def feed(self, key: int, text: str) -> list[Step]:
        """Argument text for the call at `key`."""
        steps: list[Step] = []
        call, position = self.at(key), 0
        while position < len(text):
            if not call.scan.whole:
                position = self._take(call, text, position, steps)
                continue
            if not call.matched:
                position = _skip_white(text, position)
                if position == len(text):
                    self._counts["white_space_after_arguments"] += 1
                    break
                if text[position] != "{":
                    self._spoil(call, text[position:], steps)
                    break
                if call.placeholder:
                    self._counts["placeholder_arguments"] += 1
                    self._restart(call)
                    continue
            size = _repeats(call, text, position)
            if size is None:
                text, position = _behind(call, text, position)
                call = self._split(call, steps)
            else:
                call.matched += size
                position += size
                if call.scan.text is not None and call.matched == len(call.scan.text):
                    call.matched = 0
                    self._counts["arguments_repeated"] += 1
        return steps

    def finish(self) -> list[Step]:
        """Nothing more comes: half a repeat was another call, cut off."""
        steps: list[Step] = []
        for call in [call for call in self._calls if call.matched]:
            text, _ = _behind(call, "", 0)
            other = self._split(call, steps)
            self._take(other, text, 0, steps)
        return steps

    @property
    def unfinished(self) -> bool:
        """A call has arguments that are not whole."""
        return any(not call.scan.blank for call in self._unfinished)

    @property
    def nameless(self) -> list[ToolBlock]:
        """Calls that never got a name."""
        return [call for call in self._calls if not call.name]

    def _new(self, key: int) -> ToolBlock:
        call = ToolBlock(key)
        self._calls.append(call)
        self._by_key[key] = call
        self._begin(call)
        return call

    def _begin(self, call: ToolBlock) -> None:
        if self._unfinished:
            self.overlap = True
        self._unfinished.add(call)

    def _restart(self, call: ToolBlock) -> None:
        call.placeholder = False
        call.scan = ArgumentScanner()
        self._begin(call)

    def _split(self, call: ToolBlock, steps: list[Step]) -> ToolBlock:
        """Another call of the same name begins at this one's key."""
        self._counts["call_split"] += 1
        call.matched = 0
        other = self._new(call.key)
        other.name = call.name
        other.upstream_id, call.spare_id = call.spare_id, None
        if other.name:
            steps.append(("named", other, ""))
        return other

    def _take(self, call: ToolBlock, text: str, position: int, steps: list[Step]) -> int:
        """The call's own text, up to where it becomes whole."""
        scan = call.scan
        first = scan.blank
        end = scan.feed(text, position)
        if scan.blank:
            return end  # white space before the first argument byte means nothing
        if first:
            position = _skip_white(text, position)
        if scan.whole:
            self._unfinished.discard(call)
            if first and scan.bare:
                call.placeholder = True
                return end
        steps.append(("delta", call, text[position:end]))
        if scan.whole:
            steps.append(("whole", call, ""))
        return end

    def _spoil(self, call: ToolBlock, text: str, steps: list[Step]) -> None:
        """What follows the whole object is no second one: the call's text can never become an object."""
        if call.placeholder:
            call.placeholder = False
            text = f"{call.scan.text}{text}"
        call.scan.spoil()
        self._unfinished.add(call)
        steps.append(("late", call, text))


def _skip_white(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _repeats(call: ToolBlock, text: str, position: int) -> int | None:
    """How far the text goes on repeating the call's whole text; None if it says something else."""
    whole = call.scan.text
    if whole is None:
        return None
    size = min(len(whole) - call.matched, len(text) - position)
    return size if whole.startswith(text[position : position + size], call.matched) else None


def _behind(call: ToolBlock, text: str, position: int) -> tuple[str, int]:
    """The text and position from which on it is another call's: with what matched in earlier fragments."""
    if not call.matched or call.scan.text is None:
        return text, position
    return call.scan.text[: call.matched] + text[position:], 0
