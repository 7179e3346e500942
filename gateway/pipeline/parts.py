"""Rows -> Parquet files, one or more for each date they fall on, written here or inside a Spark task; the driver
commits them.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.journal.stores import is_url
from gateway import delta
from gateway.pipeline.columns import PARTITION, Column, Table
from gateway.pipeline.lake import File, file_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

OPEN_MOST: Final = 64
"""Dates written at once; a clock that runs wild closes the oldest, which then gets a second file."""
ROW_GROUP: Final = 131_072
FILE_ROWS: Final = 4_000_000
"""Behind so many it goes on in another file."""
_COUNTING: Final = frozenset(("seq", "ts", "ts_ns"))
"""Columns of numbers that are all different and lie near each other: as differences they take half the time of all, and
a tenth of the space, of a dictionary that turns out not to be worth it.
"""


@dataclass
class _Part:
    """A file that is being written."""

    path: str
    writer: pq.ParquetWriter
    footer: list[pq.FileMetaData]
    rows: int = 0


def write(
    place: str,
    known: Table,
    batches: Iterable[pa.RecordBatch],
    *,
    stem: str = "part",
    extra: Iterable[Column] = (),
) -> list[File]:
    """Rows as files of a table, which nobody sees before they are committed; an error leaves none.

    Args:
        place: the directory of the table, or the URL of it.
        known: which table.
        batches: rows with all its columns.
        stem: what the name of each file begins with.
        extra: columns that they have besides.

    Raises:
        TableError: they cannot be written.
    """
    import pyarrow.parquet as pq

    shape = known.arrow(extra=extra)
    counting = _COUNTING & set(shape.names)
    system, folder = delta.filesystem(place)
    growing: dict[str, _Part] = {}
    parts: list[_Part] = []

    def begin(date: str) -> _Part:
        path = f"{PARTITION}={date}/{stem}-{uuid.uuid4().hex[:12]}.parquet"
        if not is_url(place):  # a store needs no folders
            os.makedirs(f"{folder}/{PARTITION}={date}", exist_ok=True)
        footer: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(
            f"{folder}/{path}",
            shape,
            filesystem=system,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in shape.names if name not in counting],
            column_encoding=dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
            metadata_collector=footer,
        )
        growing[date] = _Part(path, writer, footer)
        parts.append(growing[date])
        return growing[date]

    def end(date: str) -> None:
        growing.pop(date).writer.close()

    try:
        with delta.plain_errors(place):
            for batch in batches:
                for date, rows in _by_date(batch):
                    if date not in growing and len(growing) >= OPEN_MOST:
                        end(next(iter(growing)))
                    part = growing.get(date) or begin(date)
                    part.writer.write_batch(rows.select(shape.names), row_group_size=ROW_GROUP)
                    part.rows += rows.num_rows
                    if part.rows >= FILE_ROWS:
                        end(date)
            while growing:
                end(next(iter(growing)))
            sizes = [system.get_file_info(f"{folder}/{each.path}").size for each in parts]
    except BaseException:
        for left in growing.values():
            with contextlib.suppress(Exception):  # a store takes what is closed late, behind its deletion
                left.writer.close()
        discard(place, [each.path for each in parts])
        raise
    return [file_of(each.path, size, each.footer[0]) for each, size in zip(parts, sizes, strict=True)]


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows by their date, as days of numpy name it: any that ns of 64 bits can mean."""
    import numpy as np
    import pyarrow as pa

    days = batch.column(PARTITION).to_numpy(zero_copy_only=False)
    found = np.unique(days)
    for day in found:
        yield str(day), batch if len(found) == 1 else batch.filter(pa.array(days == day))


def discard(place: str, paths: Iterable[str]) -> None:
    """Delete files of a table that nobody committed, as far as that can be done."""
    system, folder = delta.filesystem(place)
    for path in paths:
        with contextlib.suppress(OSError):
            system.delete_file(f"{folder}/{path}")
