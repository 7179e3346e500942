"""Rows -> one Parquet file in each date they fall on, written inside a Spark task; the driver commits them."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from gateway.pipeline import schema
from gateway.pipeline.lake import File

if TYPE_CHECKING:
    import pyarrow as pa

OPEN_MOST: Final = 64
"""Dates written at once; a clock that runs wild closes the oldest, which then gets a second file."""
ROW_GROUP: Final = 131_072
WRITTEN_DDL: Final = "files string"
"""What ``write`` gives."""


class Parts:
    """The files of one task. Nobody sees them before they are committed; an error leaves none.

    Args:
        place: the directory of the table.
        known: which table.
        stem: what the name of each file begins with.
        payload: whether there is a column ``payload``.

    Attributes:
        files: what was written, once this has ended.
    """

    def __init__(self, place: str | Path, known: schema.Table, stem: str, payload: bool = False) -> None:
        import pyarrow as pa

        self._place, self._stem = Path(place), stem
        shape = known.arrow()
        if payload:
            shape = pa.schema([*shape, pa.field(schema.PAYLOAD.name, pa.binary())], shape.metadata)
        self._shape = shape
        self._open: dict[int, tuple[str, Any]] = {}
        self._closed: list[tuple[int, str, Any]] = []
        self.files: list[File] = []

    def __enter__(self) -> Self:
        return self

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows with ``dt``; strings may be dictionary-encoded."""
        import numpy as np
        import pyarrow as pa

        if not batch.num_rows:
            return
        days = np.asarray(batch.column(schema.PARTITION).cast("int32"))
        first = int(days[0])
        if (days == first).all():
            self._write(first, batch)
            return
        for day in np.unique(days):
            self._write(int(day), batch.filter(pa.array(days == day)))

    def _write(self, day: int, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        rows = pa.Table.from_batches([batch.select(self._shape.names)])
        _path, writer = self._open.get(day) or self._begin(day, rows.schema)
        writer.write_table(rows, row_group_size=ROW_GROUP)

    def _begin(self, day: int, given: pa.Schema) -> tuple[str, Any]:
        import pyarrow.parquet as pq

        if len(self._open) >= OPEN_MOST:
            self._close(next(iter(self._open)))
        path = f"{schema.PARTITION}={date_of(day)}/{self._stem}-{uuid.uuid4().hex[:12]}.parquet"
        (self._place / path).parent.mkdir(parents=True, exist_ok=True)
        shape = given.with_metadata(self._shape.metadata)
        writer = pq.ParquetWriter(self._place / path, shape, compression="zstd", compression_level=1)
        self._open[day] = path, writer
        return self._open[day]

    def _close(self, day: int) -> None:
        path, writer = self._open.pop(day)
        writer.close()
        self._closed.append((day, path, writer))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import pyarrow.parquet as pq

        for day in list(self._open):
            self._close(day)
        for day, path, _writer in self._closed:
            whole = self._place / path
            if kind is None:
                rows = pq.read_metadata(whole).num_rows
                self.files.append(File(path, date_of(day), rows, whole.stat().st_size))
            else:
                with contextlib.suppress(FileNotFoundError):
                    whole.unlink()

    def told(self) -> str:
        """``files`` as JSON, for the driver."""
        return json.dumps([vars(each) for each in self.files])


def told(text: str) -> list[File]:
    """What ``Parts.told`` says."""
    return [File(**each) for each in json.loads(text)]


def write(batches: Iterable[pa.RecordBatch], place: str, table: str) -> Iterator[pa.RecordBatch]:
    """In a task: rows of any table -> files; gives one row, ``WRITTEN_DDL``."""
    import pyarrow as pa

    known = schema.table_named(table)
    shape = known.arrow(partition=True)
    with Parts(place, known, "part") as parts:
        for batch in batches:
            rows = pa.Table.from_batches([batch.select(shape.names)]).cast(shape)
            for each in rows.to_batches():
                parts.add(each)
    yield pa.RecordBatch.from_pydict({"files": [parts.told()]})


def date_of(day: int) -> str:
    """``2026-01-31`` of days since 1970; any that ns of 64 bits can mean.

    >>> date_of(0)
    '1970-01-01'
    """
    import numpy as np

    return str(np.datetime64(day, "D"))
