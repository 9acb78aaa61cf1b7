"""The ordinary routes of a running gateway: models, metrics, and who holds which slot."""

from __future__ import annotations

import json
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.server.admin_key import AdminKey
from antiphon.server.catalog import Model
from antiphon.server.entry import Entry
from antiphon.server.keys import Key, Keyring, make
from antiphon.server.keys_file import edit_rows
from antiphon.server.worker_peers import Question
from server.fleet_house import FleetHouse, model
from server.harness import Client, House, Response, Visit, on_both_loops, on_uvloop, post

SESSION = "x-claude-code-session-id: "
ADMIN_SECRET = "admin-secret-0123456789"
ADMIN = ("/admin", "/admin/slots", "/admin/upstreams")
DRAIN = "/admin/upstreams/a/drain"


async def get(
    house: House, path: str, *, method: str = "GET", headers: str = "Host: localhost\r\n"
) -> Response:
    client = await house.client()
    client.send(f"{method} {path} HTTP/1.1\r\n{headers}\r\n".encode())
    response = await client.response(head_only=method == "HEAD")
    client.fin()
    return response


async def streaming(house: House, tag: str = "hi", headers: str = "") -> tuple[Client, Visit]:
    client = await house.client()
    client.send(post(tag, headers=headers))
    visit = await house.visit()
    visit.head()
    visit.text("Hello")
    await client.event("content_block_delta")
    return client, visit


def list_models(house: House, *models: Model) -> None:
    """As if the upstream had just listed these."""
    catalog = house.backend._members["up"].catalog
    catalog.known = {model.id: model for model in models}
    catalog._asked_at = time.monotonic()
    catalog.version += 1


# --- Metrics ------------------------------------------------------------------------------------------


@on_both_loops
async def test_metrics() -> None:
    async with House(slots=2) as house:
        client, visit = await streaming(house)

        async def value(name: str, **labels: str) -> float | None:
            page = await get(house, "/metrics")
            assert page.status == 200
            assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            for family in text_string_to_metric_families(page.body.decode()):
                for sample in family.samples:
                    if sample.name == name and sample.labels.items() >= labels.items():
                        return sample.value
            return None

        assert await value("antiphon_requests_total") is None
        assert await value("antiphon_slots", state="held") == 1
        assert await value("antiphon_slots", state="free") == 1
        visit.finish()
        visit.done()
        await client.response()
        await house.record()
        assert await value("antiphon_requests_total", outcome="finished", upstream="up") == 1
        assert await value("antiphon_slots", state="held") == 0


# --- Slots --------------------------------------------------------------------------------------------


@on_uvloop
async def test_who_holds_a_slot_and_who_waits() -> None:
    async with House(slots=1) as house:
        house.up.slots._clock = house.clock  # one clock for all, as in production
        assert (await get(house, "/admin/slots")).json == {
            "up": {"slots": 1, "held": 0, "draining": 0, "free": 1, "waiting": 0, "leases": [], "queue": []}
        }
        client, first = await streaming(house, "first")
        house.tick(8)
        first.finish()
        first.done()
        await client.response()

        second, visit = await streaming(house, "second", f"{SESSION}a-secret\r\n")
        waiting = [await house.client(), await house.client()]
        for number, client in enumerate(waiting):
            client.send(post(f"waits-{number}", headers=f"{SESSION}b-secret\r\n"))
            await house.waiting(number + 1)
            house.clock.now += 2
        house.exchange_of("second")._attempt._lease.active = True
        page = await get(house, "/admin/slots")
        assert page.headers["content-type"] == "application/json"
        up = page.json["up"]
        assert [up[name] for name in ("slots", "held", "draining", "free", "waiting")] == [1, 1, 0, 0, 2]
        (lease,) = up["leases"]
        assert lease.pop("lease") == house.exchange_of("second").job.request_id
        assert lease.pop("output_tokens") > 0
        share = lease.pop("share")
        assert lease == {
            "state": "held",
            "key": None,
            "age_seconds": 4.0,
            "model": "m",
            "phase": "streaming",
        }
        ids = [house.exchange_of(f"waits-{number}").job.request_id for number in range(2)]
        assert [entry.pop("lease") for entry in up["queue"]] == ids
        shares = {entry.pop("share") for entry in up["queue"]}
        assert len(shares) == 1
        assert shares != {share}
        assert up["queue"] == [
            {"position": 0, "key": None, "waited_seconds": 4.0, "expected_wait_seconds": 8.0},
            {"position": 1, "key": None, "waited_seconds": 2.0, "expected_wait_seconds": 16.0},
        ]
        for secret in ("a-secret", "b-secret", "waits-0", "Hello"):
            assert secret not in page.body.decode()
        visit.finish()
        visit.done()
        await second.response()
        for client in waiting:
            (await house.visit()).answer()
            await client.response()


