"""What there is to ask about, and how fresh it is."""

from __future__ import annotations

from typing import Any, Final

from gateway.history import traffic
from gateway.history.files import Reading, seconds
from gateway.history.scope import Scope, fitted
from gateway.history.tables import Warehouse

RUNS: Final = 20
"""Runs of jobs that are told."""
_RUN: Final = ("job", "batch_id", "feed", "rows_in", "rows_out", "bad_blocks", "lost_records", "duration_s")
LISTED_DAYS: Final = 400
"""Partitions of a table whose files are counted, the newest."""


def summary(warehouse: Warehouse, scope: Scope, reading: Reading) -> dict[str, Any]:
    """Tables, runs, sums over the scope.

    ``first`` is the first second of the data, ``last`` the first one behind it, ``fit`` what a chart of all of it
    shows (since, until); None and an empty list where there is none. ``ended`` is when the newest run did, if any has.
    """
    tables = {name: _about(warehouse, name) for name in warehouse.tables()}
    extent = warehouse.extent()
    runs = [_run(row) for row in warehouse.runs(reading, RUNS)]
    ends = [run["finished_at"] for run in runs if run["finished_at"] is not None]
    return {
        "first": extent[0] if extent else None,
        "last": extent[1] if extent else None,
        "fit": list(fitted(*extent)) if extent else [],
        "ended": max(ends, default=None),
        "tables": tables,
        "runs": runs,
        **traffic.totals(warehouse, scope, reading),
    }


def aged(summary: dict[str, Any], now: float) -> dict[str, Any]:
    """The summary with ``fresh_s``: how long ago the newest run ended."""
    ended = summary["ended"]
    return {**summary, "fresh_s": None if ended is None else max(0.0, now - ended)}


def state(warehouse: Warehouse, days: list[str]) -> tuple[object, ...]:
    """Changes when a summary over ``days`` does."""
    tables = warehouse.tables()
    listed = tuple((name, tuple(warehouse.days(name))) for name in tables)
    return (
        listed,
        warehouse.extent(),
        warehouse.state(tables, days),
        tuple(each.state for each in warehouse.run_files()),
    )


def _about(warehouse: Warehouse, name: str) -> dict[str, Any]:
    """Size and days of a table, from its directory."""
    days = warehouse.days(name)
    files = warehouse.files(name, days[:LISTED_DAYS])
    return {
        "days": len(days),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "first_day": days[-1] if days else None,
        "last_day": days[0] if days else None,
    }


def _run(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ``_runs`` with its times as seconds; what an older schema lacks is None."""
    times = {name: seconds(row.get(name)) for name in ("started_at", "finished_at")}
    return {**{name: row.get(name) for name in _RUN}, **times}
