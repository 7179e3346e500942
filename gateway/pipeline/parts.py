"""Rows of ``messages`` -> one Parquet file in each date they fall on, written inside a Spark task."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from gateway.pipeline import schema

if TYPE_CHECKING:
    import pyarrow as pa

OPEN_MOST: Final = 64
"""Dates written at once; a clock that runs wild closes the oldest, which then gets a second file."""
ROW_GROUP: Final = 131_072


class Parts:
    """The files of one task. All get their names at the end, in one go; an error leaves none.

    Args:
        table: the directory of ``messages``.
        stem: the name that each file has, without ``.parquet``.
        payload: whether there is a column ``payload``.

    Attributes:
        rows: written so far.
        dates: where there are files, once this has ended.
    """

    def __init__(self, table: str, stem: str, payload: bool = False) -> None:
        import pyarrow as pa

        self._table, self._stem = Path(table), stem
        shape = schema.MESSAGES.arrow()
        self._shape = (
            pa.schema([*shape, pa.field(schema.PAYLOAD.name, pa.binary())], shape.metadata)
            if payload
            else shape
        )
        self._writers: dict[int, Any] = {}
        self._hidden: dict[int, list[Path]] = {}
        self._token = uuid.uuid4().hex[:8]
        self.rows = 0
        self.dates: list[str] = []

    def __enter__(self) -> Self:
        return self

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows with ``dt``; strings may be dictionary-encoded."""
        import numpy as np

        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        days = np.asarray(batch.column(schema.PARTITION).cast("int32"))
        first = int(days[0])
        if (days == first).all():
            self._write(first, batch)
            return
        import pyarrow as pa

        for day in np.unique(days):
            self._write(int(day), batch.filter(pa.array(days == day)))

    def _write(self, day: int, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        rows = pa.Table.from_batches([batch.select(self._shape.names)])
        writer = self._writers.get(day) or self._open(day, rows.schema)
        writer.write_table(rows, row_group_size=ROW_GROUP)

    def _open(self, day: int, given: pa.Schema) -> Any:
        import pyarrow.parquet as pq

        if len(self._writers) >= OPEN_MOST:
            self._writers.pop(next(iter(self._writers))).close()
        directory = self._table / f"{schema.PARTITION}={date_of(day)}"
        directory.mkdir(parents=True, exist_ok=True)
        files = self._hidden.setdefault(day, [])
        more = f"-{len(files)}" if files else ""
        path = directory / f".{self._stem}{more}.parquet.{self._token}.tmp"
        files.append(path)
        self._writers[day] = writer = pq.ParquetWriter(
            path, given.with_metadata(self._shape.metadata), compression="zstd", compression_level=1
        )
        return writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hidden = [path for files in self._hidden.values() for path in files]
        try:
            for writer in self._writers.values():
                writer.close()
            if kind is None:
                for path in hidden:
                    os.replace(path, path.with_name(path.name[1:].removesuffix(f".{self._token}.tmp")))
                self.dates = sorted(date_of(day) for day in self._hidden)
        finally:
            self._writers.clear()
            for path in hidden:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


def date_of(day: int) -> str:
    """``2026-01-31`` of days since 1970; any that ns of 64 bits can mean.

    >>> date_of(0)
    '1970-01-01'
    """
    import numpy as np

    return str(np.datetime64(day, "D"))
