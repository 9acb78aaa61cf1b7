"""Keys: their form, what a record says, and a keyring that follows its file."""

from __future__ import annotations

import hashlib
import os
import re
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from antiphon.config import ConfigError
from antiphon.core.scrub import scrub
from antiphon.server.fairness import Priority
from antiphon.server.keys import Key, Keyring, by_digest, is_key, make
from antiphon.server.keys_file import edit_rows

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC).timestamp()


def changed(key: Key, **fields) -> Key:
    return msgspec.structs.replace(key, **fields)


def put(path, *keys: Key) -> None:
    with edit_rows(path, Key) as rows:
        rows[:] = keys


# --- a key --------------------------------------------------------------------------------------------


def test_a_key_is_256_random_bits_and_its_record_has_only_the_hash() -> None:
    secret, key = make("alice", now=NOW)
    assert re.fullmatch(r"sk-antiphon-[A-Za-z0-9_-]{43}", secret)
    assert is_key(secret.encode())
    assert key.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert secret.removeprefix("sk-antiphon-").startswith(key.id)
    assert len(key.id) == 8
    assert (key.name, key.created.timestamp()) == ("alice", NOW)
    assert secret not in msgspec.json.encode(key).decode()
    assert make("alice", now=NOW)[0] != secret
    assert key.sha256 not in repr(key)


def test_a_key_in_a_text_is_recognised_as_one() -> None:
    for _ in range(50):
        secret, _ = make("alice", now=NOW)
        said = scrub(f"refused: {secret} at key={secret}, '{secret}'")
        assert secret[12:] not in said
        assert "[key]" in said


@pytest.mark.parametrize(
    "presented",
    [
        b"",
        b"sk-antiphon-",
        b"sk-antiphon-" + b"a" * 42,
        b"sk-antiphon-" + b"a" * 44,
        b"sk-antiphon-" + b"a" * 43 + b"\n",
        b"SK-ANTIPHON-" + b"a" * 43,
        b"sk-antiphon-" + b"a" * 42 + b"\xff",
        b"sk-antiphon-" + b"a" * 100_000,
    ],
)
def test_what_has_not_the_form_is_no_key(presented) -> None:
    assert not is_key(presented)


@pytest.mark.parametrize(
    ("fields", "good", "expired"),
    [
        ({}, True, False),
        ({"expires": datetime.fromtimestamp(NOW + 1, UTC)}, True, False),
        ({"expires": datetime.fromtimestamp(NOW, UTC)}, False, True),
        ({"revoked": datetime.fromtimestamp(NOW + 1000, UTC)}, False, False),  # for ever, whatever the date
    ],
)
def test_how_long_a_key_is_good(fields, good, expired) -> None:
    key = changed(make("alice", now=NOW)[1], **fields)
    assert (key.good(NOW), key.expired(NOW)) == (good, expired)


@pytest.mark.parametrize(
    ("models", "model", "allowed"),
    [
        ((), "anything", True),
        (("qwen3",), "qwen3", True),
        (("qwen3",), "qwen3-coder", False),
        (("qwen3",), "claude-qwen3", False),
        (("qwen*", "claude-qwen*"), "claude-qwen3", True),
        (("qwen[23]",), "qwen3", True),
        (("qwen?",), "qwen", False),
        (("*",), "anything", True),
        (("Qwen*",), "qwen3", False),
    ],
)
def test_which_models_a_key_may_use(models, model, allowed) -> None:
    assert changed(make("alice", now=NOW)[1], models=models).allows(model) is allowed


def test_the_highest_priority_of_a_key() -> None:
    key = make("alice", now=NOW)[1]
    assert key.highest is Priority.INTERACTIVE
    assert changed(key, priority="background").highest is Priority.BACKGROUND


def test_the_same_key_twice_is_revoked_if_one_of_them_is() -> None:
    key = make("alice", now=NOW)[1]
    gone = changed(key, revoked=datetime.fromtimestamp(NOW, UTC))
    for rows in ([key, gone], [gone, key]):
        assert list(by_digest(rows).values()) == [gone]


# --- a keyring ----------------------------------------------------------------------------------------


def test_a_keyring_finds_its_keys_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "keys.json"
    secret, key = make("alice", now=NOW)
    put(path, key)
    keyring = Keyring(path)
    assert keyring.find(secret.encode()) == key
    assert keyring.find(make("alice", now=NOW)[0].encode()) is None
    assert keyring.find(key.sha256.encode()) is None  # the hash opens nothing
    assert keyring.find(b"") is None


@given(st.binary(max_size=100))
def test_no_bytes_open_a_keyring_but_the_key(tmp_path_factory, presented) -> None:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    secret, key = make("alice", now=NOW)
    put(path, key)
    assert Keyring(path).find(presented) is None
    assert Keyring(path).find(secret.encode()[: len(presented)] + presented) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"version": 2, "keys": []}', "version"),
        (b'{"version": 1, "keys": [], "more": 1}', "unknown field"),
        (b'{"version": 1, "keys": [{}]}', "key 1: "),
        (b'{"version": 1, "keys": ["\xff"]}', "key 1: "),
    ],
)
def test_a_gateway_does_not_start_without_the_keys_it_was_told_to_use(tmp_path, content, said) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        Keyring(path)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError):
            Keyring(path)


def test_a_changed_file_counts_from_the_next_look(tmp_path) -> None:
    path = tmp_path / "keys.json"
    secret, key = make("alice", now=NOW)
    put(path, key)
    keyring = Keyring(path)
    keyring.tick(NOW)
    assert keyring.find(secret.encode()).good(NOW)
    put(path, changed(key, revoked=datetime.fromtimestamp(NOW, UTC)))
    keyring.tick(NOW + 1)
    assert not keyring.find(secret.encode()).good(NOW + 1)
    put(path)
    keyring.tick(NOW + 2)
    assert keyring.find(secret.encode()) is None
    assert keyring.keys() == []


@pytest.mark.parametrize("bad", [None, b"", b'{"version": 1, "keys": [{"name": "x"}]}'])
def test_a_bad_file_keeps_the_keys_and_says_why_once(tmp_path, bad) -> None:
    path = tmp_path / "keys.json"
    secret, key = make("alice", now=NOW)
    put(path, key)
    keyring = Keyring(path)
    path.unlink()
    if bad is not None:
        path.write_bytes(bad)
    with capture_logs() as said:
        for second in range(3):
            keyring.tick(NOW + second)
    assert [line["event"] for line in said] == ["keys_file_refused"]
    assert said[0]["reason"]
    assert keyring.find(secret.encode()) == key

    path.unlink(missing_ok=True)
    other, record = make("bob", now=NOW)
    put(path, record)
    with capture_logs() as said:
        keyring.tick(NOW + 5)
    assert [line["event"] for line in said] == ["keys_loaded"]
    assert keyring.find(other.encode()) == record
    assert keyring.find(secret.encode()) is None
