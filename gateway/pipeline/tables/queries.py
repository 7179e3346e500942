"""The gold tables of some rows of bronze, as DataFrames: a pure function of the rows and of what was left open before
them, in a batch and in a step of a stream alike.

Nothing is computed twice: what several are made of is kept until the end, one look at the rows says which tables can
have any, and all that is cheap is left to the statement of its table: a view that a query names is put in its place, in
brackets (as ``WITH`` it would be planned for twice as long).
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline.schema import MESSAGES, OPEN, Table, table_named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LOOK: Final = "look"
"""One row of how many rows there are of each kind, and ``newest_ns``."""
BRONZE: Final = "bronze"
KEPT: Final[Mapping[str, Sequence[str]]] = {
    "calls": ["calls", "open call"], "passed": ["n"], "refusals": ["refused"],
}  # fmt: skip
"""What several tables are made of, and rows of which kind it is made of: made once, and kept."""
NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "traffic": ["n"], "tree_traffic": ["tree"], "rpc": ["calls", "open call"], "rpc_latency": ["calls", "open call"],
    "tree_latency": ["calls", "open call"], "denied": ["refused"], "errors": ["refused"], "event_gaps": ["events"],
    "order_check": ["out"], "deliveries": ["out"], "user_usage": ["n", "open call"],
    "job_outcomes": ["jobs", "open job"], "notifications": ["oslo"], "slow": ["states"],
}  # fmt: skip
"""Rows of which kind a table is made of."""
LEAVES: Final = {"call": "calls", "hop": "calls", "event": "events", "job": "jobs"}
"""Of which kind of rows something is left open."""
_NAME: Final = re.compile(r"^-- name: (.+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
EXPIRES_S: Final = 86_400.0
"""A call or job that is open for so long goes into gold as it is; what comes later has no request."""
NEVER: Final = (1 << 63) - 1
"""``since_ns`` where nothing is left open."""
_HOUR_NS: Final = 3_600_000_000_000
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # or rows are sorted by date before they are written
    "spark.sql.ui.explainMode": "simple",  # of each plan a text is made, and with all details that takes long
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # to try them out took a tenth of all time
}
PART_ROWS: Final = 50_000
"""Rows that are worth a task of their own."""
ONE_TASK_ROWS: Final = 200_000
"""Up to so many one task makes a table, without a shuffle: a task, and to hand it over, costs more than these rows."""
FEW_ROWS: Final = 1_000_000
"""Up to so many a plan stays as it is: to plan anew behind each shuffle would take longer than what it spares."""


# ---------------------------------------------------------------- statements


@cache
def queries() -> dict[str, str]:
    """What the files of this package say, by name."""
    found: dict[str, str] = {}
    for file in files("gateway.pipeline.tables").iterdir():
        if file.name.endswith(".sql"):
            _head, *parts = _NAME.split(file.read_text("utf-8"))
            found.update(
                zip(parts[::2], (_COMMENT.sub("", each).strip() for each in parts[1::2]), strict=True)
            )
    return found


def statement(name: str, *, hops: bool) -> str:
    """A query with the views that it names in it, and those that these name: behind FROM or JOIN, in capitals, without
    an alias of its own; but for bronze and what is KEPT, which are views of the session. ``hops``: some rows lack an
    origin.
    """
    views = {key: text for key, text in queries().items() if key != BRONZE and key not in KEPT}
    if not hops:
        views["resolved"] = "SELECT * FROM bronze"

    def put(text: str) -> str:
        return re.sub(
            rf"\b(FROM|JOIN)\s+({'|'.join(views)})\b",
            lambda found: f"{found[1]} ({put(views[found[2]])}) AS {found[2]}",
            text,
        )

    return put(queries()[name])


def rows_of(table: str, dates: Sequence[str] | None, *, hops: bool) -> str:
    """The rows of a gold table (of some dates), in the columns of its schema."""
    columns = ", ".join(
        f"CAST(`{each.name}` AS {each.ddl.split()[-1]}) AS `{each.name}`"
        for each in table_named(table).columns
    )
    found = f"SELECT {columns} FROM ({statement(table, hops=hops)})"
    if dates is None:
        return found
    return f"{found} WHERE dt IN ({', '.join(f'DATE{each!r}' for each in dates) or 'NULL'})"


def left_open(kind: str, *, hops: bool) -> str:
    """What of a kind is left open, in those columns of ``_open`` that it has."""
    dt = "CAST(timestamp_micros(ts_ns div 1000) AS DATE) AS dt"
    return f"SELECT *, '{kind}' AS kind, {dt} FROM ({statement(f'open {kind}', hops=hops)})"


# ---------------------------------------------------------------- tables


def open_since(newest_ns: int) -> int:
    """What is open and older than this, when ``newest_ns`` is the time of the last record, is waited for no more: a
    full hour, for Spark compiles a statement with another number in it anew.
    """
    return (newest_ns - int(EXPIRES_S * 1e9)) // _HOUR_NS * _HOUR_NS


@dataclass
class Tables:
    """The tables of some rows; made by ``tables_of``.

    Attributes:
        spark: where the views are that they are made of.
        look: how many rows there are of each kind.
        since_ns: what is open and not older is left open.
    """

    spark: SparkSession
    look: Counter[str]
    since_ns: int

    def sql(self, text: str) -> DataFrame:
        """A statement of the"""
        return self.spark.sql(text, args={"since_ns": self.since_ns})

    def rows(self, table: str, dates: Sequence[str] | None = None) -> DataFrame | None:
        """The rows of a gold table (of some dates), in its schema; None where it can have none."""
        if not any(self.look[kind] for kind in NEEDS[table]):
            return None
        return self.sql(rows_of(table, dates, hops=self.look["hops"] > 0))

    def left_open(self) -> pa.Table:
        """What is left open, in the columns of ``_open``."""
        found = _none(self.spark, OPEN)
        for kind, needs in LEAVES.items():
            if self.look[needs] or self.look[f"open {kind}"]:
                rows = self.sql(left_open(kind, hops=self.look["hops"] > 0))
                found = found.unionByName(rows, allowMissingColumns=True)
        return found.toArrow().cast(OPEN.arrow(partition=True))


def _none(spark: SparkSession, table: Table) -> DataFrame:
    """No rows, in a way that Spark knows it before it plans."""
    columns = ", ".join(f"CAST(NULL AS {each.ddl.split()[-1]}) AS `{each.name}`" for each in table.columns)
    return spark.sql(f"SELECT {columns} WHERE false")


@contextlib.contextmanager
def tables_of(
    spark: SparkSession,
    read: Callable[[SparkSession], DataFrame] | None,
    *,
    before: pa.Table | None = None,
    since_ns: int | None = NEVER,
    rows: int | None = None,
    keep: bool = False,
) -> Iterator[Tables]:
    """The gold tables of rows of bronze, valid inside.

    Args:
        spark: where; settings and views of the session stay as they are.
        read: gives the rows, in the session that it is told; None: there are none.
        before: what an earlier batch left open; None: nothing.
        since_ns: what is open and not older is left open; None: what is open for less than ``EXPIRES_S``.
        rows: how many there are, where that is known.
        keep: the rows are dear to read, and kept once they are.
    """
    apart: Any = spark.newSession()
    for key, value in _SETTINGS.items():
        apart.conf.set(key, value)
    if rows is not None and rows <= FEW_ROWS:
        apart.conf.set("spark.sql.adaptive.enabled", "false")
        apart.conf.set("spark.sql.shuffle.partitions", str(rows // PART_ROWS + 1))
    tables = Tables(apart, Counter(), 0)
    with contextlib.ExitStack() as kept:
        recorded = _none(apart, MESSAGES) if read is None else read(apart)
        if read is not None and rows is not None and rows <= ONE_TASK_ROWS:
            recorded = recorded.coalesce(1)
        if keep and read is not None:
            kept.callback(recorded.persist().unpersist)
        recorded.createOrReplaceTempView("recorded")
        apart.sql(queries()[BRONZE]).createOrReplaceTempView(BRONZE)
        if before is not None and before.num_rows:
            apart.createDataFrame(before).createOrReplaceTempView("before")
            tables.look.update(f"open {kind}" for kind in before["kind"].to_pylist())
        else:
            _none(apart, OPEN).createOrReplaceTempView("before")
        if read is not None:
            seen = apart.sql(queries()[LOOK]).first().asDict()
            tables.look.update({kind: number or 0 for kind, number in seen.items()})
        newest_ns = tables.look.pop("newest_ns", 0)
        tables.since_ns = open_since(newest_ns) if since_ns is None else since_ns
        for view, needs in KEPT.items():
            found = tables.sql(statement(view, hops=tables.look["hops"] > 0))
            if any(tables.look[kind] for kind in needs):
                kept.callback(found.persist().unpersist)
            found.createOrReplaceTempView(view)
        yield tables
