"""What the wings did: jobs of NFP, notifications of oslo.messaging."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from gateway.history.files import Reading, arrow, seconds
from gateway.history.grouping import Newest, counted, grouped, series, stepped
from gateway.history.scope import Scope
from gateway.history.tables import Warehouse

_JOB: Final = ("uuid", "service", "task", "client", "status", "attempts", "workers", "t_done", "duration_ns")
_NOTE: Final = ("exchange", "topic", "event_type", "priority", "publisher_id", "payload_len")
STATUSES: Final = 8
"""Lines of a chart of jobs; what other statuses there are goes into ``other``."""


def jobs(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Jobs per step and status, by service and task, and the newest ones."""
    step = scope.step()
    statuses: Counter[str] = Counter()
    cells: Counter[tuple[str, int]] = Counter()
    tasks: dict[tuple[Any, Any], dict[str, Any]] = {}
    newest = Newest(limit)
    keys = ("at", "service", "task", "status")
    for batch in warehouse.read("job_outcomes", _JOB, scope, reading):
        rows = grouped([stepped(_timed(batch), scope, step)], keys, ["one", "timed", "duration_ns"])
        for row in rows:
            status = row["status"] or "unknown"
            statuses[status] += row["one"]
            cells[status, row["at"]] += row["one"]
            _add_task(tasks, row, status)
        newest.add(batch)
    return {
        "step_s": step,
        "times": scope.times(step),
        "total": sum(statuses.values()),
        "series": series(statuses, cells, scope.steps(step), STATUSES),
        "tasks": [_task(each) for each in sorted(tasks.values(), key=lambda each: -each["n"])[:limit]],
        "newest": [{**row, "t_done": seconds(row["t_done"])} for row in newest.rows()],
    }


def notifications(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Notifications per step and priority, by event type, and the newest ones; they know no rank and no service."""
    step = scope.step()
    priorities: Counter[str] = Counter()
    cells: Counter[tuple[str, int]] = Counter()
    types: dict[tuple[Any, Any], Counter[str]] = {}
    newest = Newest(limit)
    keys = ("at", "event_type", "publisher_id", "priority")
    everywhere = Scope(scope.since, scope.until)
    for batch in warehouse.read("notifications", _NOTE, everywhere, reading):
        for row in grouped([stepped(counted(batch), scope, step)], keys, ["one", "payload_len"]):
            priority = row["priority"] or "unknown"
            priorities[priority] += row["one"]
            cells[priority, row["at"]] += row["one"]
            sums = {"n": row["one"], "bytes": row["payload_len"] or 0}
            types.setdefault((row["event_type"], row["publisher_id"]), Counter()).update(sums)
        newest.add(batch)
    ranked = sorted(types.items(), key=lambda item: -item[1]["n"])[:limit]
    return {
        "step_s": step,
        "times": scope.times(step),
        "total": sum(priorities.values()),
        "series": series(priorities, cells, scope.steps(step), STATUSES),
        "by": [dict(zip(("event_type", "publisher_id"), key, strict=True)) | sums for key, sums in ranked],
        "newest": newest.rows(),
    }


def _timed(batch: Any) -> Any:
    """The batch with ``one`` and ``timed``, which count its jobs and those whose end is known."""
    table = counted(batch)
    return table.append_column("timed", table.column("duration_ns").is_valid().cast(arrow().int64()))


def _add_task(tasks: dict[tuple[Any, Any], dict[str, Any]], row: dict[str, Any], status: str) -> None:
    key = row["service"], row["task"]
    fresh = {"service": key[0], "task": key[1], "n": 0, "timed": 0, "sum_ns": 0, "statuses": {}}
    entry = tasks.setdefault(key, fresh)
    entry["n"] += row["one"]
    entry["timed"] += row["timed"]
    entry["sum_ns"] += row["duration_ns"] or 0
    entry["statuses"][status] = entry["statuses"].get(status, 0) + row["one"]


def _task(entry: dict[str, Any]) -> dict[str, Any]:
    """The sum of its durations as their mean; None where none is known."""
    names = ("service", "task", "n", "statuses")
    mean = round(entry["sum_ns"] / entry["timed"]) if entry["timed"] else None
    return {**{name: entry[name] for name in names}, "mean_ns": mean}
