"""The seal key: made once, private, the same after a restart, never a reason not to start."""

import stat

import pytest

from antiphon.config import ConfigError
from antiphon.server.seal_key import load_sealer


def test_the_key_survives_a_restart(tmp_path):
    first = load_sealer({}, tmp_path / "state")
    assert load_sealer({}, tmp_path / "state") == first
    mode = (tmp_path / "state" / "seal.key").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["seal.key"]


def test_two_installations_have_two_keys(tmp_path):
    assert load_sealer({}, tmp_path / "a") != load_sealer({}, tmp_path / "b")


def test_a_broken_file_is_replaced(tmp_path):
    (tmp_path / "seal.key").write_bytes(b"short")
    sealer = load_sealer({}, tmp_path)
    assert len(sealer.key) == 32
    assert load_sealer({}, tmp_path) == sealer


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"e" * 32)
    (tmp_path / "seal.key").symlink_to(tmp_path / "elsewhere")
    assert load_sealer({}, tmp_path).key != b"e" * 32


def test_a_folder_that_cannot_be_written_costs_only_the_restart(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert len(load_sealer({}, tmp_path / "file" / "state").key) == 32


def test_the_environment_replaces_it():
    assert load_sealer({"ANTIPHON_SEAL_KEY": "ab" * 32}).key == bytes.fromhex("ab" * 32)


@pytest.mark.parametrize("wrong", ["", "ab", "zz" * 32, "ab" * 33])
def test_a_wrong_key_in_the_environment_is_said(wrong):
    with pytest.raises(ConfigError, match="ANTIPHON_SEAL_KEY"):
        load_sealer({"ANTIPHON_SEAL_KEY": wrong})
