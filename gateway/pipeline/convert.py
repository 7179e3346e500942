"""A warehouse of Parquet files alone, as earlier versions made it -> Delta tables over the same files.

Each table gets one commit that names its files; none is written anew. Bronze goes on where it was: a stream with its
checkpoint, ``ingest`` behind the bytes it had read. Gold that knows all of bronze stays; otherwise it is left out, and
``batch`` makes it. What says that a warehouse is of an earlier version, ``_feed``, goes last: a conversion that was
killed is done again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gateway.pipeline import lake, schema
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.lake import File, Snapshot
from gateway.pipeline.warehouse import BRONZE, FEED, FORMER, GOLD, QUERY, STREAM, Warehouse

_MANIFESTS: Final = "_ingested"
_EMPTY: Final = "dt=1000-01-01"
"""Of files without rows, which were there for readers that know no schema."""
_BATCH: Final = re.compile(r"batch-(\d{10,})-")


def convert(warehouse: Warehouse) -> dict[str, int]:
    """Convert; returns the rows of each table. No other job may run.

    Raises:
        PipelineError: it needs none, or its tables are of a version that is not read any more.
    """
    feed = _feed(warehouse.root / FORMER)
    streamed = feed.get("feed") == STREAM
    whole, known = int(feed.get("bronze", -1)), int(feed.get("gold", -1))
    clean = known == whole if streamed else not feed.get("dirty") and not feed.get("ingesting")
    rows = {}
    for table in schema.TABLES.values():
        place = Path(warehouse.table(table.name))
        shutil.rmtree(place / "_delta_log", ignore_errors=True)  # of a conversion that was killed
        is_gold = table in schema.GOLD
        files = (
            []
            if is_gold and not clean
            else _files(table, place, lambda name: _batch(name) <= whole or not streamed)
        )
        lake.create(Snapshot(table, place))
        at = Snapshot(table, place)
        if any(_has_payload(place / file.path) for file in files[:1]):
            at.add_column(schema.PAYLOAD)
            at = Snapshot(table, place)
        done = _done(warehouse.root, table, whole if streamed else None, clean)
        at.commit(files, done=done)
        rows[table.name] = sum(file.rows for file in files)
    properties = {FEED: feed.get("feed", ""), QUERY: feed.get("query", "")}
    bronze = Snapshot(schema.MESSAGES, warehouse.table(schema.MESSAGES.name))
    bronze.set({key: value for key, value in properties.items() if value})
    _carry_on(Path(warehouse.left_open), known)
    shutil.rmtree(warehouse.root / _MANIFESTS, ignore_errors=True)
    (warehouse.root / FORMER).unlink()
    return rows


def _feed(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise PipelineError(
            f"{path.parent}: nothing to convert: it is no warehouse of Parquet files alone"
        ) from None
    except ValueError as error:
        raise PipelineError(f"{path}: {error}; expected a JSON object") from None


def _files(table: schema.Table, place: Path, counts: Callable[[str], bool]) -> list[File]:
    import pyarrow.parquet as pq

    files = []
    for path in sorted(place.glob("dt=*/*.parquet")):
        if path.name[0] not in "._" and path.parent.name != _EMPTY and counts(path.name):
            about = pq.read_metadata(path)
            table.refuse_foreign(about.metadata, str(path))
            date = path.parent.name.removeprefix("dt=")
            files.append(File(f"{path.parent.name}/{path.name}", date, about.num_rows, path.stat().st_size))
    return files


def _batch(name: str) -> int:
    """The batch of a stream that a file is of; -1 of other files."""
    match = _BATCH.match(name)
    return int(match.group(1)) if match else -1


def _has_payload(path: Path) -> bool:
    import pyarrow.parquet as pq

    return schema.PAYLOAD.name in pq.read_schema(path).names


def _done(root: Path, table: schema.Table, batch: int | None, clean: bool) -> dict[str, int]:
    """How far the jobs were: all of bronze is its first addition."""
    if table is schema.MESSAGES:
        if batch is not None:
            return {BRONZE: 0, STREAM: batch}
        read = {path.stem: json.loads(path.read_text())["end"] for path in (root / _MANIFESTS).glob("*.json")}
        return {BRONZE: 0, **{f"ingest:{stem}": end for stem, end in read.items()}}
    if not clean:
        return {}
    return {GOLD: 0} | ({STREAM: batch} if table is schema.RUNS and batch is not None else {})


def _carry_on(place: Path, known: int) -> None:
    """What the last step left open, under its new number; that of earlier ones goes."""
    for old in place.glob("batch-*"):
        if int(old.name.removeprefix("batch-")) == known:
            old.rename(place / "0")
        else:
            shutil.rmtree(old)
