"""`antiphon key ...`: what is printed where, what the file has afterwards, what is refused."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from antiphon.cli_keys import app
from antiphon.server.keys import Key, Keyring
from antiphon.server.keys_file import read_rows


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.json"


def key(file, *words: str, status: int = 0):
    """Run one command on this file."""
    result = CliRunner().invoke(app, [*words, "--file", str(file)])
    assert result.exit_code == status, result.output
    return result


def rows(file) -> list[Key]:
    return read_rows(file, Key)[0]


def test_a_new_key_is_printed_once_and_alone(file) -> None:
    made = key(file, "new", "alice")
    assert re.fullmatch(r"sk-antiphon-[A-Za-z0-9_-]{43}\n", made.stdout)
    secret = made.stdout.strip()
    assert "only time" in made.stderr
    assert secret not in made.stderr
    assert secret not in file.read_text()
    for words in (("list",), ("list", "--json")):
        shown = key(file, *words).output
        assert "alice" in shown
        assert secret not in shown
        assert rows(file)[0].sha256 not in shown
    assert Keyring(file).find(secret.encode()).name == "alice"


def test_a_new_key_with_everything(file) -> None:
    limits = ["--concurrent", "4", "--requests-per-minute", "60", "--tokens-per-minute", "100000"]
    who = ["--models", "qwen*", "--models", "claude-qwen*", "--weight", "2.5", "--priority", "background"]
    key(file, "new", "alice", *who, *limits, "--strict", "--expires", "2027-01-31")
    (made,) = rows(file)
    assert made.models == ("qwen*", "claude-qwen*")
    assert (made.weight, made.priority, made.strict) == (2.5, "background", True)
    assert (made.concurrent, made.requests_per_minute, made.tokens_per_minute) == (4, 60, 100_000)
    assert made.expires == datetime(2027, 1, 31, tzinfo=UTC)


def test_without_flags_nothing_is_limited(file) -> None:
    key(file, "new", "alice")
    (made,) = rows(file)
    assert made == Key(name="alice", id=made.id, sha256=made.sha256, created=made.created)


@pytest.mark.parametrize("name", ["", "a b", "-x", "a" * 65, "ä", "a/b", "a\n", '"'])
def test_names_that_logs_could_not_carry(file, name) -> None:
    assert CliRunner().invoke(app, ["new", "--file", str(file), "--", name]).exit_code == 2
    assert not file.exists()


def test_a_name_is_free_again_when_its_key_is_no_longer_good(file) -> None:
    key(file, "new", "alice")
    assert "there is a key of this name" in key(file, "new", "alice", status=2).stderr
    key(file, "revoke", "alice")
    key(file, "new", "alice", "--expires", "now")
    key(file, "new", "alice")
    assert [each.name for each in rows(file)] == ["alice"] * 3


def test_revoked_is_for_ever_and_by_name_or_id(file) -> None:
    key(file, "new", "alice")
    key(file, "new", "bob")
    key(file, "revoke", rows(file)[0].id)
    key(file, "revoke", "bob")
    assert all(each.revoked is not None for each in rows(file))
    before = file.read_bytes()
    for words in (("revoke", "bob"), ("expire", "bob", "never"), ("set", "bob", "--weight", "2")):
        assert "no such key" in key(file, *words, status=2).stderr
    key(file, "revoke", "carol", status=2)
    assert file.read_bytes() == before


def test_set_changes_what_is_named_and_nothing_else(file) -> None:
    key(file, "new", "alice", "--models", "a", "--concurrent", "4", "--strict", "--weight", "2")
    before = rows(file)[0]
    key(file, "set", "alice", "--tokens-per-minute", "1000", "--expires", "1d")
    after = rows(file)[0]
    assert after.tokens_per_minute == 1000
    assert (after.models, after.concurrent, after.strict, after.weight) == (("a",), 4, True, 2.0)
    assert after.sha256 == before.sha256
    key(file, "set", "alice", "--concurrent", "0", "--models", "*", "--lenient", "--expires", "never")
    after = rows(file)[0]
    assert (after.concurrent, after.models, after.strict, after.expires) == (None, (), False, None)
    assert "nothing to change" in key(file, "set", "alice", status=2).stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("--weight", "0"),
        ("--weight", "-1"),
        ("--weight", "nan"),
        ("--concurrent", "-1"),
        ("--priority", "highest"),
        ("--models", ""),
        ("--expires", "soon"),
        ("--expires", "10y"),
        ("--expires", ""),
        ("--expires", "2027-13-01"),
        ("--expires", "999999w"),
    ],
)
def test_values_that_cannot_be(file, flags) -> None:
    key(file, "new", "alice")
    before = file.read_bytes()
    key(file, "set", "alice", *flags, status=2)
    key(file, "new", "bob", *flags, status=2)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("said", "span"),
    [
        ("30m", timedelta(minutes=30)),
        ("12h", timedelta(hours=12)),
        ("90d", timedelta(days=90)),
        ("2w", timedelta(weeks=2)),
        ("now", timedelta()),
    ],
)
def test_spans_of_time(file, said, span) -> None:
    key(file, "new", "alice")
    before = datetime.now(UTC).replace(microsecond=0)
    key(file, "expire", "alice", said)
    assert before + span <= rows(file)[0].expires <= datetime.now(UTC) + span


@pytest.mark.parametrize(
    ("said", "moment"),
    [
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T18:00:00Z", datetime(2027, 1, 31, 18, tzinfo=UTC)),
        ("2027-01-31T18:00:00+02:00", datetime(2027, 1, 31, 16, tzinfo=UTC)),
        ("never", None),
    ],
)
def test_points_in_time(file, said, moment) -> None:
    key(file, "new", "alice", "--expires", "1d")
    key(file, "expire", "alice", said)
    assert rows(file)[0].expires == moment


def test_the_list_says_what_each_key_is_worth(file) -> None:
    key(file, "new", "alice", "--models", "qwen[23]*", "--tokens-per-minute", "1000", "--weight", "2")
    key(file, "new", "bob", "--expires", "now")
    key(file, "new", "carol")
    key(file, "revoke", "carol")
    listed = json.loads(key(file, "list", "--json").stdout)
    assert [(each["name"], each["state"]) for each in listed] == [
        ("alice", "good"),
        ("bob", "expired"),
        ("carol", "revoked"),
    ]
    shown = " ".join(key(file, "list").stdout.split())
    assert "qwen[23]*" in shown  # its brackets are no markup
    assert "tokens/min" in shown


def test_a_file_that_cannot_be_used(file) -> None:
    assert "no such file" in key(file, "list", status=2).stderr
    file.write_text("{")
    for words in (("list",), ("new", "alice"), ("revoke", "alice"), ("set", "alice", "--weight", "2")):
        assert str(file) in key(file, *words, status=2).stderr
    assert file.read_text() == "{"
    missing = file.parent / "nowhere" / "keys.json"
    assert "no such file" in key(missing, "new", "alice", status=2).stderr
