"""What is found in tables of single things: messages that were refused, failed, were lost or out of order, readers that
were too slow; and what the wings did, jobs of NFP and notifications of oslo.messaging.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gateway.history.files import Reading, arrow, seconds
from gateway.history.grouping import ROWS, Newest, grouped, ranked, series, spread, stepped
from gateway.history.scope import Scope
from gateway.history.tables import Warehouse

_DENIED: Final = ("rank", "transport", "peer", "claimed", "userid", "rolemask", "topic", "errno", "kind")
_GAPS: Final = ("rank", "writer", "run", "peer", "prev_seq", "next_seq", "missing", "kind")
_ORDER: Final = (
    "rank",
    "run",
    "origin",
    "peer",
    "type",
    "n",
    "out_of_order",
    "missing",
    "first_ts",
    "last_ts",
)
_FAULTS: Final = ("out_of_order", "missing")
_FAILED: Final = ("topic", "errno", "kind")
ERRORS_S: Final = 60
"""Windows of the table of errors."""
ERRNOS: Final = 7
"""Errors that have a line of their own."""
_SLOW: Final = ("rank", "peer", "what", "events", "bytes", "reason")
_JOB: Final = ("uuid", "service", "task", "client", "status", "attempts", "workers", "t_done", "duration_ns")
_NOTE: Final = ("exchange", "topic", "event_type", "priority", "publisher_id", "payload_len")
_TASK: Final = ("service", "task")
_TASK_SUMS: Final = {"n": ROWS, "timed": "timed", "ns": "duration_ns"}
STATUSES: Final = 8
"""Lines of a chart of jobs, or of notifications; what else there is goes into ``other``."""


def denied(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Refusals per step, by user and topic, and the newest ones."""
    step, newest = scope.step(), Newest(limit)
    found = warehouse.read("denied", _DENIED, Scope(scope.since, scope.until, None, scope.rank), reading)
    batches = stepped(newest.seen(_of_service(found, scope.service)), scope, step)
    rows = grouped(batches, ["at", "userid", "topic", "errno", "kind"], [ROWS])
    counts = spread(rows, ROWS, scope.steps(step))
    return {
        "step_s": step,
        "times": scope.times(step),
        "n": counts,
        "total": sum(counts),
        "kinds": _counts(rows, "kind"),
        "by": ranked(rows, ["userid", "topic", "errno"], {"n": ROWS}, limit),
        "newest": newest.rows(),
    }


