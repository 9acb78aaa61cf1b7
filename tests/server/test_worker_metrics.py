"""Several processes' figures in one exposition: what is summed, what is taken once, what is left of the dead."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon.observe.gauges import STATES, Sources
from antiphon.observe.record import ExchangeRecord
from antiphon.server.admission import SlotStatistics
from antiphon.server.health import Health, Rules
from antiphon.server.reports import ReportStatistics
from antiphon.server.retry_budget import BudgetStatistics
from antiphon.server.worker_metrics import TAKEN_ONCE, WorkerMetrics, bury, merged


def worker(
    folder: Path,
    *,
    held: int = 0,
    requests: int = 0,
    free: int = 1,
    health: Health | None = None,
    name: str = "u",
) -> WorkerMetrics:
    slots = SimpleNamespace(
        statistics=lambda: SlotStatistics(4, held, 0, free, 2), reports=ReportStatistics(busy=held, idler=1)
    )
    upstream = SimpleNamespace(name=name, slots=slots, health=health or Health())
    metrics = WorkerMetrics(
        folder,
        Sources(
            known_models=lambda: {"m"},
            upstreams=lambda: {name: upstream},
            budget=lambda now: BudgetStatistics(balance=10.0, spent=3, refused=2),
            clock=lambda: 100.0,
        ),
    )
    for _ in range(requests):
        record = ExchangeRecord(
            request_id="r", model="m", upstream=name, streaming=True, began=0.0, degraded=(), ignored=()
        )
        record.queued, record.first_token, record.ended, record.cause = 1.0, 2.0, 3.0, "finished"
        metrics.observe(record)
    return metrics


def leave(folder: Path, monkeypatch, pid: int, metrics: WorkerMetrics) -> None:
    monkeypatch.setattr("antiphon.server.worker_metrics.os.getpid", lambda: pid)
    metrics.write()


def values(text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


REQUESTS = 'antiphon_requests_total{model="m",outcome="finished",surface="messages",upstream="u"}'
BUCKET = 'antiphon_queue_wait_seconds_bucket{le="1.0",upstream="u"}'
HELD = 'antiphon_slots{state="held",upstream="u"}'
FREE = 'antiphon_slots{state="free",upstream="u"}'
LIMIT = 'antiphon_slots_limit{upstream="u"}'
QUEUE = 'antiphon_queue_length{upstream="u"}'


def test_counts_are_summed_and_shared_slots_are_taken_once(tmp_path, monkeypatch) -> None:
    leave(tmp_path, monkeypatch, 11, worker(tmp_path, held=2, requests=3, free=0))
    asked = worker(tmp_path, held=1, requests=2)
    monkeypatch.setattr("antiphon.server.worker_metrics.os.getpid", lambda: 12)
    now = values(asked.exposition())
    assert (now[REQUESTS], now[BUCKET]) == (5, 5)
    assert (now[HELD], now[QUEUE]) == (3, 4)
    assert (now[FREE], now[LIMIT]) == (0, 4)


def ill(*, drained: bool = False) -> Health:
    """Its circuit is open, it loads a model, it has asked for time, it is gone, it is slow."""
    health = Health(Rules(consecutive=2), random=lambda: 1.0)
    for number in range(20):
        health.succeeded(99.0, 0.1 if number < 19 else 60.0)
    for kind in ("reset", "reset", "loading", "busy"):
        health.failed(kind, 100.0)
    if drained:
        health.drain()
    return health


def test_what_workers_find_out_of_a_server_is_the_worst_of_it(tmp_path, monkeypatch) -> None:
    leave(tmp_path, monkeypatch, 13, worker(tmp_path, health=ill(drained=True)))
    leave(tmp_path, monkeypatch, 14, worker(tmp_path, health=ill()))
    asked = worker(tmp_path)
    monkeypatch.setattr("antiphon.server.worker_metrics.os.getpid", lambda: 15)
    now = values(asked.exposition())
    states = [now[f'antiphon_upstream_state{{state="{state}",upstream="u"}}'] for state in STATES]
    assert states == [1, 1, 0]  # one of them finds it well, two have opened their circuits
    for flag in ("waiting", "busy", "drained", "gone"):
        assert now[f'antiphon_upstream_{flag}{{upstream="u"}}'] == 1, flag
    slow = now['antiphon_upstream_slow_ratio{upstream="u"}']
    assert slow == ill().penalty(100.0) > 0
    # What is counted, and what each of them may spend, is everybody's together.
    assert now['antiphon_upstream_failures_total{kind="reset",upstream="u"}'] == 4
    assert now['antiphon_upstream_circuit_opened_total{upstream="u"}'] == 2
    assert now["antiphon_retry_budget_balance"] == 30
    assert now["antiphon_retries_refused_total"] == 6


def test_every_gauge_has_its_rule() -> None:
    """A new one is summed if nobody says otherwise: here somebody has to."""
    summed = {"antiphon_slots", "antiphon_queue_length", "antiphon_retry_budget_balance"}
    registry = WorkerMetrics(Path(), Sources()).registry
    gauges = {family.name for family in registry.collect() if family.type == "gauge"}
    assert gauges == summed | set(TAKEN_ONCE)


def test_what_the_dead_counted_of_an_upstream_goes_with_its_last_series(tmp_path, monkeypatch) -> None:
    for pid, name in ((41, "old"), (42, "u")):
        leave(tmp_path, monkeypatch, pid, worker(tmp_path, requests=3, name=name))
        bury(tmp_path, pid)
    old = REQUESTS.replace('"u"', '"old"')
    monkeypatch.setattr("antiphon.server.worker_metrics.os.getpid", lambda: 43)
    now = values(worker(tmp_path, requests=1, name="u").exposition())
    assert (now[REQUESTS], old in now) == (4, False)
    monkeypatch.setattr("antiphon.server.worker_metrics.os.getpid", lambda: 44)
    now = values(worker(tmp_path, name="old").exposition())  # one has it again, or still
    assert (now[REQUESTS], now[old]) == (4, 3)


def test_one_worker_alone_says_what_it_would_say_without_the_others(tmp_path) -> None:
    asked = worker(tmp_path, held=1, requests=2)
    alone = super(WorkerMetrics, asked).exposition()
    assert asked.exposition() == alone


def test_the_dead_keep_their_counts_and_hold_nothing(tmp_path, monkeypatch) -> None:
    for pid in (21, 22):
        leave(tmp_path, monkeypatch, pid, worker(tmp_path, held=2, requests=3))
        bury(tmp_path, pid)
    asked = worker(tmp_path, held=0, requests=1)
    monkeypatch.setattr("antiphon.server.worker_metrics.os.getpid", lambda: 23)
    now = values(asked.exposition())
    assert (now[REQUESTS], now[BUCKET], now[HELD], now[QUEUE]) == (7, 7, 0, 2)


def test_a_worker_that_ended_before_it_said_anything_leaves_nothing(tmp_path) -> None:
    bury(tmp_path, 31)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_buckets_of_a_histogram_stay_in_order(tmp_path, order) -> None:
    texts = [super(WorkerMetrics, worker(tmp_path, held=0, requests=n)).exposition().decode() for n in order]
    lines = merged(texts, gone=[]).decode().splitlines()
    bounds = [
        float(line.split('le="')[1].split('"')[0])
        for line in lines
        if line.startswith("antiphon_queue_wait_seconds_bucket")
    ]
    assert bounds == sorted(bounds)
