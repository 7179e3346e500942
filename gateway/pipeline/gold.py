"""Gold: the tables made of bronze (``tables``), by Spark, date by date or as a stream goes on.

``batch`` makes whole dates anew, exact and idempotent, all dates of a table in one commit. Dates are those whose bronze
changed since gold was made, and those asked for; around them every table takes in as many more as its rows reach
(``REACH``). Where a stream feeds the warehouse this replaces the rows that it added, also where its gold knows all of
bronze: ``order_check`` is made here alone. The stream may run meanwhile: its gold waits.

``step`` adds what came into bronze since the last one (``Follow`` does so beside a stream, every ``PACE_S``, so bronze
is as fresh as its batches and gold that much older). A call goes into gold when it has ended, its tag was taken, or it
is older than ``EXPIRES_S``; a job when its final status passed, or nothing was heard of it for as long. What is open
until then is carried in the table ``_open``. Tables of sums get several rows for one key this way: they add up,
percentiles included, and ``batch`` makes one row of them.

Where the stream ends, and in ``batch``, what is open is told as it is: a call is ``unanswered`` so far. Such rows stand
in files of their own (``SO_FAR``), which the next step takes out in the commit that adds its rows, so that a call that
is answered later counts once.

Each table gets its rows with the number of the last addition to bronze that they are of, then ``_open`` does, then
``_runs``: a step that was killed is done again from the same ``_open``, and adds to no table twice. Tables that are
ahead, because a step was killed or ``batch`` made them, end the next step where they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, Self

from broker.journal.stores import is_url
from gateway import delta
from gateway.delta import PARTITION, File
from gateway.pipeline import lake
from gateway.pipeline.errors import Conflict, PipelineError
from gateway.pipeline.lake import SO_FAR, Snapshot
from gateway.pipeline.schema import GOLD, MESSAGES, OPEN, table_named
from gateway.pipeline.session import plain_errors
from gateway.pipeline.tables.queries import NEVER, Tables, open_since, tables_of
from gateway.pipeline.warehouse import BRONZE, INGEST, STREAM, Run, Warehouse, dates_of, until_it_passes
from gateway.pipeline.warehouse import GOLD as MADE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

OnRun = Callable[[Run], None]
NAMES: Final = tuple(table.name for table in GOLD)
JOBS: Final = "job_outcomes"
STEPPED: Final = tuple(name for name in NAMES if name != "order_check")
"""``order_check`` compares two ends of a broker, which need not lie in one step."""
REACH: Final = {
    "rpc": 1, "rpc_latency": 1, "tree_latency": 1, "denied": 1, "errors": 1, "event_gaps": 1, "order_check": 1,
    "user_usage": 1, JOBS: 7,
}  # fmt: skip
"""Days around a date whose rows bear on it, for calls go over midnight; 0 of the others. A call over more days than
that counts as two halves.
"""
AT_ONCE: Final = 4
"""Tables made at the same time."""
ADDITIONS_MOST: Final = 1000
"""Of one step: what a stream left behind for days is caught up with in pieces."""
PACE_S: Final = 15.0
"""From one step to the next: each is some seconds of work, a file and a version of every table that it has rows of."""
TAG: Final = "headgate-gold"
"""Of Spark's jobs that make gold, by which they are ended; and the pool that they share, so that a core that gets free
is bronze's, if it wants one.
"""
_LOOK_S: Final = 0.5


# ---------------------------------------------------------------- whole dates


def batch(
    spark: SparkSession,
    warehouse: Warehouse,
    dates: Iterable[str] | None = None,
    *,
    tables: Sequence[str] = NAMES,
) -> Run:
    """Make gold for the dates that it does not know yet, and for some more; adds one row to ``_runs``.

    Args:
        spark: where.
        warehouse: which.
        dates: these, too (``2026-01-31``).
        tables: which; only when all are made does gold count as made.

    Raises:
        PipelineError: no such table, or Spark failed.
        Conflict: another machine made gold meanwhile, again and again.
    """
    for name in tables:
        table_named(name)
    warehouse.ready()
    with warehouse.making_gold():
        return until_it_passes(lambda: _batch(spark, warehouse, set(dates or ()), tables))


def _batch(spark: SparkSession, warehouse: Warehouse, asked: set[str], tables: Sequence[str]) -> Run:
    streamed = warehouse.feed().get("feed") == STREAM
    run = Run("batch", STREAM if streamed else INGEST)
    gold = warehouse.gold()
    with _Making(spark, warehouse, tables) as making:
        bronze, on = making.bronze, making.on
        whole = bronze.done(BRONZE)
        # up to where all of them were made; of those that a stream's steps make, `gold` is
        known = min(max(each.done(MADE), gold if name in STEPPED else -1) for name, each in on.items())
        wanted = sorted((_stale(bronze, known, whole) | asked) & set(bronze.dates()))
        everything = set(tables) >= set(NAMES)
        if wanted:
            run.rows_in = sum(file.rows for file in bronze.files(wanted))
            dates = {
                name: sorted({*bronze.dates(), *table.dates()} & around(wanted, REACH.get(name, 0)))
                for name, table in on.items()
            }
            since_ns = _open_since(bronze) if streamed else NEVER
            for read, names in _planned(bronze, wanted, tables):
                with making.tables(read, since_ns=since_ns) as made:
                    making.write(made, {name: dates[name] for name in names})
            behind = streamed and warehouse.at(OPEN.name).done(MADE) < whole
            if streamed:
                left = making.left_open(since_ns) if behind else warehouse.scan(OPEN.name)
                making.write_so_far(left, tables)
            for name, table in on.items():
                gone = [each for each in table.files() if each.date in dates[name] or lake.is_so_far(each)]
                run.rows_out += making.commit(name, gone, {MADE: whole})
            if behind and everything:
                _carry(warehouse, left, whole)
    run.offsets = {"dates": wanted}
    return warehouse.record(run, {MADE: whole} if everything and gold < whole else None)


def _open_since(bronze: Snapshot) -> int:
    """What is open and older is waited for no more."""
    import pyarrow.compute as pc

    with delta.plain_errors(bronze.place):
        rows = bronze.dataset(bronze.files(bronze.dates()[-1:])).scanner(columns=["ts_ns"]).to_batches()
        return open_since(max((pc.max(each["ts_ns"]).as_py() for each in rows if len(each)), default=0))


def _stale(bronze: Snapshot, known: int, whole: int) -> set[str]:
    """The dates that additions to bronze touched; all where the log does not reach back so far."""
    notes = bronze.notes(known, BRONZE, whole) if known >= 0 else []
    return dates_of(notes) if len(notes) == whole - known else set(bronze.dates())


def around(dates: Iterable[str], days: int) -> set[str]:
    """The dates and as many days before and behind each.

    >>> sorted(around(["2026-03-01"], 1))
    ['2026-02-28', '2026-03-01', '2026-03-02']
    """
    every = range(-days, days + 1)
    return {str(date.fromisoformat(each) + timedelta(days=step)) for each in dates for step in every}


def _planned(
    bronze: Snapshot, wanted: Sequence[str], tables: Sequence[str]
) -> Iterator[tuple[list[File], list[str]]]:
    """Files, and the tables that are made of them: for NFP's jobs more days are read, where there are more."""
    near, far = (bronze.files(around(wanted, 2 * reach)) for reach in (1, REACH[JOBS]))
    apart = {JOBS} & set(tables) if near != far else set()
    for read, names in ((near, [each for each in tables if each not in apart]), (far, list(apart))):
        if names:
            yield read, names


