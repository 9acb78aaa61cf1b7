"""Keys in a whole gateway, over sockets: who is served, what is charged, and that no key goes where it must not."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest

from antiphon.server.admin_key import AdminKey
from antiphon.server.catalog import Model
from antiphon.server.entry import Entry, Identity
from antiphon.server.keys import Key, Keyring, make
from antiphon.server.keys_file import edit_rows
from antiphon.server.ordinary import OrdinaryRoutes
from server.fleet_house import FleetHouse, model
from server.harness import House, body_of, on_uvloop, post, request

ADMIN = "admin-secret-0123456789"
UPSTREAM_KEY = "sk-upstream-0123456789abcdef"


class Door:
    """A keys file, and the door that follows it."""

    def __init__(self, folder) -> None:
        self.path = folder / "keys.json"
        with edit_rows(self.path, Key):
            pass

    def add(self, name: str, **fields) -> str:
        secret, key = make(name, now=time.time())
        with edit_rows(self.path, Key) as rows:
            rows.append(msgspec.structs.replace(key, **fields))
        return secret

    def change(self, name: str, **fields) -> None:
        with edit_rows(self.path, Key) as rows:
            rows[:] = [msgspec.structs.replace(row, **fields) if row.name == name else row for row in rows]

    def entry(self) -> Entry:
        return Entry(Keyring(self.path), admin=AdminKey(ADMIN))


@pytest.fixture
def door(tmp_path) -> Door:
    return Door(tmp_path)


@contextlib.asynccontextmanager
async def keyed(door: Door) -> AsyncIterator[House]:
    """A house behind this door."""
    async with House() as house:
        house.gateway.entry = door.entry()
        yield house


def with_key(secret: str) -> str:
    return f"X-Api-Key: {secret}\r\n"


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ("X-Api-Key: {good}\r\n", 200, ""),
        ("Authorization: Bearer {good}\r\n", 200, ""),
        ("AUTHORIZATION: bEARER   {good}\r\n", 200, ""),
        ("X-Api-Key: {good}\r\nAuthorization: Bearer {good}\r\n", 200, ""),
        ("X-Api-Key: dummy\r\nAuthorization: Bearer {good}\r\n", 200, ""),
        ("X-Api-Key: {good}\r\nHost: llm.example.com\r\n", 200, ""),
        ("X-Api-Key: {good}\r\nOrigin: https://app.example\r\n", 200, ""),
        ("", 401, "an API key is needed"),
        ("X-Api-Key: \r\n", 401, "an API key is needed"),
        ("Authorization: {good}\r\n", 401, "an API key is needed"),
        ("X-Api-Key: {unknown}\r\n", 401, "not valid"),
        ("X-Api-Key: {good}0\r\n", 401, "not valid"),
        ("X-Api-Key: {good}\r\nX-Api-Key: {other}\r\n", 401, "several different"),
        ("X-Api-Key: {revoked}\r\n", 401, "was revoked"),
        ("Authorization: Bearer {expired}\r\n", 401, "expired on 2026-01-01"),
        ("X-Api-Key: {other}\r\n", 404, "model: m is not served here"),
        ("X-Api-Key: " + ADMIN + "\r\n", 401, "not valid"),
        ("X-Api-Key: \xfc\xff\r\n", 401, "not valid"),
        ("X-Api-Key: " + "a" * 60_000 + "\r\n", 401, "not valid"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/llm/v1/messages"])
@on_uvloop
async def test_who_is_served(door, path, headers, status, said) -> None:
    past = datetime(2026, 1, 1, tzinfo=UTC)
    secrets = {
        "good": door.add("good"),
        "other": door.add("other", models=("qwen*",)),
        "revoked": door.add("revoked", revoked=past),
        "expired": door.add("expired", expires=past),
        "unknown": make("nobody", now=0)[0],
    }
    filled = headers.format(**secrets)
    host = "" if "Host:" in filled else "Host: localhost\r\n"
    body = body_of(stream=False)
    async with keyed(door) as house:
        house.upstream.answering = lambda visit: visit.answer("served")
        client = await house.client()
        head = f"POST {path} HTTP/1.1\r\n{host}Content-Type: application/json\r\n{filled}Content-Length: {len(body)}\r\n\r\n"
        client.send(head.encode("latin-1") + body)
        response = await client.response()
        assert response.status == status
        seen = response.head + response.body
        if status == 200:
            assert response.json["content"] == [{"type": "text", "text": "served"}]
        else:
            kind = "not_found_error" if status == 404 else "authentication_error"
            assert (response.json["type"], response.json["error"]["type"]) == ("error", kind)
            assert said in response.json["error"]["message"]
            assert response.headers["request-id"] == response.json["request_id"]
            assert house.upstream.visits == []
        # a key goes nowhere: not to the upstream, not back to the client, not into a log
        for visit in house.upstream.visits:
            seen += (json.dumps(visit.headers) + json.dumps(visit.body)).encode()
        seen += str(house.said.entries).encode()
        assert not any(secret.encode() in seen for secret in [*secrets.values(), ADMIN])


@on_uvloop
async def test_openai_clients_need_the_same_keys(door) -> None:
    good, other = door.add("good", concurrent=1, requests_per_minute=10), door.add("other", models=("qwen*",))
    async with keyed(door) as house:
        house.upstream.answering = lambda visit: visit.answer("served")
        for secret, status in ((None, 401), (other, 404), (good, 200)):
            client = await house.client()
            headers = f"Authorization: Bearer {secret}\r\n" if secret else ""
            client.send(request(body_of(), path="/v1/chat/completions", headers=headers))
            response = await client.response()
            assert response.status == status
            if status == 200:
                assert response.headers["anthropic-ratelimit-requests-remaining"] == "9"
            else:
                assert "type" not in response.json  # the shape of its own API
                assert response.json["error"]["message"]
        (visit,) = house.upstream.visits
        assert good not in json.dumps(visit.headers) + json.dumps(visit.body)


@on_uvloop
async def test_count_tokens_needs_a_key_and_its_models(door) -> None:
    good, other = door.add("good"), door.add("other", models=("qwen*",))
    async with keyed(door) as house:
        for headers, status in (("", 401), (with_key(other), 404), (with_key(good), 200)):
            client = await house.client()
            client.send(request(body_of(), path="/v1/messages/count_tokens", headers=headers))
            assert (await client.response()).status == status


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"])
@on_uvloop
async def test_a_key_with_models_hears_no_others_names(door, path) -> None:
    good, other = door.add("good"), door.add("other", models=("qwen*",))
    async with FleetHouse(kinds={"a": {}}) as house:
        house.gateway.entry = door.entry()
        for secret, told in ((good, True), (other, False)):
            client = await house.client()
            client.send(request(body_of(model="nobody"), path=path, headers=with_key(secret)))
            response = await client.response()
            assert response.status == 404
            assert (b"only-a" in response.body) == told


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"])
@pytest.mark.parametrize("name", ["small", "native"])
@on_uvloop
async def test_of_a_model_that_a_key_may_not_use_nothing_is_told(door, name, path) -> None:
    """Not even that a prompt is too long for it, or that its server speaks another protocol."""
    secret = door.add("other", models=("qwen*",))
    models = (model("small", "a", window=100), model("native", "b"))
    async with FleetHouse(kinds={"a": {}, "b": {"kind": "anthropic"}}, models=models) as house:
        house.gateway.entry = door.entry()
        told = []
        for asked in (name, "nobody"):
            client = await house.client()
            body = body_of("word " * 1000, model=asked)
            client.send(request(body, path=path, headers=with_key(secret)))
            response = await client.response()
            assert response.status == 404
            told.append(response.json["error"]["message"].replace(asked, "it"))
        assert told[0] == told[1]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/healthz", "", 200),
        ("/metrics", "", 200),  # this machine
        ("/metrics", "X-Forwarded-For: 192.0.2.7\r\n", 401),
        ("/metrics", f"X-Forwarded-For: 192.0.2.7\r\nAuthorization: Bearer {ADMIN}\r\n", 200),
        ("/v1/models", "", 401),
        ("/v1/models", "X-Api-Key: {good}\r\n", 200),
        ("/nowhere", "", 401),
        ("/admin/slots", "", 401),
        ("/admin/slots/", "X-Api-Key: {good}\r\n", 401),
        ("/admin/slots", f"X-Api-Key: {ADMIN}\r\n", 200),
        ("/admin/nowhere", "", 401),
        ("//admin/slots", "", 401),
        ("/%61dmin/slots", "", 401),
        ("/v1/../admin/slots", "X-Api-Key: {good}\r\n", 404),
    ],
)
@on_uvloop
async def test_ordinary_paths(door, path, headers, status) -> None:
    filled = headers.format(good=door.add("good"))
    async with keyed(door) as house:
        client = await house.client()
        client.send(request(b"", method="GET", path=path, headers=filled))
        assert (await client.response()).status == status


@on_uvloop
async def test_a_revoked_key_is_useless_at_the_next_tick_and_cuts_no_stream(door) -> None:
    secret = door.add("alice")
    async with keyed(door) as house:
        client = await house.client()
        client.send(post(headers=with_key(secret)))
        visit = await house.visit()
        visit.head()
        visit.text("Hel")
        await client.event("content_block_delta")
        door.change("alice", revoked=datetime.now(UTC))
        house.tick(1)
        late = await house.client()
        late.send(post(headers=with_key(secret)))
        assert (await late.response()).json["error"]["message"] == "this API key was revoked"
        visit.text("lo")
        visit.finish()
        visit.done()
        assert (await client.response()).text == "Hello"
        (loaded,) = [entry for entry in house.said.entries if entry["event"] == "keys_loaded"]
        house.said.entries.remove(loaded)


@on_uvloop
async def test_requests_at_once_and_the_place_of_one_that_left(door) -> None:
    secret = door.add("alice", concurrent=1, requests_per_minute=100)
    async with keyed(door) as house:
        first = await house.client()
        first.send(post(headers=with_key(secret)))
        visit = await house.visit()
        visit.head()
        visit.text("x")
        await first.event("content_block_delta")
        assert first.so_far.headers["anthropic-ratelimit-requests-remaining"] == "99"
        second = await house.client()
        second.send(post(headers=with_key(secret)))
        refused = await second.response()
        assert (refused.status, refused.json["error"]["type"]) == (429, "rate_limit_error")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["anthropic-ratelimit-requests-limit"] == "100"
        first.rst()
        await visit.closed.wait()
        third = await house.client()
        third.send(post(headers=with_key(secret)))
        (await house.visit()).answer("in")
        assert (await third.response()).text == "in"
        assert len(house.upstream.visits) == 2


@on_uvloop
async def test_tokens_are_charged_with_what_the_upstream_reports(door) -> None:
    secret = door.add("alice", tokens_per_minute=1000)
    async with keyed(door) as house:
        house.upstream.answering = lambda visit: visit.answer("in")  # 21 tokens in, 5 out
        left = []
        for _ in range(2):
            client = await house.client()
            client.send(post(headers=with_key(secret), stream=False))
            response = await client.response()
            assert response.status == 200
            left.append(int(response.headers["anthropic-ratelimit-tokens-remaining"]))
        assert left[0] - left[1] == 26


@on_uvloop
async def test_what_no_upstream_worked_on_costs_no_tokens(door) -> None:
    secret = door.add("alice", tokens_per_minute=1000)
    async with keyed(door) as house:
        house.upstream.answering = lambda visit: visit.refuse(400)
        left = set()
        for _ in range(2):
            client = await house.client()
            client.send(post(headers=with_key(secret), stream=False))
            response = await client.response()
            assert response.status == 400
            left.add(response.headers["anthropic-ratelimit-tokens-remaining"])
        assert len(left) == 1


@on_uvloop
async def test_the_keys_name_is_shown_and_never_the_key(door) -> None:
    secret = door.add("alice", priority="background", weight=2.0)
    async with keyed(door) as house:
        client = await house.client()
        client.send(post(headers=with_key(secret) + "Antiphon-Priority: interactive\r\n"))
        visit = await house.visit()
        assert house.exchange().job.priority.name == "BACKGROUND"
        assert house.exchange().job.weight == 2.0
        admin = await house.client()
        admin.send(request(b"", method="GET", path="/admin/slots", headers=with_key(ADMIN)))
        (lease,) = (await admin.response()).json["up"]["leases"]
        assert lease["share"] == "alice"
        visit.answer()
        await client.response()
        record = await house.record()
        assert record["key"] == "alice"
        assert secret not in str(record)


@on_uvloop
async def test_a_strict_key_is_strict(door) -> None:
    strict, lenient = door.add("strict", strict=True), door.add("lenient")
    async with keyed(door) as house:
        house.upstream.answering = lambda visit: visit.answer()
        for secret, status in ((strict, 400), (lenient, 200)):
            client = await house.client()
            client.send(post(headers=with_key(secret), stream=False, top_k=5))  # the generic profile has none
            assert (await client.response()).status == status


@on_uvloop
async def test_the_upstreams_key_never_reaches_a_client(door) -> None:
    secret = door.add("alice")
    said = json.dumps({"error": {"message": f"Incorrect API key provided: {UPSTREAM_KEY}"}}).encode()
    async with keyed(door) as house:
        house.upstream.answering = lambda visit: visit.refuse(401, said)
        client = await house.client()
        client.send(post(headers=with_key(secret), stream=False))
        response = await client.response()
        assert response.status == 502
        assert UPSTREAM_KEY.encode() not in response.head + response.body
        assert UPSTREAM_KEY not in str(house.said.entries)


# --- models -------------------------------------------------------------------------------------------


class OneList:
    """As much of a gateway as the model list needs."""

    backend = property(lambda self: self)

    async def models(self) -> list[Model]:
        return [Model("qwen3"), Model("claude-qwen3"), Model("llama")]


async def get(path: str, key: Key) -> tuple[int, dict]:
    app = OrdinaryRoutes(OneList()).app
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b""}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await app({**scope, "antiphon.request_id": "req_1", "antiphon.who": Identity(key=key)}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("globs", "listed"),
    [
        ((), ["qwen3", "claude-qwen3", "llama"]),
        (("*qwen*",), ["qwen3", "claude-qwen3"]),
        (("llama",), ["llama"]),
        (("none",), []),
    ],
)
async def test_only_the_keys_models_are_listed(globs, listed) -> None:
    key = msgspec.structs.replace(make("alice", now=0)[1], models=globs)

    status, body = await get("/v1/models", key)
    assert [model["id"] for model in body["data"]] == listed
    for name in ("qwen3", "claude-qwen3", "llama"):
        status, body = await get(f"/v1/models/{name}", key)
        assert status == (200 if name in listed else 404)


async def test_admin_routes_look_for_themselves_who_was_let_in() -> None:
    status, body = await get("/admin/slots", make("alice", now=0)[1])
    assert (status, body["error"]["type"]) == (401, "authentication_error")
