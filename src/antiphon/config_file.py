"""Reads the settings: a TOML file, over it the environment, over it the flags; all or nothing.

Owns what comes from where: the file, `${NAME}` in its texts, keys in files of their own, the order of
precedence (flag, environment, file, default), and the place that a message names. Each error has its file
and line, and all errors of a file are told at once. No message holds a secret, nor a text in which a
variable was put.

    loaded = load(Path("antiphon.toml"), os.environ)
    loaded.settings.upstreams[0].base_url
    loaded.warnings      # ["antiphon.toml:7: upstreams[0].api_key: is written in the file; ..."]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from antiphon.config import (
    SECRETS,
    ConfigError,
    Coordination,
    ModelSettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
)
from antiphon.config_checks import Checked, check, targets_of
from antiphon.config_environment import unknown
from antiphon.config_lines import KeyPath, key_lines, line_of, shown_path
from antiphon.config_reading import Complaint, Reader, as_mapping
from antiphon.config_tables import File, environment_names

VARIABLE: Final = "ANTIPHON_CONFIG"
"""The environment's name for the file."""

USUAL: Final = Path("antiphon.toml")
"""The file that is read without being named, where it exists."""

_LARGEST: Final = 4 * 1024 * 1024  # bytes of a file of settings, or of a key: more is something else
_IN_TEXT: Final = re.compile(r"\$(?:\$|\{([^}]*)\}|(\{))")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AT: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
# Paths in a file are relative to that file.
_PATHS: Final = frozenset({"keys_file", *(f"{name}_file" for name in SECRETS)})


class Flag(Struct, frozen=True):
    """A setting from the command line: its value, and the flag as it is spelled. The value may be a key.

    `variable`: the environment variable that the flag names, whose value this is.
    """

    value: object
    spelling: str
    variable: str | None = None

    def __repr__(self) -> str:
        return f"Flag({self.spelling!r})"


