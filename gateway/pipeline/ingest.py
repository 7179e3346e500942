"""Segments -> bronze: each becomes one Parquet file in every date it has rows of, written by pyarrow inside a Spark
task.

Doing it again does nothing for a segment that has not grown, and replaces the files of one that has. What is known of
a segment stands in ``_ingested/WRITER-FIRSTSEQ.json``, written behind its files: a job that is killed does that
segment again. Rows stay when retention has deleted their segment.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.journal.layout import SUFFIX
from gateway.pipeline import runs, schema, spans
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.spans import Loss, Span
from gateway.pipeline.warehouse import MANIFESTS, Warehouse, replace_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[int, int], None]
"""Progress: done, of how many."""
DECODE_ROWS: Final = 32_768
"""Rows decoded at once: enough for Parquet, and still in the cache of a core."""


@dataclass(frozen=True)
class How:
    """How segments are converted.

    Attributes:
        warehouse: its directory.
        payload: keep payloads.
        skip: step over damage instead of raising.
        verify: check CRCs.
    """

    warehouse: str
    payload: bool = False
    skip: bool = False
    verify: bool = True


@dataclass
class Ingested:
    """What became of one segment: its manifest.

    Attributes:
        segment: name of the file without suffix.
        end: bytes read.
        sealed: another segment of its writer follows: it will not grow.
        rows: written.
        dates: where.
        payload: whether payloads were kept.
        losses: what could not be read.
        seconds: it took.
    """

    segment: str
    end: int
    sealed: bool
    rows: int = 0
    dates: list[str] = field(default_factory=list)
    payload: bool = False
    losses: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    next: int = -1

    @property
    def path_name(self) -> str:
        """Name of its manifest."""
        return f"{self.segment}.json"


def manifests(warehouse: Warehouse) -> dict[str, Ingested]:
    """What is known of segments, by name.

    Raises:
        PipelineError: a manifest cannot be read.
    """
    found = {}
    place = warehouse.root / MANIFESTS
    for path in sorted(place.glob("*.json")) if place.is_dir() else ():
        try:
            found[path.stem] = Ingested(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise PipelineError(f"{path}: {error}; expected what ingest writes") from None
    return found


def pending(journal: str, warehouse: Warehouse, payload: bool = False) -> tuple[list[Span], int]:
    """The segments that are new or have grown, whole, and how many there are in all.

    Raises:
        ConfigError: no such journal. PipelineError: a segment is of a newer version; one that was compacted already
        has grown, or is to get payloads.
    """
    known = manifests(warehouse)
    compacted = _compacted(warehouse)
    every = spans.whole(journal, 1 << 62)
    wanted = []
    for span in every:
        stem = span.name.removesuffix(SUFFIX)
        had = known.get(stem)
        if had and had.end == span.end and had.sealed == span.sealed and had.payload == payload:
            continue
        if stem in compacted:
            if had and had.end == span.end:
                continue
            raise PipelineError(
                f"{span.name} has grown since its rows were compacted; expected a sealed segment"
            )
        wanted.append(span)
    return wanted, len(every)


def _compacted(warehouse: Warehouse) -> set[str]:
    """Segments whose rows stand in files made by compact."""
    from gateway.pipeline.compact import sources_of

    return {name for path in warehouse.files("messages") for name in sources_of(path)}


def convert(span: Span, how: How) -> Ingested:
    """One segment, in a task: its files and its manifest."""
    from gateway.pipeline.arrow import Decoder
    from gateway.pipeline.parts import Parts

    began = time.monotonic()
    warehouse = Warehouse(how.warehouse)
    stem = span.name.removesuffix(SUFFIX)
    names = [*schema.MESSAGES.names, *([schema.PAYLOAD.name] if how.payload else [])]
    decoder = Decoder(names, payload=how.payload)
    losses: list[Loss] = []
    with Parts(str(warehouse.table("messages")), stem, how.payload) as parts:
        for blocks in _together(spans.blocks(span, crc=how.verify, skip=how.skip), losses):
            parts.add(decoder.batch(blocks))
    done = Ingested(
        stem, span.end, span.sealed, parts.rows, parts.dates, how.payload, [vars(loss) for loss in losses]
    )
    _forget_stale(warehouse, done)
    done.seconds = time.monotonic() - began
    replace_text(warehouse.root / MANIFESTS / done.path_name, json.dumps(asdict(done)))
    return done


def _together(found: Iterable[Any], losses: list[Loss]) -> Iterable[list[Any]]:
    """Blocks by the batch; losses apart."""
    from gateway.pipeline.source import BATCH_BYTES

    waiting: list[Any] = []
    rows = size = 0
    for each in found:
        if isinstance(each, Loss):
            losses.append(each)
            continue
        waiting.append(each)
        rows, size = rows + each.count, size + each.length + each.bodies_len
        if rows >= DECODE_ROWS or size >= BATCH_BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


def _forget_stale(warehouse: Warehouse, done: Ingested) -> None:
    """Files of this segment in dates it has no rows of any more: it was read with damage before, or without."""
    for path in warehouse.table("messages").glob(f"dt=*/{done.segment}.parquet"):
        if path.parent.name.removeprefix("dt=") not in done.dates:
            path.unlink(missing_ok=True)


def ingest(
    spark: SparkSession,
    journal: str | os.PathLike[str],
    warehouse: Warehouse,
    *,
    payload: bool = False,
    skip: bool = False,
    verify: bool = True,
    tell: Tell | None = None,
) -> runs.Run:
    """Bring bronze up to the journal; adds one row to ``_runs``. Call under the warehouse's lock.

    Args:
        spark: where.
        journal: its directory, seen by all workers, as the warehouse is.
        warehouse: where to.
        payload: keep payloads in bronze.
        skip: step over damage, counted and named, instead of raising.
        verify: check CRCs.
        tell: is told of progress now and then.

    Raises:
        Busy: a stream feeds this warehouse.
        PipelineError: damage (unless ``skip``), a segment of a newer version.
    """
    from gateway.pipeline.progress import watched
    from gateway.pipeline.session import plain_errors

    run = runs.Run("ingest", "ingest")
    warehouse.claim("ingest")
    wanted, _every = pending(os.fspath(journal), warehouse, payload)
    how = How(str(warehouse.root), payload, skip, verify)
    done: list[Ingested] = []
    if wanted:
        before = manifests(warehouse)
        dates = {date for span in wanted for date in _dates_of(before, span)}
        warehouse.update_feed(ingesting=[span.name.removesuffix(SUFFIX) for span in wanted])
        with plain_errors(), watched(spark, len(wanted), tell):
            done = (
                spark.sparkContext.parallelize(wanted, len(wanted))
                .map(lambda span: convert(span, how))
                .collect()
            )
        dates |= {date for each in done for date in each.dates}
        settle_dirty(warehouse, dates)
    run.rows_in = run.rows_out = sum(each.rows for each in done)
    run.losses = [Loss(**loss) for each in done for loss in each.losses]
    run.offsets = {each.segment: each.end for each in done}
    runs.add(warehouse, run.finish())
    return run


def _dates_of(known: dict[str, Ingested], span: Span) -> list[str]:
    had = known.get(span.name.removesuffix(SUFFIX))
    return had.dates if had else []


def settle_dirty(warehouse: Warehouse, dates: Iterable[str] = ()) -> list[str]:
    """Dates whose gold is to be made: those told, and what an ingest that was killed had begun."""
    told = warehouse.feed()
    found = {*told.get("dirty", []), *dates}
    for stem in told.get("ingesting", []):
        found |= {
            path.parent.name.removeprefix("dt=")
            for path in warehouse.table("messages").glob(f"dt=*/{stem}.parquet")
        }
    warehouse.update_feed(dirty=sorted(found), ingesting=[])
    return sorted(found)
