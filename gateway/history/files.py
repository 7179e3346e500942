"""One Parquet file of a warehouse: when its rows begin and end, and those of a scope, never more than a budget.

Row groups whose statistics lie outside the scope are passed over. A column that a file lacks is null in all of its rows
(tables only ever gain columns).
"""

from __future__ import annotations

import datetime as dt
import errno
import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from broker.errors import HeadgateError
from broker.extras import install
from gateway import delta
from gateway.delta import File
from gateway.history.scope import DAY_S, Scope, start_of

BATCH_ROWS: Final = 65536
"""Rows decoded at a time."""
ROWS_MAX: Final = 8_000_000
"""Rows one question reads: a day of traffic of a busy instance, some seconds."""
BYTES_MAX: Final = 512 * 2**20
"""Uncompressed bytes of columns one question reads, one batch after the other."""
SECONDS_MAX: Final = 10.0
"""How long one question may read."""
FILES_MAX: Final = 4096
"""Files one question opens."""
NAMED_MAX: Final = 16
"""Damaged files that an answer names."""


class Absent(HeadgateError):
    """There is no history here; the text says what to do about it."""

    errno = errno.ENOENT
    fault = "operator"


def arrow(name: str = "") -> Any:
    """``pyarrow``, or its module ``name``; loaded when it is first needed.

    Raises:
        Absent: it is not installed.
    """
    return module(f"pyarrow.{name}" if name else "pyarrow")


