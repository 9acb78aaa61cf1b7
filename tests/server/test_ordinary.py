"""The ordinary routes of a running gateway: models, metrics, and who holds which slot."""

from __future__ import annotations

import json
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.server.catalog import Model
from server.harness import Client, House, Response, Visit, on_both_loops, on_uvloop, post

SESSION = "x-claude-code-session-id: "


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
            client.send(post(f"w{number}", headers=f"{SESSION}b-secret\r\n"))
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
        assert lease == {"state": "held", "age_seconds": 4.0, "model": "m", "phase": "streaming"}
        ids = [house.exchange_of(f"w{number}").job.request_id for number in range(2)]
        assert [entry.pop("lease") for entry in up["queue"]] == ids
        shares = {entry.pop("share") for entry in up["queue"]}
        assert len(shares) == 1
        assert shares != {share}
        assert up["queue"] == [
            {"position": 0, "waited_seconds": 4.0, "expected_wait_seconds": 8.0},
            {"position": 1, "waited_seconds": 2.0, "expected_wait_seconds": 16.0},
        ]
        for secret in ("a-secret", "b-secret", "w0", "Hello"):
            assert secret not in page.body.decode()
        visit.finish()
        visit.done()
        await second.response()
        for client in waiting:
            (await house.visit()).answer()
            await client.response()


@on_uvloop
async def test_a_draining_slot_is_shown_without_an_exchange() -> None:
    async with House(slots=1, profile="ollama") as house:
        client, visit = await streaming(house)
        lease = house.exchange().job.request_id
        client.rst()
        await visit.closed.wait()
        await house.record()
        up = (await get(house, "/admin/slots")).json["up"]
        assert (up["held"], up["draining"]) == (0, 1)
        (shown,) = up["leases"]
        assert (shown["lease"], shown["state"]) == (lease, "draining")
        assert shown["model"] is shown["phase"] is shown["output_tokens"] is None
        # Nobody is left to cancel: the slot comes back by itself.
        assert (await get(house, f"/admin/slots/{lease}", method="DELETE")).status == 404
        house.up.slots.expire(float("inf"))


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


PATHS = ("/metrics", "/admin/slots", "/v1/models", "/v1/models/m", "/healthz")


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
        for method, path in asked:
            response = await get(house, path, method=method, headers=headers)
            assert (response.status, response.json["error"]["type"]) == (403, "permission_error")
            assert not [name for name in response.headers if name.startswith("access-control-")]
        assert house.stats == (1, 0, 0)
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


@pytest.mark.parametrize("path", [*PATHS, "/admin/slots/req_1"])
@on_uvloop
async def test_a_method_that_is_not_taken(path) -> None:
    async with House() as house:
        response = await get(house, path, method="PUT")
        assert (response.status, response.json["error"]["type"]) == (405, "invalid_request_error")
        assert set(response.headers["allow"].split(", ")) <= {"GET", "HEAD", "DELETE"}


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
