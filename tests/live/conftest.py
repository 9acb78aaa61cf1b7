"""What a machine may lack whatever is installed on it: vLLM's own environment, and network namespaces.

So where no suite may be left out (`ANTIPHON_REQUIRE_ALL=1`) these are no part of the run, and the run says so.
"""

from __future__ import annotations

import os

from live import vanishing_ground, vllm_house

_ALL = os.environ.get("ANTIPHON_REQUIRE_ALL") == "1"
_LEFT_OUT = {
    "test_vllm.py": ("live vLLM", vllm_house.REASON),
    "test_vanished_client.py": ("clients that vanish", vanishing_ground.REASON),
}
collect_ignore = [name for name, (_, reason) in _LEFT_OUT.items() if _ALL and reason is not None]


def pytest_terminal_summary(terminalreporter):
    for name in collect_ignore:
        what, reason = _LEFT_OUT[name]
        terminalreporter.write_line(f"left out: {what}: {reason}", yellow=True)
