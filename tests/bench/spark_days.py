"""A day's journal to tables by Spark on this machine, at several sizes: CPU, and whether it stays in proportion.

CPU is what a busy machine changes least.
"""

import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.pipeline.bronze import ingest
from gateway.pipeline.gold import batch
from gateway.pipeline.warehouse import Warehouse
from tests.bench.spark_works import missing, sessions
from tests.bench.spoken import day
from tests.bench.targets import Row
from tests.bench.works import Bench, say

SIZES = tuple(int(size) * 1_000_000 for size in os.environ.get("HEADGATE_BENCH_MROWS", "1,5,20").split(","))
"""Rows; 100 million take 20 GB and three quarters of an hour."""
RANKS = 4


def days(bench: Bench) -> list[Row]:
    """Journal to tables of a day of 1, 5 and 20 million rows (HEADGATE_BENCH_MROWS): CPU a row."""
    if why := missing():
        return [Row("pipeline_rows", note=why)]
    found: list[dict[str, Any]] = []
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as place:
            journal = Path(place) / "journal"
            rows = day(journal, size, RANKS)
            found.append({"rows": rows, "load": os.getloadavg()[0]})
            for job in ("ingest", "batch"):
                with multiprocessing.get_context("spawn").Pool(1) as apart:
                    found[-1][job] = apart.apply(_job, (job, str(journal), f"{place}/warehouse"))
                say(f"{rows:,} rows: {job} {found[-1][job]}")
                assert found[-1][job]["rows"] == rows, "every record is a row, and no more"
            shutil.rmtree(journal)
    row = Row("pipeline_rows", raw={"days": found})
    cpu = [sum(each[job]["cpu_s"] for job in ("ingest", "batch")) / each["rows"] * 1e6 for each in found]
    row.settle([cpu[-1] / cpu[0]])
    row.figures = {"headgate": " / ".join(f"{each:.1f} µs" for each in cpu)}
    row.note = " / ".join(f"{each['rows'] / 1e6:.0f} M" for each in found)
    return [row]


def _job(job: str, journal: str, place: str) -> dict[str, float]:
    """Seconds, and CPU of this process, which does nothing else, and of its JVM and workers."""
    began = time.perf_counter()
    warehouse = Warehouse(place)
    with sessions("local[2]") as spark:
        run = ingest(spark, journal, warehouse) if job == "ingest" else batch(spark, warehouse)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "rows": run.rows_in,
        "s": round(time.perf_counter() - began, 1),
        "cpu_s": round(sum(each.ru_utime + each.ru_stime for each in used), 1),
    }


WORKS: dict[str, Callable[[Bench], list[Row]]] = {"spark_days": days}
