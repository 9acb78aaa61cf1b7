"""Several processes' figures in one exposition: what is summed, what is taken once, what is left of the dead."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon.observe.record import ExchangeRecord
from antiphon.server.admission import SlotStatistics
from antiphon.server.reports import ReportStatistics
from antiphon.server.worker_metrics import WorkerMetrics, bury, merged


def worker(folder: Path, *, held: int, requests: int, free: int = 1) -> WorkerMetrics:
    slots = SimpleNamespace(
        statistics=lambda: SlotStatistics(4, held, 0, free, 2), reports=ReportStatistics(busy=held, idler=1)
    )
    metrics = WorkerMetrics(
        folder, known_models=lambda: {"m"}, upstreams=lambda: {"u": SimpleNamespace(slots=slots)}
    )
    for _ in range(requests):
        record = ExchangeRecord(
            request_id="r", model="m", upstream="u", streaming=True, began=0.0, degraded=(), ignored=()
        )
        record.granted, record.first_token, record.ended, record.cause = 1.0, 2.0, 3.0, "finished"
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
