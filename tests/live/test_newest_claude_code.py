"""The newest Claude Code against the same tests as the pinned one: what differs is recorded, not judged.

The rows that `tests/clients/test_claude_code.py` holds are facts about one version. A newer one may do
otherwise and be right: the differences are written to `bench/results/claude-code-newest.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "bench" / "results" / "claude-code-newest.json"

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("npm") is None, reason="newest Claude Code: npm is not installed"),
]


def newest(folder: Path) -> str:
    """Install the newest release below `folder`; its version."""
    subprocess.run(
        ["npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        + ["@anthropic-ai/claude-code@latest"],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    package = folder / "node_modules" / "@anthropic-ai" / "claude-code" / "package.json"
    return json.loads(package.read_text())["version"]


def test_what_the_newest_release_does_differently(tmp_path) -> None:
    version = newest(tmp_path)
    results = tmp_path / "results.xml"
    environment = {**os.environ, "ANTIPHON_CLAUDE_CODE_MODULES": str(tmp_path / "node_modules")}
    environment.pop("ANTIPHON_REQUIRE_ALL", None)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        + ["tests/clients/test_claude_code.py"],
        cwd=ROOT,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    cases = list(ET.parse(results).iter("testcase"))
    assert len(cases) > 10, "the tests did not run"
    different = {
        case.get("name"): failure.get("message", "")[:300]
        for case in cases
        for failure in case.iter("failure")
    }
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"version": version, "tests": len(cases), "different": different}, indent=1))
    print(f"Claude Code {version}: {len(different)} of {len(cases)} tests differ, see {REPORT}")
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert not skipped, "the newest release was not found where it was installed"
