"""How long calls took until their first response; from the table ``rpc_latency`` (windows of 60 s, per topic).

Percentiles of several windows cannot be put together exactly. Where a row of an answer covers more than one window,
``p50_ns`` is their mean, weighted by calls; ``p95_ns`` and ``p99_ns`` are those of the worst window, ``max_ns`` is
exact. A step of 60 s with one rank and one topic is the window itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.history.grouping import grouped, spread, stepped
from gateway.history.scope import Scope
from gateway.history.tables import Reading, Warehouse, arrow

WINDOW_S: Final = 60
TOPICS: Final = 6
"""Topics that have a line of their own: those with most calls."""
CAUSES: Final = (
    "unmatched_no_response",
    "unmatched_no_request",
    "unmatched_noresponse",
    "unmatched_untagged",
    "reused_tags",
)
"""Columns that count what could not be matched."""
_WORST: Final = ("p95_ns", "p99_ns", "max_ns")


def over_time(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Percentiles per step of all calls together, lines of the busiest topics, a table of all topics."""
    step = scope.step(WINDOW_S)
    length = scope.steps(step)
    rows = grouped(
        (stepped(batch, scope, step) for batch in _read(warehouse, scope, reading)),
        ["topic", "at"],
        ["n", "weighted", *CAUSES],
        _WORST,
    )
    topics = _folded(rows, "topic")
    steps = _folded(rows, "at")
    busiest = [row["topic"] for row in topics[:TOPICS]]
    return {
        "step_s": step,
        "times": scope.times(step),
        "n": spread(steps, "n", length),
        **{name: spread(steps, name, length, missing=None) for name in ("p50_ns", *_WORST)},
        "lines": [
            {
                "topic": topic,
                "p95_ns": spread(
                    [row for row in rows if row["topic"] == topic], "p95_ns", length, missing=None
                ),
            }
            for topic in busiest
        ],
        "topics": topics[:limit],
        "unmatched": {name: sum(row[name] or 0 for row in topics) for name in CAUSES},
    }


def _read(warehouse: Warehouse, scope: Scope, reading: Reading) -> Iterator[Any]:
    """Batches with ``weighted``, the median times its calls, so that medians can be added up."""
    pa, compute = arrow(), arrow("compute")
    for batch in warehouse.read("rpc_latency", ["topic", "n", "p50_ns", *_WORST, *CAUSES], scope, reading):
        p50 = batch.column("p50_ns").cast(pa.float64())
        yield batch.append_column("weighted", compute.multiply(p50, batch.column("n").cast(pa.float64())))


def _folded(rows: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """One row per value of ``key``, the one with most calls first."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        entry = found.setdefault(
            row[key], {key: row[key], "n": 0, "weighted": 0.0, **dict.fromkeys(CAUSES, 0)}
        )
        for name in ("n", "weighted", *CAUSES):
            entry[name] += row[name] or 0
        for name in _WORST:
            entry[name] = max(
                (each for each in (entry.get(name), row[name]) if each is not None), default=None
            )
    for entry in found.values():
        weighted = entry.pop("weighted")
        entry["p50_ns"] = round(weighted / entry["n"]) if entry["n"] else None
    return sorted(found.values(), key=lambda entry: (-entry["n"], str(entry[key])))
