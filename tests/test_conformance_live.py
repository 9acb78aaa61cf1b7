"""The pinned corpus and the pinned cancel sweep, from outside, against a gateway in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from live_gateway import free_port, gateway
from pipeline import CORPUS, HERE

CONFORMANCE = HERE / "conformance"
KINDS = {"openai_sse", "raw_body", "upstream_http", "anthropic_request", "http_request"}
PROSE = {"XPT-04", "XPT-05"}  # run.py cannot judge them: their expectation is a sentence
CASES = [case["id"] for case in CORPUS if case["trigger"]["kind"] in KINDS and case["id"] not in PROSE]
SLOTS = 8


def run_pinned(name, *arguments):
    command = [sys.executable, str(CONFORMANCE / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Case id -> "ok" or what is wrong, from one run of `run.py` for each corpus file."""
    folder = tmp_path_factory.mktemp("conformance")
    found = {}
    port = free_port()  # run.py listens on a port that it is given
    with gateway(folder, f"http://127.0.0.1:{port}/v1") as antiphon:
        for corpus in (CONFORMANCE / "corpus.jsonl", CONFORMANCE / "own.jsonl"):
            if not corpus.read_text().strip():
                continue
            kept = folder / f"{corpus.stem}.json"
            where = ("--gateway", antiphon.base_url, "--listen", port, "--corpus", corpus)
            played = run_pinned("run.py", *where, "--json", kept, "--quiet")
            assert kept.exists(), played.stdout + played.stderr
            found |= {each["id"]: each["verdict"] for each in json.loads(kept.read_text())}
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_case(verdicts, case):
    assert verdicts.get(case, "not played") == "ok"


def test_no_case_is_missing(verdicts):
    assert len(CASES) >= 120
    assert set(CASES) <= verdicts.keys()


@pytest.mark.timeout(300)
def test_a_client_that_leaves_is_noticed_in_every_phase(tmp_path):
    port = free_port()
    with gateway(tmp_path, f"http://127.0.0.1:{port}/v1", "--slots", str(SLOTS)) as antiphon:
        gateway_port = antiphon.base_url.rpartition(":")[2]
        # How fast is the bench's business: here the bound only says that it happened.
        swept = run_pinned("cancel_phases.py", port, gateway_port, SLOTS, "--trials", 2, "--max-ms", 1000)
    lines = swept.stdout.splitlines()
    assert [line for line in lines[:-1] if not line.startswith("ok ")] == [], swept.stdout + swept.stderr
    assert len(lines) == 13, swept.stdout + swept.stderr
    assert swept.returncode == 0
