"""Rows -> one Parquet file in each date they fall on, written here or inside a Spark task; the driver commits them."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from broker.journal.stores import is_url
from gateway import delta
from gateway.pipeline import lake, schema
from gateway.pipeline.columns import PARTITION, Table
from gateway.pipeline.lake import File

if TYPE_CHECKING:
    import pyarrow as pa

OPEN_MOST: Final = 64
"""Dates written at once; a clock that runs wild closes the oldest, which then gets a second file."""
ROW_GROUP: Final = 131_072
FILE_ROWS: Final = 4_000_000
"""A task goes on in another file."""
_COUNTING: Final = frozenset(("seq", "ts", "ts_ns"))
"""Columns of numbers that are all different and lie near each other: as differences they take half the time of all, and
a tenth of the space, of a dictionary that turns out not to be worth it.
"""


@dataclass
class _Open:
    """A file that is being written."""

    path: str
    writer: Any
    footer: list[Any]
    rows: int = 0


class Parts:
    """The files of one task. Nobody sees them before they are committed; an error leaves none.

    Args:
        place: the directory of the table, or the URL of it.
        known: which table.
        stem: what the name of each file begins with.
        payload: whether there is a column ``payload``.

    Attributes:
        files: what was written, once this has ended.
    """

    def __init__(self, place: str, known: Table, stem: str, payload: bool = False) -> None:
        import pyarrow as pa

        self._place, self._stem = place, stem
        self._system, self._folder = delta.filesystem(place)
        shape = known.arrow()
        if payload:
            shape = pa.schema([*shape, pa.field(schema.PAYLOAD.name, pa.binary())], shape.metadata)
        self._shape = shape
        self._open: dict[int, _Open] = {}
        self._closed: list[_Open] = []
        self.files: list[File] = []

    def __enter__(self) -> Self:
        return self

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows with ``dt``.

        Raises:
            TableError: they cannot be written.
        """
        import numpy as np
        import pyarrow as pa

        if not batch.num_rows:
            return
        days = np.asarray(batch.column(PARTITION).cast("int32"))
        first = int(days[0])
        with delta.plain_errors(self._place):
            if (days == first).all():
                self._write(first, batch)
                return
            for day in np.unique(days):
                self._write(int(day), batch.filter(pa.array(days == day)))

    def _write(self, day: int, batch: pa.RecordBatch) -> None:
        part = self._open.get(day) or self._begin(day)
        part.writer.write_batch(batch.select(self._shape.names), row_group_size=ROW_GROUP)
        part.rows += batch.num_rows
        if part.rows >= FILE_ROWS:
            self._close(day)

    def _begin(self, day: int) -> _Open:
        import pyarrow.parquet as pq

        if len(self._open) >= OPEN_MOST:
            self._close(next(iter(self._open)))
        path = f"{PARTITION}={date_of(day)}/{self._stem}-{uuid.uuid4().hex[:12]}.parquet"
        whole = f"{self._folder}/{path}"
        if not is_url(self._place):  # a store needs no folders
            self._system.create_dir(os.path.dirname(whole), recursive=True)
        footer: list[Any] = []
        counting = _COUNTING & set(self._shape.names)
        writer = pq.ParquetWriter(
            whole,
            self._shape,
            filesystem=self._system,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in self._shape.names if name not in counting],
            column_encoding=dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
            metadata_collector=footer,
        )
        self._open[day] = _Open(path, writer, footer)
        return self._open[day]

    def _close(self, day: int) -> None:
        part = self._open[day]
        part.writer.close()
        self._closed.append(self._open.pop(day))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with delta.plain_errors(self._place):
                for day in list(self._open):
                    self._close(day)
                if kind is None:
                    self.files = [self._written(part) for part in self._closed]
        finally:
            if not self.files:
                discard(self._place, [part.path for part in [*self._closed, *self._open.values()]])

    def _written(self, part: _Open) -> File:
        size = self._system.get_file_info(f"{self._folder}/{part.path}").size
        return lake.file_of(part.path, size, part.footer[0])

    def as_json(self) -> str:
        """``files`` as JSON, for the driver."""
        return json.dumps([vars(each) for each in self.files])


def files_of(text: str) -> list[File]:
    """What ``Parts.as_json`` gives."""
    return [File(**each) for each in json.loads(text)]


def discard(place: str, paths: Iterable[str]) -> None:
    """Delete files of a table that nobody committed, as far as that can be done."""
    system, folder = delta.filesystem(place)
    for path in paths:
        with contextlib.suppress(OSError):
            system.delete_file(f"{folder}/{path}")


def date_of(day: int) -> str:
    """``2026-01-31`` of days since 1970; any that ns of 64 bits can mean.

    >>> date_of(0)
    '1970-01-01'
    """
    import numpy as np

    return str(np.datetime64(day, "D"))
