"""The two dearest tables by Spark and by DuckDB, over the same Parquet files (``gateway/pipeline/bench.py``)."""

import tempfile
from collections.abc import Callable

from tests.bench.targets import Row
from tests.bench.works import Bench, say

CALLS = 2_000_000
"""Five million rows of bronze: less, and it is the start of jobs that is measured."""
KEYS = {"rpc_latency": "spark_latency", "traffic": "spark_traffic"}


def tables(bench: Bench) -> list[Row]:
    """Latency and traffic tables of five million messages: Spark local[2] and DuckDB with two threads."""
    try:
        import duckdb  # noqa: F401

        from gateway.pipeline import session
        from gateway.pipeline.bench import bench as measure
        from gateway.pipeline.benchload import make_up
        from gateway.pipeline.errors import PipelineError
        from gateway.pipeline.warehouse import Warehouse

        session.require()
    except (ImportError, PipelineError) as error:
        return [Row(key, note=str(error)) for key in KEYS.values()]
    rows = []
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as place:
        warehouse = Warehouse(place)
        make_up(warehouse, CALLS)
        conf = {"spark.sql.shuffle.partitions": "4", "spark.driver.memory": "3g"}
        spark = session.session("local[2]", "headgate bench", conf)
        try:
            timings = measure(spark, warehouse, rounds=min(bench.rounds, 3))
        finally:
            session.close(spark)
    for timing in timings:
        figures = {"spark": f"{timing.spark_s:.2f} s", "duckdb": f"{timing.duckdb_s:.2f} s"}
        row = Row(KEYS[timing.table], figures=figures, raw=timing.as_json())
        row.settle([timing.ratio])
        say(f"{timing.table:<12} {timing.ratio:.1f} x  {figures}")
        rows.append(row)
    return rows


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"spark_tables": tables}
