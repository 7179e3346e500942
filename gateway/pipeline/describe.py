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
    """One table, as it is on disk."""

    table: str
    version: int
    files: int
    rows: int
    bytes: int
    first: str
    last: str


def held(warehouse: Warehouse, name: str) -> Held:
    """One table.

    Raises:
        PipelineError: no such table, or of a version that is not read here.
    """
    at = warehouse.at(name)
    files, dates = at.files(), at.dates()
    first, last = (dates[0], dates[-1]) if dates else ("", "")
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    return Held(name, at.known.version, len(files), rows, size, first, last)


def existing(directory: str | os.PathLike[str]) -> Warehouse:
    """The warehouse in a directory, or in a store.

    Raises:
        PipelineError: there is none.
    """
    house = Warehouse(directory)
    if not house.made():
        raise PipelineError(f"{house}: no such warehouse; `headgate pipeline ingest` makes one")
    return house


def describe(warehouse: Warehouse) -> dict[str, Any]:
    """All of it, as JSON values; ``age_s`` of the last run tells how fresh it is.

    Raises:
        PipelineError: there is no such directory, or its version is not read here.
    """
    existing(warehouse.place)
    last = runs.last(warehouse)
    return {
        "warehouse": str(warehouse),
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