@on_uvloop
async def test_a_draining_slot_is_shown_and_freed_without_an_exchange(tmp_path) -> None:
    with edit_rows(tmp_path / "keys.json", Key) as rows:
        secret, key = make("alice", now=time.time())
        rows.append(key)
    async with House(slots=1, profile="ollama") as house:
        house.gateway.entry = Entry(Keyring(tmp_path / "keys.json"), admin=AdminKey(ADMIN_SECRET))
        house.up.slots._clock = house.clock
        operator = f"x-api-key: {ADMIN_SECRET}\r\n"
        client, visit = await streaming(house, "first", f"x-api-key: {secret}\r\n")
        lease = house.exchange().job.request_id
        house.clock.now += 3
        client.rst()
        await visit.closed.wait()
        await house.record()
        up = (await get(house, "/admin/slots", headers=operator)).json["up"]
        assert (up["held"], up["draining"]) == (0, 1)
        (shown,) = up["leases"]
        assert shown.pop("output_tokens") > 0
        assert shown == {
            "lease": lease,
            "state": "draining",
            "key": "alice",
            "share": "alice",
            "age_seconds": 3.0,
            "model": "m",
            "phase": "draining",
        }
        heir = await house.client()
        heir.send(post("heir", headers=f"x-api-key: {secret}\r\n"))
        await house.waiting(1)
        cancelled = await get(house, f"/admin/slots/{lease}", method="DELETE", headers=operator)
        assert (cancelled.status, cancelled.json) == (200, {"cancelled": lease})
        (await house.visit()).answer()  # there is a slot, and at once
        assert (await heir.response()).status == 200
        again = await get(house, f"/admin/slots/{lease}", method="DELETE", headers=operator)
        assert again.status == 404


@on_uvloop
async def test_another_worker_frees_what_drains_here() -> None:
    async with House(slots=1, profile="ollama") as house:
        client, visit = await streaming(house)
        lease = house.exchange().job.request_id
        client.rst()
        await visit.closed.wait()
        await house.record()
        assert house.stats == (0, 1, 0)
        answer = house.gateway.ordinary.answer
        assert [answer(Question(cancel=lease)) for _ in range(2)] == [b"yes", b"no"]
        assert house.stats == (0, 0, 0)


@on_uvloop
async def test_what_drains_at_one_that_leaves_is_freed_too() -> None:
    async with FleetHouse(profile="ollama") as house:
        client = await house.ask(model="only-a", stream=False)
        visit = await house.visit()
        lease = house.exchange().job.request_id
        client.rst()
        await visit.closed.wait()
        await house.record()
        await house.reload({"b": {}})
        (shown,) = (await get(house, "/admin/slots")).json["a"]["leases"]
        assert (shown["state"], shown["model"], shown["output_tokens"]) == ("draining", "only-a", 0)
        assert (await get(house, f"/admin/slots/{lease}", method="DELETE")).status == 200
        house.tick(1)
        assert house.backend._leaving == []


