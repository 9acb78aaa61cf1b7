"""Raw values to the tree of settings: everything that is wrong with them is said, not only the first thing.

Owns the judgement of one value by its type, and the suggestions for names that do not exist. What values
say about each other is config_checks.py's business; where they came from is the loader's.

    reader = Reader()
    reader.file({"server": {"prot": 1}})
    reader.complaints                        # [... "there is no such setting; did you mean port?"]
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct

from antiphon.config import SECRETS
from antiphon.config_lines import KeyPath
from antiphon.config_tables import File, Member, members

S = TypeVar("S", bound=Struct)

_SHOWN_LENGTH: Final = 24  # characters of a wrong value that a message repeats


class Complaint(Struct, frozen=True):
    """Something that is wrong, and what would do. The text holds no secret."""

    path: KeyPath
    text: str


class Reader:
    """See the module. `lax`: the paths whose values are texts from outside of TOML, where "8" is a number.

    What is wrong is in `complaints`. A value that cannot be used is replaced by its default (by "" where
    there is none), so that the rest can be judged too. `unread`: the lists of tables of which something
    was written that could not be read, so that nobody knows what is not in them.
    """

    def __init__(self, lax: Collection[KeyPath] = ()) -> None:
        self.complaints: list[Complaint] = []
        self.unread: set[KeyPath] = set()
        self._lax = lax

    def file(self, raw: Mapping[str, Any]) -> File:
        """A whole file."""
        return self.table(File, raw, ())

    def table(self, kind: type[S], raw: object, path: KeyPath) -> S:
        """One table of the file."""
        known = {member.name: member for member in members(kind)}
        if not isinstance(raw, Mapping):
            self._complain(path, f"must be a table: {header(path)}")
            raw = {}
        elif missing := [each for each in known.values() if each.required and each.name not in raw]:
            for member in missing:
                self._complain(path, f"{member.name} is missing: {member.meaning}")
        for name in raw:
            if name in known:
                continue
            if kind is File and _has_tables(raw[name]):
                self._unknown_table(name, known)
            else:
                self._complain((*path, name), _unknown(name, known, _homes(name, path)))
        given = {name: self._value(known[name], raw[name], (*path, name)) for name in raw if name in known}
        usable = {name: value for name, value in given.items() if value is not None}
        return kind(**{member.name: "" for member in known.values() if member.required} | usable)

    def _value(self, member: Member, raw: object, path: KeyPath) -> object:
        """The value; None if there is none that can be used."""
        if member.table is not None:
            return self.table(member.table, raw, path)
        if member.tables is not None:
            if isinstance(raw, list):
                kind = member.tables
                return tuple(self.table(kind, each, (*path, n)) for n, each in enumerate(raw))
            told = header((*path, 0))
            told = f"write {told}, also where there is one" if isinstance(raw, Mapping) else told
            self._complain(path, f"must be a list of tables: {told}")
            self.unread.add(path)
            return None
        return self.converted(member, raw, path)

    def _unknown_table(self, name: str, known: Mapping[str, Member]) -> None:
        """A table of the file that has no name that there is: `[[upstream]]`, `[sever]`."""
        headers = {
            each.name: header((each.name, 0) if each.tables else (each.name,)) for each in known.values()
        }
        if meant := nearest(name, known):
            text = f"there is no such table; did you mean {headers[meant]}?"
            self.unread.add((meant,))
        elif homes := _homes(name, ()):
            text = f"there is no such table here; it belongs to {' or '.join(homes)}"
        else:
            text = f"there is no such table; there is {_listed(headers.values())}"
        self._complain((name,), text)

    def converted(self, member: Member, raw: object, path: KeyPath) -> object:
        """A value that is no table of settings; None if it cannot be used."""
        value = tuple(raw.items()) if member.pairs and isinstance(raw, Mapping) else raw
        try:
            value = msgspec.convert(value, member.hint, strict=path not in self._lax)
        except msgspec.ValidationError:
            value = None
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        if value is None:
            is_shown = member.name not in SECRETS and path not in self._lax
            shown = f"; it is {_shown(raw)}" if is_shown and _shown(raw) else ""
            self._complain(path, f"must be {member.wanted}{shown}{_suggested(raw, member.choices)}")
        return value

    def _complain(self, path: KeyPath, text: str) -> None:
        self.complaints.append(Complaint(path, text))


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of a message: the known word that may have been meant, or nothing where none is near."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word, written in small letters, that may have been meant; None where none is near."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return near[0] if near else None


def _suggested(raw: object, choices: tuple[str, ...]) -> str:
    return suggestion(raw, choices) if isinstance(raw, str) and choices else ""


def _unknown(name: str, known: Mapping[str, Member], homes: list[str]) -> str:
    """What is said of a name that is none here, and what was meant."""
    if homes:
        return f"there is no such setting here; it belongs to {' or '.join(homes)}"
    return f"there is no such setting{suggestion(name, known) or f'; there is {_listed(known)}'}"


def _has_tables(raw: object) -> bool:
    """It is a table, or a list of tables."""
    items = raw if isinstance(raw, list) else [raw]
    return bool(items) and all(isinstance(each, Mapping) for each in items)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _homes(name: str, path: KeyPath) -> list[str]:
    """The tables of a file that have a setting of this name, for one that stands in the wrong table."""
    found = []
    for table in members(File):
        kind = table.table or table.tables
        if kind is not None and path[:1] != (table.name,) and name in kind.__struct_fields__:
            found.append(header((table.name,) if table.tables is None else (table.name, 0)))
    return found


def header(path: KeyPath) -> str:
    """How a table is begun: `[limits]`, `[[models]]`."""
    keys = ".".join(step for step in path if isinstance(step, str))
    return f"[[{keys}]]" if path and isinstance(path[-1], int) else f"[{keys}]"


def _shown(raw: object) -> str:
    """A wrong value as a message repeats it; "" for what is long."""
    if not isinstance(raw, str | int | float):
        return ""
    text = json.dumps(raw, ensure_ascii=False)
    return text if len(text) <= _SHOWN_LENGTH else ""


def as_mapping(value: object) -> dict[str, Any]:
    """A table of any kind, empty for what is none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
