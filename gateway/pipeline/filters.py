"""Filters that Spark hands to the source: blocks by their times, rows by a mask. Spark applies every one again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from broker.journal.reading.blocks import Block

if TYPE_CHECKING:
    import pyarrow as pa

Mask = Callable[["pa.RecordBatch"], "pa.Array"]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_DAY_NS: Final = 86_400_000_000_000
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


class Wanted:
    """What of the journal is wanted: a range of time, and masks over rows.

    Args:
        since_ns: rows from here on.
        until_ns: rows before.
        filters: Spark's; one that is not understood here is left to Spark.
    """

    def __init__(self, since_ns: int = _LEAST, until_ns: int = _MOST, filters: Sequence[Any] = ()) -> None:
        self.since_ns, self.until_ns = since_ns, until_ns
        self._bounded = since_ns > _LEAST or until_ns < _MOST
        self.block_since, self.block_until = since_ns, until_ns
        self._masks: list[Mask] = []
        for each in filters:
            self._take(each)

    @property
    def needs(self) -> set[str]:
        """Columns that the range of time is checked on."""
        return {"ts_ns"} if self._bounded else set()

    def block(self, block: Block) -> bool:
        """Whether a block may hold wanted rows."""
        return block.last_ts >= self.block_since and block.first_ts < self.block_until

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted rows of a batch; it must hold ``needs``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._bounded:
            at = batch.column("ts_ns")
            inside = pc.and_(
                pc.greater_equal(at, pa.scalar(self.since_ns, pa.int64())),
                pc.less(at, pa.scalar(self.until_ns, pa.int64())),
            )
            batch = batch.filter(inside)
        for mask in self._masks:
            batch = batch.filter(mask(batch))
        return batch

    def _take(self, given: Any) -> None:
        from pyspark.sql import datasource as ds

        kind: Any = type(given)
        names: tuple[str, ...] = getattr(given, "attribute", ())
        if len(names) != 1:
            return
        name = names[0]
        operators = {
            ds.EqualTo: "equal",
            ds.GreaterThan: "greater",
            ds.GreaterThanOrEqual: "greater_equal",
            ds.LessThan: "less",
            ds.LessThanOrEqual: "less_equal",
        }
        if kind in operators:
            self._compare(name, operators[kind], given.value)
        elif kind is ds.In:
            self._masks.append(_in(name, given.value))
        elif kind is ds.StringStartsWith:
            self._masks.append(_starts(name, given.value))

    def _compare(self, name: str, operator: str, value: Any) -> None:
        self._masks.append(_compared(name, operator, value))
        if (span := _span_ns(name, value)) is None:
            return
        lower, upper = span
        if operator in ("greater", "greater_equal", "equal"):
            self.block_since = max(self.block_since, lower)
        if operator in ("less", "less_equal", "equal"):
            self.block_until = min(self.block_until, upper)


def _span_ns(name: str, value: Any) -> tuple[int, int] | None:
    """First ns that a value of a column of time stands for, and the first one behind it."""
    if name == "ts_ns" and isinstance(value, int):
        return value, value + 1
    if name == "ts" and isinstance(value, datetime):
        at = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
        return at // _US * 1000, (at // _US + 1) * 1000
    if name == "dt" and type(value) is date:
        day = (value - _EPOCH.date()).days
        return day * _DAY_NS, (day + 1) * _DAY_NS
    return None


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    import pyarrow as pa

    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return pa.scalar(value, kind)


def _compared(name: str, operator: str, value: Any) -> Mask:
    import pyarrow.compute as pc

    def mask(batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(name)
        return getattr(pc, operator)(column, _scalar(value, column.type))

    return mask


def _in(name: str, values: Sequence[Any]) -> Mask:
    import pyarrow as pa
    import pyarrow.compute as pc

    def mask(batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(name)
        return pc.is_in(
            column, pa.array([_scalar(value, column.type).as_py() for value in values], column.type)
        )

    return mask


def _starts(name: str, value: str) -> Mask:
    import pyarrow.compute as pc

    def mask(batch: pa.RecordBatch) -> pa.Array:
        return pc.starts_with(batch.column(name), pattern=value)

    return mask
