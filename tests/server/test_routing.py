"""Routes: exact names, claude- aliases, globs, the catch-all, what upstreams list, and what fits."""

import pytest

from antiphon.config import Fallbacks
from antiphon.core.dialects.quirks import by_name
from antiphon.server.routing import ANY, NoRouteError, Route, RouteTable, Target, check_fit

GENERIC, LLAMACPP = by_name("generic"), by_name("llamacpp")
LOCAL = Target("local", LLAMACPP, "smollm2")
EMBEDDED = RouteTable(
    (
        Route("reasoning", (Target("simulator", GENERIC),)),
        Route("smollm2", (LOCAL,), 4096),
        Route(ANY, (LOCAL,), 4096, remedy="Use --upstream."),
    )
)
SINGLE = RouteTable(
    (Route(ANY, (Target("up", GENERIC),)),), {"up": {"qwen3": 32768, "claude-ish": None}}, by_listing=True
)


def asked(route):
    return [(target.upstream, target.sends) for target in route.targets]


@pytest.mark.parametrize(
    ("model", "upstream", "sends"),
    [
        ("reasoning", "simulator", "reasoning"),
        ("claude-reasoning", "simulator", "reasoning"),
        ("smollm2", "local", "smollm2"),
        ("claude-smollm2", "local", "smollm2"),
        ("anything", "local", "smollm2"),
        ("claude-anything", "local", "smollm2"),
    ],
)
def test_embedded(model, upstream, sends):
    assert asked(EMBEDDED.find(model)) == [(upstream, sends)]


@pytest.mark.parametrize(
    ("model", "sends", "window"),
    [
        ("qwen3", "qwen3", 32768),
        ("claude-qwen3", "qwen3", 32768),
        ("claude-ish", "claude-ish", None),
        ("claude-unknown", "claude-unknown", None),
        ("unknown", "unknown", None),
    ],
)
def test_one_upstream_passes_names_through_and_knows_its_aliases(model, sends, window):
    route = SINGLE.find(model)
    assert asked(route) == [("up", sends)]
    assert (route.targets[0].window, route.widest) == (window, window)


def test_an_unknown_model_without_a_catch_all_is_404():
    table = RouteTable((Route("reasoning", (Target("simulator", GENERIC),)),))
    with pytest.raises(NoRouteError) as refused:
        table.find("gpt")
    assert refused.value.fault.status == 404
    assert refused.value.fault.kind == "not_found_error"
    assert "reasoning" in refused.value.fault.message


def table(*names, listed=None):
    return RouteTable(tuple(Route(name, (Target(name, GENERIC),)) for name in names), listed or {})


@pytest.mark.parametrize(
    ("model", "route"),
    [
        ("claude-haiku-4", "claude-haiku-4"),  # exact before globs, wherever it stands
        ("claude-3-haiku", "claude-*haiku*"),
        ("claude-opus", "claude-*"),  # the first that matches
        ("Claude-opus", ANY),  # case counts
        ("gpt", ANY),
        ("claude-local", "local"),  # an alias of an exact name, before globs
    ],
)
def test_exact_names_then_globs_in_order_then_the_catch_all(model, route):
    found = table(ANY, "claude-*haiku*", "claude-*", "claude-haiku-4", "local").find(model)
    assert found.model == route


def test_the_upstream_gets_the_clients_name_unless_the_target_has_its_own():
    targets = (Target("a", GENERIC), Target("b", GENERIC, "real"))
    route = RouteTable((Route("claude-*", targets),)).find("claude-x")
    assert asked(route) == [("a", "claude-x"), ("b", "real")]


TWO = (Target("a", GENERIC), Target("b", GENERIC))


@pytest.mark.parametrize(
    ("listed", "model", "upstreams"),
    [
        ({"a": {"m": None}, "b": {"n": None}}, "m", ["a"]),
        ({"a": {"m": None}, "b": {"m": None}}, "m", ["a", "b"]),
        ({"a": {"m": None}, "b": {"m": None}}, "claude-m", ["a", "b"]),
        ({"a": {"m": None}}, "n", ["b"]),  # b has not told: it may have it
        ({}, "n", ["a", "b"]),
    ],
)
def test_without_models_in_the_configuration_a_name_goes_where_it_is_listed(listed, model, upstreams):
    route = RouteTable((Route(ANY, TWO),), listed, by_listing=True).find(model)
    assert [target.upstream for target in route.targets] == upstreams


def test_a_name_that_none_of_several_lists_is_404_with_those_that_are_listed():
    two = RouteTable((Route(ANY, TWO),), {"a": {"m": None}, "b": {"n": None}}, by_listing=True)
    with pytest.raises(NoRouteError) as refused:
        two.find("x")
    assert refused.value.fault.status == 404
    assert "m, n" in refused.value.fault.message


def test_windows_are_the_routes_else_the_targets_else_what_is_listed():
    listed = {"a": {"m": 100}, "b": {"m": 200}}
    assert RouteTable((Route("m", TWO),), listed).find("m").widest == 200
    assert RouteTable((Route("m", TWO, 50),), listed).find("m").widest == 50
    assert RouteTable((Route("m", TWO),), {"a": {"m": 100}}).find("m").widest is None


def test_what_reads_as_what():
    assert TWO[0].reads_as(TWO[1])
    assert not TWO[0].reads_as(Target("b", LLAMACPP))
    assert not TWO[0].reads_as(Target("b", GENERIC, "x"))


def test_only_differing_targets_and_fallbacks_may_need_a_second_plan():
    assert not RouteTable((Route("m", TWO),)).may_replan
    assert RouteTable((Route("m", (TWO[0], LOCAL)),)).may_replan
    assert RouteTable((Route("m", TWO, fallbacks=Fallbacks(failed="n")),)).may_replan


def test_the_catch_all_refuses_what_does_not_fit_with_the_remedy():
    with pytest.raises(NoRouteError) as refused:
        check_fit(EMBEDDED.find("claude-opus"), 26000)
    fault = refused.value.fault
    assert fault.status == 400
    assert fault.message == "prompt is too long: 26000 tokens > 4096 maximum. Use --upstream."


def test_a_model_asked_for_by_name_is_refused_only_where_no_estimate_could_be_that_wrong():
    route = EMBEDDED.find("smollm2")
    check_fit(route, 12000)
    with pytest.raises(NoRouteError):
        check_fit(route, 13000)
    check_fit(EMBEDDED.find("reasoning"), 10**9)


def test_what_has_a_larger_model_to_go_to_goes_there_at_the_first_doubt():
    route = RouteTable((Route("m", TWO, 4096, fallbacks=Fallbacks(overflow="big")),)).find("m")
    check_fit(route, 4096)
    with pytest.raises(NoRouteError) as refused:
        check_fit(route, 4097)
    assert refused.value.fallback == "big"


def test_a_name_of_any_length_and_letters_is_told_in_a_readable_line():
    with pytest.raises(NoRouteError) as refused:
        RouteTable(()).find("qwen3\n" + "x" * 500)
    assert refused.value.fault.message.startswith("model: qwen3 ")
    assert len(refused.value.fault.message) < 300
