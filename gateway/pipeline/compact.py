"""Many small files of a date -> few large ones, rows in the order of time, those of a rank together, as ``batch`` reads
them; then files that no version needs go.

Streams, ``batch`` and readers go on meanwhile: a stream's commits only add files, and what a reader began with stays on
disk for ``KEEP_HOURS``. Where ``batch`` replaces the same date at the same time, one of the two begins again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.journal.stores import is_url
from gateway import delta
from gateway.delta import PARTITION, File
from gateway.pipeline import lake, schema
from gateway.pipeline.lake import Snapshot
from gateway.pipeline.warehouse import Warehouse, until_it_passes

FILE_BYTES: Final = 128 << 20
"""Files above this are left alone, and put together up to it."""
FILE_ROWS: Final = 1_000_000
"""Rows are sorted in memory: half a gigabyte of bronze."""
KEEP_HOURS: Final = 48
"""How long a file stays that no version needs: longer than any job, and as long as one can look back."""

_ORDER: Final = {
    "messages": ("rank", "ts_ns", "writer", "seq"),
    "traffic": ("window",),
    "_runs": ("finished_at",),
}


class Compacted(NamedTuple):
    """What became of one date of a table."""

    table: str
    date: str
    files_before: int
    files_after: int
    rows: int


def compact(
    warehouse: Warehouse,
    tables: Iterable[str] | None = None,
    dates: Iterable[str] | None = None,
    *,
    file_bytes: int = FILE_BYTES,
    keep_hours: int = KEEP_HOURS,
) -> list[Compacted]:
    """Put files together, date by date; delete those that nobody needs any more.

    Args:
        warehouse: which.
        tables: None: all.
        dates: None: all.
        file_bytes: how large files get.
        keep_hours: files that were taken out stay so long; jobs that run must be shorter.

    Raises:
        PipelineError: no such table.
        Conflict: other jobs replaced a date again and again.
        TableError: the store does not answer, or the disk refuses.
    """
    compacted: list[Compacted] = []
    for table in schema.TABLES if tables is None else tables:
        at = warehouse.at(table)
        if not at.made:
            continue
        for date in at.dates() if dates is None else sorted(set(dates) & set(at.dates())):
            compacted += until_it_passes(lambda: _one(warehouse.at(table), date, file_bytes))  # noqa: B023
        latest = warehouse.at(table)
        with delta.plain_errors(latest.place):
            latest.delta.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
            _tidy(latest.place, time.time() - keep_hours * 3600)
    return compacted


def _tidy(place: str, before: float) -> None:
    """Delete folders in which Spark wrote for a job that was killed: vacuum leaves what begins with ``_``."""
    if is_url(place):
        return
    for folder in os.scandir(place):
        if folder.is_dir() and folder.name != delta.LOG and not folder.name.startswith(f"{PARTITION}="):
            seen = [os.stat(at).st_mtime for at, _folders, _files in os.walk(folder.path)]
            if max(seen, default=before) < before:
                shutil.rmtree(folder.path, ignore_errors=True)


def _groups(files: Iterable[File], file_bytes: int) -> list[list[File]]:
    """Which files are put together: two or more, up to ``file_bytes`` and ``FILE_ROWS``."""
    groups: list[list[File]] = [[]]
    size = rows = 0
    for file in files:
        if file.size >= file_bytes or file.rows >= FILE_ROWS or lake.is_so_far(file):
            continue
        if size + file.size > file_bytes or rows + file.rows > FILE_ROWS:
            groups.append([])
            size = rows = 0
        groups[-1].append(file)
        size, rows = size + file.size, rows + file.rows
    return [group for group in groups if len(group) > 1]


def _one(at: Snapshot, date: str, file_bytes: int) -> list[Compacted]:
    """One date: all groups in one commit."""
    before = at.files([date])
    groups = _groups(before, file_bytes)
    gone = [file for group in groups for file in group]
    if not gone:
        return []
    extra = [schema.PAYLOAD] if schema.PAYLOAD.name in at.columns else []
    columns = [*at.known.names, *(each.name for each in extra)]
    fresh: list[File] = []
    for group in groups:
        rows = at.scan(columns, group)
        if order := [(name, "ascending") for name in _ORDER.get(at.known.name, ())]:
            rows = rows.sort_by(order)
        fresh += lake.write(
            at.place, at.known, rows.combine_chunks().to_batches(), stem="compact", extra=extra
        )
    at.commit(fresh, removed=gone, same=True)
    after = len(before) - len(gone) + len(fresh)
    return [Compacted(at.known.name, date, len(before), after, sum(file.rows for file in gone))]
