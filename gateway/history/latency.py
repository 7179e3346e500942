"""How long calls took until their first response, and where in the tree the time went; from the histograms of
``rpc_latency`` and the sums of ``tree_latency`` (windows of 60 s, per topic).

Histograms add up, so that a percentile of any time, topics or ranks together is one of all their calls; it is the end
of a bucket, at most a sixteenth above the exact one. ``max_ns`` is exact.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from broker.call_report import percentile
from gateway.history.files import Reading
from gateway.history.grouping import grouped, ranked, spread, stepped
from gateway.history.scope import Scope
from gateway.history.tables import Warehouse

WINDOW_S: Final = 60
TOPICS: Final = 6
"""Topics that have a line of their own: those with most calls."""
CAUSES: Final = (
    "unmatched_no_response",
    "not_captured",
    "unmatched_no_request",
    "unmatched_noresponse",
    "unmatched_untagged",
    "reused_tags",
)
"""Columns that count what could not be matched, or not be seen."""
PERCENTILES: Final = {"p50_ns": 50, "p95_ns": 95, "p99_ns": 99}
_ROW: Final = (*PERCENTILES, "max_ns")


def over_time(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Percentiles per step of all calls together, lines of the busiest topics, a table of all topics."""
    step = scope.step(WINDOW_S)
    length = scope.steps(step)
    columns = ["topic", "le_ns", "n", "max_ns", *CAUSES]
    batches = stepped(warehouse.read("rpc_latency", columns, scope, reading), scope, step)
    rows = grouped(batches, ["topic", "at", "le_ns"], ["n", *CAUSES], ["max_ns"])
    topics = folded(rows, "topic")
    steps = folded(rows, "at")
    busiest = [row["topic"] for row in topics[:TOPICS]]
    return {
        "step_s": step,
        "times": scope.times(step),
        "n": spread(steps, "n", length),
        **{name: spread(steps, name, length, missing=None) for name in _ROW},
        "lines": [
            {
                "topic": topic,
                "p95_ns": spread(
                    folded([row for row in rows if row["topic"] == topic], "at"),
                    "p95_ns",
                    length,
                    missing=None,
                ),
            }
            for topic in busiest
        ],
        "topics": topics[:limit],
        "unmatched": {name: sum(row[name] or 0 for row in topics) for name in CAUSES},
    }


def folded(rows: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """One row per value of ``key``, the one with most calls first."""
    entries = ranked(rows, [key], {name: name for name in ("n", *CAUSES)})
    buckets: dict[Any, Counter[int]] = defaultdict(Counter)
    longest: dict[Any, int] = {}
    for row in rows:
        if row["le_ns"] is not None:
            buckets[row[key]][row["le_ns"]] += row["n"] or 0
            longest[row[key]] = max(longest.get(row[key], 0), row["max_ns"] or 0)
    for entry in entries:
        value = entry[key]
        entry["max_ns"] = longest.get(value)
        ends = {name: percentile(buckets[value], percent) for name, percent in PERCENTILES.items()}
        # the bucket ends behind the longest of its calls
        entry |= {name: None if end is None else min(end, longest[value]) for name, end in ends.items()}
    return sorted(entries, key=lambda entry: (-entry["n"], str(entry[key])))


def tree(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Where the time goes: ``steps`` from a broker to the next one, and from the last one into a service, each with
    its calls, the mean time that it takes of them, and its share of all; the one that takes most first.

    A step to the next broker is what a call takes here less what it takes there, each by its own clock. ``mean_ns`` is
    None where nobody recorded that: its journal is not in the warehouse, or a built-in service's answers are not.
    """
    everywhere = Scope(scope.since, scope.until, scope.service)
    batches = warehouse.read("tree_latency", ["rank", "source", "target", "n", "sum_ns"], everywhere, reading)
    up: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    down: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in grouped(batches, ["rank", "source", "target"], ["n", "sum_ns"]):
        here, sums = f"rank {row['rank']}", {"n": row["n"] or 0, "ns": row["sum_ns"] or 0}
        up[here, str(row["target"])].update(sums)
        down[str(row["source"]), here].update(sums)
    steps: list[dict[str, Any]] = [
        {"from": here, "to": there, "n": sums["n"], "mean_ns": _mean(sums, down.get((here, there)), there)}
        for (here, there), sums in up.items()
        if scope.rank in (None, int(here.removeprefix("rank ")))
    ]
    whole = sum(step["n"] * (step["mean_ns"] or 0) for step in steps)
    for step in steps:
        known = step["mean_ns"] is not None and whole
        step["share"] = step["n"] * step["mean_ns"] / whole if known else None
    return {"steps": sorted(steps, key=lambda step: -(step["share"] or 0))[:limit]}


def _mean(here: Counter[str], there: Counter[str] | None, name: str) -> int | None:
    """The mean time of a step: all of it where it leads into a service, else what the next broker does not have."""
    mine = here["ns"] / max(here["n"], 1)
    if not name.startswith("rank "):
        return round(mine)
    return None if not there or not there["n"] else max(0, round(mine - there["ns"] / there["n"]))
