"""The keys file: written whole or not at all, by one at a time, readable by who could read it before."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.server.keys import Key, make
from antiphon.server.keys_file import KeysFileError, edit_rows, read_rows, stamp_of


def add(path: Path, *names: str) -> None:
    with edit_rows(path, Key) as rows:
        rows.extend(make(name, now=0)[1] for name in names)


def names(path: Path) -> list[str]:
    return [key.name for key in read_rows(path, Key)[0]]


def test_a_new_file_is_its_owners_alone_and_readable(tmp_path) -> None:
    path = tmp_path / "keys.json"
    add(path, "alice", "bob")
    assert names(path) == ["alice", "bob"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes())["version"] == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["keys.json", "keys.json.lock"]


def test_each_change_is_another_stamp(tmp_path) -> None:
    path = tmp_path / "keys.json"
    add(path, "alice")
    before = read_rows(path, Key)[1]
    assert before == stamp_of(path)
    with edit_rows(path, Key):
        pass  # the same content, and still another file
    assert stamp_of(path) != before


def test_an_exception_changes_nothing(tmp_path) -> None:
    path = tmp_path / "keys.json"
    add(path, "alice")
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        with edit_rows(path, Key) as rows:
            rows.clear()
            raise ZeroDivisionError
    assert path.read_bytes() == before


def test_what_no_gateway_would_read_is_not_written(tmp_path) -> None:
    path = tmp_path / "keys.json"
    add(path, "alice")
    before = path.read_bytes()
    with pytest.raises(KeysFileError, match=r"key 2: .*weight"):
        with edit_rows(path, Key) as rows:
            rows.append(Key(**{**{f: getattr(rows[0], f) for f in Key.__struct_fields__}, "weight": -1.0}))
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["keys.json", "keys.json.lock"]


def test_a_bad_file_is_not_written_over(tmp_path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b"{")
    with pytest.raises(KeysFileError):
        add(path, "alice")
    assert path.read_bytes() == b"{"


def test_a_link_stays_one(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "keys.json"
    link.symlink_to(tmp_path / "real" / "keys.json")
    add(link, "alice")
    assert link.is_symlink()
    assert names(tmp_path / "real" / "keys.json") == ["alice"]


def test_a_group_that_could_read_still_can_and_others_never(tmp_path) -> None:
    path = tmp_path / "keys.json"
    add(path, "alice")
    path.chmod(0o644)
    add(path, "bob")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_stays_who_it_was(tmp_path) -> None:
    path = tmp_path / "keys.json"
    add(path, "alice")
    os.chown(path, 12345, 23456)
    add(path, "bob")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_a_folder_that_is_not_there(tmp_path) -> None:
    with pytest.raises(KeysFileError, match="no such file"):
        add(tmp_path / "nowhere" / "keys.json", "alice")


def test_writers_wait_for_one_another(tmp_path) -> None:
    path = tmp_path / "keys.json"
    script = (
        "import sys; from pathlib import Path\n"
        "from antiphon.server.keys import Key, make\n"
        "from antiphon.server.keys_file import edit_rows\n"
        "for n in range(10):\n"
        "    with edit_rows(Path(sys.argv[1]), Key) as rows:\n"
        "        rows.append(make(f'{sys.argv[2]}{n}', now=0)[1])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path), who]) for who in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert sorted(names(path)) == sorted(f"{who}{n}" for who in "abc" for n in range(10))
