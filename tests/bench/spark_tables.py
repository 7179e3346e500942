"""All gold tables of a day's messages, as ``batch`` makes them: in this process, and in the tasks of Spark."""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.pipeline.errors import PipelineError
from gateway.pipeline.gold import batch
from gateway.pipeline.warehouse import Warehouse
from tests.bench.spark_load import make_up
from tests.bench.targets import Row
from tests.bench.works import Bench, say

CALLS = 2_000_000
"""Five million rows of bronze."""
RANKS = 4
MIB = 1 << 10
"""Of what ``getrusage`` says."""


def tables(bench: Bench) -> list[Row]:
    """All gold tables of five million messages at four ranks: here, and the tasks of Spark local[2] beside it."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as place:
        warehouse = Warehouse(Path(place) / "warehouse")
        rows = make_up(warehouse, CALLS, RANKS)
        here, spark = Row("gold_here", raw={"rows": rows}), Row("gold_spark")
        turns = [_apart(warehouse.place) for _turn in range(bench.rounds)]
        taken = [seconds for seconds, _rss_kib in turns]
        here.settle([rows / seconds / 1e6 for seconds in taken])
        here.figures = {"headgate": f"{min(taken):.1f} s, {max(rss for _s, rss in turns) // MIB:,} MiB"}
        say(f"gold_here  {here.value} M rows/s {here.figures}")
        try:
            by_spark = _by_spark(warehouse)
        except PipelineError as error:
            spark.note = str(error)
        else:
            spark.settle([by_spark / min(taken)])
            spark.figures = {"headgate": f"{min(taken):.1f} s", "by Spark": f"{by_spark:.1f} s"}
            say(f"gold_spark {spark.value} x {spark.figures}")
    return [here, spark]


def _apart(place: str) -> tuple[float, int]:
    """Seconds and the most memory of ``batch`` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as apart:
        return apart.apply(_here, (place,))


def _here(place: str) -> tuple[float, int]:
    return _seconds(None, Warehouse(place)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _by_spark(warehouse: Warehouse) -> float:
    """Seconds of the second turn; the first one starts the workers."""
    from gateway.pipeline import session

    session.require()
    spark = session.session("local[2]", "headgate bench", {"spark.driver.memory": "1g"})
    try:
        return [_seconds(spark, warehouse) for _turn in range(2)][1]
    finally:
        session.close(spark)


def _seconds(spark: Any, warehouse: Warehouse) -> float:
    began = time.perf_counter()
    batch(spark, warehouse, warehouse.dates("messages"))
    return time.perf_counter() - began


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"spark_tables": tables}
