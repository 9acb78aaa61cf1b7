"""What the settings of a file say about each other: names that exist, targets, fallbacks, facts of a server.

Owns the checks that need more than one value, and those against the tables of the package (kinds, quirks).
It changes nothing, except that an upstream's `quirks` come out as the types of their table.

    found = check(file)
    found.complaints      # [Complaint(("models", 0, "upstream"), "there is no upstream gpu2; ...")]
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.config import ConfigError, Fallbacks, TargetSettings, is_loopback
from antiphon.config_globs import covers, is_glob
from antiphon.config_lines import KeyPath
from antiphon.config_reading import Complaint, Reader, suggestion
from antiphon.config_tables import File, ModelTable, members
from antiphon.core.dialects import quirks
from antiphon.server.admin_key import AdminKey
from antiphon.server.upstream_dial import header_value, parse_base_url

ANTHROPIC = "anthropic"
"""The kind of a server that speaks Messages itself."""


class Checked(Struct, frozen=True):
    """What was found. `quirks` are those of each upstream, as the types of core.dialects.quirks."""

    complaints: list[Complaint]
    warnings: list[Complaint]
    quirks: list[dict[str, Any]]


def kinds() -> tuple[str, ...]:
    """What an upstream's `kind` may be."""
    return tuple(dict.fromkeys(("auto", *quirks.names(), ANTHROPIC)))


def check(file: File, unread: Collection[KeyPath] = ()) -> Checked:
    """Everything that is wrong or strange between the settings of a file.

    `unread` are lists of tables that may have more than `file` knows of: what is not in them is not missed.
    """
    facts = [_quirks(each.quirks, ("upstreams", n, "quirks")) for n, each in enumerate(file.upstreams)]
    complaints = [
        *_server(file, unread),
        *_upstreams(file),
        *_models(file, unread),
        *_fallbacks(file, unread),
        *(complaint for reader, _ in facts for complaint in reader.complaints),
    ]
    return Checked(complaints, list(_warnings(file, unread)), [values for _, values in facts])


def targets_of(model: ModelTable) -> tuple[TargetSettings, ...]:
    """A model's targets, also where the file has the short form of one."""
    if model.upstream is None:
        return model.targets
    return (TargetSettings(upstream=model.upstream, model=model.model),)


# --- The server -----------------------------------------------------------------------------------


def _server(file: File, unread: Collection[KeyPath]) -> Iterator[Complaint]:
    server = file.server
    if not (is_loopback(server.host) or server.keys_file or server.allow_anonymous):
        yield Complaint(
            ("server", "host"),
            "only loopback addresses are served without keys: make one (`antiphon key new NAME`) and set "
            "keys_file, or set allow_anonymous = true",
        )
    if server.admin_key is not None:
        try:
            AdminKey(server.admin_key)
        except ConfigError as wrong:
            path: KeyPath = ("server", "admin_key" if server.admin_key_file is None else "admin_key_file")
            yield Complaint(path, str(wrong).removeprefix("the admin key "))
    where = server.coordination
    if where is None:
        return
    if not _is_coordination(where):
        text = "must begin with redis://, rediss:// or unix://, or be local:FOLDER"
        yield Complaint(("server", "coordination"), text)
    elif (wrong_url := _wrong_in_url(where)) is not None:
        yield Complaint(("server", "coordination"), wrong_url)
    if not file.upstreams and ("upstreams",) not in unread:
        text = "there are no upstreams to share; the embedded ones are this gateway's own"
        yield Complaint(("server", "coordination"), text)


def _is_coordination(where: str) -> bool:
    scheme, _, rest = where.partition(":")
    return (scheme == "local" and bool(rest)) or (
        scheme in ("redis", "rediss", "unix") and rest.startswith("//")
    )


def _wrong_in_url(where: str) -> str | None:
    """As the start of a gateway would say it, without the URL, which may hold a password."""
    if where.startswith("local:"):
        return None
    try:
        from antiphon.server.coordination.redis_url import read_url  # redis is optional
    except ModuleNotFoundError:
        return None  # it is said at the start what has to be installed
    try:
        read_url(where, {})
    except ValueError as wrong:
        return str(wrong).removeprefix("coordination: ")
    return None


