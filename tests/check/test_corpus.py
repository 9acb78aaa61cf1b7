"""The corpus that is shipped is the pinned one."""

from importlib import resources

from antiphon.check.corpus import load
from pipeline import HERE


def test_is_byte_for_byte_the_pinned_file():
    shipped = resources.files("antiphon.check").joinpath("corpus.jsonl").read_bytes()
    assert shipped == (HERE / "conformance" / "corpus.jsonl").read_bytes()


def test_cases():
    cases = load()
    assert len({case.id for case in cases}) == len(cases) == 158
    assert sum(case.playable for case in cases) == 123
    assert not next(case for case in cases if case.kind == "scenario").playable
