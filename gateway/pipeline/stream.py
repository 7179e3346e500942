"""The journal as it grows -> bronze, each record exactly once; gold follows in steps of its own (``follow``).

Spark keeps in its checkpoint up to where each batch reads; a batch that did not end is done again with the same
offsets. Here each batch leaves its traces in this order, each in one step, so that doing it again replaces what the
killed one left: its files of bronze, ``batch-ID-PART.parquet``; ``bronze = ID`` in ``_feed``; its row in ``_runs``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline import runs
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.follow import Follow, Told, batch_files, rows_in
from gateway.pipeline.spans import Loss
from gateway.pipeline.warehouse import CHECKPOINT, Warehouse, batch_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_WRITTEN_DDL: Final = "rows long, dates string, losses string"
_STARTED_S: Final = 60.0
"""How long the first batch waits to be told the uuid of its query."""
_OFFSETS_LINE: Final = 2
"""In a file of Spark's offset log: version, metadata, then a line for each source."""


class Stream:
    """A running stream; it holds nothing of Python's that a crash would lose.

    Args:
        spark: where.
        journal: directory of the journal, seen by all workers.
        warehouse: where to; the caller holds its lock as long as the stream runs.
        checkpoint: Spark's; default: in the warehouse.
        trigger_s: seconds between batches; None: all there is now, then it ends.
        gold: make gold of what is in bronze, beside the stream; False: bronze only (``batch`` makes gold).
        options: of the source: onCorrupt, maxBytesPerTrigger, ...
        told: called after each batch and each step of gold, in threads of their own.
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
        told: Told | None = None,
    ) -> None:
        self._spark, self._warehouse, self._told = spark, warehouse, told
        self._checkpoint = checkpoint or str(warehouse.root / CHECKPOINT)
        self._query_id = ""
        self._known = threading.Event()
        self._payload = (options or {}).get("payload", "false").lower() == "true"
        rows = spark.readStream.format("headgate").options(**{**(options or {}), "losses": "true"})
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if trigger_s is None
            else {"processingTime": f"{round(trigger_s * 1000)} milliseconds"}
        )
        warehouse.claim("stream")
        writer = rows.load(os.fspath(journal)).writeStream.foreachBatch(self._batch).trigger(**trigger)
        self.query: StreamingQuery = writer.option("checkpointLocation", self._checkpoint).start()
        self._query_id = self.query.id
        self._known.set()
        self._gold = Follow(spark, warehouse, told) if gold else None
        if self._gold is not None:
            self._gold.start()

    def wait(self) -> None:
        """Until it has ended by itself, gold included.

        Raises:
            PipelineError: it ended with an error.
        """
        from gateway.pipeline.session import plain_errors

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
        from gateway.pipeline.session import first_line

        error = self.query.exception() or (self._gold.error if self._gold is not None else None)
        if error is not None:
            raise PipelineError(first_line(error)) from error

    def stop(self) -> None:
        """End it; what is going on is done again, or gone on with, when the stream is started the next time."""
        from gateway.pipeline.session import plain_errors

        with plain_errors():
            self.query.stop()
        if self._gold is not None:
            self._gold.finish(all_of_it=False)

    # ---------------------------------------------------------------- a batch

    def _batch(self, rows: DataFrame, number: int) -> None:
        if not self._known.wait(_STARTED_S):
            raise PipelineError("the stream did not start in time")
        told = self._warehouse.claim("stream", self._query_id)
        run = runs.Run("stream", "stream", number)
        run.offsets = self._offsets(number)
        if number > told.get("bronze", -1):
            run.losses = self._bronze(rows, number)
            losses = [vars(loss) for loss in run.losses[: runs.NAMED_LOSSES]]
            self._warehouse.update_feed(bronze=number, losses=losses)
        else:
            run.losses = [Loss(**loss) for loss in told.get("losses", [])]
        run.rows_in = run.rows_out = rows_in(batch_files(self._warehouse, number))
        runs.add(self._warehouse, run.finish())
        if self._gold is not None:
            self._gold.wake()
        if self._told is not None:
            self._told(run)

    def _bronze(self, rows: DataFrame, number: int) -> list[Loss]:
        self._warehouse.forget_batch("messages", number)
        table, name, payload = str(self._warehouse.table("messages")), batch_name(number), self._payload

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from write_part(batches, table, name, payload)

        few = rows.coalesce(max(1, self._spark.sparkContext.defaultParallelism))
        written = few.mapInArrow(write, _WRITTEN_DDL).collect()
        return [Loss(**loss) for row in written for loss in json.loads(row["losses"])]

    def _offsets(self, number: int) -> dict[str, Any]:
        """How far a batch reads, from Spark's checkpoint; empty where that is no directory of this machine."""
        path = Path(self._checkpoint.removeprefix("file:")) / "offsets" / str(number)
        try:
            value = json.loads(path.read_text().splitlines()[_OFFSETS_LINE])
        except (OSError, ValueError, IndexError):
            return {}
        return value if isinstance(value, dict) else {}


def write_part(
    batches: Iterable[pa.RecordBatch], table: str, name: str, payload: bool
) -> Iterator[pa.RecordBatch]:
    """In a task: rows -> files of bronze, losses apart; gives one row that says what was done."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark import TaskContext

    from gateway.pipeline import arrow
    from gateway.pipeline.parts import Parts

    context = TaskContext.get()
    part = context.partitionId() if context is not None else 0
    losses: list[Loss] = []
    with Parts(table, f"{name}-{part:05d}", payload) as parts:
        for batch in batches:
            told = pc.equal(batch.column("kind"), arrow.LOSS)
            if pc.any(told).as_py():
                losses += arrow.losses_in(batch)
                batch = batch.filter(pc.invert(told))
            parts.add(batch)
    said = {
        "rows": [parts.rows],
        "dates": [",".join(parts.dates)],
        "losses": [json.dumps([vars(loss) for loss in losses])],
    }
    yield pa.RecordBatch.from_pydict(said)
