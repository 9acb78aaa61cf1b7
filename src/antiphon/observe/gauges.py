"""What is read at the moment of a scrape: slots, the health of upstreams, the budget of further attempts.

Owns the gauges, and the counters that others keep already: there is no second counter here. It changes
nothing in what it reads. What is counted when an exchange ends is observe.metrics'.

    registry.register(UpstreamCollector(Sources(upstreams=lambda: backend.upstreams)))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol, get_args

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from antiphon.server.admission import SlotStatistics
from antiphon.server.health import HealthStatistics, State
from antiphon.server.reports import ReportStatistics
from antiphon.server.retry_budget import BudgetStatistics

STATES: Final[tuple[str, ...]] = get_args(State)


class SlotsSeen(Protocol):
    @property
    def reports(self) -> ReportStatistics: ...
    def statistics(self) -> SlotStatistics: ...


class HealthSeen(Protocol):
    def statistics(self, now: float) -> HealthStatistics: ...


class UpstreamSeen(Protocol):
    """An upstream, as far as its numbers go."""

    @property
    def name(self) -> str: ...
    @property
    def slots(self) -> SlotsSeen: ...
    @property
    def health(self) -> HealthSeen: ...


def _no_budget(now: float) -> BudgetStatistics:
    return BudgetStatistics(balance=0.0, spent=0, refused=0)


class Sources(Struct, frozen=True, kw_only=True):
    """Where the numbers of a moment are. `known_models` may be labels.

    `leaving` are gone from the configuration while their last streams run; one may have the name of one
    of `upstreams`. `clock` is monotonic, in seconds.
    """

    known_models: Callable[[], Collection[str]] = tuple
    upstreams: Callable[[], Mapping[str, UpstreamSeen]] = dict
    leaving: Callable[[], Iterable[UpstreamSeen]] = tuple
    budget: Callable[[float], BudgetStatistics] = _no_budget
    clock: Callable[[], float] = time.monotonic

    def names(self) -> set[str]:
        """Of all upstreams that there are, leaving ones too."""
        return {*self.upstreams(), *(each.name for each in self.leaving())}


class UpstreamCollector(Collector):
    """Slots and reports, from the leases; health, from what attempts and probes have told."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        return [*self._slots(), *self._reports(), *self._health()]

    def _slots(self) -> Iterable[Metric]:
        slots = _gauge(
            "antiphon_slots", "Slots by state; where gateways share them, free is everybody's.", "state"
        )
        limit = _gauge(
            "antiphon_slots_limit",
            "Slots that an upstream has; where gateways share them, all of them together.",
        )
        queue = _gauge("antiphon_queue_length", "Requests that wait for a slot.")
        used: dict[str, list[int]] = {}
        for name, upstream in self._sources.upstreams().items():
            now = upstream.slots.statistics()
            used[name] = [now.held, now.draining, now.waiting]
            slots.add_metric([name, "free"], max(0, now.free))
            limit.add_metric([name], now.slots)
        for upstream in self._sources.leaving():  # nobody new comes: they have no free slots and no limit
            now = upstream.slots.statistics()
            before = used.get(upstream.name, [0, 0, 0])
            used[upstream.name] = [before[0] + now.held, before[1] + now.draining, before[2] + now.waiting]
        for name, (held, draining, waiting) in used.items():
            slots.add_metric([name, "held"], held)
            slots.add_metric([name, "draining"], draining)
            queue.add_metric([name], waiting)
        return slots, limit, queue

    def _reports(self) -> Iterable[Metric]:
        reported = _gauge(
            "antiphon_slots_reported_busy",
            "Busy slots as the upstream's own report said last; none without a report.",
        )
        disagreements = _counter(
            "antiphon_slots_report_disagreements",
            "Reports of an upstream that its leases do not explain; report is busier or idler than they are.",
            "report",
        )
        for name, upstream in self._sources.upstreams().items():
            reports = upstream.slots.reports
            if reports.busy is not None:
                reported.add_metric([name], reports.busy)
                disagreements.add_metric([name, "busier"], reports.busier)
                disagreements.add_metric([name, "idler"], reports.idler)
        return reported, disagreements

    def _health(self) -> Iterable[Metric]:
        state = _gauge(
            "antiphon_upstream_state", "1 for the state that the circuit of an upstream is in.", "state"
        )
        waiting = _gauge("antiphon_upstream_waiting", "1 while an upstream loads a model.")
        busy = _gauge("antiphon_upstream_busy", "1 while an upstream is left alone because it asked for it.")
        drained = _gauge("antiphon_upstream_drained", "1 while the operator lets nobody new to an upstream.")
        gone = _gauge("antiphon_upstream_gone", "1 if an upstream was not there when it was last asked.")
        slow = _gauge(
            "antiphon_upstream_slow_ratio",
            "How much slower an upstream is than it usually is, from 0 (as usual) to 1 (16 times or more).",
        )
        failures = _counter(
            "antiphon_upstream_failures",
            "Attempts and probes that failed at an upstream; kind is what was wrong.",
            "kind",
        )
        opened = _counter("antiphon_upstream_circuit_opened", "How often the circuit of an upstream opened.")
        now = self._sources.clock()
        for name, upstream in self._sources.upstreams().items():
            seen = upstream.health.statistics(now)
            for each in STATES:
                state.add_metric([name, each], seen.state == each)
            waiting.add_metric([name], seen.waiting)
            busy.add_metric([name], seen.busy)
            drained.add_metric([name], seen.drained)
            gone.add_metric([name], seen.gone)
            slow.add_metric([name], seen.penalty)
            for kind, count in seen.failures.items():
                failures.add_metric([name, kind], count)
            opened.add_metric([name], seen.opened)
        return state, waiting, busy, drained, gone, slow, failures, opened


class BudgetCollector(Collector):
    """What is left for further attempts."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        now = self._sources.budget(self._sources.clock())
        return [
            GaugeMetricFamily(
                "antiphon_retry_budget_balance",
                "Further attempts that may be made now, of all requests together.",
                now.balance,
            ),
            CounterMetricFamily(
                "antiphon_retries_refused",
                "Further attempts that were not made because the budget was empty.",
                now.refused,
            ),
        ]


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=["upstream", *labels])


def _counter(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, meaning, labels=["upstream", *labels])
