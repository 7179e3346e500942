"""Gold made anew, date by date, from all of bronze: exact, idempotent, all dates of a table in one commit.

Dates are those whose bronze changed since gold was made, and those asked for; around them every table takes in as many
more as its rows reach (``catalogue.REACH``). All of it is made from bronze as it was at the begin. Where a stream feeds
the warehouse this replaces the rows it added; what is open then is left out, because the stream adds it when it is
settled, and what it carries is made anew where it fell behind. The stream may run meanwhile: its gold waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as fn

from gateway.pipeline import runs
from gateway.pipeline.follow import OPEN
from gateway.pipeline.lake import Snapshot
from gateway.pipeline.schema import GOLD, MESSAGES, table_named
from gateway.pipeline.session import plain_errors
from gateway.pipeline.tables import calls, increment
from gateway.pipeline.tables.catalogue import BUILD, FROM_CALLS, REACH
from gateway.pipeline.tables.endpoints import resolved
from gateway.pipeline.warehouse import BRONZE, STREAM, Warehouse, dates_of, until_it_passes
from gateway.pipeline.warehouse import GOLD as MADE

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
    """Make gold for the dates that it does not know yet, and for some more; adds one row to ``_runs``.

    Args:
        spark: where.
        warehouse: which.
        dates: these, too (``2026-01-31``).
        tables: which; only when all are made does gold count as made.
        tell: is told how many tables are done.

    Raises:
        PipelineError: no such table, or Spark failed.
        Conflict: another machine made gold meanwhile, again and again.
    """
    for name in tables:
        table_named(name)
    warehouse.ready()
    wanted = set(dates or ())
    with warehouse.making_gold(), plain_errors():
        return until_it_passes(lambda: _batch(spark, warehouse, wanted, tables, tell))


def _batch(
    spark: SparkSession, warehouse: Warehouse, asked: set[str], tables: Sequence[str], tell: Tell | None
) -> runs.Run:
    feed = warehouse.feed().get("feed", "ingest")
    run = runs.Run("batch", feed)
    on = {name: warehouse.at(name) for name in tables}
    known = min(max(warehouse.gold(), each.done(MADE)) for each in on.values())
    bronze = warehouse.at(MESSAGES.name)
    whole = bronze.done(BRONZE)
    stale = _stale(bronze, known, whole)
    wanted = sorted((stale | asked) & set(bronze.dates()))
    everything = set(tables) >= set(NAMES)
    if wanted:
        if feed == STREAM and stale and everything:
            _carry(spark, warehouse, bronze, whole)
        job = _Job(spark, warehouse, bronze, wanted, _open_since(spark, bronze) if feed == STREAM else None)
        run.rows_in = sum(file.rows for file in bronze.files(wanted))
        run.rows_out = job.make(on, whole, tell)
    run.offsets = {"dates": wanted}
    runs.add(warehouse, run.finish(), {MADE: whole} if everything and whole > warehouse.gold() else None)
    return run


def _stale(bronze: Snapshot, known: int, whole: int) -> set[str]:
    """The dates that additions to bronze touched; all where the log does not reach back so far."""
    notes = bronze.notes(known, BRONZE, whole) if known >= 0 else []
    return dates_of(notes) if len(notes) == whole - known else set(bronze.dates())


def around(dates: Iterable[str], days: int) -> list[str]:
    """The dates and as many days before and behind each.

    >>> around(["2026-03-01"], 1)
    ['2026-02-28', '2026-03-01', '2026-03-02']
    """
    every = range(-days, days + 1)
    return sorted({str(date.fromisoformat(each) + timedelta(days=step)) for each in dates for step in every})


class _Job:
    """Tables of some dates, from one snapshot of bronze; ``since_ns``: what is open and younger a stream adds."""

    def __init__(
        self,
        spark: SparkSession,
        warehouse: Warehouse,
        bronze: Snapshot,
        wanted: list[str],
        since_ns: int | None,
    ) -> None:
        self._spark, self._warehouse, self._bronze = spark, warehouse, bronze
        self._wanted, self._since_ns = wanted, since_ns

    def make(self, on: dict[str, Snapshot], whole: int, tell: Tell | None) -> int:
        """All tables; returns the rows written."""
        written = 0
        with self._calls() as found:
            for number, (name, table) in enumerate(on.items()):
                if tell is not None:
                    tell(number, len(on))
                rows, dates = self._rows(name, table, found)
                written += self._warehouse.overwrite(rows, table, dates, {MADE: whole})
        if tell is not None:
            tell(len(on), len(on))
        return written

    def _rows(self, name: str, table: Snapshot, found: DataFrame) -> tuple[DataFrame, list[str]]:
        """The rows of a table, and of which dates they are all."""
        reach = REACH.get(name, 0)
        have = {*self._bronze.dates(), *table.dates()}
        made = [each for each in around(self._wanted, reach) if each in have]
        bronze = self._bronze.read(self._spark, around(made, reach))
        if name == "job_outcomes" and self._since_ns is not None:
            bronze = increment.settled_jobs(bronze, self._since_ns)
        rows = FROM_CALLS[name](found, bronze) if name in FROM_CALLS else BUILD[name](bronze)
        return rows.where(fn.col("dt").isin([date.fromisoformat(each) for each in made])), made

    @contextmanager
    def _calls(self) -> Iterator[DataFrame]:
        """The calls of those dates, matched once; without the open ones where a stream will add them."""
        bronze = self._bronze.read(self._spark, around(self._wanted, 2))
        found = calls.calls(calls.legs(resolved(bronze)))
        if self._since_ns is not None:
            opened = fn.col("open") & (fn.col("req_ns") >= self._since_ns)
            found = increment.told_open(found, bronze).where(~opened)
        found = found.persist()
        try:
            yield found
        finally:
            found.unpersist()


def _open_since(spark: SparkSession, bronze: Snapshot) -> int:
    """What is open and younger than this the stream carries."""
    newest = bronze.read(spark, bronze.dates()[-1:]).agg(fn.max("ts_ns")).first()[0]
    return int(newest or 0) - int(increment.EXPIRES_S * 1e9)


def _carry(spark: SparkSession, warehouse: Warehouse, bronze: Snapshot, whole: int) -> None:
    """What the stream's next step starts from, when gold did not know of the last additions."""
    rows = bronze.read(spark, bronze.dates()[-2:])
    with increment.increment(rows, increment.nothing(spark)) as (_tables, carried):
        increment.Kept(warehouse.root / OPEN).save(whole, carried)
