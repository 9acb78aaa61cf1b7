"""Every form in which servers say how long to wait."""

from email.utils import parsedate_to_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.retry import read_wait, retry_after

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"

VALUES = [
    ("7", "7"),
    ("0", "0"),
    ("7.2", "8"),
    ("120ms", "1"),
    ("1s", "1"),
    ("6m0s", "360"),
    ("2m59.56s", "180"),
    ("1h2m3s", "3723"),
    ("1d", "86400"),
    (DATE, DATE),
    ("2026-10-21T07:28:00Z", DATE),
    ("2026-10-21T09:28:00+02:00", DATE),
    ("2026-10-21T07:28:00", DATE),
    ("1792567680", DATE),
    ("1792567680000", DATE),
    ("", None),
    ("soon", None),
    ("-1", None),
    ("nan", None),
    ("inf", None),
    ("1e9", None),
    ("7\r\nx-evil: 1", None),
    ("٧", None),
]

RESETS = [
    # (headers, limited, expected)
    ({}, True, None),
    ({"Retry-After": "7"}, False, "7"),
    ({"RETRY-AFTER": " 7 "}, True, "7"),
    ({"retry-after-ms": "1500", "retry-after": "9"}, False, "2"),
    ({"retry-after-ms": "0", "retry-after": "9"}, False, "9"),
    ({"retry-after-ms": "x", "retry-after": "9"}, False, "9"),
    ({"x-ratelimit-reset-tokens": "6m0s"}, False, None),
    ({"x-ratelimit-reset-tokens": "6m0s"}, True, "360"),
    ({"x-ratelimit-reset": "6m0s", "x-ratelimit-remaining": "0"}, True, "360"),
    ({"retry-after": "1", "x-ratelimit-reset-tokens": "6m0s"}, True, "1"),
    # which one ran out is known
    (
        {
            "x-ratelimit-reset-requests": "24h",
            "x-ratelimit-remaining-requests": "99",
            "X-RateLimit-Reset-Tokens": "7s",
            "x-ratelimit-remaining-tokens": "0",
        },
        True,
        "7",
    ),
    (
        {
            "x-ratelimit-reset-requests": "24h",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-tokens": "7s",
            "x-ratelimit-remaining-tokens": "0",
        },
        True,
        "86400",
    ),
    # it is not: the one that ends first
    ({"x-ratelimit-reset-requests": "24h", "x-ratelimit-reset-tokens": "7s"}, True, "7"),
    (
        {
            "anthropic-ratelimit-tokens-reset": "2026-10-21T07:28:00Z",
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-requests-reset": "2026-10-21T07:00:00Z",
            "anthropic-ratelimit-requests-remaining": "3",
        },
        True,
        DATE,
    ),
    ({"x-ratelimit-reset-tokens": "never"}, True, None),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_value(value, expected):
    assert read_wait(value) == expected


@pytest.mark.parametrize(("headers", "limited", "expected"), RESETS)
def test_headers(headers, limited, expected):
    assert retry_after(headers, limited=limited) == expected


NAMES = st.sampled_from(
    [
        "retry-after",
        "Retry-After-Ms",
        "x-ratelimit-reset",
        "x-ratelimit-reset-tokens",
        "x-ratelimit-remaining-tokens",
        "anthropic-ratelimit-tokens-reset",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.from_regex(r"[0-9]{0,14}(\.[0-9]{0,3})?(ms|s|m|h|d)?[0-9]{0,3}s?", fullmatch=True),
    st.datetimes().map(str),
    st.from_regex(
        r"(Mon|Xyz), [0-9]{1,2} (Feb|Foo) [0-9]{1,5} [0-9:]{0,8} (GMT|[+-][0-9]{4}|)", fullmatch=True
    ),
)


@settings(deadline=None)
@given(st.dictionaries(NAMES, TEXTS))
def test_anything_gives_a_header_value_or_nothing(headers):
    value = retry_after(headers, limited=True)
    assert value is None or value.isdigit() or parsedate_to_datetime(value)
