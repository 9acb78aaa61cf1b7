"""Settings: defaults, names in the environment, what is refused and in which words."""

from __future__ import annotations

import pytest

from antiphon.config import (
    MIB,
    ConfigError,
    Limits,
    Settings,
    UpstreamSettings,
    is_loopback,
    limits_from_environment,
    limits_table,
)


def test_the_defaults_are_the_documented_ones() -> None:
    limits = Limits()
    assert (limits.connect, limits.first_token, limits.gap) == (10, 600, 180)
    assert (limits.finish_grace, limits.finish_grace_usage, limits.settle) == (2, 5, 0.1)
    assert (limits.request_headers, limits.request_body, limits.write_stall) == (20, 60, 60)
    assert (limits.commit_after, limits.ping_interval, limits.queue_timeout) == (12, 10, 300)
    assert (limits.release_grace, limits.drain) == (5, 30)
    assert (limits.keep_alive, limits.upstream_idle) == (75, 3)
    assert (limits.max_body, limits.max_headers) == (32 * MIB, 64 * 1024)
    assert (limits.max_frame, limits.max_held, limits.max_fold) == (16 * MIB, 8 * MIB, 32 * MIB)
    assert (limits.max_behind, limits.heavy_body) == (256 * 1024, MIB)
    settings = Settings()
    assert (settings.host, settings.port, settings.upstream, settings.strict) == (
        "127.0.0.1",
        8080,
        None,
        False,
    )


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_every_limit_has_its_name_in_the_environment(name) -> None:
    limits = limits_from_environment({f"ANTIPHON_{name.upper()}": "4096"})
    assert getattr(limits, name) == 4096
    others = [field for field in Limits.__struct_fields__ if field != name]
    assert all(getattr(limits, field) == getattr(Limits(), field) for field in others)


def test_the_environment_may_say_nothing_or_other_things() -> None:
    assert limits_from_environment({}) == Limits()
    assert (
        limits_from_environment({"ANTIPHON_COLOUR": "blue", "CONNECT": "1", "antiphon_gap": "1"}) == Limits()
    )
    assert limits_from_environment({"ANTIPHON_TICK": "0.05"}).tick == 0.05


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONNECT", "soon"),
        ("CONNECT", "0"),
        ("CONNECT", "-1"),
        ("GAP", ""),
        ("MAX_BODY", "1023"),
        ("MAX_BODY", "1.5"),
        ("MAX_BODY", "32MiB"),
        ("QUEUE_LENGTH", "0"),
    ],
)
def test_what_cannot_be_used_is_refused_and_named(name, value) -> None:
    with pytest.raises(ConfigError) as refused:
        limits_from_environment({f"ANTIPHON_{name}": value})
    assert name.lower() in str(refused.value)


def test_the_table_for_the_docs_has_every_limit_with_a_meaning() -> None:
    rows = limits_table()
    assert [row[0] for row in rows] == [f"ANTIPHON_{name.upper()}" for name in Limits.__struct_fields__]
    assert all(meaning for _, _, meaning in rows)
    defaults = {name: default for name, default, _ in rows}
    assert defaults["ANTIPHON_CONNECT"] == "10"
    assert defaults["ANTIPHON_SETTLE"] == "0.1"


def test_a_key_is_not_shown() -> None:
    settings = UpstreamSettings(name="up", base_url="http://127.0.0.1:1/v1", api_key="sk-secret")
    assert "secret" not in repr(settings)
    assert "secret" not in repr(Settings(upstreams=(settings,)))


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Limits().connect = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.1", False),
        ("example.com", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("", False),
    ],
)
def test_is_loopback(host, loopback) -> None:
    assert is_loopback(host) is loopback
