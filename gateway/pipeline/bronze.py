"""Segments -> bronze: the one writer of ``messages``, for what is new in a journal (``ingest``) and for the stream.

Spark gets a DataFrame of spans, which say what bytes of which segments are to be read, about as many in each partition.
A task decodes its spans, writes Parquet itself, a file for each date, and gives back what Delta's log must know of it:
records never become rows of the JVM. Then one commit takes in all files, and with them how far each writer is read.

What a task says of the journal counts when the driver says so, too: a segment that one of them sees and the other does
not is an error whatever may be skipped; only what neither finds was deleted. Damage comes back as a word, not as a
failure of the task, which Spark would try again: then the files of all tasks are deleted.

To ``ingest`` again reads what was written since. A job that is killed leaves nothing that counts; rows stay when
retention has deleted their segment.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

from broker.journal.reading.segments import Damaged, size_of
from gateway import delta
from gateway.delta import File
from gateway.pipeline import lake, schema, spans
from gateway.pipeline.errors import Busy, Conflict, Lost, PipelineError
from gateway.pipeline.spans import Loss, Offset, Span, Unseen
from gateway.pipeline.warehouse import INGEST, NAMED_LOSSES, Run, Warehouse, until_it_passes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TASKS_A_CORE: Final = 3
"""At most; more would not end sooner, and each begins with what costs the same."""
_WRITTEN_DDL: Final = "written string"


@dataclass(frozen=True)
class How:
    """How segments are converted.

    Attributes:
        place: directory of ``messages``, or the URL of it.
        payload: keep payloads.
        skip: step over damage instead of raising.
    """

    place: str
    payload: bool = False
    skip: bool = False


@dataclass
class Written:
    """What became of some spans.

    Attributes:
        files: of ``messages``, not committed yet.
        losses: what could not be read.
        unseen: spans, and why they could not be read here.
        damage: what ended it; then there are no files.
        offset: between which offsets the spans lie, where the source of a stream said so.
    """

    files: list[File] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    unseen: list[tuple[Span, str]] = field(default_factory=list)
    damage: str = ""
    offset: tuple[Offset, Offset] | None = None

    @property
    def rows(self) -> int:
        """How many."""
        return sum(each.rows for each in self.files)

    def take(self, text: str) -> None:
        """What another task has to say."""
        told = json.loads(text)
        self.files += [File(**each) for each in told["files"]]
        self.losses += [Loss(**each) for each in told["losses"]]
        self.unseen += [(Span.of(span), why) for span, why in told["unseen"]]
        self.damage = self.damage or told["damage"]
        self.offset = tuple(told["offset"]) if told["offset"] else self.offset


def write(given: Iterable[Span], how: How) -> Written:
    """Spans -> files: what a task does; needs no Spark.

    Raises:
        TableError: the disk or the store refuses.
    """
    from gateway.pipeline.arrow import record_batches

    extra = [schema.PAYLOAD] if how.payload else []
    names = [*schema.MESSAGES.names, *(each.name for each in extra)]
    done = Written()

    def rows() -> Iterator[pa.RecordBatch]:
        for span in given:
            try:
                for found in record_batches(span, names, skip=how.skip):
                    if isinstance(found, Loss):
                        done.losses.append(found)
                    else:
                        yield found
            except Unseen as error:
                done.unseen.append((span, f"{socket.gethostname()}: {error.why}"))

    try:
        done.files = lake.write(how.place, schema.MESSAGES, rows(), extra=extra)
    except (Damaged, Lost) as error:
        done.damage = str(error)
    return done


def frame(spark: SparkSession, packs: Sequence[Sequence[Span]]) -> DataFrame:
    """Spans as a DataFrame, a pack each partition."""
    rows = [(number, spans.as_pack(pack)) for number, pack in enumerate(packs)]
    ids = spark.createDataFrame(rows, f"task int, {spans.DDL}")
    return ids.repartitionById(len(packs), ids.task).drop("task")


def task(how: How) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` calls with the packs of a partition; gives a row for each, which says what was done."""

    def write_packs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for text in (text for batch in batches for text in batch.column(0).to_pylist()):
            given, offset = spans.of_pack(text)
            done = replace(write(given, how), offset=offset)
            yield pa.RecordBatch.from_pydict({"written": [json.dumps(asdict(done))]})

    return write_packs


