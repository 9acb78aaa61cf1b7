"""The commands `key new`, `key list`, `key set`, `key expire` and `key revoke`.

Owns their flags and what is printed. A key itself is printed once, alone on standard output, and is kept
nowhere; everything else goes to standard error, so that it can be piped to where it is needed.

    antiphon key new alice --models 'qwen*' --concurrent 4 --expires 90d
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, cast, get_args

import typer

# Imported inside the commands: `antiphon serve` must not wait for them.
if TYPE_CHECKING:
    from rich.table import Table

    from antiphon.server.keys import Key, PriorityName

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="""Make, list, change and revoke the keys that clients need.

    A running gateway reads the file again within a second or two; nothing has to be restarted.
    """,
)

DEFAULT_FILE: Final = "antiphon-keys.json"

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN: Final = re.compile(r"(\d{1,6})([mhdw])")

_File = Annotated[
    Path, typer.Option("--file", envvar="ANTIPHON_KEYS_FILE", help="The keys file, as in `keys_file`.")
]
_Name = Annotated[str, typer.Argument(help="Whose key it is: letters, digits and . _ @ -")]
_Which = Annotated[str, typer.Argument(help="The key's name, or its id.")]
_Expires = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="90d, 12h, 30m, 2w, 2027-01-31, a time with its zone, now, or never."),
]
_Models = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="A model's name, or a pattern of names; repeatable. '*': every model."),
]
_Weight = Annotated[float | None, typer.Option(min=0.001, max=1000, help="Its share of contended slots.")]
_Priority = Annotated[
    str | None, typer.Option(help="The highest that it may ask for: interactive or background.")
]
_Concurrent = Annotated[int | None, typer.Option(min=0, help="Requests at once; 0: no limit.")]
_Requests = Annotated[int | None, typer.Option(min=0, help="Requests in a minute; 0: no limit.")]
_Tokens = Annotated[int | None, typer.Option(min=0, help="Tokens in a minute; 0: no limit.")]
_Strict = Annotated[
    bool | None, typer.Option("--strict/--lenient", help="Refuse requests that cannot be carried in full.")
]


@app.command()
def new(
    name: _Name,
    models: _Models = None,
    weight: _Weight = None,
    priority: _Priority = None,
    concurrent: _Concurrent = None,
    requests_per_minute: _Requests = None,
    tokens_per_minute: _Tokens = None,
    strict: _Strict = None,
    expires: _Expires = None,
    file: _File = Path(DEFAULT_FILE),
) -> None:
    """Make a key and print it, once: only its hash is kept."""
    import msgspec

    from antiphon.server.keys import Name, make

    now = time.time()
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        _stop(f"{name}: a name is 1 to 64 letters, digits and . _ @ - and begins with a letter or digit")
    changes = _changes(
        models, weight, priority, concurrent, requests_per_minute, tokens_per_minute, strict, expires, now
    )
    secret, key = make(name, now=now)
    key = msgspec.structs.replace(key, **changes)
    with _rows(file) as rows:
        if any(each.name == name and each.good(now) for each in rows):
            _stop(f"{name}: there is a key of this name; revoke it, or choose another name")
        rows.append(key)
    sys.stdout.write(secret + "\n")
    _say(f"{name}: this is the only time that the key is shown. Its hash is in {file}.")


@app.command("list")
def list_(
    file: _File = Path(DEFAULT_FILE),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, without hashes.")] = False,
) -> None:
    """Show the keys: whose, how far they reach, whether they are still good."""
    import msgspec
    from rich.console import Console

    from antiphon.server.keys import Key
    from antiphon.server.keys_file import KeysFileError, read_rows

    try:
        keys, _ = read_rows(file, Key)
    except KeysFileError as refused:
        _stop(f"{file}: {refused}")
    now = time.time()
    if as_json:
        listed = [_fields(key, now) for key in keys]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(listed), indent=2).decode() + "\n")
    else:
        Console(highlight=False).print(_table(keys, now))


@app.command("set")
def set_(
    which: _Which,
    models: _Models = None,
    weight: _Weight = None,
    priority: _Priority = None,
    concurrent: _Concurrent = None,
    requests_per_minute: _Requests = None,
    tokens_per_minute: _Tokens = None,
    strict: _Strict = None,
    expires: _Expires = None,
    file: _File = Path(DEFAULT_FILE),
) -> None:
    """Change what a key may do; what is not named stays."""
    now = time.time()
    changes = _changes(
        models, weight, priority, concurrent, requests_per_minute, tokens_per_minute, strict, expires, now
    )
    if not changes:
        _stop("nothing to change: see antiphon key set --help")
    _change(file, which, changes)
    _say(f"{which}: changed.")


@app.command()
def expire(
    which: _Which,
    when: Annotated[
        str, typer.Argument(help="90d, 12h, 30m, 2w, 2027-01-31, a time with its zone, now, or never.")
    ],
    file: _File = Path(DEFAULT_FILE),
) -> None:
    """Say when a key stops being good."""
    moment = _moment(when, time.time())
    _change(file, which, {"expires": moment})
    _say(f"{which}: never expires." if moment is None else f"{which}: expires {_day(moment)}.")


@app.command()
def revoke(which: _Which, file: _File = Path(DEFAULT_FILE)) -> None:
    """Make a key useless, for ever. Requests of it that run already run to their end."""
    _change(file, which, {"revoked": datetime.fromtimestamp(int(time.time()), UTC)})
    _say(f"{which}: revoked.")


# --- changes --------------------------------------------------------------------------------------


def _changes(
    models: list[str] | None,
    weight: float | None,
    priority: str | None,
    concurrent: int | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    strict: bool | None,
    expires: str | None,
    now: float,
) -> dict[str, Any]:
    """Fields of a Key that the flags name."""
    changes: dict[str, Any] = {}
    if models:
        changes["models"] = () if "*" in models else tuple(models)
    if priority is not None:
        changes["priority"] = _priority(priority)
    for field, limit in (
        ("concurrent", concurrent),
        ("requests_per_minute", requests_per_minute),
        ("tokens_per_minute", tokens_per_minute),
    ):
        if limit is not None:
            changes[field] = limit or None
    if weight is not None:
        changes["weight"] = weight
    if strict is not None:
        changes["strict"] = strict
    if expires is not None:
        changes["expires"] = _moment(expires, now)
    return changes


def _change(file: Path, which: str, changes: dict[str, Any]) -> None:
    """Change the keys of this name or id that were not revoked."""
    import msgspec

    with _rows(file) as rows:
        found = [
            position
            for position, key in enumerate(rows)
            if which in (key.name, key.id) and key.revoked is None
        ]
        if not found:
            _stop(f"{which}: there is no such key in {file}, or it was revoked")
        for position in found:
            rows[position] = msgspec.structs.replace(rows[position], **changes)


class _rows:  # noqa: N801 - it is used as a function
    """`edit_rows` for people: what it refuses ends the command."""

    def __init__(self, file: Path) -> None:
        from antiphon.server.keys import Key
        from antiphon.server.keys_file import edit_rows

        self._file = file
        self._editing = edit_rows(file, Key)

    def __enter__(self) -> list[Key]:
        from antiphon.server.keys_file import KeysFileError

        try:
            return self._editing.__enter__()
        except KeysFileError as refused:
            _stop(f"{self._file}: {refused}")

    def __exit__(self, *raised: object) -> None:
        from antiphon.server.keys_file import KeysFileError

        try:
            self._editing.__exit__(*raised)  # type: ignore[arg-type]  # three of them
        except KeysFileError as refused:
            _stop(f"{self._file}: {refused}")


def _priority(word: str) -> PriorityName:
    from antiphon.server.keys import PriorityName

    if word not in get_args(PriorityName):
        _stop(f"--priority {word}: {' or '.join(get_args(PriorityName))}")
    return cast("PriorityName", word)


def _moment(said: str, now: float) -> datetime | None:
    """A point in time; None: never. Dates are days of UTC."""
    here = datetime.fromtimestamp(int(now), UTC)
    if said == "never":
        return None
    if said == "now":
        return here
    try:
        if span := _SPAN.fullmatch(said):
            return here + timedelta(**{_UNITS[span[2]]: int(span[1])})
        moment = datetime.fromisoformat(said)
    except (ValueError, OverflowError):  # no time at all, or one beyond the calendar
        _stop(f"{said}: 90d, 12h, 30m, 2w, 2027-01-31, 2027-01-31T18:00:00Z, now, or never")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# --- what is printed ------------------------------------------------------------------------------


def _state(key: Key, now: float) -> str:
    if key.revoked is not None:
        return "revoked"
    return "expired" if key.expired(now) else "good"


def _fields(key: Key, now: float) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(key)
    del fields["sha256"]
    return {**fields, "state": _state(key, now)}


def _table(keys: Iterable[Key], now: float) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "id", "state", "expires", "models", "limits", box=None)
    for key in keys:
        cells = [
            key.name,
            key.id,
            _state(key, now),
            "never" if key.expires is None else _day(key.expires),
            ", ".join(key.models) or "every",
            _limits(key),
        ]
        table.add_row(*map(Text, cells))  # a pattern's [..] is no markup
    return table


def _limits(key: Key) -> str:
    said = [
        f"{limit} {unit}"
        for limit, unit in (
            (key.concurrent, "at once"),
            (key.requests_per_minute, "requests/min"),
            (key.tokens_per_minute, "tokens/min"),
        )
        if limit is not None
    ]
    if key.weight != 1:
        said.append(f"weight {key.weight:g}")
    if key.priority != "interactive":
        said.append(key.priority)
    if key.strict:
        said.append("strict")
    return ", ".join(said) or "none"


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _stop(text: str) -> NoReturn:
    typer.echo(f"antiphon key: {text}", err=True)
    raise typer.Exit(2)
