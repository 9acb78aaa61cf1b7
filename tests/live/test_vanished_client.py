"""Clients that vanish without a FIN or a reset: their packets are dropped on the way. Slots free in 45 s.

What is on stage and how they vanish is in `vanishing.py`: one that is streamed to, one that waits for its
first token and gets pings, one to whom nothing is sent at all, and one in the queue.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from live.vanishing_ground import REASON

TESTS = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("vanishing.py")
PROMISED = 45.0  # seconds

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(REASON is not None, reason=f"vanished clients: {REASON}"),
]


def test_clients_that_vanish_leave_nothing_after_45_seconds(tmp_path) -> None:
    stage = subprocess.Popen(
        ["unshare", "--net", sys.executable, str(SCRIPT), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
        start_new_session=True,
    )
    try:
        said, complaints = stage.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(stage.pid, signal.SIGKILL)
    assert stage.returncode == 0, complaints
    took = json.loads(said)
    assert set(took) == {"streaming", "pinged", "silent", "queued"}
    assert max(took.values()) < PROMISED, took
