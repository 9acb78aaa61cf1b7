"""The rows of facts."""

import pytest

from antiphon.core.dialects.quirks import (
    GENERIC,
    LLAMACPP,
    MISTRAL,
    OLLAMA,
    OPENAI,
    SGLANG,
    VLLM,
    Quirks,
    by_name,
    names,
)


def test_rows_are_found_by_name():
    assert names()[0] == "generic"
    for name in names():
        assert by_name(name).name == name
    with pytest.raises(KeyError):
        by_name("no-such-server")


def test_the_generic_profile_is_all_defaults():
    assert Quirks(name="generic") == GENERIC


def test_who_cancels_in_every_phase():
    assert all(row.cancels_everywhere for row in (GENERIC, VLLM, SGLANG, OPENAI, MISTRAL))
    assert not LLAMACPP.cancels_everywhere
    assert not OLLAMA.cancels_everywhere
    assert (LLAMACPP.drain_report, OLLAMA.drain_report) == ("slots", "none")


def test_there_is_one_way_to_continue_a_turn():
    for name in names():
        row = by_name(name)
        assert bool(row.continues) + bool(row.prefill) + bool(row.prefill_mark) <= 1


def test_an_effort_word_needs_a_field():
    for name in names():
        row = by_name(name)
        assert bool(row.effort_field) == bool(row.effort_words)
