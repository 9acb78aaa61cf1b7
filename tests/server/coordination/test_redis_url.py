"""What a URL of Valkey or Redis may say, and how what cannot work is refused: never with its password."""

from __future__ import annotations

import pytest

pytest.importorskip("redis")

from antiphon.server.coordination import open_coordinator  # noqa: E402 - where the client is installed
from antiphon.server.coordination.redis_url import read_url  # noqa: E402

OWN = {"protocol": 3, "socket_timeout": None}


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://:s3cret@127.0.0.1:6399/0?max_connections=5", "max_connections"),
        ("redis://:s3cret@127.0.0.1:6399/0?foo=bar", "foo"),
        ("redis://:s3cret@127.0.0.1/0?a=1&client_name=x&b=2", "options a, b"),
        ("redis://:s3cret@127.0.0.1/0?ssl_cert_reqs=none", "ssl_cert_reqs"),
        ("rediss://:s3cret@127.0.0.1/0?ssl_cert_reqs=nonsense", "ssl_cert_reqs"),
        ("rediss://:s3cret@127.0.0.1/0?client_name=x&ssl_ca_certs=/nowhere/at/all", "option ssl_ca_certs"),
        ("rediss://:s3cret@127.0.0.1/0?ssl_ciphers=nonsense", "ssl_ciphers"),
        ("redis://:s3cret@127.0.0.1/0?ssl_cert_reqs=none&ssl_ciphers=x", "ssl_cert_reqs, ssl_ciphers"),
        ("redis://:s3cret@127.0.0.1/0?encoding=nonsense", "encoding"),
        ("redis://:s3cret@127.0.0.1/0?decode_responses=true", "decode_responses"),
        ("redis://:s3cret@127.0.0.1/0?retry=s3cret", "retry"),
        ("redis://:s3cret@127.0.0.1/0?socket_timeout=s3cret&db=1", "option socket_timeout"),
        ("unix://:s3cret@/tmp/none.sock?db=s3cret", "db"),
        ("redis://127.0.0.1/0?s3cret%0a=1", "no name"),
        ("redis://:s3cret@127.0.0.1:6399/x?client_name=q", "database"),
        ("redis://:s3cret@127.0.0.1:6399/0/1", "database"),
        # What belongs into the password, and is read as something else.
        ("redis://:se/s3cret@127.0.0.1:6399/0", "cannot be read"),
        ("redis://:1/s3cret@127.0.0.1:6399/0", "cannot be read"),
        ("redis://:1?s3cret=pw@127.0.0.1:6399/0", "cannot be read"),
        ("redis://:1#s3cret@127.0.0.1:6399/0", "cannot be read"),
        ("redis://:s3cret@127.0.0.1:notaport/0", "cannot be read"),
        ("redis://:s3cret@127.0.0.1:6399/0?s3cret", "cannot be read"),
        ("redis://[:s3cret@127.0.0.1", "cannot be read"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(url, named) -> None:
    with pytest.raises(ValueError, match="coordination: ") as refused:
        open_coordinator(url, "up")
    assert named in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host", {"host": "host"}),
        ("redis://:p%2F%40@host:7/3", {"host": "host", "port": 7, "db": 3, "password": "p/@"}),
        ("redis://u:p@[::1]:7/0?client_name=a%40b", {"host": "::1", "username": "u", "client_name": "a@b"}),
        ("redis://host/0?socket_connect_timeout=2&socket_keepalive=no", {"socket_keepalive": False}),
        ("rediss://:p@host/0?ssl_cert_reqs=none", {"ssl_cert_reqs": "none", "password": "p"}),
        ("unix://:p@/tmp/a@b.sock?db=3", {"path": "/tmp/a@b.sock", "db": 3, "password": "p"}),
        ("unix:///tmp/redis.sock", {"path": "/tmp/redis.sock"}),
    ],
)
def test_what_it_says_is_used(url, said) -> None:
    connection_class, options = read_url(url, OWN)
    assert {**options, **said, **OWN} == options
    connection_class(**options)


def test_what_is_ours_goes_before_what_it_says() -> None:
    _, options = read_url("redis://host/0?protocol=2&socket_timeout=5&health_check_interval=1", OWN)
    assert (options["protocol"], options["socket_timeout"], options["health_check_interval"]) == (3, None, 1)
