"""What one of several workers begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.config_file import load
from antiphon.server.worker import _newest

FILE = """
[server]
port = 8081

[[upstreams]]
name = "gpu"
base_url = "http://127.0.0.1:9/v1"
slots = {slots}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "antiphon.toml"
    file.write_text(FILE.format(slots=6))
    return file


def test_a_worker_that_is_started_again_begins_with_what_the_files_say_now(file) -> None:
    loaded = load(file, {})
    assert _newest(loaded.settings, loaded) == loaded.settings
    file.write_text(FILE.format(slots=1).replace("8081", "8082"))
    newest = _newest(loaded.settings, loaded)
    assert newest.upstreams[0].slots == 1
    assert newest.port == 8081  # it stays until a restart


def test_a_wrong_file_changes_nothing(file) -> None:
    loaded = load(file, {})
    file.write_text("nonsense = [")
    assert _newest(loaded.settings, loaded) == loaded.settings


def test_without_a_file_they_are_those_of_the_start() -> None:
    settings = load(None, {}).settings
    assert _newest(settings, None) is settings
