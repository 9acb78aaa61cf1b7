"""vLLM's suite is asked for by the name of a Python: nothing that `make` installs has one.

So where no suite may be left out (`ANTIPHON_REQUIRE_ALL=1`) it is no part of the run, and the run says so.
"""

from __future__ import annotations

import os

from live.vllm_house import REASON

_ALL = os.environ.get("ANTIPHON_REQUIRE_ALL") == "1"
collect_ignore = ["test_vllm.py"] if _ALL and REASON is not None else []


def pytest_terminal_summary(terminalreporter):
    if collect_ignore:
        terminalreporter.write_line(f"left out: live vLLM: {REASON}", yellow=True)
