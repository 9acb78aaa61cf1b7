"""Every scenario and every table of the corpus has a test that is named after it, in the file of its area."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scenarios.cases import PROSE

HERE = Path(__file__).parent
NAMED = re.compile(r"^(?:async )?def test_([A-Z]+)_(\d+)_\w+\(", re.MULTILINE)


def ids_named_in(file: Path) -> set[str]:
    return {"-".join(found) for found in NAMED.findall(file.read_text())} if file.exists() else set()


@pytest.mark.parametrize("each", PROSE, ids=lambda each: each["id"])
def test_a_case_has_its_test(each) -> None:
    assert each["id"] in ids_named_in(HERE / f"test_{each['area'].replace('-', '_')}.py")


def test_no_test_is_named_after_a_case_that_is_not_there() -> None:
    assert len(PROSE) == 35
    named = set().union(*map(ids_named_in, HERE.glob("test_*.py")))
    assert named == {each["id"] for each in PROSE}
