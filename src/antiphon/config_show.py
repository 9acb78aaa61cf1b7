"""The settings in force as TOML, with the origin of each and without a secret.

Owns that text. It can be read by config_file.py again, but for the keys, which are shown as `***`.

    print(effective(load(path, os.environ)))     # port = 8090 # ANTIPHON_PORT
"""

from __future__ import annotations

from typing import Any

import tomlkit
from msgspec import Struct
from tomlkit.items import AoT, Item, Table

from antiphon.config import SECRETS
from antiphon.config_file import Loaded, Origins
from antiphon.config_lines import KeyPath
from antiphon.config_tables import members

HIDDEN = "***"


def effective(loaded: Loaded) -> str:
    """Every setting that has a value, each with where it is from: a flag, a variable, a line, `default`."""
    document = tomlkit.document()
    file = loaded.origins.file
    document.add(tomlkit.comment(f"The settings in force{'' if file is None else f', from {file}'}."))
    for table in members(type(loaded.tables)):
        value = getattr(loaded.tables, table.name)
        if table.tables is None:
            document.add(table.name, _table(value, (table.name,), loaded.origins))
        elif value:
            items = AoT([])
            for n, each in enumerate(value):
                items.append(_table(each, (table.name, n), loaded.origins))
            document.add(table.name, items)
    return tomlkit.dumps(document)


def _table(values: Struct, path: KeyPath, origins: Origins) -> Table:
    table = tomlkit.table()
    below: list[tuple[str, Table]] = []
    for member in members(type(values)):
        value = getattr(values, member.name)
        place = (*path, member.name)
        if value is None or (value in ("", {}, ()) and value == member.default):
            continue
        if isinstance(value, Struct):
            below.append((member.name, _table(value, place, origins)))
            continue
        if member.name in SECRETS and getattr(values, f"{member.name}_file", None) is not None:
            continue  # the file is shown
        item = _item(_open(value, place, origins))
        table.add(member.name, item.comment(origins.told(place)))
    for name, each in below:
        if each:
            table.add(name, each)
    return table


def _open(value: Any, path: KeyPath, origins: Origins) -> Any:
    """A value without what must not be shown.

    In the tables that are passed on as they are, a text from the environment may be a secret too.
    """
    if path[-1] in SECRETS:
        return _coordination(value) if path[-1] == "coordination" else HIDDEN
    if path[-1] == "base_url" and "?" in value:
        return f"{value.partition('?')[0]}?{HIDDEN}"  # some services take their key there
    if isinstance(value, Struct):
        set_ones = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: each for name, each in set_ones.items() if each is not None}
    if isinstance(value, dict):
        return {key: _open(each, (*path, key), origins) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_open(each, (*path, n), origins) for n, each in enumerate(value)]
    is_free = len(path) > len(("models", 0, "overrides")) and "targets" not in path
    return HIDDEN if is_free and path in origins.expanded else value


def _coordination(where: str) -> str:
    """Which sort it is, and the folder; the rest of a URL may hold a password."""
    scheme, _, _ = where.partition("://")
    return where if where.startswith("local:") else f"{scheme}://{HIDDEN}"


def _item(value: Any) -> Item:
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        for key, each in value.items():
            table.add(key, _item(each))
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        for each in value:
            array.append(_item(each))
        return array
    item: Item = tomlkit.item(value)
    return item
