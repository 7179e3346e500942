"""``headgate pipeline batch``: bronze -> gold; with ``--journal`` bronze first."""

from __future__ import annotations

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from gateway.cli.pipeline import given
from gateway.pipeline.warehouse import Warehouse

EXAMPLES = (
    "headgate pipeline batch --journal journal --warehouse warehouse       journal to tables",
    "headgate pipeline batch --warehouse warehouse --since 2026-01-01      gold of these dates again",
    "headgate pipeline batch -w warehouse --table traffic --table rpc_latency",
)


def batch(
    warehouse: given.Where,
    journal: given.MaybeJournal = None,
    since: given.Since = None,
    until: given.Until = None,
    table: given.Tables = None,
    payload: given.Payload = False,
    on_corrupt: given.Corrupt = "fail",
    master: given.Master = None,
    conf: given.Conf = None,
    verbose: given.Verbose = False,
    as_json: options.AsJson = False,
) -> int:
    """Make gold of the dates whose bronze has changed, and of those asked for; whole dates are replaced, so doing it
    again is harmless, also beside a stream. DuckDB makes it, here, within four GiB; with --master or --conf
    it does so in the tasks of Spark, each for some ranks.

    Exit codes: 0 done, 1 damage, or a stream feeds the warehouse, 2 wrong options, 78 no such journal or warehouse.
    """
    import duckdb  # noqa: F401 - it is needed last: that it is missing is said before the journal is read

    from gateway.pipeline import batch as job
    from gateway.pipeline import ingest, schema
    from gateway.pipeline.progress import Progress

    skip = given.skips(on_corrupt)
    names = [schema.table_named(name).name for name in table or ()]
    target = Warehouse(warehouse) if journal else given.existing(warehouse)
    where, screen = given.Spark(master, conf, verbose), Screen(as_json)
    if journal and where.asked:
        ingest.pending(journal, target)  # what is wrong with the journal is said before a JVM starts
    with Progress(quiet=as_json) as progress, where.where_asked("batch", progress) as spark:
        if journal:
            tell = progress.step("ingest", "segments")
            run = ingest.ingest(spark, journal, target, payload=payload, skip=skip, tell=tell)
            screen.record(run.as_json(), given.line_of(run))
        dates = given.dates(target, "messages", since, until)
        tell = progress.step("batch", "tables")
        run = job.batch(spark, target, dates, tables=names or job.NAMES, tell=tell)
    screen.record(run.as_json(), given.line_of(run))
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("pipeline batch", batch, EXAMPLES, argv)
