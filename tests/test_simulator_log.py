"""The request log: which files it may empty, and the form of its lines."""

import os
import stat

import pytest

from antiphon.simulator_log import Record, open_log


def test_a_new_log_is_for_its_owner_alone(tmp_path):
    with open_log(tmp_path / "log") as log:
        log.write("a line\n")
        assert (tmp_path / "log").read_text() == "a line\n", "written at once"
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_an_old_log_is_emptied_and_closed_to_others(tmp_path):
    (tmp_path / "log").write_text("cancelled\n")
    (tmp_path / "log").chmod(0o644)
    open_log(tmp_path / "log").close()
    assert (tmp_path / "log").read_text() == ""
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def _symbolic_link(path, target):
    path.symlink_to(target)


def _hard_link(path, target):
    os.link(target, path)


def _pipe(path, _):
    os.mkfifo(path)


def _folder(path, _):
    path.mkdir()


def _dangling_link(path, target):
    path.symlink_to(target.with_name("nothing"))


@pytest.mark.parametrize("make", [_symbolic_link, _dangling_link, _hard_link, _pipe, _folder])
def test_what_is_not_our_own_file_is_refused_and_kept(tmp_path, make):
    target, path = tmp_path / "target", tmp_path / "log"
    target.write_text("precious")
    make(path, target)
    with pytest.raises(OSError, match=f"^cannot write the log {path}: "):
        open_log(path)
    assert target.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


def test_a_file_of_somebody_else_is_refused(tmp_path, monkeypatch):
    (tmp_path / "log").write_text("precious")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="it belongs to another user"):
        open_log(tmp_path / "log")
    assert (tmp_path / "log").read_text() == "precious"


def test_a_missing_folder_is_said_plainly(tmp_path):
    with pytest.raises(OSError, match="No such file or directory"):
        open_log(tmp_path / "nowhere" / "log")


def test_only_the_first_outcome_counts():
    lines = []
    record = Record(7, lines.append)
    record.model, record.stream = "reasoning", "true"
    record.finish("completed")
    record.finish("cancelled")
    [line] = lines
    assert line.endswith("Z request=7 model=reasoning stream=true tokens=0 outcome=completed\n")


def test_a_log_that_somebody_writes_is_not_emptied(tmp_path):
    path = tmp_path / "requests.log"
    with open_log(path) as first:
        first.write("one\n")
        with pytest.raises(OSError, match="another process is writing it"):
            open_log(path)
        assert path.read_text() == "one\n"
    with open_log(path):
        assert path.read_text() == ""
