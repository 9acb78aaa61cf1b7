"""The admin key: what may be one, what matches it, and that only its hash is kept."""

from __future__ import annotations

import pytest

from antiphon.config import ConfigError
from antiphon.server.admin_key import AdminKey
from antiphon.server.keys import make

SECRET = "a-long-admin-secret"


def test_one_of_what_was_sent_is_the_key() -> None:
    key = AdminKey(SECRET)
    assert key.is_one_of((SECRET.encode(),))
    assert key.is_one_of((b"other", SECRET.encode()))
    assert not key.is_one_of(())
    assert not key.is_one_of((b"", SECRET.encode()[:-1], SECRET.upper().encode(), b"\xff"))


def test_the_secret_itself_is_kept_nowhere() -> None:
    key = AdminKey(SECRET)
    assert SECRET not in repr(key)
    assert all(SECRET not in str(getattr(key, slot)) for slot in AdminKey.__slots__)


@pytest.mark.parametrize(
    "secret", ["", "short", "x" * 15, "with a blank in it", "with-ümlaut-in-it", "x" * 20 + "\n"]
)
def test_a_secret_that_cannot_be_used(secret) -> None:
    with pytest.raises(ConfigError) as refused:
        AdminKey(secret)
    assert not secret or secret not in str(refused.value)


def test_a_clients_key_is_not_made_the_admin_key() -> None:
    with pytest.raises(ConfigError):
        AdminKey(make("alice", now=0)[0])
