"""Every metric is moved by something, described in the docs, bounded in its labels, and free of content."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.parser import text_string_to_metric_families

from antiphon.observe.gauges import Sources
from antiphon.observe.metrics import CONTENT_TYPE, KEPT, KEYS, MODELS, OTHER, Metrics
from antiphon.observe.record import ExchangeRecord
from antiphon.server.admission import Slots
from antiphon.server.entry import Entry
from antiphon.server.health import Health, Rules
from antiphon.server.keys import Key, Keyring, make
from antiphon.server.keys_file import edit_rows
from server.fleet_house import FleetHouse, model
from server.harness import (
    DONE,
    SSE_HEAD,
    Clock,
    House,
    Visit,
    chunk,
    frame,
    on_both_loops,
    on_uvloop,
    post,
    request,
    until,
)

ROOT = Path(__file__).parents[2]


class Upstream:
    def __init__(self, slots: int, name: str = "up") -> None:
        self.name = name
        self.slots = Slots(name, slots)
        self.health = Health(Rules(consecutive=2), random=lambda: 1.0)


def metrics_of(*models: str, **upstreams: Upstream) -> Metrics:
    return Metrics(Sources(known_models=lambda: set(models), upstreams=lambda: upstreams, clock=lambda: 50.0))


def record(**fields) -> ExchangeRecord:
    """An exchange that did everything right, on the clock 100.0."""
    whole = {
        "request_id": "req_1",
        "model": "m",
        "upstream": "up",
        "streaming": True,
        "began": 100.0,
        "queued": 2.0,
        "sent": 102.5,
        "first_token": 103.0,
        "ended": 107.0,
        "phase": "streaming",
        "cause": "finished",
        "status": 200,
        "input_tokens": 30,
        "output_tokens": 5,
        "cached_tokens": 7,
        "thinking_tokens": 2,
    }
    return ExchangeRecord(**{**whole, **fields})


NO_ANSWER = {
    "sent": None,
    "first_token": None,
    "output_tokens": 0,
    "input_tokens": 0,
    "cached_tokens": 0,
    "thinking_tokens": 0,
}


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if "le" not in sample.labels
    }


def moved(metrics: Metrics, before: dict) -> dict:
    """What an observation changed: metric name and labels to the difference."""
    after = samples(metrics)
    return {
        (name, *(value for _, value in labels)): after[name, labels] - before.get((name, labels), 0.0)
        for name, labels in after
        if after[name, labels] != before.get((name, labels))
    }


def observed(given: ExchangeRecord) -> dict:
    metrics = metrics_of("m")
    before = samples(metrics)
    metrics.observe(given)
    return moved(metrics, before)


# --- What moves ---------------------------------------------------------------------------------------


def test_an_exchange_that_finished() -> None:
    # Labels stand in the order of their names.
    assert observed(record()) == {
        ("antiphon_requests_total", "m", "finished", "messages", "up"): 1,
        ("antiphon_queue_wait_seconds_count", "up"): 1,
        ("antiphon_queue_wait_seconds_sum", "up"): 2,
        ("antiphon_time_to_first_token_seconds_count", "m", "up"): 1,
        ("antiphon_time_to_first_token_seconds_sum", "m", "up"): 3,
        ("antiphon_request_duration_seconds_count", "m", "up"): 1,
        ("antiphon_request_duration_seconds_sum", "m", "up"): 7,
        ("antiphon_inter_token_seconds_count", "m", "up"): 1,
        ("antiphon_inter_token_seconds_sum", "m", "up"): 1,  # four gaps in four seconds
        ("antiphon_tokens_total", "input", "m", "up"): 30,
        ("antiphon_tokens_total", "cached", "m", "up"): 7,
        ("antiphon_tokens_total", "output", "m", "up"): 5,
        ("antiphon_tokens_total", "thinking", "m", "up"): 2,
    }


def test_an_exchange_that_was_given_up_in_the_queue() -> None:
    assert observed(record(phase="queued", cause="client", queued=7.0, **NO_ANSWER)) == {
        ("antiphon_requests_total", "m", "client", "messages", "up"): 1,
        ("antiphon_queue_wait_seconds_count", "up"): 1,
        ("antiphon_queue_wait_seconds_sum", "up"): 7,
        ("antiphon_request_duration_seconds_count", "m", "up"): 1,
        ("antiphon_request_duration_seconds_sum", "m", "up"): 7,
        ("antiphon_cancellations_total", "client", "queued"): 1,
    }


def test_a_request_that_was_turned_away_at_once_has_no_times() -> None:
    assert observed(record(phase="queued", cause="overload", queued=None, ended=100.0, **NO_ANSWER)) == {
        ("antiphon_requests_total", "m", "overload", "messages", "up"): 1,
        ("antiphon_cancellations_total", "overload", "queued"): 1,
    }


@pytest.mark.parametrize("end", ["queue_timeout", "patience", "client", "operator"])
@on_uvloop
async def test_who_leaves_the_queue_without_a_slot_has_waited(end) -> None:
    async with House(slots=1, limits={"queue_timeout": 30}) as house:
        metrics = house.gateway.metrics
        holder = await house.ask("holder")
        visit = await house.visit()
        wait = 40.0 if end == "queue_timeout" else 20.0
        client = await house.client()
        said = "X-Stainless-Timeout: 19\r\n" if end == "patience" else ""
        client.send(post("waits", headers=said, stream=False))
        await house.waiting(1)
        before = samples(metrics)
        house.clock.now += wait
        if end in ("queue_timeout", "patience"):
            house.tick()
        elif end == "client":
            client.rst()
        else:
            house.gateway.cancel(house.exchange_of("waits").job.request_id)
        await until(lambda: len(house.gateway.live) == 1)
        change = moved(metrics, before)
        assert change["antiphon_queue_wait_seconds_count", "up"] == 1
        assert change["antiphon_queue_wait_seconds_sum", "up"] == wait
        assert change["antiphon_request_duration_seconds_sum", "other", "up"] == wait
        assert house.records_written[-1]["queue_ms"] == wait * 1000
        visit.answer()
        await holder.response()


@on_uvloop
async def test_who_is_turned_away_at_once_has_not_waited() -> None:
    """Before its body is read, and where only a reader of all of it can tell."""
    async with House(slots=1, limits={"queue_length": 1}) as house:
        metrics = house.gateway.metrics
        clients = [await house.ask("holder")]
        visit = await house.visit()
        clients.append(await house.ask("waits"))
        await house.waiting(1)
        before = samples(metrics)
        for limit in (house.gateway.limits.heavy_body, 0):  # 0: every body is too large for a first look
            house.gateway.limits = structs.replace(house.gateway.limits, heavy_body=limit or 1)
            client = await house.ask("refused", stream=False)
            assert (await client.response()).status == 529
        await until(lambda: len(house.gateway.live) == 2)
        change = moved(metrics, before)
        assert change["antiphon_requests_total", "other", "overload", "messages", "up"] == 2
        assert not [name for name, *_ in change if "queue_wait" in name or "duration" in name]
        assert not any("queue_ms" in line for line in house.records_written)
        for client in clients:
            visit.answer()
            await client.response()
            if client is clients[0]:
                visit = await house.visit()


@on_uvloop
async def test_who_gave_way_in_a_full_queue_has_waited() -> None:
    async with House(slots=1, limits={"queue_length": 2}) as house:
        clients = []
        for number in range(3):
            client = await house.client()
            client.send(post(f"{number}", headers="x-api-key: flood\r\n"))
            clients.append(client)
            await until(lambda count=number: len(house.gateway.live) == count + 1)
        await house.waiting(2)
        house.clock.now += 5.0
        clients.append(await house.ask("other"))
        assert (await clients.pop(2).response()).status == 529
        assert (await record_of(house, "overload"))["queue_ms"] == 5000.0
        for _ in clients:
            (await house.visit()).answer()
        for client in clients:
            await client.response()


async def record_of(house: House, cause: str) -> dict:
    """The one line of a request that ended so."""
    await until(lambda: any(line["cause"] == cause for line in house.records_written))
    (line,) = (line for line in house.records_written if line["cause"] == cause)
    return line


def test_what_was_mended_estimated_and_lost() -> None:
    plain = observed(record())
    odd = observed(
        record(
            estimated=("input", "output"),
            counts=Counter(late_fragment=2, call_split=1),
            degraded=("top_k", "tools.0"),
            ignored=("metadata",),
        )
    )
    assert {key: odd[key] for key in odd if key not in plain} == {
        ("antiphon_estimated_usage_total", "input", "up"): 1,
        ("antiphon_estimated_usage_total", "output", "up"): 1,
        ("antiphon_stream_oddities_total", "late_fragment", "up"): 2,
        ("antiphon_stream_oddities_total", "call_split", "up"): 1,
        ("antiphon_request_losses_total", "degraded", "up"): 1,
        ("antiphon_request_losses_total", "ignored", "up"): 1,
    }


def test_the_surface_is_the_clients() -> None:
    assert observed(record(surface="openai"))["antiphon_requests_total", "m", "finished", "openai", "up"] == 1


def test_further_attempts_by_their_reason() -> None:
    plain = observed(record())
    tried = observed(record(retries=3, further=Counter(elsewhere=2, overloaded=1)))
    assert {key: tried[key] for key in tried if key not in plain} == {
        ("antiphon_attempts_total", "elsewhere"): 2,
        ("antiphon_attempts_total", "overloaded"): 1,
    }


def test_what_was_cached_where_the_upstream_tells_it() -> None:
    plain = observed(record())
    told = observed(record(tells_cached=True, written_tokens=13, expected_cached=0.5))
    assert {key: told[key] for key in told if key not in plain} == {
        ("antiphon_tokens_total", "written", "m", "up"): 13,
        ("antiphon_prompt_tokens_total", "yes", "up"): 7,
        ("antiphon_prompt_tokens_total", "no", "up"): 43,
        ("antiphon_prompt_tokens_expected_cached_total", "up"): 25,
    }


def test_what_a_key_uses_and_what_it_is_refused() -> None:
    plain = observed(record())
    keyed = observed(record(key="alice"))
    assert {key: keyed[key] for key in keyed if key not in plain} == {
        ("antiphon_key_requests_total", "alice"): 1,
        ("antiphon_key_tokens_total", "alice", "input"): 30,
        ("antiphon_key_tokens_total", "alice", "cached"): 7,
        ("antiphon_key_tokens_total", "alice", "output"): 5,
        ("antiphon_key_tokens_total", "alice", "thinking"): 2,
    }
    metrics = metrics_of("m")
    before = samples(metrics)
    metrics.limited("alice", "tokens")
    assert moved(metrics, before) == {("antiphon_key_refusals_total", "alice", "tokens"): 1}


@pytest.mark.parametrize("given", [{"output_tokens": 1}, {"cause": "client"}, {"first_token": None}])
def test_no_pace_where_there_is_none(given) -> None:
    assert not [key for key in observed(record(**given)) if key[0].startswith("antiphon_inter_token")]


def test_slots_are_read_from_the_leases() -> None:
    up = Upstream(3)
    metrics = metrics_of("m", up=up)
    leases = []
    for number in range(5):
        up.slots.request(f"req_{number}", leases.append)
    leases[0].drain(None)
    values = {
        key[0] + "".join(value for _, value in key[1]): value for key, value in samples(metrics).items()
    }
    assert values["antiphon_slotsheldup"] == 2
    assert values["antiphon_slotsdrainingup"] == 1
    assert values["antiphon_slotsfreeup"] == 0
    assert values["antiphon_slots_limitup"] == 3
    assert values["antiphon_queue_lengthup"] == 2
    up.slots.set_slots(1)  # fewer than are used: never a negative gauge
    assert {value for (name, _), value in samples(metrics).items() if name == "antiphon_slots"} == {2, 1, 0}


def test_the_servers_own_report_beside_our_count() -> None:
    up, silent = Upstream(4), Upstream(4)
    metrics = metrics_of("m", up=up, silent=silent)
    leases = []
    for number in range(2):
        up.slots.request(f"req_{number}", leases.append)
    before = samples(metrics)
    assert not [key for key in before if "report" in key[0]]  # nobody asked it yet
    for lease in leases:
        lease.active = True
    for busy in (2, 3, 3, 1):
        up.slots.settle(busy)
    assert moved(metrics, before) == {
        ("antiphon_slots_reported_busy", "up"): 1,
        ("antiphon_slots_report_disagreements_total", "busier", "up"): 2,
        ("antiphon_slots_report_disagreements_total", "idler", "up"): 1,
    }


def test_what_never_became_an_exchange() -> None:
    metrics = metrics_of("m")
    before = samples(metrics)
    metrics.refused("invalid_request_error", "messages")
    metrics.refused("invalid_request_error", "count_tokens")
    metrics.counted("up", exact=True)
    metrics.counted("up", exact=False)
    metrics.counted("up", exact=False)
    assert moved(metrics, before) == {
        ("antiphon_requests_refused_total", "messages", "invalid_request_error"): 1,
        ("antiphon_requests_refused_total", "count_tokens", "invalid_request_error"): 1,
        ("antiphon_token_counts_total", "exact", "up"): 1,
        ("antiphon_token_counts_total", "estimate", "up"): 2,
    }


@on_both_loops
async def test_from_a_clients_leaving_to_the_close_of_its_upstream() -> None:
    async with House(slots=2) as house:
        client = await house.ask()
        visit = await house.visit()
        visit.head()
        visit.text("Hi")
        await client.event("content_block_delta")
        queued = [await house.ask("fills the slot"), await house.ask("waits")]
        await house.visit()
        await house.waiting(1)

        def closings() -> float:
            return samples(house.gateway.metrics)["antiphon_client_gone_to_upstream_closed_seconds_count", ()]

        assert closings() == 0
        queued[1].rst()  # has no upstream connection to close
        await house.waiting(0)
        client.rst()
        await visit.closed.wait()
        await until(lambda: closings() == 1)
        queued[0].rst()
        await until(lambda: closings() == 2)


@on_uvloop
async def test_an_operators_cancel_is_no_clients_leaving() -> None:
    async with House() as house:
        client = await house.ask()
        visit = await house.visit()
        house.exchange().close("operator")
        await visit.closed.wait()
        await client.response()
        await house.check()
        counts = samples(house.gateway.metrics)
        assert counts["antiphon_client_gone_to_upstream_closed_seconds_count", ()] == 0


@on_uvloop
async def test_the_ticker_measures_the_loop() -> None:
    async with House(limits={"tick": 0.01}) as house:
        await until(lambda: samples(house.gateway.metrics)["antiphon_loop_lag_seconds_count", ()] > 1)


# --- In a whole gateway -------------------------------------------------------------------------------


def counted(house: House, name: str) -> dict[tuple[str, ...], float]:
    """The samples of this name by the values of their labels, in the order of the labels' names."""
    found = samples(house.gateway.metrics).items()
    return {tuple(value for _, value in labels): each for (known, labels), each in found if known == name}


