"""Gold behind a stream: steps that take in all batches that came into bronze meanwhile.

A step costs about the same for one batch and for many, so it does not hold the stream up: bronze is as fresh as its
batches, gold as its steps. A step is named after the last batch it takes in and leaves its traces in this order: rows
of gold, ``batch-ID-0.parquet``; what it leaves open for the next one (``_open``); its row in ``_runs`` (job ``gold``);
``gold = ID`` in ``_feed``. One that was killed is cleared away before the next one begins: its name may not come again.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.pipeline import runs, schema
from gateway.pipeline.warehouse import Warehouse, batch_name, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told = Callable[[runs.Run], None]
OPEN: Final = "_open"
"""Directory of what steps leave open: calls without their last response and the like."""
_LOOK_S: Final = 0.5
BATCHES_MOST: Final = 200
"""Batches of one step: what a stream left behind for days is caught up with in pieces."""


class Follow(threading.Thread):
    """Makes gold as long as the stream runs.

    Args:
        spark: where.
        warehouse: which; the stream holds its lock.
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
                while (self._all or not self._leave) and self._step():
                    pass
                if self._leave:
                    return
        except Exception as error:  # told by whoever waits for the stream
            if self._all or not self._leave:
                self.error = error

    def _step(self) -> bool:
        """One step; whether there was something to do."""
        told = self._warehouse.feed()
        known, whole = told.get("gold", -1), told.get("bronze", -1)
        if whole <= known:
            return False
        until = min(whole, known + BATCHES_MOST)
        run = runs.Run("gold", "stream", until)
        clear(self._warehouse, known)
        files = [
            path for number in range(known + 1, until + 1) for path in batch_files(self._warehouse, number)
        ]
        run.rows_in = rows_in(files)
        run.rows_out = make_gold(self._spark, self._warehouse, until, files) if files else 0
        runs.add(self._warehouse, run.finish())
        self._warehouse.update_feed(gold=until)
        if self._told is not None:
            self._told(run)
        return True


def clear(warehouse: Warehouse, known: int) -> None:
    """Take away what a step left that did not end: all of batches that gold does not know of."""
    for table in schema.GOLD:
        for path in warehouse.files(table.name):
            batch = batch_of(path)
            if batch is not None and batch > known:
                path.unlink(missing_ok=True)
    for place in (warehouse.root / OPEN).glob("batch-*"):
        if int(place.name.removeprefix("batch-")) > known:
            shutil.rmtree(place, ignore_errors=True)


def make_gold(spark: SparkSession, warehouse: Warehouse, number: int, files: list[Path]) -> int:
    """What some files of bronze add to the gold tables, and what they leave open; returns the rows written."""
    from gateway.pipeline.tables.increment import Kept, increment

    kept = Kept(warehouse.root / OPEN)
    place = str(warehouse.table("messages"))
    rows = spark.read.schema(schema.MESSAGES.ddl).option("basePath", place).parquet(*map(str, files))
    rows = rows.select(*schema.MESSAGES.names).cache()
    try:
        written = 0
        with increment(rows, kept.before(spark, number)) as (tables, after):
            for name, found in tables.items():
                made = found.toArrow()
                written += made.num_rows
                warehouse.write_rows(name, made, f"{batch_name(number)}-0")
            kept.save(number, after)
        return written
    finally:
        rows.unpersist()


def batch_files(warehouse: Warehouse, number: int) -> list[Path]:
    """The files of a batch in bronze."""
    return sorted(warehouse.table("messages").glob(f"dt=*/{batch_name(number)}-*.parquet"))


def rows_in(files: Iterable[Path]) -> int:
    """Rows, as the files say."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in files)
