"""The profile file: valid TOML whatever a server says, and only what differs."""

import tomllib

from antiphon.check.upstream.findings import Report
from antiphon.check.upstream.profile import differences, profile_toml
from antiphon.core.dialects import quirks


def test_only_what_differs_from_the_row():
    report = Report(url="http://x/v1", model="m", profile="vllm")
    report.measure("stream_usage", "continuous", "as the row says")
    report.measure("tool_choice", "ignored", "not obeyed")
    report.measure("reasoning_fields_out", ["reasoning"], "a guess")
    assert list(differences(report)) == ["tool_choice"]
    assert tomllib.loads(profile_toml(report))["profile"] == {"base": "vllm", "tool_choice": "ignored"}


def test_measured_names_are_fields_of_the_facts():
    fields = set(quirks.GENERIC.__struct_fields__)
    assert {"stream_usage", "tool_choice", "think_tags", "drain_report", "cancels_everywhere"} <= fields
    assert {"reasoning_fields_out", "response_format", "token_limit_field"} <= fields


def test_hostile_words_stay_words():
    evil = 'm"\n[profile]\nbase = "evil"\x7f\x1b[2J\ud800\\'
    report = Report(url="http://x/v1", model=evil, server=evil, version=evil, window=5)
    report.say("server", evil, evil, evil)
    report.hurts(evil)
    text = profile_toml(report)
    read = tomllib.loads(text.encode().decode())
    assert read["profile"] == {"base": "generic"}
    assert read["server"]["context_window"] == 5
    assert "\x1b" not in text
