"""Numbers: reported, partly reported, not reported."""

from antiphon.core.parts import MessageUsage, Usage
from antiphon.core.usage import Tally


def tally(*reports, characters=0, deltas=0):
    it = Tally(input_tokens=9)
    it.characters, it.deltas = characters, deltas
    for report in reports:
        it.note(report)
    return it


def test_reported_numbers_win():
    it = tally(Usage(prompt=100, completion=2, cache_read=80, cache_write=5, reasoning=1), deltas=50)
    assert it.usage == MessageUsage(15, 2, 5, 80, 1, ())
    assert it.reported


def test_input_is_never_negative():
    assert tally(Usage(prompt=10, completion=1, cache_read=80)).usage.input_tokens == 0


def test_what_a_report_leaves_out_stays():
    it = tally(Usage(prompt=3, completion=1), Usage(completion=4), Usage(cache_read=2), Usage())
    assert it.usage == MessageUsage(1, 4, None, 2, None, ())


def test_zero_is_a_number():
    assert tally(Usage(prompt=0, completion=0)).usage == MessageUsage(0, 0)


def test_the_estimate_is_the_larger_of_deltas_and_length_and_never_zero():
    assert tally().usage == MessageUsage(9, 1, estimated=("input", "output"))
    assert tally(characters=8, deltas=5).usage.output_tokens == 5
    assert tally(characters=41, deltas=1).usage.output_tokens == 11
    assert not tally(Usage(prompt=3)).reported
    assert tally(Usage(prompt=3)).usage.estimated == ("output",)
    assert tally(Usage(completion=3)).usage.estimated == ("input",)
