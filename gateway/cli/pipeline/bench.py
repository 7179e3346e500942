"""``headgate pipeline bench``: the two dearest tables by Spark and by DuckDB, over the same files."""

from __future__ import annotations

import tempfile
from typing import Annotated

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import given
from gateway.pipeline.warehouse import Warehouse

EXAMPLES = (
    "headgate pipeline bench --warehouse warehouse                     on what it holds",
    "headgate pipeline bench --calls 1000000 --master 'local[2]'       on calls that are made up",
)
CALLS = 400_000
"""Made up where no warehouse is given: a million rows."""


def bench(
    warehouse: Annotated[
        str | None,
        typer.Option("--warehouse", "-w", metavar="DIR|URL", help="Whose bronze. Default: made up."),
    ] = None,
    calls: Annotated[int, typer.Option("--calls", min=1000, metavar="N", help="Calls to make up.")] = CALLS,
    rounds: Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="Turns of each engine.")] = 3,
    master: given.Master = None,
    conf: given.Conf = None,
    verbose: given.Verbose = False,
    as_json: options.AsJson = False,
) -> int:
    """Time the latency and the traffic table by Spark and by DuckDB; both keep their whole result.

    On one machine DuckDB is the faster one; Spark is here because a cluster takes the same job. Exit codes: 0 done,
    1 no bronze, DuckDB missing or the engines disagree, 2 wrong options.
    """
    from gateway.pipeline import bench as job
    from gateway.pipeline.benchload import make_up
    from gateway.pipeline.progress import Progress

    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as place,
        Progress(quiet=as_json) as progress,
        given.Spark(master, conf, verbose).session("bench", progress) as spark,
    ):
        target = given.existing(warehouse) if warehouse else Warehouse(place)
        if not warehouse:
            with progress.waiting(f"making {calls:,} calls up"):
                make_up(target, calls)
        with progress.waiting("Spark and DuckDB in turns"):
            timings = job.bench(spark, target, rounds=rounds)
    rows = [
        (each.table, f"{each.spark_s:.2f}", f"{each.duckdb_s:.2f}", f"{each.ratio:.1f}", str(each.rows_in))
        for each in timings
    ]
    heads = ("table", "Spark s", "DuckDB s", "times as long", "rows read")
    Screen(as_json).records(heads, [each.as_json() for each in timings], rows)
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline bench", bench, EXAMPLES, argv)
