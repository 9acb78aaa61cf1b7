"""Prometheus metrics of a gateway process: each one row here, fed from exchange records and snapshots.

Owns names, labels and buckets; docs/metrics.md is made of them. Labels are bounded: a model that no upstream
lists counts as `other`, kinds come from this project's own tables. Nothing of a prompt, an answer or a key
can become a label.

    metrics = Metrics(known_models=lambda: {"smollm2"}, upstreams=lambda: backend.upstreams)
    metrics.observe(record)
    metrics.exposition()   -> b"# HELP antiphon_requests_total ..."
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from antiphon.observe.record import ExchangeRecord
from antiphon.server.admission import SlotStatistics
from antiphon.server.reports import ReportStatistics
from antiphon.server.routing import ALIAS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MODELS = 200  # model names that may become labels; hosted upstreams list more
OTHER = "other"
# In this format a "_created" would be one more series for each, and nobody looks at them.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves its type out
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
_CLOSE = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)


class _Slots(Protocol):
    @property
    def reports(self) -> ReportStatistics: ...
    def statistics(self) -> SlotStatistics: ...


class _HasSlots(Protocol):
    """An upstream, as far as its numbers go."""

    @property
    def slots(self) -> _Slots: ...


class _SlotCollector(Collector):
    """Gauges read from the leases at the moment they are asked for: there is no second counter."""

    def __init__(self, upstreams: Callable[[], Mapping[str, _HasSlots]]) -> None:
        self._upstreams = upstreams

    def collect(self) -> Iterable[Metric]:
        slots = GaugeMetricFamily(
            "antiphon_slots", "Slots of an upstream by state.", labels=["upstream", "state"]
        )
        limit = GaugeMetricFamily("antiphon_slots_limit", "Slots that an upstream has.", labels=["upstream"])
        queue = GaugeMetricFamily(
            "antiphon_queue_length", "Requests that wait for a slot.", labels=["upstream"]
        )
        reported = GaugeMetricFamily(
            "antiphon_slots_reported_busy",
            "Busy slots as the upstream's own report said last; none without a report.",
            labels=["upstream"],
        )
        disagreements = CounterMetricFamily(
            "antiphon_slots_report_disagreements",
            "Reports of an upstream that its leases do not explain; report is busier or idler than they are.",
            labels=["upstream", "report"],
        )
        for name, upstream in self._upstreams().items():
            now = upstream.slots.statistics()
            slots.add_metric([name, "held"], now.held)
            slots.add_metric([name, "draining"], now.draining)
            slots.add_metric([name, "free"], max(0, now.free))
            limit.add_metric([name], now.slots)
            queue.add_metric([name], now.waiting)
            reports = upstream.slots.reports
            if reports.busy is not None:
                reported.add_metric([name], reports.busy)
                disagreements.add_metric([name, "busier"], reports.busier)
                disagreements.add_metric([name, "idler"], reports.idler)
        return [slots, limit, queue, reported, disagreements]


class Metrics:
    """One process's metrics. `known_models` gives the names that may be labels."""

    def __init__(
        self,
        *,
        known_models: Callable[[], Collection[str]],
        upstreams: Callable[[], Mapping[str, _HasSlots]],
    ) -> None:
        self._known_models = known_models
        self._models: set[str] = set()  # those that are labels by now
        self.registry = registry = CollectorRegistry()
        registry.register(_SlotCollector(upstreams))
        place = ["model", "upstream"]
        self.requests = Counter(
            "antiphon_requests_total",
            "Requests by how they ended; outcome is a cause of the exchange's end.",
            ["surface", *place, "outcome"],
            registry=registry,
        )
        self.refusals = Counter(
            "antiphon_requests_refused_total",
            "Requests that were refused before an upstream was asked for; type is the error's.",
            ["surface", "type"],
            registry=registry,
        )
        self.counts = Counter(
            "antiphon_token_counts_total",
            "Answers of count_tokens; how is exact (the upstream's tokenizer) or estimate.",
            ["upstream", "how"],
            registry=registry,
        )
        self.first_token = Histogram(
            "antiphon_time_to_first_token_seconds",
            "From the request to its first content.",
            place,
            buckets=_SECONDS,
            registry=registry,
        )
        self.inter_token = Histogram(
            "antiphon_inter_token_seconds",
            "Mean time between output tokens of a finished request.",
            place,
            buckets=_TOKEN,
            registry=registry,
        )
        self.queue_wait = Histogram(
            "antiphon_queue_wait_seconds",
            "From the request to its slot.",
            ["upstream"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.duration = Histogram(
            "antiphon_request_duration_seconds",
            "From the request to its end.",
            place,
            buckets=_SECONDS,
            registry=registry,
        )
        self.tokens = Counter(
            "antiphon_tokens_total",
            "Tokens; kind is input (without cached), cached, output or thinking (part of output).",
            [*place, "kind"],
            registry=registry,
        )
        self.estimated = Counter(
            "antiphon_estimated_usage_total",
            "Requests whose usage was estimated because no upstream reported it.",
            ["upstream", "kind"],
            registry=registry,
        )
        self.cancellations = Counter(
            "antiphon_cancellations_total",
            "Requests that did not run to their end, by phase and cause.",
            ["phase", "cause"],
            registry=registry,
        )
        self.closing = Histogram(
            "antiphon_client_gone_to_upstream_closed_seconds",
            "From the notice that a client has left to the close of its upstream connection.",
            buckets=_CLOSE,
            registry=registry,
        )
        self.oddities = Counter(
            "antiphon_stream_oddities_total",
            "What upstreams did wrong and was mended, dropped or inferred, by kind.",
            ["upstream", "kind"],
            registry=registry,
        )
        self.losses = Counter(
            "antiphon_request_losses_total",
            "Requests with fields that were not carried; class is degraded or ignored.",
            ["upstream", "class"],
            registry=registry,
        )
        self.loop_lag = Histogram(
            "antiphon_loop_lag_seconds",
            "How late the ticker woke up: how long something held the event loop.",
            buckets=_CLOSE,
            registry=registry,
        )

    def observe(self, record: ExchangeRecord) -> None:
        """One exchange has ended."""
        model = self._label_of(record.model)
        upstream = record.upstream
        self.requests.labels("messages", model, upstream, record.cause).inc()
        if record.granted is not None:
            self.queue_wait.labels(upstream).observe(record.granted - record.began)
        if record.first_token is not None:
            self.first_token.labels(model, upstream).observe(record.first_token - record.began)
        if record.ended is not None:
            self.duration.labels(model, upstream).observe(record.ended - record.began)
            if record.cause == "finished" and record.first_token is not None and record.output_tokens > 1:
                pace = (record.ended - record.first_token) / (record.output_tokens - 1)
                self.inter_token.labels(model, upstream).observe(pace)
        for kind, count in (
            ("input", record.input_tokens),
            ("cached", record.cached_tokens),
            ("output", record.output_tokens),
            ("thinking", record.thinking_tokens),
        ):
            if count:
                self.tokens.labels(model, upstream, kind).inc(count)
        for kind in record.estimated:
            self.estimated.labels(upstream, kind).inc()
        if record.cause != "finished":
            self.cancellations.labels(record.phase, record.cause).inc()
        for kind, count in record.counts.items():
            self.oddities.labels(upstream, kind).inc(count)
        for name, paths in (("degraded", record.degraded), ("ignored", record.ignored)):
            if paths:
                self.losses.labels(upstream, name).inc()

    def refused(self, kind: str, surface: str) -> None:
        """A request was refused before it became an exchange. `kind` is its fault's."""
        self.refusals.labels(surface, kind).inc()

    def counted(self, upstream: str, *, exact: bool) -> None:
        """A request of count_tokens was answered."""
        self.counts.labels(upstream, "exact" if exact else "estimate").inc()

    def _label_of(self, model: str) -> str:
        """A client's name for a model as a label: the first `MODELS` that are listed and asked for."""
        known = self._known_models()
        name = model if model in known else model.removeprefix(ALIAS)
        if name not in self._models:
            if name not in known or len(self._models) >= MODELS:
                return OTHER
            self._models.add(name)
        return name

    def exposition(self) -> bytes:
        """The text that a Prometheus server scrapes."""
        return generate_latest(self.registry)
