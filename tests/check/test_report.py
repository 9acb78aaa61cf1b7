"""What is printed: nothing from outside is markup or a command for the terminal; failures are all there."""

import io
import json

import pytest
from rich.console import Console

from antiphon.check import report
from antiphon.check.gateway import Verdict
from antiphon.check.rules import RULES
from antiphon.check.upstream.findings import Report

EVIL = "[red]\x1b[31m\x07\r\n[/nothing]\ud800"


def printed(show, *args, **kwargs):
    out = io.StringIO()
    show(Console(file=out, width=120, highlight=False), *args, **kwargs)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "\x07" not in text
    text.encode()
    return text


def verdict(number, outcome, **members):
    return Verdict(f"X-{number}", EVIL, EVIL, outcome, EVIL, EVIL, **members)


def test_verdicts():
    verdicts = [verdict(1, "holds"), verdict(2, "fails"), verdict(3, "fails", contested=EVIL)]
    text = printed(report.print_verdicts, verdicts, prose=2, left_out=1)
    assert "X-2, X-3" in text
    assert (
        "1 of 3 cases hold; 2 more are prose, for tests of your own; 1 contested failures are left out."
        in text
    )
    assert "[red]" in text
    assert "Contested:" in text


def test_reports():
    found = Report(url="http://x/v1", model=EVIL, server=EVIL)
    found.say("stop", EVIL, EVIL, EVIL)
    found.say("server", "first", "by topic")
    found.measure("tool_choice", "ignored", EVIL)
    found.hurts(EVIL)
    text = printed(report.print_report, found)
    assert text.index("by topic") < text.index("stop")
    assert "different from kind generic" in text
    assert "antiphon serve --upstream http://x/v1 --kind generic\n" in text
    assert '  base_url = "http://x/v1"\n' in text
    assert '  tool_choice = "ignored"  # [red]' in text


def test_a_report_in_which_nothing_is_different_needs_no_file():
    text = printed(report.print_report, Report(url="http://x/v1"), "A_KEY")
    assert text.endswith("  antiphon serve --upstream http://x/v1 --kind generic --api-key-env A_KEY\n")


def test_json_can_always_be_written():
    text = report.as_json(verdict(1, "fails"))
    text.encode("ascii")
    assert json.loads(text)["id"] == "X-1"


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_sentences(rule):
    assert RULES[rule].says.endswith(".")
    assert RULES[rule].clients.endswith(".")