def _header(path: KeyPath, key: str) -> Iterator[Complaint]:
    try:
        header_value("key", key)
    except ValueError:
        yield Complaint(path, "must be printable ASCII without white space at its ends: a header carries it")


# --- Upstreams ------------------------------------------------------------------------------------


def _upstreams(file: File) -> Iterator[Complaint]:
    yield from _twice("upstreams", [each.name for each in file.upstreams])
    known = kinds()
    for n, upstream in enumerate(file.upstreams):
        path: KeyPath = ("upstreams", n)
        if upstream.base_url:
            try:
                parse_base_url(upstream.base_url)
            except ValueError as wrong:
                yield Complaint((*path, "base_url"), str(wrong).removeprefix("base URL: "))
        if upstream.kind not in known:
            meant = suggestion(upstream.kind, known) or f"; there is {', '.join(known)}"
            yield Complaint((*path, "kind"), f"there is no kind {upstream.kind}{meant}")
        if upstream.api_key is not None:
            place = "api_key" if upstream.api_key_file is None else "api_key_file"
            yield from _header((*path, place), upstream.api_key)


def _quirks(given: dict[str, Any], path: KeyPath) -> tuple[Reader, dict[str, Any]]:
    """An upstream's own facts as the types of the table; what is wrong is in the reader."""
    reader = Reader()
    # The row's name is what `kind` says.
    known = {member.name: member for member in members(quirks.Quirks) if member.name != "name"}
    values = {}
    for name, raw in given.items():
        if name not in known:
            meant = suggestion(name, known) or "; core/dialects/quirks.py lists them"
            reader.complaints.append(Complaint((*path, name), f"there is no such fact{meant}"))
        elif (value := reader.converted(known[name], raw, (*path, name))) is not None:
            values[name] = value
    return reader, values


# --- Models ---------------------------------------------------------------------------------------


def _models(file: File, unread: Collection[KeyPath]) -> Iterator[Complaint]:
    yield from _twice("models", [each.name for each in file.models])
    upstreams = [each.name for each in file.upstreams]
    # One that could not be read has no name: which one was meant cannot be told then.
    are_known = "" not in upstreams and ("upstreams",) not in unread
    catch_alls = [n for n, each in enumerate(file.models) if each.name and not each.name.strip("*")]
    for n in catch_alls[1:]:
        if file.models[n].name not in {file.models[other].name for other in catch_alls if other < n}:
            text = "there is a catch-all already; this one would never be used"
            yield Complaint(("models", n, "name"), text)
    for n, model in enumerate(file.models):
        path: KeyPath = ("models", n)
        if model.upstream is not None and model.targets:
            yield Complaint((*path, "targets"), "give either upstream or targets, not both")
        elif model.upstream is None and not model.targets and (*path, "targets") not in unread:
            yield Complaint(path, "upstream is missing: where it runs, the name of one of the upstreams")
        elif model.upstream is None and model.model is not None:
            yield Complaint((*path, "model"), "belongs into each of the targets, where there are targets")
        places = [((*path, "targets", m, "upstream"), each.upstream) for m, each in enumerate(model.targets)]
        if model.upstream is not None:
            places.append(((*path, "upstream"), model.upstream))
        for place, name in places:
            if name and name not in upstreams and are_known:
                yield Complaint(place, f"there is no upstream {name}{_or_there_is(name, upstreams)}")


def _fallbacks(file: File, unread: Collection[KeyPath]) -> Iterator[Complaint]:
    names = [each.name for each in file.models]
    are_known = "" not in names and ("models",) not in unread
    leads = {each.name: [name for _, name in _leads(each.fallbacks)] for each in reversed(file.models)}
    for n, model in enumerate(file.models):
        for why, name in _leads(model.fallbacks):
            path: KeyPath = ("models", n, "fallbacks", why)
            if name not in leads:
                if are_known:
                    yield Complaint(path, f"there is no model {name}{_or_there_is(name, names)}")
            elif model.name in _reached(name, leads):
                yield Complaint(path, f"{name} leads back to {model.name}: fallbacks must come to an end")


