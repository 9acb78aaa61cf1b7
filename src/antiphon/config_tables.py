"""The tree of settings as a file has it: its tables, their members, and the words that describe them.

Owns what the file's tables have beyond the tree (a key's file, the short form of a model), and the one walk
over the types from which messages, flags, environment names and docs/configuration.md are made. It holds
no fact about a single setting: those stand in config.py.

    [member.name for member in members(HealthSettings)]   -> ["interval", "open_after", ...]
    environment_names()["ANTIPHON_PORT"]                  -> ("server", "port")
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs

from antiphon.config import (
    HealthSettings,
    Limits,
    ModelSettings,
    RetrySettings,
    ServerSettings,
    TargetSettings,
    Text,
    UpstreamSettings,
)
from antiphon.config_lines import KeyPath


class ServerTable(ServerSettings, frozen=True, kw_only=True):
    """`[server]`: how this gateway listens, works and logs."""

    admin_key_file: Annotated[Text | None, Meta(description="a file with that key")] = None
    coordination: Annotated[
        Text | None,
        Meta(
            description="where gateways share slots: `redis://`, `rediss://` or `unix://` (Valkey, Redis), "
            "or `local:FOLDER`"
        ),
    ] = None


class UpstreamTable(UpstreamSettings, frozen=True, kw_only=True):
    """`[[upstreams]]`: one inference server. Without any, the embedded ones are served."""

    api_key_file: Annotated[Text | None, Meta(description="a file with that key")] = None


class ModelTable(ModelSettings, frozen=True, kw_only=True):
    """`[[models]]`: a name that clients use. Without any, every name goes to every upstream as it is.

    Exact names win over globs, then the first in the file.
    """

    targets: Annotated[
        tuple[TargetSettings, ...], Meta(description="where it runs, if that is more than one place")
    ] = ()
    upstream: Annotated[
        Text | None, Meta(description="where it runs, if that is one place: the `name` of an upstream")
    ] = None
    model: Annotated[
        Text | None, Meta(description="that upstream's name for it; without it the one that the client sent")
    ] = None


class File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    server: ServerTable = ServerTable()
    upstreams: tuple[UpstreamTable, ...] = ()
    models: tuple[ModelTable, ...] = ()
    limits: Limits = Limits()
    health: HealthSettings = HealthSettings()
    retries: RetrySettings = RetrySettings()


IN_ENVIRONMENT: Final[dict[str, type[Struct]]] = {"server": ServerTable, "limits": Limits}
"""The tables whose members have a name in the environment."""


# --- Members --------------------------------------------------------------------------------------


class Member(Struct, frozen=True):
    """One setting of a table. `default` is msgspec.NODEFAULT where it must be given."""

    name: str
    hint: Any
    default: Any
    meaning: str

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def table(self) -> type[Struct] | None:
        """The type of its value, where that is a table."""
        kind = _bare(self.hint)
        return kind if isinstance(kind, type) and issubclass(kind, Struct) else None

    @property
    def tables(self) -> type[Struct] | None:
        """The type of its items, where its value is a list of tables."""
        arguments = get_args(_bare(self.hint))
        kind = arguments[0] if arguments else None
        return kind if isinstance(kind, type) and issubclass(kind, Struct) else None

    @property
    def pairs(self) -> bool:
        """It is a tuple of pairs, which a file writes as a table."""
        bare = _bare(self.hint)
        arguments = get_args(bare)
        return get_origin(bare) is tuple and bool(arguments) and len(_pair(arguments[0])) == 2

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be, where some are listed."""
        return tuple(word for hint in _alternatives(self.hint) for word in _literals(hint))

    @property
    def wanted(self) -> str:
        """What a value must be, for a message that begins with "must be"."""
        return "a table" if self.pairs else either([_words(hint) for hint in _alternatives(self.hint)])


@functools.cache
def members(table: type[Struct]) -> tuple[Member, ...]:
    """What a table has, in the order of the tree."""
    hints = get_type_hints(table, include_extras=True)
    return tuple(
        Member(field.name, hints[field.name], _default(field), _note(hints[field.name], "description"))
        for field in structs.fields(table)
    )


def environment_names() -> dict[str, tuple[str, str]]:
    """Each name in the environment, and the table and member that it sets."""
    return {
        environment_name(name): (table, name)
        for table, kind in IN_ENVIRONMENT.items()
        for name in kind.__struct_fields__
    }


def environment_name(member: str) -> str:
    """A member's name in the environment, whether it is read there or not."""
    return f"ANTIPHON_{member.upper()}"


def member_at(path: KeyPath) -> Member | None:
    """The member that a path in a file leads to; None for what is no setting, or lies below one."""
    table: type[Struct] | None = File
    found: Member | None = None
    for step in path:
        if isinstance(step, int):
            continue
        if table is None:
            return None
        found = next((each for each in members(table) if each.name == step), None)
        if found is None:
            return None
        table = found.table or found.tables
    return found


def either(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _default(field: structs.FieldInfo) -> Any:
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


# --- Words for types ------------------------------------------------------------------------------


def _metas(hint: Any) -> Iterator[Meta]:
    """The notes of a type, those of the innermost first."""
    if get_origin(hint) is Annotated:
        yield from _metas(get_args(hint)[0])
        yield from (note for note in hint.__metadata__ if isinstance(note, Meta))


def _note(hint: Any, name: str) -> str:
    return next((getattr(meta, name) for meta in reversed([*_metas(hint)]) if getattr(meta, name)), "")


def _bare(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def _alternatives(hint: Any) -> list[Any]:
    """The types that a value may have; None means that it is not given, and is no value."""
    bare = _bare(hint)
    if get_origin(bare) not in {Union, types.UnionType}:
        return [hint]
    return [each for one in get_args(bare) if one is not type(None) for each in _alternatives(one)]


def _pair(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is tuple and Ellipsis not in get_args(hint) else ()


def _literals(hint: Any) -> tuple[str, ...]:
    return get_args(_bare(hint)) if get_origin(_bare(hint)) is Literal else ()


def _words(hint: Any) -> str:
    if title := _note(hint, "title"):
        return title
    bare = _bare(hint)
    if literals := _literals(hint):
        return either(literals)
    if bare is int:
        return f"a whole number{_bounds(hint)}"
    if bare is float:
        return f"a number{_bounds(hint)}"
    if bare is bool:
        return "true or false"
    if bare is str:
        return "a text that is not empty" if _bound(hint, "min_length") else "a text"
    if get_origin(bare) is tuple or bare is tuple:
        return "a list"
    return "a table"


def _bounds(hint: Any) -> str:
    least, most, above = (_bound(hint, name) for name in ("ge", "le", "gt"))
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        return f" of at least {least}"
    words = [] if above is None else [f"greater than {above}"]
    words += [] if most is None else [f"at most {most}"]
    return f" {' and '.join(words)}" if words else ""


def _bound(hint: Any, name: str) -> float | None:
    return next((getattr(meta, name) for meta in _metas(hint) if getattr(meta, name) is not None), None)
