"""What is new in the journal -> bronze, in one commit (``bronze``): doing it again reads what was written since.

A job that is killed leaves nothing that counts. Rows stay when retention has deleted their segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway import delta
from gateway.pipeline import offsets, runs, schema, spans
from gateway.pipeline.bronze import TASKS_A_CORE, How, Written, by_spark, commit, drop, frame, judge
from gateway.pipeline.errors import Busy, Conflict
from gateway.pipeline.offsets import Offset
from gateway.pipeline.spans import Span
from gateway.pipeline.warehouse import INGEST, Warehouse, until_it_passes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Pending:
    """What of a journal is not in bronze yet."""

    since: Offset
    until: Offset
    spans: list[Span]


def pending(journal: str | os.PathLike[str], warehouse: Warehouse) -> Pending:
    """What of the segments is not in bronze yet.

    Raises:
        ConfigError: no such journal.
        PipelineError: a segment is of a newer version.
    """
    place = delta.place_of(journal)
    since = offsets.committed(warehouse.at(schema.MESSAGES.name).done, offsets.by_writer(place))
    latest = offsets.latest(place, since)
    until = {
        each: at for each, at in latest.items() if offsets.place(latest, each) != offsets.place(since, each)
    }
    return Pending(since, until, offsets.plan(place, since, until))


def ingest(
    spark: SparkSession,
    journal: str | os.PathLike[str],
    warehouse: Warehouse,
    *,
    payload: bool = False,
    skip: bool = False,
) -> runs.Run:
    """Bring bronze up to the journal in tasks of Spark: ``bring`` with the session that does it."""

    def written(wanted: list[Span], how: How) -> Written:
        packs = spans.packed(wanted, TASKS_A_CORE * spark.sparkContext.defaultParallelism)
        return by_spark(frame(spark, packs), how) if packs else Written()

    return bring(written, journal, warehouse, payload=payload, skip=skip)


def bring(
    write: Callable[[list[Span], How], Written],
    journal: str | os.PathLike[str],
    warehouse: Warehouse,
    *,
    payload: bool = False,
    skip: bool = False,
) -> runs.Run:
    """Bring bronze up to the journal; adds one row to ``_runs``.

    Args:
        write: makes files of spans.
        journal: its directory, seen by all workers, as the warehouse is.
        warehouse: where to.
        payload: keep payloads of what is read now.
        skip: step over damage and deleted segments, counted and named, instead of raising.

    Raises:
        Busy: a stream feeds this warehouse.
        PipelineError: damage or a deleted segment (unless ``skip``), a segment of a newer version, or a worker does not
            see the journal.
    """
    warehouse.ready()
    warehouse.claim(INGEST)
    how = How(warehouse.table(schema.MESSAGES.name), payload, skip)
    if payload:
        warehouse.keep_payloads()

    def once() -> runs.Run:
        run = runs.Run(INGEST, INGEST)
        wanted = pending(journal, warehouse)
        for span in wanted.spans:
            span.refuse(skip=skip)
        if wanted.until:
            written = write(wanted.spans, how)
            judge(written, how)
            try:
                commit(warehouse, written, wanted.since, wanted.until)
            except (Busy, Conflict) as error:  # another ingest was faster
                drop(warehouse, written)
                raise Conflict(str(error)) from None
            run.rows_in = run.rows_out = written.rows
            run.losses, run.offsets = written.losses, dict(wanted.until)
        return run

    run = until_it_passes(once)
    runs.add(warehouse, run.finish())
    return run
