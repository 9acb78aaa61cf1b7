r"""In which line of a TOML text each key stands: `tomllib` does not tell.

Owns that map and nothing else: it reads texts that `tomllib` has accepted, and judges none. Values are
walked over, never interpreted.

    key_lines('[server]\nport = 1\n')   -> {("server",): 1, ("server", "port"): 2}
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Final, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The way to a value: keys, and positions in lists. `("upstreams", 1, "slots")`."""

_TOKEN: Final = re.compile(
    r"""
      (?P<blank> [ \t\r]+ | \#[^\n]* )
    | (?P<newline> \n )
    | (?P<string> \"{3} (?: \\. | (?!\"{3}) . )* \"{3,5}
                | '{3} (?: (?!'{3}) . )* '{3,5}
                | \" (?: \\. | [^"\\] )* \"
                | ' [^']* ' )
    | (?P<mark> [\[\]{}=,.] )
    | (?P<bare> [^\s\[\]{}=,.#"']+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_AFTER_A_SCALAR: Final = frozenset({"\n", ",", "]", "}", ""})


def shown_path(path: KeyPath) -> str:
    """As it is told: `upstreams[1].slots`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of every table, key and list item, counted from 1; of a table the line where it begins."""
    return _Scanner(text).document()


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of a value, or of the nearest table around it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


class _Scanner:
    """One pass over the tokens; `_at` is the next one."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, int]] = []
        self._at = 0
        self._lines: dict[KeyPath, int] = {}
        self._sizes: dict[KeyPath, int] = {}  # of the lists that [[headers]] make
        line = 1
        for found in _TOKEN.finditer(text):
            if found.lastgroup != "blank":
                self._tokens.append((found[0], line))
            line += found[0].count("\n")

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while word := self._peek():
            if word == "\n":
                self._at += 1
            elif word == "[":
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self) -> tuple[str, int]:
        self._at += 1
        return self._tokens[self._at - 1]

    def _header(self) -> KeyPath:
        _, line = self._take()
        makes_item = self._peek() == "["
        if makes_item:
            self._at += 1
        *outer, last = self._keys()
        self._at += 2 if makes_item else 1
        path: KeyPath = ()
        for key in outer:
            path = self._into(path, key)
            self._lines.setdefault(path, line)  # a table that only its members mention
        path = (*path, last)
        if makes_item:
            self._lines.setdefault(path, line)
            self._sizes[path] = self._sizes.get(path, 0) + 1
            path = (*path, self._sizes[path] - 1)
        self._lines.setdefault(path, line)
        return path

    def _into(self, path: KeyPath, key: str) -> KeyPath:
        """One step down: [a.b] below [[a]] means the last item of `a`."""
        path = (*path, key)
        return (*path, self._sizes[path] - 1) if path in self._sizes else path

    def _keys(self) -> list[str]:
        keys = [_key(self._take()[0])]
        while self._peek() == ".":
            self._at += 1
            keys.append(_key(self._take()[0]))
        return keys

    def _pair(self, table: KeyPath) -> None:
        line = self._tokens[self._at][1]
        path = table
        for key in self._keys():
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._at += 1  # the "="
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self._peek() == "[":
            self._list(path)
        elif self._peek() == "{":
            self._inline(path)
        else:
            while self._peek() not in _AFTER_A_SCALAR:
                self._at += 1

    def _list(self, path: KeyPath) -> None:
        self._at += 1
        size = 0
        while (word := self._peek()) != "]":
            if word in {"\n", ","}:
                self._at += 1
                continue
            self._lines[*path, size] = self._tokens[self._at][1]
            self._value((*path, size))
            size += 1
        self._at += 1

    def _inline(self, path: KeyPath) -> None:
        self._at += 1
        while (word := self._peek()) != "}":
            if word in {"\n", ","}:
                self._at += 1
            else:
                self._pair(path)
        self._at += 1


def _key(word: str) -> str:
    """A key as it is read: quotes and escapes undone."""
    return next(iter(tomllib.loads(f"{word} = 0"))) if word[0] in "\"'" else word
