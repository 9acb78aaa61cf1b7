"""The lines for a file of settings: a gateway can read them whatever a server says, and only what differs."""

import pytest

from antiphon.check.upstream.findings import Report
from antiphon.check.upstream.profile import differences, settings_toml
from antiphon.config_file import load
from antiphon.core.dialects import quirks


@pytest.fixture
def read(tmp_path):
    """What a gateway makes of a report's file."""

    def read(report, key_variable=None, environ=None):
        file = tmp_path / "a.toml"
        file.write_text(settings_toml(report, key_variable), encoding="utf-8")
        loaded = load(file, environ or {})
        assert loaded.warnings == []
        (one,) = loaded.settings.upstreams
        return one

    return read


def test_only_what_differs_from_the_row(read):
    report = Report(url="http://x/v1", model="m", profile="vllm")
    report.measure("stream_usage", "continuous", "as the row says")
    report.measure("tool_choice", "ignored", "not obeyed")
    report.measure("reasoning_fields_out", ["reasoning"], "a guess")
    assert list(differences(report)) == ["tool_choice"]
    one = read(report)
    assert (one.name, one.base_url, one.kind, one.quirks) == (
        "vllm",
        "http://x/v1",
        "vllm",
        {"tool_choice": "ignored"},
    )


def test_every_measured_fact_can_be_read(read):
    report = Report(url="http://x/v1")
    measured = {
        "stream_usage": "none",
        "tool_choice": "required_only",
        "think_tags": "open",
        "drain_report": "slots",
        "cancels_everywhere": False,
        "reasoning_fields_out": ["reasoning"],
        "response_format": False,
        "token_limit_field": "max_completion_tokens",
    }
    for name, value in measured.items():
        report.measure(name, value, "measured")
    quirks_read = read(report).quirks
    assert quirks_read.keys() == differences(report).keys() == measured.keys()
    assert quirks_read["reasoning_fields_out"] == ("reasoning",)


def test_slots_that_it_tells_and_a_key_that_it_wants(read):
    report = Report(url="http://x/v1", profile="llamacpp")
    assert read(report).slots == "auto"
    report.say("server", "slots", "4", "/props")
    one = read(report, "GPU_KEY", {"GPU_KEY": "sekret"})
    assert (one.slots, one.api_key) == (4, "sekret")


@pytest.mark.parametrize("name", quirks.names())
def test_each_row_can_be_the_kind(read, name):
    assert read(Report(url="http://127.0.0.1/v1", profile=name)).kind == name


def test_hostile_words_stay_words(read):
    evil = 'm"\n[server]\nport = 1\x7f\x1b[2J\ud800\\${HOME}'
    report = Report(url="http://x/v1?${HOME}", model=evil, server=evil, version=evil, window=5)
    report.say("server", evil, evil, evil)
    report.say("server", "slots", "1\nport = 1")
    report.measure("tool_choice", "ignored", evil)
    report.hurts(evil)
    assert read(report).base_url == "http://x/v1?${HOME}"
    assert "\x1b" not in settings_toml(report)