def _leads(fallbacks: Fallbacks) -> list[tuple[str, str]]:
    """The reason and the name of each fallback that is set."""
    all_of_them = [(why, getattr(fallbacks, why)) for why in Fallbacks.__struct_fields__]
    return [(why, name) for why, name in all_of_them if name is not None]


def _reached(name: str, leads: dict[str, list[str]]) -> set[str]:
    """Every model that a fallback to `name` may end up at, that one included."""
    found, ahead = set(), [name]
    while ahead:
        one = ahead.pop()
        if one not in found:
            found.add(one)
            ahead += leads.get(one, [])
    return found


def _twice(table: str, names: list[str]) -> Iterator[Complaint]:
    for n, name in enumerate(names):
        if name and name in names[:n]:
            what = {"*": "a catch-all"}.get(
                name, f"{'an' if table == 'upstreams' else 'a'} {table[:-1]} {name}"
            )
            yield Complaint((table, n, "name"), f"there is {what} already: {table}[{names.index(name)}]")


def _or_there_is(name: str, known: Iterable[str]) -> str:
    there_is = ", ".join(dict.fromkeys(each for each in known if each))
    return suggestion(name, known) or (f"; there is {there_is}" if there_is else "; there is none")


# --- Warnings -------------------------------------------------------------------------------------


def _warnings(file: File, unread: Collection[KeyPath]) -> Iterator[Complaint]:
    used = {target.upstream for model in file.models for target in targets_of(model)}
    are_known = file.models and not any(path[0] == "models" for path in unread)
    for n, upstream in enumerate(file.upstreams):
        if are_known and upstream.name and upstream.name not in used:
            yield Complaint(("upstreams", n), f"no model uses {upstream.name}")
        if upstream.api_key is not None and _is_sent_in_clear(upstream.base_url):
            yield Complaint(
                ("upstreams", n, "base_url"), "http:// sends the key unencrypted over the network"
            )
    if file.health.backoff_first > file.health.backoff_max:
        yield Complaint(("health", "backoff_first"), "is longer than backoff_max, which is the longest wait")
    yield from _shadowed([each.name for each in file.models])
    yield from _no_roomier(file)


def _no_roomier(file: File) -> Iterator[Complaint]:
    """Models for prompts that do not fit which have no more room."""
    windows = {each.name: each.window for each in file.models}
    for n, model in enumerate(file.models):
        name = model.fallbacks.overflow
        room = None if name is None else windows.get(name)
        if room is not None and model.window is not None and room <= model.window:
            text = f"{name} has no larger window ({room} tokens) than {model.name} ({model.window})"
            yield Complaint(("models", n, "fallbacks", "overflow"), text)


def _shadowed(names: list[str]) -> Iterator[Complaint]:
    """Globs that no name reaches: an earlier one fits everything that they fit.

    An exact name cannot do that to a glob, and the catch-all comes last wherever it stands.
    """
    for n, name in enumerate(names):
        if not is_glob(name):
            continue
        earlier = (m for m, other in enumerate(names[:n]) if is_glob(other) and other != name)
        if (m := next((m for m in earlier if covers(names[m], name)), None)) is not None:
            text = f"{name} is never reached: models[{m}] ({names[m]}) is before it and fits every such name"
            yield Complaint(("models", n, "name"), text)


def _is_sent_in_clear(base_url: str) -> bool:
    try:
        parts = urlsplit(base_url)
        host = parts.hostname or ""
    except ValueError:
        return False  # it is complained of elsewhere
    return parts.scheme == "http" and "." in host and not is_loopback(host) and not _is_private(host)


def _is_private(host: str) -> bool:
    """An address of a private network, or a name that only such a network knows."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host.endswith((".local", ".lan", ".internal", ".home.arpa", ".svc", ".cluster.local"))