@on_uvloop
async def test_an_attempt_elsewhere_and_a_fallback_are_counted_by_their_reasons() -> None:
    models = (model("m", "a", "b", failed="spare"), model("spare", "c"))
    async with FleetHouse(kinds={"a": {}, "b": {}, "c": {}}, models=models) as house:
        client = await house.ask(stream=False)
        for _ in range(2):
            (await house.visit()).refuse(500)
        visit = await house.visit()
        assert visit.at == "c"
        visit.answer()
        assert (await client.response()).status == 200
        await house.record()
        assert counted(house, "antiphon_attempts_total") == {("elsewhere",): 1, ("failed",): 1}
        failures = counted(house, "antiphon_upstream_failures_total")
        assert failures == {("status", "a"): 1, ("status", "b"): 1}
        (balance,) = counted(house, "antiphon_retry_budget_balance").values()
        assert balance == pytest.approx(house.gateway.budget.statistics(house.clock.now).balance)


@on_uvloop
async def test_an_empty_budget_is_seen() -> None:
    async with FleetHouse() as house:
        while house.gateway.budget.spend(house.clock.now):
            pass
        client = await house.ask(stream=False)
        (await house.visit()).refuse(500)
        assert (await client.response()).status >= 500
        assert counted(house, "antiphon_retries_refused_total") == {(): 2}
        (balance,) = counted(house, "antiphon_retry_budget_balance").values()
        assert balance < 1


