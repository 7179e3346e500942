"""What a warehouse holds: tables, dates, files, rows, versions, who feeds it, the last runs. No Spark."""

from __future__ import annotations

import time
from typing import Any

from gateway.pipeline import runs, schema
from gateway.pipeline.warehouse import Warehouse


def held(warehouse: Warehouse, name: str) -> dict[str, Any]:
    """One table, as it is on disk.

    Raises:
        PipelineError: no such table, or of a version that is not read here.
    """
    at = warehouse.at(name)
    files, dates = at.files(), at.dates() or [""]
    return {
        "table": name,
        "version": at.known.version,
        "files": len(files),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.size for file in files),
        "first": dates[0],
        "last": dates[-1],
    }


def describe(warehouse: Warehouse) -> dict[str, Any]:
    """All of it, as JSON values; ``age_s`` of the last run tells how fresh it is.

    Raises:
        PipelineError: its version is not read here.
    """
    last = runs.last(warehouse)
    if last is not None:
        finished = last["finished_at"]
        names = ("job", "batch_id", "rows_in", "rows_out", "bad_blocks", "lost_records", "duration_s")
        last = {name: last[name] for name in names} | {
            "finished_at": finished.isoformat(),
            "age_s": round(time.time() - finished.timestamp(), 3),
        }
    return {
        "warehouse": str(warehouse),
        "feed": warehouse.feed(),
        "tables": [held(warehouse, name) for name in schema.TABLES],
        "last_run": last,
    }