class Origins(Struct, frozen=True):
    """Where each setting came from.

    `outside`: what the environment and flags said, and its name there. `expanded`: the texts in which a
    variable was put.
    """

    file: Path | None = None
    lines: Mapping[KeyPath, int] = {}
    outside: Mapping[KeyPath, str] = {}
    expanded: Collection[KeyPath] = frozenset()

    def place(self, path: KeyPath) -> str:
        """What a message about a setting begins with."""
        if spelling := self._outside(path):
            return spelling
        line = line_of(self.lines, path)
        file = "" if self.file is None else f"{self.file}:{'' if line is None else f'{line}:'} "
        return f"{file}{shown_path(path)}"

    def told(self, path: KeyPath) -> str:
        """Where the value of a setting is from: a flag, a variable, a line of the file, or `default`."""
        if spelling := self._outside(path):
            return spelling
        return f"line {self.lines[path]}" if path in self.lines else "default"

    def order(self, path: KeyPath) -> int:
        """Messages are told in the order of the file."""
        return 0 if self._outside(path) else line_of(self.lines, path) or 0

    def _outside(self, path: KeyPath) -> str | None:
        return next(
            (self.outside[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.outside), None
        )


class Loaded(Struct, frozen=True, kw_only=True):
    """Settings that can be used. `files` are all that were read: a change in one of them changes these.

    `tables` is the same as a file would have it, secrets too; its `repr` shows none.
    """

    settings: Settings
    warnings: list[str]
    files: tuple[Path, ...]
    tables: File
    origins: Origins
    flags: Mapping[KeyPath, Flag] = {}

    def again(self, environ: Mapping[str, str]) -> Loaded:
        """The same read anew, under the same flags. Raises ConfigError."""
        return load(self.origins.file, environ, self.flags)


def find(named: Path | None, environ: Mapping[str, str], usual: Path = USUAL) -> Path | None:
    """The file to read: the one that is named, or `ANTIPHON_CONFIG`, or ./antiphon.toml if there is one."""
    if named is not None:
        return named
    if given := environ.get(VARIABLE):
        return Path(given)
    return usual if usual.is_file() else None


def load(
    path: Path | None, environ: Mapping[str, str], flags: Mapping[KeyPath, Flag] | None = None
) -> Loaded:
    """The settings of a file (None: of none), under those of the environment and of flags.

    Raises ConfigError with everything that is wrong.
    """
    return _Loader(path, environ).load(flags or {})


class _Loader:
    """One load. What it finds on its way is collected, and told at the end."""

    def __init__(self, path: Path | None, environ: Mapping[str, str]) -> None:
        self._path = path
        self._environ = environ
        self._folder = Path() if path is None else path.parent
        self._complaints: list[Complaint] = []
        self._warnings: list[Complaint] = []
        self._files: list[Path] = [] if path is None else [path]
        self._expanded: set[KeyPath] = set()  # texts in which a variable was put
        self._named: set[str] = set()  # the variables that those texts and the flags name

    def load(self, flags: Mapping[KeyPath, Flag]) -> Loaded:
        text = "" if self._path is None else _read(self._path)
        raw = {} if self._path is None else _parsed(text, self._path)
        written, raw = raw, self._expand(raw, ())
        self._warn_of_literal_secrets(written)
        outside = self._overlay(raw, flags)
        origins = Origins(self._path, key_lines(text), outside, frozenset(self._expanded))
        self._read_secrets(raw, origins)
        reader = Reader(lax=self._expanded | set(outside))
        tables = reader.file(raw)
        checked = check(tables, reader.unread)
        said = {each.path for each in self._complaints}  # what cannot be read has no value to judge
        found = [*reader.complaints, *checked.complaints]
        self._complaints += [each for each in found if each.path not in said]
        self._named |= {flag.variable for flag in flags.values() if flag.variable is not None}
        warnings = unknown(self._environ, self._named) + _told([*self._warnings, *checked.warnings], origins)
        if self._complaints:
            errors = _told(self._complaints, origins)
            raise ConfigError(*errors, warnings=tuple(warnings), files=tuple(self._files))
        settings = _settings(tables, checked)
        if settings.keys_file is not None:
            self._files.append(Path(settings.keys_file))
        return Loaded(
            settings=settings,
            warnings=warnings,
            files=tuple(self._files),
            tables=tables,
            origins=origins,
            flags=flags,
        )

    # --- What a file's texts hold ---

    def _expand(self, raw: Any, path: KeyPath) -> Any:
        """The values with `${NAME}` replaced, and paths as seen from the file."""
        if isinstance(raw, dict):
            return {key: self._expand(value, (*path, key)) for key, value in raw.items()}
        if isinstance(raw, list):
            return [self._expand(value, (*path, n)) for n, value in enumerate(raw)]
        if not isinstance(raw, str):
            return raw
        text = _IN_TEXT.sub(lambda found: self._variable(found, path), raw)
        if path and path[-1] in _PATHS and text:
            return str(self._folder / Path(text).expanduser())
        if path[-1:] == ("coordination",) and text.startswith("local:") and len(text) > len("local:"):
            return f"local:{self._folder / Path(text.removeprefix('local:')).expanduser()}"
        return text

    def _variable(self, found: re.Match[str], path: KeyPath) -> str:
        if found[0] == "$$":
            return "$"
        name = found[1]
        if name is None or not _NAME.fullmatch(name):
            self._complain(path, "${ begins the name of a variable, as in ${NAME}; $$ is a plain $")
            return ""
        self._expanded.add(path)
        self._named.add(name)
        if name not in self._environ:
            self._complain(path, f"the environment variable {name} is not set")
        return self._environ.get(name, "")

    def _warn_of_literal_secrets(self, raw: Mapping[str, Any]) -> None:
        for path, table in _tables_with_secrets(raw):
            for name in sorted(SECRETS & table.keys()):
                value = table[name]
                if isinstance(value, str) and (*path, name) not in self._expanded and _is_secret(name, value):
                    file = f"{name}_file"
                    other = f", or a file ({file} = ...)" if name != "coordination" else ""
                    text = (
                        f'is written in the file; take it from the environment ({name} = "${{NAME}}"){other}'
                    )
                    self._warnings.append(Complaint((*path, name), text))

    # --- What comes from elsewhere ---

    def _overlay(self, raw: dict[str, Any], flags: Mapping[KeyPath, Flag]) -> dict[KeyPath, str]:
        """Put the environment's and the flags' values over those of the file; the names of what was put."""
        outside: dict[KeyPath, str] = {}
        for variable, place in environment_names().items():
            if variable in self._environ and isinstance(raw.setdefault(place[0], {}), dict):
                self._put(raw[place[0]], place[1], self._environ[variable], place, outside)
                outside[place] = variable
        if any(path[0] == "upstreams" for path in flags):
            raw["upstreams"] = [{}]
            raw.pop("models", None)
        for path, flag in flags.items():
            table = raw["upstreams"][0] if path[0] == "upstreams" else raw.setdefault(str(path[0]), {})
            if isinstance(table, dict):
                self._put(table, str(path[-1]), flag.value, path, outside)
                outside[path] = flag.spelling
        return outside

    def _put(
        self, table: dict[str, Any], name: str, value: object, path: KeyPath, outside: Mapping[KeyPath, str]
    ) -> None:
        """Set one member. A key from above also stands over a key's file from below, and the reverse."""
        other = name.removesuffix("_file") if name.endswith("_file") else f"{name}_file"
        if path[:-1] == ("server",) and {name, other} & SECRETS and (*path[:-1], other) not in outside:
            table.pop(other, None)
        table[name] = value

    def _read_secrets(self, raw: Mapping[str, Any], origins: Origins) -> None:
        """Put the contents of `api_key_file` and its like where the keys belong."""
        for path, table in _tables_with_secrets(raw):
            for name in SECRETS & {key.removesuffix("_file") for key in table if key.endswith("_file")}:
                file = table[f"{name}_file"]
                if not isinstance(file, str) or not file:
                    continue  # the reader says so
                place = (*path, f"{name}_file")
                if name in table:
                    self._complain(place, f"give either {name} or {name}_file, not both")
                    continue
                self._files.append(Path(file))
                try:
                    table[name] = _read(Path(file)).strip()
                except ConfigError as wrong:
                    self._complain(place, str(wrong))
                    continue
                if not table[name]:
                    self._complain(place, f"{file} is empty")
                    del table[name]

    def _complain(self, path: KeyPath, text: str) -> None:
        self._complaints.append(Complaint(path, text))


def _tables_with_secrets(raw: Mapping[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    yield ("server",), as_mapping(raw.get("server"))
    upstreams = raw.get("upstreams")
    for n, each in enumerate(upstreams if isinstance(upstreams, list) else []):
        yield ("upstreams", n), as_mapping(each)


def _is_secret(name: str, value: str) -> bool:
    """A key always is; a coordinator's URL is one if it holds a password."""
    if name != "coordination":
        return bool(value)
    try:
        return urlsplit(value).password is not None
    except ValueError:
        return True


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as refused:
        raise ConfigError(f"{path}: cannot be read: {refused.strerror or type(refused).__name__}") from None
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: is longer than {_LARGEST} bytes")
    try:
        return content.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        found = _AT.search(str(wrong))
        line = (found and found[1]) or str(text.rstrip("\n").count("\n") + 1)
        raise ConfigError(f"{path}:{line}: is not TOML: {_AT.sub('', str(wrong))}") from None
    except (ValueError, RecursionError):
        # A number of thousands of digits; lists in lists without an end.
        raise ConfigError(f"{path}: is not TOML that can be read") from None


def _told(complaints: list[Complaint], origins: Origins) -> list[str]:
    in_order = sorted(complaints, key=lambda each: origins.order(each.path))
    return list(dict.fromkeys(f"{origins.place(each.path)}: {each.text}" for each in in_order))


def _settings(tables: File, checked: Checked) -> Settings:
    """The tree, from tables in which nothing is wrong."""
    server = tables.server
    own = {name: getattr(server, name) for name in ServerSettings.__struct_fields__}
    upstreams = tuple(
        UpstreamSettings(
            **{name: getattr(each, name) for name in UpstreamSettings.__struct_fields__ if name != "quirks"},
            quirks=quirks,
        )
        for each, quirks in zip(tables.upstreams, checked.quirks, strict=True)
    )
    models = tuple(
        ModelSettings(
            **{name: getattr(each, name) for name in ModelSettings.__struct_fields__ if name != "targets"},
            targets=targets_of(each),
        )
        for each in tables.models
    )
    shared = server.coordination
    coordination = None if shared is None else Coordination(where=shared, policy=server.coordination_policy)
    return structs.replace(
        Settings(**own),
        upstreams=upstreams,
        models=models,
        coordination=coordination,
        limits=tables.limits,
        health=tables.health,
        retries=tables.retries,
    )
