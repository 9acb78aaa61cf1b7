"""The root conftest itself: left-out suites are named, and forbidden where everything must run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeline import HERE

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="the Great Organ: no wind")
@pytest.mark.parametrize("pipe", [1, 2])
def test_organ(pipe): pass

@pytest.fixture
def choir(): pytest.skip("the choir: on tour")

def test_choir(choir): pass

@pytest.mark.xfail
def test_known_bug(): raise AssertionError

def test_bells(): pass
"""
WHOLE_MODULE = """
import pytest
pytest.importorskip("no_such_module", reason="the lute: no strings")
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "test_concert.py").write_text(TESTS)
    (tmp_path / "test_lute.py").write_text(WHOLE_MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\n")

    def run(**environment):
        inherited = {name: value for name, value in os.environ.items() if name != "ANTIPHON_REQUIRE_ALL"}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        ended = subprocess.run(
            command, cwd=tmp_path, env=inherited | environment, capture_output=True, text=True, check=False
        )
        return ended.returncode, ended.stdout.splitlines()

    return run


def test_each_left_out_suite_is_one_line_before_the_closing_one(run):
    status, lines = run()
    assert status == 0
    assert [line for line in lines if line.startswith("left out: ")] == [
        "left out: the Great Organ: no wind (2 tests)",
        "left out: the choir: on tour (1 test)",
        "left out: the lute: no strings (1 test)",
    ]
    assert lines[-1].startswith("1 passed, 4 skipped, 1 xfailed in ")


def test_a_left_out_module_is_a_failure_where_everything_must_run(run):
    status, lines = run(ANTIPHON_REQUIRE_ALL="1")
    assert status == 2
    assert "left out although ANTIPHON_REQUIRE_ALL=1: the lute: no strings" in "\n".join(lines)


def test_a_skipped_test_is_a_failure_where_everything_must_run(run, tmp_path):
    (tmp_path / "test_lute.py").unlink()
    status, lines = run(ANTIPHON_REQUIRE_ALL="1")
    assert status == 1
    assert not any(line.startswith("left out: ") for line in lines)
    assert "left out although ANTIPHON_REQUIRE_ALL=1: the choir: on tour" in "\n".join(lines)
    # A test that is known to fail was not left out.
    assert lines[-1].startswith("1 passed, 1 xfailed, 3 errors in ")