# ---------------------------------------------------------------- a stream's steps


def step(spark: SparkSession, warehouse: Warehouse) -> Run | None:
    """Add to gold what came into bronze; None where nothing did.

    Raises:
        Conflict: another job made gold meanwhile.
        PipelineError: the files of an addition are not there any more, or Spark failed.
    """
    bronze, carried = warehouse.at(MESSAGES.name), warehouse.at(OPEN.name)
    known = carried.done(MADE)
    if (
        known < warehouse.gold()
    ):  # made when something else fed the warehouse: what was open then is unanswered
        return _batch(spark, warehouse, set(bronze.dates()[-2:]), NAMES)
    with _Making(spark, warehouse, STEPPED) as making:
        made_of = {name: each.done(MADE) for name, each in making.on.items()}
        ahead = [number for number in made_of.values() if number > known]
        until = min([bronze.done(BRONZE), known + ADDITIONS_MOST, *ahead])
        if until <= known:
            return None
        notes = bronze.notes(known, BRONZE, until)
        run = Run("gold", STREAM, until)
        run.rows_in = sum(note["rows"] for note in notes)
        read = [File(path, "", 0, 0) for note in notes for path in note["files"]]
        if len(notes) < until - known or not bronze.has(read):
            raise PipelineError(
                f"{warehouse}: the gold tables are too far behind to add to them: headgate pipeline batch makes "
                "them anew"
            )
        due = [name for name, number in made_of.items() if number < until]
        with making.tables(read, before=carried.scan(), since_ns=None, rows=run.rows_in) as made:
            making.write(made, dict.fromkeys(due))
            after = made.left_open()
        for name in due:
            run.rows_out += making.commit(name, making.so_far(name), {MADE: until}, always=False)
        _carry(warehouse, after, until)
    return warehouse.record(run, {MADE: until})