def by_spark(rows: DataFrame, how: How) -> Written:
    """A DataFrame of spans -> files, each partition in a task.

    Raises:
        PipelineError: Spark failed.
    """
    from gateway.pipeline.session import plain_errors

    whole = Written()
    with plain_errors():
        for row in rows.mapInArrow(task(how), _WRITTEN_DDL).collect():
            whole.take(row["written"])
    return whole


def judge(written: Written, how: How) -> None:
    """What tasks could not read, as the driver sees it: deleted, or there.

    Raises:
        PipelineError: a task did not see what is there, or what it read is damaged; no file stays.
    """
    try:
        if written.damage:
            raise PipelineError(written.damage)
        for span, why in written.unseen:
            try:
                there = size_of(span.path)
            except FileNotFoundError:
                gone = spans.deleted(span.name, span.start, span.end)
                if not how.skip:
                    raise Lost(str(gone)) from None
                written.losses.append(gone)
                continue
            if there < span.end:
                raise Lost(f"{span.name}: {there} bytes, blocks up to {span.end} expected: it was cut")
            raise PipelineError(f"this worker does not see the journal: {span.path}, {why}")
    except PipelineError:
        lake.discard(how.place, [each.path for each in written.files])
        raise


def drop(warehouse: Warehouse, written: Written) -> None:
    """Delete files that are not committed. A commit that failed may have passed: a store's answer was lost."""
    bronze = warehouse.at(schema.MESSAGES.name)
    named = {each.path for each in bronze.files()}
    lake.discard(bronze.place, [each.path for each in written.files if each.path not in named])


def commit(
    warehouse: Warehouse,
    written: Written,
    since: Offset,
    until: Offset,
    done: dict[str, int] | None = None,
) -> None:
    """Take files into bronze, and that each writer was read from ``since`` to ``until``.

    Raises:
        Busy: bronze is not where ``since`` is.
        Conflict: something else was added at the same time.
    """
    bronze = warehouse.at(schema.MESSAGES.name)
    at = spans.committed(bronze.done, until)
    if until and all(spans.reached(at, writer) == spans.reached(until, writer) for writer in until):
        return  # by us, though a store did not tell so, or by another
    for writer in until:
        here, begun = (spans.reached(each, writer) for each in (at, since))
        if here != begun:
            drop(warehouse, written)
            raise Busy(
                f"{warehouse}: has {writer} up to {here}, and this begins at {begun}: another job read on; begin "
                "again from where bronze is, a stream with a new checkpoint"
            )
    losses = [vars(loss) for loss in written.losses[:NAMED_LOSSES]]
    warehouse.add_bronze(bronze, written.files, {**spans.as_numbers(until), **(done or {})}, losses)


# ---------------------------------------------------------------- what is new in a journal


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
    since = spans.committed(warehouse.at(schema.MESSAGES.name).done, spans.by_writer(place))
    latest = spans.latest(place, since)
    until = {
        each: at for each, at in latest.items() if spans.reached(latest, each) != spans.reached(since, each)
    }
    return Pending(since, until, spans.plan(place, since, until))


def ingest(
    spark: SparkSession,
    journal: str | os.PathLike[str],
    warehouse: Warehouse,
    *,
    payload: bool = False,
    skip: bool = False,
) -> Run:
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
) -> Run:
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

    def once() -> Run:
        run = Run(INGEST, INGEST)
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

    return warehouse.record(until_it_passes(once))
