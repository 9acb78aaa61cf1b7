"""The rows of facts."""

import pytest

from antiphon.core.dialects.quirks import (
    AZURE,
    GENERIC,
    LLAMACPP,
    MISTRAL,
    OLLAMA,
    OPENAI,
    SGLANG,
    VLLM,
    VLLM_0_11,
    Quirks,
    by_name,
    for_version,
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


@pytest.mark.parametrize(
    "version, name",
    [
        ("0.10.2", "vllm-0.11"),
        ("0.11.0", "vllm-0.11"),
        ("v0.11", "vllm-0.11"),
        ("0.11.0+cu128", "vllm-0.11"),
        ("0.11.1", "vllm"),
        ("0.33.0", "vllm"),
        ("1", "vllm"),
        ("0.1.dev1+gabc", "vllm"),
        ("nightly", "vllm"),
        ("", "vllm"),
        (None, "vllm"),
        ("9" * 9999, "vllm"),
    ],
)
def test_a_version_chooses_among_the_rows_of_a_server(version, name):
    assert for_version("vllm", version) == name
    assert for_version("sglang", version) == "sglang"


def test_what_older_versions_cannot_do():
    assert (VLLM.native_messages, VLLM_0_11.native_messages) == (True, False)
    assert VLLM_0_11.reasoning_fields_out == ("reasoning_content",)


def test_who_speaks_messages_natively():
    native = {name for name in names() if by_name(name).native_messages}
    assert native == {"vllm", "sglang", "llamacpp", "ollama", "lmstudio"}
    assert not AZURE.native_messages


def test_who_is_spoken_to_in_messages():
    assert {name for name in names() if by_name(name).speaks == "messages"} == {"anthropic", "anthropic-api"}
    assert (by_name("anthropic").path, by_name("anthropic").auth) == ("/messages", "x-api-key")


def test_a_forced_choice_can_turn_thinking_off_where_it_must():
    for name in names():
        row = by_name(name)
        assert row.thinks_when_forced or row.thinking_off


def test_reasoning_goes_back_in_one_way():
    for name in names():
        row = by_name(name)
        assert not (row.reasoning_tags_out and row.reasoning_missing is not None)
        assert row.reasoning_missing is None or row.reasoning_fields_out
