"""A report disagrees only where no delay between it and our count explains the difference."""

from __future__ import annotations

from antiphon.server.reports import Comparison, ReportStatistics


def counted(*steps: tuple[str, int] | tuple[int, int, int]) -> tuple[int, int]:
    """(busier, idler) after grants (`("used", n)`) and reports (busy, used, active)."""
    comparison = Comparison()
    for step in steps:
        if len(step) == 2:
            comparison.used(step[1])
        else:
            comparison.compare(step[0], used=step[1], active=step[2])
    now = comparison.statistics()
    return now.busier, now.idler


def test_before_the_first_report_nothing_is_known() -> None:
    assert Comparison().statistics() == ReportStatistics(busy=None, busier=0, idler=0)


def test_what_all_agree_on() -> None:
    assert counted((2, 2, 2), (2, 2, 2), (0, 0, 0)) == (0, 0)


def test_leases_that_have_not_begun_may_or_may_not_be_in_a_report() -> None:
    assert counted((0, 3, 0), (3, 3, 0), (1, 3, 0), (1, 3, 0)) == (0, 0)


def test_more_than_all_leases_is_somebody_elses() -> None:
    assert counted((3, 2, 2), (3, 2, 2)) == (2, 0)


def test_a_report_is_older_than_the_count_after_a_release() -> None:
    """One of its looks was made when there were three."""
    assert counted(("used", 3), (3, 3, 3), (3, 0, 0)) == (0, 0)
    assert counted(("used", 3), (3, 3, 3), (3, 0, 0), (3, 0, 0), (3, 0, 0)) == (1, 0)


def test_a_lease_that_came_and_went_between_two_reports_explains_one() -> None:
    assert counted((0, 0, 0), ("used", 1), (1, 0, 0), (1, 0, 0)) == (0, 0)


def test_answers_that_the_server_does_not_work_on() -> None:
    assert counted((2, 2, 2), (1, 2, 2)) == (0, 1)


def test_an_answer_that_began_after_the_look_proves_nothing() -> None:
    assert counted((0, 0, 0), (0, 1, 1)) == (0, 0)
    assert counted((0, 0, 0), (0, 1, 1), (0, 1, 1)) == (0, 1)
