"""Segments -> bronze: Parquet files, one in every date that a segment has rows of, written by pyarrow and committed
together: by threads of this process, one a core, or inside Spark's tasks.

With the rows goes how far each segment was read: doing it again reads what was written since, block by block. A job
that is killed leaves nothing. Rows stay when retention has deleted their segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from broker.journal.layout import SUFFIX
from gateway.pipeline import parts, runs, schema, spans
from gateway.pipeline.lake import File
from gateway.pipeline.spans import Loss, Span
from gateway.pipeline.warehouse import Warehouse, until_it_passes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[int, int], None]
"""Progress: done, of how many."""
THREADS_MOST: Final = 8
"""Of this process, which takes 150 MiB and 100 MiB a thread; with payloads of a megabyte 150 MiB."""
DECODE_ROWS: Final = 32_768
"""Rows decoded at once: enough for Parquet, and still in the cache of a core."""


@dataclass(frozen=True)
class IngestOptions:
    """How segments are converted.

    Attributes:
        place: directory of ``messages``, or the URL of it.
        payload: keep payloads.
        skip: step over damage instead of raising.
        verify: check CRCs.
    """

    place: str
    payload: bool = False
    skip: bool = False
    verify: bool = True


@dataclass
class Ingested:
    """What became of one span: its files, and what could not be read."""

    files: list[File] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


def pending(journal: str, warehouse: Warehouse) -> list[Span]:
    """What of the segments is not in bronze yet.

    Raises:
        ConfigError: no such journal.
        PipelineError: a segment is of a newer version.
    """
    bronze = warehouse.at(schema.MESSAGES.name)
    wanted: list[Span] = []
    for span in spans.whole(journal, 1 << 62):
        start = max(span.start, bronze.done(_job(span)))
        if start < span.end:
            wanted += spans.split(replace(span, start=start))
    return wanted


def _job(span: Span) -> str:
    """The name under which bronze knows how far a segment was read."""
    return f"ingest:{span.name.removesuffix(SUFFIX)}"


def convert(span: Span, how: IngestOptions) -> Ingested:
    """One span, in a task."""
    from gateway.pipeline.arrow import Decoder

    names = [*schema.MESSAGES.names, *([schema.PAYLOAD.name] if how.payload else [])]
    decoder = Decoder(names, payload=how.payload)
    decoder.begin(span)
    done = Ingested()
    stem = span.name.removesuffix(SUFFIX)
    with parts.Parts(how.place, schema.MESSAGES, stem, how.payload) as written:
        for blocks in spans.gathered(spans.blocks(span, crc=how.verify, skip=how.skip), DECODE_ROWS):
            if isinstance(blocks, Loss):
                done.losses.append(blocks)
            else:
                written.add(decoder.batch(blocks))
    done.files = written.files
    return done


def ingest(
    spark: SparkSession | None,
    journal: str | os.PathLike[str],
    warehouse: Warehouse,
    *,
    payload: bool = False,
    skip: bool = False,
    verify: bool = True,
    tell: Tell | None = None,
) -> runs.Run:
    """Bring bronze up to the journal; adds one row to ``_runs``.

    Args:
        spark: where; None: in this process.
        journal: its directory, seen by all workers, as the warehouse is.
        warehouse: where to.
        payload: keep payloads of what is read now.
        skip: step over damage, counted and named, instead of raising.
        verify: check CRCs.
        tell: is told of progress now and then.

    Raises:
        Busy: a stream feeds this warehouse.
        PipelineError: damage (unless ``skip``), a segment of a newer version.
    """
    warehouse.ready()
    warehouse.claim("ingest")
    how = IngestOptions(warehouse.table(schema.MESSAGES.name), payload, skip, verify)
    if payload:
        warehouse.keep_payloads()
    run = until_it_passes(lambda: _ingest(spark, os.fspath(journal), warehouse, how, tell))
    runs.add(warehouse, run.finish())
    return run


def _ingest(
    spark: SparkSession | None, journal: str, warehouse: Warehouse, how: IngestOptions, tell: Tell | None
) -> runs.Run:
    run = runs.Run("ingest", "ingest", by="pyarrow" if spark is None else "Spark")
    bronze = warehouse.at(schema.MESSAGES.name)
    wanted = pending(journal, warehouse)
    if not wanted:
        return run
    done = _here(wanted, how, tell) if spark is None else _by_spark(spark, wanted, how, tell)
    files = [file for each in done for file in each.files]
    read = {_job(span): span.end for span in wanted}
    run.losses = [loss for each in done for loss in each.losses]
    losses = [vars(loss) for loss in run.losses[: runs.NAMED_LOSSES]]
    warehouse.add_bronze(bronze, files, read, losses)
    run.rows_in = run.rows_out = sum(file.rows for file in files)
    run.offsets = {name.partition(":")[2]: end for name, end in read.items()}
    return run


def _here(wanted: list[Span], how: IngestOptions, tell: Tell | None) -> list[Ingested]:
    """In threads: numpy, isa-l and pyarrow hold the interpreter for a twentieth of the time only."""
    threads = min(len(wanted), os.cpu_count() or 1, THREADS_MOST)
    with ThreadPoolExecutor(threads, "ingest") as pool:
        running = [pool.submit(convert, span, how) for span in wanted]
        try:
            for number, each in enumerate(as_completed(running), 1):
                each.result()
                if tell is not None:
                    tell(number, len(wanted))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            written = [each.result().files for each in running if not (each.cancelled() or each.exception())]
            parts.discard(how.place, [file.path for files in written for file in files])
            raise
    return [each.result() for each in running]


def _by_spark(
    spark: SparkSession, wanted: list[Span], how: IngestOptions, tell: Tell | None
) -> list[Ingested]:
    from gateway.pipeline.progress import watched
    from gateway.pipeline.session import plain_errors

    with plain_errors(), watched(spark, len(wanted), tell):
        tasks = spark.sparkContext.parallelize(wanted, len(wanted))
        return list(tasks.map(lambda span: convert(span, how)).collect())
