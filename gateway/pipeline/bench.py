"""How fast the two tables that cost most are made, beside DuckDB over the same Parquet files.

Both engines make the same columns and keep the whole result (Spark's goes to its noop sink, DuckDB's into a table of
Arrow), as ``batch`` has them do; that they agree is checked, outside the timing. DuckDB has no start-up and no cluster;
Spark is here because a cluster takes the same job. Figures are comparable within one run only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline import schema
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.tables.inprocess import tables_of
from gateway.pipeline.tables.rpc_latency import rpc_latency
from gateway.pipeline.tables.traffic import traffic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from gateway.pipeline.warehouse import Warehouse

_CHECKED: Final = {
    "rpc_latency": (
        "n",
        "sum_ns",
        "max_ns",
        "unmatched_no_response",
        "not_captured",
        "unmatched_no_request",
        "unmatched_noresponse",
        "reused_tags",
    ),
    "traffic": ("n", "payload_bytes", "wire_bytes"),
}
ROUNDS: Final = 3
THREADS: Final = 2
"""Of DuckDB; as many as ``local[2]`` has tasks."""


@dataclass(frozen=True)
class Timing:
    """One table: seconds of each engine (the best of its rounds; the first warms up), rows of bronze and of the
    table.
    """

    table: str
    spark_s: float
    duckdb_s: float
    rows_in: int
    rows_out: int

    @property
    def ratio(self) -> float:
        """How many times as long Spark takes."""
        return self.spark_s / self.duckdb_s

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **vars(self),
            "ratio": round(self.ratio, 2),
            "spark_rows_per_s": round(self.rows_in / self.spark_s),
        }


def bench(
    spark: SparkSession,
    warehouse: Warehouse,
    rounds: int = ROUNDS,
    threads: int = THREADS,
    told: Callable[[Timing], None] | None = None,
) -> list[Timing]:
    """Time both engines on the bronze of a warehouse, in turns.

    Args:
        spark: where.
        warehouse: with bronze (``benchload.make_up`` makes some).
        rounds: turns of each; one more goes before to warm up.
        threads: of DuckDB.
        told: is told each figure.

    Raises:
        Missing: DuckDB is not installed.
        PipelineError: no bronze, or the two do not agree.
    """
    files = warehouse.at(schema.MESSAGES.name).files()
    if not files:
        raise PipelineError(
            f"{warehouse}: no messages; expected bronze made by ingest, or --calls N to make some up"
        )
    timings = []
    for name in _CHECKED:
        timings.append(_one(spark, warehouse, name, rounds, threads))
        if told is not None:
            told(timings[-1])
    return timings


def _one(spark: SparkSession, warehouse: Warehouse, name: str, rounds: int, threads: int) -> Timing:
    bronze = warehouse.at(schema.MESSAGES.name)

    def duckdb_turn() -> pa.Table:
        with tables_of(bronze.dataset(bronze.files()), threads=threads) as tables:
            return tables.rows(name)

    def spark_turn() -> None:
        made(spark, warehouse, name).write.format("noop").mode("overwrite").save()

    spark_s, duckdb_s = [], []
    for _turn in range(rounds + 1):
        spark_s.append(_seconds(spark_turn))
        duckdb_s.append(_seconds(duckdb_turn))
    ours, theirs = (
        _sums(rows, _CHECKED[name]) for rows in (made(spark, warehouse, name).toArrow(), duckdb_turn())
    )
    if ours != theirs:
        raise PipelineError(f"{name}: Spark made {ours}, DuckDB {theirs} (rows, {', '.join(_CHECKED[name])})")
    total = sum(each.rows for each in bronze.files())
    return Timing(name, min(spark_s[1:]), min(duckdb_s[1:]), total, ours[0])


def _sums(rows: pa.Table, columns: Sequence[str]) -> tuple[int, ...]:
    import pyarrow.compute as pc

    return rows.num_rows, *(pc.sum(rows[name]).as_py() or 0 for name in columns)


def made(spark: SparkSession, warehouse: Warehouse, name: str) -> DataFrame:
    """The table, as ``batch`` makes it."""
    return {"traffic": traffic, "rpc_latency": rpc_latency}[name](warehouse.read(spark, schema.MESSAGES.name))


def _seconds(turn: Callable[[], object]) -> float:
    began = time.perf_counter()
    turn()
    return time.perf_counter() - began
