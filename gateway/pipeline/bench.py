"""How fast the two tables that cost most are made, beside DuckDB over the same Parquet files.

Both engines make the same columns and keep the whole result (Spark's goes to its noop sink, DuckDB's into a
table of its memory); that they agree is checked, outside the timing. DuckDB has no start-up and no cluster;
Spark is here because a cluster takes the same job. Figures are comparable within one run only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline import schema
from gateway.pipeline.errors import Missing, PipelineError
from gateway.pipeline.tables import sql
from gateway.pipeline.tables.rpc_latency import rpc_latency
from gateway.pipeline.tables.traffic import traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.pipeline.warehouse import Warehouse

QUERIES: Final = {"rpc_latency": sql.LATENCY, "traffic": sql.TRAFFIC}
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
    try:
        import duckdb
    except ImportError:
        raise Missing("duckdb is not installed: pip install duckdb") from None
    files = warehouse.at(schema.MESSAGES.name).paths()
    if not files:
        raise PipelineError(
            f"{warehouse.root}: no messages; expected bronze made by ingest, or --calls N to make some up"
        )
    timings = []
    for name in QUERIES:
        with duckdb.connect(config={"threads": threads}) as base:
            base.execute(
                "CREATE VIEW bronze AS SELECT * FROM read_parquet($files, hive_partitioning = true)".replace(
                    "$files", repr(files)
                )
            )
            timing = _one(spark, warehouse, name, base, rounds)
        timings.append(timing)
        if told is not None:
            told(timing)
    return timings


def _one(spark: SparkSession, warehouse: Warehouse, name: str, base: Any, rounds: int) -> Timing:
    query = QUERIES[name]
    if name == "rpc_latency":
        others = base.execute("SELECT count(*) > 0 FROM bronze WHERE direction <> 'in'").fetchone()[0]
        query = sql.matched(query, others=others)

    def duckdb_turn() -> None:
        base.execute(f"CREATE OR REPLACE TEMP TABLE made AS {query}")

    def spark_turn() -> None:
        made(spark, warehouse, name).write.format("noop").mode("overwrite").save()

    spark_s, duckdb_s = [], []
    for _turn in range(rounds + 1):
        spark_s.append(_seconds(spark_turn))
        duckdb_s.append(_seconds(duckdb_turn))
    columns = _CHECKED[name]
    sums = ", ".join(f"sum({column})::BIGINT" for column in columns)
    theirs = base.execute(f"SELECT count(*), {sums} FROM made").fetchone()  # noqa: S608 - our own names
    rows = made(spark, warehouse, name).toArrow().select(list(columns))
    ours = (rows.num_rows, *(sum(filter(None, rows[column].to_pylist())) for column in columns))
    if ours != tuple(theirs):
        raise PipelineError(f"{name}: Spark made {ours}, DuckDB {tuple(theirs)} (rows, {', '.join(columns)})")
    total = base.execute("SELECT count(*) FROM bronze").fetchone()[0]
    return Timing(name, min(spark_s[1:]), min(duckdb_s[1:]), total, rows.num_rows)


def made(spark: SparkSession, warehouse: Warehouse, name: str) -> DataFrame:
    """The table, as ``batch`` makes it."""
    return {"traffic": traffic, "rpc_latency": rpc_latency}[name](warehouse.read(spark, schema.MESSAGES.name))


def _seconds(turn: Callable[[], None]) -> float:
    began = time.perf_counter()
    turn()
    return time.perf_counter() - began