def tell_open(spark: SparkSession, warehouse: Warehouse) -> None:
    """Put what a stream left open into gold, as it is so far, once.

    Raises:
        Conflict: another job made gold meanwhile.
        PipelineError: Spark failed.
    """
    carried = warehouse.at(OPEN.name)
    number = carried.done(MADE)
    if carried.done(SO_FAR) == number:
        return
    with _Making(spark, warehouse, STEPPED) as making:
        making.write_so_far(carried.scan(), STEPPED)
        for name in list(making.files):
            making.commit(name, making.so_far(name))
    carried.commit([], done={SO_FAR: number})


def _carry(warehouse: Warehouse, left: pa.Table, number: int) -> None:
    """Keep what is open behind an addition to bronze, instead of what was kept."""
    carried = warehouse.at(OPEN.name)
    files = warehouse.write_rows(OPEN.name, left)
    carried.commit(files, removed=carried.files(), done={MADE: number})


class Follow(threading.Thread):
    """Makes gold as long as the stream runs.

    Args:
        spark: the stream's.
        warehouse: which.
        on_run: called after each step.

    Attributes:
        error: what ended it, or None.
    """

    def __init__(self, spark: SparkSession, warehouse: Warehouse, on_run: OnRun | None = None) -> None:
        super().__init__(name="gold", daemon=True)
        self._spark, self._warehouse, self._on_run = spark, warehouse, on_run
        self._come, self._leave = threading.Event(), threading.Event()
        self._come.set()  # what an earlier stream left
        self._all = False
        self.error: Exception | None = None

    def wake(self) -> None:
        """There is more in bronze."""
        self._come.set()

    def finish(self, *, all_of_it: bool) -> None:
        """End it: behind the last batch, with what is open as it is then; or at once, and the step that goes on is done
        again the next time.

        Raises:
            PipelineError: a step failed.
        """
        self._all = all_of_it
        self._leave.set()
        self._come.set()
        while not all_of_it and self.is_alive():
            self._spark.sparkContext.cancelJobsWithTag(TAG)
            self.join(_LOOK_S)
        self.join()
        if self.error is not None and all_of_it:
            raise self.error

    def run(self) -> None:
        """Step by step."""
        _tagged(self._spark)
        try:
            leaving = False
            while not leaving:
                self._come.wait()
                self._come.clear()
                leaving, began = self._leave.is_set(), time.monotonic()
                while (self._all or not self._leave.is_set()) and self._turn():
                    self._leave.wait(max(0.0, began + PACE_S - time.monotonic()))
                    began = time.monotonic()
            if self._all:
                with self._warehouse.making_gold():
                    until_it_passes(lambda: tell_open(self._spark, self._warehouse))
        except Exception as error:  # told by whoever waits for the stream
            if self._all or not self._leave.is_set():
                self.error = error

    def _turn(self) -> bool:
        """One step, unless another job makes gold right now; whether there may be more to do."""
        with self._warehouse.making_gold(wait=self._all) as ours:
            if ours:
                try:
                    run = step(self._spark, self._warehouse)
                except Conflict:
                    return True
                if run is not None and self._on_run is not None:
                    self._on_run(run)
                return run is not None
        self._come.wait(_LOOK_S)
        return True


# ---------------------------------------------------------------- rows of tables -> files