@on_uvloop
async def test_the_surface_of_an_openai_client() -> None:
    async with House() as house:
        client = await house.client()
        body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
        client.send(request(body, path="/v1/chat/completions"))
        (await house.visit()).answer()
        assert (await client.response()).status == 200
        await house.record()
        assert [key[-2] for key in counted(house, "antiphon_requests_total")] == ["openai"]


@pytest.mark.parametrize(
    ("limit", "given"),
    [
        ("concurrent", {"concurrent": 1}),
        ("requests", {"requests_per_minute": 1}),
        ("tokens", {"tokens_per_minute": 1}),
    ],
)
@on_uvloop
async def test_which_limit_a_key_was_over(tmp_path, limit, given) -> None:
    secret, key = make("alice", now=time.time())
    with edit_rows(tmp_path / "keys.json", Key) as rows:
        rows.append(structs.replace(key, **given))
    async with House() as house:
        house.gateway.entry = Entry(Keyring(tmp_path / "keys.json"))
        first, second = await house.client(), await house.client()
        first.send(post(headers=f"x-api-key: {secret}\r\n"))
        visit = await house.visit()
        second.send(post(headers=f"x-api-key: {secret}\r\n"))
        assert (await second.response()).status == 429
        visit.answer()
        await first.response()
        await house.record()
        assert counted(house, "antiphon_key_refusals_total") == {("alice", limit): 1}
        assert counted(house, "antiphon_requests_refused_total") == {("messages", "rate_limit_error"): 1}
        assert counted(house, "antiphon_key_requests_total") == {("alice",): 1}


