"""The model list: what upstreams say, aliases, pages."""

import pytest
from aiohttp import ClientSession, web

from antiphon.server.catalog import KEPT, Catalog, Model, ask_upstream, model_fields, page, with_aliases

MODELS = [Model(f"m{i}") for i in range(5)]


async def ask(answer, status=200, content_type="application/json"):
    async def handler(request):
        assert request.headers.get("authorization") == "Bearer key"
        return web.Response(text=answer, status=status, content_type=content_type)

    app = web.Application()
    app.router.add_get("/v1/models", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        async with ClientSession() as session:
            return await ask_upstream(session, f"http://127.0.0.1:{port}/v1/", "key")
    finally:
        await runner.cleanup()


async def test_windows_under_the_names_that_servers_use():
    listed = await ask(
        '{"object":"list","data":[{"id":"vllm","max_model_len":40960,"created":17},{"id":"cpp","meta":{"n_ctx":8192}},'
        '{"id":"router","context_length":131072},{"id":"bare"},{"id":"odd","max_model_len":"x"},{"no":"id"},7]}'
    )
    assert listed == [
        Model("vllm", 40960, 17),
        Model("cpp", 8192),
        Model("router", 131072),
        Model("bare"),
        Model("odd"),
    ]


@pytest.mark.parametrize(
    ("answer", "status"), [("[]", 200), ("{}", 200), ("<html>", 200), ("{}", 404), ('{"data":{}}', 200)]
)
async def test_nonsense_is_no_list(answer, status):
    assert await ask(answer, status) is None


async def test_nobody_there_is_no_list():
    async with ClientSession() as session:
        assert await ask_upstream(session, "http://127.0.0.1:9/v1", None) is None


async def test_the_list_is_kept_and_a_failure_keeps_the_old_one():
    answers = [[Model("a")], None, [Model("b")]]
    now = 0.0
    asked = 0

    async def asking():
        nonlocal asked
        asked += 1
        return answers[asked - 1]

    catalog = Catalog(asking, clock=lambda: now)
    assert await catalog.models() == [Model("a")]
    assert await catalog.models() == [Model("a")]
    assert asked == 1
    now = KEPT + 1
    assert await catalog.models() == [Model("a")]
    assert await catalog.models() == [Model("b")]
    assert asked == 3


def test_aliases_for_what_claude_code_would_not_list():
    names = [model.id for model in with_aliases([Model("qwen"), Model("Claude-3"), Model("anthropic/x")])]
    assert names == ["qwen", "Claude-3", "anthropic/x", "claude-qwen"]


def test_a_model_in_both_shapes():
    fields = model_fields(Model("claude-qwen", 4096, 1767225600))
    assert fields["type"] == "model"
    assert fields["object"] == "model"
    assert fields["display_name"] == "qwen"
    assert fields["created_at"] == "2026-01-01T00:00:00Z"
    assert fields["max_input_tokens"] == 4096
    assert "max_input_tokens" not in model_fields(Model("q"))


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({"limit": 20}, ["m0", "m1", "m2", "m3", "m4"], False),
        ({"limit": 2}, ["m0", "m1"], True),
        ({"limit": 2, "after_id": "m1"}, ["m2", "m3"], True),
        ({"limit": 2, "after_id": "m2"}, ["m3", "m4"], False),
        ({"limit": 2, "before_id": "m4"}, ["m2", "m3"], True),
        ({"limit": 9, "before_id": "m2"}, ["m0", "m1"], False),
        ({"limit": 2, "after_id": "nowhere"}, [], False),
        ({"limit": 2, "before_id": "nowhere"}, [], False),
    ],
)
def test_pages(query, ids, more):
    listed = page(MODELS, **{"after_id": None, "before_id": None, **query})
    assert [model["id"] for model in listed["data"]] == ids
    assert listed["has_more"] is more
    assert listed["first_id"] == (ids[0] if ids else None)
    assert listed["last_id"] == (ids[-1] if ids else None)
