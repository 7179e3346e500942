"""``headgate pipeline ingest``: segments of a journal -> bronze."""

from __future__ import annotations

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import given
from gateway.pipeline.warehouse import Warehouse

EXAMPLES = (
    "headgate pipeline ingest --journal journal --warehouse warehouse",
    "headgate pipeline ingest -j /shared/journal -w /shared/warehouse --master spark://head:7077",
    "headgate pipeline ingest -j journal -w warehouse --on-corrupt skip --json",
)


def ingest(
    journal: given.Journal,
    warehouse: given.Where,
    payload: given.Payload = False,
    on_corrupt: given.Corrupt = "fail",
    master: given.Master = None,
    conf: given.Conf = None,
    verbose: given.Verbose = False,
    as_json: options.AsJson = False,
) -> int:
    """Write what was recorded since the last time into bronze, in tasks of Spark and one commit.

    Exit codes: 0 done, 1 damage, a deleted segment, a worker that does not see the journal, or a stream feeds the
    warehouse, 2 wrong options, 78 no such journal.
    """
    from gateway.pipeline import bronze

    skip = given.skips(on_corrupt)
    target = Warehouse(warehouse)
    where = given.Spark(master, conf, verbose)
    rows = given.rows_of(
        bronze.pending(journal, target)
    )  # what is wrong with the journal is said before a JVM starts
    with given.Progress(quiet=as_json) as progress, where.session("ingest", progress, rows=rows) as spark:
        run = bronze.ingest(spark, journal, target, payload=payload, skip=skip)
        Screen(as_json).record(run.as_json(), given.line_of(run))
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline ingest", ingest, EXAMPLES, argv)