@on_uvloop
async def test_a_request_that_runs_on_elsewhere_is_ended_before_what_drains_of_it_is_freed() -> None:
    async with FleetHouse(profile="ollama", slots=1) as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        lease = house.exchange().job.request_id
        visit.head()
        visit.send(b"data: {nonsense\n\n")
        other = await house.visit()
        rows = (await get(house, "/admin/slots")).json
        for at, phase in ((visit.at, "draining"), (other.at, "waiting")):
            (shown,) = rows[at]["leases"]
            assert (shown["lease"], shown["phase"], shown["model"]) == (lease, phase, "m")
        path = f"/admin/slots/{lease}"
        assert (await get(house, path, method="DELETE")).status == 200
        assert (await client.response()).status == 500
        # Both may still be working there: it takes a second word to free their slots.
        assert {house.slots_of(name) for name in "ab"} == {(0, 1, 0)}
        assert (await get(house, path, method="DELETE")).status == 200
        assert {house.slots_of(name) for name in "ab"} == {(0, 0, 0)}
        assert (await get(house, path, method="DELETE")).status == 404


@on_both_loops
async def test_an_operator_cancels_a_stream() -> None:
    async with House(slots=1) as house:
        client, visit = await streaming(house, "first")
        heir = await house.ask("heir")
        await house.waiting(1)
        lease = (await get(house, "/admin/slots")).json["up"]["leases"][0]["lease"]
        cancelled = await get(house, f"/admin/slots/{lease}", method="DELETE")
        assert (cancelled.status, cancelled.json) == (200, {"cancelled": lease})
        response = await client.response()
        assert response.complete
        assert response.kinds[-1] == "error"
        assert response.error["request_id"] == response.headers["request-id"] == lease
        assert "operator" in response.error["error"]["message"]
        await visit.closed.wait()
        (await house.visit()).answer("mine now")
        assert (await heir.response()).text == "mine now"
        causes = {record["request_id"]: record["cause"] for record in house.records_written}
        assert causes[lease] == "operator"


@on_uvloop
async def test_an_operator_cancels_one_who_waits() -> None:
    async with House(slots=1) as house:
        client, visit = await streaming(house, "first")
        waits = await house.ask("waits", stream=False)
        await house.waiting(1)
        ticket = (await get(house, "/admin/slots")).json["up"]["queue"][0]["lease"]
        assert (await get(house, f"/admin/slots/{ticket}", method="DELETE")).status == 200
        response = await waits.response()
        assert (response.status, response.json["error"]["type"]) == (500, "api_error")
        assert house.stats == (1, 0, 0)
        visit.finish()
        visit.done()
        assert (await client.response()).kinds[-1] == "message_stop"


@pytest.mark.parametrize("lease", ["req_nobody", "..%2F..", "%00", "x" * 5000])
@on_uvloop
async def test_no_such_lease(lease) -> None:
    async with House() as house:
        response = await get(house, f"/admin/slots/{lease}", method="DELETE")
        assert (response.status, response.json["error"]["type"]) == (404, "not_found_error")
        assert response.json["request_id"] == response.headers["request-id"]


@on_uvloop
async def test_whose_key_holds_a_slot_and_whose_waits(tmp_path) -> None:
    secrets = {}
    with edit_rows(tmp_path / "keys.json", Key) as rows:
        for name in ("alice", "bob"):
            secrets[name], key = make(name, now=time.time())
            rows.append(key)
    async with House(slots=1) as house:
        house.gateway.entry = Entry(Keyring(tmp_path / "keys.json"), admin=AdminKey(ADMIN_SECRET))
        first, visit = await streaming(house, headers=f"x-api-key: {secrets['alice']}\r\n")
        second = await house.client()
        second.send(post("waits", headers=f"x-api-key: {secrets['bob']}\r\n"))
        await house.waiting(1)
        page = await get(house, "/admin/slots", headers=f"x-api-key: {ADMIN_SECRET}\r\n")
        up = page.json["up"]
        assert [entry["key"] for entry in (*up["leases"], *up["queue"])] == ["alice", "bob"]
        assert not any(secret in page.body.decode() for secret in secrets.values())
        visit.finish()
        visit.done()
        await first.response()
        (await house.visit()).answer()
        await second.response()


# --- Upstreams ------------------------------------------------------------------------------------------

LOCAL = "Host: localhost\r\nContent-Type: application/json\r\n"


