"""Lines of keys: every form in which TOML writes them, and any document that a library writes."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from antiphon.config_lines import key_lines, line_of, shown_path

LINES = (
    "# [not] = a table",
    "a.b = 1",
    "[server]   # comment",
    "port = 1 # [x]",
    'text = """',
    'x = 3 \\"""',
    '["no"]',
    '"""""',
    "literal = '''",
    "y = 1",
    "''''",
    "time = 1979-05-27 07:32:00",
    "[[m]]",
    "list = [ {a=1, b={c=2}},  # ]",
    "  [1,",
    '   2.5e3], "]",',
    "]",
    "[m.o]",
    "k=1",
    "[[m]]",
    "'q.r' = 1",
    r'''"\u0041" = 'its"''' + "'",
    "[[m.n]]",
    "z = 1",
    '[ server . "x y" ]',
    "w . v = [",
    "]",
    "[deep.er]",
    "",
)


def test_every_form_has_its_line() -> None:
    text = "\n".join(LINES)
    lines = key_lines(text)
    first, second = (number for number, line in enumerate(LINES, 1) if line == "[[m]]")
    assert lines["a", "b"] == 2
    assert lines["server",] == 3
    assert lines["server", "port"] == 4
    assert lines["server", "text"] == 5
    assert lines["server", "literal"] == 9
    assert lines["server", "time"] == 12
    assert lines["m", 0] == first
    assert lines["m", 0, "list", 0, "b", "c"] == first + 1
    assert lines["m", 0, "list", 1, 1] == first + 3
    assert lines["m", 0, "list", 2] == first + 3
    assert lines["m", 0, "o", "k"] == first + 6
    assert lines["m", 1] == second
    assert lines["m", 1, "q.r"] == second + 1
    assert lines["m", 1, "A"] == second + 2
    assert lines["m", 1, "n", 0, "z"] == second + 4
    assert lines["server", "x y", "w", "v"] == LINES.index("w . v = [") + 1
    assert lines["deep",] == lines["deep", "er"]
    assert ("server", "x") not in lines
    assert ("server", "y") not in lines
    assert set(_paths(tomllib.loads(text))) == set(lines)


def test_what_has_no_line_has_that_of_the_table_around_it() -> None:
    lines = key_lines("[a]\n\nb = 1\n")
    assert line_of(lines, ("a", "b")) == 3
    assert line_of(lines, ("a", "c", 0)) == 1
    assert line_of(lines, ("x",)) is None
    assert line_of({}, ()) is None


def test_a_file_from_another_system_counts_the_same() -> None:
    assert key_lines("[a]\r\nb = 1\r\nc = '''\r\n'''\r\nd = 2\r\n")["a", "d"] == 5


def test_paths_are_told_as_people_write_them() -> None:
    assert shown_path(("upstreams", 1, "slots")) == "upstreams[1].slots"
    assert shown_path(("a",)) == "a"
    assert shown_path(("models", 0, "targets", 2, "weight")) == "models[0].targets[2].weight"


_KEYS = st.text(st.sampled_from("ab.#=[]\"' \\\u00e9-"), min_size=1, max_size=4)
_SCALARS = (
    st.integers(-(10**6), 10**6)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from("ab\n\"'\\#=[]{},.\u00e9"), max_size=8)
)
_VALUES = st.recursive(
    _SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(_KEYS, each, max_size=3), max_leaves=8
)


@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_every_key_that_a_library_writes_is_found_in_its_line(document: dict[str, Any]) -> None:
    text = tomlkit.dumps(document)
    read = tomllib.loads(text)
    lines = key_lines(text)
    written = text.split("\n")
    for path in _paths(read):
        assert path in lines
        key = path[-1]
        if isinstance(key, str) and key.isalnum():
            assert key in written[lines[path] - 1]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from _paths(each, (*path, key))
