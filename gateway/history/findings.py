"""What went wrong: messages that were refused, failed, were lost or out of order, readers that were too slow."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gateway.history.files import Reading, arrow, seconds
from gateway.history.grouping import Newest, counted, grouped, series, stepped
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


def denied(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """Refusals per step, by user and topic, and the newest ones."""
    step = scope.step()
    counts = [0] * scope.steps(step)
    users: Counter[tuple[Any, ...]] = Counter()
    kinds: Counter[str] = Counter()
    newest = Newest(limit)
    keys = ("at", "userid", "topic", "errno", "kind")
    rows = warehouse.read("denied", _DENIED, Scope(scope.since, scope.until, None, scope.rank), reading)
    for batch in _of_service(rows, scope.service):
        for row in grouped([stepped(counted(batch), scope, step)], keys, ["one"]):
            counts[row["at"]] += row["one"]
            users[row["userid"], row["topic"], row["errno"]] += row["one"]
            kinds[str(row["kind"])] += row["one"]
        newest.add(batch)
    return {
        "step_s": step,
        "times": scope.times(step),
        "n": counts,
        "total": sum(counts),
        "kinds": dict(kinds.most_common()),
        "by": [
            dict(zip(("userid", "topic", "errno", "n"), (*key, n), strict=True))
            for key, n in users.most_common(limit)
        ],
        "newest": newest.rows(),
    }


def errors(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """What failed otherwise, per step and errno, and by topic, errno and kind; refusals for want of rights are not
    among it.
    """
    step = scope.step(ERRORS_S)
    totals: Counter[str] = Counter()
    cells: Counter[tuple[str, int]] = Counter()
    by: Counter[tuple[Any, ...]] = Counter()
    batches = (
        stepped(each, scope, step) for each in warehouse.read("errors", [*_FAILED, "n"], scope, reading)
    )
    for row in grouped(batches, ["at", *_FAILED], ["n"]):
        name = errno.errorcode.get(row["errno"], str(row["errno"]))
        totals[name] += row["n"] or 0
        cells[name, row["at"]] += row["n"] or 0
        by[tuple(row[each] for each in _FAILED)] += row["n"] or 0
    return {
        "step_s": step,
        "times": scope.times(step),
        "total": totals.total(),
        "series": series(totals, cells, scope.steps(step), ERRNOS),
        "by": [dict(zip((*_FAILED, "n"), (*key, n), strict=True)) for key, n in by.most_common(limit)],
    }


def order(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """What was checked and what was found: pairs of endpoints in the whole days, numbers of events in the time.

    ``pairs`` is 0 where deliveries were not captured: nothing was checked then.
    """
    compute = arrow("compute")
    types: dict[str, Counter[str]] = {}
    faulty: list[dict[str, Any]] = []
    for batch in warehouse.read("order_check", _ORDER, scope.whole_days(), reading):
        for row in grouped([counted(batch)], ["type"], ["one", "n", *_FAULTS]):
            sums = {"pairs": row["one"], "messages": row["n"], **{each: row[each] for each in _FAULTS}}
            types.setdefault(str(row["type"]), Counter()).update({name: n or 0 for name, n in sums.items()})
        faults = compute.add(*(compute.fill_null(batch.column(each), 0) for each in _FAULTS))
        faulty = sorted([*faulty, *batch.filter(compute.greater(faults, 0)).to_pylist()], key=_gravity)[
            :limit
        ]
    every = sum(types.values(), Counter[str]())
    return {
        **{name: every[name] for name in ("pairs", "messages", *_FAULTS)},
        "types": [{"type": name, **counts} for name, counts in sorted(types.items())],
        "findings": [_dated(row) for row in faulty],
        **_event_numbers(warehouse, scope, reading, limit),
    }


def _event_numbers(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int) -> dict[str, Any]:
    """Gaps, duplicates and reorders in the numbers of events, counted, and the newest ones."""
    kinds: Counter[str] = Counter()
    missing = 0
    newest = Newest(limit)
    for batch in warehouse.read("event_gaps", _GAPS, scope, reading):
        for row in grouped([counted(batch)], ["kind"], ["one", "missing"]):
            kinds[str(row["kind"])] += row["one"]
            missing += row["missing"] or 0
        newest.add(batch)
    return {
        "event_kinds": dict(kinds.most_common()),
        "event_missing": missing,
        "event_gaps": newest.rows(),
    }


def slow(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 50) -> dict[str, Any]:
    """What was not delivered, per step and per reader, and the newest records of it."""
    step = scope.step()
    counts = [0] * scope.steps(step)
    peers: dict[tuple[Any, ...], Counter[str]] = {}
    newest = Newest(limit)
    for batch in warehouse.read("slow", _SLOW, scope, reading):
        rows = grouped([stepped(batch, scope, step)], ["at", "rank", "peer", "what"], ["events", "bytes"])
        for row in rows:
            lost = {"events": row["events"] or 0, "bytes": row["bytes"] or 0}
            counts[row["at"]] += lost["events"]
            peers.setdefault((row["rank"], row["peer"], row["what"]), Counter()).update(lost)
        newest.add(batch)
    ranked = sorted(peers.items(), key=lambda item: -item[1]["events"])[:limit]
    return {
        "step_s": step,
        "times": scope.times(step),
        "events": counts,
        "total": sum(counts),
        "by": [dict(zip(("rank", "peer", "what"), key, strict=True)) | lost for key, lost in ranked],
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


def _gravity(row: dict[str, Any]) -> tuple[int, int]:
    return -(row["out_of_order"] or 0), -(row["missing"] or 0)


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ``order_check`` with its times as seconds."""
    times = {name: seconds(row[name]) for name in ("first_ts", "last_ts")}
    return {**{name: row[name] for name in _ORDER}, **times}
