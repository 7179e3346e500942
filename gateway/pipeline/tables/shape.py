"""What all tables share: the columns as the schema has them, time in windows and buckets, the names in bronze rows."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from gateway.pipeline.schema import LONG_MAX, Table

NORESPONSE: Final = 0x04
STREAMING: Final = 0x40
"""Flags of PROTO (RFC 3, "Message Flags")."""
ENODATA: Final = 61
"""How a stream of responses ends well (RFC 6)."""
POLICY: Final = (1, 13)
"""Refused for want of rights: EPERM, EACCES."""
DAY_NS: Final = 86_400 * 10**9
BUCKET_BITS: Final = 5
"""Digits of a latency (binary) that its bucket keeps: 16 buckets an octave, each at most 1/16 of its begin wide."""


def conform(rows: DataFrame, table: Table) -> DataFrame:
    """The columns of ``table`` in their order and types."""
    types = {column.name: "bigint" if column.type == "long" else column.type for column in table.columns}
    return rows.select(*(fn.col(name).cast(kind).alias(name) for name, kind in types.items()))


def day(ns: str = "ts_ns") -> Column:
    """UTC date of a time in ns, whatever the session's time zone is."""
    return fn.expr(f"date_add(DATE'1970-01-01', CAST({ns} DIV {DAY_NS} AS INT))")


def moment(ns: str = "ts_ns") -> Column:
    """Timestamp (us) of a time in ns."""
    return fn.expr(f"timestamp_micros({ns} DIV 1000)")


def bucket(seconds: int, ns: str = "ts_ns") -> Column:
    """Number of the window of ``seconds`` that a time in ns lies in: cheaper to group by than its begin."""
    return fn.expr(f"{ns} DIV {seconds * 10**9}")


def begin(bucket: str, seconds: int) -> Column:
    """Begin of a window, as a timestamp."""
    return fn.expr(f"timestamp_seconds({bucket} * {seconds})")


def bucket_end(ns: Column) -> Column:
    """The largest time in ns of the bucket that a time lies in: all of its bits behind the first few are set."""
    rest = fn.greatest(fn.length(fn.bin(ns)) - BUCKET_BITS, fn.lit(0))
    return ns.bitwiseOR(fn.call_function("shiftleft", fn.lit(1).cast("bigint"), rest) - 1)


def total(value: Column | str) -> Column:
    """The sum, ``LONG_MAX`` at most; null without any value."""
    return fn.when(fn.count(value) > 0, fn.coalesce(fn.try_sum(value), fn.lit(LONG_MAX)))


def of_broker(role: Column | None = None) -> Column:
    """A role (the peer's unless said) is that of another broker of the tree, not of somebody who enters it there."""
    given = fn.col("role") if role is None else role
    return fn.coalesce(given.isin("child", "parent"), fn.lit(False))


def service(topic: str = "topic") -> Column:
    """Topic up to the first dot."""
    return fn.substring_index(fn.col(topic), ".", 1)


def fact(key: str, type_name: str = "string") -> Column:
    """A value of the JSON in ``detail``; null where it is not there or not of that type."""
    text = fn.get_json_object(fn.col("detail"), f"$.{key}")
    return text if type_name == "string" else text.try_cast(type_name)
