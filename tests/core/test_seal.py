"""Sealed state: it comes back whole for the same dialect and model, and for nobody else."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.seal import CAP, PREFIX, Sealer

SEALER = Sealer(b"k" * 32)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None, max_examples=100)
@given(JSON)
def test_what_was_sealed_opens_to_the_same(value):
    sealed = SEALER.seal("generic", "m", value)
    assert sealed is not None
    assert sealed.startswith(PREFIX)
    assert SEALER.open("generic", "m", sealed) == value


def test_a_seal_is_bound_to_its_key_dialect_and_model():
    sealed = SEALER.seal("generic", "m", {"a": 1})
    assert SEALER.open("generic", "other", sealed) is None
    assert SEALER.open("vllm", "m", sealed) is None
    assert Sealer(b"x" * 32).open("generic", "m", sealed) is None


def test_dialect_and_model_do_not_run_into_each_other():
    sealed = SEALER.seal("a", "bc", 1)
    assert SEALER.open("ab", "c", sealed) is None


def test_every_single_edit_is_noticed():
    sealed = SEALER.seal("generic", "m", {"a": 1})
    for place in range(len(PREFIX), len(sealed) - 1):
        other = "A" if sealed[place] != "A" else "B"
        assert SEALER.open("generic", "m", sealed[:place] + other + sealed[place + 1 :]) is None


@pytest.mark.parametrize("foreign", ["", "ErUB", "ap1.", "ap1.!!!", "ap1.AAAA", "ap1." + "A" * 100, "ap1.é"])
def test_foreign_values_are_ignored(foreign):
    assert SEALER.open("generic", "m", foreign) is None


def test_large_values_are_compressed_and_have_a_cap():
    regular = {"text": "la " * 5000}
    sealed = SEALER.seal("generic", "m", regular)
    assert len(sealed) < 1000
    assert SEALER.open("generic", "m", sealed) == regular
    random = {"text": "".join(chr(0x4E00 + (i * 7919) % 20000) for i in range(60000))}
    assert len(json.dumps(random)) > CAP
    assert SEALER.seal("generic", "m", random) is None


def test_the_key_does_not_show():
    assert "k" * 8 not in repr(SEALER)


def test_pseudonyms_are_stable_and_keyed():
    assert SEALER.pseudonym("user_1") == SEALER.pseudonym("user_1")
    assert SEALER.pseudonym("user_1") != SEALER.pseudonym("user_2")
    assert SEALER.pseudonym("user_1") != Sealer(b"x" * 32).pseudonym("user_1")
    assert "user" not in SEALER.pseudonym("user_1")