def tell(visit: Visit, cached: int) -> None:
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 5,
        "total_tokens": 45,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    frames = [frame({"content": "ok"}), frame(finish="stop"), frame(choices=[], usage=usage), DONE]
    visit.raw(SSE_HEAD + b"".join(map(chunk, frames)) + b"0\r\n\r\n")


@on_uvloop
async def test_the_hit_rate_of_an_upstreams_cache_beside_what_was_expected() -> None:
    async with House() as house:
        for cached in (0, 30):
            client = await house.ask("the same prompt")
            tell(await house.visit(), cached)
            await client.response()
            await house.record()
        client = await house.ask("another, of which nothing is told")
        (await house.visit()).answer()
        await client.response()
        await until(lambda: len(house.records_written) == 3 and not house.gateway.live)
        assert counted(house, "antiphon_prompt_tokens_total") == {("yes", "up"): 30, ("no", "up"): 50}
        # The first time nothing was sure to be there, the second time all of it.
        assert counted(house, "antiphon_prompt_tokens_expected_cached_total") == {("up",): 40}


# --- What can be a label ------------------------------------------------------------------------------


def models_in(metrics: Metrics) -> set[str]:
    return {value for _, labels in samples(metrics) for name, value in labels if name == "model"}


def test_made_up_models_are_one_label() -> None:
    metrics = metrics_of("m")
    for number in range(10_000):
        metrics.observe(record(model=f"made-up-{number}"))
    metrics.observe(record(model="m"))
    assert models_in(metrics) == {"m", OTHER}
    assert len(samples(metrics)) < 50


