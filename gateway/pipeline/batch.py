"""Gold made anew, date by date, from all of bronze: exact, idempotent, all dates of a table in one commit.

Dates are those whose bronze changed since gold was made, and those asked for; around them every table takes in as many
more as its rows reach (``REACH``). All of it is made from bronze as it was at the begin: by Spark, or in this process
(``tables.inprocess``), which is the faster one where the rows are few enough for one machine. Where a stream feeds the
warehouse this replaces the rows it added, also where its gold knows all of bronze: ``order_check`` is made here alone.
What is open then is left out, because the stream adds it when it is settled, and what it carries is made anew where it
fell behind. The stream may run meanwhile: its gold waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, Protocol

from gateway.pipeline import runs
from gateway.pipeline.follow import OPEN
from gateway.pipeline.lake import File, Snapshot
from gateway.pipeline.schema import GOLD, MESSAGES, table_named
from gateway.pipeline.tables import inprocess
from gateway.pipeline.tables.increment import TABLES, Kept, newest_ns, open_since
from gateway.pipeline.warehouse import BRONZE, STREAM, Warehouse, dates_of, until_it_passes
from gateway.pipeline.warehouse import GOLD as MADE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tell = Callable[[int, int], None]
NAMES: Final = tuple(table.name for table in GOLD)
HERE_ROWS: Final = 2_000_000
"""What is made in this process unless Spark is asked for: so many take 2 GiB, and half a minute of CPU."""
REACH: Final = {
    "rpc": 1, "rpc_latency": 1, "tree_latency": 1, "errors": 1, "event_gaps": 1, "order_check": 1, "user_usage": 1,
    "job_outcomes": 7,
}  # fmt: skip
"""Days around a date whose rows bear on it, for calls go over midnight; 0 of the others. A call over more days than
that counts as two halves.
"""


def batch(
    spark: SparkSession | None,
    warehouse: Warehouse,
    dates: Iterable[str] | None = None,
    *,
    tables: Sequence[str] = NAMES,
    tell: Tell | None = None,
) -> runs.Run:
    """Make gold for the dates that it does not know yet, and for some more; adds one row to ``_runs``.

    Args:
        spark: where; None: in this process.
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
    with warehouse.making_gold(), _plain_errors(spark):
        return until_it_passes(lambda: _batch(spark, warehouse, set(dates or ()), tables, tell))


@contextmanager
def _plain_errors(spark: SparkSession | None) -> Iterator[None]:
    if spark is None:
        yield
        return
    from gateway.pipeline.session import plain_errors

    with plain_errors():
        yield


def rows_to_read(warehouse: Warehouse, dates: Iterable[str] | None = None) -> int:
    """How many rows of bronze ``batch`` would read for all tables."""
    bronze = warehouse.at(MESSAGES.name)
    known = _known({name: warehouse.at(name) for name in NAMES}, warehouse.gold())
    wanted = {*_stale(bronze, known, bronze.done(BRONZE)), *(dates or ())}
    return sum(file.rows for file in bronze.files(around(wanted, 2)))


def _batch(
    spark: SparkSession | None,
    warehouse: Warehouse,
    asked: set[str],
    tables: Sequence[str],
    tell: Tell | None,
) -> runs.Run:
    feed = warehouse.feed().get("feed", "ingest")
    run = runs.Run("batch", feed, by="DuckDB" if spark is None else "Spark")
    on = {name: warehouse.at(name) for name in tables}
    gold = warehouse.gold()
    bronze = warehouse.at(MESSAGES.name)
    whole = bronze.done(BRONZE)
    stale = _stale(bronze, _known(on, gold), whole)
    wanted = sorted((stale | asked) & set(bronze.dates()))
    everything = set(tables) >= set(NAMES)
    if wanted:
        last = bronze.dataset(bronze.files(bronze.dates()[-1:]))
        since_ns = open_since(newest_ns(last)) if feed == STREAM else inprocess.NEVER
        if feed == STREAM and gold < whole and everything:
            _carry(warehouse, bronze, whole, since_ns)
        run.rows_in = sum(file.rows for file in bronze.files(wanted))
        with _made(spark, warehouse, bronze, wanted, since_ns) as made:
            run.rows_out = _replace(made, warehouse, on, bronze, wanted, whole, tell)
    run.offsets = {"dates": wanted}
    runs.add(warehouse, run.finish(), {MADE: whole} if everything and gold < whole else None)
    return run


