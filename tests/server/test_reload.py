"""The watch over the settings' files: when they are read, and what a wrong one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from antiphon.config import ConfigError
from antiphon.config_file import Loaded, load
from antiphon.server.reload import INTERVAL, ConfigWatch

UPSTREAM = '[[upstreams]]\nname = "gpu1"\nbase_url = "http://127.0.0.1:8000/v1"\n'


class Watched:
    """A file, its watch, and what was applied. `later()` is the next look at the file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "antiphon.toml"
        self.file.write_text("")
        self.environ: dict[str, str] = {}
        self.loads = 0
        self.applied: list[Loaded] = []
        self.refuse: str | None = None
        self.now = 100.0
        self.watch = ConfigWatch(self._load, self._apply, self._load().files)
        self.loads = 0

    def _load(self) -> Loaded:
        self.loads += 1
        return load(self.file, self.environ)

    def _apply(self, loaded: Loaded) -> None:
        if self.refuse is not None:
            raise ConfigError(self.refuse)
        self.applied.append(loaded)

    def later(self, looks: int = 1) -> None:
        for _ in range(looks):
            self.now += INTERVAL
            self.watch.tick(self.now)

    @property
    def ports(self) -> list[int]:
        return [each.settings.port for each in self.applied]


@pytest.fixture
def watched(tmp_path) -> Watched:
    return Watched(tmp_path)


def test_files_that_stay_are_not_read(watched) -> None:
    watched.later(10)
    assert watched.loads == 0


def test_a_changed_file_is_read_once_it_stands_still(watched) -> None:
    watched.file.write_text("[server]\nport = 1")
    watched.later()
    assert watched.loads == 0
    watched.later()
    assert watched.ports == [1]
    watched.later(10)
    assert watched.loads == 1


def test_while_it_is_being_written_it_is_not_read(watched) -> None:
    for length in range(1, 6):
        watched.file.write_text("#" * length)
        watched.later()
    assert watched.loads == 0
    watched.later()
    assert watched.loads == 1


def test_a_file_that_an_editor_puts_in_its_place_is_another_one(watched) -> None:
    status = watched.file.stat()
    other = watched.file.with_name("antiphon.toml~")
    other.write_text("")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(watched.file)
    watched.later(2)
    assert watched.loads == 1


def test_a_file_that_is_gone_for_a_moment_is_waited_for(watched) -> None:
    watched.file.unlink()
    watched.later()
    watched.file.write_text("[server]\nport = 2")
    watched.later(2)
    assert watched.ports == [2]
    assert watched.loads == 1


def test_looks_are_not_more_frequent_than_the_interval(watched) -> None:
    watched.file.write_text("[server]\nport = 1")
    for _ in range(20):
        watched.watch.tick(watched.now)
        watched.now += INTERVAL / 20
    assert watched.loads == 0
    watched.later()
    assert watched.loads == 1


def test_a_wrong_file_changes_nothing_and_the_log_says_why_once(watched) -> None:
    watched.environ["K"] = "sekret"
    watched.file.write_text('[server]\nport = -1\nadmin_key = "${K}"')
    with capture_logs() as logs:
        watched.later(10)
    assert watched.applied == []
    assert [(line["event"], line["log_level"]) for line in logs] == [("config_refused", "error")]
    assert logs[0]["errors"] == [
        f"{watched.file}:2: server.port: must be a whole number from 0 to 65535; it is -1",
        f"{watched.file}:3: server.admin_key: must be 16 or more visible ASCII characters",
    ]
    assert "sekret" not in str(logs)
    watched.file.write_text("[server]\nport = 3")
    watched.later(2)
    assert watched.ports == [3]


def test_what_the_gateway_refuses_is_logged_in_the_same_way(watched) -> None:
    watched.refuse = "port: stays until a restart"
    with capture_logs() as logs:
        assert not watched.watch.check_now()
    assert logs == [
        {"event": "config_refused", "log_level": "error", "errors": ["port: stays until a restart"]}
    ]


def test_a_signal_reads_at_once_and_also_what_has_not_changed(watched) -> None:
    with capture_logs() as logs:
        assert watched.watch.check_now()
        assert watched.watch.check_now()
    assert len(watched.applied) == 2
    assert [line["event"] for line in logs] == ["config_loaded"] * 2
    watched.file.write_text("[server]\nport = 1")
    assert watched.watch.check_now()
    watched.later(3)
    assert len(watched.applied) == 3  # the signal's reading was enough


def test_a_file_with_a_key_is_watched_from_when_it_is_named(watched, tmp_path) -> None:
    key = tmp_path / "key"
    key.write_text("one")
    watched.file.write_text(UPSTREAM + 'api_key_file = "key"')
    watched.later(2)
    key.write_text("two")
    watched.later(2)
    assert [each.settings.upstreams[0].api_key for each in watched.applied] == ["one", "two"]
    watched.file.write_text("")
    watched.later(2)
    key.write_text("three")
    watched.later(5)
    assert watched.loads == 3  # nobody names it any more


def test_a_file_that_was_missing_is_read_when_it_comes(watched, tmp_path) -> None:
    watched.file.write_text(UPSTREAM + 'api_key_file = "key"')
    watched.later(2)
    assert watched.applied == []
    (tmp_path / "key").write_text("there")
    watched.later(2)
    assert [each.settings.upstreams[0].api_key for each in watched.applied] == ["there"]
