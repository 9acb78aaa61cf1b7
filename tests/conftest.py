"""What holds for every test: a suite that is left out is named, and may be forbidden to be.

A suite that needs something which is not installed here is skipped with the reason `SUITE: why`. The run
ends with one line for each such reason. With `ANTIPHON_REQUIRE_ALL=1` every skip is a failure: that is how
continuous integration knows that it ran everything.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

REQUIRE_ALL = os.environ.get("ANTIPHON_REQUIRE_ALL") == "1"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a report says `skipped`, without pytest's prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _forbid(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is reported as skipped too, and is none.
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.longrepr = f"left out although ANTIPHON_REQUIRE_ALL=1: {_reason(report)}"
        report.outcome = "failed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    _forbid(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Whole modules are skipped while they are collected (`pytest.importorskip`)."""
    report = yield
    _forbid(report)
    return report


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(map(_reason, terminalreporter.stats.get("skipped", [])))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(
            f"left out: {reason} ({count} test{'s' if count > 1 else ''})", yellow=True
        )