@on_uvloop
async def test_what_there_is_to_know_of_the_upstreams() -> None:
    kinds = {"a": {"kind": "vllm", "slots": 3, "api_key": "UPSTREAM-KEY-9f3"}, "b": {"kind": "ollama"}}
    async with FleetHouse(kinds=kinds, models=(model("m", "a", "b"), model("only-a", "a"))) as house:
        catalog = house.backend._members["a"].catalog
        catalog.known, catalog._asked_at = {"x": Model("x"), "y": Model("y")}, time.monotonic()
        catalog.version += 1
        house["b"].health.failed("connect", house.clock.now)
        client = await house.ask(model="only-a", stream=False)
        visit = await house.visit()
        page = await get(house, "/admin/upstreams")
        assert page.headers["content-type"] == "application/json"
        a, b = page.json["upstreams"]
        assert {name: a[name] for name in ("name", "kind", "leaving", "models")} == {
            "name": "a",
            "kind": "vllm",
            "leaving": False,
            "models": ["x", "y"],
        }
        assert a["slots"] == {"slots": 3, "held": 1, "draining": 0, "free": 2, "waiting": 0}
        assert (b["kind"], b["models"]) == ("ollama", None)
        health = b["health"]
        assert (health["state"], health["gone"], health["failures"]) == ("closed", True, {"connect": 1})
        for hidden in ("127.0.0.1", str(house.script("a").port), "UPSTREAM-KEY-9f3", "http"):
            assert hidden not in page.body.decode()

        await house.reload({"b": kinds["b"]})
        rows = (await get(house, "/admin/upstreams")).json["upstreams"]
        assert [(row["name"], row["leaving"]) for row in rows] == [("b", False), ("a", True)]
        slots = (await get(house, "/admin/slots")).json
        assert slots["a"]["leases"][0]["state"] == "held"  # who holds it can be cancelled still
        visit.answer()
        await client.response()


@on_uvloop
async def test_the_slots_of_those_that_leave_beside_those_of_their_successor() -> None:
    async with FleetHouse() as house:
        running = []
        for _ in range(2):
            client = await house.ask(model="only-a", stream=False)
            running.append((client, await house.visit()))
            spare = await house.spare("a")
            await house.reload({"a": {"base_url": f"http://127.0.0.1:{spare.port}/v1"}, "b": {}})
        slots = (await get(house, "/admin/slots")).json
        held = {name: each["held"] for name, each in slots.items()}
        assert held == {"a": 0, "b": 0, "a (leaving)": 1, "a (leaving) (leaving)": 1}
        for client, visit in running:
            visit.answer()
            await client.response()


@on_uvloop
async def test_the_whole_gateway_at_a_glance() -> None:
    async with FleetHouse() as house:
        client = await house.ask(stream=False)
        visit = await house.visit()
        now = (await get(house, "/admin")).json
        assert (now["draining"], now["exchanges"]) == (False, 1)
        assert now["retries"] == {"balance": 100.0, "spent": 0, "refused": 0}
        assert [each["name"] for each in now["upstreams"]] == ["a", "b"]
        visit.answer()
        await client.response()


@on_both_loops
async def test_an_operator_drains_an_upstream_and_undoes_it() -> None:
    async with FleetHouse() as house:
        house.sayings = (*house.sayings, "upstream_drained", "upstream_undrained")
        running = await house.ask(model="only-a", stream=False)
        visit = await house.visit()
        for _ in range(2):  # once or twice
            drained = await get(house, "/admin/upstreams/a/drain", method="POST", headers=LOCAL)
            assert (drained.status, drained.json["name"]) == (200, "a")
            assert drained.json["health"]["drained"] is True
        for _ in range(3):
            client = await house.ask(stream=False)
            other = await house.visit()
            assert other.at == "b"
            other.answer()
            await client.response()
        refused = await house.ask(model="only-a", stream=False)
        assert (await refused.response()).status == 529
        visit.answer("was there before")
        assert (await running.response()).status == 200
        for _ in range(2):
            back = await get(house, "/admin/upstreams/a/drain", method="DELETE")
            assert (back.status, back.json["health"]["drained"]) == (200, False)
        client = await house.ask(model="only-a", stream=False)
        (await house.visit()).answer()
        assert (await client.response()).status == 200
        said = [line["upstream"] for line in house.said.entries if line["event"] == "upstream_drained"]
        assert said == ["a", "a"]


