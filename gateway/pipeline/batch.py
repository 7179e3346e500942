"""Gold made anew, date by date, from all of bronze: exact, idempotent, whole partitions at once.

Dates are those whose bronze changed since gold was made (``Warehouse.settle``), or those asked for; around them
every table takes in as many more as its rows reach (``catalogue.REACH``). Where a stream feeds the warehouse
this replaces the rows it added; what is open then is left out, because the stream adds it when it is settled,
and what it carries is made anew where it fell behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from gateway.pipeline import runs
from gateway.pipeline.follow import OPEN
from gateway.pipeline.schema import GOLD, MESSAGES, table_named
from gateway.pipeline.session import plain_errors
from gateway.pipeline.tables import calls, increment
from gateway.pipeline.tables.catalogue import BUILD, FROM_CALLS, REACH
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tell = Callable[[int, int], None]
NAMES: Final = tuple(table.name for table in GOLD)


def batch(
    spark: SparkSession,
    warehouse: Warehouse,
    dates: Iterable[str] | None = None,
    *,
    tables: Sequence[str] = NAMES,
    tell: Tell | None = None,
) -> runs.Run:
    """Make gold for some dates; adds one row to ``_runs``. Call under the warehouse's lock.

    Args:
        spark: where.
        warehouse: which.
        dates: ``2026-01-31``; None: those that gold does not know yet.
        tables: which; only when all are made does gold count as made.
        tell: is told how many tables are done.

    Raises:
        PipelineError: no such table, or Spark failed.
    """
    for name in tables:
        table_named(name)
    told = warehouse.feed()
    run = runs.Run("batch", told.get("feed", "ingest"))
    stale = warehouse.settle()
    wanted = sorted(stale if dates is None else set(dates) & {*stale, *warehouse.dates(MESSAGES.name)})
    with plain_errors():
        if wanted:
            streamed = told.get("feed") == "stream"
            run.rows_in, run.rows_out = _make(spark, warehouse, wanted, tables, tell, streamed)
            if streamed and stale:
                _carry(spark, warehouse, told.get("bronze", -1))
    if set(tables) >= set(NAMES) and set(wanted) >= set(stale):
        warehouse.gold_made()
    run.offsets = {"dates": wanted}
    runs.add(warehouse, run.finish())
    return run


def around(dates: Iterable[str], days: int) -> list[str]:
    """The dates and as many days before and behind each.

    >>> around(["2026-03-01"], 1)
    ['2026-02-28', '2026-03-01', '2026-03-02']
    """
    every = range(-days, days + 1)
    return sorted({str(date.fromisoformat(each) + timedelta(days=step)) for each in dates for step in every})


def _make(
    spark: SparkSession,
    warehouse: Warehouse,
    wanted: list[str],
    names: Sequence[str],
    tell: Tell | None,
    streamed: bool,
) -> tuple[int, int]:
    """All tables for the dates; returns rows read and rows written."""
    since_ns = _open_since(spark, warehouse) if streamed else None
    written = 0
    with _calls(spark, warehouse, around(wanted, 2), since_ns) as found:
        for done, name in enumerate(names):
            if tell is not None:
                tell(done, len(names))
            written += _overwrite(spark, warehouse, name, wanted, found, since_ns)
    if tell is not None:
        tell(len(names), len(names))
    return warehouse.read(spark, MESSAGES.name, wanted).count(), written


def _overwrite(
    spark: SparkSession,
    warehouse: Warehouse,
    name: str,
    wanted: list[str],
    found: DataFrame,
    since_ns: int | None,
) -> int:
    reach = REACH.get(name, 0)
    have = {*warehouse.dates(MESSAGES.name), *warehouse.dates(name)}
    made = [each for each in around(wanted, reach) if each in have]
    bronze = warehouse.read(spark, MESSAGES.name, around(made, reach))
    if name == "job_outcomes" and since_ns is not None:
        bronze = increment.settled_jobs(bronze, since_ns)
    rows = FROM_CALLS[name](found, bronze) if name in FROM_CALLS else BUILD[name](bronze)
    return warehouse.overwrite(
        rows.where(fn.col("dt").isin([date.fromisoformat(each) for each in made])), name, made
    )


@contextmanager
def _calls(
    spark: SparkSession, warehouse: Warehouse, dates: list[str], since_ns: int | None
) -> Iterator[DataFrame]:
    """The calls of those dates, matched once; without the open ones where a stream will add them."""
    bronze = warehouse.read(spark, MESSAGES.name, dates)
    found = calls.calls(calls.legs(resolved(bronze)))
    if since_ns is not None:
        found = increment.told_open(found, bronze).where(~fn.col("open") | (fn.col("req_ns") < since_ns))
    found = found.persist()
    try:
        yield found
    finally:
        found.unpersist()


def _open_since(spark: SparkSession, warehouse: Warehouse) -> int:
    """What is open and younger than this the stream carries."""
    last = warehouse.dates(MESSAGES.name)[-1:]
    newest = warehouse.read(spark, MESSAGES.name, last).agg(fn.max("ts_ns")).first()[0]
    return int(newest or 0) - int(increment.EXPIRES_S * 1e9)


def _carry(spark: SparkSession, warehouse: Warehouse, bronze: int) -> None:
    """What the stream's next batch starts from, when gold did not know of the last ones."""
    last = warehouse.dates(MESSAGES.name)[-2:]
    rows = warehouse.read(spark, MESSAGES.name, last)
    with increment.increment(rows, increment.nothing(spark)) as (_tables, carried):
        increment.Kept(warehouse.root / OPEN).save(bronze, carried)
