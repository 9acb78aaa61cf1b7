"""What a client's headers may say of it: who waits together, how urgent, how long. Never the value itself."""

from __future__ import annotations

import re

import pytest

from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.server.clients import patience, priority, share
from antiphon.server.exchange_terms import CLIENT_TIMEOUT
from antiphon.server.fairness import Priority


def scope(address: str | None = "127.0.0.1", **headers: str) -> dict:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"headers": named, "client": (address, 5000) if address else None}


def chat(*, side: bool = False) -> ChatRequest:
    return ChatRequest(b"{}", (), (), (), 1, frozenset(), {}, side_request=side)


# --- share --------------------------------------------------------------------------------------------


def test_a_session_says_more_than_a_key_and_a_key_more_than_an_address() -> None:
    session = share(scope(x_claude_code_session_id="s", x_api_key="k", authorization="Bearer b"))
    assert session == share(scope("10.0.0.9", x_claude_code_session_id="s", x_api_key="other"))
    key = share(scope(x_api_key="k", authorization="Bearer b"))
    assert key == share(scope("10.0.0.9", x_api_key="k"))
    bearer = share(scope(authorization="Bearer b"))
    assert bearer == share(scope("10.0.0.9", authorization="Bearer b"))
    address = share(scope())
    assert address == share({"headers": [], "client": ("127.0.0.1", 1)})  # whatever its port
    assert len({session, key, bearer, address, share(scope("10.0.0.9"))}) == 5


def test_the_same_word_in_two_places_is_two_shares() -> None:
    places = [
        scope(x_claude_code_session_id="w"),
        scope(x_api_key="w"),
        scope(authorization="w"),
        scope("w"),
    ]
    assert len({share(place) for place in places}) == 4


def test_an_empty_header_is_none() -> None:
    assert share(scope(x_claude_code_session_id="", x_api_key="k")) == share(scope(x_api_key="k"))
    assert share(scope(x_api_key="", authorization="")) == share(scope())


def test_who_cannot_be_told_apart_waits_together() -> None:
    assert share(scope(None)) == ""


@pytest.mark.parametrize("value", ["sk-ant-secret-0123456789", "a", "\u00fc" * 300])
def test_a_share_is_a_digest(value) -> None:
    for place in (
        scope(x_claude_code_session_id=value),
        scope(x_api_key=value),
        scope(authorization=value),
        scope(value),
    ):
        assert re.fullmatch(r"[0-9a-f]{12}", share(place))
        assert value == "a" or value not in share(place)


def test_a_key_of_the_gateways_own_is_its_share_whatever_else_is_sent() -> None:
    assert share(scope(x_claude_code_session_id="s", x_api_key="secret"), key="alice") == "alice"


# --- priority -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "side", "given"),
    [
        (None, False, Priority.INTERACTIVE),
        (None, True, Priority.BACKGROUND),
        (b"background", False, Priority.BACKGROUND),
        (b" Background ", False, Priority.BACKGROUND),
        (b"interactive", True, Priority.INTERACTIVE),
        (b"highest", True, Priority.BACKGROUND),  # a word that it does not know says nothing
        (b"highest", False, Priority.INTERACTIVE),
        (b"", True, Priority.BACKGROUND),
        (b"\xff", False, Priority.INTERACTIVE),
    ],
)
def test_priority(header, side, given) -> None:
    headers = [(b"host", b"localhost")] + ([(b"antiphon-priority", header)] if header is not None else [])
    assert priority(headers, chat(side=side)) is given


@pytest.mark.parametrize("header", [None, b"interactive", b"background", b"highest"])
@pytest.mark.parametrize("side", [False, True])
def test_nobody_is_more_urgent_than_its_key(header, side) -> None:
    headers = [(b"antiphon-priority", header)] if header is not None else []
    assert priority(headers, chat(side=side), highest=Priority.BACKGROUND) is Priority.BACKGROUND
    assert priority(headers, chat(side=side), highest=Priority.INTERACTIVE) is priority(
        headers, chat(side=side)
    )


# --- patience -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"60", 60), (b"0.5", 0.5), (b" 900 ", 900), (b"86400", 86400)]
)
def test_patience_is_what_the_sdk_says(value, seconds) -> None:
    assert patience([(b"accept", b"*/*"), (b"x-stainless-timeout", value)]) == seconds


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"soon",
        b"0",
        b"-5",
        b"nan",
        b"inf",
        b"-inf",
        b"1e400",
        b"86401",
        b"60, 60",
        b"0x10",
        b"\xff",
        b"NOT_GIVEN",
    ],
)
def test_nonsense_is_the_sdks_default(value) -> None:
    assert patience([(b"x-stainless-timeout", value)]) == CLIENT_TIMEOUT == 600


def test_who_says_nothing_waits_as_long_as_an_sdk() -> None:
    assert patience([]) == CLIENT_TIMEOUT
