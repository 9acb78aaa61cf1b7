"""Variables that nothing reads: which are told, how, and that the project knows all of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.config_environment import DEVELOPMENT, NO_SETTINGS, unknown
from antiphon.config_tables import environment_names

ROOT = Path(__file__).parent.parent
_READ = re.compile(
    r"""environ(?:\.get\(|\[)\s*["'](ANTIPHON_[A-Z_]+)|^VARIABLE\b[^"\n]*"(ANTIPHON_[A-Z_]+)""", re.M
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ANTIPHON_QUEUE_LENGHT", "no setting has this name; did you mean ANTIPHON_QUEUE_LENGTH?"),
        ("ANTIPHON_Gap", "no setting has this name; did you mean ANTIPHON_GAP?"),
        ("ANTIPHON_CONFG", "no setting has this name; did you mean ANTIPHON_CONFIG?"),
        ("ANTIPHON_ZZZ", "no setting has this name"),
        ("ANTIPHON_", "no setting has this name"),
        ("ANTIPHON_FAILURE_RATE", "is not read: failure_rate is set in a file, in [health]"),
        ("ANTIPHON_SLOTS", "is not read: slots is set in a file, in [[upstreams]]"),
    ],
)
def test_what_is_said(name, said) -> None:
    assert unknown({name: "sekret"}) == [f"{name}: {said}"]


def test_what_is_known_is_not_told() -> None:
    assert unknown([*environment_names(), *NO_SETTINGS, *DEVELOPMENT]) == []
    assert unknown({"ANTIPHON_GPU_KEY": "k"}, {"ANTIPHON_GPU_KEY"}) == []
    assert unknown(["PATH", "XANTIPHON_PROT", "antiphon_prot"]) == []


@pytest.mark.parametrize(
    "name",
    [
        "ANTIPHON_SERVICE_HOST",
        "ANTIPHON_SERVICE_PORT",
        "ANTIPHON_SERVICE_PORT_HTTP",
        "ANTIPHON_PORT_8080_TCP",
        "ANTIPHON_PORT_8080_TCP_ADDR",
        "ANTIPHON_PORT_8080_TCP_PORT",
        "ANTIPHON_PORT_8080_TCP_PROTO",
    ],
)
def test_the_variables_of_a_service_of_this_name_are_not_told(name) -> None:
    assert unknown([name]) == []


def test_everything_that_the_project_reads_is_known() -> None:
    files = [path for folder in ("src", "tests", "bench", "docs") for path in (ROOT / folder).rglob("*.py")]
    read = {a or b for path in files for a, b in _READ.findall(path.read_text())}
    assert {"ANTIPHON_CACHE", "ANTIPHON_CONFIG", "ANTIPHON_SEAL_KEY", "ANTIPHON_FAULTS"} <= read
    assert unknown(read) == []
    assert read >= NO_SETTINGS | DEVELOPMENT  # none is kept that nobody reads
