"""URLs below a base URL, and the header with the key."""

import pytest

from antiphon.core.dialects.address import below, key_header
from antiphon.core.dialects.quirks import AZURE, GENERIC


@pytest.mark.parametrize(
    "base, path, expected",
    [
        ("http://a/v1", "/models", "http://a/v1/models"),
        ("http://a/v1/", "/models", "http://a/v1/models"),
        ("http://a", "/chat/completions", "http://a/chat/completions"),
        ("http://a/d?api-version=1", "/chat/completions", "http://a/d/chat/completions?api-version=1"),
        ("http://a/d/?b=1&c=2", "/x", "http://a/d/x?b=1&c=2"),
        ("http://a/v1?k=1", "/x?y=2", "http://a/v1/x?y=2&k=1"),
    ],
)
def test_a_path_below_a_base_url(base, path, expected):
    assert below(base, path) == expected


def test_a_key_travels_as_the_row_says():
    assert key_header(GENERIC.auth, "k") == ("authorization", "Bearer k")
    assert key_header(AZURE.auth, "k") == ("api-key", "k")
    assert key_header("x-api-key", "k") == ("x-api-key", "k")


def test_every_row_posts_below_its_base_url():
    assert below("http://a/v1", GENERIC.path) == "http://a/v1/chat/completions"