def errors(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """What failed otherwise, per step and errno, and by topic, errno and kind; refusals for want of rights are not
    among it.
    """
    step = scope.step(ERRORS_S)
    batches = stepped(warehouse.read("errors", [*_FAILED, "n"], scope, reading), scope, step)
    rows = grouped(batches, ["at", *_FAILED], ["n"])

    def name(row: dict[str, Any]) -> str:
        return errno.errorcode.get(row["errno"], str(row["errno"]))

    return {
        "step_s": step,
        "times": scope.times(step),
        "total": sum(row["n"] or 0 for row in rows),
        "series": series(rows, name, {"n": "n"}, scope.steps(step), ERRNOS),
        "by": ranked(rows, _FAILED, {"n": "n"}, limit),
    }


def order(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """What was checked and what was found: pairs of endpoints in the whole days, numbers of events in the time.

    ``pairs`` is 0 where deliveries were not captured: nothing was checked then.
    """
    faulty: list[dict[str, Any]] = []

    def seen(batches: Iterable[Any]) -> Iterator[Any]:
        compute = arrow("compute")
        for batch in batches:
            faults = compute.add(*(compute.fill_null(batch.column(each), 0) for each in _FAULTS))
            found = batch.filter(compute.greater(faults, 0)).to_pylist()
            faulty[:] = sorted([*faulty, *found], key=_gravity)[:limit]
            yield batch

    batches = seen(warehouse.read("order_check", _ORDER, scope.whole_days(), reading))
    sums = {"pairs": ROWS, "messages": "n", **{each: each for each in _FAULTS}}
    types = ranked(grouped(batches, ["type"], list(sums.values())), ["type"], sums)
    return {
        **{name: sum(each[name] for each in types) for name in sums},
        "types": sorted(
            ({**each, "type": str(each["type"])} for each in types), key=lambda each: each["type"]
        ),
        "findings": [_dated(row) for row in faulty],
        **_event_numbers(warehouse, scope, reading, limit),
    }


def _event_numbers(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int) -> dict[str, Any]:
    """Gaps, duplicates and reorders in the numbers of events, counted, and the newest ones."""
    newest = Newest(limit)
    batches = newest.seen(warehouse.read("event_gaps", _GAPS, scope, reading))
    rows = grouped(batches, ["kind"], [ROWS, "missing"])
    return {
        "event_kinds": _counts(rows, "kind"),
        "event_missing": sum(row["missing"] or 0 for row in rows),
        "event_gaps": newest.rows(),
    }


def slow(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """What was not delivered, per step and per reader, and the newest records of it."""
    step, newest = scope.step(), Newest(limit)
    batches = stepped(newest.seen(warehouse.read("slow", _SLOW, scope, reading)), scope, step)
    sums = {"events": "events", "bytes": "bytes"}
    rows = grouped(batches, ["at", "rank", "peer", "what"], list(sums))
    counts = spread(rows, "events", scope.steps(step))
    return {
        "step_s": step,
        "times": scope.times(step),
        "events": counts,
        "total": sum(counts),
        "by": ranked(rows, ["rank", "peer", "what"], sums, limit),
        "newest": newest.rows(),
    }


def jobs(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Jobs per step and status, by service and task, and the newest ones."""
    step, newest = scope.step(), Newest(limit)
    batches = stepped(_timed(newest.seen(warehouse.read("job_outcomes", _JOB, scope, reading))), scope, step)
    rows = grouped(batches, ["at", *_TASK, "status"], list(_TASK_SUMS.values()))
    for row in rows:
        row["status"] = row["status"] or "unknown"
    statuses = ranked(rows, [*_TASK, "status"], {"n": ROWS})
    return {
        "step_s": step,
        "times": scope.times(step),
        "total": sum(row[ROWS] for row in rows),
        "series": series(rows, lambda row: str(row["status"]), {"n": ROWS}, scope.steps(step), STATUSES),
        "tasks": [_task(each, statuses) for each in ranked(rows, _TASK, _TASK_SUMS, limit)],
        "newest": [{**row, "t_done": seconds(row["t_done"])} for row in newest.rows()],
    }


def notifications(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Notifications per step and priority, by event type, and the newest ones; they know no rank and no service."""
    step, newest = scope.step(), Newest(limit)
    everywhere = Scope(scope.since, scope.until)
    batches = stepped(newest.seen(warehouse.read("notifications", _NOTE, everywhere, reading)), scope, step)
    rows = grouped(batches, ["at", "event_type", "publisher_id", "priority"], [ROWS, "payload_len"])
    names = series(rows, lambda row: row["priority"] or "unknown", {"n": ROWS}, scope.steps(step), STATUSES)
    return {
        "step_s": step,
        "times": scope.times(step),
        "total": sum(row[ROWS] for row in rows),
        "series": names,
        "by": ranked(rows, ["event_type", "publisher_id"], {"n": ROWS, "bytes": "payload_len"}, limit),
        "newest": newest.rows(),
    }


# ---------------------------------------------------------------- rows


def _of_service(batches: Iterable[Any], service: str | None) -> Iterator[Any]:
    """The rows whose topic is of the service: the table has no column for it."""
    compute = arrow("compute")
    for batch in batches:
        kept = batch
        if service is not None:
            topic = batch.column("topic").cast(arrow().string())
            kept = batch.filter(
                compute.or_(compute.equal(topic, service), compute.starts_with(topic, f"{service}."))
            )
        if kept.num_rows:
            yield kept


def _counts(rows: Iterable[dict[str, Any]], name: str) -> dict[str, int]:
    """How many there are of each value of a column, the most first."""
    return {str(each[name]): each["n"] for each in ranked(rows, [name], {"n": ROWS})}


def _gravity(row: dict[str, Any]) -> tuple[int, int]:
    return -(row["out_of_order"] or 0), -(row["missing"] or 0)


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ``order_check`` with its times as seconds."""
    times = {name: seconds(row[name]) for name in ("first_ts", "last_ts")}
    return {**{name: row[name] for name in _ORDER}, **times}


def _timed(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches with ``timed``, which counts the jobs whose end is known."""
    for batch in batches:
        known = batch.column("duration_ns").is_valid().cast(arrow().int64())
        yield batch.append_column("timed", known)


def _task(entry: dict[str, Any], statuses: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A task with how its jobs ended, and their mean time; None where no end is known."""
    mine = (each for each in statuses if all(each[name] == entry[name] for name in _TASK))
    return {
        **{name: entry[name] for name in (*_TASK, "n")},
        "statuses": {each["status"]: each["n"] for each in mine},
        "mean_ns": round(entry["ns"] / entry["timed"]) if entry["timed"] else None,
    }
