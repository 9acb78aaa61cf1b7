"""The tree of settings: defaults, what is hidden, the names and words that derive from it."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.config import (
    MIB,
    SECRETS,
    ConfigError,
    Coordination,
    Limits,
    ModelSettings,
    Overrides,
    Settings,
    TargetSettings,
    UpstreamSettings,
    is_loopback,
)
from antiphon.config_tables import (
    IN_ENVIRONMENT,
    File,
    ModelTable,
    ServerTable,
    UpstreamTable,
    either,
    environment_names,
    member_at,
    members,
)
from antiphon.core.dialects.quirks import Quirks


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
    assert (settings.host, settings.port, settings.strict) == ("127.0.0.1", 8080, False)
    assert (settings.upstreams, settings.models, settings.coordination) == ((), (), None)
    assert (settings.keys_file, settings.admin_key, settings.allow_anonymous) == (None, None, False)
    health = settings.health
    assert (health.interval, health.open_after, health.backoff_first, health.backoff_max) == (10, 3, 1, 30)
    assert (settings.retries.attempts, settings.retries.budget) == (2, 0.2)


def test_secrets_are_in_no_repr() -> None:
    upstream = UpstreamSettings(
        name="up", base_url="http://127.0.0.1:1/v1", api_key="sk-secret", quirks={"a": "secret"}
    )
    overrides = Overrides(effort="low", system_prefix="secret", chat_template_kwargs={"a": "secret"})
    model = ModelSettings(name="m", targets=(TargetSettings(upstream="up"),), overrides=overrides)
    settings = Settings(
        upstreams=(upstream,),
        models=(model,),
        admin_key="the-secret",
        coordination=Coordination(where="redis://:secret@h"),
    )
    tables = File(
        server=ServerTable(admin_key="the-secret", coordination="redis://:secret@h"),
        upstreams=(UpstreamTable(name="up", base_url="http://h/v1", api_key="secret"),),
    )
    for each in (upstream, overrides, model, settings, tables):
        assert "secret" not in repr(each)
    assert "effort='low'" in repr(overrides)
    assert "admin_key='***'" not in repr(Settings())  # none is told from one that is hidden
    assert "admin_key=***" in repr(settings)


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Limits().connect = 1.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]


def test_an_error_has_its_lines_apart() -> None:
    error = ConfigError("one", "two", warnings=("three",))
    assert str(error) == "one\ntwo"
    assert (error.errors, error.warnings, error.files) == (("one", "two"), ("three",), ())


TABLES = [File, *(each.table or each.tables for each in members(File)), TargetSettings, Overrides]


@pytest.mark.parametrize("table", TABLES[1:], ids=lambda table: table.__name__)
def test_every_setting_has_a_meaning_and_says_what_it_must_be(table) -> None:
    for member in members(table):
        assert member.meaning, member.name
        assert not member.meaning.endswith("."), member.name
        assert member.wanted, member.name


def test_the_file_has_every_setting_of_the_tree() -> None:
    assert set(Settings.__struct_fields__) - {"upstreams", "models", "limits", "health", "retries"} == set(
        ServerTable.__struct_fields__
    ) - {"admin_key_file"}
    assert set(UpstreamTable.__struct_fields__) - set(UpstreamSettings.__struct_fields__) == {"api_key_file"}
    assert set(ModelTable.__struct_fields__) - set(ModelSettings.__struct_fields__) == {"upstream", "model"}


def test_every_secret_but_the_coordinator_may_be_in_a_file_of_its_own() -> None:
    names = {member.name for table in (ServerTable, UpstreamTable) for member in members(table)}
    assert SECRETS <= names
    assert {f"{secret}_file" for secret in SECRETS - {"coordination"}} <= names


def test_each_environment_name_belongs_to_one_setting() -> None:
    names = environment_names()
    assert names["ANTIPHON_PORT"] == ("server", "port")
    assert names["ANTIPHON_GAP"] == ("limits", "gap")
    assert len(names) == sum(len(table.__struct_fields__) for table in IN_ENVIRONMENT.values())


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (("server", "port"), "a whole number from 0 to 65535"),
        (("server", "strict"), "true or false"),
        (("server", "pdf"), "text, images or refuse"),
        (("server", "host"), "a text that is not empty"),
        (("limits", "gap"), "a number greater than 0"),
        (("limits", "max_body"), "a whole number from 1024 to 1099511627776"),
        (("limits", "tick"), "a number greater than 0 and at most 60"),
        (("limits", "queue_length"), "a whole number from 0 to 1000000000"),
        (("health", "failure_rate"), "a number greater than 0 and at most 1"),
        (("retries", "budget"), "a number from 0 to 1"),
        (("upstreams", 3, "slots"), "a whole number from 1 to 1000000 or auto"),
        (("upstreams", 3, "quirks"), "a table"),
        (("models", 0, "targets", 1, "weight"), "a number greater than 0"),
        (("models", 0, "overrides", "system_prefix"), "a text"),
        (("models", 0, "overrides", "effort"), "low, medium, high, xhigh or max"),
    ],
)
def test_what_a_value_must_be(path, wanted) -> None:
    assert member_at(path).wanted == wanted


def test_there_is_no_member_where_there_is_none() -> None:
    assert member_at(()) is None
    assert member_at(("server", "prot")) is None
    assert member_at(("server", "port", "x")) is None


def test_members_that_are_pairs_are_written_as_tables() -> None:
    facts = {member.name: member for member in members(Quirks)}
    assert facts["prefill"].pairs
    assert facts["prefill"].wanted == "a table"
    assert not facts["reasoning_fields_out"].pairs
    assert not facts["max_stop"].pairs


def test_a_default_that_is_made_anew_is_known() -> None:
    defaults = {member.name: member.default for member in members(UpstreamTable)}
    assert defaults["quirks"] == {}
    assert defaults["name"] is msgspec.NODEFAULT


@pytest.mark.parametrize(
    ("words", "said"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_either(words, said) -> None:
    assert either(words) == said


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
