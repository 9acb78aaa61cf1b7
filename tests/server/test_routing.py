"""Routes: exact names, claude- aliases, the catch-all and what fits it."""

import pytest

from antiphon.server.routing import NoRouteError, Route, RouteTable

EMBEDDED = RouteTable(
    (
        Route("simulator", "generic", model="reasoning"),
        Route("local", "llamacpp", model="smollm2", sends="smollm2", window=4096),
        Route("local", "llamacpp", sends="smollm2", window=4096, remedy="Use --upstream."),
    )
)
SINGLE = RouteTable((Route("upstream", "generic"),), {"qwen3": 32768, "claude-ish": None})


@pytest.mark.parametrize(
    ("model", "upstream", "sends"),
    [
        ("reasoning", "simulator", None),
        ("claude-reasoning", "simulator", None),
        ("smollm2", "local", "smollm2"),
        ("claude-smollm2", "local", "smollm2"),
        ("anything", "local", "smollm2"),
        ("claude-anything", "local", "smollm2"),
    ],
)
def test_embedded(model, upstream, sends):
    route = EMBEDDED.find(model)
    assert (route.upstream, route.sends) == (upstream, sends)


@pytest.mark.parametrize(
    ("model", "sends", "window"),
    [
        ("qwen3", None, 32768),
        ("claude-qwen3", "qwen3", 32768),
        ("claude-ish", None, None),
        ("claude-unknown", None, None),
        ("unknown", None, None),
    ],
)
def test_one_upstream_passes_names_through_and_knows_its_aliases(model, sends, window):
    route = SINGLE.find(model)
    assert (route.sends, route.window) == (sends, window)


def test_an_unknown_model_without_a_catch_all_is_404():
    table = RouteTable((Route("simulator", "generic", model="reasoning"),))
    with pytest.raises(NoRouteError) as refused:
        table.find("gpt")
    assert refused.value.fault.status == 404
    assert refused.value.fault.kind == "not_found_error"
    assert "reasoning" in refused.value.fault.message


def test_the_catch_all_refuses_what_does_not_fit_with_the_remedy():
    with pytest.raises(NoRouteError) as refused:
        EMBEDDED.check_fit(EMBEDDED.find("claude-opus"), "claude-opus", 26000)
    fault = refused.value.fault
    assert fault.status == 400
    assert fault.message.startswith("prompt is too long: 26000 tokens > 4096 maximum")
    assert "--upstream" in fault.message


def test_a_named_model_is_refused_only_where_no_estimate_could_be_so_wrong():
    route = EMBEDDED.find("smollm2")
    EMBEDDED.check_fit(route, "smollm2", 12000)
    with pytest.raises(NoRouteError, match="prompt is too long"):
        EMBEDDED.check_fit(route, "smollm2", 13000)
    EMBEDDED.check_fit(EMBEDDED.find("reasoning"), "reasoning", 10**9)
