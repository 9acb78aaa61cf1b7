"""Tool ids on their way to a client and back."""

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core import tool_ids


def zeros(count):
    return bytes(count)


def test_an_id_that_may_travel_stays_as_it_is():
    for plain in ("call_0", "chatcmpl-tool-1f", "x", "A" * 64):
        assert tool_ids.outgoing(plain, taken=(), entropy=zeros) == plain


@pytest.mark.parametrize(
    "odd", ["functions.read:0", "a" * 65, "call b", "é", "call_b/2", "toolu_ap", "toolu_apAAAA"]
)
def test_any_other_id_is_wrapped_and_comes_back(odd):
    client = tool_ids.outgoing(odd, taken=(), entropy=zeros)
    assert client.startswith("toolu_ap")
    assert re.fullmatch(r"[A-Za-z0-9_-]+", client)
    assert tool_ids.original(client) == odd


def test_an_id_that_is_taken_is_wrapped():
    client = tool_ids.outgoing("call_0", taken={"call_0"}, entropy=zeros)
    assert client != "call_0"
    assert tool_ids.original(client) == "call_0"


def test_a_wrapped_id_that_is_taken_gets_other_random_bytes():
    first = tool_ids.outgoing("a b", taken=(), entropy=zeros)
    drawn = iter([b"\0\0", b"\1\1"])
    second = tool_ids.outgoing("a b", taken={first}, entropy=lambda _: next(drawn))
    assert second != first
    assert tool_ids.original(second) == "a b"


def test_random_bytes_that_repeat_do_not_hang():
    first = tool_ids.outgoing("a b", taken=(), entropy=zeros)
    assert tool_ids.outgoing("a b", taken={first}, entropy=zeros) == first


@pytest.mark.parametrize("none", [None, ""])
def test_no_id_gets_a_random_one(none):
    made = tool_ids.outgoing(none, taken=(), entropy=os.urandom)
    assert re.fullmatch(r"toolu_[0-9A-Z]{24}", made)
    assert made != tool_ids.outgoing(none, taken=(), entropy=os.urandom)
    assert tool_ids.original(made) == made


@pytest.mark.parametrize(
    "broken",
    [
        "toolu_ap",
        "toolu_ap!",
        "toolu_apAA",
        "toolu_apA",
        "toolu_apAAD_",
        "toolu_apAAAAY=",
        "toolu_apAABhYQ==",
    ],
)
def test_a_wrapped_id_that_does_not_decode_stays_as_it_is(broken):
    assert tool_ids.original(broken) == broken


def test_a_spelling_that_outgoing_never_makes_is_not_unwrapped():
    good = tool_ids.outgoing("a b", taken=(), entropy=zeros)  # five bytes: the last character has spare bits
    assert tool_ids.original(good) == "a b"
    twin = good[:-1] + chr(ord(good[-1]) + 1)
    assert tool_ids.original(twin) == twin


@settings(deadline=None)
@given(st.text(), st.binary(min_size=2, max_size=2))
def test_every_id_comes_back(text, salt):
    client = tool_ids.outgoing(text, taken={text}, entropy=lambda n: (salt * n)[:n])
    if text:
        assert tool_ids.original(client) == text.encode("utf-8", "replace").decode()
