"""Metrics of several processes as if of one: each leaves its own in a folder, whoever is asked adds up.

Owns the files and what is added how: counters and histograms are summed, also those of workers that have
ended; gauges only of live ones, and what all of them say of the same slots is taken once.

    metrics = WorkerMetrics(folder, known_models=..., upstreams=...)
    metrics.write()          # about once a second: the others' figures are at most that old
    metrics.exposition()     # everybody's
    bury(folder, pid)        # by the supervisor, when a worker has ended
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from antiphon.observe.metrics import Metrics, _HasSlots

_GONE: Final = "gone.prom"
_LIVE: Final = "worker-*.prom"


class WorkerMetrics(Metrics):
    """`folder` is the workers' own; this process's file there is named after its id."""

    def __init__(
        self,
        folder: Path,
        *,
        known_models: Callable[[], Collection[str]],
        upstreams: Callable[[], Mapping[str, _HasSlots]],
    ) -> None:
        super().__init__(known_models=known_models, upstreams=upstreams)
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
    """One exposition out of several."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for texts, gauges in ((live, True), (gone, False)):
        for text in texts:
            for family in text_string_to_metric_families(text):
                if family.type == "gauge" and not gauges:
                    continue
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                sums = values.setdefault(family.name, {})
                for sample in family.samples:
                    key = (sample.name, tuple(sample.labels.items()))
                    if key not in sums:
                        sums[key] = sample.value
                    elif _is_everybodys(sample.name, sample.labels):
                        sums[key] = min(sums[key], sample.value)
                    else:
                        sums[key] += sample.value
    for name, sums in values.items():
        for (sample_name, labels), value in sums.items():
            families[name].add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_Families(list(families.values())))
    return generate_latest(registry)


def _is_everybodys(name: str, labels: Mapping[str, str]) -> bool:
    """Each worker says this of the slots that all of them share."""
    whole = ("antiphon_slots_limit", "antiphon_slots_reported_busy")
    return name in whole or (name == "antiphon_slots" and labels["state"] == "free")


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
