"""Many small files of a date -> one large one (or few), the partition swapped in one step.

Of bronze only what will not change is put together: files of sealed segments, of batches that are whole. A compacted
file says in its metadata (``headgate.sources``) what stands in it. Rows are in the order of time. The journal is
never touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline import schema
from gateway.pipeline.warehouse import STAGING, Warehouse, batch_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SOURCES_KEY: Final = "headgate.sources"
FILE_BYTES: Final = 128 << 20
"""Files above this are left alone, and put together up to it."""
FILE_ROWS: Final = 1_000_000
"""Rows are sorted in memory: half a gigabyte of bronze."""
ROW_GROUP: Final = 131_072
_ORDER: Final = {"messages": ("ts_ns", "writer", "seq"), "traffic": ("window",), "_runs": ("finished_at",)}


@dataclass(frozen=True)
class Compacted:
    """What became of one date of a table."""

    table: str
    date: str
    files_before: int
    files_after: int
    rows: int

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return dict(vars(self))


def sources_of(path: Path) -> tuple[str, ...]:
    """The stems of the files that were put together in ``path``; none of a plain file."""
    return _sources_of(str(path)) if path.name.startswith("compact-") else ()


@lru_cache(maxsize=4096)
def _sources_of(path: str) -> tuple[str, ...]:
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path).metadata or {}
    return tuple(json.loads(metadata.get(SOURCES_KEY.encode(), b"[]")))


def compact(
    warehouse: Warehouse,
    tables: Iterable[str] | None = None,
    dates: Iterable[str] | None = None,
    *,
    spark: SparkSession | None = None,
    file_bytes: int = FILE_BYTES,
) -> list[Compacted]:
    """Put files together; with a session each date is a task. Call under the warehouse's lock.

    Args:
        warehouse: which.
        tables: None: all.
        dates: None: all.
        spark: where; None: here.
        file_bytes: how large files get.

    Raises:
        PipelineError: no such table.
    """
    work = []
    warehouse.settle()
    for table in schema.TABLES if tables is None else tables:
        for date in warehouse.dates(table):
            if dates is None or date in set(dates):
                groups = _groups(warehouse, table, date, file_bytes)
                if groups:
                    work.append((table, date, groups))
    root = str(warehouse.root)
    if spark is None or not work:
        return [_one(root, *each) for each in work]
    from gateway.pipeline.session import plain_errors

    with plain_errors():
        return list(
            spark.sparkContext.parallelize(work, len(work)).map(lambda each: _one(root, *each)).collect()
        )


def _groups(warehouse: Warehouse, table: str, date: str, file_bytes: int) -> list[list[str]]:
    """Which files are put together: by two or more, up to ``file_bytes`` and ``FILE_ROWS``."""
    import pyarrow.parquet as pq

    fixed = _fixed(warehouse, table, date)
    groups: list[list[str]] = []
    size, rows = file_bytes, 0
    for path in filter(fixed, warehouse.files(table, [date])):
        own, count = path.stat().st_size, pq.read_metadata(path).num_rows
        if own >= file_bytes or count >= FILE_ROWS:
            continue
        if size + own > file_bytes or rows + count > FILE_ROWS:
            groups.append([])
            size = rows = 0
        groups[-1].append(str(path))
        size, rows = size + own, rows + count
    return [group for group in groups if len(group) > 1]


def _fixed(warehouse: Warehouse, table: str, date: str) -> Callable[[Path], bool]:
    """Whether a file will not be written again: by a stream's batch that is half done, or from a segment that grows."""
    from gateway.pipeline.ingest import manifests

    if table == schema.RUNS.name:
        past = date < datetime.now(UTC).date().isoformat()  # those of today still get rows
        return lambda _path: past
    whole = warehouse.feed().get("gold", -1)
    grows = (
        {stem for stem, each in manifests(warehouse).items() if not each.sealed}
        if table == "messages"
        else set()
    )

    def fixed(path: Path) -> bool:
        batch = batch_of(path)
        return batch <= whole if batch is not None else path.stem not in grows

    return fixed


def _one(root: str, table: str, date: str, groups: Sequence[Sequence[str]]) -> Compacted:
    """One date: a directory beside it gets the new files and links to those that stay, then takes its place."""
    warehouse = Warehouse(root)
    old = warehouse.files(table, [date])
    fresh = warehouse.root / STAGING / f"compact-{uuid.uuid4().hex[:8]}"
    fresh.mkdir(parents=True)
    try:
        gone = {path for group in groups for path in group}
        rows = sum(_merge(table, group, fresh) for group in groups)
        for path in old:
            if str(path) not in gone:
                os.link(path, fresh / path.name)
        after = len(old) - len(gone) + len(groups)
        warehouse.swap(table, date, fresh)
        return Compacted(table, date, len(old), after, rows)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _merge(table: str, group: Sequence[str], directory: Path) -> int:
    """Files -> one, named after all of them, with what each was made of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = schema.table_named(table)
    sources: list[str] = []
    pieces: list[pa.Table] = []
    for path in map(Path, group):
        found = pq.ParquetFile(path)
        known.refuse_foreign(found.metadata.metadata, str(path))
        sources += sources_of(path) or [path.stem]
        pieces.append(_shaped(found.read(), known))
    whole = pa.concat_tables(pieces, promote_options="default")
    if order := [(name, "ascending") for name in _ORDER.get(table, ())]:
        whole = whole.sort_by(order)
    shape = whole.schema.with_metadata({**known.metadata, SOURCES_KEY: json.dumps(sources)})
    name = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:12]
    path = directory / f"compact-{len(sources)}-{name}.parquet"
    pq.write_table(
        whole.replace_schema_metadata(shape.metadata), path, compression="zstd", row_group_size=ROW_GROUP
    )
    return int(whole.num_rows)


def _shaped(rows: pa.Table, known: schema.Table) -> pa.Table:
    """The columns of today; one that a file lacks is null, a payload stays."""
    import pyarrow as pa

    shape = known.arrow()
    columns = {
        each.name: rows[each.name].cast(each.type)
        if each.name in rows.column_names
        else pa.nulls(rows.num_rows, each.type)
        for each in shape
    }
    if schema.PAYLOAD.name in rows.column_names:
        columns[schema.PAYLOAD.name] = rows[schema.PAYLOAD.name].cast(pa.binary())
    return pa.table(columns)