@on_uvloop
async def test_who_waits_at_a_drained_upstream_goes_elsewhere_or_is_told_so() -> None:
    async with FleetHouse(slots=1) as house:
        house.sayings = (*house.sayings, "upstream_drained")
        held = await house.hold("a", "b")
        only = await house.ask(model="only-a", stream=False)
        await house.waiting_at("a", 1)
        either = await house.ask(stream=False)
        await house.waiting_at("b", 1)
        await get(house, "/admin/upstreams/a/drain", method="POST", headers=LOCAL)
        held["a"][0].answer()
        assert (await only.response()).status == 529
        assert house.slots_of("a") == (0, 0, 0)
        held["b"][0].answer()
        visit = await house.visit()
        assert visit.at == "b"
        visit.answer()
        assert (await either.response()).status == 200


@pytest.mark.parametrize("name", ["nobody", "..%2F..", "%00", "x" * 3000, "A"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
@on_uvloop
async def test_no_such_upstream(method, name) -> None:
    async with FleetHouse() as house:
        response = await get(house, f"/admin/upstreams/{name}/drain", method=method, headers=LOCAL)
        assert (response.status, response.json["error"]["type"]) == (404, "not_found_error")
        assert response.json["request_id"] == response.headers["request-id"]


@on_uvloop
async def test_only_the_admin_key_opens_the_admin_routes(tmp_path) -> None:
    with edit_rows(tmp_path / "keys.json", Key) as rows:
        secret, key = make("alice", now=time.time())
        rows.append(key)
    async with FleetHouse() as house:
        house.sayings = (*house.sayings, "upstream_drained")
        house.gateway.entry = Entry(Keyring(tmp_path / "keys.json"), admin=AdminKey(ADMIN_SECRET))
        asked = [("GET", path) for path in ADMIN] + [("POST", DRAIN), ("DELETE", DRAIN)]
        for method, path in asked:
            for sent in ("", f"x-api-key: {secret}\r\n"):
                for way in (path, f"/llm/..{path}", f"/%61{path[2:]}"):
                    refused = await get(house, way, method=method, headers=LOCAL + sent)
                    assert refused.status in (401, 404), (method, way)
                    assert refused.json["type"] == "error"
        assert not house["a"].health.drained
        drained = await get(house, DRAIN, method="POST", headers=f"x-api-key: {ADMIN_SECRET}\r\n")
        assert drained.status == 200
        assert house["a"].health.drained


PATHS = ("/metrics", *ADMIN, "/v1/models", "/v1/models/m", "/healthz")


@pytest.mark.parametrize(
    "headers",
    [
        "Host: example.com\r\n",
        "Host: localhost.example.com\r\n",
        "Host: localhost\r\nOrigin: http://localhost\r\n",
        "Host: localhost\r\nOrigin: null\r\n",
    ],
)
@on_uvloop
async def test_a_web_page_reads_and_cancels_nothing(headers) -> None:
    async with House() as house:
        client, visit = await streaming(house)
        lease = house.exchange().job.request_id
        asked = [("GET", path) for path in PATHS] + [("DELETE", f"/admin/slots/{lease}")]
        asked += [(method, "/admin/upstreams/up/drain") for method in ("POST", "DELETE")]
        for method, path in asked:
            response = await get(house, path, method=method, headers=headers)
            assert (response.status, response.json["error"]["type"]) == (403, "permission_error")
            assert not [name for name in response.headers if name.startswith("access-control-")]
        assert house.stats == (1, 0, 0)
        assert not house.up.health.drained
        visit.finish()
        visit.done()
        assert (await client.response()).kinds[-1] == "message_stop"


# --- Models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/llm"])
@on_uvloop
async def test_models_in_pages(prefix) -> None:
    async with House() as house:
        list_models(house, Model("one"), Model("org/two", 4096))
        first = (await get(house, f"{prefix}/v1/models?limit=3")).json
        assert [model["id"] for model in first["data"]] == ["one", "org/two", "claude-one"]
        assert first["has_more"] is True
        rest = (await get(house, f"{prefix}/v1/models?limit=3&after_id={first['last_id']}")).json
        assert [model["id"] for model in rest["data"]] == ["claude-org/two"]
        assert rest["has_more"] is False


@pytest.mark.parametrize(
    "limit", ["0", "1001", "-1", "1.5", "many", "", "%20", "9" * 5000, "00001", "%C2%B2", "%D9%A3"]
)
@on_uvloop
async def test_a_limit_that_is_none(limit) -> None:
    async with House() as house:
        list_models(house, Model("one"))
        client = await house.client()
        client.send(f"GET /v1/models?limit={limit} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("latin-1"))
        response = await client.response()
        assert (response.status, response.json["error"]["type"]) == (400, "invalid_request_error")
        assert response.status == 400 and response.json["error"]["message"].startswith(
            ("limit:", "the request")
        )


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("one", "one"),
        ("org/two", "org/two"),
        ("org%2Ftwo", "org/two"),
        ("claude-org/two", "claude-org/two"),
        ("org/two/", "org/two"),
    ],
)
@on_uvloop
async def test_one_model(asked, name) -> None:
    async with House() as house:
        list_models(house, Model("one"), Model("org/two", 4096))
        response = await get(house, f"/v1/models/{asked}")
        assert (response.status, response.json["id"]) == (200, name)
        assert response.json.get("max_input_tokens") == (4096 if "two" in name else None)


@on_uvloop
async def test_a_model_that_is_not_there() -> None:
    async with House() as house:
        list_models(house, Model("one"))
        response = await get(house, "/v1/models/" + "x" * 3000 + "%1b[31m")
        assert (response.status, response.json["error"]["type"]) == (404, "not_found_error")
        said = response.json["error"]["message"]
        assert said.startswith("model: xxx")
        assert len(said) < 300
        assert said.isprintable()


# --- Other paths and methods --------------------------------------------------------------------------


@on_uvloop
async def test_a_path_that_is_not_there() -> None:
    async with House() as house:
        response = await get(house, "/v2/anything")
        assert (response.status, response.json["error"]["type"]) == (404, "not_found_error")
        assert response.json["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize("path", [*PATHS, "/admin/slots/req_1", DRAIN])
@on_uvloop
async def test_a_method_that_is_not_taken(path) -> None:
    async with House() as house:
        response = await get(house, path, method="PUT")
        assert (response.status, response.json["error"]["type"]) == (405, "invalid_request_error")
        assert set(response.headers["allow"].split(", ")) <= {"GET", "HEAD", "DELETE", "POST"}


@pytest.mark.parametrize("path", ["/", "/api/hello", "/healthz", "/v1/models", "/metrics"])
@on_uvloop
async def test_head(path) -> None:
    async with House() as house:
        list_models(house, Model("one"))
        assert (await get(house, path, method="HEAD")).status == 200


# --- What answers say of their way --------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@on_uvloop
async def test_answers_name_their_upstream_and_their_wait(stream) -> None:
    async with House(slots=1) as house:
        first = await house.ask("first", stream=stream)
        visit = await house.visit()
        second = await house.ask("second", stream=stream)
        await house.waiting(1)
        house.tick(1.5)
        visit.answer()
        (await house.visit()).answer()
        for client, waited in ((first, "0"), (second, "1500")):
            response = await client.response()
            assert response.headers["antiphon-upstream"] == "up"
            assert response.headers["antiphon-queue-ms"] == waited
            assert str(house.upstream.port) not in json.dumps(response.headers)


# --- Fair shares, through exchanges -------------------------------------------------------------------


async def ask_as(house: House, session: str, tag: str, headers: str = "", **fields) -> Client:
    client = await house.client()
    client.send(post(tag, headers=f"{SESSION}{session}\r\n{headers}", **fields))
    return client


@on_both_loops
async def test_a_session_that_floods_does_not_push_another_back() -> None:
    async with House(slots=2) as house:
        flood = [await ask_as(house, "flood", f"flood {number}") for number in range(8)]
        visits = [await house.visit(), await house.visit()]
        await house.waiting(6)
        other = await ask_as(house, "other", "other")
        await house.waiting(7)
        visits[0].answer()
        visit = await house.visit()
        assert visit.tag == "other"
        visit.answer("served")
        assert (await other.response()).text == "served"
        visits[1].answer()
        for _ in range(6):
            (await house.visit()).answer()
        for client in flood:
            assert (await client.response()).kinds[-1] == "message_stop"


@on_uvloop
async def test_inside_a_session_background_waits_longer() -> None:
    async with House(slots=1) as house:
        clients = [await ask_as(house, "s", "first")]
        visit = await house.visit()
        clients.append(await ask_as(house, "s", "title", "antiphon-priority: background\r\n"))
        await house.waiting(1)
        clients.append(await ask_as(house, "s", "main"))
        await house.waiting(2)
        order = []
        for _ in range(2):
            visit.answer()
            visit = await house.visit()
            order.append(visit.tag)
        visit.answer()
        assert order == ["main", "title"]
        for client in clients:
            assert (await client.response()).status == 200


@pytest.mark.parametrize("stream", [True, False])
@on_uvloop
async def test_a_wait_that_would_outlast_its_client_is_refused_at_once(stream) -> None:
    async with House(slots=1) as house:
        house.up.slots._clock = house.clock
        teaches = await house.ask("teaches", stream=False)
        visit = await house.visit()
        house.tick(100)
        visit.answer()
        await teaches.response()

        holds = await house.ask("holds")
        visit = await house.visit()
        hasty = await ask_as(house, "s", "hasty", "X-Stainless-Timeout: 99\r\n", stream=stream)
        response = await hasty.response()
        assert (response.status, response.json["error"]["type"]) == (529, "overloaded_error")
        assert response.headers["retry-after"] == "100"
        assert house.stats == (1, 0, 0)
        patient = await ask_as(house, "s", "patient", "X-Stainless-Timeout: 100\r\n", stream=stream)
        await house.waiting(1)
        visit.answer()
        await holds.response()
        (await house.visit()).answer()
        assert (await patient.response()).status == 200
        assert sorted(record["cause"] for record in house.records_written) == ["finished"] * 3 + ["overload"]


@pytest.mark.parametrize("stream", [True, False])
@on_both_loops
async def test_a_full_queue_gives_up_the_newest_of_the_longest_line(stream) -> None:
    async with House(slots=1, limits={"queue_length": 2}) as house:
        await ask_as(house, "flood", "holds")
        visit = await house.visit()
        flood = []
        for number in range(2):
            flood.append(await ask_as(house, "flood", f"flood {number}", stream=stream))
            await house.waiting(number + 1)
        other = await ask_as(house, "other", "other")
        displaced = await flood[1].response()
        assert (displaced.status, displaced.json["error"]["type"]) == (529, "overloaded_error")
        assert int(displaced.headers["retry-after"]) >= 1
        assert house.stats == (1, 0, 2)
        visit.answer()
        visit = await house.visit()
        assert visit.tag == "other"
        visit.answer()
        assert (await other.response()).kinds[-1] == "message_stop"
        (await house.visit()).answer()
        assert (await flood[0].response()).status == 200


@on_uvloop
async def test_a_displaced_stream_that_had_begun_says_so_in_its_stream() -> None:
    async with House(slots=1, limits={"queue_length": 2}) as house:
        await ask_as(house, "flood", "holds")
        visit = await house.visit()
        flood = []
        for number in range(2):
            flood.append(await ask_as(house, "flood", f"flood {number}"))
            await house.waiting(number + 1)
        house.tick(12)
        await flood[1].event("message_start")
        other = await ask_as(house, "other", "other")
        response = await flood[1].response()
        assert response.kinds == ["message_start", "error"]
        assert response.error["error"]["type"] == "overloaded_error"
        visit.answer()
        for client in (other, flood[0]):
            (await house.visit()).answer()
            assert (await client.response()).kinds[-1] == "message_stop"
