"""What a warehouse holds: tables, dates, files, rows, versions, who feeds it, the last runs. No Spark."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.pipeline import runs, schema
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.warehouse import Warehouse


@dataclass(frozen=True)
class Held:
    """One table, as it is on disk; ``versions`` are those that its files say."""

    table: str
    version: int
    versions: tuple[int, ...]
    files: int
    rows: int
    bytes: int
    first: str
    last: str


def held(warehouse: Warehouse, name: str) -> Held:
    """One table.

    Raises:
        PipelineError: no such table; a file of it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = size = 0
    versions: set[int] = set()
    files = warehouse.files(name)
    for path in files:
        try:
            found = pq.read_metadata(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise PipelineError(f"{path}: {error}; expected a Parquet file") from None
        rows += found.num_rows
        size += path.stat().st_size
        versions.add(schema.version_of(found.metadata) or 1)
    dates = warehouse.dates(name)
    version = schema.table_named(name).version
    first, last = (dates[0], dates[-1]) if dates else ("", "")
    return Held(name, version, tuple(sorted(versions)), len(files), rows, size, first, last)


def existing(directory: str | os.PathLike[str]) -> Warehouse:
    """The warehouse in a directory.

    Raises:
        PipelineError: there is no such directory.
    """
    house = Warehouse(os.fspath(directory))
    if not house.root.is_dir():
        raise PipelineError(f"{house.root}: no such directory; `headgate pipeline ingest` makes one")
    return house


def describe(warehouse: Warehouse) -> dict[str, Any]:
    """All of it, as JSON values; ``age_s`` of the last run tells how fresh it is.

    Raises:
        PipelineError: there is no such directory, or a file of it cannot be read.
    """
    existing(warehouse.root)
    last = runs.last(warehouse)
    return {
        "warehouse": str(warehouse.root),
        "feed": warehouse.feed(),
        "tables": [vars(held(warehouse, name)) for name in schema.TABLES],
        "last_run": None if last is None else _told(last),
    }


def _told(row: dict[str, Any]) -> dict[str, Any]:
    finished: datetime = row["finished_at"]
    kept = {
        name: row[name]
        for name in ("job", "batch_id", "rows_in", "rows_out", "bad_blocks", "lost_records", "duration_s")
    }
    return {
        **kept,
        "finished_at": finished.isoformat(),
        "age_s": round(time.time() - finished.timestamp(), 3),
    }