class _Making:
    """Tables that are being made; an error deletes the files that no commit has yet.

    Attributes:
        bronze: as it was at the begin.
        on: the tables as they were.
        files: of each table, not committed yet.
    """

    def __init__(self, spark: SparkSession, warehouse: Warehouse, names: Iterable[str]) -> None:
        self._spark, self._warehouse = spark, warehouse
        self.bronze = warehouse.at(MESSAGES.name)
        self.on = {name: warehouse.at(name) for name in names}
        self.files: dict[str, list[File]] = defaultdict(list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        for name, files in self.files.items():
            lake.discard(self._warehouse.table(name), [each.path for each in files])

    @contextlib.contextmanager
    def tables(
        self,
        read: Sequence[File],
        *,
        before: pa.Table | None = None,
        since_ns: int | None = NEVER,
        rows: int | None = None,
    ) -> Iterator[Tables]:
        """The tables of some files of bronze; ``rows``: how many they have, if they do not say so."""

        def given(session: SparkSession) -> DataFrame:
            return self.bronze.read(session, files=read)

        count = sum(each.rows for each in read) if rows is None else rows
        keep = is_url(self.bronze.place)
        with (
            plain_errors(),
            tables_of(
                self._spark,
                given if read else None,
                before=before,
                since_ns=since_ns,
                rows=count,
                keep=keep,
            ) as made,
        ):
            yield made

    def left_open(self, since_ns: int) -> pa.Table:
        """What is open behind all of bronze."""
        with self.tables(self.bronze.files(self.bronze.dates()[-2:]), since_ns=since_ns) as made:
            return made.left_open()

    def write(self, made: Tables, wanted: Mapping[str, Sequence[str] | None], stem: str = "part") -> None:
        """Write tables (of some dates), some at once; all that end are among ``files``, also where one fails."""

        def write(name: str) -> None:
            self.files[name] += _written(self._warehouse, name, made.rows(name, wanted[name]), stem)

        with ThreadPoolExecutor(AT_ONCE, "gold") as pool:
            jobs = [pool.submit(write, name) for name in wanted]
        for job in jobs:
            job.result()

    def write_so_far(self, left: pa.Table, names: Iterable[str]) -> None:
        """Write what is left open as it is so far."""
        if {"call", "job"}.intersection(left["kind"].to_pylist()):
            with self.tables((), before=left, rows=left.num_rows) as made:
                self.write(made, dict.fromkeys(names), SO_FAR)

    def so_far(self, name: str) -> list[File]:
        """The files of a table that say what was open."""
        return [each for each in self.on[name].files() if lake.is_so_far(each)]

    def commit(
        self, name: str, gone: Sequence[File], done: Mapping[str, int] | None = None, *, always: bool = True
    ) -> int:
        """Put what was written in the place of some files; how many rows. ``always``: also where that is nothing."""
        new = self.files.pop(name, [])
        if new or gone or always:
            self.on[name].commit(new, removed=gone, done=done)
        return sum(each.rows for each in new)


def _tagged(spark: SparkSession) -> None:
    """What this thread has Spark do makes gold."""
    spark.sparkContext.addJobTag(TAG)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", TAG)


def _written(warehouse: Warehouse, name: str, rows: DataFrame | None, stem: str) -> list[File]:
    """Rows of a table as files, if there can be any: by Spark's writer in a folder of the job, and then moved
    to those of their dates; into a store by pyarrow in Spark's tasks.
    """
    place = warehouse.table(name)
    if rows is None:
        return []
    _tagged(rows.sparkSession)
    if warehouse.stored:
        return _written_by_tasks(name, place, rows, stem)
    job = f"{stem}-{uuid.uuid4().hex[:12]}"
    try:
        with plain_errors():
            rows.write.partitionBy(PARTITION).parquet(f"{place}/{job}")
        files = []
        with delta.plain_errors(place):
            for number, each in enumerate(lake.files_in(place, job)):
                moved = f"{PARTITION}={each.date}/{job}-{number}.parquet"
                os.makedirs(f"{place}/{PARTITION}={each.date}", exist_ok=True)
                os.rename(f"{place}/{each.path}", f"{place}/{moved}")
                files.append(replace(each, path=moved))
        return files
    finally:
        shutil.rmtree(f"{place}/{job}", ignore_errors=True)


def _written_by_tasks(name: str, place: str, rows: DataFrame, stem: str) -> list[File]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        known = table_named(name)
        rows = (batch.cast(known.arrow(partition=True)) for batch in batches)
        files = [json.dumps(vars(each)) for each in lake.write(place, known, rows, stem=stem)]
        yield pa.RecordBatch.from_arrays([pa.array(files, pa.string())], ["file"])

    with plain_errors():
        return [File(**json.loads(row["file"])) for row in rows.mapInArrow(write, "file string").collect()]
