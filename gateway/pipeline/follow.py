"""Gold behind a stream: steps that take in all that was added to bronze meanwhile.

A step costs about the same for one batch and for many, so it does not hold the stream up: bronze is as fresh as its
batches, gold as its steps. What a step leaves open for the next one (``_open``) is kept first; then each table gets its
rows with the number of the last addition they are of, so that a step that was killed adds to no table twice; ``_runs``
gets its row last, and with it the number up to which all tables are made. Tables that are ahead, because a step was
killed or ``batch`` made them, end the next step where they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.pipeline import runs, schema
from gateway.pipeline.errors import Conflict, PipelineError
from gateway.pipeline.warehouse import BRONZE, GOLD, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.pipeline.lake import Snapshot

Told = Callable[[runs.Run], None]
OPEN: Final = "_open"
"""Directory of what steps leave open: calls without their last response and the like."""
_LOOK_S: Final = 0.5
ADDITIONS_MOST: Final = 200
"""Of one step: what a stream left behind for days is caught up with in pieces."""


class Follow(threading.Thread):
    """Makes gold as long as the stream runs.

    Args:
        spark: where.
        warehouse: which.
        told: called after each step.

    Attributes:
        error: what ended it, or None.
    """

    def __init__(self, spark: SparkSession, warehouse: Warehouse, told: Told | None = None) -> None:
        super().__init__(name="gold", daemon=True)
        self._spark, self._warehouse, self._told = spark, warehouse, told
        self._come = threading.Event()
        self._come.set()  # what an earlier stream left
        self._all = self._leave = False
        self.error: Exception | None = None

    def wake(self) -> None:
        """There is more in bronze."""
        self._come.set()

    def finish(self, *, all_of_it: bool) -> None:
        """End it: behind the last batch, or at once: a step that goes on is done again the next time.

        Raises:
            PipelineError: a step failed.
        """
        from gateway.pipeline.session import plain_errors

        self._all, self._leave = all_of_it, True
        self._come.set()
        while self.is_alive():
            if not all_of_it:
                self._spark.sparkContext.cancelAllJobs()  # each time: a step has many, one behind the other
            self.join(_LOOK_S)
        if self.error is not None and all_of_it:
            with plain_errors():
                raise self.error

    def run(self) -> None:
        """Step by step."""
        try:
            while not self._leave or self._all:
                self._come.wait()
                self._come.clear()
                while (self._all or not self._leave) and self._turn():
                    pass
                if self._leave:
                    return
        except Exception as error:  # told by whoever waits for the stream
            if self._all or not self._leave:
                self.error = error

    def _turn(self) -> bool:
        """One step, unless another job makes gold right now; whether there may be more to do."""
        with self._warehouse.making_gold(wait=self._all) as ours:
            if ours:
                try:
                    run = step(self._spark, self._warehouse)
                except Conflict:
                    return True
                if run is not None and self._told is not None:
                    self._told(run)
                return run is not None
        self._come.wait(_LOOK_S)
        return True


def step(spark: SparkSession, warehouse: Warehouse) -> runs.Run | None:
    """Add to gold what came into bronze; None where nothing did.

    Raises:
        Conflict: another job made gold meanwhile.
        PipelineError: the files of an addition are not there any more.
    """
    known, bronze = warehouse.gold(), warehouse.at(schema.MESSAGES.name)
    on = {table.name: warehouse.at(table.name) for table in schema.GOLD}
    ahead = [each.done(GOLD) for each in on.values() if each.done(GOLD) > known]
    until = min([bronze.done(BRONZE), known + ADDITIONS_MOST, *ahead])
    if until <= known:
        return None
    run = runs.Run("gold", "stream", until)
    notes = bronze.notes(known, BRONZE, until)
    run.rows_in = sum(note["rows"] for note in notes)
    paths = [str(bronze.place / path) for note in notes for path in note["files"]]
    if len(notes) < until - known or not all(Path(path).exists() for path in paths):
        raise PipelineError(
            f"{warehouse.root}: the gold tables are too far behind to add to them: headgate pipeline batch makes them "
            "anew"
        )
    if paths:
        run.rows_out = _add(spark, warehouse, on, bronze.read_files(spark, paths), known, until)
    runs.add(warehouse, run.finish(), {GOLD: until})
    return run


def _add(
    spark: SparkSession,
    warehouse: Warehouse,
    on: Mapping[str, Snapshot],
    rows: DataFrame,
    known: int,
    until: int,
) -> int:
    """Commit what ``rows`` add to each table that has not got it yet; returns how many rows that are."""
    from gateway.pipeline.tables.increment import Kept, increment

    kept, written = Kept(warehouse.root / OPEN), 0
    kept.forget(known)
    rows = rows.cache()
    try:
        with increment(rows, kept.behind(spark, known)) as (tables, after):
            kept.save(until, after)
            for name, found in tables.items():
                if on[name].done(GOLD) < until:
                    made = found.toArrow()
                    on[name].commit(warehouse.write_rows(name, made), done={GOLD: until})
                    written += made.num_rows
        return written
    finally:
        rows.unpersist()
