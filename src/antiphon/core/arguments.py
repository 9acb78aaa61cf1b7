"""A tool call's argument text, fed as it comes: is it one whole JSON object yet?

Owns the scanner and nothing else. It never repairs and never rejects: it only tells when the text has
become one whole object, and where that object ended.

    scan = ArgumentScanner()
    scan.feed('{"a": "}')   -> 8      all of it was taken, scan.whole is False
    scan.feed('"} {')       -> 2      scan.whole is True, what follows was not taken
"""

from __future__ import annotations

import json
import re

import msgspec

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')

# Text beyond this is not kept for the syntax check (in characters): depth alone decides then.
KEPT = 1024 * 1024


class ArgumentScanner:
    """Depth, in-string and escape, over fragments cut anywhere."""

    __slots__ = (
        "_depth",
        "_escaped",
        "_in_string",
        "_kept",
        "_size",
        "bare",
        "blank",
        "hopeless",
        "text",
        "whole",
    )

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._kept: list[str] = []
        self._size = 0
        self.blank = True  # nothing but white space so far
        self.whole = False  # one JSON object, and nothing behind it
        self.bare = False  # that object is `{}`: perhaps only a placeholder
        self.hopeless = False  # can never become one
        self.text: str | None = None  # the whole object's own text, unless it grew past `KEPT`

    def feed(self, text: str, start: int = 0) -> int:
        """Take `text` from `start` on; return where the taken part ends.

        That is the end of the text, unless the object became whole before it. Not to be called any more
        once it is whole.
        """
        end = self._scan(text, start)
        if self.hopeless:
            return len(text)
        self._keep(text[start:end])
        if end is None:
            return len(text)
        if self._size <= KEPT:
            whole = "".join(self._kept).lstrip()
            # Balanced brackets are not yet JSON, and what is not JSON is no order to run a tool.
            if not is_object(whole):
                self._give_up()
                return len(text)
            self.text = whole
            self.bare = not whole[1:-1].strip()
        self._kept.clear()
        self.whole = True
        return end

    def spoil(self) -> None:
        """Something that is no white space followed the whole object: it is none any more."""
        self.whole = self.bare = False
        self.text = None
        self._give_up()

    def _give_up(self) -> None:
        self.hopeless = True
        self._kept.clear()

    def _keep(self, piece: str) -> None:
        self._size += len(piece)
        if self._size <= KEPT:
            self._kept.append(piece)
        else:
            self._kept.clear()

    def _scan(self, text: str, position: int) -> int | None:
        """Where the bracket stands that closes the object, plus one; None if it does not."""
        if self.hopeless:
            return None
        length = len(text)
        if self.blank:
            while position < length and text[position].isspace():
                position += 1
            if position == length:
                return None
            self.blank = False
            if text[position] != "{":
                self._give_up()
                return None
        if self._escaped and position < length:
            self._escaped = False
            position += 1
        while position < length:
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, position)
            if found is None:
                return None
            position = found.end()
            mark = found.group()
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._escaped = position == length
                position += 1
            elif mark in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return position
        return None


def is_object(text: str) -> bool:
    """Is the text one JSON object? Lone surrogate escapes are allowed, NaN and its like are not."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        pass
    try:
        # str: whatever the size of a number, it is only looked at
        return isinstance(json.loads(text, parse_constant=_refuse, parse_int=str), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(constant)