def test_the_first_of_many_listed_models_are_labels() -> None:
    listed = [f"listed-{number}" for number in range(MODELS + 100)]
    metrics = metrics_of(*listed)
    for name in [*listed, *listed]:
        metrics.observe(record(model=name))
    assert models_in(metrics) == {*listed[:MODELS], OTHER}


def test_a_model_and_its_alias_are_one_label() -> None:
    metrics = metrics_of("qwen", "claude-own")
    for name in ("qwen", "claude-qwen", "claude-own", "claude-claude-own", "claude-other"):
        metrics.observe(record(model=name))
    requests = {
        dict(labels)["model"]: value
        for (name, labels), value in samples(metrics).items()
        if name == "antiphon_requests_total"
    }
    assert requests == {"qwen": 2, "claude-own": 2, OTHER: 1}


def test_the_first_of_many_keys_are_labels() -> None:
    metrics = metrics_of("m")
    names = [f"key-{number}" for number in range(KEYS + 100)]
    for name in [*names, *names]:
        metrics.observe(record(key=name))
        metrics.limited(name, "requests")
    for metric in ("antiphon_key_requests_total", "antiphon_key_refusals_total"):
        shown = {dict(labels)["key"] for name, labels in samples(metrics) if name == metric}
        assert shown == {*names[:KEYS], OTHER}


