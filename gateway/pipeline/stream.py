"""The journal as it grows -> bronze, each record exactly once; gold follows in steps of its own (``follow``).

Spark keeps in its checkpoint up to where each batch reads; a batch that did not end is done again with the same
offsets. Here a batch is committed to bronze with its number, and one whose number is there already is not written
again; then it gets its row in ``_runs``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline import parts, runs, schema
from gateway.pipeline.errors import Busy, PipelineError
from gateway.pipeline.follow import Follow, OnRun
from gateway.pipeline.session import first_line, plain_errors
from gateway.pipeline.spans import Loss
from gateway.pipeline.warehouse import STREAM, Warehouse, until_it_passes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from gateway.pipeline.lake import File

_WRITTEN_DDL: Final = "files string, losses string"
_STARTED_S: Final = 60.0
"""How long the first batch waits until it is known that this stream feeds the warehouse."""
_OFFSETS_LINE: Final = 2
"""In a file of Spark's offset log: version, metadata, then a line for each source."""


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
        self._spark, self._warehouse, self._on_run = spark, warehouse, on_run
        self._checkpoint = checkpoint or warehouse.checkpoint
        self._claimed = threading.Event()
        self._payload = (options or {}).get("payload", "false").lower() == "true"
        rows = spark.readStream.format("headgate").options(**{**(options or {}), "losses": "true"})
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if trigger_s is None
            else {"processingTime": f"{round(trigger_s * 1000)} milliseconds"}
        )
        warehouse.ready()
        warehouse.claim(STREAM)
        writer = rows.load(os.fspath(journal)).writeStream.foreachBatch(self._batch).trigger(**trigger)
        with plain_errors():  # Spark cannot write there
            self.query: StreamingQuery = writer.option("checkpointLocation", self._checkpoint).start()
        try:
            warehouse.claim(STREAM, self.query.id)
        except Busy:
            self.query.stop()
            raise
        self._claimed.set()
        self._gold = Follow(warehouse, on_run) if gold else None
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
        if not self._claimed.wait(_STARTED_S):
            raise PipelineError("the stream did not start in time")
        run = runs.Run(STREAM, STREAM, number)
        run.offsets = self._offsets(number)
        bronze = self._warehouse.at(schema.MESSAGES.name)
        if bronze.done(STREAM) < number - 1:
            raise PipelineError(
                f"{self._warehouse}: lacks the batches {bronze.done(STREAM) + 1} to {number - 1}, which the checkpoint "
                f"counts as done: take a new warehouse and a new checkpoint, which read the journal from its begin"
            )
        if bronze.done(STREAM) < number:
            files, run.losses = self._written(rows)
            losses = [vars(loss) for loss in run.losses[: runs.NAMED_LOSSES]]
            until_it_passes(
                lambda: self._warehouse.add_bronze(
                    self._warehouse.at(schema.MESSAGES.name), files, {STREAM: number}, losses
                )
            )
            run.rows_out = sum(file.rows for file in files)
        else:
            for note in bronze.notes(number - 1, STREAM, number):
                run.rows_out, run.losses = note["rows"], [Loss(**loss) for loss in note["losses"]]
        run.rows_in = run.rows_out
        runs.add(self._warehouse, run.finish(), {STREAM: number})
        if self._gold is not None:
            self._gold.wake()
        if self._on_run is not None:
            self._on_run(run)

    def _written(self, rows: DataFrame) -> tuple[list[File], list[Loss]]:
        place, payload = self._warehouse.table(schema.MESSAGES.name), self._payload
        if payload:
            self._warehouse.keep_payloads()

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from write_part(batches, place, payload)

        few = rows.coalesce(max(1, self._spark.sparkContext.defaultParallelism))
        written = few.mapInArrow(write, _WRITTEN_DDL).collect()
        losses = [Loss(**loss) for row in written for loss in json.loads(row["losses"])]
        return [file for row in written for file in parts.files_of(row["files"])], losses

    def _offsets(self, number: int) -> dict[str, Any]:
        """How far a batch reads, from Spark's checkpoint; empty where that is no directory of this machine."""
        path = Path(self._checkpoint.removeprefix("file:")) / "offsets" / str(number)
        try:
            value = json.loads(path.read_text().splitlines()[_OFFSETS_LINE])
        except (OSError, ValueError, IndexError):
            return {}
        return value if isinstance(value, dict) else {}


def write_part(batches: Iterable[pa.RecordBatch], place: str, payload: bool) -> Iterator[pa.RecordBatch]:
    """In a task: rows -> files of bronze, losses apart; gives one row that says what was done."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from gateway.pipeline import arrow

    losses: list[Loss] = []
    with parts.Parts(place, schema.MESSAGES, "batch", payload) as written:
        for batch in batches:
            lost = pc.equal(batch.column("kind"), arrow.LOSS)
            if pc.any(lost).as_py():
                losses += arrow.losses_in(batch)
                batch = batch.filter(pc.invert(lost))
            written.add(batch)
    result = {"files": [written.as_json()], "losses": [json.dumps([vars(loss) for loss in losses])]}
    yield pa.RecordBatch.from_pydict(result)
