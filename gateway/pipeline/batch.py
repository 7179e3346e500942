"""Gold made anew, date by date, from all of bronze: exact, idempotent, all dates of a table in one commit.

Dates are those whose bronze changed since gold was made, and those asked for; around them every table takes in as many
more as its rows reach (``REACH``). All of it is made by DuckDB from bronze as it was at the begin: in this process,
or in the tasks of Spark, each of which makes the tables of some ranks (``pieces``). Where a stream feeds the
warehouse this replaces the rows it added, also where its gold knows all of bronze: ``order_check`` is made here
alone. What is open then is left out, because the stream adds it when it is settled, and what it carries is made anew
where it fell behind. The stream may run meanwhile: its gold waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from gateway import delta
from gateway.pipeline import pieces, runs
from gateway.pipeline.lake import Snapshot
from gateway.pipeline.pieces import JOBS, Made, Piece
from gateway.pipeline.schema import GOLD, MESSAGES, table_named
from gateway.pipeline.tables import inprocess
from gateway.pipeline.tables.increment import TABLES, Kept, newest_ns, open_since
from gateway.pipeline.warehouse import BRONZE, STREAM, Warehouse, dates_of, until_it_passes
from gateway.pipeline.warehouse import GOLD as MADE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[int, int], None]
NAMES: Final = tuple(table.name for table in GOLD)
REACH: Final = {
    "rpc": 1, "rpc_latency": 1, "tree_latency": 1, "errors": 1, "event_gaps": 1, "order_check": 1, "user_usage": 1,
    JOBS: 7,
}  # fmt: skip
"""Days around a date whose rows bear on it, for calls go over midnight; 0 of the others. A call over more days than
that counts as two halves.
"""


PIECE_ROWS: Final = 1 << 24
"""Rows that are made into tables at a time here: what is sorted of more takes time for the disk."""


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
        tell: is told how many tables are done, or tasks.

    Raises:
        PipelineError: no such table, or Spark failed.
        Conflict: another machine made gold meanwhile, again and again.
    """
    for name in tables:
        table_named(name)
    warehouse.ready()
    with warehouse.making_gold():
        return until_it_passes(lambda: _batch(spark, warehouse, set(dates or ()), tables, tell))


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
        since_ns = inprocess.NEVER if feed != STREAM else _open_since(bronze)
        if feed == STREAM and gold < whole and everything:
            _carry(warehouse, bronze, whole, since_ns)
        run.rows_in = sum(file.rows for file in bronze.files(wanted))
        dates = _dates(on, bronze, wanted)
        planned = _planned(warehouse, bronze, dates, wanted, since_ns)
        made = _here(planned, bronze, tell) if spark is None else _by_spark(spark, bronze, planned, tell)
        run.rows_out = _replace(warehouse, on, made, dates, whole)
    run.offsets = {"dates": wanted}
    runs.add(warehouse, run.finish(), {MADE: whole} if everything and gold < whole else None)
    return run


def _open_since(bronze: Snapshot) -> int:
    """What is open and older is waited for no more."""
    with delta.plain_errors(bronze.place):
        return open_since(newest_ns(bronze.dataset(bronze.files(bronze.dates()[-1:]))))


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
        Kept(warehouse.left_open).save(whole, tables.left_open())


# ---------------------------------------------------------------- the tables


def _dates(on: Mapping[str, Snapshot], bronze: Snapshot, wanted: Iterable[str]) -> dict[str, list[str]]:
    """The dates that are made of each table: those that it or bronze has, as far as its rows reach."""
    dates = {}
    for name, table in on.items():
        have = {*bronze.dates(), *table.dates()}
        dates[name] = [each for each in around(wanted, REACH.get(name, 0)) if each in have]
    return dates


def _planned(
    warehouse: Warehouse, bronze: Snapshot, dates: Mapping[str, list[str]], wanted: list[str], since_ns: int
) -> list[Piece]:
    """What is made of all ranks: NFP's jobs, for which more days are read, and all else."""
    rest = [name for name in dates if name != JOBS]
    planned = []
    for reach, names in ((1, rest), (REACH[JOBS], [JOBS])):
        paths = [each.path for each in bronze.files(around(wanted, 2 * reach))]
        if tables := {name: dates[name] for name in names if name in dates}:
            planned.append(Piece(warehouse.place, tables, paths, since_ns=since_ns))
    return planned


def _apart(planned: Sequence[Piece], bronze: Snapshot, count: Callable[[Piece], int]) -> list[Piece]:
    """Each in up to so many pieces by rank, but for what is made of all ranks."""
    tasks: list[Piece] = []
    for each in planned:
        alone = JOBS in each.tables or count(each) <= 1
        tasks += [each] if alone else pieces.by_rank(each, bronze, count(each))
    return tasks


def _here(planned: Sequence[Piece], bronze: Snapshot, tell: Tell | None) -> Iterator[Made]:
    """One after another in this process, each of ``PIECE_ROWS`` where there are ranks enough."""
    rows = {file.path: file.rows for file in bronze.files(bronze.dates())}
    tasks = _apart(planned, bronze, lambda each: -(-sum(rows[path] for path in each.paths) // PIECE_ROWS))
    total, done = sum(len(each.tables) for each in tasks), itertools.count(1)

    def one_more() -> None:
        if tell is not None:
            tell(next(done), total)

    for each in tasks:
        yield pieces.make(each, one_more)


def _by_spark(
    spark: SparkSession, bronze: Snapshot, planned: Sequence[Piece], tell: Tell | None
) -> Iterable[Made]:
    """In tasks. What one wrote that failed, or that was done twice, is not told here, so nobody commits it."""
    from gateway.pipeline.progress import watched
    from gateway.pipeline.session import plain_errors

    context = spark.sparkContext
    threads = int(context.getConf().get("spark.task.cpus", "1"))
    tasks = [
        replace(each, threads=threads)
        for each in _apart(planned, bronze, lambda _: context.defaultParallelism)
    ]
    with plain_errors(), watched(spark, len(tasks), tell):
        return list(context.parallelize(tasks, len(tasks)).map(pieces.make).collect())


def _replace(
    warehouse: Warehouse,
    on: Mapping[str, Snapshot],
    made: Iterable[Made],
    dates: Mapping[str, list[str]],
    whole: int,
) -> int:
    """Commit all tables; returns the rows written."""
    rows = 0
    with pieces.uncommitted(warehouse) as files:
        pieces.together(warehouse, made, files)
        for name, table in on.items():
            rows += warehouse.replace(files.pop(name, []), table, dates[name], {MADE: whole})
    return rows
