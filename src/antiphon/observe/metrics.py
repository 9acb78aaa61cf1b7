"""Prometheus metrics of a gateway process: what its exchanges count, and one exposition of everything.

Owns names, labels and buckets of what is counted; observe.gauges has what is read at the moment of a scrape,
and docs/metrics.md is made of both. Labels are bounded: a model that no upstream lists counts as `other`,
kinds come from this project's own tables, and the series of an upstream that is gone go after it. Nothing of
a prompt, an answer or a key can become a label; the name that the operator gave to a key can.

    metrics = Metrics(Sources(known_models=lambda: {"smollm2"}, upstreams=lambda: backend.upstreams))
    metrics.observe(record)
    metrics.exposition()   -> b"# HELP antiphon_requests_total ..."
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

from antiphon.observe.gauges import BudgetCollector, Sources, UpstreamCollector
from antiphon.observe.record import ExchangeRecord
from antiphon.server.routing import ALIAS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MODELS: Final = 200
"""Model names that may become labels; hosted upstreams list more."""
KEYS: Final = 200
"""Names of keys that may become labels."""
OTHER: Final = "other"
KEPT: Final = 900.0
"""Seconds for which the counts of an upstream that is gone can still be scraped."""

# In this format a "_created" would be one more series for each, and nobody looks at them.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves its type out
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
_CLOSE = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
_PLACE = ("model", "upstream")


class Metrics:
    """One process's metrics. See `Sources` for what they are read from."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.registry = CollectorRegistry()
        self._models: set[str] = set()  # those that are labels by now
        self._keys: set[str] = set()
        self._of_upstreams: list[Counter | Histogram] = []  # with a label that may go
        self._named: dict[str, float | None] = {}  # upstreams that are labels; since when they are gone
        self.registry.register(UpstreamCollector(sources))
        self.registry.register(BudgetCollector(sources))
        self.requests = self._counter(
            "antiphon_requests_total",
            "Requests by how they ended; outcome is a cause of the exchange's end.",
            "surface",
            *_PLACE,
            "outcome",
        )
        self.refusals = self._counter(
            "antiphon_requests_refused_total",
            "Requests that were refused before an upstream was asked for; type is the error's.",
            "surface",
            "type",
        )
        self.attempts = self._counter(
            "antiphon_attempts_total",
            "Attempts after the first; reason is elsewhere (another target), or the fallback that was taken.",
            "reason",
        )
        self.counts = self._counter(
            "antiphon_token_counts_total",
            "Answers of count_tokens; how is exact (the upstream's tokenizer) or estimate.",
            "upstream",
            "how",
        )
        self.first_token = self._histogram(
            "antiphon_time_to_first_token_seconds",
            "From the request to its first content.",
            _SECONDS,
            *_PLACE,
        )
        self.inter_token = self._histogram(
            "antiphon_inter_token_seconds",
            "Mean time between output tokens of a finished request.",
            _TOKEN,
            *_PLACE,
        )
        self.queue_wait = self._histogram(
            "antiphon_queue_wait_seconds",
            "Waiting for slots, of requests that got one and of those that left the queue without.",
            _SECONDS,
            "upstream",
        )
        self.duration = self._histogram(
            "antiphon_request_duration_seconds",
            "From the request to its end; not of those that were turned away at once.",
            _SECONDS,
            *_PLACE,
        )
        self.tokens = self._counter(
            "antiphon_tokens_total",
            "Tokens; kind is input (not cached), cached, written (to a cache), output, thinking (in output).",
            *_PLACE,
            "kind",
        )
        self.prompts = self._counter(
            "antiphon_prompt_tokens_total",
            "Tokens of prompts whose upstream tells how much it had cached, by whether they were.",
            "upstream",
            "cached",
        )
        self.expected = self._counter(
            "antiphon_prompt_tokens_expected_cached_total",
            "Tokens of the same prompts that the gateway took to be cached when it sent them.",
            "upstream",
        )
        self.estimated = self._counter(
            "antiphon_estimated_usage_total",
            "Requests whose usage was estimated because no upstream reported it.",
            "upstream",
            "kind",
        )
        self.cancellations = self._counter(
            "antiphon_cancellations_total",
            "Requests that did not run to their end, by phase and cause.",
            "phase",
            "cause",
        )
        self.closing = self._histogram(
            "antiphon_client_gone_to_upstream_closed_seconds",
            "From the notice that a client has left to the close of its upstream connection.",
            _CLOSE,
        )
        self.oddities = self._counter(
            "antiphon_stream_oddities_total",
            "What upstreams did wrong and was mended, dropped or inferred, by kind.",
            "upstream",
            "kind",
        )
        self.losses = self._counter(
            "antiphon_request_losses_total",
            "Requests with fields that were not carried; class is degraded or ignored.",
            "upstream",
            "class",
        )
        self.key_requests = self._counter(
            "antiphon_key_requests_total", "Requests of a key that came to an end, by the key's name.", "key"
        )
        self.key_tokens = self._counter(
            "antiphon_key_tokens_total",
            "Tokens by the key's name; kind as of antiphon_tokens.",
            "key",
            "kind",
        )
        self.key_refusals = self._counter(
            "antiphon_key_refusals_total",
            "Requests of a key that were over one of its limits: concurrent, requests or tokens.",
            "key",
            "limit",
        )
        self.loop_lag = self._histogram(
            "antiphon_loop_lag_seconds",
            "How late the ticker woke up: how long something held the event loop.",
            _CLOSE,
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        counter = Counter(name, meaning, labels, registry=self.registry)
        if "upstream" in labels:
            self._of_upstreams.append(counter)
        return counter

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        histogram = Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)
        if "upstream" in labels:
            self._of_upstreams.append(histogram)
        return histogram

    # --- what is told ---

    def observe(self, record: ExchangeRecord) -> None:
        """One exchange has ended."""
        model = self._label_of(record.model)
        upstream = self._upstream(record.upstream)
        self.requests.labels(record.surface, model, upstream, record.cause).inc()
        for reason, count in record.further.items():
            self.attempts.labels(reason).inc(count)
        self._observe_times(record, model, upstream)
        self._observe_tokens(record, model, upstream)
        for kind in record.estimated:
            self.estimated.labels(upstream, kind).inc()
        if record.cause != "finished":
            self.cancellations.labels(record.phase, record.cause).inc()
        for kind, count in record.counts.items():
            self.oddities.labels(upstream, kind).inc(count)
        for name, paths in (("degraded", record.degraded), ("ignored", record.ignored)):
            if paths:
                self.losses.labels(upstream, name).inc()

    def _observe_times(self, record: ExchangeRecord, model: str, upstream: str) -> None:
        if record.queued is None:
            return  # it was turned away at once: there was no time to speak of
        self.queue_wait.labels(upstream).observe(record.queued)
        if record.first_token is not None:
            self.first_token.labels(model, upstream).observe(record.first_token - record.began)
        if record.ended is not None:
            self.duration.labels(model, upstream).observe(record.ended - record.began)
            if record.cause == "finished" and record.first_token is not None and record.output_tokens > 1:
                pace = (record.ended - record.first_token) / (record.output_tokens - 1)
                self.inter_token.labels(model, upstream).observe(pace)

    def _observe_tokens(self, record: ExchangeRecord, model: str, upstream: str) -> None:
        key = self._key(record.key) if record.key else ""
        if key:
            self.key_requests.labels(key).inc()
        for kind, count in (
            ("input", record.input_tokens),
            ("cached", record.cached_tokens),
            ("written", record.written_tokens),
            ("output", record.output_tokens),
            ("thinking", record.thinking_tokens),
        ):
            if count:
                self.tokens.labels(model, upstream, kind).inc(count)
                if key:
                    self.key_tokens.labels(key, kind).inc(count)
        if record.tells_cached:
            cold = record.input_tokens + record.written_tokens
            self.prompts.labels(upstream, "yes").inc(record.cached_tokens)
            self.prompts.labels(upstream, "no").inc(cold)
            self.expected.labels(upstream).inc(record.expected_cached * (cold + record.cached_tokens))

    def refused(self, kind: str, surface: str) -> None:
        """A request was refused before it became an exchange. `kind` is its fault's."""
        self.refusals.labels(surface, kind).inc()

    def limited(self, key: str, limit: str) -> None:
        """A request was over a limit of the key of this name: `concurrent`, `requests` or `tokens`."""
        self.key_refusals.labels(self._key(key), limit).inc()

    def counted(self, upstream: str, *, exact: bool) -> None:
        """A request of count_tokens was answered."""
        self.counts.labels(self._upstream(upstream), "exact" if exact else "estimate").inc()

    # --- what may be a label ---

    def _label_of(self, model: str) -> str:
        """A client's name for a model as a label: the first `MODELS` that are listed and asked for."""
        known = self.sources.known_models()
        name = model if model in known else model.removeprefix(ALIAS)
        if name not in self._models:
            if name not in known or len(self._models) >= MODELS:
                return OTHER
            self._models.add(name)
        return name

    def _key(self, name: str) -> str:
        """The name of a key as a label: of the first `KEYS` that were used."""
        if name not in self._keys:
            if len(self._keys) >= KEYS:
                return OTHER
            self._keys.add(name)
        return name

    def _upstream(self, name: str) -> str:
        self._named.setdefault(name, None)
        return name

    def _forget_gone(self) -> None:
        """Drop the series of upstreams that are gone, a while later: their last counts can be scraped."""
        now, there = self.sources.clock(), self.sources.names()
        for name, gone in list(self._named.items()):
            if name in there:
                self._named[name] = None
            elif gone is None:
                self._named[name] = now
            elif now - gone > KEPT:
                del self._named[name]
                for metric in self._of_upstreams:
                    metric.remove_by_labels({"upstream": name})

    def exposition(self) -> bytes:
        """The text that a Prometheus server scrapes."""
        self._forget_gone()
        return generate_latest(self.registry)