def _known(on: Mapping[str, Snapshot], gold: int) -> int:
    """Up to which addition to bronze all of some tables were made; ``gold`` counts those that a stream's steps make."""
    return min(max(each.done(MADE), gold if name in TABLES else -1) for name, each in on.items())


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


def _carry(warehouse: Warehouse, bronze: Snapshot, whole: int, since_ns: int) -> None:
    """What the stream's next step starts from, when gold did not know of the last additions."""
    rows = bronze.dataset(bronze.files(bronze.dates()[-2:]))
    with inprocess.tables_of(rows, since_ns=since_ns) as tables:
        Kept(warehouse.root / OPEN).save(whole, tables.left_open())


# ---------------------------------------------------------------- the tables


class _Made(Protocol):
    """Makes the rows of a table for some dates."""

    def files(self, name: str, dates: list[str]) -> list[File]: ...


def _replace(
    made: _Made,
    warehouse: Warehouse,
    on: dict[str, Snapshot],
    bronze: Snapshot,
    wanted: list[str],
    whole: int,
    tell: Tell | None,
) -> int:
    """All tables; returns the rows written."""
    written = 0
    for number, (name, table) in enumerate(on.items()):
        if tell is not None:
            tell(number, len(on))
        have = {*bronze.dates(), *table.dates()}
        dates = [each for each in around(wanted, REACH.get(name, 0)) if each in have]
        written += warehouse.replace(made.files(name, dates), table, dates, {MADE: whole})
    if tell is not None:
        tell(len(on), len(on))
    return written


@contextmanager
def _made(
    spark: SparkSession | None, warehouse: Warehouse, bronze: Snapshot, wanted: list[str], since_ns: int
) -> Iterator[_Made]:
    """Tables of some dates from one snapshot of bronze; what is open and not older than ``since_ns`` a stream adds."""
    if spark is not None:
        with _BySpark(spark, warehouse, bronze, since_ns).matched(wanted) as by_spark:
            yield by_spark
        return
    rows, jobs = (
        bronze.dataset(bronze.files(around(wanted, days))) for days in (2, 2 * REACH["job_outcomes"])
    )
    with inprocess.tables_of(rows, jobs=jobs, since_ns=since_ns) as tables:
        yield _Here(warehouse, tables)


class _Here:
    """By DuckDB."""

    def __init__(self, warehouse: Warehouse, tables: inprocess.Tables) -> None:
        self._warehouse, self._tables = warehouse, tables

    def files(self, name: str, dates: list[str]) -> list[File]:
        return self._warehouse.write_rows(name, self._tables.rows(name, dates))


class _BySpark:
    """By Spark; calls are matched once for all tables that stand on them."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse, bronze: Snapshot, since_ns: int) -> None:
        self._spark, self._warehouse, self._bronze, self._since_ns = spark, warehouse, bronze, since_ns
        self._calls: DataFrame

    @contextmanager
    def matched(self, wanted: list[str]) -> Iterator[_BySpark]:
        """With the calls of those dates, without the open ones where a stream will add them."""
        from gateway.pipeline.tables import calls, endpoints

        bronze = self._bronze.read(self._spark, around(wanted, 2))
        found = calls.calls(calls.legs(endpoints.resolved(bronze)))
        if self._since_ns != inprocess.NEVER:
            found = calls.settled(found, bronze, self._since_ns)
        self._calls = found.persist()
        try:
            yield self
        finally:
            self._calls.unpersist()

    def files(self, name: str, dates: list[str]) -> list[File]:
        from pyspark.sql import functions as fn

        from gateway.pipeline.tables import job_outcomes
        from gateway.pipeline.tables.catalogue import BUILD, FROM_CALLS

        bronze = self._bronze.read(self._spark, around(dates, REACH.get(name, 0)))
        if name == "job_outcomes" and self._since_ns != inprocess.NEVER:
            bronze = job_outcomes.settled(bronze, self._since_ns)
        rows = FROM_CALLS[name](self._calls, bronze) if name in FROM_CALLS else BUILD[name](bronze)
        rows = rows.where(fn.col("dt").isin([date.fromisoformat(each) for each in dates]))
        return self._warehouse.write_frame(rows, name)
