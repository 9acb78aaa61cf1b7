"""Which globs are never reached: compared with every short name, and told as a warning."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from antiphon.config_globs import covers, is_glob
from config_texts import UPSTREAM, loaded

NAMES = ["".join(letters) for size in range(5) for letters in itertools.product("abz", repeat=size)]
GLOBS = ["".join(signs) for size in (1, 2, 3) for signs in itertools.product("ab*?", repeat=size)]


def test_it_says_what_trying_all_names_says() -> None:
    fits = {glob: {name for name in NAMES if fnmatchcase(name, glob)} for glob in GLOBS}
    for wide, narrow in itertools.product(GLOBS, GLOBS):
        assert covers(wide, narrow) == (fits[narrow] <= fits[wide]), (wide, narrow)


def test_of_brackets_nothing_is_claimed() -> None:
    assert not covers("[ab]*", "[ab]*")
    assert not covers("*", "m[1]")


def test_a_comparison_that_takes_too_long_claims_nothing() -> None:
    assert not covers("*a" + "?" * 30 + "*", "*" + "a" * 40)
    assert covers("*", "*a" + "?" * 30)


def test_the_catch_all_is_no_glob_whose_place_counts() -> None:
    assert [is_glob(name) for name in ("*", "m", "m*", "m?", "**")] == [False, False, True, True, True]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def warned(*names: str) -> list[str]:
    return loaded(
        UPSTREAM + "".join(f'[[models]]\nname = "{name}"\nupstream = "gpu1"\n' for name in names)
    ).warnings


def test_a_glob_behind_one_that_takes_all_of_its_names_is_told(here) -> None:
    assert warned("claude-*", "claude-*haiku*", "claude-opus-?") == [
        (
            "a.toml:8: models[1].name: claude-*haiku* is never reached: models[0] (claude-*) is before it and "
            "fits every such name"
        ),
        (
            "a.toml:11: models[2].name: claude-opus-? is never reached: models[0] (claude-*) is before it and "
            "fits every such name"
        ),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("claude-*haiku*", "claude-*"),
        ("*", "claude-*"),  # the catch-all comes last
        ("claude-*", "claude-opus-4"),  # an exact name comes first
        ("claude-opus-4", "claude-*"),
        ("claude-a*", "claude-b*"),
    ],
)
def test_what_can_be_reached_is_not(here, names) -> None:
    assert warned(*names) == []
