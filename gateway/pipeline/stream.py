"""The journal as it grows -> bronze, each record exactly once; gold follows in steps of its own (``follow``).

Spark keeps in its checkpoint up to where each batch reads; a batch that did not end is done again with the same
offsets. Here a batch is committed to bronze (``bronze``) with its number, and one whose number is there already is not
written again; then it gets its row in ``_runs``. Bronze itself knows how far it is: a stream whose checkpoint is new
begins there, so one that is lost costs nothing, and one that is older than bronze is refused.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway import delta
from gateway.pipeline import schema, spans
from gateway.pipeline.bronze import TASKS_A_CORE, How, by_spark, commit, judge
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.gold import Follow, OnRun
from gateway.pipeline.session import first_line, plain_errors
from gateway.pipeline.spans import Loss
from gateway.pipeline.warehouse import STREAM, Run, Warehouse, until_it_passes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_STARTED_S: Final = 60.0
"""How long the first batch waits until it is known which stream it is of."""


class Stream:
    """A running stream; it holds nothing of Python's that a crash would lose.

    Args:
        spark: where.
        journal: directory of the journal, seen by all workers.
        warehouse: where to.
        checkpoint: Spark's; default: in the warehouse. For one in a store a directory must be given.
        trigger_s: seconds between batches; None: all there is now, then it ends.
        gold: make gold of what is in bronze, beside the stream; False: bronze only (``batch`` makes gold).
        options: of the source: onCorrupt, maxBytesPerTrigger, ...
        on_run: called after each batch and each step of gold, in threads of their own.

    Raises:
        PipelineError: the warehouse is in a store and no checkpoint is given, or Spark cannot write there.
        Busy: something else feeds it.
    """

    def __init__(
        self,
        spark: SparkSession,
        journal: str | os.PathLike[str],
        warehouse: Warehouse,
        *,
        checkpoint: str | None = None,
        trigger_s: float | None = None,
        gold: bool = True,
        options: Mapping[str, str] | None = None,
        on_run: OnRun | None = None,
    ) -> None:
        self._warehouse, self._on_run = warehouse, on_run
        given = dict(options or {})
        self._payload = given.get("payload", "false").lower() == "true"
        self._skip = given.get("onCorrupt", "fail").lower() == "skip"
        place = delta.place_of(journal)
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if trigger_s is None
            else {"processingTime": f"{round(trigger_s * 1000)} milliseconds"}
        )
        warehouse.ready()
        bronze = warehouse.at(schema.MESSAGES.name)
        given |= {
            "spans": "true",
            "tasks": str(TASKS_A_CORE * spark.sparkContext.defaultParallelism),
            "startingOffsets": json.dumps(spans.committed(bronze.done, spans.by_writer(place))),
        }
        rows = spark.readStream.format("headgate").options(**given).load(place)
        writer = rows.writeStream.foreachBatch(self._batch).trigger(**trigger)
        self._started = threading.Event()
        with plain_errors():  # Spark cannot write there
            at = writer.option("checkpointLocation", checkpoint or warehouse.checkpoint)
            self.query: StreamingQuery = at.start()
        try:
            warehouse.claim(STREAM)
        except BaseException:
            self.query.stop()
            raise
        self._started.set()
        self._gold = Follow(spark, warehouse, on_run) if gold else None
        if self._gold is not None:
            self._gold.start()

    def wait(self) -> None:
        """Until it has ended by itself, gold included.

        Raises:
            PipelineError: it ended with an error.
        """
        whole = False
        try:
            with plain_errors():
                self.query.awaitTermination()
            whole = True
        finally:
            if self._gold is not None:
                self._gold.finish(all_of_it=whole)

    @property
    def active(self) -> bool:
        """Whether it reads the journal."""
        return bool(self.query.isActive) and (self._gold is None or self._gold.error is None)

    def check(self) -> None:
        """Raise what ended it, if something did.

        Raises:
            PipelineError: in one line.
        """
        error = self.query.exception() or (self._gold.error if self._gold is not None else None)
        if error is not None:
            raise PipelineError(first_line(error)) from error

    def stop(self) -> None:
        """End it; what is going on is done again, or gone on with, when the stream is started the next time."""
        with plain_errors():
            self.query.stop()
        if self._gold is not None:
            self._gold.finish(all_of_it=False)

    # ---------------------------------------------------------------- a batch

    def _batch(self, rows: DataFrame, number: int) -> None:
        if not self._started.wait(_STARTED_S):
            raise PipelineError("the stream did not start in time")
        name = f"{STREAM}:{self.query.id}"
        run = Run(STREAM, STREAM, number)
        bronze = self._warehouse.at(schema.MESSAGES.name)
        if bronze.done(name) < number:
            if self._payload:
                self._warehouse.keep_payloads()
            how = How(self._warehouse.table(schema.MESSAGES.name), self._payload, self._skip)
            written = by_spark(rows, how)
            judge(written, how)
            since, until = written.offset or ({}, {})
            until_it_passes(lambda: commit(self._warehouse, written, since, until, {name: number}))
            run.rows_out, run.losses, run.offsets = written.rows, written.losses, dict(until)
        else:
            for note in bronze.notes(number - 1, name, number):
                run.rows_out, run.losses = note["rows"], [Loss(**loss) for loss in note["losses"]]
        run.rows_in = run.rows_out
        self._warehouse.record(run, {name: number})
        if self._gold is not None:
            self._gold.wake()
        if self._on_run is not None:
            self._on_run(run)
