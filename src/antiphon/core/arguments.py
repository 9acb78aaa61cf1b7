"""A tool call's argument text, fed as it comes: is it one whole JSON object yet?

Owns the scanner and nothing else. It never repairs and never rejects: it only tells when the text has
become one whole object, and where that object ended.

    scan = ArgumentScanner()
    scan.feed('{"a": "}')   -> None          (not whole)
    scan.feed('"} {')       -> 2             (whole after two characters of this fragment)
"""

from __future__ import annotations

import json
import re

import msgspec

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')

# Text beyond this is not kept for the syntax check: depth alone decides then.
KEPT = 1024 * 1024


class ArgumentScanner:
    """Depth, in-string and escape, over fragments cut anywhere."""

    __slots__ = ("_depth", "_escaped", "_in_string", "blank", "hopeless", "kept", "whole")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.blank = True  # nothing but white space so far
        self.whole = False
        self.hopeless = False  # can never become an object
        self.kept: list[str] | None = []

    @property
    def text(self) -> str | None:
        """All that was fed, or None where it grew past `KEPT`."""
        return None if self.kept is None else "".join(self.kept)

    def feed(self, fragment: str) -> int | None:
        """Take a fragment; return the length of it that completed the object, or None.

        What follows that length was not taken.
        """
        end = None if self.hopeless else self._scan(fragment)
        taken = fragment if end is None else fragment[:end]
        if self.kept is not None:
            self.kept.append(taken)
            if len(self.kept) % 64 == 0 and sum(map(len, self.kept)) > KEPT:
                self.kept = None
        if end is not None:
            # Balanced brackets are not yet JSON; what is not JSON is no order to run a tool.
            if self.kept is not None and not is_object("".join(self.kept)):
                self.hopeless = True
                rest = fragment[end:]
                if rest:
                    self.kept.append(rest)
                return None
            self.whole = True
        return end

    def spoil(self, fragment: str) -> None:
        """Something that is no white space followed the whole object: it is none any more."""
        self.whole = False
        self.hopeless = True
        if self.kept is not None:
            self.kept.append(fragment)

    def _scan(self, fragment: str) -> int | None:
        position, length = 0, len(fragment)
        if self._depth == 0:
            while position < length and fragment[position].isspace():
                position += 1
            if position == length:
                return None
            self.blank = False
            if fragment[position] != "{":
                self.hopeless = True
                return None
        if self._escaped:
            self._escaped = False
            position = 1
        while position < length:
            if self._in_string:
                found = _INSIDE.search(fragment, position)
                if found is None:
                    return None
                position = found.end()
                if found.group() == '"':
                    self._in_string = False
                elif position == length:
                    self._escaped = True
                else:
                    position += 1
                continue
            found = _OUTSIDE.search(fragment, position)
            if found is None:
                return None
            position = found.end()
            mark = found.group()
            if mark == '"':
                self._in_string = True
            elif mark in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return position
        return None


def is_object(text: str) -> bool:
    """Is the text one JSON object? Lone surrogate escapes are allowed, as json.loads allows them."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        pass
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
