"""Counts as plain data: made by each worker, added up, and written in the text that Prometheus reads.

A sample is ``[name, kind, help, [[labels, value], ...]]``. Of several workers, values with the same labels are added,
counters and gauges alike: sessions, bytes that wait, CPU seconds of the whole gateway. Of kind ``least`` the smallest
counts: when the first certificate ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

PREFIX: Final = "headgate_gateway_"
COUNTER: Final = "counter"
GAUGE: Final = "gauge"
LEAST: Final = "least"
"""A gauge of which the smallest of all workers is shown."""

Snapshot = list[list[Any]]
"""The samples of one process; survives JSON unchanged."""


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum of several processes."""
    found: dict[str, tuple[str, str, dict[tuple[tuple[str, str], ...], float]]] = {}
    for snapshot in snapshots:
        for name, kind, text, values in snapshot:
            _, _, sums = found.setdefault(name, (kind, text, {}))
            for labels, value in values:
                key = tuple(sorted(labels.items()))
                sums[key] = min(sums.get(key, value), value) if kind == LEAST else sums.get(key, 0) + value
    return [
        [name, kind, text, [[dict(key), value] for key, value in sums.items()]]
        for name, (kind, text, sums) in found.items()
    ]


def counters_only(snapshot: Snapshot) -> Snapshot:
    """What stays true of a process that has ended."""
    return [sample for sample in snapshot if sample[1] == COUNTER]


def render(snapshot: Snapshot) -> bytes:
    """Prometheus text exposition format."""
    registry = CollectorRegistry()
    registry.register(_Collector(snapshot))
    return generate_latest(registry)


class _Collector:
    """Hands one snapshot to prometheus_client."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield a family per name."""
        for name, kind, text, values in self._snapshot:
            family = CounterMetricFamily if kind == COUNTER else GaugeMetricFamily
            labels = list(values[0][0]) if values else []
            metric = family(PREFIX + name, text, labels=labels)
            for named, value in values:
                metric.add_metric([str(named.get(label, "")) for label in labels], value)
            yield metric
