"""Messages over time, and who sends most of them; from the tables ``traffic`` (windows of 10 s) and ``errors``.

What is counted: messages of the kinds that carry something (flux, nfp, oslo), each once, as it came in or was refused
at the door; an answer by direction counts deliveries, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, get_args

from gateway.history.files import Reading, arrow
from gateway.history.grouping import grouped, ranked, series, stepped
from gateway.history.scope import Scope
from gateway.history.tables import Warehouse

By = Literal["type", "service", "topic", "rank", "transport", "direction"]
BYS: Final[tuple[str, ...]] = get_args(By)
"""What a chart of traffic can be split by."""
SERIES: Final = 8
"""Lines of a chart; what else there is goes into ``other``."""
_COLUMNS: Final = ("rank", "direction", "kind", "service", "topic", "type", "transport", "userid")
_NUMBERS: Final = ("n", "payload_bytes", "wire_bytes")


def over_time(warehouse: Warehouse, scope: Scope, reading: Reading, by: str = "type") -> dict[str, Any]:
    """Messages and bytes per step, one series per value of ``by``, the largest first."""
    step = scope.step(10)
    read = _read(warehouse, scope, reading, {"direction", "kind", "type", by})
    batches = stepped((_named(batch, by) for batch in read), scope, step)
    rows = grouped(batches, ["name", "at", "direction"], _NUMBERS)
    carried = [row for row in rows if by == "direction" or row["direction"] != "out"]
    lines = series(
        carried, lambda row: str(row["name"]), {"n": "n", "bytes": "wire_bytes"}, scope.steps(step), SERIES
    )
    return {"by": by, "step_s": step, "times": scope.times(step), "series": lines}


def talkers(warehouse: Warehouse, scope: Scope, reading: Reading, limit: int = 20) -> dict[str, Any]:
    """Who and what made most messages: by user, by topic, by service; and each user's whole days."""
    rows = grouped(
        _read(warehouse, scope, reading, {"direction", "kind", "type", "userid", "topic", "service"}),
        ["userid", "topic", "service", "type", "direction"],
        _NUMBERS,
    )
    names = ["userid", "topic", "service"]
    failed = grouped(warehouse.read("errors", [*names, "n"], scope, reading), names, ["n"])
    tops: dict[str, Any] = {}
    for name in names:
        tops[f"by_{name}"] = _ranked(rows, failed, name)[:limit]
    return {**tops, "usage": _usage(warehouse, scope, reading)[:limit]}


def totals(warehouse: Warehouse, scope: Scope, reading: Reading) -> dict[str, Any]:
    """Sums over the whole scope, and the services and ranks there are, for the filters of a page.

    The lists are those of the time, whatever filter is set; a sum is what the filters leave.
    """
    whole = Scope(scope.since, scope.until)
    rows = grouped(
        _read(warehouse, whole, reading, {"direction", "kind", "service", "rank"}),
        ["service", "rank", "direction", "kind"],
        _NUMBERS,
    )
    inside = [
        row
        for row in rows
        if scope.service in (None, row["service"]) and (scope.rank is None or row["rank"] == scope.rank)
    ]
    services = ranked((row for row in rows if row["service"]), ["service"], {"n": "n"}, 200)
    came = [row for row in inside if row["direction"] != "out"]
    failed = grouped(warehouse.read("errors", ["n"], scope, reading), [], ["n"])
    return {
        "messages": sum(row["n"] or 0 for row in came),
        **{name: sum(row[name] or 0 for row in came) for name in ("payload_bytes", "wire_bytes")},
        "errors": sum(row["n"] or 0 for row in failed),
        "services": [each["service"] for each in services],
        "ranks": sorted({row["rank"] for row in rows if row["rank"] is not None})[:1000],
    }


# ---------------------------------------------------------------- rows


def _read(warehouse: Warehouse, scope: Scope, reading: Reading, names: set[str]) -> Iterator[Any]:
    """Batches with these columns and the numbers, without the journal's own records."""
    compute = arrow("compute")
    columns = [*(name for name in _COLUMNS if name in names), *_NUMBERS]
    for batch in warehouse.read("traffic", columns, scope, reading):
        kept = batch.filter(compute.not_equal(batch.column("kind"), "state"))
        if kept.num_rows:
            yield kept


def _named(batch: Any, by: str) -> Any:
    """The batch with a column ``name``: the value of ``by`` as text; what has no type goes by its kind."""
    pa, compute = arrow(), arrow("compute")
    value = batch.column(by).cast(pa.string())
    other = batch.column("kind") if by == "type" else "(none)"
    return batch.append_column("name", compute.coalesce(value, other))


def _ranked(rows: list[dict[str, Any]], failed: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    by_key: dict[Any, dict[str, Any]] = {}

    def entry_of(row: dict[str, Any]) -> dict[str, Any]:
        zero = dict.fromkeys(("n", "requests", "responses", "events", "bytes", "errors"), 0)
        return by_key.setdefault(row[name], {name: row[name], **zero})

    for row in failed:
        if row[name] is not None or name == "userid":  # a link that was refused has no topic
            entry_of(row)["errors"] += row["n"] or 0
    for row in rows:
        entry = entry_of(row)
        if row["direction"] != "out":
            entry["n"] += row["n"] or 0
            entry["bytes"] += row["wire_bytes"] or 0
            if f"{row['type']}s" in entry:
                entry[f"{row['type']}s"] += row["n"] or 0
    return sorted(by_key.values(), key=lambda entry: (-entry["n"], -entry["errors"], str(entry[name])))


def _usage(warehouse: Warehouse, scope: Scope, reading: Reading) -> list[dict[str, Any]]:
    """``user_usage`` of the days the scope touches; it knows no rank and no service."""
    days = Scope(scope.since, scope.until).whole_days()
    names = ("requests", "responses", "events", "denied", "errors", "payload_bytes", "wire_bytes", "rpc_ns")
    rows = grouped(warehouse.read("user_usage", ["userid", *names], days, reading), ["userid"], names)
    return sorted(rows, key=lambda row: -(row["wire_bytes"] or 0))