def module(name: str) -> Any:
    """The module ``name``, loaded when it is first needed. Raises ``Absent``: it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Absent(
            f"the history needs {name.partition('.')[0]} ({error}): {install('history')}",
            errno.ENOSYS,
        ) from None


@dataclass(slots=True)
class Budget:
    """What one question may still read.

    Attributes:
        stopped: whether nobody waits for the answer any more.
        spent: why reading ended early, ``rows``, ``bytes``, ``files``, ``time`` or ``stopped``; "" while it may go on.
    """

    rows: int = ROWS_MAX
    bytes: int = BYTES_MAX
    files: int = FILES_MAX
    seconds: float = SECONDS_MAX
    clock: Callable[[], float] = time.monotonic
    stopped: Callable[[], bool] = lambda: False
    spent: str = ""
    _until: float | None = None

    def take(self, rows: int = 0, size: int = 0, files: int = 0) -> bool:
        """Whether so much more may be read; the clock starts with the first question."""
        if self._until is None:
            self._until = self.clock() + self.seconds
        for name, left in (
            ("rows", self.rows - rows),
            ("bytes", self.bytes - size),
            ("files", self.files - files),
            ("time", self._until - self.clock()),
        ):
            if left < 0:
                self.spent = self.spent or name
        if self.stopped():
            self.spent = self.spent or "stopped"
        if not self.spent:
            self.rows, self.bytes, self.files = self.rows - rows, self.bytes - size, self.files - files
        return not self.spent


@dataclass(slots=True)
class Reading:
    """What was met while a question was read."""

    budget: Budget = field(default_factory=Budget)
    damaged: list[str] = field(default_factory=list)
    vanished: bool = False
    rows: int = 0

    def as_json(self) -> dict[str, Any]:
        """The fields every answer has: ``truncated`` is "" when all was read."""
        return {
            "rows": self.rows,
            "truncated": self.budget.spent,
            "damaged": sorted(set(self.damaged))[:NAMED_MAX],
        }


def opened(file: File) -> Any:
    """The ``ParquetFile`` of a file with its whole path.

    Raises:
        OSError: it is gone, or cannot be read.
        ArrowException: it is damaged.
    """
    system, path = delta.filesystem(file.path)
    return arrow("parquet").ParquetFile(path, filesystem=system)


def edge_of(file: File, column: str, width: int) -> tuple[int, int] | None:
    """Where the rows of a file begin and end, from its footer; its whole day where that says nothing, None if empty."""
    day = start_of(file.date)
    try:
        with opened(file) as parquet:
            groups = [parquet.metadata.row_group(at) for at in range(parquet.num_row_groups)]
            bounds = [_bounds(group, column) for group in groups if group.num_rows]
    except (OSError, arrow().ArrowException):
        return None
    known = [each for each in bounds if each is not None]
    if not bounds or len(known) < len(bounds):
        return (day, day + DAY_S) if bounds else None
    first, last = min(low for low, _ in known), max(high for _, high in known)
    return math.floor(first), math.floor(last) + (width or 1)


def _bounds(group: Any, column: str) -> tuple[float, float] | None:
    """Smallest and largest time of a row group, seconds; None when its statistics do not say."""
    for at in range(group.num_columns):
        chunk = group.column(at)
        if chunk.path_in_schema == column:
            about = chunk.statistics
            if about is None or not about.has_min_max or about.null_count:
                return None  # where a time is null, the row is of the begin of the day
            low, high = seconds(about.min), seconds(about.max)
            return None if low is None or high is None else (low, high)
    return None


def batches(file: File, columns: Sequence[str], when: str, scope: Scope, reading: Reading) -> Iterator[Any]:
    """Batches of a file with ``us``, made of its column ``when`` ("": it has none), and exactly ``columns``; what lies
    outside ``scope`` as a whole is passed over.
    """
    pa = arrow()
    with opened(file) as parquet:
        have = set(parquet.schema_arrow.names)
        asked = [name for name in dict.fromkeys((when, *columns)) if name in have]
        if when and when not in have:
            raise pa.ArrowInvalid(f"no column {when}")
        for at in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(at)
            bounds = _bounds(group, when)
            if bounds is not None and (bounds[1] < scope.since or bounds[0] >= scope.until):
                continue
            if not reading.budget.take(group.num_rows, _size(group, set(asked))):
                return
            for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[at], columns=asked, use_threads=False):
                if not reading.budget.take():
                    return
                yield _shaped(pa.Table.from_batches([batch]), columns, when, start_of(file.date) * 10**6)


def _size(group: Any, names: set[str]) -> int:
    chunks = (group.column(at) for at in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in names)


def _shaped(table: Any, columns: Sequence[str], when: str, day_us: int) -> Any:
    """``us`` and ``columns``; nulls for those that are missing."""
    pa, compute = arrow(), arrow("compute")
    count = table.num_rows
    us = micros(table.column(when)) if when else pa.nulls(count, pa.int64())
    found = {"us": compute.fill_null(us, day_us)}
    for name in columns:
        found[name] = table.column(name) if name in table.column_names else pa.nulls(count)
    return pa.table(found)


def micros(column: Any) -> Any:
    """A column of timestamps of any unit, or of nanoseconds, as microseconds since 1970 (int64)."""
    pa, compute = arrow(), arrow("compute")
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    return compute.divide(column.cast(pa.int64()), 1000)


def within(table: Any, scope: Scope, width: int, filters: Sequence[str]) -> Any:
    """The rows of a batch that ``scope`` asks for, each of a window of ``width`` seconds (0: of a moment)."""
    compute = arrow("compute")
    us = table.column("us")
    first = (scope.since - width) * 10**6 + bool(width)  # what ends where the scope begins is before it
    mask = compute.and_(compute.greater_equal(us, first), compute.less(us, scope.until * 10**6))
    for name in filters:
        column = table.column(name)
        if not arrow().types.is_null(column.type):
            mask = compute.and_(mask, compute.equal(column, getattr(scope, name)))
    return table.filter(mask)


def seconds(value: Any) -> float | None:
    """A time of a row as seconds since 1970: a datetime (without a zone: UTC), or nanoseconds."""
    if value is None:
        return None
    if isinstance(value, (int, float)):
        return value / 1e9
    stamp: float = (value if value.tzinfo else value.replace(tzinfo=dt.UTC)).timestamp()
    return stamp
