"""The corpus's cases that are prose: each one's text, for the tests that are named after their ids.

Scenarios and tables, and the two cases of other kinds whose expectation is a sentence: the pinned runner
skips all of them.

    case("RQT-01")["trigger"]["cases"]
"""

from __future__ import annotations

from typing import Any

from pipeline import CORPUS

SENTENCES = ("XPT-04", "XPT-05")
PROSE = [
    case for case in CORPUS if case["trigger"]["kind"] in ("scenario", "table") or case["id"] in SENTENCES
]


def case(wanted: str) -> dict[str, Any]:
    return next(each for each in PROSE if each["id"] == wanted)
