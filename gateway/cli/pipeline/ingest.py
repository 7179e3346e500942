"""``headgate pipeline ingest``: segments of a journal -> bronze."""

from __future__ import annotations

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import shared_options
from gateway.pipeline.warehouse import Warehouse

EXAMPLES = (
    "headgate pipeline ingest --journal journal --warehouse warehouse",
    "headgate pipeline ingest -j /shared/journal -w /shared/warehouse --master spark://head:7077",
    "headgate pipeline ingest -j journal -w warehouse --on-corrupt skip --json",
)


def ingest(
    journal: shared_options.Journal,
    warehouse: shared_options.Where,
    payload: shared_options.Payload = False,
    on_corrupt: shared_options.Corrupt = "fail",
    master: shared_options.Master = None,
    conf: shared_options.Conf = None,
    verbose: shared_options.Verbose = False,
    as_json: options.AsJson = False,
) -> int:
    """Write what was recorded since the last time into bronze, in tasks of Spark and one commit.

    Exit codes: 0 done, 1 damage, a deleted segment, a worker that does not see the journal, or a stream feeds the
    warehouse, 2 wrong options, 78 no such journal.
    """
    from gateway.pipeline import bronze

    skip = shared_options.skips(on_corrupt)
    target = Warehouse(warehouse)
    where = shared_options.Spark(master, conf, verbose)
    rows = shared_options.rows_of(
        bronze.pending(journal, target)
    )  # what is wrong with the journal is said before a JVM starts
    with (
        shared_options.Progress(quiet=as_json) as progress,
        where.session("ingest", progress, rows=rows) as spark,
    ):
        run = bronze.ingest(spark, journal, target, payload=payload, skip=skip)
        Screen(as_json).record(run.as_json(), shared_options.line_of(run))
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline ingest", ingest, EXAMPLES, argv)
