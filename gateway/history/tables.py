"""A warehouse on disk or in a store: Delta tables, ``DIR/TABLE`` (gold tables), ``DIR/_runs`` (what ran). Their logs
say which files there are, by date; no JVM is needed.

Reading is bounded three times: only the dates a scope touches, only the asked columns, and of those only what a
``Budget`` allows; the newest dates come first. A file that cannot be read is named in ``Reading.damaged``; one that was
replaced and deleted since the log was read, in ``Reading.vanished``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from broker.errors import ConfigError
from broker.journal.stores import is_url, joined
from broker.secret import masked
from gateway import delta
from gateway.delta import File
from gateway.history.files import (
    FILES_MAX,
    Absent,
    Reading,
    arrow,
    batches,
    edge_of,
    module,
    opened,
    seconds,
    within,
)
from gateway.history.scope import STEPS_S, Scope

DAYS_KEPT: Final = 4000
"""Dates of a table that are listed: ten years."""
SETTLED_NS: Final = 1_000_000_000
"""A log that was written more lately than this is read again each time: times of files are coarse."""
STORED_NS: Final = 5_000_000_000
"""The log of a table in a store is read again so often."""


class Warehouse:
    """The tables below one directory.

    Args:
        directory: of the warehouse, or the URL of one in a store; it need not exist yet.
    """

    def __init__(self, directory: str) -> None:
        self.directory = delta.place_of(directory)
        self._stored = is_url(self.directory)
        self._edges: dict[tuple[str, File], tuple[int, int] | None] = {}
        self._listed: dict[str, tuple[int, dict[str, list[File]]]] = {}

    def check(self) -> None:
        """Say what is missing.

        Raises:
            Absent: pyarrow or the directory.
        """
        arrow()
        there = bool(self.tables()) if self._stored else os.path.isdir(self.directory)
        if not there:
            place = masked(self.directory)
            raise Absent(
                f"there is no warehouse at {place} yet: "
                f"headgate pipeline batch --journal DIR --warehouse {place} makes one"
            )

    def tables(self) -> list[str]:
        """Names of the tables that are there, those of the machinery left out.

        Raises:
            Absent: the store does not answer.
        """
        return sorted(name for name in _folders(self.directory) if name[0] not in "._")

    def days(self, table: str) -> list[str]:
        """Dates that a table has rows of, newest first."""
        return sorted(self._files(table), reverse=True)[:DAYS_KEPT]

    def files(self, table: str, days: Iterable[str]) -> list[File]:
        """The files of these dates, newest date first."""
        there = self._files(table)
        wanted: list[File] = []
        for day in days:
            wanted += there.get(day, [])
            if len(wanted) > FILES_MAX:
                break
        return wanted

    def _files(self, table: str) -> dict[str, list[File]]:
        """The files by date, as the log of the table says; it is read again when there is more in it, or after some
        seconds where that does not show.
        """
        place = joined(self.directory, table)
        written, settled = _written(place)
        when, by_day = self._listed.get(table, (0, {}))
        if not when or when != written:
            by_day = _logged(place)
            self._listed[table] = (written if settled else 0, by_day)
        return by_day

    def run_files(self) -> list[File]:
        """The files of ``_runs``, newest first."""
        found = self.files("_runs", self.days("_runs")[:31])
        return sorted(found, key=lambda each: (each.written_ms, each.size), reverse=True)

    def state(self, tables: Sequence[str], days: Sequence[str]) -> tuple[File, ...]:
        """Changes when any file of these partitions does."""
        files = [each for table in tables for each in self.files(table, days)]
        return tuple(files[:FILES_MAX])

    def extent(self) -> tuple[int, int] | None:
        """First second of the data and the first one behind it, by tens as windows of traffic are; None without any.

        A window ends where the next one begins, a moment lies before the second after it. From the footers of the
        oldest and the newest partitions of ``EXACT``; of any other table only when those have nothing.
        """
        there = self.tables()
        for names in (EXACT, sorted(set(TIMES) - set(EXACT))):
            edges = [edge for name in names if name in there for edge in self._ends(name)]
            if edges:
                unit = STEPS_S[0]
                first, end = min(low for low, _ in edges), max(high for _, high in edges)
                return first // unit * unit, -(-end // unit) * unit
        return None

    def _ends(self, table: str) -> list[tuple[int, int]]:
        """First and last second behind of the oldest and of the newest partition that has rows."""
        days, edges = self.days(table), []
        for order in (days[:3], days[:-4:-1]):
            for day in order:
                if known := [edge for file in self.files(table, [day]) if (edge := self._edge(table, file))]:
                    edges += known
                    break
        return edges

    def _edge(self, table: str, file: File) -> tuple[int, int] | None:
        """First second of a file and the first one behind it; remembered."""
        key = table, file
        if key not in self._edges:
            if len(self._edges) >= EDGES_MAX:
                self._edges.clear()
            self._edges[key] = edge_of(file, TIMES[table], WIDTHS.get(table, 0))
        return self._edges[key]

    def read(
        self,
        table: str,
        columns: Sequence[str],
        scope: Scope,
        reading: Reading,
        *,
        files: list[File] | None = None,
    ) -> Iterator[Any]:
        """Batches (``pyarrow.Table``) of the rows within ``scope``, with ``columns`` in this order.

        The time column, ``TIMES[table]``, is there as microseconds since 1970 (int64) under the name ``us``; where
        it is null, and in tables without one, the begin of the partition's day. A row of a window counts when the
        window reaches into ``scope``, any other one when its time lies there. Filters are applied where the table has
        the column.
        """
        filters = [name for name in ("service", "rank") if getattr(scope, name) is not None]
        wanted = list(dict.fromkeys([*columns, *filters]))
        width = WIDTHS.get(table, 0)
        reached = scope.reaching(width)
        for file in self.files(table, reached.days) if files is None else files:
            if not reading.budget.take(files=1):
                return
            try:
                for batch in batches(file, wanted, TIMES[table], reached, reading):
                    kept = within(batch, scope, width, filters)
                    if kept.num_rows:
                        reading.rows += kept.num_rows
                        yield kept.select(["us", *columns])
            except FileNotFoundError:
                reading.vanished = True
            except (OSError, arrow().ArrowException):
                reading.damaged.append(self._name(file))

    def _name(self, file: File) -> str:
        """Of a file below the directory."""
        if not self._stored:
            return os.path.relpath(file.path, self.directory)
        return file.path.partition("?")[0][len(self.directory.partition("?")[0]) + 1 :]

    def runs(self, reading: Reading, count: int) -> list[dict[str, Any]]:
        """The newest rows of ``_runs``, each as it is there, newest first."""
        rows: list[dict[str, Any]] = []
        for file in self.run_files()[: 4 * count]:
            try:
                with opened(file) as parquet:
                    if not reading.budget.take(parquet.metadata.num_rows, file.size, 1):
                        break
                    rows += parquet.read(use_threads=False).to_pylist()
            except FileNotFoundError:
                reading.vanished = True
            except (OSError, arrow().ArrowException):
                reading.damaged.append(self._name(file))
        return sorted(rows, key=lambda row: seconds(row.get("finished_at")) or 0.0, reverse=True)[:count]


TIMES: Final = {
    "traffic": "window",
    "rpc_latency": "window",
    "tree_latency": "window",
    "errors": "window",
    "denied": "ts",
    "event_gaps": "ts",
    "order_check": "last_ts",
    "job_outcomes": "t_submit",
    "notifications": "ts",
    "slow": "ts",
    "user_usage": "",
}
"""Table -> the column that says when; "" has none: its rows are of a whole day."""
WIDTHS: Final = {"traffic": 10, "rpc_latency": 60, "tree_latency": 60, "errors": 60}
"""Tables whose time is the begin of a window -> its seconds."""
WIDEST_S: Final = max(WIDTHS.values())
EXACT: Final = ("traffic", "denied", "event_gaps", "job_outcomes", "notifications", "slow")
"""Tables that tell when something was; the others are wider windows of the same messages."""
EDGES_MAX: Final = 8192
"""Files whose first and last time are remembered."""


# ---------------------------------------------------------------- the directory


def _folders(place: str) -> list[str]:
    """Names of the folders in a place; in one of this machine those with a log."""
    if not is_url(place):
        try:
            names = os.listdir(place)
        except OSError:
            return []
        return [name for name in names if os.path.isdir(os.path.join(place, name, delta.LOG))]
    fs = arrow("fs")
    try:
        system, folder = delta.filesystem(place)
        about = delta.listed(system, folder)
    except (OSError, ConfigError) as error:
        raise Absent(f"{masked(place)}: {delta.brief(error)}") from None
    return [each.base_name for each in about if each.type is fs.FileType.Directory]


def _written(place: str) -> tuple[int, bool]:
    """When the log of a table was written (0: there is none), and whether that was long enough ago to tell from it what
    is written from now on. In a store that does not show: another number every few seconds.
    """
    if is_url(place):
        return time.time_ns() // STORED_NS, True
    try:
        written = os.stat(os.path.join(place, delta.LOG)).st_mtime_ns
    except OSError:
        return 0, False
    return written, time.time_ns() - written > SETTLED_NS


def _logged(place: str) -> dict[str, list[File]]:
    """The files of a table by date, with their whole paths, as its log says; none where there is no table.

    Raises:
        Absent: the log cannot be read or is lost, or ``deltalake`` is not installed.
    """
    module("deltalake")
    try:
        table = delta.opened(place)
        if table is None:
            delta.refuse_without_log(place)
            return {}
    except delta.TableError as error:
        raise Absent(str(error)) from None
    by_day: dict[str, list[File]] = {}
    for file in delta.files_of(table):
        by_day.setdefault(file.date, []).append(replace(file, path=joined(place, file.path)))
    return by_day
