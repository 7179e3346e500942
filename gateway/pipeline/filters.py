"""Filters that Spark hands to the source: blocks by time, rows by an expression. Spark applies every one again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from broker.journal.reading.blocks import Block

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_DAY_NS: Final = 86_400_000_000_000
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_OPERATORS: Final = {
    "EqualTo": "__eq__",
    "GreaterThan": "__gt__",
    "GreaterThanOrEqual": "__ge__",
    "LessThan": "__lt__",
    "LessThanOrEqual": "__le__",
}
"""Spark's names and what an expression calls them."""


class Wanted:
    """What of the journal is wanted: a range of time, and conditions of rows.

    Args:
        since_ns: rows from here on.
        until_ns: rows before.
        filters: Spark's; one that is not understood here is left to Spark.
    """

    def __init__(self, since_ns: int = _LEAST, until_ns: int = _MOST, filters: Sequence[Any] = ()) -> None:
        import pyarrow.compute as pc

        self.block_since, self.block_until = since_ns, until_ns
        self._every: list[pc.Expression] = []
        self.needs: set[str] = set()
        """Columns that the range of time is checked on."""
        if since_ns > _LEAST or until_ns < _MOST:
            self.needs.add("ts_ns")
            self._every.append((pc.field("ts_ns") >= since_ns) & (pc.field("ts_ns") < until_ns))
        for each in filters:
            names: tuple[str, ...] = getattr(each, "attribute", ())
            if len(names) == 1:
                self._take(type(each).__name__, names[0], getattr(each, "value", None))

    def block(self, block: Block) -> bool:
        """Whether a block may hold wanted rows."""
        return block.last_ts >= self.block_since and block.first_ts < self.block_until

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted rows of a batch; it must hold ``needs``."""
        for each in self._every:
            batch = batch.filter(each)
        return batch

    def _take(self, kind: str, name: str, value: Any) -> None:
        import pyarrow.compute as pc

        column = pc.field(name)
        if kind == "In":
            self._every.append(column.isin([_aware(each) for each in value]))
        elif kind == "StringStartsWith":
            self._every.append(pc.starts_with(column, pattern=value))
        elif operator := _OPERATORS.get(kind):
            self._every.append(getattr(column, operator)(_aware(value)))
            lower, upper = _span_ns(name, value) or (_LEAST, _MOST)
            if kind.startswith(("Greater", "Equal")):
                self.block_since = max(self.block_since, lower)
            if kind.startswith(("Less", "Equal")):
                self.block_until = min(self.block_until, upper)


def _aware(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _span_ns(name: str, value: Any) -> tuple[int, int] | None:
    """First ns that a value of a column of time stands for, and the first one behind it."""
    if name == "ts_ns" and isinstance(value, int):
        return value, value + 1
    if name == "ts" and isinstance(value, datetime):
        at = (_aware(value) - _EPOCH) // _US
        return at * 1000, (at + 1) * 1000
    if name == "dt" and type(value) is date:
        day = (value - _EPOCH.date()).days
        return day * _DAY_NS, (day + 1) * _DAY_NS
    return None