def test_an_upstream_that_is_gone_leaves_no_series_for_ever() -> None:
    clock, there = Clock(), {"up": Upstream(2), "stays": Upstream(2, "stays")}
    leaving: list[Upstream] = []
    metrics = Metrics(
        Sources(known_models=lambda: {"m"}, upstreams=lambda: there, leaving=lambda: leaving, clock=clock)
    )

    def upstreams() -> set[str]:
        return {value for _, labels in samples(metrics) for name, value in labels if name == "upstream"}

    metrics.counted("up", exact=True)
    for name in there:
        metrics.observe(record(upstream=name, counts=Counter(call_split=1), estimated=("input",)))
    leaving.append(there.pop("up"))
    for _ in range(3):  # as long as it drains
        clock.now += KEPT + 1
        assert upstreams() == {"up", "stays"}
    leaving.clear()
    assert upstreams() == {"up", "stays"}
    clock.now += KEPT - 1
    assert upstreams() == {"up", "stays"}  # the last counts can still be scraped
    clock.now += 2
    assert upstreams() == {"stays"}
    metrics.observe(record())  # its record comes late, or it comes back
    assert upstreams() == {"up", "stays"}
    there["up"] = Upstream(2)
    clock.now += KEPT + 1
    assert upstreams() == {"up", "stays"}
    del there["up"]  # its time begins anew
    assert upstreams() == {"up", "stays"}
    clock.now += KEPT - 1
    assert upstreams() == {"up", "stays"}


# --- The exposition -----------------------------------------------------------------------------------


def test_no_series_about_when_a_series_began() -> None:
    metrics = metrics_of("m")
    metrics.observe(record())
    assert b"_created" not in metrics.exposition()


@on_uvloop
async def test_nothing_of_a_request_or_an_answer_is_in_it() -> None:
    async with House() as house:
        client = await house.client()
        secrets = ("PROMPT-9f3", "ANSWER-9f3", "KEY-9f3", "SESSION-9f3", "MODEL-9f3", "TOOL-9f3", "FAULT-9f3")
        prompt, answer, key, session, model, tool, fault = secrets
        headers = f"x-api-key: {key}\r\nx-claude-code-session-id: {session}\r\n"
        tools = [
            {"name": tool, "input_schema": {"type": "object"}},
            {"type": tool + "_20250101", "name": "x"},
        ]
        client.send(post(prompt, headers=headers, model=model, tools=tools, unknown_field=prompt))
        visit = await house.visit()
        visit.answer(answer)
        assert answer in (await client.response()).text
        client.send(post(prompt, headers=headers, model=model))
        (await house.visit()).refuse(500, b'{"error":{"message":"%b"}}' % fault.encode())
        assert (await client.response()).status == 500
        client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        page = (await client.response()).body.decode()
        assert "antiphon_requests_total" in page
        assert [secret for secret in secrets if secret.lower() in page.lower()] == []


def test_the_content_type_is_the_formats() -> None:
    assert CONTENT_TYPE == CONTENT_TYPE_PLAIN_0_0_4


# --- The page -----------------------------------------------------------------------------------------


def _generator():
    spec = importlib.util.spec_from_file_location("docs_generate_metrics", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_metric_has_a_row_in_the_docs() -> None:
    rows = [
        line.split(" | ") for line in (ROOT / "docs/metrics.md").read_text().split("\n") if line[:4] == "| `a"
    ]
    told = {row[0].strip("| `"): {label.strip("` ") for label in row[2].split(",")} - {""} for row in rows}
    up = Upstream(1)
    metrics = metrics_of("m", up=up)
    up.slots.settle(0)
    up.health.failed("reset", 1.0)
    metrics.refused("invalid_request_error", "messages")
    metrics.limited("alice", "requests")
    metrics.counted("up", exact=True)
    metrics.observe(
        record(cause="client", degraded=("x",), estimated=("input",), counts=Counter(call_split=1))
    )
    metrics.observe(record(key="alice", further=Counter(elsewhere=1), tells_cached=True))
    metrics.observe(record())
    shown = {
        name.removesuffix("_count").removesuffix("_sum"): {label for label, _ in labels}
        for name, labels in samples(metrics)
    }
    assert told == shown


def test_the_table_is_fresh() -> None:
    table = _generator().SECTIONS["metrics"]()
    assert table in (ROOT / "docs/metrics.md").read_text()
