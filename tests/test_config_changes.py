"""What is different between two trees, by kind: to be applied, or for after a restart."""

from __future__ import annotations

import pytest
from msgspec import structs

from antiphon.config import (
    Coordination,
    HealthSettings,
    Limits,
    ModelSettings,
    Overrides,
    RetrySettings,
    ServerSettings,
    Settings,
    TargetSettings,
    UpstreamSettings,
)
from antiphon.config_changes import NEEDS_RESTART, Changes, changes, taken_over


def upstream(name: str, **more) -> UpstreamSettings:
    return UpstreamSettings(name=name, base_url="http://h/v1", **more)


def model(name: str, at: str = "a", **more) -> ModelSettings:
    return ModelSettings(name=name, targets=(TargetSettings(upstream=at),), **more)


OLD = Settings(upstreams=(upstream("a"), upstream("b")), models=(model("m"), model("n*"), model("*")))


def test_nothing_is_different() -> None:
    found = changes(OLD, structs.replace(OLD))
    assert found == Changes()
    assert not found
    assert not found.models
    assert found.told() == {}


def test_upstreams_by_their_names() -> None:
    new = structs.replace(OLD, upstreams=(upstream("c"), upstream("b", slots=3)))
    found = changes(OLD, new)
    assert (found.upstreams_added, found.upstreams_removed, found.upstreams_changed) == (
        ("c",),
        ("a",),
        ("b",),
    )
    assert found.restart == ()
    assert found
    swapped = structs.replace(OLD, upstreams=OLD.upstreams[::-1])
    assert not changes(OLD, swapped)


@pytest.mark.parametrize(
    "more", [{"api_key": "k"}, {"kind": "vllm"}, {"quirks": {"max_stop": 1}}, {"think_tags": "off"}]
)
def test_whatever_is_different_in_an_upstream(more) -> None:
    new = structs.replace(OLD, upstreams=(upstream("a", **more), upstream("b")))
    assert changes(OLD, new).upstreams_changed == ("a",)


def test_models_by_their_names_and_their_order() -> None:
    new = structs.replace(OLD, models=(model("x"), model("m", overrides=Overrides(effort="low")), model("*")))
    found = changes(OLD, new)
    assert (found.models_added, found.models_removed, found.models_changed) == (("x",), ("n*",), ("m",))
    assert not found.models_order
    assert found.models
    found = changes(OLD, structs.replace(OLD, models=OLD.models[::-1]))
    assert found == Changes(models_order=True)
    assert found.models


def test_limits_health_and_retries_by_their_members() -> None:
    new = structs.replace(
        OLD,
        limits=Limits(gap=1, drain=1),
        health=HealthSettings(open_after=1),
        retries=RetrySettings(attempts=1),
    )
    assert changes(OLD, new) == Changes(
        limits=("gap", "drain"), health=("open_after",), retries=("attempts",)
    )


OTHER = {
    "host": "::1",
    "port": 1,
    "workers": 2,
    "strict": True,
    "pdf": "refuse",
    "log_level": "error",
    "log_json": True,
    "allow_anonymous": True,
    "keys_file": "k",
    "admin_key": "sekret",
    "coordination_policy": "closed",
}


@pytest.mark.parametrize("name", ServerSettings.__struct_fields__)
def test_each_setting_of_the_server_is_applied_or_needs_a_restart(name) -> None:
    found = changes(OLD, structs.replace(OLD, **{name: OTHER[name]}))
    if name in NEEDS_RESTART:
        assert found.server == ()
        assert [text.partition(":")[0] for text in found.restart] == [name]
    else:
        assert found == Changes(server=(name,))
    assert "sekret" not in repr(found)


def test_what_needs_a_restart_is_told_in_words_without_secrets() -> None:
    new = structs.replace(OLD, port=8090, coordination=Coordination(where="redis://:sekret@h"))
    assert changes(OLD, new).restart == (
        "port: 8080 stays until a restart, then 8090",
        "coordination: the old one stays until a restart",
    )
    assert changes(OLD, new).told() == {"restart": list(changes(OLD, new).restart)}


def test_embedded_upstreams_do_not_come_or_go() -> None:
    assert changes(OLD, Settings()).restart == ("upstreams: your own ones stay until a restart",)
    assert changes(Settings(), OLD).restart == ("upstreams: the embedded ones stay until a restart",)


def test_all_but_what_needs_a_restart_is_taken_over() -> None:
    new = structs.replace(OLD, **OTHER)
    taken = taken_over(OLD, new)
    for name in OTHER:
        assert getattr(taken, name) == getattr(OLD if name in NEEDS_RESTART else new, name)
    assert taken_over(OLD, structs.replace(OLD, upstreams=())).upstreams == OLD.upstreams
    assert taken_over(Settings(), OLD).upstreams == ()
