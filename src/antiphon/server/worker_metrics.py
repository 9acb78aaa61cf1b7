"""Metrics of several processes as if of one: each leaves its own in a folder, whoever is asked adds up.

Owns the files and what is added how: counters and histograms are summed, also those of workers that have
ended; gauges only of live ones. What all of them say of the same thing is taken once (`TAKEN_ONCE`): the
least of slots that they share, the worst of a server's health, which each of them finds out for itself.

    metrics = WorkerMetrics(folder, sources)
    metrics.write()          # about once a second: the others' figures are at most that old
    metrics.exposition()     # everybody's
    bury(folder, pid)        # by the supervisor, when a worker has ended
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from operator import add
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from antiphon.observe.gauges import Sources
from antiphon.observe.metrics import Metrics

_GONE: Final = "gone.prom"
_LIVE: Final = "worker-*.prom"

TAKEN_ONCE: Final[Mapping[str, Callable[[float, float], float]]] = {
    "antiphon_slots_limit": min,
    "antiphon_slots_reported_busy": min,
    # 1: at least one worker finds it so. The workers may be of different opinions.
    "antiphon_upstream_state": max,
    "antiphon_upstream_waiting": max,
    "antiphon_upstream_busy": max,
    "antiphon_upstream_drained": max,
    "antiphon_upstream_gone": max,
    "antiphon_upstream_slow_ratio": max,
}
"""Gauges that are not summed. Of `antiphon_slots` the free ones are everybody's too."""


class WorkerMetrics(Metrics):
    """`folder` is the workers' own; this process's file there is named after its id."""

    def __init__(self, folder: Path, sources: Sources) -> None:
        super().__init__(sources)
        self._folder = folder

    def write(self) -> None:
        """Leave this process's figures for the others."""
        _replace(_file_of(self._folder, os.getpid()), super().exposition())

    def exposition(self) -> bytes:
        self.write()
        return merged(_read(self._folder.glob(_LIVE)), gone=_read([self._folder / _GONE]))


def bury(folder: Path, pid: int) -> None:
    """Worker `pid` has ended: what it counted stays counted, what it held is nobody's."""
    [*left] = _read([_file_of(folder, pid)])
    if left:
        _replace(folder / _GONE, merged([], gone=[*_read([folder / _GONE]), *left]))
        _file_of(folder, pid).unlink(missing_ok=True)


def merged(live: Iterable[str], *, gone: Iterable[str]) -> bytes:
    """One exposition. What the dead counted of upstreams that no live one names is left out."""
    families: dict[str, Metric] = {}
    there: set[str] = set()  # upstreams, as the live name them
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for texts, alive in ((live, True), (gone, False)):
        for text in texts:
            for family in text_string_to_metric_families(text):
                if family.type == "gauge" and not alive:
                    continue
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                sums = values.setdefault(family.name, {})
                for sample in family.samples:
                    upstream = sample.labels.get("upstream")
                    if upstream is not None and alive:
                        there.add(upstream)
                    elif upstream is not None and there and upstream not in there:
                        continue
                    key = (sample.name, tuple(sample.labels.items()))
                    join = _joined_by(sample.name, sample.labels)
                    sums[key] = join(sums[key], sample.value) if key in sums else sample.value
    for name, sums in values.items():
        for (sample_name, labels), value in sums.items():
            families[name].add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_Families(list(families.values())))
    return generate_latest(registry)


def _joined_by(name: str, labels: Mapping[str, str]) -> Callable[[float, float], float]:
    """How two workers' words on one thing become one."""
    if name == "antiphon_slots" and labels["state"] == "free":
        return min
    return TAKEN_ONCE.get(name, add)


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _file_of(folder: Path, pid: int) -> Path:
    return folder / f"worker-{pid}.prom"


def _read(paths: Iterable[Path]) -> list[str]:
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text())
        except FileNotFoundError:
            continue  # its worker has ended just now, or has not said anything yet
    return texts


def _replace(path: Path, text: bytes) -> None:
    fresh = path.with_suffix(".fresh")
    fresh.write_bytes(text)
    fresh.replace(path)
