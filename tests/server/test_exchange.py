"""What an exchange writes into a header: bounded, ASCII, and nothing that could end it."""

from __future__ import annotations

import pytest

from antiphon.core import own_faults
from antiphon.core.faults import error_body
from antiphon.server.answers import degraded_header, error_frame
from antiphon.server.exchange_terms import CAUSES


def test_degraded_header_is_at_most_a_kilobyte_and_counts_the_rest() -> None:
    assert degraded_header(()) == b""
    assert degraded_header(("top_k", "tools.0.type")) == b"top_k, tools.0.type"
    paths = tuple(f"messages.{number}.content.0.source" for number in range(500))
    header = degraded_header(paths)
    assert len(header) <= 1024
    *shown, rest = header.decode().split(", ")
    assert tuple(shown) == paths[: len(shown)]
    assert rest == f"+{500 - len(shown)}"
    assert degraded_header(("x" * 5000, "y")) == b"+2"


@pytest.mark.parametrize("path", ["a\r\nx: y", "a\x00b", "a,b", "\u00e4\u2028", "tab\t", "\x7f"])
def test_degraded_header_cannot_be_broken_out_of(path) -> None:
    header = degraded_header((path,))
    assert all(0x21 <= byte <= 0x7E for byte in header)
    assert b"," not in header
    assert len(header) == len(path)


def test_error_frame_is_what_the_encoder_makes() -> None:
    fault = own_faults.internal("req_1")
    assert error_frame(fault, "req_1") == b"event: error\ndata: " + error_body(fault, "req_1") + b"\n\n"


def test_causes_that_say_something_say_what_is_true() -> None:
    assert {name for name, cause in CAUSES.items() if cause.fault} == {"shutdown", "operator", "lost"}
    assert {name for name, cause in CAUSES.items() if cause.drops_client} == {"stall"}
